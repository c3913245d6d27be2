//! How far the log is durable, noted in a second place.
//!
//! Each record tells how far the log was durable when it was written; only of the last
//! ones nobody tells. Without this note, damage in them could not be told from a write
//! that a crash has torn. The note is written after every sync but not synced itself:
//! losing it makes damage harder to see, it never makes a claim that is not true.

use crc32c::crc32c_append;

use crate::codec::{Codec, Decoder};
use crate::error::{DiskFailure, DiskOperation};
use crate::names::FileName;
use crate::{Disk, StoreIdentity};

/// Two places, far enough apart that no disk writes both at once.
const SLOTS: u64 = 2;
const SLOT_STRIDE: u64 = 4096;
const SLOT_BYTES: usize = 28;

/// Every record of this segment that ends here or before is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Mark {
    pub(crate) segment: u64,
    pub(crate) end: u64,
    /// The sequence number of the last of them.
    pub(crate) sequence: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct MarkFile<F> {
    file: F,
    seed: u32,
    slot: u64,
}

impl<F: Clone> MarkFile<F> {
    /// A new file without a mark.
    pub(crate) fn create<D: Disk<File = F>>(
        disk: &mut D,
        identity: &StoreIdentity,
    ) -> Result<Self, DiskFailure> {
        let name = FileName::SyncMark;
        let file = disk
            .create(&name.to_string(), SLOTS * SLOT_STRIDE)
            .map_err(DiskFailure::when(DiskOperation::Create, name))?;
        disk.sync(&file).map_err(DiskFailure::when(DiskOperation::Sync, name))?;
        Ok(Self { file, seed: seed(identity), slot: 0 })
    }

    /// The file, and the newest mark in it.
    pub(crate) fn open<D: Disk<File = F>>(
        disk: &mut D,
        identity: &StoreIdentity,
    ) -> Result<(Self, Mark), DiskFailure> {
        let name = FileName::SyncMark;
        let seed = seed(identity);
        let file =
            disk.open(&name.to_string()).map_err(DiskFailure::when(DiskOperation::Open, name))?;
        let mut newest = (Mark::default(), 1);
        let len = disk.len(&file).map_err(DiskFailure::when(DiskOperation::Read, name))?;
        for slot in 0..SLOTS {
            let mut bytes = [0; SLOT_BYTES];
            if slot * SLOT_STRIDE + SLOT_BYTES as u64 > len {
                continue; // A damaged note is none.
            }
            disk.read_at(&file, slot * SLOT_STRIDE, &mut bytes)
                .map_err(DiskFailure::when(DiskOperation::Read, name))?;
            if let Some(mark) = decode(&bytes, seed)
                && mark > newest.0
            {
                newest = (mark, slot);
            }
        }
        let (mark, slot) = newest;
        Ok((Self { file, seed, slot: (slot + 1) % SLOTS }, mark))
    }

    /// Notes a mark over the older one of the two.
    pub(crate) fn write<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        mark: Mark,
    ) -> Result<(), DiskFailure> {
        let bytes = encode(mark, self.seed);
        disk.write_at(&self.file, self.slot * SLOT_STRIDE, &bytes)
            .map_err(DiskFailure::when(DiskOperation::Write, FileName::SyncMark))?;
        self.slot = (self.slot + 1) % SLOTS;
        Ok(())
    }

    pub(crate) fn sync<D: Disk<File = F>>(&self, disk: &mut D) -> Result<(), DiskFailure> {
        disk.sync(&self.file).map_err(DiskFailure::when(DiskOperation::Sync, FileName::SyncMark))
    }
}

/// Another store's mark says nothing about this one.
fn seed(identity: &StoreIdentity) -> u32 {
    let mut bytes = identity.cluster.to_bytes();
    identity.member.encode(&mut bytes);
    identity.incarnation.encode(&mut bytes);
    identity.joined_at.encode(&mut bytes);
    crc32c_append(0, &bytes)
}

fn encode(mark: Mark, seed: u32) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[4..12].copy_from_slice(&mark.segment.to_le_bytes());
    bytes[12..20].copy_from_slice(&mark.end.to_le_bytes());
    bytes[20..].copy_from_slice(&mark.sequence.to_le_bytes());
    let checksum = crc32c_append(seed, &bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; SLOT_BYTES], seed: u32) -> Option<Mark> {
    let mut from = Decoder::new(bytes::Bytes::copy_from_slice(bytes));
    let checksum = u32::decode(&mut from).ok()?;
    if checksum != crc32c_append(seed, &bytes[4..]) {
        return None;
    }
    let segment = u64::decode(&mut from).ok()?;
    let end = u64::decode(&mut from).ok()?;
    let sequence = u64::decode(&mut from).ok()?;
    Some(Mark { segment, end, sequence })
}
