//! Starts a member from its disk, or from a first membership.

use std::fmt;
use std::sync::Arc;

use quorate_core::membership::MembershipParts;
use quorate_core::{Boot, BootError, Config, EntryId, Index, Membership, SnapshotMeta};
use quorate_storage::{
    CreateError, Disk, OpenError, OpenedStore, Store, StoreConfig, StoreError, StoreIdentity,
};

use crate::applier::{Applier, MachineJobDone, SnapshotInstallError};
use crate::cluster_version::VersionRange;
use crate::command_id::CommandId;
use crate::driver::{Driver, DriverOptions};
use crate::machine::{Machine, MachineFailed};

/// What a member is started with.
#[derive(Clone, Debug)]
pub struct MemberStartup {
    /// The cluster id, the same for all of its members. A disk of another cluster is refused.
    pub cluster: u64,
    /// [`Config::incarnation`] identifies an empty disk from now on: choose it at random. A disk
    /// that was used before keeps its own.
    pub config: Config,
    /// Limits and timeouts of requests, and when snapshots are captured.
    pub options: DriverOptions,
    /// How the log is stored.
    pub store: StoreConfig,
    /// The first membership of a new cluster, the same for each of its members. None for a
    /// joining member: it waits for the log, and [`Config::joined_at`] is the entry that added
    /// it, which an empty disk records. A member without either never votes.
    pub first: Option<Membership>,
    /// The cluster versions that the machine supports.
    pub versions: VersionRange,
}

/// The parts of a started member.
pub struct StartedMember<D: Disk, M> {
    /// The core and the open requests.
    pub driver: Driver,
    /// The machine, with the state of the newest snapshot.
    pub applier: Applier<M>,
    /// The log and snapshots on the disk.
    pub store: Store<D>,
    /// The state that was on the disk.
    pub boot: Boot,
}

/// Opens or creates the log on a disk, and starts a member from it.
pub fn start<D: Disk, M: Machine>(
    disk: D,
    machine: M,
    startup: MemberStartup,
) -> Result<StartedMember<D, M>, StartError> {
    let MemberStartup { cluster, config, options, store: store_config, first, versions } = startup;
    let (new_identity, first) = first_identity(cluster, &config, first);
    let opened = Store::open_or_create(disk, new_identity, &first, &store_config);
    let OpenedStore { mut store, boot, identity, boots: starts } =
        opened.map_err(StartError::Open)?;
    let starting = StartingMember::new(config, identity, starts, boot, machine, versions);
    let mut starting = starting.map_err(StartError::Machine)?;
    if let Some(snapshot) = starting.snapshot() {
        let installed = install(&mut store, &mut starting.applier, &snapshot)?;
        starting.on_installed(&installed);
    }
    let (driver, applier, boot) = starting.finish(options).map_err(StartError::Boot)?;
    Ok(StartedMember { driver, applier, store, boot })
}

/// The state of a disk after all entries of its log, also those that it does not know to be
/// committed.
pub struct ReplayedLog<M> {
    /// The machine with all entries applied.
    pub applier: Applier<M>,
    /// The newest membership in the log.
    pub membership: Membership,
    /// The last entry that the disk knows to be committed.
    pub committed: Index,
}

/// Applies the whole log of a member that does not run: for a new cluster that is made from this
/// disk when the other members are lost.
///
/// All entries are kept. To drop one that is not known to be committed could lose a write that a
/// client was told is done. To keep one can only complete a write whose client got no reply.
pub fn replay_log<D: Disk, M: Machine>(
    disk: D,
    machine: M,
    startup: MemberStartup,
) -> Result<ReplayedLog<M>, StartError> {
    let StartedMember { driver, mut applier, mut store, boot } = start(disk, machine, startup)?;
    let status = driver.raft().status();
    let last = status.log.last.index;
    let mut membership = status.membership;
    while applier.applied() < last {
        let range = applier.applied() + 1..last + 1;
        let entries = store.load(range, LOAD_BYTES).map_err(StartError::Read)?;
        let _ = applier.apply(&entries).map_err(StartError::Machine)?;
        // A start takes the membership of the snapshot; later changes are in the log.
        if let Some(change) = entries.iter().filter_map(|entry| entry.change()).last() {
            membership = change.membership.clone();
        }
    }
    store.close().map_err(StartError::Read)?;
    let membership = (*membership).clone();
    Ok(ReplayedLog { applier, membership, committed: boot.hard_state.commit })
}

/// Bytes of entries that are replayed at a time.
const LOAD_BYTES: u64 = 16 << 20;

/// Prepares an empty disk for a first member of a new cluster that begins with the state of
/// this machine: for restoring a backup. `index` must be greater than every index that the
/// machine has applied; it, the membership, the cluster version and the state have to be the same
/// for all first members. The cluster pursues a goal in the membership from its start.
pub fn seed<D: Disk, M: Machine>(
    disk: &mut D,
    identity: StoreIdentity,
    membership: Membership,
    machine: M,
    index: Index,
    version: u32,
    config: &StoreConfig,
) -> Result<(), StartError> {
    let id = EntryId::new(1, index.max(1));
    let mut parts = MembershipParts { since: id, ..MembershipParts::from(membership) };
    if let Some(goal) = &mut parts.goal {
        goal.id = id;
    }
    let meta = SnapshotMeta { id, membership: Arc::new(Membership::from(parts)) };
    let mut first = Boot::from_snapshot(meta.clone());
    first.hard_state.term = id.term;
    let StoreIdentity { member, incarnation, .. } = identity;
    let id = CommandId { member, incarnation, start: 0, sequence: 0, open_from: 0 };
    let chunks = Applier::from_snapshot(machine, id, &meta, version).capture_chunks();
    let chunks = chunks.map_err(StartError::Machine)?;
    let created = Store::create_from_snapshot(disk, identity, &first, chunks, config);
    let failed = |error| StartError::Machine(MachineFailed::new(meta.id.index, error));
    created.map_err(StartError::Create)?.map_err(failed)
}

