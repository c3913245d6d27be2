//! New clusters from the data of old ones: from a backup, from the files of an etcd, or from the
//! disk of one member when the other members are permanently lost.
//!
//! All of them write the data directory of an initial member of a new cluster, whose data continues
//! where the old data ended. The new cluster has another id, so that members of the old one are
//! rejected. Nothing is deleted: the old directory is renamed.

mod adopt;

use std::fmt;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use quorate::driver::{MemberStartup, ReplayedLog, StartError, replay_log, seed};
use quorate::membership::ChangeRefusal;
use quorate::storage::{FileDisk, MovedDirectory, StoreConfig};
use quorate::{DriverOptions, MachineFailed, MemberId, MemberSet, Membership};
use quorate_etcd_files::{EtcdDataDir, EtcdDatabase, EtcdFileError};
use quorate_kv::{Kv, KvSnapshotError, MemoryTable, SUPPORTED_VERSIONS, TableError};
use quorate_storage::{CreateError, OpenError, Store, StoreError, StoreIdentity};

pub(crate) use adopt::adopt_etcd_member;

use crate::bootstrap::{
    BootstrapError, InitialCluster, cluster_id, hex, initial_cluster, member_id, store_directory,
};
use crate::config::ServerConfig;
pub use crate::etcd_import::{EtcdImport, EtcdImportError};
use crate::etcd_import::{import_database, import_directory};
use crate::member_details::MemberDetails;
use crate::snapshot_file::{SnapshotFile, SnapshotFileError, SnapshotHeader, is_own_format};
use crate::url::Url;

/// How to restore a backup, or to import the data of an etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// Added to the revision, since clients may have seen later revisions than the backup has.
    /// Above 0, all earlier revisions are marked as compacted: a client that watches from a lost
    /// revision gets an error instead of wrong data.
    pub bump_revision: u64,
    /// Accept a file whose checksum is missing. The checksum of each chunk is still compared; a
    /// database of etcd has none.
    pub skip_hash_check: bool,
}

/// A restored backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Where the data comes from. The cluster id is 0 if it is not known: etcd's snapshots do
    /// not have it.
    pub header: SnapshotHeader,
    /// What the files of an etcd had; `None` for a backup of this program.
    pub etcd: Option<EtcdImport>,
    /// The id of the new cluster.
    pub cluster_id: u64,
    /// The first revision of the new cluster.
    pub revision: i64,
}

/// Writes the data directory of an initial member of a new cluster from a snapshot file of this
/// program or of etcd. Call it with the same file and options for each of the initial members,
/// then start them as usual.
///
/// The id of the new cluster is made from its members and its data. So it rejects members of the
/// old cluster, also at the same addresses, and members restored from different data reject each
/// other.
pub fn restore<F: Read + Seek>(
    config: &ServerConfig,
    mut file: F,
    options: RestoreOptions,
) -> Result<Restored, RecoverError> {
    let initial = initial_cluster(config)?;
    let mut kv = empty_store()?;
    if is_own_format(&mut file).map_err(RecoverError::System)? {
        let opened = match options.skip_hash_check {
            true => SnapshotFile::open_unchecked(file),
            false => SnapshotFile::open(file),
        };
        let file = opened.map_err(RecoverError::File)?;
        let header = file.header;
        let mut chunks = file.chunks().map_err(RecoverError::File)?;
        kv.install(&mut chunks).map_err(RecoverError::Install)?;
        let directory = store_directory(config);
        return write_new_cluster(&directory, initial, kv, options, header, None);
    }
    let opened = match options.skip_hash_check {
        true => EtcdDatabase::open_unchecked(file),
        false => EtcdDatabase::open(file),
    };
    let mut database = opened.map_err(RecoverError::of_etcd_file)?;
    let imported = import_database(&mut kv, &mut database).map_err(RecoverError::Etcd)?;
    write_imported_to(&store_directory(config), initial, kv, options, imported)
}

