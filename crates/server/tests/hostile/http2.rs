//! Broken HTTP/2 at the client port: the server ends the connection with the error of the
//! protocol, or ignores what it may ignore.

use std::net::SocketAddr;

use crate::{Report, exchange};

/// The error in the last frame of the server: the one that RFC 9113 has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goodbye {
    Protocol = 1,
    FlowControl = 3,
    FrameSize = 6,
    Compression = 9,
    Calm = 11,
}

use Goodbye::{Calm, Compression, FlowControl, FrameSize, Protocol};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH: u8 = 5;
const PING: u8 = 6;
const WINDOW: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// `:method POST`, `:scheme http`, `:path /`, as indexes of HPACK's static table.
const REQUEST: &[u8] = &[0x83, 0x86, 0x84];

fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

fn table() -> Vec<(&'static str, Vec<u8>, Goodbye)> {
    let large = |kind| {
        let mut bytes = frame(kind, 0, 1, &[]);
        bytes[..3].fill(0xff);
        bytes
    };
    let open = frame(HEADERS, END_HEADERS, 1, REQUEST);
    let window = |stream, value: u32| frame(WINDOW, 0, stream, &value.to_be_bytes());
    vec![
        ("a frame of 16 MiB", large(DATA), FrameSize),
        ("headers of 16 MiB", large(HEADERS), FrameSize),
        ("data of no stream", frame(DATA, 0, 0, b"x"), Protocol),
        ("data of an idle stream", frame(DATA, 0, 5, b"x"), Protocol),
        ("headers of no stream", frame(HEADERS, END_HEADERS, 0, REQUEST), Protocol),
        ("headers of a stream of the server", frame(HEADERS, END_HEADERS, 2, REQUEST), Protocol),
        (
            "padding longer than its frame",
            frame(HEADERS, END_HEADERS | 8, 1, &[200, 0x83]),
            Protocol,
        ),
        ("headers that do not decode", frame(HEADERS, END_HEADERS, 1, &[0xff; 40]), Compression),
        ("an index outside of the table", frame(HEADERS, END_HEADERS, 1, &[0xfe]), Compression),
        ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, REQUEST), Protocol),
        (
            "another frame before the continuation",
            [frame(HEADERS, 0, 1, REQUEST), frame(PING, 0, 0, &[0; 8])].concat(),
            Protocol,
        ),
        (
            "the continuation of another stream",
            [frame(HEADERS, 0, 1, REQUEST), frame(CONTINUATION, 0, 3, &[])].concat(),
            Protocol,
        ),
        ("a reset of no stream", frame(RESET, 0, 0, &[0; 4]), Protocol),
        ("a reset of an idle stream", frame(RESET, 0, 7, &[0; 4]), Protocol),
        ("a short reset", [open.clone(), frame(RESET, 0, 1, &[0; 3])].concat(), FrameSize),
        ("a push by the client", frame(PUSH, END_HEADERS, 1, &[0, 0, 0, 2]), Protocol),
        ("a ping of a stream", frame(PING, 0, 1, &[0; 8]), Protocol),
        ("a short ping", frame(PING, 0, 0, &[0; 7]), FrameSize),
        ("settings of a stream", frame(SETTINGS, 0, 1, &[]), Protocol),
        ("half of a setting", frame(SETTINGS, 0, 0, &[0; 5]), FrameSize),
        ("an acknowledgement with content", frame(SETTINGS, 1, 0, &[0; 6]), FrameSize),
        ("a window above its maximum", frame(SETTINGS, 0, 0, &setting(4, 1 << 31)), FlowControl),
        ("frames too small", frame(SETTINGS, 0, 0, &setting(5, 100)), Protocol),
        ("push that is neither on nor off", frame(SETTINGS, 0, 0, &setting(2, 7)), Protocol),
        ("a window update by nothing", window(0, 0), Protocol),
        ("a window update that overflows", window(0, (1 << 31) - 1), FlowControl),
        ("a short window update", frame(WINDOW, 0, 0, &[0; 3]), FrameSize),
        ("a short priority", frame(PRIORITY, 0, 1, &[0; 4]), FrameSize),
        ("a priority of no stream", frame(PRIORITY, 0, 0, &[0; 5]), Protocol),
        ("rapid resets", rapid_resets(), Calm),
        ("continuations without end", continuations(), Calm),
    ]
}

pub(crate) const CASES: usize = 31;

/// Requests that are cancelled at once.
fn rapid_resets() -> Vec<u8> {
    let one = |number: u32| {
        let stream = 2 * number + 1;
        [frame(HEADERS, END_HEADERS, stream, REQUEST), frame(RESET, 0, stream, &[0, 0, 0, 8])]
    };
    (0..50_000).flat_map(one).flatten().collect()
}

fn continuations() -> Vec<u8> {
    let first = frame(HEADERS, END_STREAM, 1, REQUEST);
    // A literal header without indexing: `a: bbb…`.
    let header = [&[0, 1, b'a', 100][..], &[b'b'; 100]].concat();
    let more = frame(CONTINUATION, 0, 1, &header.repeat(100));
    [first, more.repeat(1000)].concat()
}

pub(crate) async fn run(address: SocketAddr, report: &mut Report) {
    for (name, frames, expected) in table() {
        let bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frames].concat();
        let reply = exchange(address, &bytes).await;
        let code = reply.as_deref().map(goodbye);
        // A flood may be cut off without a last word.
        let is_right = match code {
            None => false,
            Some(None) => expected == Calm,
            Some(Some(code)) => code == expected as u32,
        };
        report.case(name, is_right, (expected, code));
    }
}

/// The error of the last GOAWAY frame.
fn goodbye(mut reply: &[u8]) -> Option<u32> {
    let mut found = None;
    while let Some((head, rest)) = reply.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        if head[3] == 7 {
            found = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        reply = rest;
    }
    found
}
