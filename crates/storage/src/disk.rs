//! The one place where bytes meet a disk.
//!
//! A [`Disk`] is a flat directory of named files. [`FileDisk`](crate::FileDisk) is a
//! real one; the simulator has one that forgets, tears and lies. Nothing is durable
//! before it is synced: what was written to a file, by [`Disk::sync`]; that a name
//! exists, is gone or stands for another file, by [`Disk::sync_dir`].

use std::fmt;
use std::io;

/// A directory of files. One writer at a time holds its lock.
pub trait Disk {
    /// An open file. It stays readable when its name is gone.
    type File: Clone + fmt::Debug;

    /// Takes the directory for this process, or fails with
    /// [`io::ErrorKind::WouldBlock`]. Held as long as the disk lives; asking again is
    /// no error.
    fn lock(&mut self) -> io::Result<()>;

    /// The names of all files, in any order.
    fn list(&mut self) -> io::Result<Vec<String>>;

    /// A new file of this many zeros, its space reserved. Replaces one of that name.
    fn create(&mut self, name: &str, bytes: u64) -> io::Result<Self::File>;

    fn open(&mut self, name: &str) -> io::Result<Self::File>;

    fn len(&mut self, file: &Self::File) -> io::Result<u64>;

    /// Cuts a file, or lengthens it with zeros.
    fn set_len(&mut self, file: &Self::File, bytes: u64) -> io::Result<()>;

    /// Fills all of `into`, or fails.
    fn read_at(&mut self, file: &Self::File, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes`, or fails; a file grows as needed. After a failure any
    /// part of them may have been written.
    fn write_at(&mut self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written to this file durable. After a failure nothing is known
    /// about any of it, and asking again proves nothing.
    fn sync(&mut self, file: &Self::File) -> io::Result<()>;

    /// Replaces `to`, if it is there.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;

    fn remove(&mut self, name: &str) -> io::Result<()>;

    /// Makes names durable.
    fn sync_dir(&mut self) -> io::Result<()>;
}

/// A disk that is lent: whoever lends it has it back when a store could not be opened.
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
}
