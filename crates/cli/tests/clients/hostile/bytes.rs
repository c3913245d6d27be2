//! Bytes at the client port that are not HTTP, or invalid HTTP.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::server::{HostileTarget, read_to_end, reply_to};
use super::wire::*;

/// The reply that is expected.
#[derive(Clone, Copy, Debug)]
enum ExpectedReply {
    /// A text with this start.
    Text(&'static str),
    /// HTTP/2's GOAWAY: the connection ends.
    GoAway,
    /// HTTP/2's RST_STREAM: the call ends; the connection may continue.
    Reset,
    /// Only the settings of the connection: the input is tolerated.
    Settings,
}

use ExpectedReply::{GoAway, Reset, Settings, Text};

/// Sends all cases. Returns their number.
pub(crate) async fn send_all(server: &HostileTarget, unexpected: &mut Vec<String>) -> usize {
    let cases = [not_http2(), broken_frames(), broken_order(), broken_headers()].concat();
    server.serves_others("warming up").await;
    for (name, bytes, expected) in &cases {
        let before = server.resources();
        let complete = |reply: &[u8]| match expected {
            Text(_) | GoAway => false,
            Reset => kinds(reply).contains(&RESET),
            Settings => kinds(reply).contains(&SETTINGS),
        };
        let reply = reply_to(server.client, bytes, complete).await;
        let text = String::from_utf8_lossy(&reply);
        let matches = match expected {
            Text(start) => text.starts_with(start),
            GoAway => kinds(&reply).contains(&GO_AWAY),
            Reset => kinds(&reply).contains(&RESET),
            Settings => kinds(&reply).contains(&SETTINGS),
        };
        if !matches {
            unexpected.push(format!("{name}: expected {expected:?}, but got {text:?}"));
        }
        server.assert_unharmed(name, before, MEMORY_GROWTH_KIB_MAX).await;
    }
    cases.len()
}

type ByteCase = (&'static str, Vec<u8>, ExpectedReply);

fn not_http2() -> Vec<ByteCase> {
    let bad_request = Text("HTTP/1.1 400");
    let request = |head: &str, rest: &[u8]| [head.as_bytes(), rest].concat();
    let post = "POST /etcdserverpb.KV/Put HTTP/1.1\r\nHost: m\r\nConnection: close\r\n";
    let many: String = (0..200).map(|n| format!("x{n}: y\r\n")).collect();
    let tls = [&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 500]].concat();
    vec![
        ("zeros", vec![0; 4096], bad_request),
        ("all bits", vec![0xff; 4096], bad_request),
        ("TLS", tls, bad_request),
        ("words", b"hello, is this a server?\r\n\r\n".to_vec(), bad_request),
        ("HTTP/9", b"GET / HTTP/9.9\r\n\r\n".to_vec(), bad_request),
        (
            "no such page",
            b"GET /nothing HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n".to_vec(),
            Text("HTTP/1.1 404"),
        ),
        (
            "a very long path",
            request("GET /", &[vec![b'a'; 1 << 20], b" HTTP/1.1\r\n\r\n".to_vec()].concat()),
            Text("HTTP/1.1 4"),
        ),
        (
            "a very long header",
            request("GET / HTTP/1.1\r\nx: ", &vec![b'a'; 1 << 20]),
            Text("HTTP/1.1 431"),
        ),
        (
            "200 headers",
            request("GET / HTTP/1.1\r\n", format!("{many}\r\n").as_bytes()),
            Text("HTTP/1.1 431"),
        ),
        (
            "a web page that writes a key",
            request(post, &[&b"Content-Type: text/plain\r\n"[..], PUT].concat()),
            Text("HTTP/1.1 415"),
        ),
        (
            "two lengths",
            request(post, b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"),
            bad_request,
        ),
        (
            "invalid chunks",
            request(post, b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"),
            Text("HTTP/1.1 415"),
        ),
        (
            "a put without a key through the JSON gateway",
            b"POST /v3/kv/put HTTP/1.1\r\nHost: m\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
                .to_vec(),
            Text("HTTP/1.1 400"),
        ),
    ]
}

/// A complete gRPC put request.
const PUT: &[u8] = b"Content-Length: 11\r\n\r\n\0\0\0\0\x06\n\x01c\x12\x01v";

fn broken_frames() -> Vec<ByteCase> {
    let other_preface = b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec();
    let lone = |frame: Vec<u8>| after_preface(&[frame]);
    vec![
        ("another preface", other_preface, Text("HTTP/1.1 400")),
        ("random frames", [PREFACE.to_vec(), vec![0xaa; 4096]].concat(), GoAway),
        ("16 MiB frame", lone(frame_of_length(0x00ff_ffff, DATA, 0, 1, &[0; 64])), GoAway),
        ("settings of 5 bytes", lone(frame(SETTINGS, 0, 0, &[0; 5])), GoAway),
        ("settings on a stream", lone(frame(SETTINGS, 0, 1, &[])), GoAway),
        ("frame size 1", lone(frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1])), GoAway),
        ("window of 2^32", lone(frame(SETTINGS, 0, 0, &[0, 4, 255, 255, 255, 255])), GoAway),
        ("ping of 3 bytes", lone(frame(PING, 0, 0, &[0; 3])), GoAway),
        ("ping on a stream", lone(frame(PING, 0, 1, &[0; 8])), GoAway),
        ("reset of 1 byte", lone(frame(RESET, 0, 1, &[0])), GoAway),
        ("unknown frame type", lone(frame(200, 0xff, 0, &[1; 100])), Settings),
        ("window update of zero", lone(frame(WINDOW_UPDATE, 0, 0, &[0; 4])), GoAway),
        ("window overflows", lone(frame(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255])), GoAway),
    ]
}

