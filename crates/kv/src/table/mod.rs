//! Storage of rows: an ordered map with transactions and read-only views.
//!
//! Two tables implement it, [`MemoryTable`] and [`RedbTable`]; [`AnyTable`] is either. A table
//! does not interpret its rows, so the machine behaves the same with both.

mod any;
mod file_space;
mod memory;
mod redb;
mod redb_disk;
mod row_block;
mod row_file;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::ops::ControlFlow;

use bytes::Bytes;

pub use any::{AnyTable, AnyView};
pub use memory::{MemoryTable, MemoryView};
pub use redb::{RedbTable, RedbView};
pub use row_file::{RowFile, RowFileReport, RowFileUsage};

use crate::machine::ProgressFn;
use crate::revision::{RowKey, RowParts};
use crate::version::NewerVersion;

type RowVisitor<'v> = dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()> + 'v;

/// Read access to rows.
pub trait RowReader {
    /// The row with this key.
    fn get(&self, key: RowKey) -> Result<Option<Bytes>, TableError>;

    /// Whether the row with this key is known to be in a file only, so that reading it may take long.
    fn is_in_file(&self, _key: RowKey) -> bool {
        false
    }

    /// Visits the rows with `from <= key < to` in order, until `visit` breaks.
    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), TableError>;
}

/// A row that is read in place.
#[derive(Clone, Copy, Debug)]
pub struct RowRef<'a> {
    row: &'a [u8],
    /// What the row is a part of.
    shared: Option<&'a Bytes>,
}

/// A smaller row is copied: a part of shared memory would keep all of it.
const SHARED_ROW_BYTES_MIN: usize = 4 << 10;

impl<'a> RowRef<'a> {
    /// A row that is all of these bytes.
    pub(crate) fn whole(row: &'a Bytes) -> Self {
        Self { row, shared: Some(row) }
    }

    /// `row` must be a part of `shared`.
    pub(crate) fn part_of(shared: &'a Bytes, row: &'a [u8]) -> Self {
        Self { row, shared: Some(shared) }
    }

    /// The row, for longer than it is in the table.
    pub fn to_bytes(self) -> Bytes {
        match self.shared {
            Some(shared) if self.row.len() >= SHARED_ROW_BYTES_MIN => shared.slice_ref(self.row),
            _ => Bytes::copy_from_slice(self.row),
        }
    }
}

impl<'a> From<&'a [u8]> for RowRef<'a> {
    fn from(row: &'a [u8]) -> Self {
        Self { row, shared: None }
    }
}

impl std::ops::Deref for RowRef<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.row
    }
}

/// Storage of rows. The writer sees its changes immediately. A crash leaves exactly the state
/// of the last durable commit.
pub trait Table: RowReader {
    /// A read-only view of the rows at the time it was created. Later changes do not affect
    /// it.
    type View: RowReader + Send + Sync + 'static;

    /// Assigns the rows to this owner. Returns `true` if they already belonged to it;
    /// otherwise all rows were dropped.
    fn claim(&mut self, owner: &[u8]) -> Result<bool, TableError>;

    /// Inserts or replaces a row.
    fn put(&mut self, key: RowKey, row: Bytes) -> Result<(), TableError>;

    /// The same for a row in parts. A table that copies rows anyway saves one copy.
    fn put_parts(&mut self, key: RowKey, row: RowParts<'_>) -> Result<(), TableError> {
        self.put(key, row.to_bytes())
    }

    /// Removes a row, if it exists.
    fn remove(&mut self, key: RowKey) -> Result<(), TableError>;

    /// Commits all changes since the last commit. A durable commit survives a crash,
    /// together with all earlier ones.
    fn commit(&mut self, durable: bool) -> Result<(), TableError>;

    /// A view of the current rows, uncommitted changes included.
    fn view(&self) -> Result<Self::View, TableError>;

