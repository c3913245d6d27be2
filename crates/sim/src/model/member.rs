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
use crate::cluster::{CoreMember, MemberDriver, WorkKind};

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

    /// Lets this happen. A panic of the core is a violation like any other.
    pub(super) fn perform(&self, config: &Config, act: &Act) -> Result<ActResult, Violation> {
        let performed = catch_unwind(AssertUnwindSafe(|| {
            let mut performed = self.perform_as_is(config, act)?;
            performed.local.make_canonical();
            Ok(performed)
        }));
        performed.unwrap_or_else(|panic| Err(Violation::of_panic(panic.as_ref())))
    }

    /// Lets this happen, and leaves clocks and numbers as they are then.
    fn perform_as_is(&self, config: &Config, act: &Act) -> Result<ActResult, Violation> {
        let mut run = MemberRun::new(self, config);
        run.act(act)?;
        run.drain(self.id)?;
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
    config: &'a Config,
    checks: LocalChecks,
    sends: Vec<Envelope>,
}

impl MemberDriver for MemberRun<'_> {
    type Checks = LocalChecks;

    fn parts(&mut self, _: MemberId) -> Option<(&mut CoreMember, &mut LocalChecks)> {
        Some((&mut self.local, &mut self.checks))
    }

    fn send(&mut self, envelopes: Vec<Envelope>) {
        self.sends.extend(envelopes.into_iter().filter(|envelope| envelope.from != envelope.to));
    }
}

impl<'a> MemberRun<'a> {
    fn new(local: &CoreMember, config: &'a Config) -> Self {
        let record = MemberRecord::of_view(config, &local.view(config));
        let checks = LocalChecks { record, raised: Vec::new(), settled: Vec::new() };
        Self { local: local.clone(), config, checks, sends: Vec::new() }
    }

    fn act(&mut self, act: &Act) -> Checked {
        let (id, request) = (self.local.id, RequestId(1));
        let input = match act {
            Act::Restart { unsynced_lost } => return self.restart(*unsynced_lost),
            Act::CompleteSave => return self.complete(id, WorkKind::Saves).map(drop),
            Act::CompleteApply => return self.complete(id, WorkKind::Applies).map(drop),
            Act::Snapshot => {
                let index = self.local.raft.as_ref().map_or(0, |raft| raft.log_status().applied);
                return self.local.snapshot(index).map(drop);
            }
            Act::Receive(envelope) => Input::Received(envelope.clone()),
            Act::Campaign => Input::Campaign,
            Act::ForgetLeader => Input::ForgetLeader,
            Act::Propose => Input::Propose(request, Bytes::from_static(b"x")),
            Act::Change(change) => Input::Change(request, change.clone()),
            Act::Transfer(to) => Input::Transfer(*to),
            Act::Tick => Input::Tick,
        };
        // Why an input had no effect is of no interest here.
        self.step(id, "input", input).map(drop)
    }

    fn restart(&mut self, unsynced_lost: bool) -> Checked {
        self.local.crash(unsynced_lost);
        let boot = self.local.start(self.config, None);
        let boot = boot.map_err(|why| Violation::new("assert", format!("boot: {why}")))?;
        self.started(self.local.id, &boot)
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::message::Message;

    use super::super::search::tests::{ExploredMembers, seen};
    use super::*;

    /// Where an act leads from here, brought into the one form of all that are alike.
    /// The clock of a heartbeat is its sender's business.
    fn led(local: &CoreMember, config: &Config, act: &Act) -> (CoreMember, Vec<Envelope>) {
        let ActResult { mut local, mut sends, .. } = local.perform_as_is(config, act).unwrap();
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
            let ExploredMembers { configs, locals, acts } = seen(name, 3_000);
            for (at, local) in locals.iter().step_by(3) {
                let acts = || acts.iter().filter(|(to, _)| to == at);
                for (_, first) in acts().step_by(3) {
                    let as_is = local.perform_as_is(&configs[*at], first).unwrap().local;
                    let mut one_form = as_is.clone();
                    one_form.make_canonical();
                    for (_, then) in acts().step_by(5) {
                        let expected = led(&as_is, &configs[*at], then);
                        assert_eq!(
                            led(&one_form, &configs[*at], then),
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
