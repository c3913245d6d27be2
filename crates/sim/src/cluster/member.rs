//! One member of a cluster of bare cores: the real core, its disk as a value, and the work
//! that it waits for. Stories, random clusters and the model checker drive it.

use std::collections::VecDeque;
use std::sync::Arc;

use quorate_core::{
    Accepted, Boot, BootError, Config, Dropped, Entries, Index, Input, Load, MemberId, Output,
    Raft, Save, SnapshotMeta, invariants,
};

use super::DiskState;
use crate::checkers::{Checked, MemberChecks, Violation};

/// Everything that decides what a member does next, but for its configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CoreMember {
    /// Two members that are down are two, even with equal disks.
    pub(crate) id: MemberId,
    /// None while it is down.
    pub(crate) raft: Option<Raft>,
    pub(crate) disk: Arc<DiskState>,
    /// The disk as a power failure would leave it: as of the last save that had to be
    /// synced.
    pub(crate) synced: Arc<DiskState>,
    /// Saves that were requested and are not done, oldest first.
    pub(crate) saves: VecDeque<Save>,
    /// Entries given to the machine and not applied.
    pub(crate) applies: VecDeque<Entries>,
    pub(crate) loads: VecDeque<Load>,
}

impl CoreMember {
    pub(crate) fn new(id: MemberId, disk: DiskState) -> Self {
        let disk = Arc::new(disk);
        Self {
            id,
            raft: None,
            synced: Arc::clone(&disk),
            disk,
            saves: VecDeque::new(),
            applies: VecDeque::new(),
            loads: VecDeque::new(),
        }
    }

    pub(crate) fn replace_disk(&mut self, disk: DiskState) {
        self.disk = Arc::new(disk);
        self.synced = Arc::clone(&self.disk);
    }

    /// Starts from what the disk holds, and returns that. With `tail` only this many of the
    /// newest entries are in memory.
    pub(crate) fn start(
        &mut self,
        config: &Config,
        tail: Option<usize>,
    ) -> Result<Boot, BootError> {
        let boot = self.disk.boot(tail);
        self.raft = Some(Raft::new(config.clone(), boot.clone())?);
        Ok(boot)
    }

    /// Loses all work in progress and, if `unsynced_lost`, what was not synced.
    pub(crate) fn crash(&mut self, unsynced_lost: bool) {
        self.raft = None;
        self.saves.clear();
        self.applies.clear();
        self.loads.clear();
        if unsynced_lost {
            self.disk = Arc::clone(&self.synced);
        }
    }

    /// Gives the core an input.
    pub(crate) fn step(&mut self, input: Input) -> Result<Result<Accepted, Dropped>, Violation> {
        let Some(raft) = &mut self.raft else {
            return Err(Violation::new("assert", "a member that is down gets no input"));
        };
        let taken = raft.step(input);
        check_core(raft)?;
        Ok(taken)
    }

    /// Takes what the core asks for. Nothing when it asks for nothing; then its state is
    /// checked.
    pub(crate) fn take_output(
        &mut self,
        checks: &mut impl MemberChecks,
    ) -> Result<Option<Output>, Violation> {
        let Some(raft) = &mut self.raft else { return Ok(None) };
        if !raft.has_output() {
            checks.stepped(raft)?;
            return Ok(None);
        }
        let output = raft.take_output();
        check_core(raft)?;
        checks.output(raft, &output)?;
        self.check_apply_follows(&output.apply)?;
        Ok(Some(output))
    }

    /// The machine gets no entry before the one that precedes it, or before the snapshot that
    /// holds that one is installed.
    /// Shown by scenarios/apply_waits_for_snapshot_install.txt.
    fn check_apply_follows(&self, entries: &Entries) -> Result<(), Violation> {
        let Some(first) = entries.first() else { return Ok(()) };
        let pending = self.applies.back().and_then(Entries::last).map_or(0, |last| last.id.index);
        let machine = pending.max(self.disk.applied);
        if first.id.index > machine + 1 {
            let text = format!("entry {} is to be applied, the machine is at {machine}", first.id);
            return Err(Violation::new("assert", text));
        }
        Ok(())
    }

    pub(crate) fn trim(&mut self, to: Index) {
        Arc::make_mut(&mut self.disk).trim(to);
        Arc::make_mut(&mut self.synced).trim(to);
    }

    /// Writes the oldest save. What it allows to be sent, and that it is done, is left to
    /// the caller.
    pub(crate) fn write_save(
        &mut self,
        checks: &mut impl MemberChecks,
    ) -> Result<Option<Save>, Violation> {
        let Some(save) = self.saves.pop_front() else { return Ok(None) };
        Arc::make_mut(&mut self.disk).write(&save);
        if save.must_sync {
            self.synced = Arc::clone(&self.disk);
        }
        checks.saved(self.id, &save)?;
        save.then_send.iter().try_for_each(|envelope| checks.sent(envelope))?;
        Ok(Some(save))
    }

    /// Entries may be applied: with `apply_unsaved` they wait for the disk.
    pub(crate) fn may_apply(&self, config: &Config) -> bool {
        !self.applies.is_empty() && (!config.apply_unsaved || self.saves.is_empty())
    }

    /// The machine runs its oldest entries, up to the index returned.
    pub(crate) fn run_apply(&mut self) -> Option<Index> {
        let last = self.applies.pop_front()?.last()?.id.index;
        for disk in [&mut self.disk, &mut self.synced] {
            // A snapshot installed meanwhile has brought the machine further.
            let applied = last.min(disk.log.last().index);
            if disk.applied < applied {
                Arc::make_mut(disk).applied = applied;
            }
        }
        Some(last)
    }

    /// Reads for the oldest load.
    pub(crate) fn read_load(&mut self) -> Option<Input> {
        let Load { target, range, bytes_max } = self.loads.pop_front()?;
        Some(Input::Loaded(target, self.disk.read(range.start, range.end, bytes_max)))
    }

    /// The machine was captured as of this index, durably. Nothing when the core refuses.
    pub(crate) fn snapshot(
        &mut self,
        index: Index,
    ) -> Result<Result<Option<SnapshotMeta>, Dropped>, Violation> {
        let Some(raft) = &self.raft else { return Ok(Ok(None)) };
        let membership = raft.membership_at(index);
        let id = self.disk.log.id_at(index);
        if let Err(dropped) = self.step(Input::Snapshotted(index))? {
            return Ok(Err(dropped));
        }
        let Some(id) = id else { return Ok(Ok(None)) };
        let meta = SnapshotMeta { id, membership };
        for disk in [&mut self.disk, &mut self.synced] {
            Arc::make_mut(disk).snapshot = meta.clone();
        }
        Ok(Ok(Some(meta)))
    }
}

/// The core's own invariants.
fn check_core(raft: &Raft) -> Checked {
    invariants::check(raft).map_err(|why| Violation::new("assert", why))
}
