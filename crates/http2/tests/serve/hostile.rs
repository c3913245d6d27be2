//! What no honest client sends: each gets the answer of the standard, or the end of the connection.

use quorate_http2::ConnectionConfig;
use tokio::io::AsyncWriteExt;

use crate::application::start;
use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PRIORITY, PUSH, RESET,
    SETTINGS, WINDOW, block, exchange, frame, head_of, headers, read_frame, start_of_connection,
    window,
};

const PROTOCOL: u32 = 1;
const FLOW_CONTROL: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE: u32 = 6;
const REFUSED: u32 = 7;
const COMPRESSION: u32 = 9;
const CALM: u32 = 11;

fn setting(id: u16, value: u32) -> Vec<u8> {
    let content = [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &content)
}

/// After each of these the server ends the connection with this code.
#[tokio::test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
async fn errors_of_the_connection_end_it() {
    let slow = || headers(1, "/slow", END_STREAM);
    let cases: Vec<(&str, Vec<u8>, u32)> = vec![
        ("a frame that is too long", frame(DATA, 0, 1, &[0; 16_385]), FRAME_SIZE),
        ("DATA of the connection", frame(DATA, 0, 0, b"x"), PROTOCOL),
        ("DATA of an idle stream", frame(DATA, 0, 1, b"x"), PROTOCOL),
        ("DATA of a server's stream", frame(DATA, 0, 2, b"x"), PROTOCOL),
        ("padding without a length", frame(HEADERS, 8 | END_HEADERS, 1, &[]), FRAME_SIZE),
        ("more padding than content", frame(HEADERS, 8 | END_HEADERS, 1, &[9, 1]), PROTOCOL),
        ("HEADERS of the connection", headers(0, "/slow", 0), PROTOCOL),
        ("HEADERS of a server's stream", headers(2, "/slow", 0), PROTOCOL),
        ("a short priority", frame(HEADERS, 0x20 | END_HEADERS, 1, &[0; 4]), FRAME_SIZE),
        (
            "a stream that depends on itself",
            frame(HEADERS, 0x20 | END_HEADERS, 1, &[&[0, 0, 0, 1, 0][..], &head_of("/")].concat()),
            PROTOCOL,
        ),
        (
            "an older stream",
            [headers(5, "/slow", 1), headers(3, "/slow", 1)].concat(),
            STREAM_CLOSED,
        ),
        ("HEADERS after the end", [slow(), slow()].concat(), STREAM_CLOSED),
        ("a number without end", frame(HEADERS, END_HEADERS, 1, &[0xff; 20]), COMPRESSION),
        ("an unknown index", frame(HEADERS, END_HEADERS, 1, &[0xc0]), COMPRESSION),
        ("a bad Huffman code", frame(HEADERS, END_HEADERS, 1, &[0, 0x81, 0xff, 0]), COMPRESSION),
        ("a truncated block", frame(HEADERS, END_HEADERS, 1, &[0, 5, b'a']), COMPRESSION),
        (
            "a table that is too large",
            frame(HEADERS, END_HEADERS, 1, &[0x3f, 0xff, 0x7f]),
            COMPRESSION,
        ),
        (
            "a block that is not continued",
            [frame(HEADERS, 0, 1, &head_of("/slow")), frame(PING, 0, 0, &[0; 8])].concat(),
            PROTOCOL,
        ),
        (
            "a block that is continued on another stream",
            [frame(HEADERS, 0, 1, &[]), frame(CONTINUATION, END_HEADERS, 3, &[])].concat(),
            PROTOCOL,
        ),
        ("CONTINUATION without HEADERS", frame(CONTINUATION, END_HEADERS, 1, &[]), PROTOCOL),
        (
            "a block without end",
            [frame(HEADERS, 0, 1, &[]), frame(CONTINUATION, 0, 1, &[]).repeat(20)].concat(),
            CALM,
        ),
        (
            "a long block without end",
            [frame(HEADERS, 0, 1, &[]), frame(CONTINUATION, 0, 1, &[0; 16_000]).repeat(6)].concat(),
            CALM,
        ),
        ("PRIORITY of the connection", frame(PRIORITY, 0, 0, &[0; 5]), PROTOCOL),
        ("PRIORITY of itself, while idle", frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 0]), PROTOCOL),
        ("PRIORITY of four bytes, while idle", frame(PRIORITY, 0, 1, &[0; 4]), FRAME_SIZE),
        ("RST_STREAM of the connection", frame(RESET, 0, 0, &[0; 4]), PROTOCOL),
        ("RST_STREAM of an idle stream", frame(RESET, 0, 1, &[0; 4]), PROTOCOL),
        ("a short RST_STREAM", [slow(), frame(RESET, 0, 1, &[0; 3])].concat(), FRAME_SIZE),
        ("SETTINGS of a stream", frame(SETTINGS, 0, 1, &[]), PROTOCOL),
        ("SETTINGS of five bytes", frame(SETTINGS, 0, 0, &[0; 5]), FRAME_SIZE),
        ("an acknowledgement with content", frame(SETTINGS, 1, 0, &[0; 6]), FRAME_SIZE),
        ("ENABLE_PUSH of 2", setting(2, 2), PROTOCOL),
        ("a window above the maximum", setting(4, 1 << 31), FLOW_CONTROL),
        ("a frame size below the minimum", setting(5, 16_383), PROTOCOL),
        ("a frame size above the maximum", setting(5, 1 << 24), PROTOCOL),
        ("PUSH_PROMISE", frame(PUSH, END_HEADERS, 1, &[0; 4]), PROTOCOL),
        ("PING of a stream", frame(PING, 0, 1, &[0; 8]), PROTOCOL),
        ("PING of seven bytes", frame(PING, 0, 0, &[0; 7]), FRAME_SIZE),
        ("GOAWAY of a stream", frame(GOAWAY, 0, 1, &[0; 8]), PROTOCOL),
        ("a short GOAWAY", frame(GOAWAY, 0, 0, &[0; 7]), FRAME_SIZE),
        ("a short WINDOW_UPDATE", frame(WINDOW, 0, 0, &[0; 3]), FRAME_SIZE),
        ("WINDOW_UPDATE of 0", window(0, 0), PROTOCOL),
        ("WINDOW_UPDATE of an idle stream", window(1, 1), PROTOCOL),
        ("a window that overflows", window(0, (1 << 31) - 1), FLOW_CONTROL),
        (
            "initial windows that overflow",
            [slow(), window(1, (1 << 31) - 65_536), setting(4, 100_000)].concat(),
            FLOW_CONTROL,
        ),
        ("a flood of pings", frame(PING, 1, 0, &[0; 8]).repeat(30_000), CALM),
        ("a flood of settings", frame(SETTINGS, 0, 0, &[]).repeat(30_000), CALM),
        ("a flood of priorities", frame(PRIORITY, 0, 1, &[0; 5]).repeat(30_000), CALM),
        ("a flood of unknown frames", frame(99, 0, 0, &[]).repeat(30_000), CALM),
        (
            "a flood of empty DATA",
            [headers(1, "/slow", 0), frame(DATA, 0, 1, &[]).repeat(30_000)].concat(),
            CALM,
        ),
        (
            "a flood of streams that are reset",
            (0..30_000)
                .flat_map(|number| {
                    let id = 2 * number + 1;
                    [headers(id, "/slow", 0), frame(RESET, 0, id, &[0; 4])].concat()
                })
                .collect(),
            CALM,
        ),
        (
            "a flood of malformed requests",
            (0..30_000).flat_map(|number| fields_of(2 * number + 1)).collect(),
            CALM,
        ),
    ];
    for (name, bytes, code) in cases {
        let (mut socket, served) = start(ConnectionConfig::default());
        let frames = send_all(&mut socket, [start_of_connection(), bytes].concat()).await;
        let last = frames.iter().rev().find(|frame| frame.kind == GOAWAY);
        let last = last.unwrap_or_else(|| panic!("{name}: the connection goes on: {frames:?}"));
        assert_eq!(last.code(), code, "{name}");
        drop(socket);
        served.task.await.unwrap().unwrap_err();
        let open = served.application.open.load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(open, 0, "{name}: calls go on");
    }
}

