//! The head of a segment: who it belongs to, what came before it, and what the log
//! and the hard state were when it began.
//!
//! A segment gets its name only when its head is durable. So one that has its name
//! and no intact head is damaged, and everything before the oldest segment that is
//! still there can be forgotten.

use crc32c::{crc32c, crc32c_append};
use quorate_core::{EntryId, HardState, MemberId};

use super::record::decode_hard_state;
use crate::codec::{Codec, DecodeError, Decoder};
use crate::error::{CorruptionKind, DiskFailure, DiskOperation};
use crate::names::FileName;
use crate::{Disk, StoreIdentity};

/// Records begin here: the head fills the smallest part that a disk writes at once.
pub(crate) const HEAD_BYTES: u64 = 512;

pub(crate) const VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"qrt-wal\n";
const CHECKSUM_AT: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) identity: StoreIdentity,
    pub(crate) number: u64,
    /// How often the store had been opened.
    pub(crate) boots: u64,
    /// What this segment takes on disk, unless a later one has been begun since.
    pub(crate) bytes: u64,
    /// The sequence number of its first record.
    pub(crate) first_sequence: u64,
    /// The segment before it, and where that one's records end. Zero for none.
    pub(crate) previous: u64,
    pub(crate) previous_end: u64,
    pub(crate) start: Start,
}

/// What a member knew when the segment began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Start {
    pub(crate) hard_state: HardState,
    /// The log never goes back behind this entry: a snapshot took its place.
    pub(crate) floor: EntryId,
    /// The last entry of the log.
    pub(crate) last: EntryId,
}

/// Why bytes are no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadError {
    Damaged(CorruptionKind),
    UnsupportedVersion(u32),
}

/// An open segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment<F> {
    pub(crate) head: Head,
    /// Every checksum in this segment starts from it.
    pub(crate) seed: u32,
    pub(crate) file: F,
    pub(crate) bytes: u64,
}

impl<F> Segment<F> {
    pub(crate) fn name(&self) -> FileName {
        FileName::Segment(self.head.number)
    }
}

impl Head {
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

    /// The head, and the seed of the segment.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, u32), HeadError> {
        let damaged = |why: DecodeError| HeadError::Damaged(CorruptionKind::Undecodable(why));
        if !bytes.starts_with(MAGIC) {
            return Err(HeadError::Damaged(CorruptionKind::BadMagic));
        }
        let mut from = Decoder::new(bytes::Bytes::copy_from_slice(&bytes[MAGIC.len()..]));
        let version = u32::decode(&mut from).map_err(damaged)?;
        if version != VERSION {
            return Err(HeadError::UnsupportedVersion(version));
        }
        let seed = u32::decode(&mut from).map_err(damaged)?;
        if bytes.len() < HEAD_BYTES as usize || seed != checksum(bytes) {
            return Err(HeadError::Damaged(CorruptionKind::ChecksumMismatch));
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
            start: Start {
                hard_state: decode_hard_state(from)?,
                floor: EntryId::decode(from)?,
                last: EntryId::decode(from)?,
            },
        })
    }

    /// Makes the segment: a file of its own name, durable, with nothing but this head.
    pub(crate) fn create<D: Disk>(
        self,
        disk: &mut D,
        spare: Option<D::File>,
    ) -> Result<Segment<D::File>, DiskFailure> {
        let made = if spare.is_some() { FileName::SpareSegment } else { FileName::NewSegment };
        let file = match spare {
            Some(file) => file,
            None => disk
                .create(&made.to_string(), self.bytes)
                .map_err(DiskFailure::when(DiskOperation::Create, made))?,
        };
        let bytes = self.encode();
        disk.write_at(&file, 0, &bytes).map_err(DiskFailure::when(DiskOperation::Write, made))?;
        disk.sync(&file).map_err(DiskFailure::when(DiskOperation::Sync, made))?;
        let name = FileName::Segment(self.number);
        disk.rename(&made.to_string(), &name.to_string())
            .map_err(DiskFailure::when(DiskOperation::Rename, made))?;
        // Without this a crash may forget the name, and all that was saved under it.
        disk.sync_dir().map_err(DiskFailure::when(DiskOperation::Sync, FileName::Directory))?;
        Ok(Segment { head: self, seed: checksum(&bytes), file, bytes: self.bytes })
    }
}

/// Over everything but the place of the checksum itself.
fn checksum(bytes: &[u8]) -> u32 {
    let end = bytes.len().min(HEAD_BYTES as usize);
    crc32c_append(crc32c(&bytes[..CHECKSUM_AT]), &bytes[CHECKSUM_AT + 4..end])
}
