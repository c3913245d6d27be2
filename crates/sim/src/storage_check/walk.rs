//! Long workloads by chance: works, crashes and restarts in any order.

use quorate_storage::{Store, StoreConfig};

use super::StorageViolation;
use super::member::{Ended, reopen};
use super::model::{DiskModel, IDENTITY, Work, config, first_boot};
use crate::faulty_disk::{Fault, FaultyDisk};
use crate::random::Random;

/// What happened on a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkReport {
    pub works: u64,
    pub crashes: u64,
    /// Operations of the disk that failed.
    pub faults: u64,
}

/// Plays so many pieces of work; now and then the disk fails, or power is lost, also in
/// the midst of one.
pub fn walk(seed: u64, steps: u32) -> Result<WalkReport, StorageViolation> {
    let mut walker = Walker::new(seed)?;
    for _ in 0..steps {
        walker.step().map_err(|what| StorageViolation { works: walker.works.clone(), what })?;
    }
    Ok(walker.report)
}

/// What ends a process and harms nothing that was synced.
const FAULTS: [Fault; 4] =
    [Fault::WriteError, Fault::ShortWrite, Fault::NoSpace, Fault::SyncDirError];

struct Walker {
    random: Random,
    config: StoreConfig,
    report: WalkReport,
    works: Vec<Work>,
    /// How the last process ended, if it did.
    process: Ended,
}

impl Walker {
    fn new(seed: u64) -> Result<Self, StorageViolation> {
        let mut random = Random::new(seed);
        let config = config(2048 + random.below(4096));
        let mut disk = FaultyDisk::new();
        Store::create(&mut disk, IDENTITY, &first_boot(), &config)
            .map_err(|why| StorageViolation { works: Vec::new(), what: why.to_string() })?;
        let process = Ended::stopped(disk, DiskModel::new(&first_boot()));
        Ok(Self { random, config, report: WalkReport::default(), works: Vec::new(), process })
    }

    fn step(&mut self) -> Result<(), String> {
        let nobody = Ended::stopped(FaultyDisk::new(), DiskModel::new(&first_boot()));
        let mut process = std::mem::replace(&mut self.process, nobody);
        if let Ended::Stopped(left) = process {
            process = reopen(left.disk, left.model, self.config)?;
        }
        let Ended::Done(mut member) = process else { unreachable!("nothing stops it") };
        let work = Work::ALL[self.random.below(Work::ALL.len() as u64) as usize];
        self.works.push(work);
        self.report.works += 1;
        let may_fail = !matches!(work, Work::Restart | Work::FailedSync | Work::UnseenFailedSync);
        let skip = self.random.below(12) as u32;
        match self.random.below(8) {
            0 | 1 => member.store.disk_mut().stop_after(Some(u64::from(skip))),
            2 if may_fail => {
                let fault = FAULTS[self.random.below(FAULTS.len() as u64) as usize];
                member.store.disk_mut().inject(fault, skip / 2);
            }
            _ => {}
        }
        match member.play(work)? {
            Ended::Done(mut member) if !member.store.disk().has_stopped() => {
                member.store.disk_mut().stop_after(None);
                member.store.disk_mut().heal();
                self.process = Ended::Done(member);
            }
            Ended::Done(member) => self.end(member.store.into_disk(), member.model),
            Ended::Stopped(left) => self.end(left.disk, left.model),
        }
        Ok(())
    }

    /// With the process the machine may end too.
    fn end(&mut self, mut disk: FaultyDisk, model: DiskModel) {
        if disk.has_stopped() || self.random.below(2) == 0 {
            disk.crash(&mut self.random);
            self.report.crashes += 1;
        } else {
            self.report.faults += 1;
        }
        self.process = Ended::stopped(disk, model);
    }
}
