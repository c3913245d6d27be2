//! Encoding of numbers and bytes in commands, replies and rows.
//!
//! Numbers are base-128 varints, signed ones in zigzag encoding; bytes are preceded by their
//! length. No length that is read is trusted. `docs/formats.md` describes the format.

use bytes::{Buf, Bytes, BytesMut};

/// Where encoded bytes go.
pub(crate) trait ByteSink {
    fn put_u8(&mut self, byte: u8);

    fn put_slice(&mut self, bytes: &[u8]);
}

impl ByteSink for Vec<u8> {
    fn put_u8(&mut self, byte: u8) {
        self.push(byte);
    }

    fn put_slice(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl ByteSink for BytesMut {
    fn put_u8(&mut self, byte: u8) {
        self.extend_from_slice(&[byte]);
    }

    fn put_slice(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Only counts the bytes, so that memory of the right size can be reserved for them.
#[derive(Debug, Default)]
pub(crate) struct ByteCount(pub(crate) usize);

impl ByteSink for ByteCount {
    fn put_u8(&mut self, _byte: u8) {
        self.0 += 1;
    }

    fn put_slice(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

pub(crate) fn put_number(out: &mut impl ByteSink, mut number: u64) {
    let mut bytes = [0; VARINT_BYTES_MAX];
    let mut length = 0;
    while number >= 0x80 {
        bytes[length] = number as u8 | 0x80;
        number >>= 7;
        length += 1;
    }
    bytes[length] = number as u8;
    out.put_slice(&bytes[..=length]);
}

pub(crate) fn put_signed(out: &mut impl ByteSink, number: i64) {
    put_number(out, ((number << 1) ^ (number >> 63)) as u64);
}

pub(crate) fn put_bytes(out: &mut impl ByteSink, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.put_slice(bytes);
}

/// Up to eight flags in one byte, the first flag in the lowest bit.
pub(crate) fn put_flags(out: &mut impl ByteSink, flags: &[bool]) {
    let bits = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag));
    out.put_u8(bits);
}

pub(crate) fn put_list<B: ByteSink, T>(out: &mut B, list: &[T], put: impl Fn(&mut B, &T)) {
    put_number(out, list.len() as u64);
    for item in list {
        put(out, item);
    }
}

/// Bytes that are decoded.
pub(crate) trait ByteSource {
    /// What was not taken.
    fn rest(&self) -> &[u8];

    /// Takes this many bytes, which are there.
    fn skip(&mut self, count: usize);

    /// The same, as a part of the memory that they are in.
    fn split(&mut self, count: usize) -> Bytes;
}

impl ByteSource for Bytes {
    fn rest(&self) -> &[u8] {
        self
    }

    fn skip(&mut self, count: usize) {
        self.advance(count);
    }

    fn split(&mut self, count: usize) -> Bytes {
        self.split_to(count)
    }
}

/// Bytes that are kept as they are. It counts as a user of their memory only where a part is taken.
pub(crate) struct ByteReader<'a> {
    all: &'a Bytes,
    rest: &'a [u8],
}

impl<'a> From<&'a Bytes> for ByteReader<'a> {
    fn from(all: &'a Bytes) -> Self {
        Self { all, rest: all }
    }
}

/// Bytes of which no parts are taken.
pub(crate) struct SliceReader<'a>(pub(crate) &'a [u8]);

impl<'a> SliceReader<'a> {
    /// Takes bytes that are preceded by their length, as [`put_bytes`] writes them.
    pub(crate) fn take_slice(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(take_number(self)?).ok()?;
        let taken = self.0.get(..length)?;
        self.skip(length);
        Some(taken)
    }
}

impl ByteSource for SliceReader<'_> {
    fn rest(&self) -> &[u8] {
        self.0
    }

    fn skip(&mut self, count: usize) {
        self.0 = self.0.get(count..).unwrap_or_default();
    }

    fn split(&mut self, count: usize) -> Bytes {
        let part = Bytes::copy_from_slice(self.0.get(..count).unwrap_or_default());
        self.skip(count);
        part
    }
}

impl ByteSource for ByteReader<'_> {
    fn rest(&self) -> &[u8] {
        self.rest
    }

    fn skip(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or_default();
    }

    fn split(&mut self, count: usize) -> Bytes {
        let part = self.rest.get(..count).unwrap_or_default();
        self.skip(count);
        if part.is_empty() { Bytes::new() } else { self.all.slice_ref(part) }
    }
}

pub(crate) fn take_byte(from: &mut impl ByteSource) -> Option<u8> {
    let byte = *from.rest().first()?;
    from.skip(1);
    Some(byte)
}

