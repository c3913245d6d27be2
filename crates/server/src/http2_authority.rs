//! Accepts clients of etcd 3.4, which put the scheme into the authority of calls to a single
//! endpoint: `:authority: http://host:port`. HTTP/2 allows no scheme there, and hyper rejects
//! the request.
//!
//! The scheme is removed from the first request of a connection before hyper reads it. That is
//! enough, since those clients open a connection for each such call. Whatever is not understood
//! here is passed on unchanged. Formats: RFC 9113, section 4, and RFC 7541.

/// Rewrites the bytes of a connection up to its first request.
#[derive(Debug, Default)]
pub(crate) struct AuthorityRewriter {
    /// How much of the preface was received.
    preface_bytes: usize,
    /// The start of a frame whose end was not received yet.
    partial_frame: Vec<u8>,
    is_done: bool,
}

impl AuthorityRewriter {
    /// Takes received bytes, and returns those that can be passed on.
    pub(crate) fn rewrite(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut output = Vec::with_capacity(bytes.len());
        let rest = self.pass_preface(bytes, &mut output);
        self.partial_frame.extend_from_slice(rest);
        while !self.is_done {
            let Some(frame) = self.take_frame() else { break };
            if frame[3] == HEADERS {
                self.is_done = true;
                output.extend(without_scheme(&frame).unwrap_or(frame));
            } else {
                output.extend(frame);
            }
        }
        if self.is_done {
            output.append(&mut self.partial_frame);
        }
        output
    }

    /// Whether all later bytes can be passed on unchanged.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    fn pass_preface<'a>(&mut self, bytes: &'a [u8], output: &mut Vec<u8>) -> &'a [u8] {
        let expected = &PREFACE[self.preface_bytes..];
        let length = expected.len().min(bytes.len());
        let (start, rest) = bytes.split_at(length);
        // Any other start is not HTTP/2.
        self.is_done |= start != &expected[..length];
        self.preface_bytes += length;
        output.extend_from_slice(start);
        rest
    }

    fn take_frame(&mut self) -> Option<Vec<u8>> {
        let [a, b, c, ..] = *self.partial_frame.get(..FRAME_HEAD_BYTES)? else { return None };
        let length = FRAME_HEAD_BYTES + u32::from_be_bytes([0, a, b, c]) as usize;
        if length > FRAME_HEAD_BYTES + FRAME_BYTES_MAX {
            self.is_done = true;
        }
        if self.partial_frame.len() < length {
            return None;
        }
        let rest = self.partial_frame.split_off(length);
        Some(std::mem::replace(&mut self.partial_frame, rest))
    }
}

/// The same frame with the scheme removed from its authority. `None` if nothing changes.
fn without_scheme(frame: &[u8]) -> Option<Vec<u8>> {
    let (head, body) = frame.split_at_checked(FRAME_HEAD_BYTES)?;
    let flags = head[4];
    if flags & END_HEADERS == 0 || flags & PADDED != 0 {
        return None;
    }
    let skipped = if flags & PRIORITY == 0 { 0 } else { 5 };
    let (priority, fields) = body.split_at_checked(skipped)?;
    let fields = fields_without_scheme(fields)?;
    let length = u32::try_from(priority.len() + fields.len()).ok()?.to_be_bytes();
    Some([&length[1..], &head[3..], priority, &fields].concat())
}

fn fields_without_scheme(fields: &[u8]) -> Option<Vec<u8>> {
    let mut rest = fields;
    while let Some(first) = rest.first() {
        let prefix_bits = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let name = take_number(&mut rest, prefix_bits)?;
        if prefix_bits == 7 || prefix_bits == 5 {
            continue;
        }
        if name == 0 {
            take_text(&mut rest)?;
        }
        let before = fields.len() - rest.len();
        let value = take_text(&mut rest)?;
        if name == AUTHORITY {
            let text = value.decode()?;
            let scheme = text.get(..SCHEME.len())?;
            let authority = &text[SCHEME.len()..];
            let authority = authority.strip_suffix(b"/").unwrap_or(authority);
            // A longer text is no address, and its length would need more than one byte.
            if !scheme.eq_ignore_ascii_case(SCHEME) || authority.len() >= 127 {
                return None;
            }
            let length = [authority.len() as u8];
            return Some([&fields[..before], &length, authority, rest].concat());
        }
    }
    None
}

/// A string literal of HPACK.
struct HpackString<'a> {
    bytes: &'a [u8],
    is_huffman: bool,
}

impl HpackString<'_> {
    fn decode(&self) -> Option<Vec<u8>> {
        if self.is_huffman { decode_huffman(self.bytes) } else { Some(self.bytes.to_vec()) }
    }
}

fn take_text<'a>(rest: &mut &'a [u8]) -> Option<HpackString<'a>> {
    let is_huffman = rest.first()? & 0x80 != 0;
    let length = take_number(rest, 7)?;
    let (bytes, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(HpackString { bytes, is_huffman })
}

/// An HPACK integer: in the low bits of a byte, and if it does not fit, in further bytes of
/// seven bits each.
fn take_number(rest: &mut &[u8], prefix_bits: u32) -> Option<usize> {
    let max = (1 << prefix_bits) - 1;
    let (first, mut tail) = rest.split_first()?;
    let mut number = usize::from(*first) & max;
    if number == max {
        for shift in [0, 7, 14] {
            let (byte, others) = tail.split_first()?;
            tail = others;
            number += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                *rest = tail;
                return Some(number);
            }
        }
        return None;
    }
    *rest = tail;
    Some(number)
}

