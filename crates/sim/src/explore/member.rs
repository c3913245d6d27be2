//! One simulated member: a process that starts and dies, and its disk.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use quorate::driver::{Applier, Driver, MachineJob, RequestToken};
use quorate_core::{Envelope, Index, Load, MemberId, Save, SnapshotMeta};
use quorate_kv::Lessor;
use quorate_storage::Store;

use super::etcd::{LeaseTask, LeaseTaskDone};
use super::machine::RecordingMachine;
use super::simulation::SimEvent;
use super::versions::VersionPoll;
use crate::faulty_disk::SharedDisk;
use crate::random::Random;

/// A member that runs, ran, or may be started later.
pub(crate) struct SimMember {
    pub(crate) id: MemberId,
    pub(crate) incarnation: u64,
    pub(crate) joined_at: Index,
    /// Its id was used before, by another disk: entries up to here are about that one.
    pub(crate) added_after: Index,
    pub(crate) process: Option<MemberProcess>,
    pub(crate) disk: SharedDisk,
    pub(crate) health: MemberHealth,
    /// It is never started.
    pub(crate) ghost: bool,
    /// Its disk will fail soon.
    pub(crate) spoiled: bool,
    /// A bit of its disk was flipped since it last started.
    pub(crate) flipped: bool,
    /// Its disk was replaced by an empty one.
    pub(crate) wiped: bool,
    /// How often a process was started here.
    pub(crate) run: u64,
    pub(crate) paused_from: u64,
    pub(crate) paused_until: u64,
    /// Units between two ticks of its clock.
    pub(crate) tick_every: u64,
    /// By how much its clock has jumped forward, in milliseconds.
    pub(crate) clock_jumped_ms: u64,
    pub(crate) disk_delay: u64,
    pub(crate) stall: Stall,
    /// Events that wait until this member is relieved.
    pub(crate) held: Vec<SimEvent>,
    /// The next snapshot for it breaks off halfway.
    pub(crate) tears_snapshot: bool,
    /// A copy of its disk.
    pub(crate) backup: Option<SharedDisk>,
    /// The operator says that its disk was moved.
    pub(crate) accepts_move: bool,
    /// The highest cluster version that its program supports, where programs differ.
    pub(crate) program: u32,
    pub(crate) random: Random,
}

/// What stands still at a member, until it is relieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stall {
    pub(crate) disk: bool,
    pub(crate) machine: bool,
    /// Nothing runs since this time.
    pub(crate) frozen: Option<u64>,
}

impl Stall {
    pub(crate) fn is_any(self) -> bool {
        self.disk || self.machine || self.frozen.is_some()
    }
}

/// Whether a member can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberHealth {
    /// It was not started yet.
    NotStarted,
    Healthy,
    /// Its disk is gone or damaged. It can only be replaced.
    Lost,
}

/// A running member: the real driver, applier and store, and what is on its way
/// between them.
pub(crate) struct MemberProcess {
    pub(crate) driver: Driver,
    pub(crate) applier: Applier<RecordingMachine>,
    pub(crate) store: Store<SharedDisk>,
    /// For the disk, in order.
    pub(crate) disk_waits: Vec<DiskWork>,
    /// What the disk is busy with.
    pub(crate) disk_does: Vec<DiskWork>,
    pub(crate) disk_busy: bool,
    /// For the machine, in order.
    pub(crate) jobs: VecDeque<MachineJob>,
    pub(crate) machine_busy: bool,
    /// The leader's deadlines of leases, and its requests about them. Only with etcd's data
    /// model.
    pub(crate) lessor: Lessor,
    pub(crate) lease_tasks: HashMap<RequestToken, LeaseTask>,
    pub(crate) lease_tasks_done: Vec<LeaseTaskDone>,
    pub(crate) version_poll: VersionPoll,
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
    /// The beginning of a peer's snapshot whose transfer broke off.
    ReceiveTorn(SnapshotMeta, Vec<Bytes>),
}

impl SimMember {
    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }
}

impl MemberProcess {
    pub(crate) fn new(
        driver: Driver,
        applier: Applier<RecordingMachine>,
        store: Store<SharedDisk>,
    ) -> Self {
        Self {
            driver,
            applier,
            store,
            disk_waits: Vec::new(),
            disk_does: Vec::new(),
            disk_busy: false,
            jobs: VecDeque::new(),
            machine_busy: false,
            lessor: Lessor::default(),
            lease_tasks: HashMap::new(),
            lease_tasks_done: Vec::new(),
            version_poll: VersionPoll::default(),
        }
    }
}
