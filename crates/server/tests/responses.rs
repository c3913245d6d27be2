//! Responses that are not read stay within the budget, and timeouts of calls are respected.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use prost::Message;
use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{
    DeleteRangeRequest, LeaseGrantRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest,
    RangeResponse, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, request_op,
};
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
    // A client that reads is served in the end: what others do not read is dropped.
    let served = async {
        loop {
            match kv.range(range.clone()).await {
                Ok(found) => return found.into_inner().kvs.len(),
                Err(refused) => assert_eq!(refused.code(), tonic::Code::ResourceExhausted),
            }
        }
    };
    assert_eq!(timeout(TEST_TIMEOUT, served).await.unwrap(), 8);
    assert!(metric(&server, "quorate_client_responses_dropped_total").await > 0);
    drop((unread, client));
    wait_until_free(&server).await;
    let found = timeout(TEST_TIMEOUT, kv.range(range)).await.unwrap().unwrap().into_inner();
    assert_eq!((found.kvs.len(), found.count, found.more), (8, 8, false));
    assert!(found.kvs.iter().all(|kv| kv.value.len() == MIB as usize && kv.version == 1));
    server.stop_now().await;
}

/// Lists of leases, and of the keys of one, are counted as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_lists_of_leases_stay_within_the_budget() {
    const KEYS: usize = 512;
    let a = TestMember::new("a");
    let mut config = a.config(&[&a], ClusterState::New);
    config.max_response_memory = 8 * MIB;
    let server = RunningServer::start(config).await.unwrap();
    a.put_until_done("first", "1").await;
    let mut leases = LeaseClient::new(a.channel().await).max_decoding_message_size(usize::MAX);
    let grant = LeaseGrantRequest { ttl: 100_000, ..Default::default() };
    let lease = leases.lease_grant(grant).await.unwrap().into_inner().id;
    let mut kv = a.kv().await;
    for number in 0..KEYS {
        let key = format!("{number:01024}").into();
        kv.put(PutRequest { key, lease, ..Default::default() }).await.unwrap();
    }
    let keys = LeaseTimeToLiveRequest { id: lease, keys: true };
    let mut client = connect(server.client_addresses()[0]).await;
    let mut unread = Vec::new();
    for _ in 0..40 {
        unread.push(call(&mut client, "/etcdserverpb.Lease/LeaseTimeToLive", &keys, None).await);
    }
    support::wait_for("responses are sent", async || {
        metric(&server, "quorate_client_response_bytes").await >= 4 * MIB
    })
    .await;
    let used = metric(&server, "quorate_client_response_bytes").await;
    assert!(used <= 8 * MIB, "{used}");
    drop((unread, client));
    wait_until_free(&server).await;
    let found = leases.lease_time_to_live(keys).await.unwrap().into_inner();
    assert_eq!((found.keys.len(), found.granted_ttl), (KEYS, 100_000));
    server.stop_now().await;
}

/// 12 values of 1 MiB in a budget of 8 MiB.
async fn start_small_budget(a: &TestMember) -> RunningServer {
    let mut config = a.config(&[a], ClusterState::New);
    config.max_response_memory = 8 * MIB;
    let server = RunningServer::start(config).await.unwrap();
    a.put_until_done("first", "1").await;
    put_large(a).await;
    server
}

async fn put_large(a: &TestMember) {
    let mut kv = a.kv().await;
    for number in 0..12 {
        let value = vec![b'v'; MIB as usize].into();
        let key = format!("k{number:02}").into();
        kv.put(PutRequest { key, value, ..Default::default() }).await.unwrap();
    }
}

/// The refusal comes before the request has any effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_above_the_budget_is_refused() {
    let a = TestMember::new("a");
    let server = start_small_budget(&a).await;
    let mut kv = a.kv().await.max_decoding_message_size(usize::MAX);
    let range = RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    let deletion = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true };
    let operation = |request| RequestOp { request: Some(request) };
    let writing = |request| TxnRequest {
        success: vec![
            operation(request_op::Request::RequestPut(put("txn", "1"))),
            operation(request),
        ],
        ..Default::default()
    };
    let ranges = writing(request_op::Request::RequestRange(range.clone()));
    let deletes = writing(request_op::Request::RequestDeleteRange(deletion.clone()));
    let refused = [
        kv.range(range.clone()).await.unwrap_err(),
        kv.delete_range(deletion.clone()).await.unwrap_err(),
        kv.txn(ranges).await.unwrap_err(),
        kv.txn(deletes).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.code(), tonic::Code::ResourceExhausted, "{error}");
        assert!(error.message().contains("--max-response-memory"), "{error}");
    }
    assert_eq!(a.get("txn").await, None);
    assert_eq!(metric(&server, "quorate_client_response_bytes").await, 0);
    // In parts, and without what was before, it is served.
    let part = RangeRequest { limit: 5, ..range.clone() };
    assert_eq!(kv.range(part).await.unwrap().into_inner().kvs.len(), 5);
    let part = DeleteRangeRequest { range_end: "k06".into(), ..deletion.clone() };
    assert_eq!(kv.delete_range(part).await.unwrap().into_inner().prev_kvs.len(), 6);
    let rest = DeleteRangeRequest { prev_kv: false, ..deletion };
    assert_eq!(kv.delete_range(rest).await.unwrap().into_inner().deleted, 6);
    server.stop_now().await;
}

