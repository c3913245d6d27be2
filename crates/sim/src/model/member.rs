//! One member as the model checker drives it. What happens to it is a pure function of what
//! it is and what it is given.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use quorate_core::{
    Boot, Change, Config, EntryId, Envelope, Event, Input, MemberId, Membership, Output, Raft,
    RequestId, Save, SaveId,
};

use crate::checkers::{
    Checked, DiskRecord, MemberChecks, MemberRecord, MemberView, RaisedCommit, Violation,
};
use crate::cluster::CoreMember;

/// What never changes about a member.
#[derive(Clone, Debug)]
pub(super) struct ModelConstants {
    pub(super) config: Config,
    pub(super) holds_saves: bool,
    pub(super) holds_applies: bool,
}

/// Something that happens to one member.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Receive(Envelope),
    Campaign,
    ForgetLeader,
    Propose,
    Change(Change),
    Transfer(MemberId),
    Tick,
    /// Crashes and starts again from its disk; if `unsynced_lost`, without what was not synced.
    Restart {
        unsynced_lost: bool,
    },
    Snapshot,
    CompleteSave,
    CompleteApply,
}

/// What an act led to.
#[derive(Clone, Debug)]
pub(super) struct ActResult {
    pub(super) local: CoreMember,
    pub(super) sends: Vec<Envelope>,
    /// Commit indexes a leader raised, with its own disk at that moment.
    pub(super) raised: Vec<(RaisedCommit, DiskRecord)>,
    pub(super) settled: Vec<(EntryId, Arc<Membership>)>,
}

impl CoreMember {
    pub(super) fn view(&self, config: &Config) -> MemberView {
        let durable = Arc::clone(&self.synced);
        match &self.raft {
            Some(raft) => MemberView::of(raft, durable),
            None => MemberView::down(config.id, config.activation, durable),
        }
    }

    /// Performs an action. A panic of the core is a violation like any other.
    pub(super) fn perform(
        &self,
        fixed: &ModelConstants,
        act: &Act,
    ) -> Result<ActResult, Violation> {
        let performed = catch_unwind(AssertUnwindSafe(|| {
            let mut performed = self.perform_as_is(fixed, act)?;
            performed.local.make_canonical();
            Ok(performed)
        }));
        performed.unwrap_or_else(|panic| Err(Violation::of_panic(panic.as_ref())))
    }

    /// Performs an action, without normalizing clocks and numbers.
    fn perform_as_is(&self, fixed: &ModelConstants, act: &Act) -> Result<ActResult, Violation> {
        let mut run = MemberRun::new(self, fixed);
        run.act(act)?;
        run.drain()?;
        let MemberRun { local, sends, checks, .. } = run;
        Ok(ActResult { local, sends, raised: checks.raised, settled: checks.settled })
    }

    /// Brings clocks and numbers into the one form of all members that behave alike.
    pub(super) fn make_canonical(&mut self) {
        if let Some(raft) = &mut self.raft {
            raft.make_canonical();
        }
        for (number, save) in (1..).zip(&mut self.saves) {
            save.id = SaveId(number);
        }
    }
}

/// Checks what one member alone can break, and collects what it claims of the others.
struct LocalChecks {
    record: MemberRecord,
    raised: Vec<(RaisedCommit, DiskRecord)>,
    settled: Vec<(EntryId, Arc<Membership>)>,
}

impl MemberChecks for LocalChecks {
    fn started(&mut self, raft: &Raft, boot: &Boot) -> Checked {
        self.record.started(raft.config(), boot)
    }

    fn output(&mut self, raft: &Raft, output: &Output) -> Checked {
        if let Some(save) = &output.save {
            self.record.save_requested(raft, save)?;
            if let Some(meta) = &save.install {
                self.record.installing(meta.id.index);
            }
        }
        self.stepped(raft)?;
        output.apply.iter().try_for_each(|entry| self.record.applying(entry.id))?;
        for event in &output.events {
            match event {
                Event::Settled { id, membership, .. } => {
                    self.record.settled(*id);
                    self.settled.push((*id, Arc::clone(membership)));
                }
                Event::GoalEnded(ended) => self.record.goal_ended(*ended)?,
                _ => {}
            }
        }
        output.send.iter().try_for_each(|envelope| self.sent(envelope))
    }

    fn saved(&mut self, _: MemberId, save: &Save) -> Checked {
        self.record.saved(save, save.must_sync)
    }

    fn sent(&mut self, envelope: &Envelope) -> Checked {
        self.record.sent(envelope)
    }

    fn stepped(&mut self, raft: &Raft) -> Checked {
        if let Some(raised) = self.record.stepped(raft)?.raised {
            self.raised.push((raised, self.record.disk().clone()));
        }
        Ok(())
    }
}

/// A member while something happens to it.
struct MemberRun<'a> {
    local: CoreMember,
    fixed: &'a ModelConstants,
    checks: LocalChecks,
    sends: Vec<Envelope>,
}

impl<'a> MemberRun<'a> {
    fn new(local: &CoreMember, fixed: &'a ModelConstants) -> Self {
        let record = MemberRecord::of_view(&fixed.config, &local.view(&fixed.config));
        let checks = LocalChecks { record, raised: Vec::new(), settled: Vec::new() };
        Self { local: local.clone(), fixed, checks, sends: Vec::new() }
    }

