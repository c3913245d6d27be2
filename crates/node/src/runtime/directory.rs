//! The storage that comes with Quorate: [`quorate_storage::Store`] in a directory.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use bytes::Bytes;
use quorate_core::{Boot, Entries, EntryId, Index, Save, SnapshotMeta};
use quorate_storage::{
    Disk, FileDisk, SnapshotReader, SnapshotWriter, Store, StoreConfig, StoreIdentity,
};

use super::storage::{
    SnapshotSink, SnapshotSource, SnapshotSync, Storage, StorageError, StoredState,
};

/// A member's log and snapshots in files: see docs/formats.md for every byte.
///
/// Clones of the disk are handles on the same files, so that snapshots are written and
/// read while the log is synced.
#[derive(Debug)]
pub struct DirectoryStorage<D: Disk = FileDisk> {
    state: DirectoryState<D>,
    config: StoreConfig,
}

#[derive(Debug)]
enum DirectoryState<D: Disk> {
    Closed(Option<D>),
    Open(Box<Store<D>>),
}

impl DirectoryStorage {
    /// In this directory, which is created if it is missing, with mode 0700, and locked while
    /// a member runs on it.
    pub fn new(path: impl Into<PathBuf>) -> io::Result<Self> {
        Ok(Self::with_disk(FileDisk::open(path)?, StoreConfig::default()))
    }
}

impl<D: Disk> DirectoryStorage<D> {
    /// On any [`Disk`].
    pub fn with_disk(disk: D, config: StoreConfig) -> Self {
        Self { state: DirectoryState::Closed(Some(disk)), config }
    }

    fn store(&mut self) -> Result<&mut Store<D>, StorageError> {
        match &mut self.state {
            DirectoryState::Open(store) => Ok(store),
            DirectoryState::Closed(_) => Err(StorageNotOpen.into()),
        }
    }
}

impl<D> Storage for DirectoryStorage<D>
where
    D: Disk + Clone + Send + 'static,
    D::File: Send,
{
    fn open(&mut self, mark: StoreIdentity, first: &Boot) -> Result<StoredState, StorageError> {
        let DirectoryState::Closed(disk) = &mut self.state else {
            return Err(StorageNotOpen.into());
        };
        let disk = disk.take().ok_or(StorageNotOpen)?;
        let opened = Store::open_or_create(disk, mark, first, &self.config)?;
        let quorate_storage::OpenedStore { store, boot, identity, boots } = opened;
        self.state = DirectoryState::Open(Box::new(store));
        Ok(StoredState { identity, boots, boot })
    }

    fn write(&mut self, save: &Save) -> Result<(), StorageError> {
        Ok(self.store()?.write(save)?)
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        Ok(self.store()?.sync()?)
    }

    fn load(&mut self, range: Range<Index>, bytes_max: u64) -> Result<Entries, StorageError> {
        Ok(self.store()?.load(range, bytes_max)?)
    }

    fn trim(&mut self, index: Index) -> Result<(), StorageError> {
        Ok(self.store()?.trim(index)?)
    }

    fn begin_snapshot(
        &mut self,
        meta: SnapshotMeta,
    ) -> Result<Box<dyn SnapshotSink>, StorageError> {
        let store = self.store()?;
        let writer = Some(store.begin_snapshot(meta)?);
        Ok(Box::new(DirectorySnapshotSink { disk: store.disk().clone(), writer }))
    }

    fn adopt_snapshot(&mut self, id: EntryId) -> Result<(), StorageError> {
        Ok(self.store()?.adopt_snapshot(id)?)
    }

    fn open_snapshot(&mut self, id: EntryId) -> Result<Box<dyn SnapshotSource>, StorageError> {
        let store = self.store()?;
        let reader = store.open_snapshot(id)?;
        Ok(Box::new(DirectorySnapshotSource { disk: store.disk().clone(), reader }))
    }

    fn release_snapshot(&mut self, id: EntryId) {
        if let DirectoryState::Open(store) = &mut self.state {
            store.release_snapshot(id);
        }
    }

    fn close(&mut self) -> Result<(), StorageError> {
        let state = std::mem::replace(&mut self.state, DirectoryState::Closed(None));
        if let DirectoryState::Open(store) = state {
            store.close()?;
        }
        Ok(())
    }
}

struct DirectorySnapshotSink<D: Disk> {
    disk: D,
    writer: Option<SnapshotWriter<D::File>>,
}

impl<D> SnapshotSink for DirectorySnapshotSink<D>
where
    D: Disk + Clone + Send + 'static,
    D::File: Send,
{
    fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        let writer = self.writer.as_mut().ok_or(StorageNotOpen)?;
        Ok(writer.append(&mut self.disk, bytes)?)
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        let writer = self.writer.as_ref().ok_or(StorageNotOpen)?;
        Ok(writer.sync(&mut self.disk)?)
    }

    fn sync_beside(&self) -> Option<SnapshotSync> {
        let syncer = self.writer.as_ref()?.syncer();
        let mut disk = self.disk.clone();
        Some(Box::new(move || Ok(syncer.sync(&mut disk)?)))
    }

    fn finish(mut self: Box<Self>) -> Result<(), StorageError> {
        let writer = self.writer.take().ok_or(StorageNotOpen)?;
        writer.seal(&mut self.disk)?.publish(&mut self.disk)?;
        Ok(())
    }
}

impl<D: Disk> Drop for DirectorySnapshotSink<D> {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            // What cannot be removed now is removed at the next start.
            let _ = writer.discard(&mut self.disk);
        }
    }
}

struct DirectorySnapshotSource<D: Disk> {
    disk: D,
    reader: SnapshotReader<D::File>,
}

impl<D> SnapshotSource for DirectorySnapshotSource<D>
where
    D: Disk + Send,
    D::File: Send,
{
    fn meta(&self) -> &SnapshotMeta {
        self.reader.meta()
    }

    fn bytes(&self) -> u64 {
        self.reader.bytes()
    }

    fn next_chunk(&mut self) -> Result<Option<Bytes>, StorageError> {
        Ok(self.reader.next_chunk(&mut self.disk)?)
    }
}

/// Used before it was opened, opened twice, or used after it was closed.
#[derive(Clone, Copy, Debug)]
struct StorageNotOpen;

impl std::fmt::Display for StorageNotOpen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the storage is not open")
    }
}

impl std::error::Error for StorageNotOpen {}
