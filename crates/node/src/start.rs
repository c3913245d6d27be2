//! From a disk to a running member: what is on it, or a first membership.

use std::fmt;

use quorate_core::{Boot, BootError, Config, EntryId, Membership, SnapshotMeta, mutant};
use quorate_storage::{
    CreateError, Disk, Expected, Identity, OpenError, Opened, Store, StoreConfig, StoreError,
};

use crate::applier::{Applier, InstallError};
use crate::driver::{Driver, Options};
use crate::machine::Machine;
use crate::origin::Origin;

/// What a member is started with.
#[derive(Clone, Debug)]
pub struct Startup {
    pub cluster: u64,
    /// [`Config::incarnation`] is what a disk that is still empty is marked with: draw
    /// it at random. A disk that was marked before keeps its mark.
    pub config: Config,
    pub options: Options,
    pub store: StoreConfig,
    /// The first membership of a new cluster, the same for each of its members. None
    /// for a member that joins: it waits to be told, and [`Config::joined_at`] says which
    /// entry added it. A disk that is still empty is marked with that, and keeps it; one
    /// that is marked with nothing never counts.
    pub first: Option<Membership>,
}

/// The three parts of a running member.
pub struct Started<D: Disk, M> {
    pub driver: Driver,
    pub applier: Applier<M>,
    pub store: Store<D>,
    /// What the disk said.
    pub boot: Boot,
}

/// Opens the disk, creating what is not there, and puts a member on it.
pub fn start<D: Disk, M: Machine>(
    mut disk: D,
    machine: M,
    startup: Startup,
) -> Result<Started<D, M>, StartError> {
    let Startup { cluster, mut config, options, store: store_config, first } = startup;
    let member = config.id;
    let joined_at = match (&first, config.joined_at) {
        (Some(_), _) => 0,
        (None, 0) if !mutant!(NeverJoinedIsFirst) => Config::NEVER_JOINED,
        (None, index) => index,
    };
    let identity = Identity { cluster, member, incarnation: config.incarnation, joined_at };
    let first = first.map_or_else(Boot::empty, Boot::first);
    match Store::create(&mut disk, identity, &first, &store_config) {
        Ok(()) | Err(CreateError::InUse { .. }) => {}
        Err(why) => return Err(StartError::Create(why)),
    }
    let opened = Store::open(disk, Expected { cluster, member }, &store_config);
    let Opened { mut store, mut boot, identity, boots } = opened.map_err(StartError::Open)?;
    config.incarnation = identity.incarnation;
    config.joined_at = identity.joined_at;
    let origin =
        Origin { member, incarnation: identity.incarnation, boot: boots, number: 0, open_from: 0 };
    let mut applier = Applier::new(machine, origin);
    if boot.snapshot.id.index > 0 {
        install(&mut store, &mut applier, &boot.snapshot)?;
    }
    boot.applied = applier.applied();
    let driver = Driver::new(config, boot.clone(), boots, options).map_err(StartError::Boot)?;
    Ok(Started { driver, applier, store, boot })
}

/// Reads a snapshot from the disk into the machine.
pub fn install<D: Disk, M: Machine>(
    store: &mut Store<D>,
    applier: &mut Applier<M>,
    meta: &SnapshotMeta,
) -> Result<crate::JobDone, StartError> {
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
    Create(CreateError),
    Open(OpenError),
    /// The newest snapshot cannot be read.
    Read(StoreError),
    /// The newest snapshot is not one of this machine.
    Install {
        id: EntryId,
        why: InstallError,
    },
    /// What the disk says does not fit together, or not with the config.
    Boot(BootError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(why) => write!(f, "{why}"),
            Self::Open(why) => write!(f, "{why}"),
            Self::Read(why) => write!(f, "{why}"),
            Self::Install { id, why } => write!(f, "snapshot {id}: {why}"),
            Self::Boot(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for StartError {}