    fn act(&mut self, act: &Act) -> Checked {
        let request = RequestId(1);
        match act {
            Act::Restart { unsynced_lost } => self.restart(*unsynced_lost),
            Act::CompleteSave => self.complete_save(),
            Act::CompleteApply => self.complete_apply(),
            Act::Snapshot => {
                let index = self.local.raft.as_ref().map_or(0, |raft| raft.log_status().applied);
                self.local.snapshot(index).map(drop)
            }
            Act::Receive(envelope) => self.step(Input::Received(envelope.clone())),
            Act::Campaign => self.step(Input::Campaign),
            Act::ForgetLeader => self.step(Input::ForgetLeader),
            Act::Propose => self.step(Input::Propose(request, Bytes::from_static(b"x"))),
            Act::Change(change) => self.step(Input::Change(request, change.clone())),
            Act::Transfer(to) => self.step(Input::Transfer(*to)),
            Act::Tick => self.step(Input::Tick),
        }
    }

    /// Why an input had no effect is of no interest here.
    fn step(&mut self, input: Input) -> Checked {
        if self.local.raft.is_some() { self.local.step(input).map(drop) } else { Ok(()) }
    }

    /// Does what the member asks for, until it asks for nothing more.
    fn drain(&mut self) -> Checked {
        for _ in 0..STEPS_MAX {
            if !self.local.saves.is_empty() && !self.fixed.holds_saves {
                self.complete_save()?;
            } else if self.local.may_apply(&self.fixed.config) && !self.fixed.holds_applies {
                self.complete_apply()?;
            } else if let Some(output) = self.local.take_output(&mut self.checks)? {
                self.take(output)?;
            } else {
                return Ok(());
            }
        }
        Err(Violation::new("assert", format!("asks for more for {STEPS_MAX} steps")))
    }

    fn take(&mut self, output: Output) -> Checked {
        let Output { save, send, apply, load, trim, .. } = output;
        self.send(send);
        self.local.saves.extend(save);
        self.local.applies.extend((!apply.is_empty()).then_some(apply));
        self.local.loads.extend(load);
        while let Some(loaded) = self.local.read_load() {
            self.step(loaded)?;
        }
        if let Some(to) = trim {
            self.local.trim(to);
        }
        Ok(())
    }

    fn send(&mut self, envelopes: Vec<Envelope>) {
        self.sends.extend(envelopes.into_iter().filter(|envelope| envelope.from != envelope.to));
    }

    fn complete_save(&mut self) -> Checked {
        let Some(save) = self.local.write_save(&mut self.checks)? else { return Ok(()) };
        self.send(save.then_send);
        self.step(Input::Saved(save.id))
    }

    fn complete_apply(&mut self) -> Checked {
        match self.local.run_apply() {
            Some(last) => self.step(Input::Applied(last)),
            None => Ok(()),
        }
    }

    fn restart(&mut self, unsynced_lost: bool) -> Checked {
        self.local.crash(unsynced_lost);
        let boot = self.local.start(&self.fixed.config, None);
        let boot = boot.map_err(|why| Violation::new("assert", format!("boot: {why}")))?;
        match &self.local.raft {
            Some(raft) => self.checks.started(raft, &boot),
            None => Ok(()),
        }
    }
}

/// More steps than one input can need, so that a loop ends as a violation.
const STEPS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use quorate_core::message::Message;

    use super::super::search::tests::{ExploredMembers, seen};
    use super::*;

    /// Where an act leads from here, brought into the one form of all that are alike.
    /// Only the sender of a heartbeat uses its clock.
    fn led(local: &CoreMember, fixed: &ModelConstants, act: &Act) -> (CoreMember, Vec<Envelope>) {
        let ActResult { mut local, mut sends, .. } = local.perform_as_is(fixed, act).unwrap();
        local.make_canonical();
        for envelope in &mut sends {
            if let Message::Heartbeat(beat) = &mut envelope.message {
                beat.sent_at = 0;
            }
        }
        (local, sends)
    }

    /// What is forgotten has no influence: from a member as it is and from its one form,
    /// everything leads to the same.
    #[test]
    fn the_one_form_behaves_the_same() {
        let mut compared = 0;
        for name in ["promote-of-two", "slow-disks", "snapshots"] {
            let ExploredMembers { fixed, locals, acts } = seen(name, 3_000);
            for (at, local) in locals.iter().step_by(3) {
                let acts = || acts.iter().filter(|(to, _)| to == at);
                for (_, first) in acts().step_by(3) {
                    let as_is = local.perform_as_is(&fixed[*at], first).unwrap().local;
                    let mut one_form = as_is.clone();
                    one_form.make_canonical();
                    for (_, then) in acts().step_by(5) {
                        let expected = led(&as_is, &fixed[*at], then);
                        assert_eq!(
                            led(&one_form, &fixed[*at], then),
                            expected,
                            "{first:?} {then:?}"
                        );
                        compared += 1;
                    }
                }
            }
        }
        assert!(compared > 10_000, "only {compared} were compared");
    }
}