/// The same from the data directory of a stopped etcd member, and its `--wal-dir` if it had one:
/// the database, and the entries of the log behind it.
pub fn import(
    config: &ServerConfig,
    data_dir: &Path,
    wal_dir: Option<&Path>,
    options: RestoreOptions,
) -> Result<Restored, RecoverError> {
    let initial = initial_cluster(config)?;
    let directory = EtcdDataDir::open(data_dir, wal_dir);
    let directory = directory.map_err(|error| RecoverError::Etcd(error.into()))?;
    let mut kv = empty_store()?;
    let imported = import_directory(&mut kv, directory).map_err(RecoverError::Etcd)?;
    write_imported_to(&store_directory(config), initial, kv, options, imported)
}

fn write_imported_to(
    directory: &Path,
    initial: InitialCluster,
    kv: Kv<MemoryTable>,
    options: RestoreOptions,
    imported: EtcdImport,
) -> Result<Restored, RecoverError> {
    let EtcdImport { cluster_id, applied, .. } = imported;
    let header = SnapshotHeader { cluster_id, revision: kv.revision(), applied };
    write_new_cluster(directory, initial, kv, options, header, Some(imported))
}

fn write_new_cluster(
    directory: &Path,
    initial: InitialCluster,
    mut kv: Kv<MemoryTable>,
    options: RestoreOptions,
    header: SnapshotHeader,
    etcd: Option<EtcdImport>,
) -> Result<Restored, RecoverError> {
    let InitialCluster { cluster, own, membership } = initial;
    kv.reset_for_new_cluster(options.bump_revision, options.bump_revision > 0)
        .map_err(RecoverError::Table)?;
    let contents = u64::from(kv.hash().map_err(RecoverError::Table)?);
    let cluster = cluster_id(&[cluster, header.cluster_id, header.applied, contents]);
    let revision = kv.revision();
    let identity =
        StoreIdentity { cluster, member: own, incarnation: random_number()?, joined_at: 0 };
    write_member(&mut open(directory)?, identity, membership, kv)?;
    Ok(Restored { header, etcd, cluster_id: cluster, revision })
}

/// What the disk of a stopped member holds, and what [`recover`] would do with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryPlan {
    pub cluster_id: u64,
    pub member: MemberId,
    pub name: String,
    /// The members of the old cluster, with their names.
    pub members: Vec<(MemberId, String)>,
    /// The last entry that the disk knows to be committed.
    pub committed: u64,
    /// The last entry on the disk.
    pub last: u64,
    /// The revision after all entries on the disk.
    pub revision: i64,
    /// The members that are to join the new cluster, with their peer URLs.
    pub joining_members: Vec<(String, Vec<Url>)>,
    /// The new peer URLs of this member, if they change.
    pub new_peer_urls: Option<Vec<Url>>,
}

/// Finds out what [`recover`] would do, without doing it.
pub fn plan_recovery(config: &ServerConfig) -> Result<RecoveryPlan, RecoverError> {
    finish_interrupted(config)?;
    let directory = store_directory(config);
    // Opening would create the directory.
    if !directory.exists() {
        return Err(RecoverError::Empty);
    }
    let mut disk = open(&directory)?;
    let owner = Store::read_identity(&mut disk).map_err(RecoverError::Open)?;
    let old = owner.ok_or(RecoverError::Empty)?;
    let ReplayedLog { applier, membership, committed } = replay(disk, old)?;
    let last = applier.applied();
    let named = |id: &MemberId| (*id, MemberDetails::of(&membership, *id).name);
    let own = MemberDetails::of(&membership, old.member);
    let NewMembers { own: own_urls, others } = NewMembers::from_config(config, &own)?;
    Ok(RecoveryPlan {
        cluster_id: old.cluster,
        member: old.member,
        name: own.name.clone(),
        members: membership.members().as_slice().iter().map(named).collect(),
        committed,
        last,
        revision: applier.into_machine().revision(),
        joining_members: others,
        new_peer_urls: own_urls.filter(|urls| !own.has_peer_urls(urls)),
    })
}

/// A new cluster that was made from the disk of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedCluster {
    pub cluster_id: u64,
    pub member: MemberId,
    /// The last entry that is part of the new cluster.
    pub last_index: u64,
    /// How many of its entries the disk did not know to be committed.
    pub uncommitted: u64,
    /// The new name of the old directory.
    pub old_directory: PathBuf,
}

