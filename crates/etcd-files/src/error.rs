//! Why a file is refused, and where.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a file of etcd is refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum EtcdFileError {
    /// It cannot be read.
    Io(io::Error),
    /// It is not a bbolt database. Check where it comes from.
    NotADatabase,
    /// It is a bbolt database of a machine with the other byte order.
    OtherByteOrder,
    /// No checksum follows the database, as in a file that was copied from a data directory.
    ChecksumMissing,
    /// The checksum does not match. Use another file.
    ChecksumMismatch,
    /// The file ends before its database does. Use another file.
    Truncated {
        /// The size of the file.
        bytes: u64,
        /// The size of the database in it.
        expected: u64,
    },
    /// Its contents are not what etcd writes. Use another file.
    Damaged {
        /// Where.
        place: DamagePlace,
        /// What is wrong there.
        problem: String,
    },
    /// A file of a data directory is missing.
    Missing(PathBuf),
    /// An etcd server uses the data directory. Stop it first.
    InUse(PathBuf),
}

/// A place in a file of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DamagePlace {
    /// A page of a database.
    Page(u64),
    /// An element of a page.
    Element {
        /// The page.
        page: u64,
        /// The position of the element in it, from 0.
        element: u64,
    },
    /// A bucket.
    Bucket(String),
    /// A row of a bucket.
    Row {
        /// The bucket.
        bucket: String,
        /// The key of the row.
        key: Vec<u8>,
    },
    /// A record of a log file.
    Log {
        /// The name of the file.
        file: String,
        /// Where the record starts.
        offset: u64,
    },
    /// An entry of the log.
    Entry(u64),
}

impl EtcdFileError {
    pub(crate) fn damaged(place: DamagePlace, problem: impl Into<String>) -> Self {
        Self::Damaged { place, problem: problem.into() }
    }

    pub(crate) fn row(bucket: &str, key: &[u8], problem: impl Into<String>) -> Self {
        let place = DamagePlace::Row { bucket: bucket.to_owned(), key: key.to_vec() };
        Self::damaged(place, problem)
    }
}

impl fmt::Display for DamagePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Page(page) => write!(f, "page {page}"),
            Self::Element { page, element } => write!(f, "page {page}, element {element}"),
            Self::Bucket(bucket) => write!(f, "bucket {bucket:?}"),
            Self::Row { bucket, key } => {
                write!(f, "bucket {bucket:?}, key ")?;
                // Enough for a revision; a name may be as long as a page.
                key.iter().take(32).try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Log { file, offset } => write!(f, "{file}, offset {offset}"),
            Self::Entry(index) => write!(f, "log entry {index}"),
        }
    }
}

impl fmt::Display for EtcdFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::NotADatabase => write!(f, "not a database of etcd"),
            Self::OtherByteOrder => {
                write!(f, "a database of etcd from a machine with big-endian byte order")
            }
            Self::ChecksumMissing => write!(
                f,
                "the SHA-256 checksum of etcd's snapshots is missing; if the file was copied from \
                 a data directory, use --skip-hash-check"
            ),
            Self::ChecksumMismatch => {
                write!(f, "the file is damaged: its SHA-256 checksum does not match")
            }
            Self::Truncated { bytes, expected } => {
                write!(f, "the file is truncated: {bytes} bytes of a database of {expected}")
            }
            Self::Damaged { place, problem } => {
                write!(f, "the file is damaged: {place}: {problem}")
            }
            Self::Missing(path) => write!(f, "{} does not exist", path.display()),
            Self::InUse(path) => {
                write!(f, "{} is in use: stop the etcd server first", path.display())
            }
        }
    }
}

impl std::error::Error for EtcdFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for EtcdFileError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