    /// Stages a row of a new state. It is invisible until [`Table::replace_by_staged`].
    fn stage(&mut self, key: RowKey, row: &[u8]) -> Result<(), TableError>;

    /// Replaces all rows by the staged ones, atomically and durably.
    fn replace_by_staged(&mut self) -> Result<(), TableError>;

    /// Drops the staged rows.
    fn drop_staged(&mut self) -> Result<(), TableError>;

    /// Makes new tables of this kind that are independent of this one, for a state that replaces
    /// the present one as a whole. `None` if there can be only one, such as a file.
    fn make_detached(&self) -> Option<MakeTable<Self>>
    where
        Self: Sized,
    {
        None
    }

    /// Calls this function while a long commit runs, at short intervals as long as the disk works.
    fn report_progress_to(&mut self, _progress: ProgressFn) {}

    /// Returns unused space to the disk. Fails with [`TableError::Busy`] while a view is in
    /// use.
    fn defragment(&mut self) -> Result<(), TableError>;

    /// The size on disk; `None` for a table without a disk.
    fn disk_bytes(&self) -> Result<Option<u64>, TableError>;
}

/// Makes an empty table.
pub type MakeTable<T> = Box<dyn Fn() -> T + Send + Sync>;

/// A failure of a table. Except after [`Busy`](Self::Busy) the member must stop: a state
/// machine that missed a write would give wrong replies.
#[derive(Debug)]
#[non_exhaustive]
pub enum TableError {
    /// Reading, writing or syncing failed, or the file is damaged.
    Redb(Box<::redb::Error>),
    /// The file could not be opened, created, read, renamed or measured.
    Disk(io::Error),
    /// The file is not a redb database, or is damaged so that redb cannot open it.
    NotADatabase,
    /// A row is damaged or written by another version.
    BadRow(RowKey),
    /// The index refers to a row that is missing.
    MissingRow(RowKey),
    /// The table was written at a later cluster version. Start a newer program.
    Newer(NewerVersion),
    /// A view is in use. Retry later.
    Busy,
}

impl TableError {
    /// Whether stored data is damaged. A retry does not help, but the table can be deleted
    /// and rebuilt from a snapshot and the log.
    pub fn is_corruption(&self) -> bool {
        use ::redb::Error;
        match self {
            Self::NotADatabase | Self::BadRow(_) | Self::MissingRow(_) => true,
            Self::Redb(error) => match &**error {
                Error::Io(why) => TRUNCATED.contains(&why.kind()),
                Error::Corrupted(_)
                | Error::UpgradeRequired(_)
                | Error::TableTypeMismatch { .. }
                | Error::TableIsMultimap(_)
                | Error::TypeDefinitionChanged { .. } => true,
                _ => false,
            },
            Self::Disk(_) | Self::Newer(_) | Self::Busy => false,
        }
    }
}

/// What redb and a disk report for a truncated file or one that is not a database.
const TRUNCATED: [io::ErrorKind; 2] = [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof];

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redb(error) => write!(f, "table: {error}"),
            Self::Disk(error) => write!(f, "table file: {error}"),
            Self::NotADatabase => write!(f, "table: the file is not a database"),
            Self::BadRow(key) => write!(f, "row {:032x} is damaged or of another version", key.0),
            Self::MissingRow(key) => write!(f, "row {:032x} is missing", key.0),
            Self::Newer(newer) => write!(f, "table: {newer}"),
            Self::Busy => write!(f, "table is being read for a snapshot; retry later"),
        }
    }
}

impl std::error::Error for TableError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Redb(error) => Some(&**error),
            Self::Disk(error) => Some(error),
            Self::Newer(newer) => Some(newer),
            Self::NotADatabase | Self::BadRow(_) | Self::MissingRow(_) | Self::Busy => None,
        }
    }
}

impl<E: Into<::redb::Error>> From<E> for TableError {
    fn from(error: E) -> Self {
        Self::Redb(Box::new(error.into()))
    }
}
