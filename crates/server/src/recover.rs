//! Clusters made of what is left of others: of a backup, or of one member's disk when the
//! other members are lost for good.
//!
//! Both make a first membership of a new cluster whose data begins where the other's ended.
//! The new cluster has another id than the lost one, so that no old member is listened to.
//! Nothing is removed: the old directory gets another name.

use std::fmt;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use quorate::driver::{Applier, MemberStartup, StartError, StartedMember, seed, start};
use quorate::{
    ChangeRefusal, DriverOptions, FileDisk, MachineFailed, MemberId, MemberSet, Membership,
    StoreConfig,
};
use quorate_kv::{Kv, KvSnapshotError, MemoryTable, TableError};
use quorate_storage::{CreateError, OpenError, Store, StoreError, StoreIdentity};

use crate::bootstrap::{
    BootstrapError, Founding, cluster_id, founding, member_id, store_directory,
};
use crate::config::Config;
use crate::member_info::Info;
use crate::snapshot_file::{SnapshotFile, SnapshotFileError, SnapshotHeader};
use crate::url::Url;

/// How a backup is brought back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// Clients may have seen later revisions than the backup has. Above 0, the revision is
    /// raised by so much, and nothing from before can be read or watched: who holds on to
    /// what was lost is told that it is compacted, instead of misled.
    pub bump_revision: u64,
    /// Take a file whose checksum is missing. Its parts are checked all the same.
    pub skip_hash_check: bool,
}

/// What came of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Of the backup.
    pub header: SnapshotHeader,
    pub cluster_id: u64,
    /// At which the new cluster begins.
    pub revision: i64,
}

/// Makes the data directory of a first member of a new cluster, whose data is that of a
/// snapshot file. To be done with the same file in the same way for each of the first
/// members, which are started as usual after.
///
/// The id of the new cluster is made of its members and of what it begins with. So it listens
/// to no member of the old one, also at the same addresses, and members that begin with
/// different things do not listen to each other.
pub fn restore<F: Read + Seek>(
    config: &Config,
    file: F,
    how: RestoreOptions,
) -> Result<Restored, RecoverError> {
    let Founding { cluster, own, membership } = founding(config)?;
    let opened = match how.skip_hash_check {
        true => SnapshotFile::open_unchecked(file),
        false => SnapshotFile::open(file),
    };
    let file = opened.map_err(RecoverError::File)?;
    let header = file.header;
    let mut kv = empty()?;
    let mut chunks = file.chunks().map_err(RecoverError::File)?;
    kv.install(&mut chunks).map_err(RecoverError::Install)?;
    kv.reset_for_new_cluster(how.bump_revision, how.bump_revision > 0)
        .map_err(RecoverError::Table)?;
    let contents = u64::from(kv.hash().map_err(RecoverError::Table)?);
    let cluster = cluster_id(&[cluster, header.cluster_id, header.applied, contents]);
    let revision = kv.revision();
    let identity = StoreIdentity { cluster, member: own, incarnation: draw()?, joined_at: 0 };
    let mut disk = open(&store_directory(config))?;
    sow(&mut disk, identity, membership, kv)?;
    Ok(Restored { header, cluster_id: cluster, revision })
}

/// What a stopped member's disk holds, and whom it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryPlan {
    pub cluster_id: u64,
    pub member: MemberId,
    /// The name that it goes by.
    pub name: String,
    /// Everybody who is a member, with the names that they go by.
    pub members: Vec<(MemberId, String)>,
    /// The newest entry that the disk knows to be committed.
    pub committed: u64,
    /// The newest entry that it holds.
    pub last: u64,
    /// The newest revision with everything that it holds.
    pub revision: i64,
    /// Who is to join it in the new cluster, and where.
    pub joining_members: Vec<(String, Vec<Url>)>,
    /// Where it will be, if elsewhere than now.
    pub new_peer_urls: Option<Vec<Url>>,
}

/// Looks at what [`recover`] would make a cluster of. Nothing is given up.
pub fn plan_recovery(config: &Config) -> Result<RecoveryPlan, RecoverError> {
    finish(config)?;
    let directory = store_directory(config);
    // Looking must not make what was not there.
    if !directory.exists() {
        return Err(RecoverError::Empty);
    }
    let mut disk = open(&directory)?;
    let owner = Store::read_identity(&mut disk).map_err(RecoverError::Open)?;
    let old = owner.ok_or(RecoverError::Empty)?;
    let Replayed { applier, membership, committed } = replay(disk, old)?;
    let last = applier.applied();
    let named = |id: &MemberId| (*id, Info::of(&membership, *id).name);
    let own = Info::of(&membership, old.member);
    let Company { own: wished, others } = Company::named(config, &own)?;
    Ok(RecoveryPlan {
        cluster_id: old.cluster,
        member: old.member,
        name: own.name.clone(),
        members: membership.members().as_slice().iter().map(named).collect(),
        committed,
        last,
        revision: applier.into_machine().revision(),
        joining_members: others,
        new_peer_urls: wished.filter(|urls| !own.is_at(urls)),
    })
}

