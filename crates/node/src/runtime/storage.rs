//! What a member needs from a disk, as a trait: implement it to keep the log elsewhere.
//! [`DirectoryStorage`](crate::DirectoryStorage) is the one that comes with Quorate, and
//! [`testkit::storage`](crate::testkit::storage) the suite that each implementation has to pass.

use std::error::Error;
use std::ops::Range;

use bytes::Bytes;
use quorate_core::{Boot, Entries, EntryId, Index, Save, SnapshotMeta};
use quorate_storage::StoreIdentity;

/// Why a storage failed. Any error stops the member: a disk that failed once is not used
/// again.
pub type StorageError = Box<dyn Error + Send + Sync>;

/// Where one member keeps its log and its snapshots.
///
/// All calls come from one thread, in order; they may block. After the first error no call
/// follows, with two exceptions: [`Storage::begin_snapshot`] may refuse a snapshot, and
/// [`Storage::open_snapshot`] may fail for one that was replaced; the member then continues
/// without it. After a crash a prefix of the writes is left: at least everything up to the
/// last [`Storage::sync`], and no write without all before it.
pub trait Storage: Send + 'static {
    /// Reads back what was saved. An empty storage is marked with `mark` and starts from
    /// `first`. Otherwise the existing mark is kept; if it is of another cluster or member,
    /// that is an error. Called once, before anything else.
    fn open(&mut self, mark: StoreIdentity, first: &Boot) -> Result<StoredState, StorageError>;

    /// Writes a save: term and vote; entries, which replace those from the first one's index;
    /// and the snapshot that replaces the log, if one is to be installed.
    fn write(&mut self, save: &Save) -> Result<(), StorageError>;

    /// Makes everything written so far durable.
    fn sync(&mut self) -> Result<(), StorageError>;

    /// Reads entries from the start of the range, until they have `bytes_max` bytes, but at
    /// least one; none if the log does not contain the start.
    fn load(&mut self, range: Range<Index>, bytes_max: u64) -> Result<Entries, StorageError>;

    /// Entries up to this index may be removed: a snapshot covers them. So may older
    /// snapshots.
    fn trim(&mut self, index: Index) -> Result<(), StorageError>;

    /// Begins a snapshot: of this member's state, or one that a peer sends. It is written from
    /// another thread, while saves continue.
    fn begin_snapshot(&mut self, meta: SnapshotMeta)
    -> Result<Box<dyn SnapshotSink>, StorageError>;

    /// A finished snapshot is used from now on.
    fn adopt_snapshot(&mut self, id: EntryId) -> Result<(), StorageError>;

    /// Opens a snapshot that was adopted, or found at the start. It is read from another
    /// thread, while saves continue, and stays readable when a newer one replaces it.
    fn open_snapshot(&mut self, id: EntryId) -> Result<Box<dyn SnapshotSource>, StorageError>;

    /// The machine was restored from the snapshot that a save installed; until then the
    /// snapshot has to be kept.
    fn release_snapshot(&mut self, id: EntryId);

    /// Closes gracefully, and releases locks. Nothing is called after it.
    fn close(&mut self) -> Result<(), StorageError>;
}

/// What a member starts from.
#[derive(Clone, Debug)]
pub struct StoredState {
    /// The cluster, the member and the incarnation of the disk.
    pub identity: StoreIdentity,
    /// How often it was opened, including this time. Must be durable: no two runs of a member
    /// may have the same number.
    pub boots: u64,
    /// Log, term and vote, and the newest snapshot.
    pub boot: Boot,
}

/// A snapshot that is being written. If it is dropped without [`SnapshotSink::finish`],
/// nothing of it remains.
pub trait SnapshotSink: Send {
    /// Adds bytes at its end.
    fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError>;

    /// Makes durable what was added so far: called from time to time, so that little is left for
    /// [`SnapshotSink::finish`]. A storage without a disk does nothing.
    fn sync(&mut self) -> Result<(), StorageError> {
        Ok(())
    }

    /// A function that makes durable what was added before it is called, on another thread, while
    /// more is added. A storage without a disk has none.
    fn sync_beside(&self) -> Option<SnapshotSync> {
        None
    }

    /// Makes it durable. It is used after [`Storage::adopt_snapshot`].
    fn finish(self: Box<Self>) -> Result<(), StorageError>;
}

/// See [`SnapshotSink::sync_beside`].
pub type SnapshotSync = Box<dyn FnMut() -> Result<(), StorageError> + Send>;

/// A snapshot that is being read.
pub trait SnapshotSource: Send {
    /// The entry and the membership it was taken at.
    fn meta(&self) -> &SnapshotMeta;

    /// The total number of bytes.
    fn bytes(&self) -> u64;

    /// The next chunk, verified; none at the end. Chunk boundaries have no meaning.
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StorageError>;
}
