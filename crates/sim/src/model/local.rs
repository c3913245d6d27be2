//! One member as the explorer drives it: the real core, its disk, and the work that
//! waits. What happens to it is a pure function of what it is and what it is given.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use quorate_core::{
    Change, Config, EntryId, Envelope, Event, Index, Input, MemberId, Membership, Output, Raft,
    RequestId, Save, SaveId, SnapshotMeta, invariants,
};

use crate::checkers::{
    DiskRecord, Durable, LogView, MemberRecord, MemberView, RaisedCommit, Violation,
};
use crate::scenario::disk::Disk;
use crate::scenario::stage::Standing;

/// Everything that decides what a member does next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Local {
    /// Two members that are down are two, even with equal disks.
    id: MemberId,
    /// Nothing while it is down.
    pub(super) raft: Option<Raft>,
    pub(super) disk: Arc<Disk>,
    /// The disk as the worst crash would leave it.
    pub(super) synced: Arc<Disk>,
    /// Saves that were asked for and are not done, oldest first.
    pub(super) saves: VecDeque<Save>,
    /// Entries handed to the machine and not applied, by the last of each batch.
    pub(super) applies: VecDeque<Index>,
}

/// What never changes about a member.
#[derive(Clone, Debug)]
pub(super) struct Fixed {
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
    /// Crashes and starts again from its disk, without what was not synced if so said.
    Restart {
        unsynced_lost: bool,
    },
    Snapshot,
    CompleteSave,
    CompleteApply,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(super) struct Performed {
    pub(super) local: Local,
    pub(super) sends: Vec<Envelope>,
    /// Commit indexes a leader raised, with its own disk at that moment.
    pub(super) raised: Vec<(RaisedCommit, DiskRecord)>,
    pub(super) settled: Vec<(EntryId, Arc<Membership>)>,
}

impl Local {
    pub(super) fn new(standing: &Standing) -> Self {
        let mut local = Self {
            id: standing.config.id,
            raft: standing.raft.clone(),
            disk: Arc::new(standing.disk.clone()),
            synced: Arc::new(standing.synced.clone()),
            saves: standing.saves.iter().cloned().collect(),
            applies: standing.applies.iter().copied().collect(),
        };
        local.make_canonical();
        local
    }

    pub(super) fn view(&self, fixed: &Fixed) -> MemberView {
        let durable = durable(&self.synced);
        match &self.raft {
            Some(raft) => MemberView::of(raft, durable),
            None => MemberView::down(fixed.config.id, fixed.config.activation, durable),
        }
    }

    /// Lets this happen. A panic of the core is a violation like any other.
    pub(super) fn perform(&self, fixed: &Fixed, act: &Act) -> Result<Performed, Violation> {
        let performed = catch_unwind(AssertUnwindSafe(|| {
            let mut performed = self.perform_as_is(fixed, act)?;
            performed.local.make_canonical();
            Ok(performed)
        }));
        performed.unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(Violation::new("assert", said.unwrap_or("no words")))
        })
    }

    /// Lets this happen, and leaves clocks and numbers as they are then.
    fn perform_as_is(&self, fixed: &Fixed, act: &Act) -> Result<Performed, Violation> {
        let mut run = Run::new(self, fixed);
        run.act(act)?;
        run.drain()?;
        run.look()?;
        Ok(run.into_performed())
    }

    fn make_canonical(&mut self) {
        if let Some(raft) = &mut self.raft {
            raft.make_canonical();
        }
        for (number, save) in (1..).zip(&mut self.saves) {
            save.id = SaveId(number);
        }
    }
}

fn durable(disk: &Disk) -> Durable {
    Durable {
        hard_state: disk.hard_state,
        snapshot: disk.snapshot.clone(),
        log: LogView { base: disk.base, entries: disk.log.clone() },
        applied: disk.applied,
    }
}

/// A member while something happens to it.
struct Run<'a> {
    local: Local,
    fixed: &'a Fixed,
    record: MemberRecord,
    sends: Vec<Envelope>,
    raised: Vec<(RaisedCommit, DiskRecord)>,
    settled: Vec<(EntryId, Arc<Membership>)>,
}

impl<'a> Run<'a> {
    fn new(local: &Local, fixed: &'a Fixed) -> Self {
        Self {
            record: MemberRecord::of_view(&fixed.config, &local.view(fixed)),
            local: local.clone(),
            fixed,
            sends: Vec::new(),
            raised: Vec::new(),
            settled: Vec::new(),
        }
    }

    fn into_performed(self) -> Performed {
        let Self { local, sends, raised, settled, .. } = self;
        Performed { local, sends, raised, settled }
    }

    fn act(&mut self, act: &Act) -> Result<(), Violation> {
        let request = RequestId(1);
        match act {
            Act::Restart { unsynced_lost } => self.restart(*unsynced_lost),
            Act::CompleteSave => self.complete_save(),
            Act::CompleteApply => self.complete_apply(),
            Act::Snapshot => self.snapshot(),
            Act::Receive(envelope) => self.step(Input::Received(envelope.clone())),
            Act::Campaign => self.step(Input::Campaign),
            Act::ForgetLeader => self.step(Input::ForgetLeader),
            Act::Propose => self.step(Input::Propose(request, Bytes::from_static(b"x"))),
            Act::Change(change) => self.step(Input::Change(request, change.clone())),
            Act::Transfer(to) => self.step(Input::Transfer(*to)),
            Act::Tick => self.step(Input::Tick),
        }
    }

