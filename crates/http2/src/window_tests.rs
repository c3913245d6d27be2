//! Calls that wait for the windows of the client, without a socket.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;

use crate::application::{Application, MessageCall, MessageReply, MessageRequest, ResponseFuture};
use crate::config::ConnectionConfig;
use crate::connection::Http2Connection;
use crate::frame::{flag, kind, put_head, put_settings, put_window_update};
use crate::head::TIMEOUT_NAME;
use crate::hpack::encode_field;
use crate::{IncomingBody, RequestHead};

/// Replies to every message with 1,000 bytes.
struct LargeReplies;

impl Application for LargeReplies {
    type Body = Empty<Bytes>;

    fn takes_messages(&self, head: &RequestHead) -> bool {
        !head.headers.contains_key(TIMEOUT_NAME)
    }

    fn serve_message(&self, _request: MessageRequest<'_>) -> Option<MessageCall<Empty<Bytes>>> {
        let reply = Box::pin(std::future::ready(MessageReply::Message(vec![0; 1_000])));
        Some(MessageCall { reply, deadline: None })
    }

    fn serve(&self, _request: Request<IncomingBody>) -> ResponseFuture<Empty<Bytes>> {
        Box::pin(std::future::ready(Response::new(Empty::new())))
    }

    fn deadline_passed(&self) -> Response<Empty<Bytes>> {
        Response::new(Empty::new())
    }
}

/// Polls the calls that were woken, and returns how many.
fn poll_calls(connection: &mut Http2Connection<LargeReplies>) -> usize {
    let mut ready = Vec::new();
    connection.ready.take(&mut ready);
    ready.iter().for_each(|slot| connection.poll_slot(*slot));
    connection.output.clear();
    ready.len()
}

fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_window_update(&mut bytes, stream, increment);
    bytes
}

/// A client that lets its windows grow byte by byte costs little memory and time.
#[test]
fn calls_that_wait_for_the_window_wait_once() {
    let mut connection = Http2Connection::new(LargeReplies, ConnectionConfig::default());
    let (mut bytes, mut block) = (Vec::new(), Vec::new());
    put_settings(&mut bytes, &[]);
    for (name, value) in [(":method", "POST"), (":scheme", "http"), (":path", "/p.S/M")] {
        encode_field(name.as_bytes(), value.as_bytes(), &mut block);
    }
    let ids = (0..200).map(|number| 2 * number + 1);
    for id in ids.clone() {
        put_head(&mut bytes, block.len(), kind::HEADERS, flag::END_HEADERS, id);
        bytes.extend_from_slice(&block);
        put_head(&mut bytes, 5, kind::DATA, flag::END_STREAM, id);
        bytes.extend_from_slice(&[0; 5]);
    }
    connection.receive(&bytes).unwrap();
    assert_eq!(poll_calls(&mut connection), 200);
    let waiting = connection.open_streams();
    assert!(waiting > 100 && connection.send_window == 0, "{waiting}");
    for _ in 0..50 {
        let updates: Vec<u8> = ids.clone().flat_map(|id| window_update(id, 1)).collect();
        connection.receive(&updates).unwrap();
        poll_calls(&mut connection);
        assert_eq!(connection.blocked.len(), waiting);
    }
    // One byte is for one of them.
    connection.receive(&window_update(0, 1)).unwrap();
    assert_eq!(poll_calls(&mut connection), 1);
    connection.receive(&window_update(0, 1 << 20)).unwrap();
    while poll_calls(&mut connection) > 0 {
        connection.unblock();
    }
    assert_eq!((connection.open_streams(), connection.blocked.len()), (0, 0));
}
