//! Replies of servers, frame by frame.

use super::{CallEnd, CallId, CallTarget, UnaryConnection};
use crate::frame::{self, FrameHead, HEAD_BYTES, Reason, flag, kind, setting};
use crate::hpack::encode_field;

const PATH: &str = "/etcdserverpb.KV/Put";

/// A connection whose server has sent nothing yet.
fn new_connection() -> UnaryConnection {
    let (authority, fields) = ("h:1".to_owned(), Vec::new());
    let mut connection = UnaryConnection::new(&CallTarget { is_tls: false, authority, fields });
    take_frames(&mut connection);
    connection
}

/// A connection with the settings of a server without limits.
fn connection() -> UnaryConnection {
    let mut connection = new_connection();
    received(&mut connection, &settings(&[])).unwrap();
    take_frames(&mut connection);
    connection
}

/// The frames of the output, which counts as sent.
fn take_frames(connection: &mut UnaryConnection) -> Vec<(FrameHead, Vec<u8>)> {
    let output = connection.output().to_vec();
    connection.sent(output.len());
    let mut rest = output.strip_prefix(crate::PREFACE).unwrap_or(&output);
    let mut frames = Vec::new();
    while let Some((head, after)) = rest.split_first_chunk() {
        let head = FrameHead::parse(head);
        let (payload, next) = after.split_at(head.length);
        frames.push((head, payload.to_vec()));
        rest = next;
    }
    assert!(rest.is_empty());
    frames
}

fn start(connection: &mut UnaryConnection, tag: u32, message: &[u8]) -> CallId {
    connection.start(PATH, tag, |out| out.extend_from_slice(message)).unwrap()
}

/// Starts so many calls, with the tags 0, 1, and so on.
fn start_all(connection: &mut UnaryConnection, count: u32, message: &[u8]) {
    (0..count).for_each(|tag| {
        start(connection, tag, message);
    });
}

/// What the connection reports of these bytes, or the text of its error.
fn received(connection: &mut UnaryConnection, bytes: &[u8]) -> Result<Vec<String>, String> {
    let mut ends = Vec::new();
    let result = connection.receive(bytes, |tag, end| {
        let text = match end {
            CallEnd::Reply(message) => String::from_utf8_lossy(message).into_owned(),
            CallEnd::Refused { http_status, fields } => {
                let field =
                    |name: &str| fields.get(name).map_or("-", |it| it.to_str().unwrap_or("?"));
                format!("{http_status} {} {}", field("grpc-status"), field("grpc-message"))
            }
            CallEnd::Reset(reason) => format!("reset {reason}"),
            CallEnd::NotProcessed => "not processed".to_owned(),
            CallEnd::Malformed(text) => format!("malformed: {text}"),
        };
        ends.push(format!("{tag}: {text}"));
    });
    result.map(|()| ends).map_err(|error| error.to_string())
}

/// A frame with any flags.
fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_head(&mut out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
    out
}

fn head(stream: u32) -> Vec<u8> {
    let mut block = vec![0x88];
    encode_field(b"content-type", b"application/grpc", &mut block);
    raw(kind::HEADERS, flag::END_HEADERS, stream, &block)
}

fn body(message: &[u8]) -> Vec<u8> {
    let mut body = vec![0];
    body.extend((message.len() as u32).to_be_bytes());
    body.extend_from_slice(message);
    body
}

fn data(stream: u32, message: &[u8]) -> Vec<u8> {
    raw(kind::DATA, 0, stream, &body(message))
}

fn trailers_block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        encode_field(name.as_bytes(), value.as_bytes(), &mut block);
    }
    block
}

fn trailers(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    let flags = flag::END_HEADERS | flag::END_STREAM;
    raw(kind::HEADERS, flags, stream, &trailers_block(fields))
}

fn reply(stream: u32, message: &[u8]) -> Vec<u8> {
    [head(stream), data(stream, message), trailers(stream, &[("grpc-status", "0")])].concat()
}

#[test]
fn replies_end_their_calls_however_they_are_split() {
    let bytes = [reply(3, b"second"), reply(1, b""), reply(5, &[b'x'; 9_000])].concat();
    for piece in [1, 2, 7, 100, 10_000] {
        let mut connection = connection();
        start_all(&mut connection, 3, b"request");
        let mut ends = Vec::new();
        for piece in bytes.chunks(piece) {
            ends.extend(received(&mut connection, piece).unwrap());
        }
        let third = format!("2: {}", "x".repeat(9_000));
        assert_eq!(ends, ["1: second", "0: ", &third], "{piece}");
        assert_eq!(connection.open_calls(), 0);
    }
}

