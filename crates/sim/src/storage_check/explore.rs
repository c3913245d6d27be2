//! Every crash of every short workload.
//!
//! A workload is a sequence of actions. Within each action the process is stopped after
//! every single disk operation, and every disk image that a power loss could leave at
//! that point is opened and compared with the model. Some images crash again while they
//! are being opened, and some continue with more actions: truncated records must not
//! reappear when the log grows again.

use std::fmt;

use quorate_storage::{OpenError, OpenedStore, Store, StoreConfig};

use super::StorageViolation;
use super::member::{ActionResult, StoredMember};
use super::model::{DiskModel, EXPECTED, IDENTITY, StoreAction, config, first_boot};
use crate::faulty_disk::FaultyDisk;
use crate::random::Random;

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashReport {
    /// Sequences of actions, up to the given length.
    pub workloads: u64,
    /// Points at which the process was stopped.
    pub crashes: u64,
    /// Distinct disk images.
    pub images: u64,
    /// Combinations of surviving writes, including those with identical images.
    pub ways: u64,
    /// Images that crashed again while they were opened or written.
    pub second_crashes: u64,
}

impl fmt::Display for CrashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} workloads, {} crashes, {} ways to lose power, {} different disks, \
             {} crashed again",
            self.workloads, self.crashes, self.ways, self.images, self.second_crashes
        )
    }
}

/// Checks all workloads of up to `length` actions, with segments of this size.
pub fn explore(length: usize, segment_bytes: u64) -> Result<CrashReport, StorageViolation> {
    let config = config(segment_bytes);
    let mut explorer = Explorer { report: CrashReport::default(), actions: Vec::new(), config };
    let first = explorer.explore_creation()?;
    explorer.explore_from(&first, length)?;
    Ok(explorer.report)
}

struct Explorer {
    report: CrashReport,
    actions: Vec<StoreAction>,
    config: StoreConfig,
}

impl Explorer {
    /// After a crash during creation the store exists or can be created again.
    fn explore_creation(&mut self) -> Result<StoredMember, StorageViolation> {
        for operations in 0.. {
            let mut disk = FaultyDisk::new();
            disk.stop_after(Some(operations));
            let created = Store::create(&mut disk, IDENTITY, &first_boot(), &self.config);
            let done = created.is_ok() && !disk.has_stopped();
            disk.stop_after(None);
            self.report.crashes += 1;
            let mut images = disk.crash_images();
            for mut image in images.by_ref() {
                self.report.images += 1;
                let opened = Store::open(image.clone(), EXPECTED, &self.config);
                let opened = match opened {
                    Err(OpenError::NotCreated) if created.is_err() => {
                        Store::create(&mut image, IDENTITY, &first_boot(), &self.config)
                            .map_err(|why| self.violation(format!("create again: {why}")))?;
                        Store::open(image, EXPECTED, &self.config)
                    }
                    opened => opened,
                };
                self.check(opened, &mut DiskModel::new(&first_boot()))?;
            }
            self.report.ways += images.tried();
            if done {
                let mut model = DiskModel::new(&first_boot());
                let store = self.check(Store::open(disk, EXPECTED, &self.config), &mut model)?;
                return Ok(StoredMember {
                    store,
                    model,
                    config: self.config,
                    unread_snapshots: Vec::new(),
                });
            }
        }
        unreachable!("creation takes a finite number of operations");
    }

    fn explore_from(
        &mut self,
        member: &StoredMember,
        length: usize,
    ) -> Result<(), StorageViolation> {
        if length == 0 {
            return Ok(());
        }
        for action in StoreAction::ALL {
            self.actions.push(action);
            self.report.workloads += 1;
            let next = self.explore_action(member, action)?;
            self.explore_from(&next, length - 1)?;
            self.actions.pop();
        }
        Ok(())
    }

