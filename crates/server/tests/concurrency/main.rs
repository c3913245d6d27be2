//! etcd's services Lock and Election: who holds a lock or leads, and what ends a wait.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod elections;
mod locks;
#[path = "../support/mod.rs"]
mod support;

use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest};
use quorate_server::RunningServer;
use support::{TestMember, start_all};
use tokio::task::JoinHandle;

/// A single member.
pub(crate) async fn single() -> (TestMember, RunningServer) {
    let member = TestMember::new("a");
    let server = start_all(&[&member]).await.pop().unwrap();
    (member, server)
}

pub(crate) async fn grant(member: &TestMember, id: i64) {
    let mut leases = LeaseClient::new(member.channel().await);
    leases.lease_grant(LeaseGrantRequest { ttl: 600, id }).await.unwrap();
}

pub(crate) async fn revoke(member: &TestMember, id: i64) {
    let mut leases = LeaseClient::new(member.channel().await);
    leases.lease_revoke(LeaseRevokeRequest { id }).await.unwrap();
}

/// Waits until the key exists, or does not.
pub(crate) async fn wait_for_key(member: &TestMember, key: &str, exists: bool) {
    let what = format!("{key} exists: {exists}");
    support::wait_for(&what, async || member.get(key).await.is_some() == exists).await;
}

/// Checks that a call still waits after others were served.
pub(crate) async fn assert_waits<T>(member: &TestMember, call: &JoinHandle<T>) {
    for _ in 0..3 {
        member.put("beside", "x").await.unwrap();
    }
    assert!(!call.is_finished());
}
