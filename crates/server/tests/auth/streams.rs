//! Open streams of users who lose a right.

use std::time::Duration;

use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{
    AuthEnableRequest, AuthRoleRevokePermissionRequest, AuthUserDeleteRequest,
    AuthUserRevokeRoleRequest, LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest,
    WatchCreateRequest, WatchRequest, WatchResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::client::{UserClient, denied, error, set_up};
use crate::support::{TEST_TIMEOUT, TestMember};
use crate::{put, start};

/// A stream with one watch for each of these ranges.
pub(crate) struct Watches {
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl Watches {
    pub(crate) async fn open(client: &UserClient) -> Self {
        let (requests, receiver) = mpsc::channel(8);
        let stream = ReceiverStream::new(receiver);
        let responses = client.watch().watch(stream).await.unwrap().into_inner();
        Self { requests, responses }
    }

    pub(crate) async fn create(&mut self, key: &str, range_end: &str) -> WatchResponse {
        let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
        let create = WatchCreateRequest { key, range_end, ..Default::default() };
        let request_union = Some(RequestUnion::CreateRequest(create));
        self.requests.send(WatchRequest { request_union }).await.unwrap();
        self.next().await
    }

    pub(crate) async fn next(&mut self) -> WatchResponse {
        let next = tokio::time::timeout(TEST_TIMEOUT, self.responses.message());
        next.await.unwrap().unwrap().unwrap()
    }
}

pub(crate) fn reason(code: &str, text: &str) -> String {
    format!("rpc error: code = {code} desc = etcdserver: {text}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_user_loses_the_right() {
    let members = [TestMember::new("a"), TestMember::new("b"), TestMember::new("c")];
    let all: Vec<&TestMember> = members.iter().collect();
    let mut servers = Vec::new();
    for member in &members {
        servers.push(start(member, &all).await);
    }
    // From before authentication is enabled.
    let mut anonymous = Watches::open(&UserClient::anonymous(&members[2]).await).await;
    let created = anonymous.create("r", "s").await;
    assert!(created.created && !created.canceled);
    let root = set_up(&members[0]).await;
    let ended = anonymous.next().await;
    assert!(ended.canceled);
    assert_eq!(ended.cancel_reason, reason("InvalidArgument", "user name is empty"));

    let alice = UserClient::login(&members[1], "alice").await;
    let mut watches = Watches::open(&alice).await;
    let refused = watches.create("r", "\0").await;
    assert!(refused.created && refused.canceled && refused.watch_id == -1);
    assert_eq!(refused.cancel_reason, reason("PermissionDenied", "permission denied"));
    let range = watches.create("r", "s").await;
    let single = watches.create("b", "").await;
    assert!(!range.canceled && !single.canceled);
    let revoke = AuthRoleRevokePermissionRequest {
        role: "some".into(),
        key: "r".into(),
        range_end: "s".into(),
    };
    root.auth().role_revoke_permission(revoke).await.unwrap();
    let ended = watches.next().await;
    assert_eq!((ended.watch_id, ended.canceled), (range.watch_id, true));
    assert_eq!(ended.cancel_reason, reason("PermissionDenied", "permission denied"));
    // The other watch goes on.
    root.kv().put(put("r1")).await.unwrap();
    root.kv().put(put("b")).await.unwrap();
    let event = watches.next().await;
    assert_eq!((event.watch_id, event.events.len()), (single.watch_id, 1));
    let delete = AuthUserDeleteRequest { name: "alice".into() };
    root.auth().user_delete(delete).await.unwrap();
    let ended = watches.next().await;
    assert_eq!((ended.watch_id, ended.canceled), (single.watch_id, true));
    assert_eq!(ended.cancel_reason, reason("Unauthenticated", "invalid auth token"));
    for server in servers {
        server.stop_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keep_alive_stream_ends_when_its_user_loses_the_right() {
    let a = TestMember::new("a");
    let server = start(&a, &[&a]).await;
    let root = set_up(&a).await;
    let alice = UserClient::login(&a, "alice").await;
    let grant = LeaseGrantRequest { ttl: 600, id: 7 };
    alice.lease().lease_grant(grant).await.unwrap();
    alice.kv().put(PutRequest { lease: 7, ..put("w1") }).await.unwrap();
    let (requests, receiver) = mpsc::channel(8);
    let stream = ReceiverStream::new(receiver);
    let mut renewed = alice.lease().lease_keep_alive(stream).await.unwrap().into_inner();
    requests.send(LeaseKeepAliveRequest { id: 7 }).await.unwrap();
    assert_eq!(renewed.message().await.unwrap().unwrap().ttl, 600);
    let revoke = AuthUserRevokeRoleRequest { name: "alice".into(), role: "some".into() };
    root.auth().user_revoke_role(revoke).await.unwrap();
    let ended = tokio::time::timeout(TEST_TIMEOUT, renewed.message()).await.unwrap();
    assert_eq!(error(ended), denied());
    // Enabling again changes nothing.
    root.auth().auth_enable(AuthEnableRequest {}).await.unwrap();
    server.stop_now().await;
}

/// A stream keeps its token from expiring; without one, the token expires.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_expires_after_its_last_use() {
    let a = TestMember::new("a");
    let mut config = crate::config(&a, &[&a]);
    config.auth.token_ttl = Duration::from_secs(2);
    let server = quorate_server::RunningServer::start(config).await.unwrap();
    set_up(&a).await;
    // On a slow machine the token may expire before the stream is open.
    let (alice, watches) = loop {
        let alice = UserClient::login(&a, "alice").await;
        let mut watches = Watches::open(&alice).await;
        if !watches.create("r", "s").await.canceled {
            break (alice, watches);
        }
    };
    tokio::time::sleep(Duration::from_secs(4)).await;
    alice.kv().put(put("w1")).await.unwrap();
    drop(watches);
    crate::support::wait_for("the token expires", async || {
        // No request in between: that would be a use.
        tokio::time::sleep(Duration::from_secs(3)).await;
        alice.kv().put(put("w1")).await.is_err()
    })
    .await;
    server.stop_now().await;
}
