//! Errors of the store.
//!
//! After a disk failure or corruption the member must stop: a failed write may be lost, and
//! unreadable data may include a vote or an acknowledged entry.

use std::fmt;
use std::io;

use quorate_core::{EntryId, Index, MemberId};

use crate::codec::DecodeError;
use crate::names::FileName;
use crate::wal::segment::VERSION;

/// A disk operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFailure {
    /// What failed.
    pub operation: DiskOperation,
    /// The file that it was applied to.
    pub file: FileName,
    /// The kind of the error.
    pub kind: io::ErrorKind,
    /// The error number of the operating system, if it has one.
    pub code: Option<i32>,
}

/// An operation of a [`Disk`](crate::Disk).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskOperation {
    /// Locking the directory.
    Lock,
    /// Listing the directory.
    List,
    /// Creating a file.
    Create,
    /// Opening a file.
    Open,
    /// Reading a file or its length.
    Read,
    /// Writing a file or changing its length.
    Write,
    /// Syncing a file or the directory.
    Sync,
    /// Renaming a file.
    Rename,
    /// Removing a file.
    Remove,
}

impl DiskFailure {
    /// For `map_err`: adds the operation and the file to an I/O error.
    pub(crate) fn when(operation: DiskOperation, file: FileName) -> impl FnOnce(io::Error) -> Self {
        move |why| Self { operation, file, kind: why.kind(), code: why.raw_os_error() }
    }
}

impl fmt::Display for DiskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = match self.operation {
            DiskOperation::Lock => "lock",
            DiskOperation::List => "list",
            DiskOperation::Create => "create",
            DiskOperation::Open => "open",
            DiskOperation::Read => "read",
            DiskOperation::Write => "write",
            DiskOperation::Sync => "sync",
            DiskOperation::Rename => "rename",
            DiskOperation::Remove => "remove",
        };
        write!(f, "cannot {operation} {}: {}", self.file, self.kind)?;
        match self.code {
            Some(code) => write!(f, " (os error {code})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for DiskFailure {}

/// Durable data is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The damaged file.
    pub file: FileName,
    /// The offset at which the damaged part starts.
    pub offset: u64,
    /// What is wrong with it.
    pub why: CorruptionKind,
}

/// What is wrong with damaged data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CorruptionKind {
    /// The file does not start with the magic bytes of its kind.
    BadMagic,
    /// The checksum does not match.
    ChecksumMismatch,
    /// The file is too short.
    Truncated,
    /// The file is missing, although other files refer to it.
    Missing,
    /// Intact, but it belongs to another store, segment or snapshot.
    Misplaced,
    /// Intact, but it contradicts other records.
    Inconsistent,
    /// The checksum matches, but the contents cannot be decoded.
    Undecodable(DecodeError),
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is corrupt at byte {}: ", self.file, self.offset)?;
        match self.why {
            CorruptionKind::BadMagic => write!(f, "wrong magic bytes"),
            CorruptionKind::ChecksumMismatch => write!(f, "checksum does not match"),
            CorruptionKind::Truncated => write!(f, "file is too short"),
            CorruptionKind::Missing => write!(f, "file is missing"),
            CorruptionKind::Misplaced => write!(f, "belongs to another store or file"),
            CorruptionKind::Inconsistent => write!(f, "contradicts other records"),
            CorruptionKind::Undecodable(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for Corruption {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.why {
            CorruptionKind::Undecodable(why) => Some(why),
            _ => None,
        }
    }
}

/// Why data was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// The disk failed.
    Failed(DiskFailure),
    /// The data is damaged.
    Corrupt(Corruption),
}

impl From<DiskFailure> for ReadError {
    fn from(why: DiskFailure) -> Self {
        Self::Failed(why)
    }
}

impl From<Corruption> for ReadError {
    fn from(why: Corruption) -> Self {
        Self::Corrupt(why)
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) => write!(f, "{why}"),
            Self::Corrupt(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(why) => Some(why),
            Self::Corrupt(why) => Some(why),
        }
    }
}

/// Why a call of a [`Store`](crate::Store) failed.
///
/// A refused call changed nothing. After [`Failed`](Self::Failed) or
/// [`Corrupt`](Self::Corrupt) every later call returns the same error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The disk failed: stop the member. It is unknown which of the last writes are durable;
    /// a restart recovers them.
    Failed(DiskFailure),
    /// Durable data is damaged: stop the member, and do not let it vote or lead.
    Corrupt(Corruption),
    /// Refused: the entries do not continue the log.
    NotContiguous {
        /// The last entry of the log.
        last: EntryId,
    },
    /// Refused: the save is larger than a record can be.
    TooLarge,
    /// Refused: there is no finished snapshot of this entry.
    NoSuchSnapshot {
        /// The entry that was requested.
        id: EntryId,
    },
    /// Refused: only entries that a snapshot covers can be trimmed.
    NotSnapshotted {
        /// The index of the newest snapshot.
        newest: Index,
    },
}