/// A request without a path.
fn fields_of(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&[(":method", "GET")]))
}

/// Sends while it reads: a server that has closed the connection no longer reads.
async fn send_all(
    socket: &mut tokio::io::DuplexStream,
    bytes: Vec<u8>,
) -> Vec<crate::frames::ReadFrame> {
    let (mut reading, mut writing) = tokio::io::split(&mut *socket);
    let ping = frame(PING, 0, 0, b"barrier!");
    let write = async move {
        let _ = writing.write_all(&[bytes, ping].concat()).await;
    };
    let read = async {
        let mut frames = Vec::new();
        while let Some(frame) = crate::frames::read_from(&mut reading).await {
            let is_last = frame.kind == GOAWAY
                || frame.kind == PING && frame.flags == 1 && frame.payload == b"barrier!";
            frames.push(frame);
            if is_last {
                break;
            }
        }
        frames
    };
    let write = std::pin::pin!(write);
    let read = std::pin::pin!(read);
    tokio::select! {
        frames = read => frames,
        () = async { write.await; std::future::pending::<()>().await } => Vec::new(),
    }
}

#[tokio::test]
async fn the_first_frame_must_be_settings() {
    for bytes in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 1, 0, &[])] {
        let (mut socket, _served) = start(ConnectionConfig::default());
        let bytes = [quorate_http2::PREFACE, &bytes].concat();
        let frames = exchange(&mut socket, &bytes).await;
        assert_eq!(frames.last().unwrap().code(), PROTOCOL);
    }
    let (mut socket, _served) = start(ConnectionConfig::default());
    let frames = exchange(&mut socket, b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n").await;
    assert_eq!((frames.last().unwrap().kind, frames.last().unwrap().code()), (GOAWAY, PROTOCOL));
}

