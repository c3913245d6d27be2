//! The wire format of protobuf, as far as etcd's files use it: numbers and byte strings.

/// The fields of a message, in the order in which they are written.
#[derive(Clone, Debug)]
pub struct ProtobufFields<'a> {
    rest: &'a [u8],
}

/// One field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtobufField<'a> {
    /// Its number.
    pub number: u64,
    /// Its value.
    pub value: ProtobufValue<'a>,
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtobufValue<'a> {
    /// A number, an enum or a bool.
    Number(u64),
    /// Bytes, a text or a message.
    Bytes(&'a [u8]),
    /// A number of fixed size, which no message here has.
    Fixed,
}

impl ProtobufValue<'_> {
    /// The number; 0 if it is not one.
    pub fn number(&self) -> u64 {
        if let Self::Number(number) = self { *number } else { 0 }
    }
}

impl<'a> ProtobufValue<'a> {
    /// The bytes; none if it is a number.
    pub fn bytes(&self) -> &'a [u8] {
        if let Self::Bytes(bytes) = *self { bytes } else { &[] }
    }
}

impl<'a> ProtobufFields<'a> {
    /// The fields of this message.
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn take_varint(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for position in 0..10 {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has one bit.
            if position == 9 && bits > 1 {
                return None;
            }
            number |= bits << (7 * position);
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take_bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(usize::try_from(count).ok()?)?;
        self.rest = rest;
        Some(bytes)
    }

    fn take_field(&mut self) -> Option<ProtobufField<'a>> {
        let tag = self.take_varint()?;
        let value = match tag & 7 {
            0 => ProtobufValue::Number(self.take_varint()?),
            1 => self.take_bytes(8).map(|_| ProtobufValue::Fixed)?,
            2 => {
                let length = self.take_varint()?;
                ProtobufValue::Bytes(self.take_bytes(length)?)
            }
            5 => self.take_bytes(4).map(|_| ProtobufValue::Fixed)?,
            _ => return None,
        };
        (tag >> 3 > 0).then_some(ProtobufField { number: tag >> 3, value })
    }
}

impl<'a> Iterator for ProtobufFields<'a> {
    /// `None` if the rest of the message cannot be read.
    type Item = Option<ProtobufField<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.take_field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Appends a number, unless it is 0: proto3 leaves that out.
pub(crate) fn put_number(out: &mut Vec<u8>, field: u32, number: u64) {
    if number != 0 {
        put_varint(out, u64::from(field) << 3);
        put_varint(out, number);
    }
}

/// Appends bytes, unless there are none.
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_message(out, field, bytes);
    }
}

/// Appends a message, which may be empty.
pub(crate) fn put_message(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_varint(out, u64::from(field) << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_round_trip() {
        let mut message = Vec::new();
        put_number(&mut message, 1, 0);
        put_number(&mut message, 2, u64::MAX);
        put_bytes(&mut message, 3, b"abc");
        put_message(&mut message, 1000, b"");
        let fields: Vec<_> = ProtobufFields::new(&message).map(Option::unwrap).collect();
        let expected = [
            (2, ProtobufValue::Number(u64::MAX)),
            (3, ProtobufValue::Bytes(b"abc")),
            (1000, ProtobufValue::Bytes(b"")),
        ];
        assert_eq!(fields, expected.map(|(number, value)| ProtobufField { number, value }));
    }

    #[test]
    fn invalid_messages_are_noticed() {
        for bytes in [&[8][..], &[8, 0x80], &[26, 5, 1], &[15, 0], &[0, 1], &[0xff; 11], &[9, 1]] {
            assert!(ProtobufFields::new(bytes).any(|field| field.is_none()), "{bytes:?}");
        }
    }
}