#[test]
fn a_request_is_one_frame_of_headers_and_one_of_data() {
    let mut connection = connection();
    start(&mut connection, 0, b"message");
    let frames = take_frames(&mut connection);
    let [(headers, _), (data, payload)] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!((headers.kind, headers.flags, headers.stream), (kind::HEADERS, 4, 1));
    assert_eq!((data.kind, data.flags, data.stream), (kind::DATA, flag::END_STREAM, 1));
    assert_eq!(*payload, body(b"message"));
}

#[test]
fn refusals_are_in_heads_or_in_trailers() {
    let mut connection = connection();
    start_all(&mut connection, 4, b"");
    let refused = [("grpc-status", "7"), ("grpc-message", "no")];
    let only = [vec![0x88], trailers_block(&refused)].concat();
    let bytes = [
        raw(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &only),
        head(3),
        trailers(3, &refused),
        // 404 without a status of gRPC.
        raw(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 5, &[0x8d]),
        head(7),
        raw(kind::DATA, flag::END_STREAM, 7, &body(b"x")),
    ];
    let ends = received(&mut connection, &bytes.concat()).unwrap();
    assert_eq!(ends, ["0: 200 7 no", "1: 200 7 no", "2: 404 - -", "3: 200 - -"]);
}

/// Malformed, but never a success that the text of the refusal contradicts.
#[test]
fn the_first_of_several_statuses_decides() {
    let mut connection = connection();
    start_all(&mut connection, 3, b"");
    let both = [("grpc-status", "5"), ("grpc-status", "0")];
    let two_heads = [&[0x8d, 0x88][..], &trailers_block(&[("grpc-status", "0")])].concat();
    let ok = [("grpc-status", "0"), ("grpc-status", "5")];
    let bytes = [
        [head(1), data(1, b""), trailers(1, &both)].concat(),
        raw(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 3, &two_heads),
        [head(5), data(5, b"x"), trailers(5, &ok)].concat(),
    ];
    let ends = received(&mut connection, &bytes.concat()).unwrap();
    assert_eq!(ends, ["0: 200 5 -", "1: 404 0 -", "2: x"]);
}

#[test]
fn padding_priorities_and_continuations_are_removed() {
    let mut connection = connection();
    start(&mut connection, 0, b"");
    let mut padded_head = vec![2, 0, 0, 0, 0, 0, 0x88];
    padded_head.extend([0; 2]);
    let flags = flag::PADDED | flag::PRIORITY | flag::END_HEADERS;
    let padded_body = [&[3][..], &body(b"message"), &[0; 3]].concat();
    let block = trailers_block(&[("grpc-status", "0"), ("grpc-message", "")]);
    let (first, second) = block.split_at(4);
    let bytes = [
        raw(kind::HEADERS, flags, 1, &padded_head),
        raw(kind::DATA, flag::PADDED, 1, &padded_body),
        raw(kind::HEADERS, flag::END_STREAM, 1, first),
        raw(kind::CONTINUATION, flag::END_HEADERS, 1, second),
    ];
    assert_eq!(received(&mut connection, &bytes.concat()).unwrap(), ["0: message"]);
}

/// Legal, and it ends the block.
#[test]
fn an_empty_last_continuation_ends_its_block() {
    let mut connection = connection();
    start(&mut connection, 0, b"");
    let bytes = [
        raw(kind::HEADERS, 0, 1, &[0x88]),
        raw(kind::CONTINUATION, flag::END_HEADERS, 1, b""),
        data(1, b"x"),
        trailers(1, &[("grpc-status", "0")]),
    ];
    assert_eq!(received(&mut connection, &bytes.concat()).unwrap(), ["0: x"]);
}

