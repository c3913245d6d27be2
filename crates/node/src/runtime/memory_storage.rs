//! A storage that keeps everything in memory: for tests, examples, and members whose log
//! need not outlive their process. Each rule of [`Storage`] holds here as on a disk, also
//! that what was not synced may be lost: [`MemoryStorage::crash`].
//!
//! Two logs are kept. A write changes the first at once, and the second with the next sync; a
//! crash goes back to the second.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use quorate_core::{Boot, Entries, EntryId, Index, MemberId, Save, SnapshotMeta};
use quorate_storage::{StoreError, StoreIdentity};

use super::memory_log::MemoryLog;
use super::storage::{SnapshotSink, SnapshotSource, Storage, StorageError, StoredState};
use super::sync::lock;

/// A member's log and snapshots in memory. Clones share the data: a member that was stopped
/// and is started with a clone finds its data. One of them is open at a time.
///
/// ```
/// use quorate::MemoryStorage;
///
/// let store = MemoryStorage::new();
/// let first_start = store.clone();
/// // … Node::start(config, first_start, machine, transport), and later, to find it again:
/// let second_start = store.clone();
/// # drop((first_start, second_start));
/// ```
#[derive(Default)]
pub struct MemoryStorage {
    store: Arc<Mutex<MemoryStore>>,
    /// The generation of the store that this handle opened.
    generation: Option<u64>,
}

impl MemoryStorage {
    /// A new, empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Loses what was written after the last sync, and snapshots that were not adopted, as a
    /// power loss does. A handle that is open fails from now on; clones can be opened.
    pub fn crash(&self) {
        lock(&self.store).crash();
    }

    fn with_store<T>(
        &self,
        action: impl FnOnce(&mut MemoryStore) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let generation = self.generation.ok_or(MemoryStorageError::NotOpen)?;
        let mut store = lock(&self.store);
        store.check(generation)?;
        action(&mut store)
    }

    fn close_handle(&mut self) {
        let mut store = lock(&self.store);
        if self.generation.take() == Some(store.generation) {
            store.is_open = false;
        }
    }
}

impl Clone for MemoryStorage {
    /// The same data, not open by this handle.
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), generation: None }
    }
}

impl Drop for MemoryStorage {
    fn drop(&mut self) {
        self.close_handle();
    }
}

impl fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStorage")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl Storage for MemoryStorage {
    fn open(&mut self, mark: StoreIdentity, first: &Boot) -> Result<StoredState, StorageError> {
        if self.generation.is_some() {
            return Err(MemoryStorageError::InUse.into());
        }
        let mut store = lock(&self.store);
        let opened = store.open(mark, first)?;
        self.generation = Some(store.generation);
        Ok(opened)
    }

    fn write(&mut self, save: &Save) -> Result<(), StorageError> {
        self.with_store(|store| store.write(save))
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.with_store(|store| {
            store.sync();
            Ok(())
        })
    }

    fn load(&mut self, range: Range<Index>, bytes_max: u64) -> Result<Entries, StorageError> {
        self.with_store(|store| Ok(store.written.load(range, bytes_max)))
    }

    fn trim(&mut self, index: Index) -> Result<(), StorageError> {
        self.with_store(|store| store.trim(index))
    }

    fn begin_snapshot(
        &mut self,
        meta: SnapshotMeta,
    ) -> Result<Box<dyn SnapshotSink>, StorageError> {
        let generation = self.generation.ok_or(MemoryStorageError::NotOpen)?;
        lock(&self.store).check(generation)?;
        let store = Arc::clone(&self.store);
        Ok(Box::new(MemorySnapshotSink { store, generation, meta, chunks: Vec::new() }))
    }

    fn adopt_snapshot(&mut self, id: EntryId) -> Result<(), StorageError> {
        self.with_store(|store| {
            let finished = store.finished.remove(&id).ok_or(StoreError::NoSuchSnapshot { id })?;
            store.snapshots.insert(id, finished);
            Ok(())
        })
    }

    fn open_snapshot(&mut self, id: EntryId) -> Result<Box<dyn SnapshotSource>, StorageError> {
        self.with_store(|store| {
            let snapshot = store.snapshots.get(&id).ok_or(StoreError::NoSuchSnapshot { id })?;
            Ok(Box::new(MemorySnapshotSource { snapshot: Arc::clone(snapshot), next: 0 }) as _)
        })
    }

    fn release_snapshot(&mut self, id: EntryId) {
        let released = self.with_store(|store| {
            store.expected.remove(&id);
            Ok(())
        });
        // A store that has crashed has nothing to release.
        drop(released);
    }

    fn close(&mut self) -> Result<(), StorageError> {
        self.sync()?;
        self.close_handle();
        Ok(())
    }
}

