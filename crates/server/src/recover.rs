//! Clusters made of what is left of others: of a backup, or of one member's disk when the
//! other members are lost for good.
//!
//! Both make a first membership of a new cluster whose data begins where the other's ended.
//! The new cluster has another id than the lost one, so that no old member is listened to.
//! Nothing is removed: the old directory gets another name.

use std::fmt;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use quorate::{
    Applier, FileDisk, MemberId, Membership, Options, StartError, Started, Startup, StoreConfig,
    seed, start,
};
use quorate_kv::{InstallError, Kv, MemoryTable, TableError};
use quorate_storage::{CreateError, Identity, OpenError, Store, StoreError};

use crate::bootstrap::{BootstrapError, Founding, cluster_id, founding, store_directory};
use crate::config::Config;
use crate::member_info::Info;
use crate::snapshot_file::{About, SnapshotFile, SnapshotFileError};

/// Makes the data directory of a first member of a new cluster, whose data is that of a
/// snapshot file. To be done with the same file for each of the first members, which are
/// started as usual after.
pub fn restore<F: Read + Seek>(config: &Config, file: F) -> Result<About, RecoverError> {
    let Founding { cluster, own, membership } = founding(config)?;
    let file = SnapshotFile::open(file).map_err(RecoverError::File)?;
    let about = file.about;
    let mut kv = empty()?;
    let mut chunks = file.chunks().map_err(RecoverError::File)?;
    kv.install(&mut chunks).map_err(RecoverError::Install)?;
    let identity = Identity { cluster, member: own, incarnation: draw()?, joined_at: 0 };
    let mut disk = open(&store_directory(config))?;
    sow(&mut disk, identity, membership, kv)?;
    Ok(about)
}

/// What a stopped member's disk holds, and whom it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    pub cluster_id: u64,
    pub member: MemberId,
    /// Everybody who is a member, with the names that they go by.
    pub members: Vec<(MemberId, String)>,
    /// The newest entry that the disk knows to be committed.
    pub committed: u64,
    /// The newest entry that it holds.
    pub last: u64,
    /// The newest revision with everything that it holds.
    pub revision: i64,
}

/// Looks at what [`force_new_cluster`] would make a cluster of. Nothing is given up.
pub fn examine(config: &Config) -> Result<Examined, RecoverError> {
    let directory = store_directory(config);
    // Looking must not make what was not there.
    if !directory.exists() {
        return Err(RecoverError::Empty);
    }
    let mut disk = open(&directory)?;
    let owner = Store::owner(&mut disk).map_err(RecoverError::Open)?;
    let old = owner.ok_or(RecoverError::Empty)?;
    let Replayed { applier, membership, committed } = replay(disk, old)?;
    let last = applier.applied();
    let named = |id: &MemberId| (*id, Info::of(&membership, *id).name);
    Ok(Examined {
        cluster_id: old.cluster,
        member: old.member,
        members: membership.members().as_slice().iter().map(named).collect(),
        committed,
        last,
        revision: applier.into_machine().revision(),
    })
}

/// What was made of one member's disk, and what was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forced {
    pub cluster_id: u64,
    pub member: MemberId,
    /// The newest entry that is part of the new cluster.
    pub kept: u64,
    /// How many of those this disk did not know to be committed.
    pub unsure: u64,
    /// Where the old directory is now.
    pub before: PathBuf,
}

/// Makes this member, with its data, the only one of a new cluster. None when it is the only
/// one already.
///
/// Everything in the log is kept, also what the disk does not know to be committed: a client
/// may have been told that it is. To drop it would lose such a write; to keep it can only
/// make one happen whose client was told nothing.
pub fn force_new_cluster(config: &Config) -> Result<Option<Forced>, RecoverError> {
    let directory = store_directory(config);
    let mut disk = open(&directory)?;
    let owner = Store::owner(&mut disk).map_err(RecoverError::Open)?;
    let old = owner.ok_or(RecoverError::Empty)?;
    let Replayed { applier, membership, committed } = replay(disk, old)?;
    let own = old.member;
    if membership.members().as_slice() == [own] && membership.is_voter(own) {
        return Ok(None);
    }
    let kept = applier.applied();
    let incarnation = draw()?;
    let cluster = cluster_id(&[old.cluster, incarnation]);
    let mut alone = Membership::new([own], []);
    if let Some(info) = membership.info(own) {
        alone = alone.with_info(own, info.clone());
    }
    let fresh = beside(&directory, &format!("new-{incarnation:x}"));
    let identity = Identity { cluster, member: own, incarnation, joined_at: 0 };
    let machine = applier.into_machine();
    sow(&mut open(&fresh)?, identity, alone, machine)?;
    let before = beside(&directory, &format!("before-{cluster:x}"));
    std::fs::rename(&directory, &before).map_err(RecoverError::System)?;
    std::fs::rename(&fresh, &directory).map_err(RecoverError::System)?;
    let unsure = kept.saturating_sub(committed);
    tracing::warn!(kept, unsure, "forced a new cluster of this member alone");
    Ok(Some(Forced { cluster_id: cluster, member: own, kept, unsure, before }))
}

