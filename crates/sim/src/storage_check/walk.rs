//! Long random workloads: actions, crashes and restarts in any order.

use quorate_storage::{Store, StoreConfig};

use super::StorageViolation;
use super::member::{ActionResult, reopen};
use super::model::{DiskModel, IDENTITY, StoreAction, config, first_boot};
use crate::faulty_disk::{Fault, FaultyDisk};
use crate::random::Random;

/// The counts of one random workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkReport {
    pub actions: u64,
    pub crashes: u64,
    /// Process ends without a power loss, caused by failed disk operations.
    pub faults: u64,
}

/// Runs this many random actions. Sometimes the disk fails or power is lost, also during
/// an action.
pub fn walk(seed: u64, steps: u32) -> Result<WalkReport, StorageViolation> {
    let mut walker = Walker::new(seed)?;
    for _ in 0..steps {
        walker
            .step()
            .map_err(|message| StorageViolation { actions: walker.actions.clone(), message })?;
    }
    Ok(walker.report)
}

/// Faults that end a process and do not damage synced data.
const FAULTS: [Fault; 4] =
    [Fault::WriteError, Fault::ShortWrite, Fault::NoSpace, Fault::SyncDirError];

struct Walker {
    random: Random,
    config: StoreConfig,
    report: WalkReport,
    actions: Vec<StoreAction>,
    /// The running process, or what the last one left.
    process: ActionResult,
}

impl Walker {
    fn new(seed: u64) -> Result<Self, StorageViolation> {
        let mut random = Random::new(seed);
        let config = config(2048 + random.below(4096));
        let mut disk = FaultyDisk::new();
        Store::create(&mut disk, IDENTITY, &first_boot(), &config)
            .map_err(|why| StorageViolation { actions: Vec::new(), message: why.to_string() })?;
        let process = ActionResult::stopped(disk, DiskModel::new(&first_boot()));
        Ok(Self { random, config, report: WalkReport::default(), actions: Vec::new(), process })
    }

    fn step(&mut self) -> Result<(), String> {
        let placeholder = ActionResult::stopped(FaultyDisk::new(), DiskModel::new(&first_boot()));
        let mut process = std::mem::replace(&mut self.process, placeholder);
        if let ActionResult::Stopped(stopped) = process {
            process = reopen(stopped.disk, stopped.model, self.config)?;
        }
        let ActionResult::Done(mut member) = process else { unreachable!("no stop is configured") };
        let action = StoreAction::ALL[self.random.below(StoreAction::ALL.len() as u64) as usize];
        self.actions.push(action);
        self.report.actions += 1;
        let may_fail = !matches!(
            action,
            StoreAction::Restart | StoreAction::FailedSync | StoreAction::UnseenFailedSync
        );
        let skip = self.random.below(12) as u32;
        match self.random.below(8) {
            0 | 1 => member.store.disk_mut().stop_after(Some(u64::from(skip))),
            2 if may_fail => {
                let fault = FAULTS[self.random.below(FAULTS.len() as u64) as usize];
                member.store.disk_mut().inject(fault, skip / 2);
            }
            _ => {}
        }
        match member.run(action)? {
            ActionResult::Done(mut member) if !member.store.disk().has_stopped() => {
                member.store.disk_mut().stop_after(None);
                member.store.disk_mut().heal();
                self.process = ActionResult::Done(member);
            }
            ActionResult::Done(member) => self.end(member.store.into_disk(), member.model),
            ActionResult::Stopped(stopped) => self.end(stopped.disk, stopped.model),
        }
        Ok(())
    }

    /// The process ended; at random, the machine loses power too.
    fn end(&mut self, mut disk: FaultyDisk, model: DiskModel) {
        if disk.has_stopped() || self.random.below(2) == 0 {
            disk.crash(&mut self.random);
            self.report.crashes += 1;
        } else {
            self.report.faults += 1;
        }
        self.process = ActionResult::stopped(disk, model);
    }
}
