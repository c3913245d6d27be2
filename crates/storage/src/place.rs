//! Notices that a data directory was copied or restored.
//!
//! The file `place` records when it was created itself. A copy is a new file with a later
//! creation time, so its contents tell that it is a copy. Moving the directory within a file
//! system, mounting it elsewhere and restarting the machine change nothing. Device and inode
//! numbers are not compared where a creation time is known: both may change at a mount.
//! `docs/formats.md` describes the bytes, and what this cannot notice.

use bytes::Bytes;

use crate::Disk;
use crate::codec::{Codec, Decoder};
use crate::error::{DiskFailure, DiskOperation, OpenError};
use crate::names::FileName;

/// What identifies a file as long as it is not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// The number of the file in its file system.
    pub inode: u64,
    /// When it was created, in nanoseconds since 1970; 0 where the file system does not say.
    pub created: u64,
}

impl FilePlace {
    fn is(self, recorded: Self) -> bool {
        if self.created != 0 && recorded.created != 0 {
            self.created == recorded.created
        } else {
            self.inode == recorded.inode
        }
    }
}

/// What to do with a directory that was copied or restored since a member ran on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovedDirectory {
    /// Do not open it: a member that continues from an older state has forgotten votes and
    /// entries that it promised to keep.
    Refuse,
    /// Open it, and take the copy for the original from now on. Only safe if the member was
    /// stopped before the copy was made, and no other copy of it runs.
    Accept,
    /// Open it, and leave it a copy: for tools that read it and start no member.
    Ignore,
}

const MAGIC: &[u8; 8] = b"qrt-plc\n";
const VERSION: u32 = 1;
const BYTES: usize = 8 + 4 + 8 + 8 + 4;
const FILE: FileName = FileName::Place;

/// Fails when the directory is not where it was when a member ran on it last.
pub(crate) fn check<D: Disk>(disk: &mut D, moved: MovedDirectory) -> Result<(), OpenError> {
    match (read(disk)?, place(disk)?) {
        (Some(recorded), Some(now)) if now.is(recorded) => Ok(()),
        (Some(_), Some(_)) if moved == MovedDirectory::Refuse => Err(OpenError::Moved),
        (Some(_), Some(_)) if moved == MovedDirectory::Ignore => Ok(()),
        // Not recorded: a store of an earlier version, or a crash during its first start.
        _ => Ok(record(disk)?),
    }
}

/// Records where the directory is. Nothing where the disk cannot tell.
pub(crate) fn record<D: Disk>(disk: &mut D) -> Result<(), DiskFailure> {
    let failed = |operation| DiskFailure::when(operation, FILE);
    let name = FILE.to_string();
    let exists = place(disk)?.is_some();
    if !exists && !tells_places(disk)? {
        return Ok(());
    }
    let file = if exists { disk.open(&name) } else { disk.create(&name, 0) };
    let file = file.map_err(failed(DiskOperation::Create))?;
    let Some(now) = place(disk)? else { return Ok(()) };
    disk.write_at(&file, 0, &encode(now)).map_err(failed(DiskOperation::Write))?;
    disk.sync(&file).map_err(failed(DiskOperation::Sync))?;
    disk.sync_dir().map_err(DiskFailure::when(DiskOperation::Sync, FileName::Directory))
}

fn place<D: Disk>(disk: &mut D) -> Result<Option<FilePlace>, DiskFailure> {
    disk.place(&FILE.to_string()).map_err(DiskFailure::when(DiskOperation::Read, FILE))
}

/// The lock exists: the caller holds it.
fn tells_places<D: Disk>(disk: &mut D) -> Result<bool, DiskFailure> {
    let lock = disk.place(&FileName::Lock.to_string());
    Ok(lock.map_err(DiskFailure::when(DiskOperation::Read, FileName::Lock))?.is_some())
}

/// What is recorded; none if nothing is, or the write did not complete.
fn read<D: Disk>(disk: &mut D) -> Result<Option<FilePlace>, DiskFailure> {
    if place(disk)?.is_none() {
        return Ok(None);
    }
    let failed = |operation| DiskFailure::when(operation, FILE);
    let file = disk.open(&FILE.to_string()).map_err(failed(DiskOperation::Open))?;
    if disk.len(&file).map_err(failed(DiskOperation::Read))? < BYTES as u64 {
        return Ok(None);
    }
    let mut bytes = [0; BYTES];
    disk.read_at(&file, 0, &mut bytes).map_err(failed(DiskOperation::Read))?;
    Ok(decode(&bytes))
}

fn encode(place: FilePlace) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    VERSION.encode(&mut bytes);
    place.inode.encode(&mut bytes);
    place.created.encode(&mut bytes);
    crc32c::crc32c(&bytes).encode(&mut bytes);
    bytes
}

fn decode(bytes: &[u8; BYTES]) -> Option<FilePlace> {
    let mut from = Decoder::new(Bytes::copy_from_slice(bytes.strip_prefix(MAGIC)?));
    let _version = u32::decode(&mut from).ok()?;
    let inode = u64::decode(&mut from).ok()?;
    let created = u64::decode(&mut from).ok()?;
    let place = FilePlace { inode, created };
    (encode(place) == bytes).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_another_creation_time_or_inode() {
        let place = |inode, created| FilePlace { inode, created };
        assert!(place(7, 100).is(place(7, 100)));
        // Another mount may number its files differently.
        assert!(place(8, 100).is(place(7, 100)));
        assert!(!place(7, 101).is(place(7, 100)));
        // A file system without creation times.
        assert!(place(7, 0).is(place(7, 100)) && place(7, 0).is(place(7, 0)));
        assert!(!place(8, 0).is(place(7, 0)));
    }

    #[test]
    fn damaged_records_are_not_believed() {
        let place = FilePlace { inode: 7, created: 100 };
        let bytes: [u8; BYTES] = encode(place).try_into().unwrap();
        assert_eq!(decode(&bytes), Some(place));
        for at in 0..BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None);
        }
    }
}
