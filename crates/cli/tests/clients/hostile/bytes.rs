//! What is no HTTP, or broken HTTP, at the clients' port.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::server::{Server, answer_to, read_to_end};
use super::wire::*;

/// What can be seen of the answer.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// It begins like that.
    Text(&'static str),
    /// HTTP/2 says that the connection ends.
    GoAway,
    /// HTTP/2 says that the call ends; the connection may go on.
    Reset,
    /// Nothing was wrong enough to say anything but hello.
    Hello,
}

use Answer::{GoAway, Hello, Reset, Text};

/// Sends each, and gives how many there were.
pub(crate) async fn send_all(server: &Server, surprises: &mut Vec<String>) -> usize {
    let cases = [not_http2(), broken_frames(), broken_order(), broken_headers()].concat();
    server.serves_others("warming up").await;
    for (name, bytes, wanted) in &cases {
        let before = server.holds();
        let enough = |answer: &[u8]| match wanted {
            Text(_) | GoAway => false,
            Reset => kinds(answer).contains(&RESET),
            Hello => kinds(answer).contains(&SETTINGS),
        };
        let answer = answer_to(server.client, bytes, enough).await;
        let shown = String::from_utf8_lossy(&answer);
        let expected = match wanted {
            Text(text) => shown.starts_with(text),
            GoAway => kinds(&answer).contains(&GO_AWAY),
            Reset => kinds(&answer).contains(&RESET),
            Hello => kinds(&answer).contains(&SETTINGS),
        };
        if !expected {
            surprises.push(format!("{name}: {wanted:?}, but {shown:?}"));
        }
        server.is_unharmed(name, before, GROWN_KIB_MAX).await;
    }
    cases.len()
}

type Case = (&'static str, Vec<u8>, Answer);

fn not_http2() -> Vec<Case> {
    let bad_request = Text("HTTP/1.1 400");
    let request = |head: &str, rest: &[u8]| [head.as_bytes(), rest].concat();
    let post = "POST /etcdserverpb.KV/Put HTTP/1.1\r\nHost: m\r\nConnection: close\r\n";
    let many: String = (0..200).map(|n| format!("x{n}: y\r\n")).collect();
    let tls = [&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 500]].concat();
    vec![
        ("zeros", vec![0; 4096], bad_request),
        ("all bits", vec![0xff; 4096], bad_request),
        ("TLS", tls, bad_request),
        ("words", b"hello, is anybody there?\r\n\r\n".to_vec(), bad_request),
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
            "chunks of nonsense",
            request(post, b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"),
            Text("HTTP/1.1 415"),
        ),
        (
            "the gateway that is not there",
            b"POST /v3/kv/put HTTP/1.1\r\nHost: m\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
                .to_vec(),
            Text("HTTP/1.1 501"),
        ),
    ]
}

/// A whole request of gRPC to put something.
const PUT: &[u8] = b"Content-Length: 11\r\n\r\n\0\0\0\0\x06\n\x01c\x12\x01v";

fn broken_frames() -> Vec<Case> {
    let other_preface = b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec();
    let lone = |frame: Vec<u8>| after_preface(&[frame]);
    vec![
        ("another preface", other_preface, Text("HTTP/1.1 400")),
        ("frames of nonsense", [PREFACE.to_vec(), vec![0xaa; 4096]].concat(), GoAway),
        ("16 MiB frame", lone(frame_of_length(0x00ff_ffff, DATA, 0, 1, &[0; 64])), GoAway),
        ("settings of 5 bytes", lone(frame(SETTINGS, 0, 0, &[0; 5])), GoAway),
        ("settings of a call", lone(frame(SETTINGS, 0, 1, &[])), GoAway),
        ("frame size 1", lone(frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1])), GoAway),
        ("window of 2^32", lone(frame(SETTINGS, 0, 0, &[0, 4, 255, 255, 255, 255])), GoAway),
        ("ping of 3 bytes", lone(frame(PING, 0, 0, &[0; 3])), GoAway),
        ("ping of a call", lone(frame(PING, 0, 1, &[0; 8])), GoAway),
        ("reset of 1 byte", lone(frame(RESET, 0, 1, &[0])), GoAway),
        ("unknown kind", lone(frame(200, 0xff, 0, &[1; 100])), Hello),
        ("window by nothing", lone(frame(WINDOW_UPDATE, 0, 0, &[0; 4])), GoAway),
        ("window overflows", lone(frame(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255])), GoAway),
    ]
}

