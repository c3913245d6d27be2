//! What a disk can do to a member.
//!
//! There is no way on after any of it but one: what could not be written may be lost,
//! and what cannot be read may have been a promise.

use std::fmt;
use std::io;

use quorate_core::{EntryId, Index, MemberId};

use crate::codec::DecodeError;
use crate::names::FileName;
use crate::wal::segment::VERSION;

/// The disk did not do what it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFailure {
    pub operation: DiskOperation,
    pub file: FileName,
    pub kind: io::ErrorKind,
    /// The number that the operating system gave it.
    pub code: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOperation {
    Lock,
    List,
    Create,
    Open,
    Read,
    Write,
    Sync,
    Rename,
    Remove,
}

impl DiskFailure {
    /// For `map_err`: what was being done to which file.
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

/// Bytes that were durable are not what they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    pub file: FileName,
    /// Where the damaged part begins.
    pub offset: u64,
    pub why: CorruptionKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CorruptionKind {
    /// Not the first bytes of such a file.
    BadMagic,
    ChecksumMismatch,
    /// The file ends before it should.
    Truncated,
    /// The file is not there, or others say that it should be.
    Missing,
    /// Intact, but it belongs elsewhere.
    Misplaced,
    /// Intact, but not what others say it to be.
    Inconsistent,
    /// Intact, but nothing that was ever written.
    Undecodable(DecodeError),
    /// The log does not reach back to a snapshot: entries after this one are gone.
    Gap {
        after: EntryId,
    },
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is corrupt at byte {}: ", self.file, self.offset)?;
        match self.why {
            CorruptionKind::BadMagic => write!(f, "not a file of this kind"),
            CorruptionKind::ChecksumMismatch => write!(f, "checksum does not match"),
            CorruptionKind::Truncated => write!(f, "ends too early"),
            CorruptionKind::Missing => write!(f, "is missing"),
            CorruptionKind::Misplaced => write!(f, "does not belong here"),
            CorruptionKind::Inconsistent => write!(f, "contradicts what is before it"),
            CorruptionKind::Undecodable(why) => write!(f, "{why}"),
            CorruptionKind::Gap { after } => write!(f, "entries after {after} are missing"),
        }
    }
}

impl std::error::Error for Corruption {}

/// Why something was not read: the disk failed, or what it holds is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    Failed(DiskFailure),
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

impl std::error::Error for ReadError {}

/// Why a call did nothing, or may have done anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// End the member. What of the last writes is on disk is not known; a restart
    /// finds out.
    Failed(DiskFailure),
    /// End the member, and let it neither vote nor lead: what it has promised is
    /// damaged.
    Corrupt(Corruption),
    /// Refused, nothing was written: the entries do not continue the log.
    NotContiguous { last: EntryId },
    /// Refused, nothing was written: more than a record can hold.
    TooLarge,
    /// Refused: such a snapshot was not finished.
    NoSuchSnapshot { id: EntryId },
    /// Refused: entries may go only when a snapshot covers them.
    NotSnapshotted { newest: Index },
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
            Self::NotContiguous { last } => write!(f, "entries do not continue a log up to {last}"),
            Self::TooLarge => write!(f, "a save is larger than a record can be"),
            Self::NoSuchSnapshot { id } => write!(f, "no snapshot {id} is finished"),
            Self::NotSnapshotted { newest } => write!(f, "newest snapshot is at {newest}"),
        }
    }
}

impl std::error::Error for StoreError {}

/// Why a store was not created. Nothing that was there is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreateError {
    Failed(DiskFailure),
    /// Another process uses the directory.
    Locked,
    /// There is a store already. Open it, or choose another directory.
    InUse {
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

impl std::error::Error for CreateError {}

/// Why a store was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    Failed(DiskFailure),
    /// Another process uses the directory.
    Locked,
    /// There is no store here. Create it.
    NotCreated,
    /// The directory belongs to another cluster. Choose another one.
    OtherCluster {
        found: u64,
        expected: u64,
    },
    /// The directory belongs to another member. Choose another one.
    OtherMember {
        found: MemberId,
        expected: MemberId,
    },
    /// Written in a format that this version does not know.
    UnsupportedVersion {
        file: FileName,
        found: u32,
    },
    /// What was durable is damaged. Remove the member and add it anew with an empty
    /// directory: it must not vote with what is left.
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
            Self::OtherCluster { found, expected } => {
                write!(f, "directory is of cluster {found:x}, want {expected:x}")
            }
            Self::OtherMember { found, expected } => {
                write!(f, "directory is of member {found}, want {expected}")
            }
            Self::UnsupportedVersion { file, found } => {
                write!(f, "{file} has format version {found}, want {VERSION}")
            }
            Self::Corrupt(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for OpenError {}
