//! Encoding of log entries, the same in a WAL record and in an append message.

use std::sync::Arc;

use quorate_core::{Entries, Entry, EntryId, Payload};

use super::{Codec, DecodeError, Decoder};

/// Flag in the length of an entry: it is a membership change.
const CHANGE: u32 = 1 << 31;

/// The shortest entry: term and length.
pub(crate) const ENTRY_BYTES_MIN: usize = 12;

/// Consecutive entries: the index of the first, the count, and each entry without its index.
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
        // A count that does not fit into the bytes must not allocate memory.
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

/// Encodes an entry without its index.
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

/// Decodes what follows the term. Commands share the memory of the input.
pub(crate) fn decode_payload(from: &mut Decoder) -> Result<Payload, DecodeError> {
    let length = u32::decode(from)?;
    let bytes = from.take((length & !CHANGE) as usize)?;
    Ok(if length & CHANGE == 0 {
        Payload::Command(bytes)
    } else {
        Payload::Change(Arc::new(Codec::from_bytes(bytes)?))
    })
}

/// A payload that does not fit into the length field also exceeds the size limits of records
/// and messages, which are checked where it is written or sent.
fn encode_length(length: usize, kind: u32, into: &mut Vec<u8>) {
    let length = length.min((CHANGE - 1) as usize) as u32;
    (length | kind).encode(into);
}
