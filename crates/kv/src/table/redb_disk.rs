//! A storage backend for redb: one file of a [`Disk`].

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate_storage::Disk;
use redb::StorageBackend;

/// redb calls it from several threads through a shared reference, but a [`Disk`] allows one
/// user at a time. Hence the lock.
pub(super) struct RedbDisk<D: Disk> {
    disk: Arc<Mutex<D>>,
    file: D::File,
}

impl<D: Disk> Clone for RedbDisk<D> {
    fn clone(&self) -> Self {
        Self { disk: Arc::clone(&self.disk), file: self.file.clone() }
    }
}

impl<D: Disk> RedbDisk<D> {
    /// Opens the file with this name, or creates one under a temporary name until
    /// [`Self::publish`]: redb cannot open a file whose creation was interrupted by a crash.
    /// Also returns whether the file is new.
    pub(super) fn open(mut disk: D, name: &str) -> io::Result<(Self, bool)> {
        let is_new = !disk.list()?.iter().any(|existing| existing == name);
        let file = if is_new { disk.create(&temporary_name(name), 0)? } else { disk.open(name)? };
        Ok((Self { disk: Arc::new(Mutex::new(disk)), file }, is_new))
    }

    /// Durably renames a new file to its final name.
    pub(super) fn publish(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk();
        disk.rename(&temporary_name(name), name)?;
        disk.sync_dir()
    }

    fn disk(&self) -> MutexGuard<'_, D> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn temporary_name(name: &str) -> String {
    format!("{name}-new")
}

impl<D: Disk> fmt::Debug for RedbDisk<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbDisk").field("file", &self.file).finish_non_exhaustive()
    }
}

impl<D> StorageBackend for RedbDisk<D>
where
    D: Disk + Send + 'static,
    D::File: Send + Sync + 'static,
{
    fn len(&self) -> io::Result<u64> {
        self.disk().len(&self.file)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk().read_at(&self.file, offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk().set_len(&self.file, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk().sync(&self.file)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk().write_at(&self.file, offset, data)
    }
}