    /// Carries out what the member asks for, until it asks for nothing more.
    fn drain(&mut self) -> Result<(), Violation> {
        for _ in 0..STEPS_MAX {
            if !self.local.saves.is_empty() && !self.fixed.holds_saves {
                self.complete_save()?;
            } else if self.may_apply() && !self.fixed.holds_applies {
                self.complete_apply()?;
            } else if self.local.raft.as_ref().is_some_and(Raft::has_output) {
                self.take_output()?;
            } else {
                return Ok(());
            }
        }
        Err(Violation::new("assert", format!("asks for more for {STEPS_MAX} steps")))
    }

    fn may_apply(&self) -> bool {
        let waits = self.fixed.config.apply_unsaved && !self.local.saves.is_empty();
        !self.local.applies.is_empty() && !waits
    }

    fn step(&mut self, input: Input) -> Result<(), Violation> {
        // Why an input had no effect is of no interest here.
        self.with_core(|raft| drop(raft.step(input))).map(|_| ())
    }

    fn with_core<T>(&mut self, act: impl FnOnce(&mut Raft) -> T) -> Result<Option<T>, Violation> {
        let Some(raft) = &mut self.local.raft else { return Ok(None) };
        let result = act(raft);
        invariants::check(raft).map_err(|why| Violation::new("assert", why))?;
        Ok(Some(result))
    }

    /// Checks the member as it is now.
    fn look(&mut self) -> Result<(), Violation> {
        let Some(raft) = &self.local.raft else { return Ok(()) };
        if let Some(raised) = self.record.stepped(raft)?.raised {
            self.raised.push((raised, self.record.disk().clone()));
        }
        Ok(())
    }

    fn take_output(&mut self) -> Result<(), Violation> {
        let Some(output) = self.with_core(Raft::take_output)? else { return Ok(()) };
        let Output { save, send, apply, load, trim, events, .. } = output;
        if let (Some(raft), Some(save)) = (&self.local.raft, &save) {
            self.record.save_requested(raft, save)?;
            if let Some(meta) = &save.install {
                self.record.installing(meta.id.index);
            }
        }
        self.look()?;
        apply.iter().try_for_each(|entry| self.record.applying(entry.id))?;
        for event in events {
            match event {
                Event::Settled { id, membership, .. } => {
                    self.record.settled(id);
                    self.settled.push((id, membership));
                }
                Event::GoalEnded(ended) => self.record.goal_ended(ended)?,
                _ => {}
            }
        }
        self.send(send)?;
        self.local.saves.extend(save);
        self.local.applies.extend(apply.last().map(|entry| entry.id.index));
        for load in load {
            let (from, to) = (load.range.start, load.range.end);
            let entries = self.local.disk.read(from, to, load.bytes_max);
            self.step(Input::Loaded(load.target, entries))?;
        }
        if let Some(to) = trim {
            Arc::make_mut(&mut self.local.disk).trim(to);
            Arc::make_mut(&mut self.local.synced).trim(to);
        }
        Ok(())
    }

    fn send(&mut self, envelopes: Vec<Envelope>) -> Result<(), Violation> {
        for envelope in envelopes.into_iter().filter(|envelope| envelope.from != envelope.to) {
            self.record.sent(&envelope)?;
            self.sends.push(envelope);
        }
        Ok(())
    }

    fn complete_save(&mut self) -> Result<(), Violation> {
        let Some(save) = self.local.saves.pop_front() else { return Ok(()) };
        Arc::make_mut(&mut self.local.disk).write(&save);
        if save.must_sync {
            self.local.synced = Arc::clone(&self.local.disk);
        }
        self.record.saved(&save, save.must_sync)?;
        self.send(save.then_send)?;
        self.step(Input::Saved(save.id))
    }

    fn complete_apply(&mut self) -> Result<(), Violation> {
        let Some(last) = self.local.applies.pop_front() else { return Ok(()) };
        // The machine is as durable as what it has run.
        for disk in [&mut self.local.disk, &mut self.local.synced] {
            if disk.applied < last && last <= disk.last().index {
                Arc::make_mut(disk).applied = last;
            }
        }
        self.step(Input::Applied(last))
    }

    fn restart(&mut self, unsynced_lost: bool) -> Result<(), Violation> {
        let local = &mut self.local;
        local.saves.clear();
        local.applies.clear();
        if unsynced_lost {
            local.disk = Arc::clone(&local.synced);
        }
        let (config, boot) = (&self.fixed.config, local.disk.boot(None));
        self.record.started(config, &boot)?;
        let raft = Raft::new(config.clone(), boot);
        local.raft = Some(raft.map_err(|why| Violation::new("assert", format!("boot: {why}")))?);
        Ok(())
    }

    /// The machine is captured as of what is applied, durably.
    fn snapshot(&mut self) -> Result<(), Violation> {
        let Some(raft) = &self.local.raft else { return Ok(()) };
        let index = raft.status().log.applied;
        let membership = raft.membership_at(index);
        let Some(id) = self.local.disk.id_at(index) else { return Ok(()) };
        let taken = self.with_core(|raft| raft.step(Input::Snapshotted(index)).is_ok())?;
        if taken == Some(true) {
            for disk in [&mut self.local.disk, &mut self.local.synced] {
                let membership = Arc::clone(&membership);
                Arc::make_mut(disk).snapshot = SnapshotMeta { id, membership };
            }
        }
        Ok(())
    }
}

/// More steps than one input can need, so that a loop ends as a violation.
const STEPS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use quorate_core::message::Message;

    use super::super::search::tests::{Seen, seen};
    use super::*;

    /// Where an act leads from here, brought into the one form of all that are alike.
    /// The clock of a heartbeat is its sender's business.
    fn led(local: &Local, fixed: &Fixed, act: &Act) -> (Local, Vec<Envelope>) {
        let Performed { mut local, mut sends, .. } = local.perform_as_is(fixed, act).unwrap();
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
            let Seen { fixed, locals, acts } = seen(name, 3_000);
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