/// After each of these the stream is reset with this code, and the connection serves on.
#[tokio::test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
async fn errors_of_a_stream_end_the_stream() {
    let with = |fields: &[(&str, &str)], flags: u8| {
        frame(HEADERS, END_HEADERS | flags, 1, &[head_of("/slow"), block(fields)].concat())
    };
    let end = |bytes: &[u8]| frame(DATA, END_STREAM, 1, bytes);
    let cases: Vec<(&str, Vec<u8>, u32)> = vec![
        ("no path", fields_of(1), PROTOCOL),
        ("an upper-case name", with(&[("Name", "x")], END_STREAM), PROTOCOL),
        ("a header of HTTP/1", with(&[("connection", "close")], END_STREAM), PROTOCOL),
        ("a line break", with(&[("name", "a\r\nb")], END_STREAM), PROTOCOL),
        ("a late pseudo-header", with(&[("a", "b"), (":path", "/")], END_STREAM), PROTOCOL),
        ("content-length without content", with(&[("content-length", "1")], END_STREAM), PROTOCOL),
        (
            "less content than content-length",
            [with(&[("content-length", "3")], 0), end(b"ab")].concat(),
            PROTOCOL,
        ),
        (
            "more content than content-length",
            [with(&[("content-length", "3")], 0), frame(DATA, 0, 1, b"abcd")].concat(),
            PROTOCOL,
        ),
        (
            "trailers before the content is complete",
            [with(&[("content-length", "3")], 0), frame(HEADERS, 5, 1, &block(&[("a", "b")]))]
                .concat(),
            PROTOCOL,
        ),
        (
            "trailers with a pseudo-header",
            [headers(1, "/slow", 0), frame(HEADERS, 5, 1, &block(&[(":path", "/")]))].concat(),
            PROTOCOL,
        ),
        (
            "trailers that do not end the stream",
            [headers(1, "/slow", 0), frame(HEADERS, 4, 1, &block(&[("a", "b")]))].concat(),
            PROTOCOL,
        ),
        (
            "DATA after the end",
            [headers(1, "/slow", END_STREAM), end(b"x")].concat(),
            STREAM_CLOSED,
        ),
        ("WINDOW_UPDATE of 0", [headers(1, "/slow", 0), window(1, 0)].concat(), PROTOCOL),
        (
            "a window that overflows",
            [headers(1, "/slow", 0), window(1, (1 << 31) - 1)].concat(),
            FLOW_CONTROL,
        ),
        (
            "more DATA than the window",
            [headers(1, "/slow", 0), frame(DATA, 0, 1, &[0; 16_000]).repeat(9)].concat(),
            FLOW_CONTROL,
        ),
        (
            "PRIORITY of four bytes",
            [headers(1, "/slow", 0), frame(PRIORITY, 0, 1, &[0; 4])].concat(),
            FRAME_SIZE,
        ),
        (
            "PRIORITY of itself",
            [headers(1, "/slow", 0), frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 0])].concat(),
            PROTOCOL,
        ),
    ];
    for (name, bytes, code) in cases {
        let (mut socket, _served) = start(ConnectionConfig::default());
        let bytes = [start_of_connection(), bytes].concat();
        let frames = exchange(&mut socket, &bytes).await;
        let reset = frames.iter().find(|frame| frame.kind == RESET);
        let reset = reset.unwrap_or_else(|| panic!("{name}: no reset: {frames:?}"));
        assert_eq!((reset.stream, reset.code()), (1, code), "{name}");
        // Frames that were on their way are ignored, and other streams are served.
        let more = [frame(DATA, 0, 1, b"late"), headers(3, "/drop", END_STREAM)].concat();
        let frames = exchange(&mut socket, &more).await;
        assert!(frames.iter().any(|frame| frame.kind == HEADERS && frame.stream == 3), "{name}");
    }
}

