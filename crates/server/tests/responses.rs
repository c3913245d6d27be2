//! Responses that are not read stay within the budget, and timeouts of calls are respected.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use prost::Message;
use quorate_proto::etcdserverpb::{PutRequest, RangeRequest, RangeResponse};
use quorate_server::RunningServer;
use quorate_server::config::ClusterState;
use support::{TEST_TIMEOUT, TestMember, http_get, put};
use tokio::net::TcpStream;
use tokio::time::timeout;

const RANGE: &str = "/etcdserverpb.KV/Range";
const MIB: u64 = 1 << 20;

async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.data_frame_budget(usize::MAX);
    let (client, connection) = builder.handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client.ready().await.unwrap()
}

/// Sends a call with one message.
async fn call(
    client: &mut SendRequest<Bytes>,
    path: &str,
    message: &impl Message,
    timeout: Option<&str>,
) -> ResponseFuture {
    let mut request = Request::post(format!("http://m{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(timeout) = timeout {
        request = request.header("grpc-timeout", timeout);
    }
    *client = client.clone().ready().await.unwrap();
    let (reply, mut body) = client.send_request(request.body(()).unwrap(), false).unwrap();
    let bytes = message.encode_to_vec();
    let length = (bytes.len() as u32).to_be_bytes();
    // The server may have answered already.
    let _ = body.send_data([&[0][..], &length, &bytes].concat().into(), true);
    reply
}

async fn metric(server: &RunningServer, name: &str) -> u64 {
    let (_, page) = http_get(server.client_addresses()[0], "/metrics").await;
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_stay_within_the_budget() {
    let a = TestMember::new("a");
    let mut config = a.config(&[&a], ClusterState::New);
    config.max_response_memory = 32 * MIB;
    let server = RunningServer::start(config).await.unwrap();
    a.put_until_done("first", "1").await;
    let mut kv = a.kv().await.max_decoding_message_size(usize::MAX);
    for number in 0..8 {
        let value = vec![b'v'; MIB as usize].into();
        let key = format!("k{number}").into();
        kv.put(PutRequest { key, value, ..Default::default() }).await.unwrap();
    }
    let range = RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    let mut client = connect(server.client_addresses()[0]).await;
    let mut unread = Vec::new();
    for _ in 0..20 {
        unread.push(call(&mut client, RANGE, &range, None).await);
    }
    // As many as fit are served, and the others wait.
    support::wait_for("responses are sent", async || {
        metric(&server, "quorate_client_response_bytes").await >= 3 * 8 * MIB
    })
    .await;
    assert_eq!(metric(&server, "quorate_client_response_limit_bytes").await, 32 * MIB);
    for _ in 0..10 {
        let used = metric(&server, "quorate_client_response_bytes").await;
        assert!(used <= 32 * MIB, "{used}");
        // Small responses do not wait for large ones.
        let small = RangeRequest { key: "first".into(), ..Default::default() };
        assert_eq!(kv.range(small).await.unwrap().into_inner().count, 1);
    }
    // A client that reads is served: what others do not read is dropped.
    let found = timeout(TEST_TIMEOUT, kv.range(range.clone())).await.unwrap();
    match found {
        Ok(found) => assert_eq!(found.into_inner().kvs.len(), 8),
        Err(refused) => assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused}"),
    }
    drop((unread, client));
    support::wait_for("all memory is free", async || {
        metric(&server, "quorate_client_response_bytes").await == 0
    })
    .await;
    let found = timeout(TEST_TIMEOUT, kv.range(range)).await.unwrap().unwrap().into_inner();
    assert_eq!((found.kvs.len(), found.count, found.more), (8, 8, false));
    assert!(found.kvs.iter().all(|kv| kv.value.len() == MIB as usize && kv.version == 1));
    server.stop_now().await;
}

/// Status code of HTTP, status and text of gRPC.
async fn outcome(reply: ResponseFuture) -> (u16, String, String) {
    let reply = timeout(TEST_TIMEOUT, reply).await.unwrap().unwrap();
    let (parts, mut body) = reply.into_parts();
    let mut headers = parts.headers;
    if !headers.contains_key("grpc-status") {
        while body.data().await.is_some() {}
        headers = body.trailers().await.unwrap().unwrap();
    }
    let text = |name: &str| {
        headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
    };
    (parts.status.as_u16(), text("grpc-status"), text("grpc-message"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_and_zero_timeouts_are_answered_as_etcd_answers_them() {
    let a = TestMember::new("a");
    let server = a.start(&[&a], ClusterState::New).await;
    a.put_until_done("first", "1").await;
    let mut client = connect(server.client_addresses()[0]).await;
    let put_path = "/etcdserverpb.KV/Put";
    for (timeout, http, code, text) in [
        ("x", 400, "13", "malformed%20grpc-timeout"),
        ("1s", 400, "13", "malformed%20grpc-timeout"),
        ("0m", 200, "4", "context%20deadline%20exceeded"),
        ("0n", 200, "4", "context%20deadline%20exceeded"),
        ("60S", 200, "0", ""),
    ] {
        let reply = call(&mut client, put_path, &put(timeout, "1"), Some(timeout)).await;
        let outcome = outcome(reply).await;
        assert_eq!((outcome.0, outcome.1.as_str()), (http, code), "{timeout}: {outcome:?}");
        assert!(outcome.2.starts_with(text), "{timeout}: {outcome:?}");
        let done = a.get(timeout).await.is_some();
        assert_eq!(done, code == "0", "{timeout}: a call that is out of time has no effect");
    }
    server.stop_now().await;
}

/// What is sent in pieces is what tonic sends at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_ranges_of_all_kinds_are_complete() {
    let a = TestMember::new("a");
    let server = a.start(&[&a], ClusterState::New).await;
    a.put_until_done("first", "1").await;
    let mut kv = a.kv().await.max_decoding_message_size(usize::MAX);
    for number in 0..3_000 {
        let value = vec![b'v'; 300].into();
        let key = format!("k{number:04}").into();
        kv.put(PutRequest { key, value, ..Default::default() }).await.unwrap();
    }
    let all = RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    let sizes = |found: &RangeResponse| (found.kvs.len(), found.count, found.more);
    let found = kv.range(all.clone()).await.unwrap().into_inner();
    assert_eq!(sizes(&found), (3_000, 3_000, false));
    assert!(found.kvs.windows(2).all(|pair| pair[0].key < pair[1].key));
    let limited = RangeRequest { limit: 2_000, ..all.clone() };
    let found = kv.range(limited).await.unwrap().into_inner();
    assert_eq!(sizes(&found), (2_000, 3_000, true));
    let keys_only = RangeRequest { keys_only: true, ..all.clone() };
    let found = kv.range(keys_only).await.unwrap().into_inner();
    assert_eq!(sizes(&found), (3_000, 3_000, false));
    assert!(found.kvs.iter().all(|kv| kv.value.is_empty()));
    let counted = RangeRequest { count_only: true, ..all };
    let found = kv.range(counted).await.unwrap().into_inner();
    assert_eq!(sizes(&found), (0, 3_000, false));
    server.stop_now().await;
}