/// As Go's server sends it: fields with Huffman codes that are inserted into the table, and then
/// named.
#[test]
fn the_table_of_the_server_is_followed() {
    let mut connection = connection();
    start_all(&mut connection, 3, b"");
    let first_head =
        [0x88, 0x5f, 0x8b, 0x1d, 0x75, 0xd0, 0x62, 0x0d, 0x26, 0x3d, 0x4c, 0x4d, 0x65, 0x64];
    // grpc-status: 0 with Huffman codes, and an empty grpc-message.
    let first_trailers = [
        0x40, 0x88, 0x9a, 0xca, 0xc8, 0xb2, 0x12, 0x34, 0xda, 0x8f, 0x01, 0x30, 0x40, 0x89, 0x9a,
        0xca, 0xc8, 0xb5, 0x25, 0x42, 0x07, 0x31, 0x7f, 0x00,
    ];
    let (ends_head, ends) = (flag::END_HEADERS, flag::END_HEADERS | flag::END_STREAM);
    let mut bytes = [
        raw(kind::HEADERS, ends_head, 1, &first_head),
        data(1, b"a"),
        raw(kind::HEADERS, ends, 1, &first_trailers),
    ]
    .concat();
    for stream in [3, 5] {
        bytes.extend(raw(kind::HEADERS, ends_head, stream, &[0x88, 0xc0]));
        bytes.extend(data(stream, b"b"));
        bytes.extend(raw(kind::HEADERS, ends, stream, &[0xbf, 0xbe]));
    }
    assert_eq!(received(&mut connection, &bytes).unwrap(), ["0: a", "1: b", "2: b"]);
}

#[test]
fn the_tables_stay_the_same_when_a_call_was_cancelled() {
    let mut connection = connection();
    let call = start(&mut connection, 0, b"");
    start(&mut connection, 1, b"");
    take_frames(&mut connection);
    connection.cancel(call);
    let frames = take_frames(&mut connection);
    assert_eq!((frames[0].0.kind, frames[0].0.stream), (kind::RST_STREAM, 1));
    let inserting = [&[0x88, 0x40][..], &[1, b'a', 1, b'b']].concat();
    let bytes = [
        raw(kind::HEADERS, flag::END_HEADERS, 1, &inserting),
        data(1, b"ignored"),
        raw(kind::HEADERS, flag::END_HEADERS, 3, &[0x88, 0xbe]),
        data(3, b"x"),
        trailers(3, &[("grpc-status", "0")]),
    ];
    assert_eq!(received(&mut connection, &bytes.concat()).unwrap(), ["1: x"]);
}

#[test]
fn the_end_of_a_connection_ends_calls_that_are_not_processed() {
    let mut connection = connection();
    start_all(&mut connection, 2, b"");
    let mut goaway = Vec::new();
    frame::put_goaway(&mut goaway, 1, Reason::NO_ERROR, "");
    assert_eq!(received(&mut connection, &goaway).unwrap(), ["1: not processed"]);
    assert!(connection.is_closing() && connection.closing_error().is_none());
    assert!(connection.start(PATH, 2, |_| ()).is_none());
    assert_eq!(received(&mut connection, &reply(1, b"late")).unwrap(), ["0: late"]);
    goaway.clear();
    frame::put_goaway(&mut goaway, 1, Reason::ENHANCE_YOUR_CALM, "too_many_pings");
    received(&mut connection, &goaway).unwrap();
    let error = connection.closing_error().unwrap();
    assert_eq!(error, "HTTP/2 error 11: too_many_pings");
}

#[test]
fn resets_and_replies_that_make_no_sense_end_one_call() {
    let mut connection = connection();
    start_all(&mut connection, 6, b"");
    let ok = [("grpc-status", "0")];
    let mut bytes = Vec::new();
    frame::put_reset(&mut bytes, 1, Reason::REFUSED_STREAM);
    bytes.extend([data(3, b"x"), head(5), head(5), head(7), trailers(7, &ok)].concat());
    bytes.extend([head(9), raw(kind::DATA, 0, 9, &[1, 0, 0, 0, 0]), trailers(9, &ok)].concat());
    bytes.extend([head(11), data(11, b"x"), data(11, b"y"), trailers(11, &ok)].concat());
    let ends = received(&mut connection, &bytes).unwrap();
    let expected = [
        "0: reset 7",
        "1: malformed: data before the head of the reply",
        "2: malformed: two heads of a reply",
        "3: malformed: Missing response message.",
        "4: malformed: the reply is compressed",
        "5: malformed: the reply is not one message",
    ];
    assert_eq!(ends, expected);
}

