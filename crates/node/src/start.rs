//! From a disk to a running member: what is on it, or a first membership.

use std::fmt;
use std::sync::Arc;

use quorate_core::membership::MembershipParts;
use quorate_core::{Boot, BootError, Config, EntryId, Index, Membership, SnapshotMeta};
use quorate_storage::{
    CreateError, Disk, OpenError, OpenedStore, Store, StoreConfig, StoreError, StoreIdentity,
};

use crate::applier::{Applier, MachineJobDone, SnapshotInstallError};
use crate::command_id::CommandId;
use crate::driver::{Driver, DriverOptions};
use crate::machine::Machine;

/// What a member is started with.
#[derive(Clone, Debug)]
pub struct MemberStartup {
    /// The cluster's own number, the same for all of its members. A disk of another
    /// cluster is refused.
    pub cluster: u64,
    /// [`Config::incarnation`] is what a disk that is still empty is marked with: draw
    /// it at random. A disk that was marked before keeps its mark.
    pub config: Config,
    /// How it deals with requests and snapshots.
    pub options: DriverOptions,
    /// How it uses its disk.
    pub store: StoreConfig,
    /// The first membership of a new cluster, the same for each of its members. None
    /// for a member that joins: it waits to be told, and [`Config::joined_at`] says which
    /// entry added it. A disk that is still empty is marked with that, and keeps it; one
    /// that is marked with nothing never counts.
    pub first: Option<Membership>,
}

/// The three parts of a running member.
pub struct StartedMember<D: Disk, M> {
    /// What it decides, and what clients wait for.
    pub driver: Driver,
    /// The machine, as far as the newest snapshot brings it.
    pub applier: Applier<M>,
    /// The disk.
    pub store: Store<D>,
    /// What the disk said.
    pub boot: Boot,
}

/// Opens the disk, creating what is not there, and puts a member on it.
pub fn start<D: Disk, M: Machine>(
    disk: D,
    machine: M,
    startup: MemberStartup,
) -> Result<StartedMember<D, M>, StartError> {
    let MemberStartup { cluster, config, options, store: store_config, first } = startup;
    let (mark, first) = first_mark(cluster, &config, first);
    let opened = Store::open_or_create(disk, mark, &first, &store_config);
    let OpenedStore { mut store, boot, identity, boots } = opened.map_err(StartError::Open)?;
    let mut waking = Waking::new(config, identity, boots, boot, machine);
    if waking.boot.snapshot.id.index > 0 {
        install(&mut store, &mut waking.applier, &waking.boot.snapshot)?;
    }
    let (driver, applier, boot) = waking.finish(options).map_err(StartError::Boot)?;
    Ok(StartedMember { driver, applier, store, boot })
}

/// Makes an empty disk that of a first member of a new cluster, whose machine begins in the
/// state that this one is in: how a backup comes back. `at` is an index that the machine has
/// not seen; it, the membership and the state have to be the same for all first members. A
/// goal in the membership is pursued from the start.
pub fn seed<D: Disk, M: Machine>(
    disk: &mut D,
    identity: StoreIdentity,
    membership: Membership,
    machine: M,
    at: Index,
    config: &StoreConfig,
) -> Result<(), CreateError> {
    let id = EntryId::new(1, at.max(1));
    let mut parts = MembershipParts { since: id, ..MembershipParts::from(membership) };
    if let Some(goal) = &mut parts.goal {
        goal.id = id;
    }
    let meta = SnapshotMeta { id, membership: Arc::new(Membership::from(parts)) };
    let mut first = Boot::from_snapshot(meta.clone());
    first.hard_state.term = id.term;
    let StoreIdentity { member, incarnation, .. } = identity;
    let origin = CommandId { member, incarnation, boot: 0, number: 0, open_from: 0 };
    let chunks = Applier::at(machine, origin, &meta).capture_chunks();
    Store::create_from_snapshot(disk, identity, &first, chunks, config)
}

/// What a disk that is still empty is marked with, and what a member then starts from.
pub(crate) fn first_mark(
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

/// A member whose disk was read, and whose machine is still to get its snapshot.
pub(crate) struct Waking<M> {
    config: Config,
    boots: u64,
    pub(crate) boot: Boot,
    pub(crate) applier: Applier<M>,
}

impl<M: Machine> Waking<M> {
    pub(crate) fn new(
        mut config: Config,
        identity: StoreIdentity,
        boots: u64,
        boot: Boot,
        machine: M,
    ) -> Self {
        let StoreIdentity { member, incarnation, joined_at, .. } = identity;
        config.incarnation = incarnation;
        config.joined_at = joined_at;
        let origin = CommandId { member, incarnation, boot: boots, number: 0, open_from: 0 };
        let mut applier = Applier::new(machine, origin);
        applier.resume(&identity);
        Self { config, boots, boot, applier }
    }

    pub(crate) fn finish(
        mut self,
        options: DriverOptions,
    ) -> Result<(Driver, Applier<M>, Boot), BootError> {
        self.boot.applied = self.applier.applied();
        let runs_ahead = self.config.apply_unsaved;
        let driver = Driver::new(self.config, self.boot.clone(), self.boots, options)?;
        let (applied, last) = (self.applier.kept(), driver.raft().log_status().last.index);
        // What ran was durable here: the log has lost entries that others count on.
        if applied > last && !runs_ahead {
            return Err(BootError::AppliedBeyondLog { applied, last });
        }
        Ok((driver, self.applier, self.boot))
    }
}

/// Reads a snapshot from the disk into the machine.
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
    match failed {
        Some(why) => Err(StartError::Read(why)),
        None => installed.map_err(|why| StartError::Install { id: meta.id, why }),
    }
}

/// Why a member did not start. Nothing on its disk was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartError {
    /// The disk cannot be made ready, or read, or belongs to somebody else.
    Open(OpenError),
    /// The newest snapshot cannot be read.
    Read(StoreError),
    /// The newest snapshot is not one of this machine.
    Install {
        /// The snapshot.
        id: EntryId,
        /// What is wrong with it.
        why: SnapshotInstallError,
    },
    /// What the disk says does not fit together, or not with the config.
    Boot(BootError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(why) => write!(f, "{why}"),
            Self::Read(why) => write!(f, "{why}"),
            Self::Install { id, why } => write!(f, "snapshot {id}: {why}"),
            Self::Boot(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for StartError {}
