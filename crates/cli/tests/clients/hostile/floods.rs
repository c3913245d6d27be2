//! Much of something that is allowed once: calls that are taken back at once, connections and
//! watches that do nothing, answers that nobody reads.

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

use super::server::{Server, read_to_end};
use super::wire::*;
use crate::common::PATIENCE;

/// Causes each, and gives how many there were.
pub(crate) async fn cause_all(server: &Server) -> usize {
    frames_without_end(server).await;
    connections_that_come_and_go(server, 1_000).await;
    idle_connections(server, 1_000).await;
    idle_watch_streams(server, 1_000).await;
    watches_of_one_stream(server, 20_000).await;
    watchers_who_never_read(server, 20).await;
    answers_that_nobody_reads(server, 50).await;
    requests_without_reading(server).await;
    11
}

/// Each of these is small, and there is no end of them.
async fn frames_without_end(server: &Server) {
    let headers = call_headers("/etcdserverpb.KV/Range");
    let open = |stream| frame(HEADERS, END_HEADERS, stream, &headers);
    let taken_back = |count: u32| -> Vec<Vec<u8>> {
        let one = |n: u32| [open(2 * n + 1), frame(RESET, 0, 2 * n + 1, &[0, 0, 0, 8])].concat();
        (0..count).map(one).collect()
    };
    let empty = |count: usize| [vec![open(1)], vec![frame(DATA, 0, 1, &[]); count]].concat();
    let floods = [
        ("calls taken back", taken_back(20_000)),
        ("pings", vec![frame(PING, 0, 0, &[7; 8]); 50_000]),
        ("settings", vec![frame(SETTINGS, 0, 0, &[]); 50_000]),
        ("data without data", empty(50_000)),
    ];
    for (name, frames) in floods {
        let before = server.holds();
        let mut stream = server.connect().await;
        // It may close in the middle, or stop reading because nobody reads its answers.
        let bytes = after_preface(&frames);
        let _ = timeout(Duration::from_secs(2), stream.write_all(&bytes)).await;
        server.serves_others(name).await;
        drop(stream);
        server.is_unharmed(name, before, 32 << 10).await;
    }
}

async fn connections_that_come_and_go(server: &Server, count: usize) {
    let before = server.holds();
    for number in 0..count {
        let mut stream = server.connect().await;
        let _ = stream.write_all(&PREFACE[..number % PREFACE.len()]).await;
    }
    server.is_unharmed("connections that come and go", before, 32 << 10).await;
}

/// They have said hello, and nothing else.
pub(crate) async fn idle_connections(server: &Server, count: usize) {
    let before = server.holds();
    let mut idle = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = server.connect().await;
        stream.write_all(&after_preface(&[])).await.unwrap();
        let hello = read_to_end(&mut stream, |answer| kinds(answer).contains(&SETTINGS));
        assert!(!hello.await.is_empty());
        idle.push(stream);
    }
    let during = server.holds();
    println!("{count} idle connections: {before:?}, then {during:?}");
    // All of them are there; some of those before may have gone.
    assert!(during.files + 16 >= before.files + count);
    server.serves_others("idle connections").await;
    let grown = during.memory_kib.saturating_sub(before.memory_kib);
    assert!(grown < 64 * count as u64, "{grown} KiB for {count} connections");
    drop(idle);
    server.is_unharmed("idle connections", before, 64 * count as u64).await;
}

/// More than there are places; the server keeps what it needs for itself.
pub(crate) async fn take_all_connections(server: &Server, count: usize) {
    let mut friend = KvClient::new(server.channel().await);
    let before = server.holds();
    let mut taken: Vec<TcpStream> = Vec::new();
    for _ in 0..count {
        taken.push(server.connect().await);
    }
    // Those who were there go on, and the log can be written.
    for number in 0..100 {
        let put = PutRequest { key: format!("{number}").into(), ..Default::default() };
        timeout(PATIENCE, friend.put(put)).await.unwrap().unwrap();
    }
    let during = server.holds();
    assert!(during.files < 256 - 100, "{during:?}");
    drop(taken);
    server.is_unharmed("all connections", before, 32 << 10).await;
}

/// A connection of HTTP/2 that is driven, but reads no more of an answer than it is told to.
async fn open(server: &Server) -> SendRequest<Bytes> {
    // This side has no limit to what waits to be read.
    let mut builder = h2::client::Builder::new();
    builder.data_frame_budget(usize::MAX);
    let (client, connection) = builder.handshake(server.connect().await).await.unwrap();
    tokio::spawn(connection);
    client.ready().await.unwrap()
}

