//! The data directory of a stopped member: its database, and the log entries behind it.

use std::fs::{self, File, TryLockError};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::database::EtcdDatabase;
use crate::error::{DamagePlace, EtcdFileError};
use crate::protobuf::{ProtobufField, ProtobufFields};
use crate::wal::{WalEntry, WalReader, WalTail};

/// The data directory of a stopped member.
#[derive(Debug)]
pub struct EtcdDataDir {
    /// Its database, up to an entry of the log.
    pub database: EtcdDatabase<File>,
    /// The entries behind it.
    pub log: EtcdLog,
}

/// The entries behind the database of a member.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct EtcdLog {
    /// The id of the member.
    pub member_id: u64,
    /// The id of the cluster.
    pub cluster_id: u64,
    /// The last entry that the database contains.
    pub consistent_index: u64,
    /// The entries after it, without gaps.
    pub entries: Vec<WalEntry>,
    /// How many of them, at the end, are not known to be committed. A member that was killed has
    /// not recorded the last commits, so that clients may have been told that they are done.
    pub uncommitted: u64,
    /// Where the log ended within a record, if it did.
    pub torn_at: Option<DamagePlace>,
    /// The members, each as JSON, if the directory was made by `snapshot restore` and not used
    /// since.
    pub restored_members: Option<Vec<Bytes>>,
}

impl EtcdDataDir {
    /// Opens the directory that etcd's `--data-dir` names, with the log in `wal_dir` if etcd was
    /// started with that flag.
    pub fn open(data_dir: &Path, wal_dir: Option<&Path>) -> Result<Self, EtcdFileError> {
        let snap_dir = data_dir.join("member").join("snap");
        let path = snap_dir.join("db");
        if !path.exists() {
            return Err(EtcdFileError::Missing(path));
        }
        let mut database = open_database(&path)?;
        let mut consistent_index = database.marks()?.consistent_index;
        let wal_dir = wal_dir.map_or_else(|| data_dir.join("member").join("wal"), Path::to_owned);
        let files = wal_files(&wal_dir)?;
        let mut tail = read_log(&files, consistent_index)?;
        // A database that was received from the leader and not put in place before the stop.
        if tail.snapshot > consistent_index {
            let received = snap_dir.join(format!("{:016x}.snap.db", tail.snapshot));
            if !received.exists() {
                return Err(EtcdFileError::Missing(received));
            }
            database = open_database(&received)?;
            consistent_index = database.marks()?.consistent_index.max(tail.snapshot);
            tail = read_log(&files, consistent_index)?;
        }
        let mut log = EtcdLog::new(tail, consistent_index)?;
        log.restored_members = restored_members(&files)?;
        Ok(Self { database, log })
    }
}

impl EtcdLog {
    fn new(tail: WalTail, consistent_index: u64) -> Result<Self, EtcdFileError> {
        let WalTail { member_id, cluster_id, torn_at, entries, .. } = tail;
        // The commit index is not synced by itself, so the database may be ahead of it.
        let committed = tail.committed.max(consistent_index);
        let missing = |index: u64, problem: &str| {
            Err(EtcdFileError::damaged(DamagePlace::Entry(index), problem.to_owned()))
        };
        let first = entries.first().map_or(consistent_index + 1, |entry| entry.index);
        if first != consistent_index + 1 {
            return missing(
                consistent_index + 1,
                "the database ends before it, and the log lacks it",
            );
        }
        let last = entries.last().map_or(consistent_index, |entry| entry.index);
        if committed > last {
            return missing(last + 1, "it is committed, and the log ends before it");
        }
        let uncommitted = last - committed;
        Ok(Self {
            member_id,
            cluster_id,
            consistent_index,
            entries,
            uncommitted,
            torn_at,
            restored_members: None,
        })
    }
}

/// The members that the log names, if that is all it does. A member that has run has other
/// entries: a new leader adds one without content.
fn restored_members(files: &[WalFile]) -> Result<Option<Vec<Bytes>>, EtcdFileError> {
    let is_first = |file: &WalFile| file.sequence == 0;
    if files.len() != 1 || !files.iter().all(is_first) {
        return Ok(None);
    }
    let entries = read_log(files, 0)?.entries;
    let members: Option<Vec<Bytes>> = entries.iter().map(added_member).collect();
    Ok(members.filter(|members| !members.is_empty()))
}

/// The member that an entry adds, if it adds one.
fn added_member(entry: &WalEntry) -> Option<Bytes> {
    let mut member = None;
    for field in ProtobufFields::new(&entry.data) {
        let ProtobufField { number, value } = field?;
        match number {
            // The kind of the change.
            2 if value.number() != 0 => return None,
            4 => member = Some(Bytes::copy_from_slice(value.bytes())),
            _ => {}
        }
    }
    member.filter(|_| entry.kind == 1)
}

/// A running etcd has its database locked.
fn open_database(path: &Path) -> Result<EtcdDatabase<File>, EtcdFileError> {
    let file = File::open(path)?;
    match file.try_lock_shared() {
        Ok(()) => EtcdDatabase::open_unchecked(file),
        Err(TryLockError::WouldBlock) => Err(EtcdFileError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// A file of the log.
struct WalFile {
    sequence: u64,
    /// The first entry that may be in it.
    first_index: u64,
    path: PathBuf,
}

fn wal_files(directory: &Path) -> Result<Vec<WalFile>, EtcdFileError> {
    if !directory.exists() {
        return Err(EtcdFileError::Missing(directory.to_owned()));
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        files.extend(wal_file(path));
    }
    files.sort_by_key(|file| file.sequence);
    if files.is_empty() {
        return Err(EtcdFileError::Missing(directory.join("*.wal")));
    }
    for pair in files.windows(2) {
        if pair[0].sequence + 1 != pair[1].sequence {
            let name = format!("{:016x}-*.wal", pair[0].sequence + 1);
            return Err(EtcdFileError::Missing(directory.join(name)));
        }
    }
    Ok(files)
}

/// `None` for other files: those prepared for later, and copies of broken ones.
fn wal_file(path: PathBuf) -> Option<WalFile> {
    let name = path.file_name()?.to_str()?.strip_suffix(".wal")?;
    let (sequence, first_index) = name.split_once('-')?;
    let sequence = u64::from_str_radix(sequence, 16).ok()?;
    let first_index = u64::from_str_radix(first_index, 16).ok()?;
    Some(WalFile { sequence, first_index, path })
}

/// Reads the files that may have entries after this index.
fn read_log(files: &[WalFile], after: u64) -> Result<WalTail, EtcdFileError> {
    let later = files.partition_point(|file| file.first_index <= after + 1);
    let files = files.get(later.saturating_sub(1)..).unwrap_or_default();
    let mut reader = WalReader::new(after);
    for (number, file) in files.iter().enumerate() {
        let name = file.path.file_name().unwrap_or_default().to_string_lossy();
        let contents = BufReader::new(File::open(&file.path)?);
        reader.read(&name, contents, number + 1 == files.len())?;
    }
    Ok(reader.finish())
}
