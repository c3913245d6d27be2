//! A storage that keeps everything in memory: for tests, examples, and members whose log
//! need not outlive their process. Each rule of [`Storage`] holds here as on a disk, also
//! that what was not synced may go: [`MemoryStorage::crash`].
//!
//! Two logs are kept. What is written goes to one at once, and to the other with the next
//! sync; a crash goes back to the latter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use quorate_core::{Boot, Entries, EntryId, Index, MemberId, Save, SnapshotMeta};
use quorate_storage::{StoreError, StoreIdentity};

use super::mailbox::lock;
use super::memory_log::Log;
use super::storage::{Opened, SnapshotSink, SnapshotSource, Storage, StorageError};

/// A member's log and snapshots in memory. Clones stand for the same place: a member that
/// was stopped and is started with a clone finds its data. One of them is open at a time.
///
/// ```
/// use quorate::MemoryStorage;
///
/// let place = MemoryStorage::new();
/// let first_start = place.clone();
/// // … Node::start(config, first_start, machine, transport), and later, to find it again:
/// let second_start = place.clone();
/// # drop((first_start, second_start));
/// ```
#[derive(Default)]
pub struct MemoryStorage {
    place: Arc<Mutex<Place>>,
    /// Which life of the place this handle opened.
    life: Option<u64>,
}

impl MemoryStorage {
    /// A new place, with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Loses what was written after the last sync, and whatever snapshot was not adopted,
    /// as a power cut does. The handle that is open, if one is, fails from now on; clones
    /// can be opened.
    pub fn crash(&self) {
        lock(&self.place).crash();
    }

    fn open_place<T>(
        &self,
        action: impl FnOnce(&mut Place) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let life = self.life.ok_or(Unusable::NotOpen)?;
        let mut place = lock(&self.place);
        place.check(life)?;
        action(&mut place)
    }

    fn leave(&mut self) {
        let mut place = lock(&self.place);
        if self.life.take() == Some(place.life) {
            place.is_open = false;
        }
    }
}

impl Clone for MemoryStorage {
    /// The same place, not open by this handle.
    fn clone(&self) -> Self {
        Self { place: Arc::clone(&self.place), life: None }
    }
}

impl Drop for MemoryStorage {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStorage").field("life", &self.life).finish_non_exhaustive()
    }
}

impl Storage for MemoryStorage {
    fn open(&mut self, mark: StoreIdentity, first: &Boot) -> Result<Opened, StorageError> {
        if self.life.is_some() {
            return Err(Unusable::InUse.into());
        }
        let mut place = lock(&self.place);
        let opened = place.open(mark, first)?;
        self.life = Some(place.life);
        Ok(opened)
    }

    fn write(&mut self, save: &Save) -> Result<(), StorageError> {
        self.open_place(|place| place.write(save))
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.open_place(|place| {
            place.sync();
            Ok(())
        })
    }

    fn load(&mut self, range: Range<Index>, bytes_max: u64) -> Result<Entries, StorageError> {
        self.open_place(|place| Ok(place.written.load(range, bytes_max)))
    }

    fn trim(&mut self, index: Index) -> Result<(), StorageError> {
        self.open_place(|place| place.trim(index))
    }

    fn begin_snapshot(
        &mut self,
        meta: SnapshotMeta,
    ) -> Result<Box<dyn SnapshotSink>, StorageError> {
        let life = self.life.ok_or(Unusable::NotOpen)?;
        lock(&self.place).check(life)?;
        let place = Arc::clone(&self.place);
        Ok(Box::new(Writing { place, life, meta, chunks: Vec::new() }))
    }

    fn adopt_snapshot(&mut self, id: EntryId) -> Result<(), StorageError> {
        self.open_place(|place| {
            let finished = place.finished.remove(&id).ok_or(StoreError::NoSuchSnapshot { id })?;
            place.snapshots.insert(id, finished);
            Ok(())
        })
    }

    fn open_snapshot(&mut self, id: EntryId) -> Result<Box<dyn SnapshotSource>, StorageError> {
        self.open_place(|place| {
            let snapshot = place.snapshots.get(&id).ok_or(StoreError::NoSuchSnapshot { id })?;
            Ok(Box::new(Reading { snapshot: Arc::clone(snapshot), next: 0 }) as _)
        })
    }

    fn release_snapshot(&mut self, id: EntryId) {
        let released = self.open_place(|place| {
            place.wanted.remove(&id);
            Ok(())
        });
        // A place that crashed wants nothing any more.
        drop(released);
    }

    fn close(&mut self) -> Result<(), StorageError> {
        self.sync()?;
        self.leave();
        Ok(())
    }
}

/// What clones share.
#[derive(Default)]
struct Place {
    mark: Option<StoreIdentity>,
    boots: u64,
    /// Counts opens and crashes; a handle of an older one is of no use.
    life: u64,
    is_open: bool,
    /// The log with everything that was written.
    written: Log,
    /// The log as the last sync left it.
    synced: Log,
    /// What leads from one to the other.
    unsynced: Vec<Save>,
    /// Snapshots that were finished and not adopted.
    finished: BTreeMap<EntryId, Arc<Snapshot>>,
    snapshots: BTreeMap<EntryId, Arc<Snapshot>>,
    /// Those that a machine is still to be made of.
    wanted: BTreeSet<EntryId>,
}