/// The data that clones share.
#[derive(Default)]
struct MemoryStore {
    mark: Option<StoreIdentity>,
    boots: u64,
    /// Counts opens and crashes; a handle of an older generation fails.
    generation: u64,
    is_open: bool,
    /// The log with all writes.
    written: MemoryLog,
    /// The log as the last sync left it.
    synced: MemoryLog,
    /// The writes since then.
    unsynced: Vec<Save>,
    /// Snapshots that are finished and not adopted yet.
    finished: BTreeMap<EntryId, Arc<MemorySnapshot>>,
    snapshots: BTreeMap<EntryId, Arc<MemorySnapshot>>,
    /// Snapshots that the machine has yet to be restored from.
    expected: BTreeSet<EntryId>,
}

impl MemoryStore {
    fn open(
        &mut self,
        mark: StoreIdentity,
        first: &Boot,
    ) -> Result<StoredState, MemoryStorageError> {
        if self.is_open {
            return Err(MemoryStorageError::InUse);
        }
        let identity = *self.mark.get_or_insert(mark);
        check_owner(identity, mark)?;
        if self.boots == 0 {
            self.begin(first);
        }
        self.boots += 1;
        self.generation += 1;
        self.is_open = true;
        // The member relies on what is read here: it must not be lost later.
        self.sync();
        self.expected.clear();
        self.finished.clear();
        let newest = self.newest_snapshot();
        self.snapshots.retain(|id, _| *id == newest);
        let snapshot = self.snapshots.get(&newest).map(|snapshot| snapshot.meta.clone());
        let boot = self.written.boot(snapshot.unwrap_or_default());
        Ok(StoredState { identity, boots: self.boots, boot })
    }

    fn begin(&mut self, first: &Boot) {
        let meta = first.snapshot.clone();
        self.written = MemoryLog::after(meta.id, first.hard_state);
        self.synced = self.written.clone();
        if meta.id != EntryId::ZERO {
            self.snapshots.insert(meta.id, Arc::new(MemorySnapshot { meta, chunks: Vec::new() }));
        }
    }

    fn check(&self, generation: u64) -> Result<(), MemoryStorageError> {
        if self.generation == generation { Ok(()) } else { Err(MemoryStorageError::Crashed) }
    }

    fn write(&mut self, save: &Save) -> Result<(), StorageError> {
        let install = save.install.as_ref().map(|meta| meta.id);
        if let Some(id) = install
            && !self.snapshots.contains_key(&id)
        {
            return Err(StoreError::NoSuchSnapshot { id }.into());
        }
        // What a snapshot covers is committed, and committed entries are never replaced.
        let first = save.entries.first().map_or(Index::MAX, |entry| entry.id.index);
        let replaces = install.is_none() && first <= self.newest_snapshot().index;
        let last = install.unwrap_or(self.written.last());
        if replaces || !self.written.is_continued_by(save) {
            return Err(StoreError::NotContiguous { last }.into());
        }
        self.written.apply(save);
        self.expected.extend(install);
        let Save { id, hard_state, must_sync, .. } = *save;
        let (entries, install) = (save.entries.clone(), save.install.clone());
        let then_send = Vec::new();
        self.unsynced.push(Save { id, hard_state, entries, install, must_sync, then_send });
        Ok(())
    }