/// Replies with the previous pairs of writes wait for memory as ranges do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_replies_to_writes_stay_within_the_budget() {
    let a = TestMember::new("a");
    let server = start_small_budget(&a).await;
    let mut client = connect(server.client_addresses()[0]).await;
    let mut unread = Vec::new();
    for _ in 0..4 {
        for number in 0..12 {
            // With its previous value of 1 MiB, as most of these replies have it.
            let key = format!("k{number:02}").into();
            let value = vec![b'w'; MIB as usize].into();
            let request = PutRequest { key, value, prev_kv: true, ..Default::default() };
            unread.push(call(&mut client, "/etcdserverpb.KV/Put", &request, None).await);
        }
    }
    support::wait_for("replies are sent", async || {
        metric(&server, "quorate_client_response_bytes").await >= 5 * MIB
    })
    .await;
    for _ in 0..20 {
        let used = metric(&server, "quorate_client_response_bytes").await;
        assert!(used <= 8 * MIB, "{used}");
    }
    drop((unread, client));
    wait_until_free(&server).await;
    server.stop_now().await;
}

/// The memory of all responses is free again.
async fn wait_until_free(server: &RunningServer) {
    support::wait_for("all memory is free", async || {
        metric(server, "quorate_client_response_bytes").await == 0
    })
    .await;
}

fn watch_all() -> WatchRequest {
    let create =
        WatchCreateRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

/// Streams of watches that are not read wait for memory, and one that is read gets all events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_watches_stay_within_the_budget() {
    let a = TestMember::new("a");
    let server = start_small_budget(&a).await;
    let mut client = connect(server.client_addresses()[0]).await;
    let mut unread = Vec::new();
    for _ in 0..20 {
        client = client.ready().await.unwrap();
        let request = Request::post("http://m/etcdserverpb.Watch/Watch")
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let (reply, mut body) = client.send_request(request.body(()).unwrap(), false).unwrap();
        let bytes = watch_all().encode_to_vec();
        let length = (bytes.len() as u32).to_be_bytes();
        body.send_data([&[0][..], &length, &bytes].concat().into(), false).unwrap();
        unread.push((reply, body));
    }
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    sender.send(watch_all()).await.unwrap();
    let requests = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut reading = WatchClient::new(a.channel().await).max_decoding_message_size(usize::MAX);
    let mut reading = reading.watch(requests).await.unwrap().into_inner();
    assert!(reading.message().await.unwrap().unwrap().created);
    let watching = "etcd_debugging_mvcc_watcher_total";
    support::wait_for("all watch", async || metric(&server, watching).await == 21).await;

    put_large(&a).await;
    support::wait_for("events are sent", async || {
        metric(&server, "quorate_client_response_bytes").await >= 4 * MIB
    })
    .await;
    let mut events = 0;
    while events < 12 {
        let used = metric(&server, "quorate_client_response_bytes").await;
        assert!(used <= 8 * MIB, "{used}");
        let response = timeout(TEST_TIMEOUT, reading.message()).await.unwrap();
        events += response.unwrap().unwrap().events.len();
    }
    // Those that do not read lose their streams, and go on from their revision when they return.
    support::wait_for("a stream is dropped", async || {
        metric(&server, "quorate_client_responses_dropped_total").await > 0
    })
    .await;
    drop((unread, client));
    server.stop_now().await;
}

/// Events that are a little larger than most need more of the budget than there is for all streams
/// at once. Each stream gets them nevertheless: none waits for more memory while it holds some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_watches_of_middle_sized_events_do_not_wait_for_each_other() {
    const STREAMS: usize = 150;
    const EVENTS: usize = 20;
    let a = TestMember::new("a");
    let server = start_small_budget(&a).await;
    let mut client = WatchClient::new(a.channel().await).max_decoding_message_size(usize::MAX);
    let mut reading = Vec::new();
    for _ in 0..STREAMS {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        sender.send(watch_all()).await.unwrap();
        let requests = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let mut events = client.watch(requests).await.unwrap().into_inner();
        assert!(events.message().await.unwrap().unwrap().created);
        reading.push(tokio::spawn(async move {
            let _open = sender;
            let mut count = 0;
            while count < EVENTS {
                count += events.message().await.unwrap().unwrap().events.len();
            }
        }));
    }
    for number in 0..EVENTS {
        a.put_until_done("k", &number.to_string().repeat(20 << 10)[..20 << 10]).await;
    }
    for stream in reading {
        timeout(TEST_TIMEOUT, stream).await.unwrap().unwrap();
    }
    wait_until_free(&server).await;
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
