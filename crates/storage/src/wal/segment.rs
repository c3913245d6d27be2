//! The head of a segment: its owner, the previous segment, and the log and the hard state at its
//! start.
//!
//! A segment gets its final name only when its head is durable. So a segment with its final name
//! and without an intact head is damaged. And because each head repeats the state, segments
//! before the oldest existing one are not needed.

use crc32c::{crc32c, crc32c_append};
use quorate_core::{EntryId, HardState, MemberId};

use super::record::decode_hard_state;
use crate::codec::{Codec, DecodeError, Decoder};
use crate::error::{CorruptionKind, DiskFailure, DiskOperation};
use crate::names::FileName;
use crate::{Disk, StoreIdentity};

/// The size of a head, and the offset of the first record. One sector, the smallest unit that a
/// disk writes atomically.
pub(crate) const HEAD_BYTES: u64 = 512;

pub(crate) const VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"qrt-wal\n";
const CHECKSUM_AT: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    pub(crate) identity: StoreIdentity,
    pub(crate) number: u64,
    /// How often the store had been opened when the segment was created.
    pub(crate) boots: u64,
    /// The size of the segment. Recovery truncates a segment when it starts the next one.
    pub(crate) bytes: u64,
    /// The sequence number of its first record.
    pub(crate) first_sequence: u64,
    /// The number of the previous segment; 0 for none.
    pub(crate) previous: u64,
    /// The offset at which the records of the previous segment end.
    pub(crate) previous_end: u64,
    pub(crate) start: SegmentStart,
}

/// The log and the hard state when the segment was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct SegmentStart {
    pub(crate) hard_state: HardState,
    /// The log is never truncated below this entry: a snapshot replaced the entries before.
    pub(crate) floor: EntryId,
    /// The last entry of the log.
    pub(crate) last: EntryId,
}

/// Why bytes are not a valid head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentHeadError {
    Damaged(CorruptionKind),
    UnsupportedVersion(u32),
}

/// An open segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment<F> {
    pub(crate) head: SegmentHead,
    /// All checksums in this segment start from it.
    pub(crate) seed: u32,
    pub(crate) file: F,
    pub(crate) bytes: u64,
}

impl<F> Segment<F> {
    pub(crate) fn name(&self) -> FileName {
        FileName::Segment(self.head.number)
    }
}

impl SegmentHead {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        VERSION.encode(&mut bytes);
        0u32.encode(&mut bytes);
        self.identity.cluster.encode(&mut bytes);
        self.identity.member.encode(&mut bytes);
        self.identity.incarnation.encode(&mut bytes);
        self.identity.joined_at.encode(&mut bytes);
        self.number.encode(&mut bytes);
        self.boots.encode(&mut bytes);
        self.bytes.encode(&mut bytes);
        self.first_sequence.encode(&mut bytes);
        self.previous.encode(&mut bytes);
        self.previous_end.encode(&mut bytes);
        let hard_state = self.start.hard_state;
        hard_state.term.encode(&mut bytes);
        hard_state.vote.map_or(0, |vote| vote.0).encode(&mut bytes);
        hard_state.commit.encode(&mut bytes);
        self.start.floor.encode(&mut bytes);
        self.start.last.encode(&mut bytes);
        let mut head = vec![0; HEAD_BYTES as usize];
        head[..bytes.len()].copy_from_slice(&bytes);
        let sum = checksum(&head);
        head[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        head
    }

    /// Decodes a head. Also returns the seed of the segment.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, u32), SegmentHeadError> {
        let damaged =
            |why: DecodeError| SegmentHeadError::Damaged(CorruptionKind::Undecodable(why));
        if !bytes.starts_with(MAGIC) {
            return Err(SegmentHeadError::Damaged(CorruptionKind::BadMagic));
        }
        let mut from = Decoder::new(bytes::Bytes::copy_from_slice(&bytes[MAGIC.len()..]));
        let version = u32::decode(&mut from).map_err(damaged)?;
        if version != VERSION {
            return Err(SegmentHeadError::UnsupportedVersion(version));
        }
        let seed = u32::decode(&mut from).map_err(damaged)?;
        if bytes.len() < HEAD_BYTES as usize || seed != checksum(bytes) {
            return Err(SegmentHeadError::Damaged(CorruptionKind::ChecksumMismatch));
        }
        Ok((Self::decode_fields(&mut from).map_err(damaged)?, seed))
    }

    fn decode_fields(from: &mut Decoder) -> Result<Self, DecodeError> {
        Ok(Self {
            identity: StoreIdentity {
                cluster: u64::decode(from)?,
                member: MemberId::decode(from)?,
                incarnation: u64::decode(from)?,
                joined_at: u64::decode(from)?,
            },
            number: u64::decode(from)?,
            boots: u64::decode(from)?,
            bytes: u64::decode(from)?,
            first_sequence: u64::decode(from)?,
            previous: u64::decode(from)?,
            previous_end: u64::decode(from)?,
            start: SegmentStart {
                hard_state: decode_hard_state(from)?,
                floor: EntryId::decode(from)?,
                last: EntryId::decode(from)?,
            },
        })
    }

    /// Creates the segment: a durable file with its final name that contains only this head.
    pub(crate) fn create<D: Disk>(
        self,
        disk: &mut D,
        spare: Option<D::File>,
    ) -> Result<Segment<D::File>, DiskFailure> {
        let temporary = if spare.is_some() { FileName::SpareSegment } else { FileName::NewSegment };
        let file = match spare {
            Some(file) => file,
            None => disk
                .create(&temporary.to_string(), self.bytes)
                .map_err(DiskFailure::when(DiskOperation::Create, temporary))?,
        };
        let bytes = self.encode();
        disk.write_at(&file, 0, &bytes)
            .map_err(DiskFailure::when(DiskOperation::Write, temporary))?;
        disk.sync(&file).map_err(DiskFailure::when(DiskOperation::Sync, temporary))?;
        let name = FileName::Segment(self.number);
        disk.rename(&temporary.to_string(), &name.to_string())
            .map_err(DiskFailure::when(DiskOperation::Rename, temporary))?;
        // Without this, a crash may lose the name, and all saves in the segment with it.
        disk.sync_dir().map_err(DiskFailure::when(DiskOperation::Sync, FileName::Directory))?;
        Ok(Segment { head: self, seed: checksum(&bytes), file, bytes: self.bytes })
    }
}

/// The checksum of the head without the checksum field.
fn checksum(bytes: &[u8]) -> u32 {
    let end = bytes.len().min(HEAD_BYTES as usize);
    crc32c_append(crc32c(&bytes[..CHECKSUM_AT]), &bytes[CHECKSUM_AT + 4..end])
}
