//! Frames (RFC 9113, sections 4, 6 and 7): their heads, their types, and those that we send.

use std::fmt;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl FrameHead {
    pub(crate) fn parse(bytes: &[u8; HEAD_BYTES]) -> Self {
        let [a, b, c, kind, flags, id @ ..] = *bytes;
        Self {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes(id) & ID_MASK,
        }
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

pub(crate) const HEAD_BYTES: usize = 9;
/// The highest bit of ids and increments is reserved.
pub(crate) const ID_MASK: u32 = (1 << 31) - 1;
/// The longest frame that the other side may send: the default.
pub(crate) const FRAME_BYTES_MAX: usize = 16_384;
pub(crate) const WINDOW_MAX: i64 = (1 << 31) - 1;
/// The window of both sides before any settings.
pub(crate) const WINDOW_DEFAULT: i64 = 65_535;

pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(crate) mod flag {
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

pub(crate) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// Why a stream or a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub(crate) u32);

impl Reason {
    pub(crate) const NO_ERROR: Self = Self(0);
    pub(crate) const PROTOCOL_ERROR: Self = Self(1);
    pub(crate) const INTERNAL_ERROR: Self = Self(2);
    pub(crate) const FLOW_CONTROL_ERROR: Self = Self(3);
    pub(crate) const STREAM_CLOSED: Self = Self(5);
    pub(crate) const FRAME_SIZE_ERROR: Self = Self(6);
    pub(crate) const REFUSED_STREAM: Self = Self(7);
    pub(crate) const CANCEL: Self = Self(8);
    pub(crate) const COMPRESSION_ERROR: Self = Self(9);
    pub(crate) const ENHANCE_YOUR_CALM: Self = Self(11);
}

/// The code, as in RFC 9113, section 7.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An error of the other side after which the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionError {
    pub(crate) reason: Reason,
    pub(crate) text: &'static str,
}

impl ConnectionError {
    pub(crate) const fn new(reason: Reason, text: &'static str) -> Self {
        Self { reason, text }
    }

    pub(crate) fn protocol(text: &'static str) -> Self {
        Self::new(Reason::PROTOCOL_ERROR, text)
    }

    pub(crate) fn size(text: &'static str) -> Self {
        Self::new(Reason::FRAME_SIZE_ERROR, text)
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HTTP/2 error {}: {}", self.reason.0, self.text)
    }
}

impl std::error::Error for ConnectionError {}

pub(crate) fn put_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let [_, a, b, c] = (length as u32).to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

pub(crate) fn put_reset(out: &mut Vec<u8>, stream: u32, reason: Reason) {
    put_head(out, 4, kind::RST_STREAM, 0, stream);
    out.extend_from_slice(&reason.0.to_be_bytes());
}

pub(crate) fn put_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    put_head(out, 4, kind::WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&increment.to_be_bytes());
}

pub(crate) fn put_ping(out: &mut Vec<u8>, flags: u8, content: [u8; 8]) {
    put_head(out, 8, kind::PING, flags, 0);
    out.extend_from_slice(&content);
}

pub(crate) fn put_goaway(out: &mut Vec<u8>, last: u32, reason: Reason, text: &str) {
    put_head(out, 8 + text.len(), kind::GOAWAY, 0, 0);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&reason.0.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

pub(crate) fn put_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    put_head(out, settings.len() * 6, kind::SETTINGS, 0, 0);
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// A header block, in as many frames as the client's limit requires.
pub(crate) fn put_headers(
    out: &mut Vec<u8>,
    stream: u32,
    block: &[u8],
    ends_stream: bool,
    frame_bytes_max: usize,
) {
    let end_stream = if ends_stream { flag::END_STREAM } else { 0 };
    let mut kind = kind::HEADERS;
    let mut rest = block;
    loop {
        let (piece, next) = rest.split_at(rest.len().min(frame_bytes_max));
        let flags = if next.is_empty() { flag::END_HEADERS } else { 0 };
        let flags = if kind == kind::HEADERS { flags | end_stream } else { flags };
        put_head(out, piece.len(), kind, flags, stream);
        out.extend_from_slice(piece);
        if next.is_empty() {
            return;
        }
        (kind, rest) = (kind::CONTINUATION, next);
    }
}
