//! Floods of valid requests: calls that are cancelled immediately, idle connections and
//! watches, replies that are never read.

use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use prost::Message;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{
    LeaseKeepAliveRequest, PutRequest, RangeRequest, WatchCreateRequest, WatchRequest,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::server::{HostileTarget, read_to_end};
use super::wire::*;
use crate::support::TEST_TIMEOUT;

/// Makes all floods. Returns their number.
pub(crate) async fn make_all(server: &HostileTarget) -> usize {
    endless_frames(server).await;
    headers_without_requests(server).await;
    half_sent_messages(server, 40_000).await;
    short_connections(server, 1_000).await;
    idle_connections(server, 1_000).await;
    idle_watch_streams(server, 1_000).await;
    watches_on_one_stream(server, 20_000).await;
    watchers_that_never_read(server, 20).await;
    unread_replies(server, 50).await;
    requests_without_reading(server).await;
    13
}

/// Each frame is small, but there are very many.
async fn endless_frames(server: &HostileTarget) {
    let headers = call_headers("/etcdserverpb.KV/Range");
    let open = |stream| frame(HEADERS, END_HEADERS, stream, &headers);
    let cancelled = |count: u32| -> Vec<Vec<u8>> {
        let one = |n: u32| [open(2 * n + 1), frame(RESET, 0, 2 * n + 1, &[0, 0, 0, 8])].concat();
        (0..count).map(one).collect()
    };
    let empty = |count: usize| [vec![open(1)], vec![frame(DATA, 0, 1, &[]); count]].concat();
    let floods = [
        ("cancelled calls", cancelled(20_000)),
        ("pings", vec![frame(PING, 0, 0, &[7; 8]); 50_000]),
        ("settings", vec![frame(SETTINGS, 0, 0, &[]); 50_000]),
        ("empty data frames", empty(50_000)),
    ];
    for (name, frames) in floods {
        let before = server.resources();
        let mut stream = server.connect().await;
        // The server may close the connection, or stop reading because its replies are not read.
        let bytes = after_preface(&frames);
        let _ = timeout(Duration::from_secs(2), stream.write_all(&bytes)).await;
        server.serves_others(name).await;
        drop(stream);
        server.assert_unharmed(name, before, 32 << 10).await;
    }
}

/// Sends these bytes on each of so many connections, which stay open.
async fn send_to_many(server: &HostileTarget, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut stream = server.connect().await;
        let _ = timeout(Duration::from_secs(10), stream.write_all(bytes)).await;
        connections.push(stream);
    }
    connections
}

/// Streams on which only headers are sent. Their number is limited, and they end with their
/// connection.
async fn headers_without_requests(server: &HostileTarget) {
    let before = server.resources();
    let headers = call_headers("/etcdserverpb.KV/Range");
    let frames: Vec<Vec<u8>> =
        (0..5_000).map(|n: u32| frame(HEADERS, END_HEADERS, 2 * n + 1, &headers)).collect();
    let bytes = after_preface(&frames);
    let connections = send_to_many(server, 8, &bytes).await;
    server.serves_others("headers without requests").await;
    drop(connections);
    server.assert_unharmed("headers without requests", before, 128 << 10).await;
}

/// Messages of which only the start is sent. What the server holds for them is bounded: it calls
/// no service before the message is complete.
async fn half_sent_messages(server: &HostileTarget, count: u32) {
    let before = server.resources();
    let headers = call_headers("/etcdserverpb.KV/Put");
    let start = [&[0, 0, 0, 0, 100][..], &[10, 90]].concat();
    let one = |n: u32| {
        let stream = 2 * n + 1;
        [frame(HEADERS, END_HEADERS, stream, &headers), frame(DATA, 0, stream, &start)].concat()
    };
    let frames: Vec<Vec<u8>> = (0..count / 10).map(one).collect();
    let bytes = after_preface(&frames);
    let connections = send_to_many(server, 10, &bytes).await;
    server.serves_others("half-sent messages").await;
    let during = server.resources();
    println!("{count} half-sent messages: {before:?}, then {during:?}");
    let grown = during.memory_kib.saturating_sub(before.memory_kib);
    assert!(grown < HALF_SENT_KIB_MAX, "{grown} KiB for {count} half-sent messages");
    drop(connections);
    server.assert_unharmed("half-sent messages", before, HALF_SENT_KIB_MAX).await;
}