    fn sync(&mut self) {
        let mut installed = false;
        for save in self.unsynced.drain(..) {
            installed |= save.install.is_some();
            self.synced.apply(&save);
        }
        if installed {
            self.drop_old_snapshots();
        }
    }

    fn trim(&mut self, index: Index) -> Result<(), StorageError> {
        let newest = self.newest_snapshot();
        if index > newest.index {
            return Err(StoreError::NotSnapshotted { newest: newest.index }.into());
        }
        // What the snapshot depends on may be written and not synced yet.
        self.sync();
        self.written.trim(index);
        self.synced.trim(index);
        self.drop_old_snapshots();
        Ok(())
    }

    /// The newest snapshot of an entry in the log, or just before it. Other snapshots came from
    /// peers and are not installed.
    fn newest_snapshot(&self) -> EntryId {
        let held = self.snapshots.keys().filter(|id| self.written.holds(**id));
        held.max_by_key(|id| id.index).copied().unwrap_or_default()
    }

    fn drop_old_snapshots(&mut self) {
        let newest = self.newest_snapshot();
        let expected = &self.expected;
        self.snapshots.retain(|id, _| id.index >= newest.index || expected.contains(id));
    }

    fn crash(&mut self) {
        self.generation += 1;
        self.is_open = false;
        self.unsynced.clear();
        self.written = self.synced.clone();
        self.finished.clear();
        self.expected.clear();
    }
}

fn check_owner(found: StoreIdentity, expected: StoreIdentity) -> Result<(), MemoryStorageError> {
    if found.cluster != expected.cluster {
        return Err(MemoryStorageError::OtherCluster {
            found: found.cluster,
            expected: expected.cluster,
        });
    }
    if found.member != expected.member {
        return Err(MemoryStorageError::OtherMember {
            found: found.member,
            expected: expected.member,
        });
    }
    Ok(())
}

struct MemorySnapshot {
    meta: SnapshotMeta,
    chunks: Vec<Bytes>,
}

struct MemorySnapshotSink {
    store: Arc<Mutex<MemoryStore>>,
    generation: u64,
    meta: SnapshotMeta,
    chunks: Vec<Bytes>,
}

impl SnapshotSink for MemorySnapshotSink {
    fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        if !bytes.is_empty() {
            self.chunks.push(Bytes::copy_from_slice(bytes));
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), StorageError> {
        let Self { store, generation, meta, chunks } = *self;
        let mut store = lock(&store);
        store.check(generation)?;
        store.finished.insert(meta.id, Arc::new(MemorySnapshot { meta, chunks }));
        Ok(())
    }
}

struct MemorySnapshotSource {
    snapshot: Arc<MemorySnapshot>,
    next: usize,
}

impl SnapshotSource for MemorySnapshotSource {
    fn meta(&self) -> &SnapshotMeta {
        &self.snapshot.meta
    }

    fn bytes(&self) -> u64 {
        self.snapshot.chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }

    fn next_chunk(&mut self) -> Result<Option<Bytes>, StorageError> {
        let chunk = self.snapshot.chunks.get(self.next).cloned();
        self.next += 1;
        Ok(chunk)
    }
}

/// Why a handle cannot use its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryStorageError {
    NotOpen,
    InUse,
    Crashed,
    OtherCluster { found: u64, expected: u64 },
    OtherMember { found: MemberId, expected: MemberId },
}

impl fmt::Display for MemoryStorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOpen => write!(f, "the storage is not open"),
            Self::InUse => write!(f, "the storage is already open"),
            Self::Crashed => write!(f, "the storage has crashed since it was opened"),
            Self::OtherCluster { found, expected } => {
                write!(f, "the storage belongs to cluster {found:016x}, expected {expected:016x}")
            }
            Self::OtherMember { found, expected } => {
                write!(f, "the storage belongs to member {found}, expected {expected}")
            }
        }
    }
}

impl std::error::Error for MemoryStorageError {}
