//! Locks.

use quorate_proto::v3lockpb::lock_client::LockClient;
use quorate_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest};
use quorate_server::RunningServer;
use tokio::task::JoinHandle;
use tonic::{Code, Request, Status};

use crate::support::{TestMember, start_all};
use crate::{assert_waits, grant, revoke, single, wait_for_key};

async fn lock(member: &TestMember, lease: i64) -> Result<LockResponse, Status> {
    let mut client = LockClient::new(member.channel().await);
    let request = LockRequest { name: "name".into(), lease };
    client.lock(request).await.map(tonic::Response::into_inner)
}

/// A server whose lock belongs to lease 1, and a client with lease 2 that waits for it.
async fn with_waiter() -> (TestMember, RunningServer, LockTask) {
    let (member, server) = single().await;
    for id in 1..=2 {
        grant(&member, id).await;
    }
    lock(&member, 1).await.unwrap();
    let waiting = begin_lock(&member, 2).await;
    wait_for_key(&member, "name/2", true).await;
    (member, server, waiting)
}

type LockTask = JoinHandle<Result<LockResponse, Status>>;

async fn begin_lock(member: &TestMember, lease: i64) -> LockTask {
    let mut client = LockClient::new(member.channel().await);
    tokio::spawn(async move {
        let request = LockRequest { name: "name".into(), lease };
        client.lock(request).await.map(tonic::Response::into_inner)
    })
}

async fn unlock(member: &TestMember, key: &str) {
    let mut client = LockClient::new(member.channel().await);
    client.unlock(UnlockRequest { key: key.to_owned().into() }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_get_the_lock_in_order_at_any_member() {
    let members = ["a", "b", "c"].map(TestMember::new);
    let [a, b, c] = &members;
    let servers = start_all(&[a, b, c]).await;
    for id in 1..=3 {
        grant(a, id).await;
    }
    let held = lock(a, 1).await.unwrap();
    assert_eq!(held.key, "name/1");
    assert_eq!(lock(b, 1).await.unwrap().key, "name/1", "it holds the lock already");
    let second = begin_lock(b, 2).await;
    wait_for_key(a, "name/2", true).await;
    let third = begin_lock(c, 3).await;
    wait_for_key(a, "name/3", true).await;
    assert_waits(a, &second).await;
    unlock(c, "name/1").await;
    let got = second.await.unwrap().unwrap();
    assert_eq!(got.key, "name/2");
    assert!(got.header.unwrap().revision > held.header.unwrap().revision);
    assert_waits(a, &third).await;
    // A lease that ends releases its lock.
    revoke(a, 2).await;
    assert_eq!(third.await.unwrap().unwrap().key, "name/3");
    for server in servers {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_without_a_lease_gets_one_and_an_unknown_lease_is_refused() {
    let (member, server) = single().await;
    let held = lock(&member, 0).await.unwrap();
    let hex = std::str::from_utf8(&held.key).unwrap().strip_prefix("name/").unwrap();
    assert!(i64::from_str_radix(hex, 16).unwrap() > 0);
    let refused = lock(&member, 99).await.unwrap_err();
    let text = "etcdserver: requested lease not found";
    assert_eq!((refused.code(), refused.message()), (Code::NotFound, text));
    let mut client = LockClient::new(member.channel().await);
    let refused = client.unlock(UnlockRequest::default()).await.unwrap_err();
    let text = "etcdserver: key is not provided";
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, text));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_loses_its_lease_gets_an_error() {
    let (member, server, waiting) = with_waiter().await;
    revoke(&member, 2).await;
    unlock(&member, "name/1").await;
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unknown, "mutex: session is expired"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_waiter_leaves_no_key() {
    let (member, server, waiting) = with_waiter().await;
    grant(&member, 3).await;
    waiting.abort();
    wait_for_key(&member, "name/2", false).await;
    // The same when its time is over.
    let mut client = LockClient::new(member.channel().await);
    let mut request = Request::new(LockRequest { name: "name".into(), lease: 3 });
    request.set_timeout(std::time::Duration::from_millis(300));
    assert!(client.lock(request).await.is_err());
    wait_for_key(&member, "name/3", false).await;
    assert!(member.get("name/1").await.is_some());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_end_when_the_server_stops() {
    let (_member, server, waiting) = with_waiter().await;
    server.stop().await;
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), Code::Unavailable);
}
