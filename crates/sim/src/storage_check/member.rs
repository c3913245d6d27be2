//! A member that does nothing but use its disk.

use quorate_core::{EntryId, SnapshotMeta};
use quorate_storage::{Store, StoreConfig, StoreError};

use super::model::{DiskModel, EXPECTED, Work, meta};
use crate::faulty_disk::{Fault, FaultyDisk};

/// A store, and what it should hold.
#[derive(Clone, Debug)]
pub(super) struct StoredMember {
    pub(super) store: Store<FaultyDisk>,
    pub(super) model: DiskModel,
    pub(super) config: StoreConfig,
    /// Installed, and no machine was made of them yet.
    pub(super) unmade: Vec<EntryId>,
}

/// How a piece of work ended.
pub(super) enum Ended {
    Done(Box<StoredMember>),
    /// The process stopped.
    Stopped(Box<Left>),
}

/// What a process left, and what it should have.
pub(super) struct Left {
    pub(super) disk: FaultyDisk,
    pub(super) model: DiskModel,
}

impl Ended {
    pub(super) fn stopped(disk: FaultyDisk, model: DiskModel) -> Self {
        Self::Stopped(Box::new(Left { disk, model }))
    }
}

impl StoredMember {
    /// Does one piece of work. The error is a broken promise.
    pub(super) fn play(mut self, work: Work) -> Result<Ended, String> {
        let done = match work {
            Work::Vote | Work::Append | Work::AppendLarge | Work::Replace => self.write(work),
            Work::Sync => self.sync(),
            Work::Capture => self.capture(),
            Work::Install => self.install(),
            Work::Restart => return reopen(self.store.into_disk(), self.model, self.config),
            Work::FailedSync => return self.fail_to_sync(Fault::SyncError),
            Work::UnseenFailedSync => return self.fail_to_sync(Fault::SyncErrorUnseen),
        };
        match done {
            Ok(()) if self.store.disk().has_stopped() => Ok(Ended::Done(Box::new(self))),
            Ok(()) => self.with_snapshots(),
            Err(why) => self.end(why),
        }
    }

    /// Snapshots that a machine is still to be made of are there.
    fn with_snapshots(mut self) -> Result<Ended, String> {
        for id in &self.unmade {
            let opened = self.store.open_snapshot(*id);
            if matches!(opened, Err(StoreError::NoSuchSnapshot { .. })) {
                return Err(format!("snapshot {id} is gone before it was read"));
            }
        }
        Ok(Ended::Done(Box::new(self)))
    }

    /// The first failure is the last thing that happens.
    fn end(mut self, why: StoreError) -> Result<Ended, String> {
        if self.store.sync() != Err(why) || self.store.load(1..2, 1) != Err(why) {
            return Err(format!("goes on after: {why}"));
        }
        let mut disk = self.store.into_disk();
        if !disk.has_stopped() && !disk.has_struck() {
            return Err(format!("failed without a reason: {why}"));
        }
        disk.heal();
        Ok(Ended::stopped(disk, self.model))
    }

    fn write(&mut self, work: Work) -> Result<(), StoreError> {
        let Some(save) = self.model.save_for(work) else { return Ok(()) };
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
        // Who captures a state has it.
        for id in self.unmade.drain(..) {
            self.store.release_snapshot(id);
        }
        self.write_snapshot(meta(id))?;
        self.store.trim(id.index)?;
        self.model.synced();
        Ok(())
    }

    fn install(&mut self) -> Result<(), StoreError> {
        let Some(save) = self.model.save_for(Work::Install) else { return Ok(()) };
        if let Some(meta) = save.install.clone() {
            self.write_snapshot(meta)?;
        }
        self.model.save(&save);
        self.store.write(&save)?;
        self.unmade.extend(save.install.map(|meta| meta.id));
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

    fn fail_to_sync(mut self, fault: Fault) -> Result<Ended, String> {
        self.store.disk_mut().inject(fault, 0);
        let synced = self.sync();
        let stopped = self.store.disk().has_stopped();
        match synced {
            // There was nothing to sync, or the failure went unnoticed: the model knows.
            Ok(()) => {
                self.store.disk_mut().heal();
                Ok(Ended::Done(Box::new(self)))
            }
            Err(why) if stopped => self.end(why),
            Err(why) => {
                if self.store.sync() != Err(why) {
                    return Err(format!("goes on after: {why}"));
                }
                let mut disk = self.store.into_disk();
                disk.heal();
                reopen(disk, self.model, self.config)
            }
        }
    }
}

/// A new process on a disk that has lost nothing of what memory showed.
pub(super) fn reopen(
    mut disk: FaultyDisk,
    mut model: DiskModel,
    config: StoreConfig,
) -> Result<Ended, String> {
    match Store::open(disk.clone(), EXPECTED, &config) {
        Ok(mut opened) => {
            model.opened(&mut opened)?;
            Ok(Ended::Done(Box::new(StoredMember {
                store: opened.store,
                model,
                config,
                unmade: Vec::new(),
            })))
        }
        Err(why) => {
            // The same once more, to have the disk that it left.
            let again = Store::open(&mut disk, EXPECTED, &config).map(|_| ());
            if again == Err(why) && disk.has_stopped() {
                return Ok(Ended::stopped(disk, model));
            }
            Err(format!("cannot open: {why}"))
        }
    }
}
