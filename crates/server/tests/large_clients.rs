//! Large clients are served: very many watches and keep-alives of one client.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::time::Duration;

use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, WatchCreateRequest, WatchRequest,
};
use quorate_server::config::ClusterState;
use support::TestMember;
use tokio::time::timeout;

/// Only what never happens takes longer.
const LARGE_TIMEOUT: Duration = Duration::from_secs(600);

/// All keep-alives are sent at once; each is answered, in order.
async fn keep_alives(count: usize) {
    let a = TestMember::new("a");
    let server = a.start(&[&a], ClusterState::New).await;
    a.put_until_done("first", "1").await;
    let mut client = LeaseClient::new(a.channel().await);
    let id = i64::MAX - 7;
    client.lease_grant(LeaseGrantRequest { id, ttl: 3_600 }).await.unwrap();
    let requests = tokio_stream::iter(vec![LeaseKeepAliveRequest { id }; count]);
    let all = async {
        let mut answers = client.lease_keep_alive(requests).await.unwrap().into_inner();
        for number in 0..count {
            let answer = answers.message().await;
            let answer = answer.unwrap_or_else(|error| panic!("{number} answers, then {error}"));
            assert_eq!(answer.unwrap().ttl, 3_600);
        }
    };
    timeout(LARGE_TIMEOUT, all).await.unwrap();
    server.stop_now().await;
}

/// All watches are created at once, on one stream; the last one works.
async fn watches(count: usize) {
    let a = TestMember::new("a");
    let server = a.start(&[&a], ClusterState::New).await;
    a.put_until_done("first", "1").await;
    let watch = |number: usize| {
        let key = format!("key {number}").into();
        let create = WatchCreateRequest { key, ..Default::default() };
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
    };
    let requests: Vec<WatchRequest> = (0..count).map(watch).collect();
    // The stream stays open after the last request.
    let (sender, receiver) = tokio::sync::mpsc::channel(count);
    for request in requests {
        sender.try_send(request).unwrap();
    }
    let requests = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut client = WatchClient::new(a.channel().await);
    let all = async {
        let mut events = client.watch(requests).await.unwrap().into_inner();
        for number in 0..count {
            let created = events.message().await;
            let created =
                created.unwrap_or_else(|error| panic!("{number} watches, then {error}")).unwrap();
            assert!(created.created && !created.canceled, "{created:?}");
        }
        a.put_until_done(&format!("key {}", count - 1), "1").await;
        let event = events.message().await.unwrap().unwrap();
        assert_eq!((event.watch_id, event.events.len()), (count as i64 - 1, 1));
    };
    timeout(LARGE_TIMEOUT, all).await.unwrap();
    drop(sender);
    server.stop_now().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stream_keeps_thirty_thousand_leases_alive() {
    keep_alives(30_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stream_has_thirty_thousand_watches() {
    watches(30_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the normal run has 30,000 of each; this is the full size"]
async fn one_stream_keeps_a_hundred_thousand_leases_alive() {
    keep_alives(100_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the normal run has 30,000 of each; this is the full size"]
async fn one_stream_has_a_hundred_thousand_watches() {
    watches(100_000).await;
}