/// Decodes the characters that an address can have.
fn decode_huffman(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let (mut code, mut bits) = (0_u32, 0_u32);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |shift| byte >> shift & 1)) {
        code = code << 1 | u32::from(bit);
        bits += 1;
        if let Some(letter) = letter(code, bits) {
            text.push(letter);
            (code, bits) = (0, 0);
        }
        if bits > CODE_BITS_MAX {
            return None;
        }
    }
    // The remaining bits are ones that pad the last byte.
    (bits < 8 && code == (1 << bits) - 1).then_some(text)
}

fn letter(code: u32, bits: u32) -> Option<u8> {
    let (_, first, letters) = CODES.iter().find(|(length, ..)| *length == bits)?;
    let number = usize::try_from(code.checked_sub(*first)?).ok()?;
    letters.get(number).copied()
}

/// Length in bits, first code, and the characters of that and the following codes.
const CODES: &[(u32, u32, &[u8])] = &[
    (5, 0x00, b"012aceiost"),
    (6, 0x15, b"%-./3456789=A_bdfghlmnpru"),
    (7, 0x5c, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, 0xfc, b"XZ"),
    (13, 0x1ffb, b"[]~"),
];

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD_BYTES: usize = 9;
/// The largest frame before another size is agreed on.
const FRAME_BYTES_MAX: usize = 1 << 14;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The index of `:authority` in HPACK's static table.
const AUTHORITY: usize = 1;
const SCHEME: &[u8] = b"http://";
const CODE_BITS_MAX: u32 = 13;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], body].concat()
    }

    /// Header fields: POST, http, the path, this authority, and one more.
    fn fields(authority: &[u8], is_huffman: bool) -> Vec<u8> {
        let length = [authority.len() as u8 | if is_huffman { 0x80 } else { 0 }];
        let end = [0x40, 2, b't', b'e', 8];
        [&[0x83, 0x86, 0x44, 1, b'/', 0x41][..], &length, authority, &end, b"trailers"].concat()
    }

    fn opening(authority: &[u8], is_huffman: bool) -> Vec<u8> {
        let settings = frame(4, 0, &[0, 4, 0, 1, 0, 0]);
        let headers = frame(HEADERS, END_HEADERS, &fields(authority, is_huffman));
        [PREFACE, &settings, &headers, b"later bytes"].concat()
    }

    /// The output for input in pieces of this size.
    fn rewritten(bytes: &[u8], size: usize) -> Vec<u8> {
        let mut rewriter = AuthorityRewriter::default();
        let mut output = Vec::new();
        for piece in bytes.chunks(size) {
            match rewriter.is_done() {
                true => output.extend_from_slice(piece),
                false => output.extend(rewriter.rewrite(piece)),
            }
        }
        assert!(rewriter.is_done());
        output
    }

    #[test]
    fn the_scheme_is_removed_for_every_split_of_the_input() {
        let expected = opening(b"127.0.0.1:2379", false);
        for text in ["http://127.0.0.1:2379", "HTTP://127.0.0.1:2379", "http://127.0.0.1:2379/"] {
            let sent = opening(text.as_bytes(), false);
            for size in 1..=sent.len() {
                assert_eq!(rewritten(&sent, size), expected, "{text} in pieces of {size}");
            }
        }
    }

    /// Authorities with scheme, encoded by another implementation.
    const HUFFMAN: &[(&str, &[u8])] = &[
        (
            "127.0.0.1:2379",
            &[
                0x9d, 0x29, 0xae, 0xe3, 0x0c, 0x04, 0x4e, 0xae, 0x05, 0xc0, 0xb8, 0x6e, 0x09, 0x97,
                0x5f,
            ],
        ),
        (
            "Node-1_a.example.com:65535",
            &[
                0x9d, 0x29, 0xae, 0xe3, 0x0c, 0x69, 0x3c, 0x85, 0x58, 0x31, 0x0d, 0x72, 0xf9, 0x1d,
                0x35, 0xd0, 0x55, 0xc8, 0x7a, 0x6e, 0x38, 0xdb, 0x6c, 0xb7,
            ],
        ),
        (
            "[fe80::1%25eth0]:9",
            &[
                0x9d, 0x29, 0xae, 0xe3, 0x0c, 0x7f, 0xee, 0x52, 0xbc, 0x0b, 0x97, 0x02, 0xa8, 0x9b,
                0x2a, 0x67, 0x07, 0xff, 0x2e, 0x3f,
            ],
        ),
    ];

    #[test]
    fn huffman_coded_authorities_are_decoded() {
        for (text, encoded) in HUFFMAN {
            let sent = opening(encoded, true);
            assert_eq!(rewritten(&sent, sent.len()), opening(text.as_bytes(), false), "{text}");
        }
    }

    #[test]
    fn valid_and_unknown_input_is_passed_on_unchanged() {
        let mut cut_off = opening(b"http://a:1", false);
        let flags = PREFACE.len() + 15 + 4;
        cut_off[flags] = 0;
        for sent in [
            opening(b"127.0.0.1:2379", false),
            opening(b"https://a:1", false),
            opening(b"", false),
            opening(&[0xff; 8], true),
            cut_off,
            b"GET http://a:1 HTTP/1.1\r\n\r\n".to_vec(),
            [PREFACE, &frame(HEADERS, END_HEADERS, &[0x41, 0x7f, 0xff, 0xff, 0xff, 0xff])].concat(),
            [PREFACE, &[0xff; 40]].concat(),
        ] {
            for size in [1, 7, sent.len()] {
                assert_eq!(rewritten(&sent, size), sent, "in pieces of {size}");
            }
        }
    }
}