#[tokio::test]
async fn more_streams_than_allowed_are_refused() {
    let config = ConnectionConfig { streams_max: 2, ..Default::default() };
    let (mut socket, served) = start(config);
    let requests = (0..5).flat_map(|number| headers(2 * number + 1, "/slow", END_STREAM));
    let bytes: Vec<u8> = start_of_connection().into_iter().chain(requests).collect();
    let frames = exchange(&mut socket, &bytes).await;
    let refused = frames.iter().filter(|frame| frame.kind == RESET);
    let refused: Vec<_> = refused.map(|frame| (frame.stream, frame.code())).collect();
    assert_eq!(refused, [(5, REFUSED), (7, REFUSED), (9, REFUSED)]);
    assert_eq!(served.application.open.load(std::sync::atomic::Ordering::SeqCst), 2);
    // When one has ended, the next is served.
    let more = [frame(RESET, 0, 1, &[0; 4]), headers(11, "/drop", END_STREAM)].concat();
    let frames = exchange(&mut socket, &more).await;
    assert!(frames.iter().any(|frame| frame.kind == HEADERS && frame.stream == 11));
}

/// Some clients reset every stream when its response is complete.
#[tokio::test]
async fn resets_of_complete_streams_are_not_a_flood() {
    let (mut socket, _served) = start(ConnectionConfig::default());
    exchange(&mut socket, &[start_of_connection(), headers(1, "/drop", END_STREAM)].concat()).await;
    for _ in 0..30 {
        let frames = exchange(&mut socket, &frame(RESET, 0, 1, &[0; 4]).repeat(1_000)).await;
        assert!(frames.is_empty(), "{frames:?}");
    }
}

/// Nothing of these is an error.
#[tokio::test]
async fn unusual_frames_are_accepted() {
    let padded = |kind: u8, flags: u8, content: &[u8]| {
        frame(kind, flags | 8, 1, &[&[3], content, &[0; 3]].concat())
    };
    let bytes = [
        start_of_connection(),
        frame(99, 0xff, 7, b"unknown"),
        setting(0x99, 1),
        setting(4, 0),
        setting(4, 1 << 20),
        frame(PRIORITY, 0, 9, &[0, 0, 0, 1, 0]),
        padded(HEADERS, END_HEADERS, &head_of("/echo")),
        padded(DATA, 0, b"a"),
        frame(DATA, 0, 1, &[]),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[("trailer", "x")])),
        // The head in five frames.
        frame(HEADERS, END_STREAM, 3, &head_of("/drop")[..7]),
        frame(CONTINUATION, 0, 3, &head_of("/drop")[7..8]),
        frame(CONTINUATION, 0, 3, &[]),
        frame(CONTINUATION, 0, 3, &head_of("/drop")[8..20]),
        frame(CONTINUATION, END_HEADERS, 3, &head_of("/drop")[20..]),
    ]
    .concat();
    let (mut socket, _served) = start(ConnectionConfig::default());
    // Byte by byte, so that everything arrives in pieces.
    for byte in &bytes[..bytes.len() - 1] {
        socket.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let frames = exchange(&mut socket, &bytes[bytes.len() - 1..]).await;
    let data: Vec<u8> = frames
        .iter()
        .filter(|frame| frame.kind == DATA && frame.stream == 1)
        .flat_map(|frame| frame.payload.clone())
        .collect();
    assert_eq!(data, b"a", "{frames:?}");
    for stream in [1, 3] {
        let has_ended = |frame: &&crate::frames::ReadFrame| {
            frame.stream == stream && frame.flags & END_STREAM != 0
        };
        assert!(frames.iter().any(|frame| has_ended(&frame)), "{stream}: {frames:?}");
    }
    assert!(!frames.iter().any(|frame| frame.kind == RESET || frame.kind == GOAWAY));
}

/// Headers above the limit are refused with a status, and the table stays in step.
#[tokio::test]
async fn large_headers_are_refused() {
    let (mut socket, _served) = start(ConnectionConfig::default());
    // One entry of 120 bytes, named 200 times.
    let value = "v".repeat(120);
    let mut large = head_of("/slow");
    large.push(0x40);
    large.push(1);
    large.push(b'n');
    large.push(120);
    large.extend(value.bytes());
    large.extend([0xbe; 200]);
    let bytes = [
        start_of_connection(),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &large),
        frame(HEADERS, END_HEADERS | END_STREAM, 3, &[head_of("/drop"), vec![0xbe]].concat()),
    ];
    let frames = exchange(&mut socket, &bytes.concat()).await;
    let status = |stream: u32| {
        let found = frames.iter().find(|frame| frame.kind == HEADERS && frame.stream == stream);
        found.unwrap().payload.clone()
    };
    assert!(status(1).windows(3).any(|text| text == b"431"), "{:?}", status(1));
    assert_eq!(status(3)[0], 0x88);
}

