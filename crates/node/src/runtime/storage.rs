//! What a member needs of a disk, as a trait: implement it to keep the log somewhere
//! else. [`DirectoryStorage`](crate::DirectoryStorage) is the one that comes with Quorate, and
//! [`testkit::storage`](crate::testkit::storage) the suite that every one has to pass.

use std::error::Error;
use std::ops::Range;

use bytes::Bytes;
use quorate_core::{Boot, Entries, EntryId, Index, Save, SnapshotMeta};
use quorate_storage::StoreIdentity;

/// Why a storage cannot go on. Whatever it is, it ends the member: a disk that failed
/// once is not asked again.
pub type StorageError = Box<dyn Error + Send + Sync>;

/// Where one member keeps its log and its snapshots.
///
/// All calls come from one thread, in order; they may block. After the first error no
/// call follows; except that [`Storage::begin_snapshot`] may refuse one, and
/// [`Storage::open_snapshot`] one that is not there any more: then the member goes on without. What [`Storage::write`] was given is a prefix after a crash: everything
/// up to the last [`Storage::sync`] at least, and no write without all before it.
pub trait Storage: Send + 'static {
    /// Reads back what was saved. Where nothing was, it is marked with `mark` and starts
    /// from `first`; otherwise the mark that it has counts, except that one of another
    /// cluster or member is an error. Called once, before anything else.
    fn open(&mut self, mark: StoreIdentity, first: &Boot) -> Result<StoredState, StorageError>;

    /// Writes a save: term and vote, entries in place of those from the first one's index
    /// on, and the snapshot that replaces the log, if one is to be installed.
    fn write(&mut self, save: &Save) -> Result<(), StorageError>;

    /// Makes everything written so far durable.
    fn sync(&mut self) -> Result<(), StorageError>;

    /// Entries from the first one asked for on, until `bytes_max` is in hand, but one at
    /// least; none where the log does not reach.
    fn load(&mut self, range: Range<Index>, bytes_max: u64) -> Result<Entries, StorageError>;

    /// Entries up to here may go: a snapshot covers them. So may older snapshots.
    fn trim(&mut self, index: Index) -> Result<(), StorageError>;

    /// Begins a snapshot: one of this member's own state, or one that a peer sends. It is
    /// written from another thread, while saves go on.
    fn begin_snapshot(&mut self, meta: SnapshotMeta)
    -> Result<Box<dyn SnapshotSink>, StorageError>;

    /// A snapshot was finished, and counts from now on.
    fn adopt_snapshot(&mut self, id: EntryId) -> Result<(), StorageError>;

    /// Opens a snapshot that was adopted, or found at the start. It is read from another
    /// thread, while saves go on, and stays readable when a newer one replaces it.
    fn open_snapshot(&mut self, id: EntryId) -> Result<Box<dyn SnapshotSource>, StorageError>;

    /// The machine was made of the snapshot that a save installed; until then it has to
    /// be kept.
    fn release_snapshot(&mut self, id: EntryId);

    /// Ends in good order. Nothing is called after it.
    fn close(&mut self) -> Result<(), StorageError>;
}

/// What a member starts from.
#[derive(Clone, Debug)]
pub struct StoredState {
    /// Whose data it is.
    pub identity: StoreIdentity,
    /// How often it was opened, this time included, and durable: no two lives of a member
    /// may have the same number.
    pub boots: u64,
    /// Log, term and vote, and the newest snapshot.
    pub boot: Boot,
}

/// A snapshot in the making. Dropped without [`SnapshotSink::finish`], nothing of it
/// remains.
pub trait SnapshotSink: Send {
    /// Adds bytes at its end.
    fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError>;

    /// Makes it durable. It counts as soon as the storage was told to adopt it.
    fn finish(self: Box<Self>) -> Result<(), StorageError>;
}

/// A snapshot that is being read.
pub trait SnapshotSource: Send {
    /// What it says about the log.
    fn meta(&self) -> &SnapshotMeta;

    /// How many bytes there are in all.
    fn bytes(&self) -> u64;

    /// The next part, checked; none at the end. Pieces may be cut anywhere.
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StorageError>;
}