fn broken_order() -> Vec<ByteCase> {
    let call =
        |stream, flags| frame(HEADERS, flags, stream, &call_headers("/etcdserverpb.KV/Range"));
    let lone = |frame: Vec<u8>| after_preface(&[frame]);
    let both = END_HEADERS | END_STREAM;
    let backwards = after_preface(&[call(5, END_HEADERS), call(3, END_HEADERS)]);
    let interrupted = after_preface(&[call(1, 0), frame(PING, 0, 0, &[0; 8])]);
    let more = after_preface(&[call(1, both), frame(DATA, 0, 1, &[0; 10])]);
    let padded = lone(frame(DATA, 8, 1, &[255, 0]));
    vec![
        ("data without a call", lone(frame(DATA, 0, 1, &[0; 10])), GoAway),
        ("data on stream 0", lone(frame(DATA, 0, 0, &[0; 10])), GoAway),
        ("more padding than data", padded, GoAway),
        ("a stream number of the server", lone(call(2, both)), GoAway),
        ("decreasing stream numbers", backwards, GoAway),
        ("a call on stream 0", lone(call(0, both)), GoAway),
        ("continuation without headers", lone(frame(CONTINUATION, END_HEADERS, 1, &[])), GoAway),
        ("headers interrupted", interrupted, GoAway),
        ("data after the end", more, Reset),
        ("reset without a call", lone(frame(RESET, 0, 9, &[0; 4])), GoAway),
        ("a push promise of a client", lone(frame(PUSH_PROMISE, 4, 1, &[0, 0, 0, 2])), GoAway),
        (
            "a stream that depends on itself",
            lone(frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 0])),
            Settings,
        ),
    ]
}

fn broken_headers() -> Vec<ByteCase> {
    let call =
        |headers: &[u8]| after_preface(&[frame(HEADERS, END_HEADERS | END_STREAM, 1, headers)]);
    let good = call_headers("/etcdserverpb.KV/Range");
    let with = |name: &str, value: &[u8]| call(&[good.clone(), header(name, value)].concat());
    let endless: Vec<Vec<u8>> = std::iter::once(frame(HEADERS, 0, 1, &good))
        .chain((0..2_000).map(|_| frame(CONTINUATION, 0, 1, &header("x", &[b'a'; 8_000]))))
        .collect();
    vec![
        ("random headers", call(&[0xff; 100]), GoAway),
        ("an unknown header index", call(&[0x80 | 100]), GoAway),
        ("capital letters", with("Content-Length", b"0"), Reset),
        ("a connection's header", with("connection", b"close"), Reset),
        ("an unknown pseudo-header", with(":nothing", b"1"), Reset),
        ("no headers", call(&[]), Reset),
        ("a line break in a header", with("x", b"a\r\nb: c"), Reset),
        ("endless headers", after_preface(&endless), GoAway),
    ]
}

/// Opens connections that send a part of a request and then wait.
pub(crate) async fn begin_slowly(server: &HostileTarget) -> Vec<(&'static str, TcpStream)> {
    let parts: [(&str, &[u8]); 8] = [
        ("silence", b""),
        ("half a preface", &PREFACE[..12]),
        ("a preface, and silence", PREFACE),
        ("half a frame", &[PREFACE, &[0, 0, 6, SETTINGS]].concat()),
        ("no settings", &[PREFACE, &frame(PING, 0, 0, &[0; 8])].concat()),
        ("half a request", b"GET /health HT"),
        ("half the headers", b"GET /health HTTP/1.1\r\nHost: m\r\n"),
        ("the first byte of TLS", &[22]),
    ];
    let mut slow = Vec::new();
    for (name, bytes) in parts {
        let mut stream = server.connect().await;
        stream.write_all(bytes).await.unwrap();
        slow.push((name, stream));
    }
    slow
}

/// Waits until the server closes these connections.
pub(crate) async fn wait_closed(slow: Vec<(&'static str, TcpStream)>) -> usize {
    let count = slow.len();
    for (name, mut stream) in slow {
        let closed = read_to_end(&mut stream, |_| false);
        let closed = tokio::time::timeout(SLOW_TIMEOUT, closed).await;
        assert!(closed.is_ok(), "{name}: the connection is still open");
    }
    count
}

const SLOW_TIMEOUT: Duration = Duration::from_secs(120);
const MEMORY_GROWTH_KIB_MAX: u64 = 32 << 10;
