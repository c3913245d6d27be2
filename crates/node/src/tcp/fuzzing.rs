//! Entry points for the fuzz targets in `fuzz/`. Not part of the public API.

use bytes::{Bytes, BytesMut};
use prost::Message;
use quorate_core::MemberId;

use super::frame::take_frame;
use super::handshake::{Hello, HelloReply, IntroduceHead, RefusedHead};
use super::message::MessageHead;

/// Decodes the frames of a connection, and the messages in them.
pub fn decode_frames(bytes: &[u8]) {
    let mut buffer = BytesMut::from(bytes);
    while let Ok(Some(frame)) = take_frame(&mut buffer, 1 << 20) {
        let (from, to) = (MemberId(1), MemberId(2));
        let _ = MessageHead::decode(&frame.head, frame.body, from, 1, to, drop);
    }
}

/// Decodes what strangers send first, and the reply to a question of a joining member.
pub fn decode_handshake(bytes: &[u8]) {
    let _ = (Hello::decode(bytes), HelloReply::decode(bytes));
    let _ = IntroduceHead::decode_introduction(bytes);
    let _ = RefusedHead::decode(bytes);
    let _ = super::discovery::decode(bytes);
}

/// Decodes a message without the checksums of its frame. The first two bytes are the length of
/// the head.
pub fn decode_message(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else { return };
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (head, body) = rest.split_at(length);
    let body = Bytes::copy_from_slice(body);
    let _ = MessageHead::decode(head, body, MemberId(1), 1, MemberId(2), drop);
}
