//! The sync mark: the position up to which the log is durable, in a separate file.
//!
//! Each record holds the sequence number up to which the log was durable when the record was
//! written. The last records are not covered by this. Without the mark, damage in them could
//! not be distinguished from a torn write of a crash. The mark is written after every sync but
//! not synced itself: if it is lost, less damage is detected, but it is never wrong.

use crc32c::crc32c_append;

use crate::codec::{Codec, Decoder};
use crate::error::{DiskFailure, DiskOperation};
use crate::names::FileName;
use crate::{Disk, StoreIdentity};

/// Two slots, far enough apart that a disk never tears both with one write.
const SLOTS: u64 = 2;
const SLOT_STRIDE: u64 = 4096;
const SLOT_BYTES: usize = 28;

/// All records of this segment that end at `end` or before are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct SyncMark {
    pub(crate) segment: u64,
    pub(crate) end: u64,
    /// The sequence number of the last durable record.
    pub(crate) sequence: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct SyncMarkFile<F> {
    file: F,
    seed: u32,
    slot: u64,
}

impl<F: Clone> SyncMarkFile<F> {
    /// Creates a file without a mark.
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

    /// Opens the file and reads the newest mark.
    pub(crate) fn open<D: Disk<File = F>>(
        disk: &mut D,
        identity: &StoreIdentity,
    ) -> Result<(Self, SyncMark), DiskFailure> {
        let name = FileName::SyncMark;
        let seed = seed(identity);
        let file =
            disk.open(&name.to_string()).map_err(DiskFailure::when(DiskOperation::Open, name))?;
        let mut newest = (SyncMark::default(), 1);
        let len = disk.len(&file).map_err(DiskFailure::when(DiskOperation::Read, name))?;
        for slot in 0..SLOTS {
            let mut bytes = [0; SLOT_BYTES];
            if slot * SLOT_STRIDE + SLOT_BYTES as u64 > len {
                continue; // A damaged mark counts as missing.
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

    /// Writes a mark over the older of the two.
    pub(crate) fn write<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        mark: SyncMark,
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

/// The seed of the checksum, so that the mark of another store is not accepted.
fn seed(identity: &StoreIdentity) -> u32 {
    let mut bytes = identity.cluster.to_bytes();
    identity.member.encode(&mut bytes);
    identity.incarnation.encode(&mut bytes);
    identity.joined_at.encode(&mut bytes);
    crc32c_append(0, &bytes)
}

fn encode(mark: SyncMark, seed: u32) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[4..12].copy_from_slice(&mark.segment.to_le_bytes());
    bytes[12..20].copy_from_slice(&mark.end.to_le_bytes());
    bytes[20..].copy_from_slice(&mark.sequence.to_le_bytes());
    let checksum = crc32c_append(seed, &bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; SLOT_BYTES], seed: u32) -> Option<SyncMark> {
    let mut from = Decoder::new(bytes::Bytes::copy_from_slice(bytes));
    let checksum = u32::decode(&mut from).ok()?;
    if checksum != crc32c_append(seed, &bytes[4..]) {
        return None;
    }
    let segment = u64::decode(&mut from).ok()?;
    let end = u64::decode(&mut from).ok()?;
    let sequence = u64::decode(&mut from).ok()?;
    Some(SyncMark { segment, end, sequence })
}
