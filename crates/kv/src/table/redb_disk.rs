//! A storage backend for redb: one file of a [`Disk`].

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use quorate_storage::Disk;
use redb::StorageBackend;

use crate::machine::ProgressFn;

/// redb calls it from several threads through a shared reference, but a [`Disk`] allows one
/// user at a time. Hence the lock.
pub(super) struct RedbDisk<D: Disk> {
    disk: Arc<Mutex<D>>,
    file: D::File,
    progress: CommitProgress,
}

/// Where the progress of commits is reported, if anywhere. Clones share it.
#[derive(Clone, Default)]
pub(super) struct CommitProgress(Arc<OnceLock<ProgressFn>>);

impl CommitProgress {
    pub(super) fn advance(&self) {
        if let Some(progress) = self.0.get() {
            progress();
        }
    }

    /// The first function stays.
    pub(super) fn report_to(&self, progress: ProgressFn) {
        let _ = self.0.set(progress);
    }
}

impl<D: Disk> Clone for RedbDisk<D> {
    fn clone(&self) -> Self {
        let (disk, progress) = (Arc::clone(&self.disk), self.progress.clone());
        Self { disk, file: self.file.clone(), progress }
    }
}

impl<D: Disk> RedbDisk<D> {
    /// Opens the file with this name, or creates one under a temporary name until
    /// [`Self::publish`]: redb cannot open a file whose creation was interrupted by a crash.
    /// Also returns whether the file is new.
    pub(super) fn open(mut disk: D, name: &str) -> io::Result<(Self, bool)> {
        let is_new = !disk.list()?.iter().any(|existing| existing == name);
        let file = if is_new { disk.create(&temporary_name(name), 0)? } else { disk.open(name)? };
        let progress = CommitProgress::default();
        Ok((Self { disk: Arc::new(Mutex::new(disk)), file, progress }, is_new))
    }

    pub(super) fn progress(&self) -> CommitProgress {
        self.progress.clone()
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
        self.disk().write_at(&self.file, offset, data)?;
        self.progress.advance();
        Ok(())
    }
}