fn settings(list: &[(u16, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_settings(&mut out, list);
    out
}

fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_window_update(&mut out, stream, increment);
    out
}

/// The bytes of DATA frames, and whether the last of them ends its stream.
fn sent_data(connection: &mut UnaryConnection) -> (usize, bool) {
    let frames = take_frames(connection);
    let data = frames.iter().filter(|(head, _)| head.kind == kind::DATA);
    assert!(data.clone().all(|(head, _)| head.length <= 16_384));
    let ends = data.clone().next_back().is_some_and(|(head, _)| head.has(flag::END_STREAM));
    (data.map(|(head, _)| head.length).sum(), ends)
}

#[test]
fn requests_stay_within_the_windows() {
    let mut connection = connection();
    let message = vec![b'v'; 100_000];
    start(&mut connection, 0, &message);
    assert_eq!(sent_data(&mut connection), (65_535, false));
    // The window of the connection is used up: a second call cannot send.
    start(&mut connection, 1, b"short");
    assert_eq!(sent_data(&mut connection), (0, false));
    received(&mut connection, &window_update(1, 1 << 20)).unwrap();
    assert_eq!(sent_data(&mut connection), (0, false));
    received(&mut connection, &window_update(0, 1_000)).unwrap();
    assert_eq!(sent_data(&mut connection), (1_000, false));
    received(&mut connection, &window_update(0, 1 << 20)).unwrap();
    assert_eq!(sent_data(&mut connection), (100_005 - 66_535 + 10, true));
    // A smaller window of streams holds for open calls as well.
    received(&mut connection, &settings(&[(setting::INITIAL_WINDOW_SIZE, 10)])).unwrap();
    start(&mut connection, 2, b"0123456789");
    start(&mut connection, 3, b"0");
    assert_eq!(sent_data(&mut connection), (16, true));
    received(&mut connection, &settings(&[(setting::INITIAL_WINDOW_SIZE, 15)])).unwrap();
    assert_eq!(sent_data(&mut connection), (5, true));
    let bytes = [1, 3, 5, 7].map(|stream| reply(stream, b""));
    assert_eq!(received(&mut connection, &bytes.concat()).unwrap().len(), 4);
}

/// Calls that have ended while no window was left.
#[test]
fn calls_that_have_ended_do_not_wait_for_the_window() {
    let mut connection = connection();
    start(&mut connection, 0, &vec![b'v'; 100_000]);
    let mut reset = Vec::new();
    let cancelled = start(&mut connection, 1, b"");
    start_all(&mut connection, 4, b"");
    assert_eq!(connection.blocked.len(), 6);
    connection.cancel(cancelled);
    frame::put_reset(&mut reset, 5, Reason::REFUSED_STREAM);
    let refused = [head(7), trailers(7, &[("grpc-status", "8")])];
    let ends = [reset, refused.concat(), data(9, b"malformed")].concat();
    assert_eq!(received(&mut connection, &ends).unwrap().len(), 3);
    assert_eq!(connection.blocked, [1, 11]);
    let mut goaway = Vec::new();
    frame::put_goaway(&mut goaway, 1, Reason::NO_ERROR, "");
    received(&mut connection, &goaway).unwrap();
    assert_eq!((connection.open_calls(), &connection.blocked), (1, &[1].into()));
}

#[test]
fn a_reply_before_the_whole_request_resets_the_stream() {
    let mut connection = connection();
    start(&mut connection, 0, &vec![b'v'; 100_000]);
    take_frames(&mut connection);
    let refused = [head(1), trailers(1, &[("grpc-status", "8")])].concat();
    assert_eq!(received(&mut connection, &refused).unwrap(), ["0: 200 8 -"]);
    let frames = take_frames(&mut connection);
    assert_eq!((frames[0].0.kind, frames[0].0.stream), (kind::RST_STREAM, 1));
    received(&mut connection, &window_update(0, 1 << 20)).unwrap();
    assert_eq!(sent_data(&mut connection), (0, false));
}

/// Otherwise the first calls could be more than the server allows.
#[test]
fn calls_wait_for_the_settings_of_the_server() {
    let mut connection = new_connection();
    assert!(!connection.has_settings() && !connection.has_room());
    assert!(connection.start(PATH, 0, |_| ()).is_none());
    assert!(take_frames(&mut connection).is_empty());
    let frame = settings(&[(setting::MAX_CONCURRENT_STREAMS, 1)]);
    received(&mut connection, &frame[..10]).unwrap();
    assert!(!connection.has_settings());
    received(&mut connection, &frame[10..]).unwrap();
    assert!(connection.has_settings());
    start(&mut connection, 0, b"");
    assert!(!connection.has_room());
}

#[test]
fn the_first_frame_of_a_server_is_its_settings() {
    let ack = raw(kind::SETTINGS, flag::ACK, 0, b"");
    for bytes in [raw(kind::PING, 0, 0, &[0; 8]), window_update(0, 1), ack] {
        let error = received(&mut new_connection(), &bytes).unwrap_err();
        assert!(error.contains("the first frame is not SETTINGS"), "{error}");
    }
}

#[test]
fn calls_wait_for_room() {
    let mut connection = connection();
    received(&mut connection, &settings(&[(setting::MAX_CONCURRENT_STREAMS, 1)])).unwrap();
    start(&mut connection, 0, b"");
    assert!(connection.start(PATH, 1, |_| ()).is_none());
    received(&mut connection, &reply(1, b"")).unwrap();
    start(&mut connection, 1, b"");
}

/// A frame has room for thousands of them, and each change visits all calls.
#[test]
fn only_the_last_window_of_a_settings_frame_is_applied() {
    let mut connection = connection();
    start(&mut connection, 0, b"");
    received(&mut connection, &window_update(1, 1_000)).unwrap();
    // With the first of these windows, the call's own would be too large.
    let windows = [i32::MAX as u32, 65_535].map(|window| (setting::INITIAL_WINDOW_SIZE, window));
    received(&mut connection, &settings(&windows)).unwrap();
    let error = received(&mut connection, &settings(&windows[..1])).unwrap_err();
    assert!(error.contains("window is too large"), "{error}");
}

#[test]
fn settings_and_pings_are_answered() {
    let mut connection = connection();
    let bytes = [settings(&[]), raw(kind::PING, 0, 0, b"12345678"), raw(20, 0, 3, b"unknown")];
    received(&mut connection, &bytes.concat()).unwrap();
    let frames = take_frames(&mut connection);
    assert_eq!(frames.len(), 2);
    assert_eq!((frames[0].0.kind, frames[0].0.flags), (kind::SETTINGS, flag::ACK));
    assert_eq!((frames[1].0.flags, &frames[1].1[..]), (flag::ACK, &b"12345678"[..]));
}

#[test]
fn the_server_may_send_more_when_half_of_the_window_is_used() {
    let mut connection = connection();
    let frame = raw(kind::DATA, 0, 1, &[0; 16_384]);
    start(&mut connection, 0, b"");
    take_frames(&mut connection);
    received(&mut connection, &head(1)).unwrap();
    let mut updates = Vec::new();
    for _ in 0..(260 << 20) / 16_384 {
        received(&mut connection, &frame).unwrap();
        updates.extend(take_frames(&mut connection));
    }
    // The call ends because its reply is too large.
    assert_eq!(connection.open_calls(), 0);
    let kinds: Vec<u8> = updates.iter().map(|(head, _)| head.kind).collect();
    assert_eq!(kinds, [kind::RST_STREAM, kind::WINDOW_UPDATE, kind::WINDOW_UPDATE]);
}

#[test]
fn what_is_not_http2_ends_the_connection() {
    let long = [&[0, 0x40, 1][..], &[0; HEAD_BYTES]].concat();
    let open_block = raw(kind::HEADERS, 0, 1, &[0x88]);
    let cases: [(&str, Vec<u8>); 21] = [
        ("too long", long),
        ("too long", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("not opened", head(2)),
        ("not opened", head(3)),
        ("not opened", window_update(3, 1)),
        ("wrong stream", raw(kind::DATA, 0, 0, b"")),
        ("wrong stream", raw(kind::PING, 0, 1, &[0; 8])),
        ("padding", raw(kind::DATA, flag::PADDED, 1, &[4, 0, 0])),
        ("padding", raw(kind::DATA, flag::PADDED, 1, b"")),
        ("interrupted", [open_block.clone(), raw(kind::PING, 0, 0, &[0; 8])].concat()),
        ("interrupted", raw(kind::CONTINUATION, 0, 1, b"x")),
        ("empty frames", [open_block, raw(kind::CONTINUATION, 0, 1, b"")].concat()),
        ("unknown index", raw(kind::HEADERS, flag::END_HEADERS, 1, &[0xbe])),
        ("push", raw(kind::PUSH_PROMISE, 0, 1, b"1234")),
        ("push", settings(&[(setting::ENABLE_PUSH, 1)])),
        ("frame size", settings(&[(setting::MAX_FRAME_SIZE, 1)])),
        ("window is too large", settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 31)])),
        (
            "window is too large",
            settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 31), (setting::INITIAL_WINDOW_SIZE, 1)]),
        ),
        ("window is too large", window_update(0, (1 << 31) - 1)),
        ("window update of 0", window_update(1, 0)),
        ("four bytes", raw(kind::RST_STREAM, 0, 1, b"123")),
    ];
    for (text, bytes) in cases {
        let mut connection = connection();
        start(&mut connection, 0, b"");
        let error = received(&mut connection, &bytes).unwrap_err();
        assert!(error.contains(text), "{error} for {bytes:x?}");
    }
}