pub(crate) fn take_number(from: &mut impl ByteSource) -> Option<u64> {
    // Most numbers are small.
    if let Some(byte) = from.rest().first().filter(|byte| **byte < 0x80) {
        let number = u64::from(*byte);
        from.skip(1);
        return Some(number);
    }
    let mut number = 0;
    for (position, byte) in from.rest().iter().take(VARINT_BYTES_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << (7 * position);
        // The tenth byte has room for one bit.
        if shifted >> (7 * position) != bits {
            return None;
        }
        number |= shifted;
        if byte & 0x80 == 0 {
            from.skip(position + 1);
            return Some(number);
        }
    }
    None
}

pub(crate) fn take_signed(from: &mut impl ByteSource) -> Option<i64> {
    let number = take_number(from)?;
    Some((number >> 1) as i64 ^ -((number & 1) as i64))
}

pub(crate) fn take_bytes(from: &mut impl ByteSource) -> Option<Bytes> {
    let length = usize::try_from(take_number(from)?).ok()?;
    (length <= from.rest().len()).then(|| from.split(length))
}

/// Exactly `N` flags. `None` if a higher bit is set.
pub(crate) fn take_flags<const N: usize>(from: &mut impl ByteSource) -> Option<[bool; N]> {
    let bits = take_byte(from)?;
    let flags = std::array::from_fn(|position| bits >> position & 1 == 1);
    (u32::from(bits) >> N == 0).then_some(flags)
}

pub(crate) fn take_list<S: ByteSource, T>(
    from: &mut S,
    mut take: impl FnMut(&mut S) -> Option<T>,
) -> Option<Vec<T>> {
    let count = usize::try_from(take_number(from)?).ok()?;
    // An item has at least one byte, so a larger count is invalid and must not allocate.
    if count > from.rest().len() {
        return None;
    }
    // Not the count, which the client has sent.
    let mut list = Vec::with_capacity(count.min(LIST_RESERVED));
    for _ in 0..count {
        list.push(take(from)?);
    }
    Some(list)
}

pub(crate) fn take_option<S: ByteSource, T>(
    from: &mut S,
    take: impl FnOnce(&mut S) -> Option<T>,
) -> Option<Option<T>> {
    match take_byte(from)? {
        0 => Some(None),
        1 => Some(Some(take(from)?)),
        _ => None,
    }
}

pub(crate) fn put_option<B: ByteSink, T>(
    out: &mut B,
    option: Option<&T>,
    put: impl FnOnce(&mut B, &T),
) {
    out.put_u8(u8::from(option.is_some()));
    if let Some(item) = option {
        put(out, item);
    }
}

const VARINT_BYTES_MAX: usize = 10;
/// Items of a list that memory is reserved for before they are decoded.
const LIST_RESERVED: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for number in [0, 1, -1, 63, -64, 64, 300, -300, i64::MAX, i64::MIN] {
            let mut out = BytesMut::new();
            put_signed(&mut out, number);
            put_number(&mut out, number as u64);
            let mut from = out.freeze();
            let copy = from.clone();
            let mut reader = ByteReader::from(&copy);
            assert_eq!(take_signed(&mut from), Some(number));
            assert_eq!(take_signed(&mut reader), Some(number));
            assert_eq!(take_number(&mut from), Some(number as u64));
            assert_eq!(take_number(&mut reader), Some(number as u64));
            assert!(from.is_empty() && reader.rest.is_empty());
        }
    }

    #[test]
    fn parts_share_the_memory_of_the_whole() {
        let all = Bytes::from_static(&[2, 7, 8, 0, 1, 9, 3, 1]);
        let mut reader = ByteReader::from(&all);
        let part = take_bytes(&mut reader).unwrap();
        assert_eq!((part.as_ptr(), &part[..]), (all[1..].as_ptr(), &[7, 8][..]));
        assert_eq!(take_bytes(&mut reader), Some(Bytes::new()));
        assert_eq!(take_bytes(&mut reader), Some(Bytes::from_static(&[9])));
        assert_eq!(take_bytes(&mut reader), None, "it is longer than the rest");
    }

    #[test]
    fn invalid_numbers_and_lengths_are_refused() {
        assert_eq!(take_number(&mut Bytes::from_static(&[0xff; 11])), None);
        assert_eq!(take_number(&mut Bytes::from_static(&[0x80])), None);
        assert_eq!(take_bytes(&mut Bytes::from_static(&[5, 1, 2])), None);
        assert_eq!(take_list(&mut Bytes::from_static(&[200, 1, 1]), take_byte), None);
        assert_eq!(take_flags::<2>(&mut Bytes::from_static(&[4])), None);
        assert_eq!(take_flags::<2>(&mut Bytes::from_static(&[2])), Some([false, true]));
    }
}