/// Makes this member, with its data, the only member of a new cluster. `None` if it is the only
/// one already.
///
/// All entries of the log are kept, also those that the disk does not know to be committed. To
/// drop one could lose a write that a client was told is done. To keep one can only complete a
/// write whose client got no reply.
pub fn force_new_cluster(config: &ServerConfig) -> Result<Option<ForcedCluster>, RecoverError> {
    make_cluster(config, |_| Ok(NewMembers::default()))
}

/// The same, with the members of the initial cluster, if one is given, as its goal: they join
/// with empty disks and are promoted when they have caught up. Their old disks are not used,
/// since they may hold other data.
pub fn recover(config: &ServerConfig) -> Result<Option<ForcedCluster>, RecoverError> {
    make_cluster(config, |own| NewMembers::from_config(config, own))
}

/// Completes a recovery that a crash interrupted between its two renames: the old directory was
/// renamed, and the new one, which is complete by then, was not yet.
pub(crate) fn finish_interrupted(config: &ServerConfig) -> Result<(), RecoverError> {
    let directory = store_directory(config);
    if directory.exists() {
        return Ok(());
    }
    let siblings = |suffix| siblings(&directory, suffix).map_err(RecoverError::System);
    if let ([new], [_, ..]) = (&siblings(NEW)?[..], &siblings(OLD)?[..]) {
        tracing::warn!(from = %new.display(), "completing an interrupted recovery");
        std::fs::rename(new, &directory).map_err(RecoverError::System)?;
        sync_parent(&directory).map_err(RecoverError::System)?;
    }
    Ok(())
}

fn make_cluster(
    config: &ServerConfig,
    new_members: impl FnOnce(&MemberDetails) -> Result<NewMembers, RecoverError>,
) -> Result<Option<ForcedCluster>, RecoverError> {
    finish_interrupted(config)?;
    let directory = store_directory(config);
    let mut disk = open(&directory)?;
    let owner = Store::read_identity(&mut disk).map_err(RecoverError::Open)?;
    let old = owner.ok_or(RecoverError::Empty)?;
    let ReplayedLog { applier, membership, committed } = replay(disk, old)?;
    let own = old.member;
    let new_members = new_members(&MemberDetails::of(&membership, own))?;
    if membership.members().as_slice() == [own] && membership.is_voter(own) {
        return Ok(None);
    }
    let last_index = applier.applied();
    let incarnation = random_number()?;
    let cluster = cluster_id(&[old.cluster, incarnation]);
    let first = new_members.first_membership(own, &membership)?;
    let new_directory = sibling(&directory, &format!("{NEW}{incarnation:x}"));
    let identity = StoreIdentity { cluster, member: own, incarnation, joined_at: 0 };
    let machine = applier.into_machine();
    write_member(&mut open(&new_directory)?, identity, first, machine)?;
    let old_directory = sibling(&directory, &format!("{OLD}{cluster:x}"));
    std::fs::rename(&directory, &old_directory).map_err(RecoverError::System)?;
    std::fs::rename(&new_directory, &directory).map_err(RecoverError::System)?;
    sync_parent(&directory).map_err(RecoverError::System)?;
    let uncommitted = last_index.saturating_sub(committed);
    tracing::warn!(cluster = %hex(cluster), member = %own, last_index, uncommitted,
        "made a new cluster with this member alone");
    Ok(Some(ForcedCluster {
        cluster_id: cluster,
        member: own,
        last_index,
        uncommitted,
        old_directory,
    }))
}

/// The members that a new cluster is to have beside its first one.
#[derive(Debug, Default)]
struct NewMembers {
    /// The peer URLs of the first one, if they are given.
    own: Option<Vec<Url>>,
    others: Vec<(String, Vec<Url>)>,
}