/// What a disk makes of itself.
struct Replayed {
    /// The machine with everything that is in the log.
    applier: Applier<Kv<MemoryTable>>,
    membership: Membership,
    /// The newest entry that the disk knows to be committed.
    committed: u64,
}

fn replay(disk: FileDisk, old: Identity) -> Result<Replayed, RecoverError> {
    let mut config = quorate::Config::new(old.member);
    config.incarnation = old.incarnation;
    let startup = Startup {
        cluster: old.cluster,
        config,
        options: Options::default(),
        store: StoreConfig::default(),
        first: None,
    };
    let started = start(disk, empty()?, startup).map_err(RecoverError::Start)?;
    let Started { driver, mut applier, mut store, boot } = started;
    let status = driver.raft().status();
    let last = status.log.last.index;
    while applier.applied() < last {
        let range = applier.applied() + 1..last + 1;
        let entries = store.load(range, LOAD_BYTES).map_err(RecoverError::Read)?;
        applier.apply(&entries);
    }
    store.close().map_err(RecoverError::Read)?;
    let membership = (*status.membership).clone();
    Ok(Replayed { applier, membership, committed: boot.hard_state.commit })
}

fn sow(
    disk: &mut FileDisk,
    identity: Identity,
    membership: Membership,
    kv: Kv<MemoryTable>,
) -> Result<(), RecoverError> {
    let at = kv.applied();
    seed(disk, identity, membership, kv, at, &StoreConfig::default()).map_err(RecoverError::Create)
}

fn empty() -> Result<Kv<MemoryTable>, RecoverError> {
    Kv::open(MemoryTable::default()).map_err(RecoverError::Table)
}

fn open(directory: &Path) -> Result<FileDisk, RecoverError> {
    FileDisk::open(directory).map_err(RecoverError::System)
}

fn beside(directory: &Path, ending: &str) -> PathBuf {
    let mut name = directory.file_name().unwrap_or_default().to_owned();
    name.push(format!("-{ending}"));
    directory.with_file_name(name)
}

/// A number that nobody else has.
fn draw() -> Result<u64, RecoverError> {
    let drawn = getrandom::u64().map_err(std::io::Error::other);
    drawn.map(|number| number.max(1)).map_err(RecoverError::System)
}

/// Why nothing was made. What was there is as it was.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecoverError {
    /// Nobody knows which member it is to be.
    Bootstrap(BootstrapError),
    /// The file is no snapshot of ours, or is damaged.
    File(SnapshotFileError),
    /// What is in the file is no data of ours.
    Install(InstallError),
    /// The directory is in use, or cannot be written.
    Create(CreateError),
    /// The directory cannot be read.
    Open(OpenError),
    /// Nothing is in the directory.
    Empty,
    Start(StartError),
    Read(StoreError),
    Table(TableError),
    System(std::io::Error),
}

impl From<BootstrapError> for RecoverError {
    fn from(why: BootstrapError) -> Self {
        Self::Bootstrap(why)
    }
}

impl fmt::Display for RecoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bootstrap(why) => write!(f, "{why}"),
            Self::File(why) => write!(f, "{why}"),
            Self::Install(why) => write!(f, "{why}"),
            Self::Create(why) => write!(f, "data directory: {why}"),
            Self::Open(why) => write!(f, "data directory: {why}"),
            Self::Empty => write!(f, "the data directory is empty, want one with data"),
            Self::Start(why) => write!(f, "data directory: {why}"),
            Self::Read(why) => write!(f, "data directory: {why}"),
            Self::Table(why) => write!(f, "{why}"),
            Self::System(why) => write!(f, "data directory: {why}"),
        }
    }
}

impl std::error::Error for RecoverError {}

const LOAD_BYTES: u64 = 16 << 20;
