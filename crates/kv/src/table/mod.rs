//! Where rows are kept: a small ordered map with batches and frozen views.
//!
//! Two tables implement it, [`MemoryTable`] and [`RedbTable`]; [`AnyTable`] is either. They
//! know nothing of what rows mean; the machine makes the same of both.

mod any;
mod memory;
mod redb;
mod redb_disk;

use std::fmt;
use std::io;
use std::ops::ControlFlow;

use bytes::Bytes;

pub use any::{AnyTable, AnyView};
pub use memory::{MemoryTable, MemoryView};
pub use redb::{RedbTable, RedbView};

use crate::revision::RowKey;

/// Rows that can be read.
pub trait RowReader {
    fn get(&self, key: RowKey) -> Result<Option<Bytes>, TableError>;

    /// Shows the rows with `from <= key < to` in order, until it is told to stop.
    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, Bytes) -> ControlFlow<()>,
    ) -> Result<(), TableError>;
}

/// Rows that can be changed. Whoever changes them sees the change at once; a crash
/// leaves the state of the last durable commit, whole.
pub trait Table: RowReader {
    /// The rows as they were when it was taken, whatever is changed afterwards.
    type View: RowReader + Send + 'static;

    /// From now on the rows are this owner's. Answers whether those that are there have been
    /// kept for it; otherwise there are none any more.
    fn claim(&mut self, owner: &[u8]) -> Result<bool, TableError>;

    fn put(&mut self, key: RowKey, row: Bytes) -> Result<(), TableError>;

    fn remove(&mut self, key: RowKey) -> Result<(), TableError>;

    /// Ends a batch. A durable one survives a crash, with all before it.
    fn commit(&mut self, durable: bool) -> Result<(), TableError>;

    fn view(&self) -> Result<Self::View, TableError>;

    /// Puts a row aside, for a state that is to replace this one.
    fn stage(&mut self, key: RowKey, row: Bytes) -> Result<(), TableError>;

    /// Replaces all rows by those that were put aside, durably and at once.
    fn replace_by_staged(&mut self) -> Result<(), TableError>;

    /// Drops what was put aside.
    fn drop_staged(&mut self) -> Result<(), TableError>;

    /// Gives back space that is no longer used. Fails with [`TableError::Busy`] while a
    /// view is in use.
    fn defragment(&mut self) -> Result<(), TableError>;

    /// What the table takes up on its disk; `None` if it has none.
    fn disk_bytes(&self) -> Result<Option<u64>, TableError>;
}

/// A table that cannot be used. Its member cannot go on, except after
/// [`Busy`](Self::Busy): a state machine that missed a write would answer wrongly.
#[derive(Debug)]
#[non_exhaustive]
pub enum TableError {
    /// Reading, writing or saving failed, or the file is damaged.
    Redb(Box<::redb::Error>),
    /// The disk would not give out the file.
    Disk(io::Error),
    /// The file is no database, or one that is damaged beyond what can be said of it.
    NotADatabase,
    /// A row is not what this version writes.
    BadRow(RowKey),
    /// Rows that belong together are not there together.
    MissingRow(RowKey),
    /// A view is in use; ask again later.
    Busy,
}

impl TableError {
    /// Whether what was written is no longer there as it was: reading it again would not
    /// help, and a table that is thrown away can be made anew of a snapshot and the log.
    pub fn is_corruption(&self) -> bool {
        use ::redb::Error;
        match self {
            Self::NotADatabase | Self::BadRow(_) | Self::MissingRow(_) => true,
            Self::Redb(error) => match &**error {
                Error::Io(why) => CUT.contains(&why.kind()),
                Error::Corrupted(_)
                | Error::UpgradeRequired(_)
                | Error::TableTypeMismatch { .. }
                | Error::TableIsMultimap(_)
                | Error::TypeDefinitionChanged { .. } => true,
                _ => false,
            },
            Self::Disk(_) | Self::Busy => false,
        }
    }
}

/// What redb and a disk say of a file that is no database, or only part of one.
const CUT: [io::ErrorKind; 2] = [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof];

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redb(error) => write!(f, "table: {error}"),
            Self::Disk(error) => write!(f, "disk of the table: {error}"),
            Self::NotADatabase => write!(f, "table: the file is no database"),
            Self::BadRow(key) => write!(f, "row {:032x} is damaged or of another version", key.0),
            Self::MissingRow(key) => write!(f, "row {:032x} is missing", key.0),
            Self::Busy => write!(f, "table is being read for a snapshot, want it idle"),
        }
    }
}

impl std::error::Error for TableError {}

impl<E: Into<::redb::Error>> From<E> for TableError {
    fn from(error: E) -> Self {
        Self::Redb(Box::new(error.into()))
    }
}
