//! Encoding of numbers and bytes in commands, replies and rows.
//!
//! Numbers are base-128 varints, signed ones in zigzag encoding; bytes are preceded by their
//! length. No length that is read is trusted. `docs/formats.md` describes the format.

use bytes::{Buf, BufMut, Bytes, BytesMut};

pub(crate) fn put_number(out: &mut BytesMut, mut number: u64) {
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

pub(crate) fn put_signed(out: &mut BytesMut, number: i64) {
    put_number(out, ((number << 1) ^ (number >> 63)) as u64);
}

pub(crate) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.put_slice(bytes);
}

/// Up to eight flags in one byte, the first flag in the lowest bit.
pub(crate) fn put_flags(out: &mut BytesMut, flags: &[bool]) {
    let bits = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag));
    out.put_u8(bits);
}

pub(crate) fn put_list<T>(out: &mut BytesMut, list: &[T], put: impl Fn(&mut BytesMut, &T)) {
    put_number(out, list.len() as u64);
    for item in list {
        put(out, item);
    }
}

pub(crate) fn take_byte(from: &mut Bytes) -> Option<u8> {
    from.try_get_u8().ok()
}

pub(crate) fn take_number(from: &mut Bytes) -> Option<u64> {
    let mut number = 0;
    for (position, byte) in from.iter().take(VARINT_BYTES_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << (7 * position);
        // The tenth byte has room for one bit.
        if shifted >> (7 * position) != bits {
            return None;
        }
        number |= shifted;
        if byte & 0x80 == 0 {
            from.advance(position + 1);
            return Some(number);
        }
    }
    None
}

pub(crate) fn take_signed(from: &mut Bytes) -> Option<i64> {
    let number = take_number(from)?;
    Some((number >> 1) as i64 ^ -((number & 1) as i64))
}

pub(crate) fn take_bytes(from: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(take_number(from)?).ok()?;
    (length <= from.len()).then(|| from.split_to(length))
}

/// Exactly `N` flags. `None` if a higher bit is set.
pub(crate) fn take_flags<const N: usize>(from: &mut Bytes) -> Option<[bool; N]> {
    let bits = take_byte(from)?;
    let flags = std::array::from_fn(|position| bits >> position & 1 == 1);
    (u32::from(bits) >> N == 0).then_some(flags)
}

pub(crate) fn take_list<T>(
    from: &mut Bytes,
    mut take: impl FnMut(&mut Bytes) -> Option<T>,
) -> Option<Vec<T>> {
    let count = usize::try_from(take_number(from)?).ok()?;
    // An item has at least one byte, so a larger count is invalid and must not allocate.
    if count > from.len() {
        return None;
    }
    (0..count).map(|_| take(from)).collect()
}

pub(crate) fn take_option<T>(
    from: &mut Bytes,
    take: impl FnOnce(&mut Bytes) -> Option<T>,
) -> Option<Option<T>> {
    match take_byte(from)? {
        0 => Some(None),
        1 => Some(Some(take(from)?)),
        _ => None,
    }
}

pub(crate) fn put_option<T>(
    out: &mut BytesMut,
    option: Option<&T>,
    put: impl FnOnce(&mut BytesMut, &T),
) {
    out.put_u8(u8::from(option.is_some()));
    if let Some(item) = option {
        put(out, item);
    }
}

const VARINT_BYTES_MAX: usize = 10;

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
            assert_eq!(take_signed(&mut from), Some(number));
            assert_eq!(take_number(&mut from), Some(number as u64));
            assert!(from.is_empty());
        }
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
