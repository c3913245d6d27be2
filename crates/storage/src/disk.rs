//! The interface between the store and a disk.
//!
//! A [`Disk`] is a flat directory of named files. [`FileDisk`](crate::FileDisk) is a real
//! directory; the simulator has one that loses, tears and corrupts writes. Nothing is durable
//! before it is synced: the contents of a file by [`Disk::sync`]; created, renamed and removed
//! names by [`Disk::sync_dir`].

use std::fmt;
use std::io;

use crate::place::FilePlace;

/// A flat directory of named files. One process at a time holds its lock.
pub trait Disk {
    /// An open file. It stays readable after its name was removed.
    type File: Clone + fmt::Debug;

    /// Locks the directory for this process, or fails with
    /// [`io::ErrorKind::WouldBlock`]. The lock is held until the disk is dropped. Locking it
    /// again succeeds.
    fn lock(&mut self) -> io::Result<()>;

    /// The names of all files, in any order.
    fn list(&mut self) -> io::Result<Vec<String>>;

    /// Creates a file of this many zero bytes and reserves the space. Replaces an existing
    /// file with this name.
    fn create(&mut self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Opens an existing file for reading and writing.
    fn open(&mut self, name: &str) -> io::Result<Self::File>;

    /// The length of a file in bytes.
    fn len(&mut self, file: &Self::File) -> io::Result<u64>;

    /// Truncates a file, or extends it with zero bytes.
    fn set_len(&mut self, file: &Self::File, bytes: u64) -> io::Result<()>;

    /// Reads exactly `into.len()` bytes, or fails.
    fn read_at(&mut self, file: &Self::File, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes`, or fails. The file grows as needed. After a failure any part of
    /// them may have been written.
    fn write_at(&mut self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes the contents of this file durable. After a failure it is unknown which of the
    /// writes since the last sync are durable, and a later success proves nothing.
    fn sync(&mut self, file: &Self::File) -> io::Result<()>;

    /// Renames a file. Replaces `to`, if it exists.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a name.
    fn remove(&mut self, name: &str) -> io::Result<()>;

    /// Makes created, renamed and removed names durable.
    fn sync_dir(&mut self) -> io::Result<()>;

    /// What tells this file from a copy of it; none if there is no such file, or if the disk
    /// cannot tell. Then copies of a directory are not noticed.
    fn place(&mut self, _name: &str) -> io::Result<Option<FilePlace>> {
        Ok(None)
    }
}

/// A borrowed disk: the caller keeps it if the store cannot be opened.
impl<D: Disk> Disk for &mut D {
    type File = D::File;

    fn lock(&mut self) -> io::Result<()> {
        (**self).lock()
    }

    fn list(&mut self) -> io::Result<Vec<String>> {
        (**self).list()
    }

    fn create(&mut self, name: &str, bytes: u64) -> io::Result<D::File> {
        (**self).create(name, bytes)
    }

    fn open(&mut self, name: &str) -> io::Result<D::File> {
        (**self).open(name)
    }

    fn len(&mut self, file: &D::File) -> io::Result<u64> {
        (**self).len(file)
    }

    fn set_len(&mut self, file: &D::File, bytes: u64) -> io::Result<()> {
        (**self).set_len(file, bytes)
    }

    fn read_at(&mut self, file: &D::File, offset: u64, into: &mut [u8]) -> io::Result<()> {
        (**self).read_at(file, offset, into)
    }

    fn write_at(&mut self, file: &D::File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write_at(file, offset, bytes)
    }

    fn sync(&mut self, file: &D::File) -> io::Result<()> {
        (**self).sync(file)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        (**self).rename(from, to)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        (**self).remove(name)
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        (**self).sync_dir()
    }

    fn place(&mut self, name: &str) -> io::Result<Option<FilePlace>> {
        (**self).place(name)
    }
}