#[test]
fn a_server_cannot_make_the_client_hold_many_answers() {
    let mut connection = connection();
    let pings = raw(kind::PING, 0, 0, &[0; 8]).repeat(5_000);
    for _ in 0..4 {
        received(&mut connection, &pings).unwrap();
        take_frames(&mut connection);
    }
    received(&mut connection, &pings).unwrap();
    received(&mut connection, &pings).unwrap();
    assert!(received(&mut connection, &pings).unwrap_err().contains("reads no answers"));
}

#[test]
fn answers_that_the_server_has_read_do_not_count() {
    let mut connection = connection();
    let pings = raw(kind::PING, 0, 0, &[0; 8]).repeat(5_000);
    for _ in 0..10 {
        received(&mut connection, &pings).unwrap();
        connection.sent(connection.output().len() - 1);
    }
}

/// A server that resets calls whose requests it has not read.
#[test]
fn no_calls_start_while_much_output_waits() {
    let mut connection = connection();
    received(&mut connection, &window_update(0, 1 << 30)).unwrap();
    for number in 0..1_000 {
        if connection.start(PATH, number, |out| out.extend_from_slice(&[b'v'; 10_000])).is_none() {
            break;
        }
        let mut reset = Vec::new();
        frame::put_reset(&mut reset, 2 * number + 1, Reason::REFUSED_STREAM);
        received(&mut connection, &reset).unwrap();
    }
    assert!(connection.output().len() < 5 << 20, "{} bytes", connection.output().len());
    assert!(!connection.has_room());
    connection.sent(2 << 20);
    assert!(connection.has_room());
}

