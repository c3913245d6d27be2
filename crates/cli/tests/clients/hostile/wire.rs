//! HTTP/2 frames, built by hand so that they can be invalid.

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RESET: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GO_AWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    frame_of_length(payload.len() as u32, kind, flags, stream, payload)
}

/// A frame, possibly with a wrong length.
pub(crate) fn frame_of_length(
    length: u32,
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &[u8],
) -> Vec<u8> {
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The preface of a client, followed by these frames.
pub(crate) fn after_preface(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &[]), frames.concat()].concat()
}

/// The headers of a call, without compression.
pub(crate) fn call_headers(path: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "m"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    fields.iter().flat_map(|(name, value)| header(name, value.as_bytes())).collect()
}

/// A literal header, neither indexed nor compressed.
pub(crate) fn header(name: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    for part in [name.as_bytes(), value] {
        bytes.extend(prefixed_length(part.len()));
        bytes.extend(part);
    }
    bytes
}

/// An HPACK integer with a prefix of seven bits.
fn prefixed_length(length: usize) -> Vec<u8> {
    if length < 127 {
        return vec![length as u8];
    }
    let (mut bytes, mut rest) = (vec![127], length - 127);
    while rest >= 128 {
        bytes.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    bytes.push(rest as u8);
    bytes
}

/// The types of the frames in a reply.
pub(crate) fn kinds(mut reply: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let [a, b, c, kind, ..] = reply {
        kinds.push(*kind);
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        reply = reply.get(9 + length..).unwrap_or_default();
    }
    kinds
}