    /// Stops the process after every operation of this action, until the action completes.
    fn explore_action(
        &mut self,
        member: &StoredMember,
        action: StoreAction,
    ) -> Result<StoredMember, StorageViolation> {
        for operations in 0.. {
            let mut stopping = member.clone();
            stopping.store.disk_mut().stop_after(Some(operations));
            match stopping.run(action).map_err(|message| self.violation(message))? {
                ActionResult::Stopped(stopped) => {
                    self.explore_crash(&stopped.disk, &stopped.model)?
                }
                ActionResult::Done(member) if member.store.disk().has_stopped() => {
                    self.explore_crash(member.store.disk(), &member.model)?;
                }
                ActionResult::Done(mut member) => {
                    member.store.disk_mut().stop_after(None);
                    return Ok(*member);
                }
            }
        }
        unreachable!("every action takes a finite number of operations");
    }

    fn explore_crash(
        &mut self,
        disk: &FaultyDisk,
        model: &DiskModel,
    ) -> Result<(), StorageViolation> {
        self.report.crashes += 1;
        let mut images = disk.crash_images();
        for image in images.by_ref() {
            self.report.images += 1;
            let number = self.report.images;
            let opened = Store::open(image.clone(), EXPECTED, &self.config);
            let mut opened_model = model.clone();
            let store = self.check(opened, &mut opened_model)?;
            match number % 8 {
                0 => self.crash_while_opening(image, model.clone(), number)?,
                1 => {
                    let member = StoredMember {
                        store,
                        model: opened_model,
                        config: self.config,
                        unread_snapshots: Vec::new(),
                    };
                    for action in [StoreAction::Append, StoreAction::AppendLarge] {
                        self.continue_after_crash(member.clone(), action, number)?;
                    }
                }
                _ => {}
            }
        }
        self.report.ways += images.tried();
        Ok(())
    }

    /// The next process crashes while it opens the store.
    fn crash_while_opening(
        &mut self,
        mut disk: FaultyDisk,
        mut model: DiskModel,
        seed: u64,
    ) -> Result<(), StorageViolation> {
        let mut random = Random::new(seed);
        for _ in 0..2 {
            disk.stop_after(Some(random.below(8)));
            let opened = Store::open(&mut disk, EXPECTED, &self.config).map(|_| ());
            if opened.is_err() && !disk.has_stopped() {
                return Err(self.violation(format!("cannot open: {opened:?}")));
            }
            disk.crash(&mut random);
            self.report.second_crashes += 1;
        }
        self.check(Store::open(disk, EXPECTED, &self.config), &mut model)?;
        Ok(())
    }

    /// Continues after a crash, then crashes again. New records of the same length as the
    /// truncated ones end exactly where an old record may still follow.
    fn continue_after_crash(
        &mut self,
        mut member: StoredMember,
        action: StoreAction,
        seed: u64,
    ) -> Result<(), StorageViolation> {
        let mut random = Random::new(seed);
        for action in [action, StoreAction::Sync] {
            match member.run(action).map_err(|message| self.violation(message))? {
                ActionResult::Done(done) => member = *done,
                ActionResult::Stopped(..) => unreachable!("no stop is configured"),
            }
        }
        let StoredMember { store, mut model, .. } = member;
        let mut disk = store.into_disk();
        disk.crash(&mut random);
        self.report.second_crashes += 1;
        self.check(Store::open(disk, EXPECTED, &self.config), &mut model)?;
        Ok(())
    }

    fn check(
        &self,
        opened: Result<OpenedStore<FaultyDisk>, OpenError>,
        model: &mut DiskModel,
    ) -> Result<Store<FaultyDisk>, StorageViolation> {
        let mut opened = opened.map_err(|why| self.violation(format!("cannot open: {why}")))?;
        model.opened(&mut opened).map_err(|message| self.violation(message))?;
        Ok(opened.store)
    }

    fn violation(&self, message: String) -> StorageViolation {
        StorageViolation { actions: self.actions.clone(), message }
    }
}
