//! Entries of the log: the same in a record of the log and in an append between members.

use std::sync::Arc;

use quorate_core::{Entries, Entry, EntryId, Payload};

use super::{Codec, DecodeError, Decoder};

/// In the length of an entry: it is a membership change.
const CHANGE: u32 = 1 << 31;

/// Term and length: no entry takes less.
pub(crate) const ENTRY_BYTES_MIN: usize = 12;

/// Consecutive entries: the index of the first, their count, and each without its index.
impl Codec for Entries {
    const BYTES_MIN: usize = 12;

    fn encode(&self, into: &mut Vec<u8>) {
        self.first().map_or(0, |entry| entry.id.index).encode(into);
        super::encode_count(self.len(), into);
        self.chunks().flatten().for_each(|entry| encode_entry(entry, into));
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let first = u64::decode(from)?;
        let count = u32::decode(from)? as usize;
        // A count that the bytes cannot hold must not reserve memory.
        if count > from.remaining() / ENTRY_BYTES_MIN {
            return Err(DecodeError::TooShort);
        }
        if count == 0 && first != 0 {
            return Err(DecodeError::InvalidValue);
        }
        let mut entries = Vec::with_capacity(count);
        for nth in 0..count as u64 {
            let index = first.checked_add(nth).ok_or(DecodeError::InvalidValue)?;
            let id = EntryId::new(u64::decode(from)?, index);
            entries.push(Entry { id, payload: decode_payload(from)? });
        }
        Ok(entries.into())
    }
}

/// One entry without its index.
pub(crate) fn encode_entry(entry: &Entry, into: &mut Vec<u8>) {
    entry.id.term.encode(into);
    match &entry.payload {
        Payload::Command(command) => {
            encode_length(command.len(), 0, into);
            into.extend_from_slice(command);
        }
        Payload::Change(change) => {
            let bytes = change.to_bytes();
            encode_length(bytes.len(), CHANGE, into);
            into.extend_from_slice(&bytes);
        }
    }
}

/// What follows the term. Commands share the bytes that are decoded.
pub(crate) fn decode_payload(from: &mut Decoder) -> Result<Payload, DecodeError> {
    let length = u32::decode(from)?;
    let bytes = from.take((length & !CHANGE) as usize)?;
    Ok(if length & CHANGE == 0 {
        Payload::Command(bytes)
    } else {
        Payload::Change(Arc::new(Codec::from_bytes(bytes)?))
    })
}

/// An entry too long for its length makes whatever holds it too large, which is refused
/// where that is written or sent.
fn encode_length(length: usize, kind: u32, into: &mut Vec<u8>) {
    let length = length.min((CHANGE - 1) as usize) as u32;
    (length | kind).encode(into);
}
