//! A disk that outlives the process that writes to it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate_storage::{Disk, FilePlace};

use super::FaultyDisk;

/// A handle: the world holds one, the store of the running process another.
#[derive(Clone, Debug, Default)]
pub struct SharedDisk {
    disk: Arc<Mutex<FaultyDisk>>,
}

impl SharedDisk {
    pub fn new(disk: FaultyDisk) -> Self {
        Self { disk: Arc::new(Mutex::new(disk)) }
    }

    pub fn inner(&self) -> MutexGuard<'_, FaultyDisk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another disk with the same contents.
    pub fn copy(&self) -> Self {
        Self::new(self.inner().clone())
    }
}

impl Disk for SharedDisk {
    type File = <FaultyDisk as Disk>::File;

    fn lock(&mut self) -> io::Result<()> {
        self.inner().lock()
    }

    fn list(&mut self) -> io::Result<Vec<String>> {
        self.inner().list()
    }

    fn create(&mut self, name: &str, bytes: u64) -> io::Result<Self::File> {
        self.inner().create(name, bytes)
    }

    fn open(&mut self, name: &str) -> io::Result<Self::File> {
        self.inner().open(name)
    }

    fn len(&mut self, file: &Self::File) -> io::Result<u64> {
        self.inner().len(file)
    }

    fn set_len(&mut self, file: &Self::File, bytes: u64) -> io::Result<()> {
        self.inner().set_len(file, bytes)
    }

    fn read_at(&mut self, file: &Self::File, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner().read_at(file, offset, into)
    }

    fn write_at(&mut self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner().write_at(file, offset, bytes)
    }

    fn sync(&mut self, file: &Self::File) -> io::Result<()> {
        self.inner().sync(file)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.inner().rename(from, to)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.inner().remove(name)
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        self.inner().sync_dir()
    }

    fn place(&mut self, name: &str) -> io::Result<Option<FilePlace>> {
        self.inner().place(name)
    }
}
