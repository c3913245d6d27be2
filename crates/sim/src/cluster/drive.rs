//! The loop that drives members: an input goes in, and everything that the core asks for is
//! done, unless it is held. Stories, the model checker, recorded traces and random clusters
//! are drivers.

use quorate_core::{Accepted, Boot, Dropped, Envelope, Input, MemberId, Output};

use super::{CoreMember, WorkKind};
use crate::checkers::{Checked, MemberChecks, Violation};

/// What the core says of an input; none when the member is down.
type Taken = Option<Result<Accepted, Dropped>>;

/// Drives members. What differs between drivers is where messages go and what they show.
pub(crate) trait MemberDriver {
    type Checks: MemberChecks;

    /// A member, and the checks that everything it does must pass.
    fn parts(&mut self, id: MemberId) -> Option<(&mut CoreMember, &mut Self::Checks)>;

    /// Messages leave a member.
    fn send(&mut self, envelopes: Vec<Envelope>);

    /// A member hands out an output. The driver sends its messages; the work in it is queued
    /// afterwards.
    fn output(&mut self, _id: MemberId, output: &mut Output) {
        self.send(std::mem::take(&mut output.send));
    }

    /// A member is about to get an input.
    fn stepping(&mut self, _id: MemberId) {}

    /// Work is done, and the core is about to be told.
    fn completed(&mut self, _id: MemberId, _work: WorkKind, _told: &Input) {}

    /// An input had no effect.
    fn dropped(&mut self, _id: MemberId, _what: &str, _why: &Dropped) {}

    /// Gives a member an input. What it asks for waits for [`MemberDriver::drain`].
    fn step(&mut self, id: MemberId, what: &str, input: Input) -> Result<Taken, Violation> {
        self.stepping(id);
        let Some((member, _)) = self.parts(id) else { return Ok(None) };
        let taken = member.step(input)?;
        if let Some(Err(why)) = &taken {
            self.dropped(id, what, why);
        }
        Ok(taken)
    }

    /// Does what a member asks for, until it asks for nothing more or the rest is held.
    fn drain(&mut self, id: MemberId) -> Checked {
        for _ in 0..STEPS_MAX {
            let Some((member, _)) = self.parts(id) else { return Ok(()) };
            let work = member.free_work();
            if let Some(work) = work {
                self.complete(id, work)?;
            }
            let Some((member, checks)) = self.parts(id) else { return Ok(()) };
            if let Some(mut output) = member.take_output(checks)? {
                self.output(id, &mut output);
                let Some((member, _)) = self.parts(id) else { return Ok(()) };
                member.queue(output);
            } else if work.is_none() {
                return Ok(());
            }
        }
        Err(Violation::new("assert", format!("{id} asks for more for {STEPS_MAX} steps")))
    }

    /// Does the oldest work of this kind, held or not. False when there is none that can be
    /// done now.
    fn complete(&mut self, id: MemberId, work: WorkKind) -> Result<bool, Violation> {
        let Some((member, checks)) = self.parts(id) else { return Ok(false) };
        let Some((told, released)) = member.do_work(work, checks)? else { return Ok(false) };
        self.completed(id, work, &told);
        self.send(released);
        let what = match work {
            WorkKind::Saves => "saved",
            WorkKind::Applies => "applied",
            WorkKind::Loads => "loaded",
        };
        self.step(id, what, told).map(|_| true)
    }

    /// Passes a member that was just started to the checks.
    fn started(&mut self, id: MemberId, boot: &Boot) -> Checked {
        match self.parts(id) {
            Some((CoreMember { raft: Some(raft), .. }, checks)) => checks.started(raft, boot),
            _ => Ok(()),
        }
    }
}

/// More steps than one input can need, so that a loop ends as a violation.
const STEPS_MAX: usize = 100_000;
