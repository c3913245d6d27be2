//! From JSON to the bytes of a message, without a value in between: the result is hardly larger
//! than the text, however it is nested. (Only a negative number takes more bytes than digits.)
//!
//! As in protobuf's JSON mapping: bytes are base64, numbers may be strings, enums are names or
//! numbers, fields have either of their names, and null is the same as leaving a field out.

use std::fmt;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost::encoding::{WireType, encode_key, encode_varint};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::schema::{FieldKind, FieldSchema, MessageId, MessageSchema, SCHEMA};

/// The message that a text describes. What follows the first JSON value is ignored, as in etcd;
/// no value at all is an empty message.
pub(super) fn encode(message: MessageId, text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    if text.iter().all(u8::is_ascii_whitespace) {
        return Ok(bytes);
    }
    // It refuses more than 128 nested values.
    let mut reader = serde_json::Deserializer::from_slice(text);
    let seed = MessageSeed { schema: SCHEMA.message(message), bytes: &mut bytes };
    seed.deserialize(&mut reader).map_err(|error| format!("invalid JSON: {error}"))?;
    Ok(bytes)
}

/// Reads an object, and appends the fields of a message.
struct MessageSeed<'a> {
    schema: &'a MessageSchema,
    bytes: &'a mut Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for MessageSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MessageSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = vec![false; self.schema.fields.len()];
        let mut oneofs: Vec<u32> = Vec::new();
        while let Some(position) = map.next_key_seed(FieldName(self.schema))? {
            let Some(position) = position else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let field = &self.schema.fields[position];
            if std::mem::replace(&mut seen[position], true) {
                return Err(A::Error::custom(format!("duplicate field {:?}", field.name)));
            }
            let value = FieldValue { field, bytes: self.bytes, is_element: false };
            let is_set = map.next_value_seed(value)?;
            if let Some(oneof) = field.oneof.filter(|_| is_set) {
                if oneofs.contains(&oneof) {
                    let name = &field.name;
                    let text = format!("field {name:?}: another field of its oneof is already set");
                    return Err(A::Error::custom(text));
                }
                oneofs.push(oneof);
            }
        }
        Ok(())
    }
}

/// Reads the name of a field: its position, or `None` if the message has no such field.
struct FieldName<'a>(&'a MessageSchema);

impl<'de> DeserializeSeed<'de> for FieldName<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldName<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.position(name))
    }
}

/// Reads the value of a field, and appends it. Returns whether it is set.
struct FieldValue<'a> {
    field: &'a FieldSchema,
    bytes: &'a mut Vec<u8>,
    /// One of the values of a repeated field.
    is_element: bool,
}

impl<'de> DeserializeSeed<'de> for FieldValue<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<bool, D::Error> {
        reader.deserialize_any(self)
    }
}

impl FieldValue<'_> {
    fn is_list(&self) -> bool {
        self.field.is_repeated && !self.is_element
    }

    /// Zero is the same as no value, except where the presence of a field says something.
    fn omits_zero(&self) -> bool {
        !self.is_element && self.field.oneof.is_none()
    }

    fn invalid<E: Error>(&self, value: impl fmt::Display) -> E {
        let Self { field, .. } = self;
        let kind = match field.kind {
            _ if self.is_list() => "repeated",
            FieldKind::Bool => "bool",
            FieldKind::Int32 => "int32",
            FieldKind::Uint32 => "uint32",
            FieldKind::Int64 => "int64",
            FieldKind::Uint64 => "uint64",
            FieldKind::Enum(_) => "enum",
            FieldKind::String => "string",
            FieldKind::Bytes => "bytes",
            FieldKind::Message(_) | FieldKind::Unsupported => "message",
        };
        E::custom(format!("invalid value for {kind} field {}: {value}", field.name))
    }

    fn put_number(self, bits: u64) -> bool {
        if bits != 0 || !self.omits_zero() {
            encode_key(self.field.number, WireType::Varint, self.bytes);
            encode_varint(bits, self.bytes);
        }
        true
    }

    fn put_bytes(self, value: &[u8]) -> bool {
        if !value.is_empty() || !self.omits_zero() {
            encode_key(self.field.number, WireType::LengthDelimited, self.bytes);
            encode_varint(value.len() as u64, self.bytes);
            self.bytes.extend_from_slice(value);
        }
        true
    }

    fn put_integer<E: Error>(self, value: i128) -> Result<bool, E> {
        let fits = match self.field.kind {
            _ if self.is_list() => false,
            FieldKind::Int32 | FieldKind::Enum(_) => i32::try_from(value).is_ok(),
            FieldKind::Uint32 => u32::try_from(value).is_ok(),
            FieldKind::Int64 => i64::try_from(value).is_ok(),
            FieldKind::Uint64 => u64::try_from(value).is_ok(),
            _ => false,
        };
        if !fits {
            return Err(self.invalid(value));
        }
        // Negative numbers are sign-extended to 64 bits.
        Ok(self.put_number(value as u64))
    }
}