impl NewMembers {
    /// The members of the initial cluster. It has to name this member too: a list that does not
    /// was made for another disk.
    fn from_config(config: &ServerConfig, own: &MemberDetails) -> Result<Self, RecoverError> {
        if config.initial_cluster.is_empty() {
            return Ok(Self::default());
        }
        let members = config.initial_members();
        let mut addresses: Vec<&Url> = members.iter().flat_map(|(_, urls)| urls).collect();
        addresses.sort();
        if let Some(pair) = addresses.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(BootstrapError::SameAddress { urls: pair[0].to_string() }.into());
        }
        let (mut mine, others): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|(name, _)| *name == own.name);
        let Some((_, urls)) = mine.pop() else {
            let (name, urls) = (own.name.clone(), own.peer_urls.join(","));
            return Err(RecoverError::NotNamed { name, urls });
        };
        Ok(Self { own: Some(urls), others })
    }

    /// A membership of this member alone, with the others as its goal.
    fn first_membership(
        &self,
        own: MemberId,
        old: &Membership,
    ) -> Result<Membership, RecoverError> {
        let mut first = Membership::new([own], []);
        let zone = old.info(own).map(|info| info.zone.clone()).unwrap_or_default();
        let mut details = MemberDetails::of(old, own);
        if let Some(urls) = &self.own {
            details.peer_urls = urls.iter().map(Url::to_string).collect();
        }
        first = first.with_info(own, details.in_zone(zone));
        if self.others.is_empty() {
            return Ok(first);
        }
        let salt = random_number()?;
        let id = |urls: &[Url]| MemberId(member_id(urls, "", Some(salt)));
        let voters = self.others.iter().map(|(_, urls)| id(urls)).chain([own]).collect();
        first = first.set_goal(&voters, &MemberSet::new()).map_err(RecoverError::Goal)?;
        for (name, urls) in &self.others {
            let info = MemberDetails::expected(name, urls).in_zone(bytes::Bytes::new());
            first = first.with_info(id(urls), info);
        }
        Ok(first)
    }
}

fn replay(
    disk: FileDisk,
    old: StoreIdentity,
) -> Result<ReplayedLog<Kv<MemoryTable>>, RecoverError> {
    let mut config = quorate::Config::new(old.member);
    config.incarnation = old.incarnation;
    let startup = MemberStartup {
        cluster: old.cluster,
        config,
        options: DriverOptions::default(),
        // A copy is as good: the new cluster has other members.
        store: StoreConfig::new().moved(MovedDirectory::Ignore),
        first: None,
        versions: SUPPORTED_VERSIONS,
    };
    replay_log(disk, empty_store()?, startup).map_err(|error| match error {
        StartError::Read(error) => RecoverError::Read(error),
        StartError::Machine(error) => RecoverError::Machine(error),
        error => RecoverError::Start(error),
    })
}

fn write_member(
    disk: &mut FileDisk,
    identity: StoreIdentity,
    membership: Membership,
    kv: Kv<MemoryTable>,
) -> Result<(), RecoverError> {
    let (applied, version) = (kv.applied(), kv.cluster_version());
    let config = StoreConfig::default();
    let seeded = seed(disk, identity, membership, kv, applied, version, &config);
    seeded.map_err(|error| match error {
        StartError::Create(error) => RecoverError::Create(error),
        error => RecoverError::Start(error),
    })
}

fn empty_store() -> Result<Kv<MemoryTable>, RecoverError> {
    Kv::open(MemoryTable::default()).map_err(RecoverError::Table)
}

fn open(directory: &Path) -> Result<FileDisk, RecoverError> {
    FileDisk::open(directory).map_err(RecoverError::System)
}

/// The path of a directory beside this one.
fn sibling(directory: &Path, suffix: &str) -> PathBuf {
    let mut name = directory.file_name().unwrap_or_default().to_owned();
    name.push(format!("-{suffix}"));
    directory.with_file_name(name)
}

/// The existing directories whose name is this one's with the suffix and a number.
fn siblings(directory: &Path, suffix: &str) -> std::io::Result<Vec<PathBuf>> {
    let start = sibling(directory, suffix);
    let start = start.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_sibling = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix(start));
        number.is_some_and(|number| u64::from_str_radix(number, 16).is_ok())
    };
    let paths = match std::fs::read_dir(parent(directory)) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    paths.map(|paths: Vec<_>| paths.into_iter().filter(is_sibling).collect())
}

