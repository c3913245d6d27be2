//! Frames written and read byte by byte.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RESET: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

pub(crate) fn window(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW, 0, stream, &increment.to_be_bytes())
}

/// The preface and empty settings.
pub(crate) fn start_of_connection() -> Vec<u8> {
    [quorate_http2::PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// A header block with these fields, all of them literals.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "short texts only");
            block.push(text.len() as u8);
            block.extend(text.bytes());
        }
    }
    block
}

pub(crate) fn head_of(path: &str) -> Vec<u8> {
    block(&[(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")])
}

pub(crate) fn headers(stream: u32, path: &str, flags: u8) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &head_of(path))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadFrame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl ReadFrame {
    /// The error code of a GOAWAY or RST_STREAM.
    pub(crate) fn code(&self) -> u32 {
        let start = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[start..start + 4].try_into().unwrap())
    }
}

/// The next frame that the server sends. `None` at the end of the connection.
pub(crate) async fn read_frame(socket: &mut DuplexStream) -> Option<ReadFrame> {
    read_from(socket).await
}

pub(crate) async fn read_from(socket: &mut (impl AsyncRead + Unpin)) -> Option<ReadFrame> {
    timeout(Duration::from_secs(120), async {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes(head[5..9].try_into().unwrap());
        let mut payload = vec![0; length];
        socket.read_exact(&mut payload).await.ok()?;
        Some(ReadFrame { kind: head[3], flags: head[4], stream, payload })
    })
    .await
    .expect("a frame of the server")
}

/// The next frame of this type.
pub(crate) async fn read_kind(socket: &mut DuplexStream, kind: u8) -> Option<ReadFrame> {
    loop {
        let frame = read_frame(socket).await?;
        if frame.kind == kind && !(kind == SETTINGS && frame.flags == 0) {
            return Some(frame);
        }
    }
}

/// Sends bytes, and returns the frames that the server sends until it has processed them, or until
/// it ends the connection.
pub(crate) async fn exchange(socket: &mut DuplexStream, bytes: &[u8]) -> Vec<ReadFrame> {
    let mut frames = Vec::new();
    // The reply to the first ping may precede what the calls send in the same turn.
    for bytes in [bytes, &[]] {
        let ping = frame(PING, 0, 0, b"barrier!");
        // The server may have closed the connection already.
        let _ = socket.write_all(&[bytes, &ping].concat()).await;
        while let Some(frame) = read_frame(socket).await {
            if frame.kind == PING && frame.flags == 1 {
                break;
            }
            let is_last = frame.kind == GOAWAY;
            frames.push(frame);
            if is_last {
                return frames;
            }
        }
    }
    frames
}