/// A client that reads nothing does not make the server hold its responses.
#[tokio::test]
async fn a_client_that_does_not_read_is_not_read_either() {
    let (client, server) = tokio::io::duplex(4_096);
    let served = crate::application::serve_on(server, ConnectionConfig::default());
    let (mut reading, mut writing) = tokio::io::split(client);
    let pings = frame(PING, 0, 0, &[0; 8]).repeat(19_000);
    let requests: Vec<u8> =
        (0..5_000).flat_map(|number| headers(2 * number + 1, "/size/1000", END_STREAM)).collect();
    let bytes = [start_of_connection(), pings, requests].concat();
    let writer = tokio::spawn(async move {
        writing.write_all(&bytes).await.unwrap();
        writing
    });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!writer.is_finished(), "the server has read everything");
    // When it reads, it gets all of it.
    let mut ended = 0;
    while ended < 60 {
        let frame = crate::frames::read_from(&mut reading).await.unwrap();
        ended += usize::from(frame.kind == HEADERS && frame.flags & END_STREAM != 0);
    }
    drop(served);
}

#[tokio::test]
async fn the_end_of_the_client_ends_its_calls() {
    let (mut socket, served) = start(ConnectionConfig::default());
    socket
        .write_all(&[start_of_connection(), headers(1, "/slow", END_STREAM)].concat())
        .await
        .unwrap();
    crate::calls::wait_for_open(&served, 1).await;
    assert!(read_frame(&mut socket).await.is_some());
    drop(socket);
    let ended = tokio::time::timeout(std::time::Duration::from_secs(30), async {
        while served.application.open.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
        served.task.await
    });
    ended.await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_header_block_has_to_arrive_in_time() {
    let (mut socket, served) = start(ConnectionConfig::default());
    let bytes = [start_of_connection(), frame(HEADERS, 0, 1, &head_of("/slow"))].concat();
    socket.write_all(&bytes).await.unwrap();
    let last = crate::frames::read_kind(&mut socket, GOAWAY).await.unwrap();
    assert_eq!(last.code(), CALM);
    drop(socket);
    served.task.await.unwrap().unwrap_err();
}

/// Some calls wait for their message without being served; a flood of them, and those that wait for
/// long, are passed to the application, which has limits for them.
#[tokio::test(start_paused = true)]
async fn few_calls_wait_for_their_message() {
    let open = |served: &crate::application::Served| {
        served.application.open.load(std::sync::atomic::Ordering::SeqCst)
    };
    let (mut socket, served) = start(ConnectionConfig::default());
    let requests = |from: u32, count: u32| -> Vec<u8> {
        (from..from + count).flat_map(|number| headers(2 * number + 1, "/message", 0)).collect()
    };
    exchange(&mut socket, &[start_of_connection(), requests(0, 10)].concat()).await;
    assert_eq!(open(&served), 0);
    // One that arrives a little later is served as a complete message.
    socket.write_all(&frame(DATA, END_STREAM, 1, b"message")).await.unwrap();
    let data = crate::frames::read_kind(&mut socket, DATA).await.unwrap();
    assert_eq!((data.stream, &data.payload[..]), (1, &b"message"[..]));
    exchange(&mut socket, &[]).await;
    assert_eq!(served.application.messages.load(std::sync::atomic::Ordering::SeqCst), 1);
    // So is a message of gRPC before the end of its stream.
    let message = [&[0, 0, 0, 0, 7][..], b"message"].concat();
    socket.write_all(&frame(DATA, 0, 3, &message)).await.unwrap();
    let data = crate::frames::read_kind(&mut socket, DATA).await.unwrap();
    assert_eq!((data.stream, &data.payload), (3, &message));
    exchange(&mut socket, &frame(DATA, END_STREAM, 3, &[])).await;
    assert_eq!(served.application.messages.load(std::sync::atomic::Ordering::SeqCst), 2);
    // The calls of these echo their request as it arrives: the responses begin.
    let begun = |frames: &[crate::frames::ReadFrame]| {
        frames.iter().filter(|frame| frame.kind == HEADERS && frame.flags == END_HEADERS).count()
    };
    let frames = exchange(&mut socket, &requests(10, 1_000)).await;
    assert_eq!(begun(&frames), 8 + 1_000 - 512);
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    let frames = exchange(&mut socket, &[]).await;
    assert_eq!(begun(&frames), 512);
}
