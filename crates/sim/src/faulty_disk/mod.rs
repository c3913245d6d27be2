//! A disk in memory that does what real ones do on their worst days.
//!
//! Writes land in 512-byte sectors of a page cache; a sync makes them durable. A crash
//! keeps any of the versions that each unsynced sector has had, and any of the
//! directory's changes since it was synced; the caller's chance decides, or
//! [`CrashImages`] goes through all of it. What goes wrong otherwise is a [`Fault`].
//!
//! The model grants what journalling file systems do: a sector is written whole or not
//! at all, a rename happens or does not, and a name never leads to nowhere.

mod crash;
mod fault;
mod inode;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

pub use crash::CrashImages;
pub use fault::Fault;

use crate::random::Random;
use fault::Faults;
use inode::Inode;
use quorate_storage::Disk;

/// The smallest part that a disk writes at once.
pub const SECTOR_BYTES: usize = 512;

/// A flat directory of files, all in memory. Clones are separate disks.
#[derive(Clone, Debug, Default)]
pub struct FaultyDisk {
    inodes: BTreeMap<u64, Inode>,
    inodes_made: u64,
    /// The directory as a process sees it.
    names: BTreeMap<String, u64>,
    /// The directory as of its last sync.
    names_durable: BTreeMap<String, u64>,
    /// What was done to the directory since.
    pending: Vec<NameChange>,
    faults: Faults,
    /// All files together may not take more.
    capacity: Option<u64>,
    /// After so many more operations that change something, none is done any more.
    operations_left: Option<u64>,
}

/// One change of the directory. Each is done whole or not at all.
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
    /// As long as somebody has it open, a file without a name stays.
    _open: Arc<()>,
}

impl FaultyDisk {
    pub fn new() -> Self {
        Self::default()
    }

    /// The next operation of its kind goes wrong in this way, after `skip` that do not.
    pub fn inject(&mut self, fault: Fault, skip: u32) {
        self.faults.inject(fault, skip);
    }

    /// From now on every operation goes wrong so many times in a million, by chance.
    pub fn set_rates(&mut self, rates: &[(Fault, u32)], random: Random) {
        self.faults.set_rates(rates, random);
    }

    /// Nothing goes wrong any more.
    pub fn heal(&mut self) {
        self.faults.heal();
        self.capacity = None;
    }

    /// Some operation went wrong since the disk was made or healed.
    pub fn has_struck(&self) -> bool {
        self.faults.has_struck()
    }

    /// How often something went wrong, by kind.
    pub fn fault_counts(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        self.faults.counts()
    }

    /// All files together may not take more bytes than this.
    pub fn set_capacity(&mut self, bytes: Option<u64>) {
        self.capacity = bytes;
    }

    /// The process ends after so many more operations that change something: from then
    /// on every one fails, and does nothing.
    pub fn stop_after(&mut self, operations: Option<u64>) {
        self.operations_left = operations;
    }

    /// The process ended before it had done everything.
    pub fn has_stopped(&self) -> bool {
        self.operations_left == Some(0)
    }

    fn operate(&mut self) -> io::Result<()> {
        match &mut self.operations_left {
            None => Ok(()),
            Some(0) => Err(error(IO_ERROR)),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    /// The whole disk is gone; an empty one is in its place.
    pub fn lose(&mut self) {
        self.faults.count(Fault::DiskLost);
        let faults = std::mem::take(&mut self.faults);
        *self = Self { faults, ..Self::default() };
    }

    /// One bit of some file is no longer what it was. Tells where.
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

    /// Everything that was written is durable, as after a while without trouble.
    pub fn flush(&mut self) {
        self.inodes.values_mut().for_each(Inode::sync);
        self.names_durable.clone_from(&self.names);
        self.pending.clear();
    }

    /// All files as a process sees them, by name.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let files = self.names.iter();
        files.filter_map(|(name, inode)| Some((name.as_str(), self.inodes.get(inode)?.bytes())))
    }

    /// Alters a file behind everybody's back, durably.
    pub fn damage(&mut self, name: &str, damage: impl FnOnce(&mut Vec<u8>)) {
        let inode = self.names.get(name).and_then(|inode| self.inodes.get_mut(inode));
        if let Some(inode) = inode {
            inode.damage(damage);
        }
    }

    /// Takes a name away, or gives it to other bytes, behind everybody's back.
    pub fn replace(&mut self, name: &str, bytes: Option<Vec<u8>>) {
        self.names.remove(name);
        if let Some(bytes) = bytes {
            let inode = self.add_inode(Inode::durable(bytes));
            self.names.insert(name.to_string(), inode);
        }
        self.names_durable.clone_from(&self.names);
        self.pending.clear();
    }

    fn add_inode(&mut self, inode: Inode) -> u64 {
        self.inodes_made += 1;
        self.inodes.insert(self.inodes_made, inode);
        self.inodes_made
    }

    fn inode(&mut self, file: &FaultyFile) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&file.inode).ok_or_else(|| error(NO_FILE))
    }

    fn check_space(&self, more: u64) -> io::Result<()> {
        let Some(capacity) = self.capacity else { return Ok(()) };
        let used: u64 = self.inodes.values().map(|inode| inode.bytes().len() as u64).sum();
        if used + more > capacity { Err(error(NO_SPACE)) } else { Ok(()) }
    }

    /// Files that no name leads to, now or after a crash, and nobody reads.
    fn forget_unlinked(&mut self) {
        let names = &self.names;
        let linked = |inode: &u64| names.values().any(|named| named == inode);
        self.inodes.retain(|id, inode| inode.is_open() || linked(id));
    }
}

impl Disk for FaultyDisk {
    type File = FaultyFile;

    /// Two processes on one disk are two disks here: nobody is ever locked out.
    fn lock(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn list(&mut self) -> io::Result<Vec<String>> {
        Ok(self.names.keys().cloned().collect())
    }

    fn create(&mut self, name: &str, bytes: u64) -> io::Result<FaultyFile> {
        self.operate()?;
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
        self.operate()?;
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
        self.operate()?;
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
        self.operate()?;
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
        self.operate()?;
        let inode = self.names.remove(from).ok_or_else(|| error(NO_FILE))?;
        self.names.insert(to.to_string(), inode);
        self.pending.push(NameChange::Rename(from.to_string(), to.to_string(), inode));
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.operate()?;
        let inode = self.names.remove(name).ok_or_else(|| error(NO_FILE))?;
        self.pending.push(NameChange::Remove(name.to_string(), inode));
        Ok(())
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        self.operate()?;
        if self.faults.strikes(Fault::SyncDirError) {
            return Err(error(IO_ERROR));
        }
        self.names_durable.clone_from(&self.names);
        self.pending.clear();
        self.forget_unlinked();
        Ok(())
    }
}

/// The operating system's numbers.
const NO_FILE: i32 = 2;
const IO_ERROR: i32 = 5;
const NO_SPACE: i32 = 28;

fn error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

#[cfg(test)]
mod tests;
