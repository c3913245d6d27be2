//! An in-memory disk that simulates crashes, I/O errors and silent corruption.
//!
//! Writes go to 512-byte sectors of a page cache; a sync makes them durable. A crash
//! keeps any version that each unsynced sector has had since the last sync, and any
//! subset of the unsynced directory changes. The caller's random generator picks one
//! result, or [`CrashImages`] enumerates all of them. Every other failure is a [`Fault`].
//!
//! The model guarantees what journalling file systems guarantee: a sector is written
//! whole or not at all, a rename is atomic, and a name never points to a missing file.

mod crash;
mod fault;
mod inode;
mod shared;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

pub use crash::CrashImages;
pub use fault::Fault;
pub use shared::SharedDisk;

use crate::random::Random;
use fault::Faults;
use inode::Inode;
use quorate_storage::{Disk, FileName, FilePlace};

/// The unit that a disk writes atomically.
pub const SECTOR_BYTES: usize = 512;

/// A flat directory of files, all in memory. Clones are separate disks.
#[derive(Clone, Debug, Default)]
pub struct FaultyDisk {
    inodes: BTreeMap<u64, Inode>,
    inodes_created: u64,
    /// The directory as a process sees it.
    names: BTreeMap<String, u64>,
    /// The directory as of its last sync.
    durable_names: BTreeMap<String, u64>,
    /// Directory changes since the last sync, oldest first.
    pending: Vec<NameChange>,
    faults: Faults,
    /// The maximum total size of all files, in bytes.
    capacity: Option<u64>,
    /// How many more modifying operations succeed; after that all of them fail.
    operations_left: Option<u64>,
    /// Syncs report success and make nothing durable.
    lying: bool,
    /// Where the disk is, if it can tell. Files of another place are copies.
    volume: Option<u64>,
}

/// One change of the directory. Each is atomic.
#[derive(Clone, Debug)]
enum NameChange {
    Set(String, u64),
    Rename(String, String, u64),
    Remove(String, u64),
}

/// An open file.
#[derive(Clone, Debug)]
pub struct FaultyFile {
    inode: u64,
    /// Keeps the inode of a removed file while the file is open.
    _open: Arc<()>,
}

impl FaultyDisk {
    pub fn new() -> Self {
        Self::default()
    }

    /// Injects a fault into one operation of the matching kind, after `skip` that succeed.
    pub fn inject(&mut self, fault: Fault, skip: u32) {
        self.faults.inject(fault, skip);
    }

    /// From now on operations fail at random, at these rates per million.
    pub fn set_rates(&mut self, rates: &[(Fault, u32)], random: Random) {
        self.faults.set_rates(rates, random);
    }

    /// From now on the disk tells files from copies of them.
    pub fn tell_places(&mut self) {
        self.volume = Some(1);
    }

    /// All files become copies of what they were, in another place.
    pub fn move_elsewhere(&mut self) {
        self.volume = self.volume.map(|volume| volume + 1);
    }

    /// From now on syncs report success and make nothing durable.
    pub fn lie_about_syncs(&mut self) {
        self.lying = true;
    }

    /// Whether syncs make nothing durable.
    pub fn is_lying(&self) -> bool {
        self.lying
    }

    /// Removes all faults and the capacity limit. What a lying sync left is made durable.
    pub fn heal(&mut self) {
        if std::mem::take(&mut self.lying) {
            self.flush();
        }
        self.faults.heal();
        self.capacity = None;
    }

    /// Whether a fault occurred since the disk was created or healed.
    pub fn has_struck(&self) -> bool {
        self.faults.has_struck()
    }

    /// The number of faults so far, by kind.
    pub fn fault_counts(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        self.faults.counts()
    }

    /// Limits the total size of all files.
    pub fn set_capacity(&mut self, bytes: Option<u64>) {
        self.capacity = bytes;
    }

    /// Simulates that the process stops after this many more modifying operations: from
    /// then on each of them fails without effect.
    pub fn stop_after(&mut self, operations: Option<u64>) {
        self.operations_left = operations;
    }

