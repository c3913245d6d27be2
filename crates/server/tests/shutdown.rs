//! Graceful shutdown: health checks fail, leadership is transferred, requests in progress finish.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::time::Duration;

use quorate_proto::etcdserverpb::WatchRequest;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::grpc::health::v1::HealthCheckRequest;
use quorate_proto::grpc::health::v1::health_check_response::ServingStatus;
use quorate_proto::grpc::health::v1::health_client::HealthClient;
use quorate_server::config::ClusterState;
use quorate_server::{LeadershipTransfer, RunningServer};
use support::{TEST_TIMEOUT, TestMember, http_get, start_all, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_leader_transfers_leadership_and_serves_meanwhile() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let test_members = [&a, &b, &c];
    let mut running = start_all(&test_members).await;
    let leader = running.iter().position(|server| server.node().is_leader()).unwrap();
    let member = test_members[leader];
    let server = running.remove(leader);
    let address = server.client_addresses()[0];
    assert_eq!(http_get(address, "/readyz").await.0, "HTTP/1.1 200 OK");
    let mut health = HealthClient::new(member.channel().await);
    let mut health_states = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    let status = health_states.message().await.unwrap().unwrap().status();
    assert_eq!(status, ServingStatus::Serving);
    let mut watch = WatchClient::new(member.channel().await);
    let nothing = tokio_stream::pending::<WatchRequest>();
    let mut watched = watch.watch(nothing).await.unwrap().into_inner();

    // On a slow machine this member may be elected again.
    support::wait_for("it no longer leads", async || {
        server.leave().await;
        !server.node().is_leader()
    })
    .await;
    wait_until("another leads", || running.iter().any(|server| server.node().is_leader())).await;
    let (line, body) = http_get(address, "/readyz").await;
    assert_eq!(line, "HTTP/1.1 503 Service Unavailable");
    assert!(body.contains("[-]not_stopping failed: the server is stopping\n"), "{body}");
    let (line, body) = http_get(address, "/health").await;
    assert_eq!(line, "HTTP/1.1 503 Service Unavailable");
    assert_eq!(body, "{\"health\":\"false\",\"reason\":\"SERVER STOPPING\"}\n");
    assert_eq!(http_get(address, "/livez").await.0, "HTTP/1.1 200 OK");
    while health_states.message().await.unwrap().unwrap().status() != ServingStatus::NotServing {}
    // Requests are still served, through the new leader.
    member.put_until_done("x", "1").await;

    server.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
    let ended = watched.message().await.unwrap_err();
    assert_eq!(ended.message(), "etcdserver: server stopped");
    assert_eq!(test_members[(leader + 1) % 3].get("x").await.as_deref(), Some("1"));
    for server in running {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_member_does_not_wait_for_a_successor() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let mut running = start_all(&[&a, &b, &c]).await;
    wait_until("one leads", || running.iter().any(|server| server.node().is_leader())).await;
    let leader = running.iter().position(|server| server.node().is_leader()).unwrap();
    let last = running.remove(leader);
    for server in running {
        server.stop_now().await;
    }
    // It may have noticed already that no quorum answers.
    assert_ne!(last.leave().await, LeadershipTransfer::TimedOut);
    last.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_progress_is_finished() {
    let [a, b] = ["a", "b"].map(TestMember::new);
    let start = async |member: &TestMember| {
        let mut config = member.config(&[&a, &b], ClusterState::New);
        // So long that the leader stays, and its request waits, until the other member is back.
        config.election_timeout = Duration::from_secs(20);
        config.drain_timeout = TEST_TIMEOUT;
        RunningServer::start(config).await.unwrap()
    };
    let (first, second) = (start(&a).await, start(&b).await);
    wait_until("a leads", || {
        first.node().campaign();
        first.node().is_leader()
    })
    .await;
    a.members_until(|members| members.iter().all(|member| !member.client_urls.is_empty())).await;
    second.stop_now().await;

    let mut kv = a.kv().await;
    let put = tokio::spawn(async move { kv.put(support::put("x", "1")).await });
    let address = first.client_addresses()[0];
    support::put_started(address).await;
    wait_until("the put is proposed", || first.node().metrics().open_requests > 0).await;
    let stop = tokio::spawn(first.stop());
    support::wait_for("the port is closed", async || TcpStream::connect(address).await.is_err())
        .await;
    assert!(!put.is_finished());
    let second = start(&b).await;
    put.await.unwrap().unwrap();
    stop.await.unwrap();
    second.stop_now().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_a_request_is_not_waited_for() {
    let a = TestMember::new("a");
    let mut config = a.config(&[&a], ClusterState::New);
    config.drain_timeout = TEST_TIMEOUT;
    let server = RunningServer::start(config).await.unwrap();
    // A connection has ten seconds to show which protocol it uses.
    let mut silent = TcpStream::connect(server.client_addresses()[0]).await.unwrap();
    let mut unfinished = TcpStream::connect(server.client_addresses()[0]).await.unwrap();
    unfinished.write_all(b"PRI * HTTP/2").await.unwrap();
    a.put_until_done("x", "1").await;
    let began = std::time::Instant::now();
    server.stop().await;
    assert!(began.elapsed() < Duration::from_secs(8), "it took {:?}", began.elapsed());
    for connection in [&mut silent, &mut unfinished] {
        assert!(!matches!(connection.read(&mut [0; 64]).await, Ok(1..)), "it is closed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_never_ends_is_cut_off() {
    let [a, b] = ["a", "b"].map(TestMember::new);
    let mut config = a.config(&[&a, &b], ClusterState::New);
    config.drain_timeout = Duration::from_millis(100);
    // The request waits for a leader for far longer than the test.
    config.election_timeout = Duration::from_secs(1000);
    let server = RunningServer::start(config).await.unwrap();
    let mut kv = a.kv().await;
    let put = tokio::spawn(async move { kv.put(support::put("x", "1")).await });
    support::put_started(server.client_addresses()[0]).await;
    tokio::time::timeout(TEST_TIMEOUT, server.stop()).await.unwrap();
    assert!(put.await.unwrap().is_err());
}

/// The runtime may be busy: its tasks end later than they are told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn addresses_are_free_after_an_immediate_stop() {
    let a = TestMember::new("a");
    let server = a.start(&[&a], ClusterState::New).await;
    let address = server.client_addresses()[0];
    let (busy, is_busy) = std::sync::mpsc::channel();
    tokio::spawn(async move {
        busy.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    });
    is_busy.recv().unwrap();
    server.stop_now().await;
    std::net::TcpListener::bind(address).unwrap();
}