impl<'de> Visitor<'de> for FieldValue<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value for field {}", self.field.name)
    }

    /// null.
    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        if self.is_element { Err(self.invalid("null")) } else { Ok(false) }
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        if self.field.kind != FieldKind::Bool || self.is_list() {
            return Err(self.invalid(value));
        }
        Ok(self.put_number(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<bool, E> {
        self.put_integer(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<bool, E> {
        self.put_integer(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<bool, E> {
        if value.fract() != 0.0 || value.abs() > EXACT_MAX {
            return Err(self.invalid(value));
        }
        self.put_integer(value as i128)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<bool, E> {
        if self.is_list() {
            return Err(self.invalid("a string"));
        }
        match self.field.kind {
            FieldKind::String => Ok(self.put_bytes(value.as_bytes())),
            FieldKind::Bytes => match decode_base64(value) {
                Some(bytes) => Ok(self.put_bytes(&bytes)),
                None => Err(self.invalid("it is not base64")),
            },
            FieldKind::Enum(id) => match SCHEMA.enumeration(id).number(value) {
                Some(number) => self.put_integer(number.into()),
                None => Err(self.invalid(format_args!("{:?}", shortened(value)))),
            },
            FieldKind::Int32 | FieldKind::Uint32 | FieldKind::Int64 | FieldKind::Uint64 => {
                match integer(value) {
                    Some(number) => self.put_integer(number),
                    None => Err(self.invalid(format_args!("{:?}", shortened(value)))),
                }
            }
            _ => Err(self.invalid("a string")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<bool, A::Error> {
        if !self.is_list() {
            return Err(self.invalid("a list"));
        }
        loop {
            let element =
                FieldValue { field: self.field, bytes: &mut *self.bytes, is_element: true };
            if values.next_element_seed(element)?.is_none() {
                return Ok(true);
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<bool, A::Error> {
        let FieldKind::Message(message) = self.field.kind else {
            return Err(self.invalid("an object"));
        };
        if self.is_list() {
            return Err(self.invalid("an object"));
        }
        let mut nested = Vec::new();
        let seed = MessageSeed { schema: SCHEMA.message(message), bytes: &mut nested };
        seed.visit_map(map)?;
        encode_key(self.field.number, WireType::LengthDelimited, self.bytes);
        encode_varint(nested.len() as u64, self.bytes);
        self.bytes.append(&mut nested);
        Ok(true)
    }
}

/// The beginning of a text, for errors.
fn shortened(text: &str) -> &str {
    let end = (0..=SHOWN_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Base64 as Go reads it: either alphabet, with padding or without, line ends ignored.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let lines: String;
    let mut text = text;
    if text.contains(['\r', '\n']) {
        lines = text.replace(['\r', '\n'], "");
        text = &lines;
    }
    let padding = match text.len() % 4 {
        0 => DecodePaddingMode::RequireCanonical,
        _ => DecodePaddingMode::RequireNone,
    };
    let alphabet = match text.contains(['-', '_']) {
        true => &alphabet::URL_SAFE,
        false => &alphabet::STANDARD,
    };
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(padding)
        .with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(alphabet, config).decode(text).ok()
}

/// A whole number as JSON writes it, such as `12`, `-3`, `1.0` or `1e3`.
fn integer(text: &str) -> Option<i128> {
    let (is_negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (rest, 0),
    };
    let (whole, part) = match mantissa.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (mantissa, ""),
    };
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let has_leading_zero = whole.len() > 1 && whole.starts_with('0');
    if whole.is_empty() || has_leading_zero || !is_number(whole) || !is_number(part) {
        return None;
    }
    let part = part.trim_end_matches('0');
    let zeros = exponent.checked_sub(i32::try_from(part.len()).ok()?)?;
    let digits = format!("{whole}{part}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    // Trailing zeros make up for a negative exponent.
    let kept = digits.trim_end_matches('0');
    let zeros = i64::from(zeros) + (digits.len() - kept.len()) as i64;
    let zeros = usize::try_from(zeros).ok()?;
    if kept.len().checked_add(zeros)? > DIGITS_MAX {
        return None;
    }
    let number: i128 = kept.parse().ok()?;
    let number = number * 10_i128.pow(zeros as u32);
    Some(if is_negative { -number } else { number })
}

/// Above it, not every whole number is a float.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
/// More than any integer of 64 bits has.
const DIGITS_MAX: usize = 20;
const SHOWN_MAX: usize = 40;

#[cfg(test)]
mod tests;