/// Memory is bounded by what is not sent yet, even if something always waits.
#[test]
fn sent_output_is_freed_before_all_is_sent() {
    let mut connection = connection();
    received(&mut connection, &window_update(0, 1 << 30)).unwrap();
    for tag in 0..2_000 {
        start(&mut connection, tag, &[b'v'; 10_000]);
        let unsent = connection.output().len();
        connection.sent(unsent - 1);
    }
    assert_eq!(connection.output().len(), 1);
    assert!(connection.output.len() < 1 << 20, "{} bytes", connection.output.len());
}

#[test]
fn output_is_sent_once_and_in_order() {
    let mut connection = connection();
    received(&mut connection, &window_update(0, 1 << 30)).unwrap();
    let (mut expected, mut sent) = (Vec::new(), Vec::new());
    for number in 0..500 {
        let before = connection.output().len();
        start(&mut connection, number, &[number as u8; 3_000]);
        let output = connection.output();
        expected.extend_from_slice(&output[before..]);
        let bytes = output.len().saturating_sub(number as usize * 7_919 % 200_000);
        sent.extend_from_slice(&output[..bytes]);
        connection.sent(bytes);
    }
    sent.extend_from_slice(connection.output());
    assert!(sent == expected);
}

/// Bytes that are almost frames: there is no panic, whatever they are.
#[test]
fn random_bytes_are_survived() {
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    let valid = [
        settings(&[(setting::MAX_CONCURRENT_STREAMS, 5), (setting::INITIAL_WINDOW_SIZE, 9)]),
        reply(1, b"one"),
        window_update(0, 100),
        window_update(3, 100),
        reply(3, b"two"),
        raw(kind::PING, 0, 0, &[0; 8]),
    ]
    .concat();
    for _ in 0..20_000 {
        let mut bytes = valid.clone();
        for _ in 0..1 + next() % 4 {
            let place = next() % bytes.len();
            bytes[place] = next() as u8;
        }
        let mut connection = connection();
        start_all(&mut connection, 4, &[b'v'; 20_000]);
        let piece = 1 + next() % 64;
        for piece in bytes.chunks(piece) {
            if received(&mut connection, piece).is_err() {
                break;
            }
            take_frames(&mut connection);
        }
    }
}
