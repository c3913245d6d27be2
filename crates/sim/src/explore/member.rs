//! One simulated member: a process that comes and goes, and the disk it runs on.

use std::collections::VecDeque;

use bytes::Bytes;
use quorate::driver::{Applier, Driver, MachineJob};
use quorate_core::{Envelope, Index, Load, MemberId, Save, SnapshotMeta};
use quorate_storage::Store;

use super::machine::Noting;
use super::shared_disk::SharedDisk;
use crate::random::Random;

/// A place in the world where a member runs, or ran, or will.
pub(crate) struct Member {
    pub(crate) id: MemberId,
    pub(crate) incarnation: u64,
    pub(crate) joined_at: Index,
    pub(crate) process: Option<Process>,
    pub(crate) disk: SharedDisk,
    pub(crate) fate: Fate,
    /// Nobody will start it.
    pub(crate) ghost: bool,
    /// Its disk was told to fail some time soon.
    pub(crate) spoiled: bool,
    /// A bit of its disk was flipped since it last started.
    pub(crate) flipped: bool,
    /// Its disk was replaced by an empty one.
    pub(crate) wiped: bool,
    /// How often a process was started here.
    pub(crate) run: u64,
    pub(crate) paused_until: u64,
    /// Units between two ticks of its clock.
    pub(crate) tick_every: u64,
    pub(crate) disk_delay: u64,
    pub(crate) random: Random,
}

/// What can be hoped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nobody has started it yet.
    Unborn,
    Well,
    /// Its disk is gone or damaged. It can only be replaced.
    Lost,
}

/// A running member: the real driver, applier and store, and what is on its way
/// between them.
pub(crate) struct Process {
    pub(crate) driver: Driver,
    pub(crate) applier: Applier<Noting>,
    pub(crate) store: Store<SharedDisk>,
    /// For the disk, in order.
    pub(crate) disk_waits: Vec<DiskWork>,
    /// What the disk is busy with.
    pub(crate) disk_does: Vec<DiskWork>,
    pub(crate) disk_busy: bool,
    /// For the machine, in order.
    pub(crate) jobs: VecDeque<MachineJob>,
    pub(crate) machine_busy: bool,
}

/// Something for the disk to do.
pub(crate) enum DiskWork {
    Save(Save),
    Load(Load),
    Trim(Index),
    /// The machine's own capture.
    Capture(SnapshotMeta, Vec<Bytes>),
    /// A peer's snapshot, with the message that announces it.
    Receive(Envelope, SnapshotMeta, Vec<Bytes>),
}

impl Member {
    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }
}

impl Process {
    pub(crate) fn new(driver: Driver, applier: Applier<Noting>, store: Store<SharedDisk>) -> Self {
        Self {
            driver,
            applier,
            store,
            disk_waits: Vec::new(),
            disk_does: Vec::new(),
            disk_busy: false,
            jobs: VecDeque::new(),
            machine_busy: false,
        }
    }
}
