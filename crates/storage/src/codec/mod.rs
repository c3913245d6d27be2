//! Byte encoding of the core's values: numbers are little-endian, lists start with a count.
//!
//! Decoding never panics and never allocates more than a small multiple of its input. Every
//! value has exactly one encoding: decoded bytes encode to the same bytes. `docs/formats.md`
//! describes the layouts.
//!
//! ```
//! use quorate_core::EntryId;
//! use quorate_storage::codec::Codec;
//!
//! let bytes = EntryId::new(2, 7).to_bytes();
//! assert_eq!(EntryId::from_bytes(bytes.into()), Ok(EntryId::new(2, 7)));
//! ```

mod entries;
mod values;

use std::fmt;

use bytes::Bytes;

pub(crate) use entries::{ENTRY_BYTES_MIN, decode_payload, encode_entry};

/// A value with a byte encoding.
pub trait Codec: Sized {
    /// The length of the shortest encoding, at least 1. It limits how many values a list in
    /// a given number of bytes can hold.
    const BYTES_MIN: usize;

    /// Appends the encoding to `into`.
    fn encode(&self, into: &mut Vec<u8>);

    /// Decodes a value from the start of the remaining bytes.
    fn decode(from: &mut Decoder) -> Result<Self, DecodeError>;

    /// The encoding of this value.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        bytes
    }

    /// Decodes a value that takes up all of `bytes`.
    fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut from = Decoder::new(bytes);
        let value = Self::decode(&mut from)?;
        if from.remaining() == 0 { Ok(value) } else { Err(DecodeError::TrailingBytes) }
    }
}

/// Bytes that are being decoded. [`Bytes`] in decoded values share their memory.
#[derive(Clone, Debug)]
pub struct Decoder {
    bytes: Bytes,
}

impl Decoder {
    /// Starts at the first byte.
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes }
    }

    /// The number of bytes that are not decoded yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<Bytes, DecodeError> {
        if count > self.bytes.len() {
            return Err(DecodeError::TooShort);
        }
        Ok(self.bytes.split_to(count))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, _) = self.bytes.split_first_chunk::<N>().ok_or(DecodeError::TooShort)?;
        let head = *head;
        bytes::Buf::advance(&mut self.bytes, N);
        Ok(head)
    }
}

/// Why bytes could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end within the value.
    TooShort,
    /// More bytes follow the value.
    TrailingBytes,
    /// A number is not valid at its position.
    InvalidValue,
    /// The value was written by a later version.
    UnknownVersion,
    /// A list that must be sorted is not.
    Unsorted,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooShort => "bytes end too early",
            Self::TrailingBytes => "bytes follow after the value",
            Self::InvalidValue => "a number is not valid here",
            Self::UnknownVersion => {
                "has the format of a later version: start a newer program on the same data"
            }
            Self::Unsorted => "a list is not sorted",
        })
    }
}

impl std::error::Error for DecodeError {}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Codec for $type {
            const BYTES_MIN: usize = size_of::<$type>();

            fn encode(&self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_le_bytes());
            }

            fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
                Ok(Self::from_le_bytes(from.array()?))
            }
        }
    )*};
}

number!(u8, u32, u64);

impl Codec for bool {
    const BYTES_MIN: usize = 1;

    fn encode(&self, into: &mut Vec<u8>) {
        into.push(u8::from(*self));
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        match u8::decode(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::InvalidValue),
        }
    }
}

impl Codec for Bytes {
    const BYTES_MIN: usize = 4;

    fn encode(&self, into: &mut Vec<u8>) {
        encode_count(self.len(), into);
        into.extend_from_slice(self);
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let count = u32::decode(from)?;
        from.take(count as usize)
    }
}

impl<T: Codec> Codec for Vec<T> {
    const BYTES_MIN: usize = 4;

    fn encode(&self, into: &mut Vec<u8>) {
        encode_count(self.len(), into);
        self.iter().for_each(|value| value.encode(into));
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let count = u32::decode(from)? as usize;
        // A count that does not fit into the bytes must not allocate memory.
        if count > from.remaining() / T::BYTES_MIN {
            return Err(DecodeError::TooShort);
        }
        (0..count).map(|_| T::decode(from)).collect()
    }
}

impl<T: Codec> Codec for Option<T> {
    const BYTES_MIN: usize = 1;

    fn encode(&self, into: &mut Vec<u8>) {
        self.is_some().encode(into);
        if let Some(value) = self {
            value.encode(into);
        }
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        Ok(if bool::decode(from)? { Some(T::decode(from)?) } else { None })
    }
}

impl<A: Codec, B: Codec> Codec for (A, B) {
    const BYTES_MIN: usize = A::BYTES_MIN + B::BYTES_MIN;

    fn encode(&self, into: &mut Vec<u8>) {
        self.0.encode(into);
        self.1.encode(into);
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        Ok((A::decode(from)?, B::decode(from)?))
    }
}

/// Lists are far shorter than 2^32: they are part of an entry, which is limited in size.
#[allow(clippy::expect_used, reason = "a list of 2^32 values does not fit an entry")]
fn encode_count(count: usize, into: &mut Vec<u8>) {
    u32::try_from(count).expect("fewer than 2^32 values").encode(into);
}

#[cfg(test)]
mod tests;