    /// Whether the limit of [`FaultyDisk::stop_after`] was reached.
    pub fn has_stopped(&self) -> bool {
        self.operations_left == Some(0)
    }

    fn count_operation(&mut self) -> io::Result<()> {
        match &mut self.operations_left {
            None => Ok(()),
            Some(0) => Err(error(IO_ERROR)),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    /// Loses all data: an empty disk replaces this one.
    pub fn lose(&mut self) {
        self.faults.count(Fault::DiskLost);
        let faults = std::mem::take(&mut self.faults);
        *self = Self { faults, ..Self::default() };
    }

    /// Flips a random bit of a random file. Returns the file and the byte offset.
    pub fn flip_bit(&mut self, random: &mut Random) -> Option<(String, u64)> {
        let total: u64 = self.files().map(|(_, bytes)| bytes.len() as u64).sum();
        if total == 0 {
            return None;
        }
        let mut offset = random.next_u64() % total;
        let name = self.files().find_map(|(name, bytes)| {
            let here = offset < bytes.len() as u64;
            offset -= if here { 0 } else { bytes.len() as u64 };
            here.then(|| name.to_string())
        })?;
        let bit = 1u8 << random.below(8);
        self.damage(&name, |bytes| bytes[offset as usize] ^= bit);
        self.faults.count(Fault::BitFlip);
        Some((name, offset))
    }

    /// Makes everything written so far durable, as the operating system does in time.
    pub fn flush(&mut self) {
        self.inodes.values_mut().for_each(Inode::sync);
        self.durable_names.clone_from(&self.names);
        self.pending.clear();
    }

    /// All files as a process sees them, by name.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let files = self.names.iter();
        files.filter_map(|(name, inode)| Some((name.as_str(), self.inodes.get(inode)?.bytes())))
    }

    /// Changes a file durably without a disk operation.
    pub fn damage(&mut self, name: &str, damage: impl FnOnce(&mut Vec<u8>)) {
        let inode = self.names.get(name).and_then(|inode| self.inodes.get_mut(inode));
        if let Some(inode) = inode {
            inode.damage(damage);
        }
    }

    /// Removes a file, or replaces its content, without a disk operation.
    pub fn replace(&mut self, name: &str, bytes: Option<Vec<u8>>) {
        self.names.remove(name);
        if let Some(bytes) = bytes {
            let inode = self.add_inode(Inode::durable(bytes));
            self.names.insert(name.to_string(), inode);
        }
        self.durable_names.clone_from(&self.names);
        self.pending.clear();
    }

    fn add_inode(&mut self, inode: Inode) -> u64 {
        self.inodes_created += 1;
        self.inodes.insert(self.inodes_created, inode);
        self.inodes_created
    }

    fn inode(&mut self, file: &FaultyFile) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&file.inode).ok_or_else(|| error(NO_FILE))
    }

    fn check_space(&self, more: u64) -> io::Result<()> {
        let Some(capacity) = self.capacity else { return Ok(()) };
        let used: u64 = self.inodes.values().map(|inode| inode.bytes().len() as u64).sum();
        if used + more > capacity { Err(error(NO_SPACE)) } else { Ok(()) }
    }

    /// Removes files that have no name, neither now nor after a crash, and are not open.
    fn remove_unlinked(&mut self) {
        let names = &self.names;
        let linked = |inode: &u64| names.values().any(|named| named == inode);
        self.inodes.retain(|id, inode| inode.is_open() || linked(id));
    }
}

impl Disk for FaultyDisk {
    type File = FaultyFile;

