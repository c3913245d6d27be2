//! A member reduced to its store: it runs one action after the other on the disk.

use quorate_core::{EntryId, SnapshotMeta};
use quorate_storage::{Store, StoreConfig, StoreError};

use super::model::{DiskModel, EXPECTED, StoreAction, meta};
use crate::faulty_disk::{Fault, FaultyDisk};

/// A store, and the model of its expected content.
#[derive(Clone, Debug)]
pub(super) struct StoredMember {
    pub(super) store: Store<FaultyDisk>,
    pub(super) model: DiskModel,
    pub(super) config: StoreConfig,
    /// Installed snapshots that no state machine has read yet.
    pub(super) unread_snapshots: Vec<EntryId>,
}

/// The result of an action.
pub(super) enum ActionResult {
    Done(Box<StoredMember>),
    /// The process stopped during the action.
    Stopped(Box<StoppedProcess>),
}

/// The disk that a stopped process left, and the model of its expected content.
pub(super) struct StoppedProcess {
    pub(super) disk: FaultyDisk,
    pub(super) model: DiskModel,
}

impl ActionResult {
    pub(super) fn stopped(disk: FaultyDisk, model: DiskModel) -> Self {
        Self::Stopped(Box::new(StoppedProcess { disk, model }))
    }
}

impl StoredMember {
    /// Runs one action. The error describes a broken guarantee.
    pub(super) fn run(mut self, action: StoreAction) -> Result<ActionResult, String> {
        let done = match action {
            StoreAction::Vote
            | StoreAction::Append
            | StoreAction::AppendLarge
            | StoreAction::Replace => self.write(action),
            StoreAction::Sync => self.sync(),
            StoreAction::Capture => self.capture(),
            StoreAction::Install => self.install(),
            StoreAction::Restart => return reopen(self.store.into_disk(), self.model, self.config),
            StoreAction::FailedSync => return self.fail_to_sync(Fault::SyncError),
            StoreAction::UnseenFailedSync => return self.fail_to_sync(Fault::SyncErrorUnseen),
        };
        match done {
            Ok(()) if self.store.disk().has_stopped() => Ok(ActionResult::Done(Box::new(self))),
            Ok(()) => self.check_unread_snapshots(),
            Err(why) => self.end(why),
        }
    }

    /// Checks that unread installed snapshots still exist.
    fn check_unread_snapshots(mut self) -> Result<ActionResult, String> {
        for id in &self.unread_snapshots {
            let opened = self.store.open_snapshot(*id);
            if matches!(opened, Err(StoreError::NoSuchSnapshot { .. })) {
                return Err(format!("snapshot {id} is gone before it was read"));
            }
        }
        Ok(ActionResult::Done(Box::new(self)))
    }

    /// After its first failure the store must refuse every operation.
    fn end(mut self, why: StoreError) -> Result<ActionResult, String> {
        if self.store.sync() != Err(why) || self.store.load(1..2, 1) != Err(why) {
            return Err(format!("continues after: {why}"));
        }
        let mut disk = self.store.into_disk();
        if !disk.has_stopped() && !disk.has_struck() {
            return Err(format!("failed without a reason: {why}"));
        }
        disk.heal();
        Ok(ActionResult::stopped(disk, self.model))
    }

    fn write(&mut self, action: StoreAction) -> Result<(), StoreError> {
        let Some(save) = self.model.save_for(action) else { return Ok(()) };
        self.model.save(&save);
        self.store.write(&save)
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.store.sync()?;
        self.model.synced();
        Ok(())
    }

    fn capture(&mut self) -> Result<(), StoreError> {
        let id = self.model.now().commit();
        if id.index <= self.store.newest_snapshot().index {
            return Ok(());
        }
        // A machine that captures its state has read the installed snapshots.
        for id in self.unread_snapshots.drain(..) {
            self.store.release_snapshot(id);
        }
        self.write_snapshot(meta(id))?;
        self.store.trim(id.index)?;
        self.model.synced();
        Ok(())
    }

    fn install(&mut self) -> Result<(), StoreError> {
        let Some(save) = self.model.save_for(StoreAction::Install) else { return Ok(()) };
        if let Some(meta) = save.install.clone() {
            self.write_snapshot(meta)?;
        }
        self.model.save(&save);
        self.store.write(&save)?;
        self.unread_snapshots.extend(save.install.map(|meta| meta.id));
        Ok(())
    }

    fn write_snapshot(&mut self, meta: SnapshotMeta) -> Result<(), StoreError> {
        let id = meta.id;
        let bytes = self.model.begun(&meta);
        let mut writer = self.store.begin_snapshot(meta)?;
        for chunk in bytes.chunks(400) {
            self.store.append_snapshot(&mut writer, chunk)?;
        }
        self.store.finish_snapshot(writer)?;
        self.model.finished(id);
        Ok(())
    }

    fn fail_to_sync(mut self, fault: Fault) -> Result<ActionResult, String> {
        self.store.disk_mut().inject(fault, 0);
        let synced = self.sync();
        let stopped = self.store.disk().has_stopped();
        match synced {
            // There was nothing to sync, or the failure was ignored: the model detects it.
            Ok(()) => {
                self.store.disk_mut().heal();
                Ok(ActionResult::Done(Box::new(self)))
            }
            Err(why) if stopped => self.end(why),
            Err(why) => {
                if self.store.sync() != Err(why) {
                    return Err(format!("continues after: {why}"));
                }
                let mut disk = self.store.into_disk();
                disk.heal();
                reopen(disk, self.model, self.config)
            }
        }
    }
}

/// Starts a new process on the disk, without a power loss.
pub(super) fn reopen(
    mut disk: FaultyDisk,
    mut model: DiskModel,
    config: StoreConfig,
) -> Result<ActionResult, String> {
    match Store::open(disk.clone(), EXPECTED, &config) {
        Ok(mut opened) => {
            model.opened(&mut opened)?;
            Ok(ActionResult::Done(Box::new(StoredMember {
                store: opened.store,
                model,
                config,
                unread_snapshots: Vec::new(),
            })))
        }
        Err(why) => {
            // Open again in place, to get the disk that the failed attempt left.
            let again = Store::open(&mut disk, EXPECTED, &config).map(|_| ());
            if again == Err(why) && disk.has_stopped() {
                return Ok(ActionResult::stopped(disk, model));
            }
            Err(format!("cannot open: {why}"))
        }
    }
}
