//! Encodes the headers of responses as literals that are not inserted into the client's table: the
//! same response is the same bytes on every connection.

use http::StatusCode;

use super::table::STATIC;

/// Appends a status.
pub(crate) fn encode_status(status: StatusCode, out: &mut Vec<u8>) {
    let place = STATIC[STATUS..STATUS + STATUSES].iter();
    match place.clone().position(|(_, value)| *value == status.as_str()) {
        Some(place) => out.push(0x80 | (STATUS + place + 1) as u8),
        None => {
            put_integer(STATUS + 1, 4, 0, out);
            put_string(status.as_str().as_bytes(), out);
        }
    }
}

/// Appends a field.
pub(crate) fn encode_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    match name {
        b"content-type" => put_integer(CONTENT_TYPE, 4, 0, out),
        _ => {
            out.push(0);
            put_string(name, out);
        }
    }
    put_string(value, out);
}

pub(crate) fn put_string(text: &[u8], out: &mut Vec<u8>) {
    put_integer(text.len(), 7, 0, out);
    out.extend_from_slice(text);
}

/// Appends an integer whose first byte has this many bits of it, below these flags.
pub(crate) fn put_integer(value: usize, prefix: u32, flags: u8, out: &mut Vec<u8>) {
    let mask = (1usize << prefix) - 1;
    if value < mask {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The place of the first status in the static table, and how many there are.
const STATUS: usize = 7;
const STATUSES: usize = 7;
/// The index of this name.
const CONTENT_TYPE: usize = 31;

#[cfg(test)]
mod tests {
    use super::super::{BlockField, HpackDecoder};
    use super::*;

    #[test]
    fn encoded_fields_are_decoded() {
        let long = "x".repeat(5_000);
        let pairs = [("content-type", "application/grpc"), ("grpc-message", &long), ("a", "")];
        let mut block = Vec::new();
        for status in [200, 404, 415, 503] {
            block.clear();
            encode_status(StatusCode::from_u16(status).unwrap(), &mut block);
            pairs.iter().for_each(|(name, value)| {
                encode_field(name.as_bytes(), value.as_bytes(), &mut block);
            });
            let (mut decoder, mut fields) = (HpackDecoder::new(), Vec::new());
            assert_eq!(decoder.decode(&block, usize::MAX, &mut fields), Ok(false));
            let found: Vec<_> = fields
                .iter()
                .map(|field| match field {
                    BlockField::Entry(id) => decoder.field(*id).unwrap(),
                    BlockField::Literal(field) => field.clone(),
                })
                .collect();
            assert_eq!(found[0].name, ":status");
            assert_eq!(found[0].value, status.to_string());
            for (field, (name, value)) in found[1..].iter().zip(pairs) {
                assert_eq!(
                    (&field.name[..], &field.value[..]),
                    (name.as_bytes(), value.as_bytes())
                );
            }
        }
    }
}
