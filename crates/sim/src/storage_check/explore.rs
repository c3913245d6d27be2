//! Every crash of every short workload.
//!
//! A workload is played one piece of work after the other. Within each piece the
//! process is stopped after every single disk operation, and of each such moment every
//! disk that a power loss could leave is opened and compared with the model. Some of
//! them are crashed again while they are being opened, and some go on: what was cut
//! off must not come back when the log is written further.

use std::fmt;

use quorate_storage::{OpenError, OpenedStore, Store, StoreConfig};

use super::StorageViolation;
use super::member::{Ended, StoredMember};
use super::model::{DiskModel, EXPECTED, IDENTITY, Work, config, first_boot};
use crate::faulty_disk::FaultyDisk;
use crate::random::Random;

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashReport {
    /// Sequences of work, up to the wanted length.
    pub workloads: u64,
    /// Moments at which the process was stopped.
    pub crashes: u64,
    /// Disks that differ in some byte or name.
    pub images: u64,
    /// Ways to lose power, those that left the same disk counted each.
    pub ways: u64,
    /// Disks crashed again while they were opened or written further.
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

/// Goes through all workloads of up to so many pieces, with segments of this size.
pub fn explore(length: usize, segment_bytes: u64) -> Result<CrashReport, StorageViolation> {
    let config = config(segment_bytes);
    let mut explorer = Explorer { report: CrashReport::default(), works: Vec::new(), config };
    let first = explorer.explore_creation()?;
    explorer.explore_from(&first, length)?;
    Ok(explorer.report)
}

struct Explorer {
    report: CrashReport,
    works: Vec<Work>,
    config: StoreConfig,
}

impl Explorer {
    /// A store that is being made is there afterwards or can be made again.
    fn explore_creation(&mut self) -> Result<StoredMember, StorageViolation> {
        for operations in 0.. {
            let mut disk = FaultyDisk::new();
            disk.stop_after(Some(operations));
            let made = Store::create(&mut disk, IDENTITY, &first_boot(), &self.config);
            let done = made.is_ok() && !disk.has_stopped();
            disk.stop_after(None);
            self.report.crashes += 1;
            let mut images = disk.crash_images();
            for mut image in images.by_ref() {
                self.report.images += 1;
                let opened = Store::open(image.clone(), EXPECTED, &self.config);
                let opened = match opened {
                    Err(OpenError::NotCreated) if made.is_err() => {
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
                return Ok(StoredMember { store, model, config: self.config, unmade: Vec::new() });
            }
        }
        unreachable!("creation ends");
    }

    fn explore_from(
        &mut self,
        member: &StoredMember,
        length: usize,
    ) -> Result<(), StorageViolation> {
        if length == 0 {
            return Ok(());
        }
        for work in Work::ALL {
            self.works.push(work);
            self.report.workloads += 1;
            let next = self.explore_work(member, work)?;
            self.explore_from(&next, length - 1)?;
            self.works.pop();
        }
        Ok(())
    }

    /// Stops the process after every operation of this work, until it gets through.
    fn explore_work(
        &mut self,
        member: &StoredMember,
        work: Work,
    ) -> Result<StoredMember, StorageViolation> {
        for operations in 0.. {
            let mut stopping = member.clone();
            stopping.store.disk_mut().stop_after(Some(operations));
            match stopping.play(work).map_err(|what| self.violation(what))? {
                Ended::Stopped(left) => self.explore_crash(&left.disk, &left.model)?,
                Ended::Done(member) if member.store.disk().has_stopped() => {
                    self.explore_crash(member.store.disk(), &member.model)?;
                }
                Ended::Done(mut member) => {
                    member.store.disk_mut().stop_after(None);
                    return Ok(*member);
                }
            }
        }
        unreachable!("every work ends");
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
            let mut seen = model.clone();
            let store = self.check(opened, &mut seen)?;
            match number % 8 {
                0 => self.crash_while_opening(image, model.clone(), number)?,
                1 => {
                    let member = StoredMember {
                        store,
                        model: seen,
                        config: self.config,
                        unmade: Vec::new(),
                    };
                    for work in [Work::Append, Work::AppendLarge] {
                        self.go_on(member.clone(), work, number)?;
                    }
                }
                _ => {}
            }
        }
        self.report.ways += images.tried();
        Ok(())
    }

    /// The next process does not get far either.
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

    /// Goes on after a crash, then crashes again. With records as long as those that
    /// were cut off, what stood behind them is reached once more.
    fn go_on(
        &mut self,
        mut member: StoredMember,
        work: Work,
        seed: u64,
    ) -> Result<(), StorageViolation> {
        let mut random = Random::new(seed);
        for work in [work, Work::Sync] {
            match member.play(work).map_err(|what| self.violation(what))? {
                Ended::Done(done) => member = *done,
                Ended::Stopped(..) => unreachable!("nothing stops it"),
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
        model.opened(&mut opened).map_err(|what| self.violation(what))?;
        Ok(opened.store)
    }

    fn violation(&self, what: String) -> StorageViolation {
        StorageViolation { works: self.works.clone(), what }
    }
}