/// What was made of one member's disk, and what was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedCluster {
    pub cluster_id: u64,
    pub member: MemberId,
    /// The newest entry that is part of the new cluster.
    pub last_index: u64,
    /// How many of those this disk did not know to be committed.
    pub uncommitted: u64,
    /// Where the old directory is now.
    pub old_directory: PathBuf,
}

/// Makes this member, with its data, the only one of a new cluster. None when it is the only
/// one already.
///
/// Everything in the log is kept, also what the disk does not know to be committed: a client
/// may have been told that it is. To drop it would lose such a write; to keep it can only
/// make one happen whose client was told nothing.
pub fn force_new_cluster(config: &Config) -> Result<Option<ForcedCluster>, RecoverError> {
    begin_with(config, |_| Ok(Company::default()))
}

/// The same, with the members of the initial cluster, if one is given, as its goal: they join
/// with empty disks and get their votes when they have caught up. Their old disks are of no
/// use: what is on them may be something else.
pub fn recover(config: &Config) -> Result<Option<ForcedCluster>, RecoverError> {
    begin_with(config, |own| Company::named(config, own))
}

/// Ends what a crash cut off between two names: the old directory was put aside, and the new
/// one, which is whole then, does not stand in its place yet.
pub(crate) fn finish(config: &Config) -> Result<(), RecoverError> {
    let directory = store_directory(config);
    if directory.exists() {
        return Ok(());
    }
    let beside = |ending| all_beside(&directory, ending).map_err(RecoverError::System);
    if let ([fresh], [_, ..]) = (&beside(MADE)?[..], &beside(BEFORE)?[..]) {
        tracing::warn!(from = %fresh.display(), "ends a recovery that was cut off");
        std::fs::rename(fresh, &directory).map_err(RecoverError::System)?;
        sync_parent(&directory).map_err(RecoverError::System)?;
    }
    Ok(())
}

fn begin_with(
    config: &Config,
    joining_members: impl FnOnce(&Info) -> Result<Company, RecoverError>,
) -> Result<Option<ForcedCluster>, RecoverError> {
    finish(config)?;
    let directory = store_directory(config);
    let mut disk = open(&directory)?;
    let owner = Store::read_identity(&mut disk).map_err(RecoverError::Open)?;
    let old = owner.ok_or(RecoverError::Empty)?;
    let Replayed { applier, membership, committed } = replay(disk, old)?;
    let own = old.member;
    let joining_members = joining_members(&Info::of(&membership, own))?;
    if membership.members().as_slice() == [own] && membership.is_voter(own) {
        return Ok(None);
    }
    let last_index = applier.applied();
    let incarnation = draw()?;
    let cluster = cluster_id(&[old.cluster, incarnation]);
    let first = joining_members.first_membership(own, &membership)?;
    let fresh = beside(&directory, &format!("{MADE}{incarnation:x}"));
    let identity = StoreIdentity { cluster, member: own, incarnation, joined_at: 0 };
    let machine = applier.into_machine();
    sow(&mut open(&fresh)?, identity, first, machine)?;
    let old_directory = beside(&directory, &format!("{BEFORE}{cluster:x}"));
    std::fs::rename(&directory, &old_directory).map_err(RecoverError::System)?;
    std::fs::rename(&fresh, &directory).map_err(RecoverError::System)?;
    sync_parent(&directory).map_err(RecoverError::System)?;
    let uncommitted = last_index.saturating_sub(committed);
    tracing::warn!(last_index, uncommitted, "forced a new cluster of this member alone");
    Ok(Some(ForcedCluster {
        cluster_id: cluster,
        member: own,
        last_index,
        uncommitted,
        old_directory,
    }))
}

/// Who is to be in a new cluster beside the one that it begins with.
#[derive(Debug, Default)]
struct Company {
    /// Where that one is to be, if that was said.
    own: Option<Vec<Url>>,
    others: Vec<(String, Vec<Url>)>,
}

