//! A record: one save as bytes, valid only as a whole.
//!
//! ```text
//!  0        4        8                16               24       28       32
//!  +--------+--------+----------------+----------------+--------+--------+------
//!  | header | body   | sequence       | synced         | body   | parts  | body
//!  | crc    | bytes  |                |                | crc    |        |
//!  +--------+--------+----------------+----------------+--------+--------+------
//! ```
//! Both checksums start from the seed of the segment, so that bytes of an older file on the same
//! blocks are never taken for a record. `docs/formats.md` describes the body.

use bytes::Bytes;
use crc32c::crc32c_append;
use quorate_core::{Entries, Entry, EntryId, HardState};

use crate::codec::{Codec, DecodeError, Decoder, ENTRY_BYTES_MIN, decode_payload, encode_entry};

pub(crate) const HEADER_BYTES: usize = 32;

/// Records start at multiples of this.
pub(crate) const ALIGNMENT: u64 = 8;

/// Larger than any save, and far from overflowing a length.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 30;

/// Flags for the parts of a body, which come in this order.
const HARD_STATE: u32 = 1;
const INSTALL: u32 = 2;
const ENTRIES: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) body_bytes: u32,
    /// The number of the record in its store, from 1.
    pub(crate) sequence: u64,
    /// All records up to this sequence number were durable when this one was written.
    pub(crate) synced: u64,
    body_checksum: u32,
    parts: u32,
}

/// A decoded record.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Record {
    pub(crate) hard_state: Option<HardState>,
    pub(crate) install: Option<EntryId>,
    pub(crate) entries: Option<AppendedEntries>,
}

/// Entries and the id of the entry before them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppendedEntries {
    pub(crate) prev: EntryId,
    pub(crate) entries: Vec<Entry>,
}

/// The contents of a record to encode.
pub(crate) struct RecordContents<'a> {
    pub(crate) hard_state: Option<HardState>,
    pub(crate) install: Option<EntryId>,
    /// The entry before the first of `entries`.
    pub(crate) prev: EntryId,
    pub(crate) entries: &'a Entries,
}

impl RecordContents<'_> {
    /// Appends the record to a buffer. Returns `false` and appends nothing if it is larger than
    /// a record can be.
    pub(crate) fn encode(&self, seed: u32, sequence: u64, synced: u64, into: &mut Vec<u8>) -> bool {
        let start = into.len();
        into.reserve(self.entries.bytes() as usize + 128);
        into.resize(start + HEADER_BYTES, 0);
        let parts = self.encode_body(into);
        let body_bytes = into.len() - start - HEADER_BYTES;
        if body_bytes > BODY_BYTES_MAX {
            into.truncate(start);
            return false;
        }
        let (_, record) = into.split_at_mut(start);
        let (header, body) = record.split_at_mut(HEADER_BYTES);
        let new_header = RecordHeader {
            body_bytes: body_bytes as u32,
            sequence,
            synced,
            body_checksum: crc32c_append(seed, body),
            parts,
        };
        header.copy_from_slice(&new_header.encode(seed));
        into.resize(start + padded(body_bytes) as usize, 0);
        true
    }

    fn encode_body(&self, into: &mut Vec<u8>) -> u32 {
        let mut parts = 0;
        if let Some(hard_state) = self.hard_state {
            parts |= HARD_STATE;
            hard_state.term.encode(into);
            hard_state.vote.map_or(0, |vote| vote.0).encode(into);
            hard_state.commit.encode(into);
        }
        if let Some(id) = self.install {
            parts |= INSTALL;
            id.encode(into);
        }
        if !self.entries.is_empty() {
            parts |= ENTRIES;
            self.prev.encode(into);
            (self.entries.len() as u64).encode(into);
            for entry in self.entries.chunks().flatten() {
                encode_entry(entry, into);
            }
        }
        parts
    }
}

/// The size of a record with such a body, including padding.
pub(crate) fn padded(body_bytes: usize) -> u64 {
    ((HEADER_BYTES + body_bytes) as u64).next_multiple_of(ALIGNMENT)
}

impl RecordHeader {
    /// A header without checksum, for fuzzing.
    pub(crate) fn for_body(parts: u32, body: &[u8]) -> Self {
        let body_bytes = body.len() as u32;
        Self { body_bytes, sequence: 0, synced: 0, body_checksum: 0, parts }
    }

    fn encode(&self, seed: u32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.synced.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.body_checksum.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.parts.to_le_bytes());
        let checksum = crc32c_append(seed, &bytes[4..]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a header. `None` if it is not a header of this segment.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES], seed: u32) -> Option<Self> {
        let number = |at: usize| u32::from_le_bytes(array(bytes, at));
        let long = |at: usize| u64::from_le_bytes(array(bytes, at));
        if number(0) != crc32c_append(seed, &bytes[4..]) {
            return None;
        }
        Some(Self {
            body_bytes: number(4),
            sequence: long(8),
            synced: long(16),
            body_checksum: number(24),
            parts: number(28),
        })
    }

    /// The sequence number in bytes that may be a header, without verifying the checksum.
    #[inline]
    pub(crate) fn sequence_in(bytes: &[u8; HEADER_BYTES]) -> u64 {
        u64::from_le_bytes(array(bytes, 8))
    }

    /// The size of the record, including padding.
    pub(crate) fn record_bytes(&self) -> u64 {
        padded(self.body_bytes as usize)
    }

    /// Whether length and checksum of the body match.
    pub(crate) fn matches(&self, body: &[u8], seed: u32) -> bool {
        body.len() == self.body_bytes as usize && crc32c_append(seed, body) == self.body_checksum
    }

    /// Decodes an intact body.
    pub(crate) fn decode_body(&self, body: Bytes) -> Result<Record, DecodeError> {
        if self.parts & !(HARD_STATE | INSTALL | ENTRIES) != 0 {
            return Err(DecodeError::UnknownVersion);
        }
        let mut from = Decoder::new(body);
        let mut record = Record::default();
        if self.parts & HARD_STATE != 0 {
            record.hard_state = Some(decode_hard_state(&mut from)?);
        }
        if self.parts & INSTALL != 0 {
            record.install = Some(Codec::decode(&mut from)?);
        }
        if self.parts & ENTRIES != 0 {
            record.entries = Some(decode_entries(&mut from)?);
        }
        if from.remaining() > 0 {
            return Err(DecodeError::TrailingBytes);
        }
        Ok(record)
    }
}

/// A vote of zero means none: no member has that id.
pub(crate) fn decode_hard_state(from: &mut Decoder) -> Result<HardState, DecodeError> {
    let term = u64::decode(from)?;
    let vote = u64::decode(from)?;
    let commit = u64::decode(from)?;
    let vote = (vote != 0).then_some(quorate_core::MemberId(vote));
    Ok(HardState { term, vote, commit })
}

fn decode_entries(from: &mut Decoder) -> Result<AppendedEntries, DecodeError> {
    let prev = EntryId::decode(from)?;
    let count = u64::decode(from)?;
    if count == 0 || count > (from.remaining() / ENTRY_BYTES_MIN) as u64 {
        return Err(DecodeError::TooShort);
    }
    let mut entries = Vec::with_capacity(count as usize);
    for offset in 1..=count {
        let index = prev.index.checked_add(offset).ok_or(DecodeError::InvalidValue)?;
        let term = u64::decode(from)?;
        let payload = decode_payload(from)?;
        entries.push(Entry { id: EntryId::new(term, index), payload });
    }
    Ok(AppendedEntries { prev, entries })
}

/// `N` bytes at an offset within the header.
fn array<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}
