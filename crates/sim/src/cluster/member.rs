//! One member of a cluster of bare cores: the real core, its disk as a value, and the work
//! that it waits for.

use std::collections::VecDeque;
use std::sync::Arc;

use quorate_core::{
    Accepted, Boot, BootError, Config, Dropped, Entries, Envelope, Index, Input, Load, MemberId,
    Output, Raft, Save, SnapshotMeta, invariants,
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
    pub(crate) held: HeldWork,
}

/// Work that is not done at once: the caller completes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeldWork {
    pub saves: bool,
    pub applies: bool,
    pub loads: bool,
}

/// The kinds of work that a member waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    Saves,
    Applies,
    Loads,
}

impl HeldWork {
    pub const ALL: Self = Self { saves: true, applies: true, loads: true };

    pub(crate) fn set(&mut self, work: WorkKind, held: bool) {
        match work {
            WorkKind::Saves => self.saves = held,
            WorkKind::Applies => self.applies = held,
            WorkKind::Loads => self.loads = held,
        }
    }
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
            held: HeldWork::default(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.saves.is_empty() && self.applies.is_empty() && self.loads.is_empty()
    }

    /// Work of this kind can be done now. With `apply_unsaved` entries wait for the disk.
    pub(crate) fn can_do(&self, work: WorkKind) -> bool {
        let waits = |raft: &Raft| raft.config().apply_unsaved && !self.saves.is_empty();
        match work {
            WorkKind::Saves => !self.saves.is_empty(),
            WorkKind::Applies => !self.applies.is_empty() && !self.raft.as_ref().is_some_and(waits),
            WorkKind::Loads => !self.loads.is_empty(),
        }
    }

    /// Work that can be done now and is not held.
    pub(super) fn free_work(&self) -> Option<WorkKind> {
        let HeldWork { saves, applies, loads } = self.held;
        let kinds =
            [(saves, WorkKind::Saves), (applies, WorkKind::Applies), (loads, WorkKind::Loads)];
        kinds.into_iter().find(|(held, work)| !held && self.can_do(*work)).map(|(_, work)| work)
    }

    pub(crate) fn replace_disk(&mut self, disk: DiskState) {
        self.disk = Arc::new(disk);
        self.synced = Arc::clone(&self.disk);
    }

    /// Starts from what the disk holds, and returns that; the caller passes it to the checks.
    /// With `tail` only so many of the newest entries are in memory.
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

    /// Gives the core an input. A member that is down ignores it.
    pub(crate) fn step(
        &mut self,
        input: Input,
    ) -> Result<Option<Result<Accepted, Dropped>>, Violation> {
        let Some(raft) = &mut self.raft else { return Ok(None) };
        let taken = raft.step(input);
        check_core(raft)?;
        Ok(Some(taken))
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
        Ok(Some(output))
    }

    /// Puts the work of an output where it waits.
    pub(crate) fn queue(&mut self, output: Output) {
        let Output { save, apply, load, trim, .. } = output;
        self.saves.extend(save);
        self.applies.extend((!apply.is_empty()).then_some(apply));
        self.loads.extend(load);
        if let Some(to) = trim {
            self.trim(to);
        }
    }

    pub(crate) fn trim(&mut self, to: Index) {
        Arc::make_mut(&mut self.disk).trim(to);
        Arc::make_mut(&mut self.synced).trim(to);
    }

    /// Does the oldest work of this kind. Returns what the core is told, and the messages
    /// that waited for it.
    pub(crate) fn do_work(
        &mut self,
        work: WorkKind,
        checks: &mut impl MemberChecks,
    ) -> Result<Option<(Input, Vec<Envelope>)>, Violation> {
        if !self.can_do(work) {
            return Ok(None);
        }
        Ok(match work {
            WorkKind::Saves => self.write_save(checks)?,
            WorkKind::Applies => self.run_apply().map(|applied| (applied, Vec::new())),
            WorkKind::Loads => self.read_load().map(|loaded| (loaded, Vec::new())),
        })
    }

    fn write_save(
        &mut self,
        checks: &mut impl MemberChecks,
    ) -> Result<Option<(Input, Vec<Envelope>)>, Violation> {
        let Some(save) = self.saves.pop_front() else { return Ok(None) };
        Arc::make_mut(&mut self.disk).write(&save);
        if save.must_sync {
            self.synced = Arc::clone(&self.disk);
        }
        checks.saved(self.id, &save)?;
        save.then_send.iter().try_for_each(|envelope| checks.sent(envelope))?;
        Ok(Some((Input::Saved(save.id), save.then_send)))
    }

    /// The machine runs its oldest entries.
    fn run_apply(&mut self) -> Option<Input> {
        let last = self.applies.pop_front()?.last()?.id.index;
        for disk in [&mut self.disk, &mut self.synced] {
            // A snapshot installed meanwhile has brought the machine further.
            let applied = last.min(disk.log.last().index);
            if disk.applied < applied {
                Arc::make_mut(disk).applied = applied;
            }
        }
        Some(Input::Applied(last))
    }

    /// Reads for the oldest load.
    fn read_load(&mut self) -> Option<Input> {
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
        if let Some(Err(dropped)) = self.step(Input::Snapshotted(index))? {
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