    /// Always succeeds: each process has its own copy of the disk.
    fn lock(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn list(&mut self) -> io::Result<Vec<String>> {
        Ok(self.names.keys().cloned().collect())
    }

    fn create(&mut self, name: &str, bytes: u64) -> io::Result<FaultyFile> {
        self.count_operation()?;
        if self.faults.strikes(Fault::NoSpace) {
            return Err(error(NO_SPACE));
        }
        self.check_space(bytes)?;
        let inode = self.add_inode(Inode::new(bytes));
        self.names.insert(name.to_string(), inode);
        self.pending.push(NameChange::Set(name.to_string(), inode));
        self.open(name)
    }

    fn open(&mut self, name: &str) -> io::Result<FaultyFile> {
        let id = *self.names.get(name).ok_or_else(|| error(NO_FILE))?;
        let inode = self.inodes.get(&id).ok_or_else(|| error(NO_FILE))?;
        Ok(FaultyFile { inode: id, _open: inode.opened() })
    }

    fn len(&mut self, file: &FaultyFile) -> io::Result<u64> {
        Ok(self.inode(file)?.bytes().len() as u64)
    }

    fn set_len(&mut self, file: &FaultyFile, bytes: u64) -> io::Result<()> {
        self.count_operation()?;
        self.inode(file)?.set_len(bytes);
        Ok(())
    }

    fn read_at(&mut self, file: &FaultyFile, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if self.faults.strikes(Fault::ReadError) {
            return Err(error(IO_ERROR));
        }
        let stale = self.faults.strikes(Fault::StaleRead);
        let flipped = self.faults.strikes(Fault::FlippedRead);
        let inode = self.inode(file)?;
        inode.read(offset, into)?;
        if stale {
            inode.read_stale(offset, into);
        }
        if flipped && let Some(byte) = into.last_mut() {
            *byte ^= 0x10;
        }
        Ok(())
    }

    fn write_at(&mut self, file: &FaultyFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.count_operation()?;
        if self.faults.strikes(Fault::WriteError) {
            return Err(error(IO_ERROR));
        }
        if self.faults.strikes(Fault::NoSpace) {
            return Err(error(NO_SPACE));
        }
        let short = self.faults.strikes(Fault::ShortWrite);
        let end = offset + bytes.len() as u64;
        let grows = end.saturating_sub(self.inode(file)?.bytes().len() as u64);
        if grows > 0 {
            self.check_space(grows)?;
        }
        let written = if short { &bytes[..bytes.len() / 2] } else { bytes };
        self.inode(file)?.write(offset, written);
        if short { Err(error(IO_ERROR)) } else { Ok(()) }
    }

    fn sync(&mut self, file: &FaultyFile) -> io::Result<()> {
        self.count_operation()?;
        // A sync that does nothing cannot fail either.
        if self.lying {
            return Ok(());
        }
        if self.faults.strikes(Fault::SyncError) {
            self.inode(file)?.drop_dirty();
            return Err(error(IO_ERROR));
        }
        if self.faults.strikes(Fault::SyncErrorUnseen) {
            self.inode(file)?.forget_dirty();
            return Err(error(IO_ERROR));
        }
        self.inode(file)?.sync();
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.count_operation()?;
        let inode = self.names.remove(from).ok_or_else(|| error(NO_FILE))?;
        self.names.insert(to.to_string(), inode);
        self.pending.push(NameChange::Rename(from.to_string(), to.to_string(), inode));
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.count_operation()?;
        let inode = self.names.remove(name).ok_or_else(|| error(NO_FILE))?;
        self.pending.push(NameChange::Remove(name.to_string(), inode));
        Ok(())
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        self.count_operation()?;
        if self.lying {
            return Ok(());
        }
        if self.faults.strikes(Fault::SyncDirError) {
            return Err(error(IO_ERROR));
        }
        self.durable_names.clone_from(&self.names);
        self.pending.clear();
        self.remove_unlinked();
        Ok(())
    }

    fn place(&mut self, name: &str) -> io::Result<Option<FilePlace>> {
        let Some(volume) = self.volume else { return Ok(None) };
        // The lock of a directory exists while a process uses it.
        let is_lock = name == FileName::Lock.to_string();
        let inode = self.names.get(name).copied().or(is_lock.then_some(0));
        Ok(inode.map(|inode| FilePlace { inode, created: volume << 32 | (inode + 1) }))
    }
}

/// Error codes of the operating system.
const NO_FILE: i32 = 2;
const IO_ERROR: i32 = 5;
const NO_SPACE: i32 = 28;

fn error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

#[cfg(test)]
mod tests;