fn parent(directory: &Path) -> &Path {
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Makes the renames of a directory durable.
fn sync_parent(directory: &Path) -> std::io::Result<()> {
    std::fs::File::open(parent(directory))?.sync_all()
}

/// A random number that is not 0.
fn random_number() -> Result<u64, RecoverError> {
    let number = getrandom::u64().map_err(std::io::Error::other);
    number.map(|number| number.max(1)).map_err(RecoverError::System)
}

/// Why no new cluster was made. The old data is unchanged.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecoverError {
    /// Which member this is could not be decided.
    Bootstrap(BootstrapError),
    /// The file is not a snapshot of Quorate, or is damaged.
    File(SnapshotFileError),
    /// The contents of the file cannot be installed.
    Install(KvSnapshotError),
    /// The files of an etcd cannot be imported.
    Etcd(EtcdImportError),
    /// The directory is that of a member of an etcd cluster with several members.
    EtcdCluster {
        directory: PathBuf,
        members: usize,
    },
    /// The directory is that of an etcd member, and it does not say which member that is, or the
    /// addresses of its peers cannot be used.
    EtcdMembers {
        directory: PathBuf,
    },
    /// The directory is in use, or cannot be written.
    Create(CreateError),
    /// The directory cannot be read.
    Open(OpenError),
    /// The directory is empty.
    Empty,
    /// The given members lack the one whose disk this is. Add it, or check that it is the right
    /// disk.
    NotNamed {
        name: String,
        urls: String,
    },
    /// The given members cannot be one cluster.
    Goal(ChangeRefusal),
    Start(StartError),
    Read(StoreError),
    Table(TableError),
    /// The entries on the disk cannot be applied.
    Machine(MachineFailed),
    System(std::io::Error),
}

impl RecoverError {
    /// A file that is neither ours nor etcd's is reported as such.
    fn of_etcd_file(error: EtcdFileError) -> Self {
        match error {
            EtcdFileError::NotADatabase => Self::File(SnapshotFileError::UnknownFormat),
            error => Self::Etcd(error.into()),
        }
    }
}

impl From<BootstrapError> for RecoverError {
    fn from(error: BootstrapError) -> Self {
        Self::Bootstrap(error)
    }
}

impl fmt::Display for RecoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bootstrap(error) => write!(f, "{error}"),
            Self::File(error) => write!(f, "{error}"),
            Self::Install(error) => write!(f, "{error}"),
            Self::Etcd(error) => write!(f, "{error}"),
            Self::EtcdCluster { directory, members } => write!(
                f,
                "{} has the data of an etcd member whose cluster has {members} members; make a new \
                 cluster of the data of one of them with 'quorate import', or use an empty data \
                 directory",
                directory.display()
            ),
            Self::EtcdMembers { directory } => write!(
                f,
                "{} has the data of an etcd member, but no usable list of members; use 'quorate \
                 import', or an empty data directory",
                directory.display()
            ),
            Self::Create(error) => write!(f, "data directory: {error}"),
            Self::Open(error) => write!(f, "data directory: {error}"),
            Self::Empty => write!(f, "the data directory is empty: there is nothing to recover"),
            Self::NotNamed { name, urls } => {
                write!(
                    f,
                    "this is the disk of {name}, which is not among the members: add {name}={urls}"
                )
            }
            Self::Goal(error) => write!(f, "{error}"),
            Self::Start(error) => write!(f, "data directory: {error}"),
            Self::Read(error) => write!(f, "data directory: {error}"),
            Self::Table(error) => write!(f, "{error}"),
            Self::Machine(error) => write!(f, "{error}"),
            Self::System(error) => write!(f, "data directory: {error}"),
        }
    }
}

impl std::error::Error for RecoverError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bootstrap(error) => Some(error),
            Self::File(error) => Some(error),
            Self::Install(error) => Some(error),
            Self::Etcd(error) => Some(error),
            Self::Create(error) => Some(error),
            Self::Open(error) => Some(error),
            Self::Start(error) => Some(error),
            Self::Read(error) => Some(error),
            Self::Table(error) => Some(error),
            Self::Machine(error) => Some(error),
            Self::System(error) => Some(error),
            Self::EtcdCluster { .. }
            | Self::EtcdMembers { .. }
            | Self::Empty
            | Self::NotNamed { .. }
            | Self::Goal(_) => None,
        }
    }
}

/// Suffixes of the directory that replaces another, and of the replaced one.
const NEW: &str = "new-";
const OLD: &str = "before-";