impl Place {
    fn open(&mut self, mark: StoreIdentity, first: &Boot) -> Result<Opened, Unusable> {
        if self.is_open {
            return Err(Unusable::InUse);
        }
        let identity = *self.mark.get_or_insert(mark);
        check_owner(identity, mark)?;
        if self.boots == 0 {
            self.begin(first);
        }
        self.boots += 1;
        self.life += 1;
        self.is_open = true;
        // From here on others rely on what is read.
        self.sync();
        self.wanted.clear();
        self.finished.clear();
        let newest = self.newest_snapshot();
        self.snapshots.retain(|id, _| *id == newest);
        let snapshot = self.snapshots.get(&newest).map(|snapshot| snapshot.meta.clone());
        let boot = self.written.boot(snapshot.unwrap_or_default());
        Ok(Opened { identity, boots: self.boots, boot })
    }

    fn begin(&mut self, first: &Boot) {
        let meta = first.snapshot.clone();
        self.written = Log::after(meta.id, first.hard_state);
        self.synced = self.written.clone();
        if meta.id != EntryId::ZERO {
            self.snapshots.insert(meta.id, Arc::new(Snapshot { meta, chunks: Vec::new() }));
        }
    }

    fn check(&self, life: u64) -> Result<(), Unusable> {
        if self.life == life { Ok(()) } else { Err(Unusable::Crashed) }
    }

    fn write(&mut self, save: &Save) -> Result<(), StorageError> {
        let install = save.install.as_ref().map(|meta| meta.id);
        if let Some(id) = install
            && !self.snapshots.contains_key(&id)
        {
            return Err(StoreError::NoSuchSnapshot { id }.into());
        }
        // What a snapshot holds is committed, and committed entries are never replaced.
        let first = save.entries.first().map_or(Index::MAX, |entry| entry.id.index);
        let replaces = install.is_none() && first <= self.newest_snapshot().index;
        let last = install.unwrap_or(self.written.last());
        if replaces || !self.written.is_continued_by(save) {
            return Err(StoreError::NotContiguous { last }.into());
        }
        self.written.apply(save);
        self.wanted.extend(install);
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
        // What the snapshot rests on may be written and not synced yet.
        self.sync();
        self.written.trim(index);
        self.synced.trim(index);
        self.drop_old_snapshots();
        Ok(())
    }

    /// The newest snapshot of an entry in the log, or just before it. Others are of peers,
    /// and not installed.
    fn newest_snapshot(&self) -> EntryId {
        let held = self.snapshots.keys().filter(|id| self.written.holds(**id));
        held.max_by_key(|id| id.index).copied().unwrap_or_default()
    }

    fn drop_old_snapshots(&mut self) {
        let newest = self.newest_snapshot();
        let wanted = &self.wanted;
        self.snapshots.retain(|id, _| id.index >= newest.index || wanted.contains(id));
    }

    fn crash(&mut self) {
        self.life += 1;
        self.is_open = false;
        self.unsynced.clear();
        self.written = self.synced.clone();
        self.finished.clear();
        self.wanted.clear();
    }
}

fn check_owner(found: StoreIdentity, wanted: StoreIdentity) -> Result<(), Unusable> {
    if found.cluster != wanted.cluster {
        return Err(Unusable::OtherCluster { found: found.cluster, wanted: wanted.cluster });
    }
    if found.member != wanted.member {
        return Err(Unusable::OtherMember { found: found.member, wanted: wanted.member });
    }
    Ok(())
}

struct Snapshot {
    meta: SnapshotMeta,
    chunks: Vec<Bytes>,
}

struct Writing {
    place: Arc<Mutex<Place>>,
    life: u64,
    meta: SnapshotMeta,
    chunks: Vec<Bytes>,
}

impl SnapshotSink for Writing {
    fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        if !bytes.is_empty() {
            self.chunks.push(Bytes::copy_from_slice(bytes));
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), StorageError> {
        let Self { place, life, meta, chunks } = *self;
        let mut place = lock(&place);
        place.check(life)?;
        place.finished.insert(meta.id, Arc::new(Snapshot { meta, chunks }));
        Ok(())
    }
}

struct Reading {
    snapshot: Arc<Snapshot>,
    next: usize,
}

impl SnapshotSource for Reading {
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

/// Why a handle can do nothing with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unusable {
    NotOpen,
    InUse,
    Crashed,
    OtherCluster { found: u64, wanted: u64 },
    OtherMember { found: MemberId, wanted: MemberId },
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOpen => write!(f, "the storage is not open"),
            Self::InUse => write!(f, "the storage is open already"),
            Self::Crashed => write!(f, "the storage has crashed since it was opened"),
            Self::OtherCluster { found, wanted } => {
                write!(f, "the storage is of cluster {found:x}, want {wanted:x}")
            }
            Self::OtherMember { found, wanted } => {
                write!(f, "the storage is of member {found}, want {wanted}")
            }
        }
    }
}

impl std::error::Error for Unusable {}