/// The identity that an empty disk gets, and the state that a member on it starts from.
pub(crate) fn first_identity(
    cluster: u64,
    config: &Config,
    first: Option<Membership>,
) -> (StoreIdentity, Boot) {
    let joined_at = match (&first, config.joined_at) {
        (Some(_), _) => 0,
        (None, 0) => Config::NEVER_JOINED,
        (None, index) => index,
    };
    let Config { id: member, incarnation, .. } = *config;
    let identity = StoreIdentity { cluster, member, incarnation, joined_at };
    (identity, first.map_or_else(Boot::empty, Boot::first))
}

/// A member whose disk was read, and whose machine has not installed its snapshot yet.
pub(crate) struct StartingMember<M> {
    config: Config,
    starts: u64,
    pub(crate) boot: Boot,
    pub(crate) applier: Applier<M>,
    /// The size of the snapshot that the machine read.
    snapshot_bytes: u64,
}

impl<M: Machine> StartingMember<M> {
    pub(crate) fn new(
        mut config: Config,
        identity: StoreIdentity,
        starts: u64,
        boot: Boot,
        machine: M,
        versions: VersionRange,
    ) -> Result<Self, MachineFailed> {
        let StoreIdentity { member, incarnation, joined_at, .. } = identity;
        config.incarnation = incarnation;
        config.joined_at = joined_at;
        let id = CommandId { member, incarnation, start: starts, sequence: 0, open_from: 0 };
        let mut applier = Applier::new(machine, id).with_versions(versions);
        applier.resume(&identity)?;
        Ok(Self { config, starts, boot, applier, snapshot_bytes: 0 })
    }

    /// The snapshot to install before the member starts. The machine may not have it, even if
    /// the disk does: see docs/decisions/009.
    pub(crate) fn snapshot(&self) -> Option<SnapshotMeta> {
        let meta = &self.boot.snapshot;
        (meta.id.index > 0).then(|| meta.clone())
    }

    /// The machine has the state of the snapshot.
    pub(crate) fn on_installed(&mut self, done: &MachineJobDone) {
        if let MachineJobDone::Installed { bytes, .. } = done {
            self.snapshot_bytes = *bytes;
        }
    }

    pub(crate) fn finish(
        mut self,
        options: DriverOptions,
    ) -> Result<(Driver, Applier<M>, Boot), BootError> {
        self.boot.applied = self.applier.applied();
        let may_be_ahead = self.config.apply_unsaved;
        let mut driver = Driver::new(self.config, self.boot.clone(), self.starts, options)?;
        driver.set_cluster_version(self.applier.cluster_version());
        driver.set_snapshot_bytes(self.snapshot_bytes);
        let (applied, last) = (self.applier.resumed(), driver.raft().log_status().last.index);
        // Without `apply_unsaved` the log held everything that ran: it has lost entries that
        // other members rely on.
        if applied > last && !may_be_ahead {
            return Err(BootError::AppliedBeyondLog { applied, last });
        }
        Ok((driver, self.applier, self.boot))
    }
}

/// Reads a snapshot from the disk and installs it on the machine.
pub fn install<D: Disk, M: Machine>(
    store: &mut Store<D>,
    applier: &mut Applier<M>,
    meta: &SnapshotMeta,
) -> Result<MachineJobDone, StartError> {
    let mut reader = store.open_snapshot(meta.id).map_err(StartError::Read)?;
    let mut failed = None;
    let chunks = std::iter::from_fn(|| match store.read_snapshot(&mut reader) {
        Ok(chunk) => chunk,
        Err(why) => {
            failed = Some(why);
            None
        }
    });
    let installed = applier.install(meta, chunks);
    store.release_snapshot(meta.id);
    let installed = installed.map(|done| done.with_snapshot_bytes(reader.bytes()));
    match failed {
        Some(why) => Err(StartError::Read(why)),
        None => installed.map_err(|why| StartError::Install { id: meta.id, why }),
    }
}

/// Why a member did not start, or its disk was not prepared. The disk keeps all data.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The disk cannot be created or read, or belongs to another member or cluster.
    Open(OpenError),
    /// The newest snapshot cannot be read.
    Read(StoreError),
    /// The newest snapshot is not a snapshot of this machine.
    Install {
        /// The snapshot.
        id: EntryId,
        /// What is wrong with it.
        why: SnapshotInstallError,
    },
    /// The state on the disk is inconsistent, or does not match the config.
    Boot(BootError),
    /// The state machine could not resume, or its state could not be captured.
    Machine(MachineFailed),
    /// The disk cannot be prepared, or is not empty.
    Create(CreateError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(why) => write!(f, "{why}"),
            Self::Read(why) => write!(f, "{why}"),
            Self::Install { id, why } => {
                write!(f, "snapshot {id}: {why}; if this version wrote it, remove the member, ")?;
                write!(f, "and add it again under a new id with an empty directory")
            }
            Self::Boot(why) => write!(f, "{why}"),
            Self::Machine(why) => write!(f, "{why}"),
            Self::Create(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open(why) => Some(why),
            Self::Read(why) => Some(why),
            Self::Install { why, .. } => Some(why),
            Self::Boot(why) => Some(why),
            Self::Machine(why) => Some(why),
            Self::Create(why) => Some(why),
        }
    }
}
