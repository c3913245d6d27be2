//! The background tasks of a server.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::time::Duration;

use quorate_proto::etcdserverpb::{MemberAddRequest, RangeRequest};
use quorate_proto::grpc::health::v1::HealthCheckRequest;
use quorate_proto::grpc::health::v1::health_check_response::ServingStatus;
use quorate_proto::grpc::health::v1::health_client::HealthClient;
use quorate_server::RunningServer;
use quorate_server::config::{AutoCompaction, ClusterState};
use support::{TEST_TIMEOUT, TestMember, names, start_all};
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn old_revisions_are_compacted_and_the_quota_is_enforced() {
    let a = TestMember::new("a");
    let mut config = a.config(&[&a], ClusterState::New);
    config.auto_compaction = Some(AutoCompaction::Periodic(Duration::from_secs(2)));
    config.quota_backend_bytes = 10_000;
    let server = RunningServer::start(config).await.unwrap();
    for number in 0..5 {
        a.put_until_done("x", &number.to_string()).await;
    }
    let old = RangeRequest { key: "x".into(), revision: 2, ..RangeRequest::default() };
    let began = Instant::now();
    loop {
        match a.kv().await.range(old.clone()).await {
            Ok(_) => assert!(began.elapsed() < TEST_TIMEOUT, "nothing is compacted"),
            Err(error) => {
                assert_eq!(
                    error.message(),
                    "etcdserver: mvcc: required revision has been compacted"
                );
                break;
            }
        }
        a.put_until_done("x", "again").await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let full = a.put("y", &"y".repeat(20_000)).await.unwrap_err();
    assert_eq!(full.message(), "etcdserver: mvcc: database space exceeded");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn learners_are_promoted_automatically() {
    let [a, b] = ["a", "b"].map(TestMember::new);
    let mut config = a.config(&[&a], ClusterState::New);
    config.auto_promote = true;
    let first = RunningServer::start(config).await.unwrap();
    a.members_until(|members| names(members).contains("a")).await;
    let add = MemberAddRequest { peer_urls: vec![b.peer.to_string()], is_learner: true };
    a.cluster().await.member_add(add).await.unwrap();
    let second = b.start(&[&a, &b], ClusterState::Existing).await;
    let voters = |running: &RunningServer| running.node().membership().voters().len();
    let began = Instant::now();
    while voters(&first) < 2 {
        assert!(began.elapsed() < TEST_TIMEOUT, "{}", first.node().membership());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    second.stop().await;
    first.stop_now().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_client_url_is_published_after_a_restart() {
    let [a, moved] = ["a", "a"].map(TestMember::new);
    for server in start_all(&[&a]).await {
        server.stop().await;
    }
    let mut config = a.config(&[&a], ClusterState::New);
    config.listen_client_urls = vec![moved.client.clone()];
    config.advertise_client_urls = vec![moved.client.clone()];
    let server = RunningServer::start(config).await.unwrap();
    let new_url = moved.client.to_string();
    moved.members_until(|members| members[0].client_urls == [new_url.clone()]).await;

    let mut health = HealthClient::new(moved.channel().await);
    let checked = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(checked.status(), ServingStatus::Serving);
    server.stop().await;
}