impl From<DiskFailure> for StoreError {
    fn from(why: DiskFailure) -> Self {
        Self::Failed(why)
    }
}

impl From<ReadError> for StoreError {
    fn from(why: ReadError) -> Self {
        match why {
            ReadError::Failed(why) => Self::Failed(why),
            ReadError::Corrupt(why) => Self::Corrupt(why),
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) => write!(f, "{why}"),
            Self::Corrupt(why) => write!(f, "{why}"),
            Self::NotContiguous { last } => {
                write!(f, "entries do not continue the log, which ends at {last}")
            }
            Self::TooLarge => write!(f, "save is larger than a record can be"),
            Self::NoSuchSnapshot { id } => write!(f, "there is no finished snapshot {id}"),
            Self::NotSnapshotted { newest } => {
                write!(f, "no snapshot covers the entries; the newest is at {newest}")
            }
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(why) => Some(why),
            Self::Corrupt(why) => Some(why),
            _ => None,
        }
    }
}

/// Why a store was not created. Existing files are unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreateError {
    /// The disk failed.
    Failed(DiskFailure),
    /// Another process uses the directory.
    Locked,
    /// There is a store already. Open it, or choose another directory.
    InUse {
        /// A file of that store.
        file: FileName,
    },
}

impl From<DiskFailure> for CreateError {
    fn from(why: DiskFailure) -> Self {
        Self::Failed(why)
    }
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) => write!(f, "{why}"),
            Self::Locked => write!(f, "directory is locked by another process"),
            Self::InUse { file } => write!(f, "directory is in use: found {file}"),
        }
    }
}

impl std::error::Error for CreateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(why) => Some(why),
            Self::Locked | Self::InUse { .. } => None,
        }
    }
}

/// Why a store was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// The disk failed.
    Failed(DiskFailure),
    /// Another process uses the directory.
    Locked,
    /// There is no store here. Create it.
    NotCreated,
    /// The directory belongs to another cluster. Choose another one.
    OtherCluster {
        /// The cluster in the directory.
        found: u64,
        /// The requested cluster.
        expected: u64,
    },
    /// The directory belongs to another member. Choose another one.
    OtherMember {
        /// The member in the directory.
        found: MemberId,
        /// The requested member.
        expected: MemberId,
    },
    /// Written in a format that this version does not support. Use another version.
    UnsupportedVersion {
        /// The file.
        file: FileName,
        /// Its format version.
        found: u32,
    },
    /// The directory was copied or restored since a member ran on it. What the member has
    /// promised since may be missing. See [`MovedDirectory`](crate::MovedDirectory).
    Moved,
    /// Durable data is damaged. Remove the member and add it again with an empty directory:
    /// it must not vote with incomplete data.
    Corrupt(Corruption),
}

impl From<DiskFailure> for OpenError {
    fn from(why: DiskFailure) -> Self {
        Self::Failed(why)
    }
}

impl From<Corruption> for OpenError {
    fn from(why: Corruption) -> Self {
        Self::Corrupt(why)
    }
}

impl From<ReadError> for OpenError {
    fn from(why: ReadError) -> Self {
        match why {
            ReadError::Failed(why) => Self::Failed(why),
            ReadError::Corrupt(why) => Self::Corrupt(why),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) => write!(f, "{why}"),
            Self::Locked => write!(f, "directory is locked by another process"),
            Self::NotCreated => write!(f, "directory holds no store"),
            Self::Moved => write!(
                f,
                "directory was copied or restored since the member last ran: if it is older than \
                 what the member has confirmed to others, acknowledged writes may be lost. Remove \
                 the member and add it again with an empty directory. Only if the member was \
                 stopped before the copy was made, and no other copy of it will run, allow it once"
            ),
            Self::OtherCluster { found, expected } => {
                write!(f, "directory belongs to cluster {found:016x}, expected {expected:016x}")
            }
            Self::OtherMember { found, expected } => {
                write!(f, "directory belongs to member {found}, expected {expected}")
            }
            Self::UnsupportedVersion { file, found } => {
                write!(
                    f,
                    "{file} has format version {found}, this program reads {VERSION}: \
                     start a program that reads {found} on the same data"
                )
            }
            Self::Corrupt(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(why) => Some(why),
            Self::Corrupt(why) => Some(why),
            _ => None,
        }
    }
}