/// Begins a call with one message, and leaves its other side open.
async fn begin(
    client: &mut SendRequest<Bytes>,
    path: &str,
    message: &impl Message,
) -> (ResponseFuture, h2::SendStream<Bytes>) {
    let request = Request::post(format!("http://m{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    *client = client.clone().ready().await.unwrap();
    let (answer, mut body) = client.send_request(request.body(()).unwrap(), false).unwrap();
    body.send_data(framed(message), false).unwrap();
    (answer, body)
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

/// All on one connection: there is room for them.
async fn idle_watch_streams(server: &Server, count: usize) {
    let before = server.holds();
    let mut client = open(server).await;
    let mut streams = Vec::new();
    for _ in 0..count {
        let (answer, body) = begin(&mut client, WATCH, &watch_of("quiet")).await;
        let answer = timeout(PATIENCE, answer).await.unwrap().unwrap();
        streams.push((answer.into_body(), body));
    }
    let during = server.holds();
    println!("{count} idle watch streams: {before:?}, then {during:?}");
    server.serves_others("idle watch streams").await;
    let grown = during.memory_kib.saturating_sub(before.memory_kib);
    assert!(grown < 64 * count as u64, "{grown} KiB for {count} streams");
    drop((streams, client));
    server.is_unharmed("idle watch streams", before, 64 * count as u64).await;
}

async fn watches_of_one_stream(server: &Server, count: usize) {
    let before = server.holds();
    let mut client = open(server).await;
    let (answer, mut body) = begin(&mut client, WATCH, &watch_of("quiet")).await;
    let mut told = timeout(PATIENCE, answer).await.unwrap().unwrap().into_body();
    let request = framed(&watch_of("quiet"));
    // Who sends much without reading is sent away; that is another case.
    let mut read = 0;
    for number in 0..count {
        body.send_data(request.clone(), false).unwrap();
        while number % 100 == 99 && read < number * CREATED_BYTES {
            read += read_some(&mut told).await;
        }
    }
    println!("{count} watches of one stream: {before:?}, then {:?}", server.holds());
    server.serves_others("many watches").await;
    drop((body, told, client));
    server.is_unharmed("many watches", before, 64 << 10).await;
}

/// Almost as many as there come for each watch that was created.
const CREATED_BYTES: usize = 34;

async fn read_some(told: &mut RecvStream) -> usize {
    let part = timeout(PATIENCE, told.data()).await.unwrap().unwrap().unwrap();
    told.flow_control().release_capacity(part.len()).unwrap();
    part.len()
}

/// Much happens to what they watch, and they take none of it.
async fn watchers_who_never_read(server: &Server, count: usize) {
    let before = server.holds();
    let mut deaf = Vec::new();
    for _ in 0..count {
        let mut client = open(server).await;
        for _ in 0..5 {
            let (answer, body) = begin(&mut client, WATCH, &watch_of("loud")).await;
            let answer = timeout(PATIENCE, answer).await.unwrap().unwrap();
            deaf.push((client.clone(), answer.into_body(), body));
        }
    }
    let mut writer = KvClient::new(server.channel().await);
    let value = Bytes::from(vec![b'a'; 64 << 10]);
    for number in 0..400 {
        let key = format!("loud{}", number % 10).into();
        writer.put(PutRequest { key, value: value.clone(), ..Default::default() }).await.unwrap();
    }
    let during = server.holds();
    println!("{} deaf watchers, 25 MiB of news: {before:?}, then {during:?}", deaf.len());
    server.serves_others("deaf watchers").await;
    let grown = during.memory_kib.saturating_sub(before.memory_kib);
    assert!(grown < 256 << 10, "{grown} KiB");
    drop((deaf, writer));
    server.is_unharmed("deaf watchers", before, 256 << 10).await;
}

/// Large answers, and nobody takes them.
async fn answers_that_nobody_reads(server: &Server, count: usize) {
    let before = server.holds();
    let mut client = open(server).await;
    let range = RangeRequest { key: "large".into(), ..Default::default() };
    let mut unread = Vec::new();
    for _ in 0..count {
        let (answer, mut body) = begin(&mut client, "/etcdserverpb.KV/Range", &range).await;
        body.send_data(Bytes::new(), true).unwrap();
        unread.push(timeout(PATIENCE, answer).await.unwrap().unwrap().into_body());
    }
    let during = server.holds();
    println!("{count} answers of 1.5 MiB that nobody reads: {before:?}, then {during:?}");
    server.serves_others("unread answers").await;
    drop((unread, client));
    server.is_unharmed("unread answers", before, 160 << 10).await;
}

/// Requests on streams whose answers nobody reads: the server stops reading, too.
async fn requests_without_reading(server: &Server) {
    let before = server.holds();
    let mut senders = JoinSet::new();
    for _ in 0..10 {
        let mut client = open(server).await;
        let lease = LeaseKeepAliveRequest { id: 77 };
        let (answer, mut body) =
            begin(&mut client, "/etcdserverpb.Lease/LeaseKeepAlive", &lease).await;
        senders.spawn(async move {
            let unread = answer.await;
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
    timeout(PATIENCE, senders.join_all()).await.unwrap();
    server.is_unharmed("requests without reading", before, 64 << 10).await;
}