/// 16,384 of one address are held, each with its stream and its headers; the others are refused.
const HALF_SENT_KIB_MAX: u64 = 256 << 10;

async fn short_connections(server: &HostileTarget, count: usize) {
    let before = server.resources();
    for number in 0..count {
        let mut stream = server.connect().await;
        let _ = stream.write_all(&PREFACE[..number % PREFACE.len()]).await;
    }
    server.assert_unharmed("short connections", before, 32 << 10).await;
}

/// Connections that completed the handshake and send nothing else.
pub(crate) async fn idle_connections(server: &HostileTarget, count: usize) {
    let before = server.resources();
    let mut idle = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = server.connect().await;
        stream.write_all(&after_preface(&[])).await.unwrap();
        let settings = read_to_end(&mut stream, |reply| kinds(reply).contains(&SETTINGS));
        assert!(!settings.await.is_empty());
        idle.push(stream);
    }
    let during = server.resources();
    println!("{count} idle connections: {before:?}, then {during:?}");
    // All of them are open; some earlier connections may have been closed.
    assert!(during.files + 16 >= before.files + count);
    server.serves_others("idle connections").await;
    let grown = during.memory_kib.saturating_sub(before.memory_kib);
    assert!(grown < 64 * count as u64, "{grown} KiB for {count} connections");
    drop(idle);
    server.assert_unharmed("idle connections", before, 64 * count as u64).await;
}

/// Opens more connections than the server accepts; it keeps the files that it needs.
pub(crate) async fn take_all_connections(server: &HostileTarget, count: usize) {
    let mut other_client = KvClient::new(server.channel().await);
    let before = server.resources();
    let mut connections: Vec<TcpStream> = Vec::new();
    for _ in 0..count {
        connections.push(server.connect().await);
    }
    // Existing clients are served, and the log can be written.
    for number in 0..100 {
        let put = PutRequest { key: format!("{number}").into(), ..Default::default() };
        timeout(TEST_TIMEOUT, other_client.put(put)).await.unwrap().unwrap();
    }
    let during = server.resources();
    assert!(during.files < 256 - 100, "{during:?}");
    drop(connections);
    server.assert_unharmed("all connections", before, 32 << 10).await;
}

/// An HTTP/2 connection that reads only as much of a reply as the test requests.
async fn open(server: &HostileTarget) -> SendRequest<Bytes> {
    // This side has no limit for unread data.
    let mut builder = h2::client::Builder::new();
    builder.data_frame_budget(usize::MAX);
    let (client, connection) = builder.handshake(server.connect().await).await.unwrap();
    tokio::spawn(connection);
    client.ready().await.unwrap()
}