impl Company {
    /// Those of the initial cluster, which has to name the own member as well: a list that
    /// does not was made for another disk.
    fn named(config: &Config, own: &Info) -> Result<Self, RecoverError> {
        if config.initial_cluster.is_empty() {
            return Ok(Self::default());
        }
        let members = config.first_members();
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

    /// The member alone, with the others as its goal.
    fn first_membership(
        &self,
        own: MemberId,
        old: &Membership,
    ) -> Result<Membership, RecoverError> {
        let mut first = Membership::new([own], []);
        let zone = old.info(own).map(|info| info.zone.clone()).unwrap_or_default();
        let mut info = Info::of(old, own);
        if let Some(urls) = &self.own {
            info.peer_urls = urls.iter().map(Url::to_string).collect();
        }
        first = first.with_info(own, info.in_zone(zone));
        if self.others.is_empty() {
            return Ok(first);
        }
        let drawn = draw()?;
        let id = |urls: &[Url]| MemberId(member_id(urls, "", Some(drawn)));
        let voters = self.others.iter().map(|(_, urls)| id(urls)).chain([own]).collect();
        first = first.set_goal(&voters, &MemberSet::new()).map_err(RecoverError::Goal)?;
        for (name, urls) in &self.others {
            let info = Info::expected(name, urls).in_zone(bytes::Bytes::new());
            first = first.with_info(id(urls), info);
        }
        Ok(first)
    }
}

/// What a disk makes of itself.
struct Replayed {
    /// The machine with everything that is in the log.
    applier: Applier<Kv<MemoryTable>>,
    membership: Membership,
    /// The newest entry that the disk knows to be committed.
    committed: u64,
}

fn replay(disk: FileDisk, old: StoreIdentity) -> Result<Replayed, RecoverError> {
    let mut config = quorate::Config::new(old.member);
    config.incarnation = old.incarnation;
    let startup = MemberStartup {
        cluster: old.cluster,
        config,
        options: DriverOptions::default(),
        store: StoreConfig::default(),
        first: None,
    };
    let started = start(disk, empty()?, startup).map_err(RecoverError::Start)?;
    let StartedMember { driver, mut applier, mut store, boot } = started;
    let status = driver.raft().status();
    let last = status.log.last.index;
    let mut membership = status.membership;
    while applier.applied() < last {
        let range = applier.applied() + 1..last + 1;
        let entries = store.load(range, LOAD_BYTES).map_err(RecoverError::Read)?;
        applier.apply(&entries).map_err(RecoverError::Machine)?;
        // The disk starts with the membership of its snapshot; who came and went since is in
        // the log.
        if let Some(change) = entries.iter().filter_map(|entry| entry.change()).last() {
            membership = change.membership.clone();
        }
    }
    store.close().map_err(RecoverError::Read)?;
    let membership = (*membership).clone();
    Ok(Replayed { applier, membership, committed: boot.hard_state.commit })
}

fn sow(
    disk: &mut FileDisk,
    identity: StoreIdentity,
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

/// Directories whose name is this one's with such an ending and a number.
fn all_beside(directory: &Path, ending: &str) -> std::io::Result<Vec<PathBuf>> {
    let start = beside(directory, ending);
    let start = start.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix(start));
        number.is_some_and(|number| u64::from_str_radix(number, 16).is_ok())
    };
    let paths = match std::fs::read_dir(parent(directory)) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(why) => Err(why),
    };
    paths.map(|paths: Vec<_>| paths.into_iter().filter(is_one).collect())
}

fn parent(directory: &Path) -> &Path {
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Makes the names of what stands beside a directory durable.
fn sync_parent(directory: &Path) -> std::io::Result<()> {
    std::fs::File::open(parent(directory))?.sync_all()
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
    Install(KvSnapshotError),
    /// The directory is in use, or cannot be written.
    Create(CreateError),
    /// The directory cannot be read.
    Open(OpenError),
    /// Nothing is in the directory.
    Empty,
    /// The members that were given lack the one whose disk this is. Add it, or look whether
    /// it is the right disk.
    NotNamed {
        name: String,
        urls: String,
    },
    /// The members that were given cannot be one cluster.
    Goal(ChangeRefusal),
    Start(StartError),
    Read(StoreError),
    Table(TableError),
    /// The entries on the disk cannot be applied.
    Machine(MachineFailed),
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
            Self::NotNamed { name, urls } => {
                write!(f, "this is the disk of {name}, want it among the members: {name}={urls}")
            }
            Self::Goal(why) => write!(f, "{why}"),
            Self::Start(why) => write!(f, "data directory: {why}"),
            Self::Read(why) => write!(f, "data directory: {why}"),
            Self::Table(why) => write!(f, "{why}"),
            Self::Machine(why) => write!(f, "{why}"),
            Self::System(why) => write!(f, "data directory: {why}"),
        }
    }
}

impl std::error::Error for RecoverError {}

/// How the names go on of a directory that is to take the place of another, and of the other.
const MADE: &str = "new-";
const BEFORE: &str = "before-";
const LOAD_BYTES: u64 = 16 << 20;