fn broken_order() -> Vec<Case> {
    let call =
        |stream, flags| frame(HEADERS, flags, stream, &call_headers("/etcdserverpb.KV/Range"));
    let lone = |frame: Vec<u8>| after_preface(&[frame]);
    let both = END_HEADERS | END_STREAM;
    let backwards = after_preface(&[call(5, END_HEADERS), call(3, END_HEADERS)]);
    let interrupted = after_preface(&[call(1, 0), frame(PING, 0, 0, &[0; 8])]);
    let more = after_preface(&[call(1, both), frame(DATA, 0, 1, &[0; 10])]);
    let padded = lone(frame(DATA, 8, 1, &[255, 0]));
    vec![
        ("data of no call", lone(frame(DATA, 0, 1, &[0; 10])), GoAway),
        ("data of the connection", lone(frame(DATA, 0, 0, &[0; 10])), GoAway),
        ("more padding than data", padded, GoAway),
        ("a server's number", lone(call(2, both)), GoAway),
        ("numbers backwards", backwards, GoAway),
        ("a call of the connection", lone(call(0, both)), GoAway),
        ("continuation of nothing", lone(frame(CONTINUATION, END_HEADERS, 1, &[])), GoAway),
        ("headers interrupted", interrupted, GoAway),
        ("data after the end", more, GoAway),
        ("reset of no call", lone(frame(RESET, 0, 9, &[0; 4])), GoAway),
        ("a promise of a client", lone(frame(PUSH_PROMISE, 4, 1, &[0, 0, 0, 2])), GoAway),
        ("a call before itself", lone(frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 0])), Hello),
    ]
}

fn broken_headers() -> Vec<Case> {
    let call =
        |headers: &[u8]| after_preface(&[frame(HEADERS, END_HEADERS | END_STREAM, 1, headers)]);
    let good = call_headers("/etcdserverpb.KV/Range");
    let with = |name: &str, value: &[u8]| call(&[good.clone(), header(name, value)].concat());
    let endless: Vec<Vec<u8>> = std::iter::once(frame(HEADERS, 0, 1, &good))
        .chain((0..2_000).map(|_| frame(CONTINUATION, 0, 1, &header("x", &[b'a'; 8_000]))))
        .collect();
    vec![
        ("headers of nonsense", call(&[0xff; 100]), GoAway),
        ("an index of nothing", call(&[0x80 | 100]), GoAway),
        ("capital letters", with("Content-Length", b"0"), GoAway),
        ("a connection's header", with("connection", b"close"), Reset),
        ("a name of HTTP's own", with(":nothing", b"1"), GoAway),
        ("no headers", call(&[]), Reset),
        ("a line break in a header", with("x", b"a\r\nb: c"), GoAway),
        ("headers without end", after_preface(&endless), GoAway),
    ]
}

/// Connections that say a part of something, and wait.
pub(crate) async fn begin_slowly(server: &Server) -> Vec<(&'static str, TcpStream)> {
    let parts: [(&str, &[u8]); 8] = [
        ("silence", b""),
        ("half a preface", &PREFACE[..12]),
        ("a preface, and silence", PREFACE),
        ("half a frame", &[PREFACE, &[0, 0, 6, SETTINGS]].concat()),
        ("no settings", &[PREFACE, &frame(PING, 0, 0, &[0; 8])].concat()),
        ("half a request", b"GET /health HT"),
        ("half the headers", b"GET /health HTTP/1.1\r\nHost: m\r\n"),
        ("half a letter of TLS", &[22]),
    ];
    let mut slow = Vec::new();
    for (name, bytes) in parts {
        let mut stream = server.connect().await;
        stream.write_all(bytes).await.unwrap();
        slow.push((name, stream));
    }
    slow
}

/// The server has no patience with them.
pub(crate) async fn wait_for_the_end(slow: Vec<(&'static str, TcpStream)>) -> usize {
    let count = slow.len();
    for (name, mut stream) in slow {
        let ended = read_to_end(&mut stream, |_| false);
        let ended = tokio::time::timeout(SLOW_PATIENCE, ended).await;
        assert!(ended.is_ok(), "{name}: it goes on");
    }
    count
}

const SLOW_PATIENCE: Duration = Duration::from_secs(120);
const GROWN_KIB_MAX: u64 = 32 << 10;