/// Starts a call with one message, and keeps the request stream open.
async fn begin(
    client: &mut SendRequest<Bytes>,
    path: &str,
    message: &impl Message,
) -> (ResponseFuture, h2::SendStream<Bytes>) {
    let request = Request::post(format!("http://m{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    *client = client.clone().ready().await.unwrap();
    let (reply, mut body) = client.send_request(request.body(()).unwrap(), false).unwrap();
    body.send_data(framed(message), false).unwrap();
    (reply, body)
}

fn framed(message: &impl Message) -> Bytes {
    let bytes = message.encode_to_vec();
    let length = (bytes.len() as u32).to_be_bytes();
    [&[0][..], &length, &bytes].concat().into()
}

fn watch_of(key: &str) -> WatchRequest {
    let range_end = format!("{key}~").into();
    let create = WatchCreateRequest { key: key.to_owned().into(), range_end, ..Default::default() };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// All on one connection.
async fn idle_watch_streams(server: &HostileTarget, count: usize) {
    let before = server.resources();
    let mut client = open(server).await;
    let mut streams = Vec::new();
    for _ in 0..count {
        let (reply, body) = begin(&mut client, WATCH, &watch_of("quiet")).await;
        let reply = timeout(TEST_TIMEOUT, reply).await.unwrap().unwrap();
        streams.push((reply.into_body(), body));
    }
    let during = server.resources();
    println!("{count} idle watch streams: {before:?}, then {during:?}");
    server.serves_others("idle watch streams").await;
    let grown = during.memory_kib.saturating_sub(before.memory_kib);
    assert!(grown < 64 * count as u64, "{grown} KiB for {count} streams");
    drop((streams, client));
    server.assert_unharmed("idle watch streams", before, 64 * count as u64).await;
}

async fn watches_on_one_stream(server: &HostileTarget, count: usize) {
    let before = server.resources();
    let mut client = open(server).await;
    let (reply, mut body) = begin(&mut client, WATCH, &watch_of("quiet")).await;
    let mut events = timeout(TEST_TIMEOUT, reply).await.unwrap().unwrap().into_body();
    let request = framed(&watch_of("quiet"));
    // Reads as well: a client that does not read is closed, which is another case.
    let mut read = 0;
    for number in 0..count {
        body.send_data(request.clone(), false).unwrap();
        while number % 100 == 99 && read < number * CREATED_BYTES {
            read += read_some(&mut events).await;
        }
    }
    println!("{count} watches of one stream: {before:?}, then {:?}", server.resources());
    server.serves_others("many watches").await;
    drop((body, events, client));
    server.assert_unharmed("many watches", before, 64 << 10).await;
}

/// A little less than the size of the reply to each created watch.
const CREATED_BYTES: usize = 34;

async fn read_some(stream: &mut RecvStream) -> usize {
    let part = timeout(TEST_TIMEOUT, stream.data()).await.unwrap().unwrap().unwrap();
    stream.flow_control().release_capacity(part.len()).unwrap();
    part.len()
}

/// Many events for watchers that read none of them.
async fn watchers_that_never_read(server: &HostileTarget, count: usize) {
    let before = server.resources();
    let mut watchers = Vec::new();
    for _ in 0..count {
        let mut client = open(server).await;
        for _ in 0..5 {
            let (reply, body) = begin(&mut client, WATCH, &watch_of("loud")).await;
            let reply = timeout(TEST_TIMEOUT, reply).await.unwrap().unwrap();
            watchers.push((client.clone(), reply.into_body(), body));
        }
    }
    let mut writer = KvClient::new(server.channel().await);
    let value = Bytes::from(vec![b'a'; 64 << 10]);
    for number in 0..400 {
        let key = format!("loud{}", number % 10).into();
        writer.put(PutRequest { key, value: value.clone(), ..Default::default() }).await.unwrap();
    }
    let during = server.resources();
    println!(
        "{} watchers that never read, 25 MiB of events: {before:?}, then {during:?}",
        watchers.len()
    );
    server.serves_others("watchers that never read").await;
    let grown = during.memory_kib.saturating_sub(before.memory_kib);
    assert!(grown < 256 << 10, "{grown} KiB");
    drop((watchers, writer));
    server.assert_unharmed("watchers that never read", before, 256 << 10).await;
}

/// Large replies that the client does not read.
async fn unread_replies(server: &HostileTarget, count: usize) {
    let before = server.resources();
    let mut client = open(server).await;
    let range = RangeRequest { key: "large".into(), ..Default::default() };
    let mut unread = Vec::new();
    for _ in 0..count {
        let (reply, mut body) = begin(&mut client, "/etcdserverpb.KV/Range", &range).await;
        body.send_data(Bytes::new(), true).unwrap();
        unread.push(timeout(TEST_TIMEOUT, reply).await.unwrap().unwrap().into_body());
    }
    let during = server.resources();
    println!("{count} unread replies of 1.5 MiB: {before:?}, then {during:?}");
    server.serves_others("unread replies").await;
    drop((unread, client));
    server.assert_unharmed("unread replies", before, 160 << 10).await;
}

/// Requests on streams whose replies are not read: the server stops reading (backpressure).
async fn requests_without_reading(server: &HostileTarget) {
    let before = server.resources();
    let mut senders = JoinSet::new();
    for _ in 0..10 {
        let mut client = open(server).await;
        let lease = LeaseKeepAliveRequest { id: 77 };
        let (reply, mut body) =
            begin(&mut client, "/etcdserverpb.Lease/LeaseKeepAlive", &lease).await;
        senders.spawn(async move {
            let unread = reply.await;
            let many = Bytes::from(framed(&lease).repeat(1_000));
            for _ in 0..200 {
                body.reserve_capacity(many.len());
                sleep(Duration::from_millis(1)).await;
                if body.capacity() < many.len() {
                    continue;
                }
                body.send_data(many.clone(), false).unwrap();
            }
            drop((unread, client));
        });
    }
    timeout(TEST_TIMEOUT, senders.join_all()).await.unwrap();
    server.assert_unharmed("requests without reading", before, 64 << 10).await;
}
