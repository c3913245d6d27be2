//! The wire format, implemented a second time from docs/formats.md, so that a change of
//! either is noticed.

use crc32c::{crc32c, crc32c_append};

pub(crate) const MAGIC: &[u8] = b"quorate\n";

pub(crate) const HELLO: u8 = 1;
pub(crate) const HELLO_REPLY: u8 = 2;
pub(crate) const INTRODUCE: u8 = 3;
pub(crate) const WELCOME: u8 = 4;
pub(crate) const REFUSED: u8 = 5;
pub(crate) const KEEP_ALIVE: u8 = 7;
pub(crate) const MESSAGE: u8 = 16;
pub(crate) const SNAPSHOT_BEGIN: u8 = 32;
pub(crate) const SNAPSHOT_CHUNK: u8 = 33;
pub(crate) const SNAPSHOT_END: u8 = 34;
pub(crate) const SNAPSHOT_REFUSED: u8 = 36;

// The kinds of messages.
pub(crate) const VOTE: u32 = 18;
pub(crate) const APPEND_REPLY: u32 = 21;
pub(crate) const HEARTBEAT: u32 = 22;
pub(crate) const PROPOSE: u32 = 26;
pub(crate) const PROPOSALS: u32 = 32;
pub(crate) const ACCEPTED: u32 = 33;

pub(crate) fn frame(kind: u8, channel: u32, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(channel.to_le_bytes());
    bytes.extend((head.len() as u32).to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(crc32c(body).to_le_bytes());
    let checksum = crc32c_append(crc32c(&bytes), head);
    bytes.extend(checksum.to_le_bytes());
    bytes.extend(head);
    bytes.extend(body);
    bytes
}

/// A protobuf field that is a number.
pub(crate) fn number(tag: u32, value: u64) -> Vec<u8> {
    [varint(u64::from(tag) << 3), varint(value)].concat()
}

/// A protobuf field that is bytes, a text or a message.
pub(crate) fn bytes(tag: u32, value: &[u8]) -> Vec<u8> {
    [varint(u64::from(tag) << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

pub(crate) fn fixed64(tag: u32, value: u64) -> Vec<u8> {
    [varint(u64::from(tag) << 3 | 1), value.to_le_bytes().to_vec()].concat()
}

pub(crate) fn fixed32(tag: u32, value: u32) -> Vec<u8> {
    [varint(u64::from(tag) << 3 | 5), value.to_le_bytes().to_vec()].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

pub(crate) fn hello(version_min: u64, version_max: u64, purpose: u64) -> Vec<u8> {
    let head = [
        number(1, version_min),
        number(2, version_max),
        bytes(3, b"127.0.0.1:1"),
        number(4, purpose),
    ];
    [MAGIC.to_vec(), frame(HELLO, 0, &head.concat(), &[])].concat()
}

pub(crate) fn introduce(channel: u32, cluster: u64, from: u64, to: u64) -> Vec<u8> {
    let head = [fixed64(1, cluster), number(2, from), fixed64(3, 33), number(4, to)].concat();
    frame(INTRODUCE, channel, &head, &[])
}

/// A message with its term, the number of its kind, and its body.
pub(crate) fn message(term: u64, kind: u32, content: &[u8], body: &[u8]) -> Vec<u8> {
    frame(MESSAGE, 1, &[number(1, term), bytes(kind, content)].concat(), body)
}

/// A heartbeat of an old term: received, and without effect.
pub(crate) fn heartbeat(channel: u32) -> Vec<u8> {
    let head = [number(1, 1), bytes(22, &number(2, 5))].concat();
    frame(MESSAGE, channel, &head, &[])
}
