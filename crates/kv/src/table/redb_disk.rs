//! One file of a [`Disk`] as what redb writes to.

use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quorate_storage::Disk;
use redb::StorageBackend;

/// redb asks from several threads through a shared reference; a [`Disk`] has one user
/// at a time. Hence the lock.
pub(super) struct RedbDisk<D: Disk> {
    disk: Mutex<D>,
    file: D::File,
}

impl<D: Disk> RedbDisk<D> {
    /// Opens the file, or makes it, so that it is there after a crash.
    pub(super) fn open(mut disk: D, name: &str) -> io::Result<Self> {
        let file = if disk.list()?.iter().any(|found| found == name) {
            disk.open(name)?
        } else {
            let file = disk.create(name, 0)?;
            disk.sync(&file)?;
            disk.sync_dir()?;
            file
        };
        Ok(Self { disk: Mutex::new(disk), file })
    }

    fn disk(&self) -> MutexGuard<'_, D> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
