//! Signed tokens: every member with the key accepts them, until they expire or users change.

use std::time::Duration;

use quorate_proto::etcdserverpb::{
    AuthRoleAddRequest, AuthRoleGetRequest, AuthUserGetRequest, AuthUserListRequest,
    CompactionRequest, HashRequest, LeaseGrantRequest, LeaseKeepAliveRequest, MemberListRequest,
    MemberPromoteRequest, SnapshotRequest, StatusRequest,
};
use quorate_proto::quorate::v1;
use quorate_server::{AuthTokenConfig, JwtConfig, RunningServer, SignMethod};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::client::{UserClient, error, old_revision, set_up};
use crate::streams::{Watches, reason};
use crate::support::TestMember;
use crate::{config, put};

async fn start_with_ttl(member: &TestMember, ttl: Duration) -> RunningServer {
    let secret = member.directory().join("secret");
    std::fs::write(&secret, "the secret of all members").unwrap();
    let mut config = config(member, &[member]);
    config.auth.token = AuthTokenConfig::Jwt(JwtConfig {
        sign_method: SignMethod::Hs256,
        public_key: None,
        private_key: Some(secret),
        ttl,
    });
    RunningServer::start(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_token_is_old_after_a_change_of_users_or_roles() {
    let a = TestMember::new("a");
    let server = start_with_ttl(&a, Duration::from_secs(600)).await;
    let root = set_up(&a).await;
    let alice = UserClient::login(&a, "alice").await;
    alice.kv().put(put("w1")).await.unwrap();
    let add = |name: &str| AuthRoleAddRequest { name: name.into() };
    root.auth().role_add(add("other")).await.unwrap();
    assert_eq!(error(alice.kv().put(put("w1")).await), old_revision());
    // As in etcd, calls that touch no keys do not depend on changes of other users and roles.
    root.auth().role_add(add("another")).await.unwrap();
    let alice = UserClient::login(&a, "alice").await;
    alice.kv().put(put("w1")).await.unwrap();
    server.stop_now().await;
}

/// A token ends with the password that it was issued for, for every call and every open stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_signed_token_ends_with_the_password() {
    let a = TestMember::new("a");
    let server = start_with_ttl(&a, Duration::from_secs(600)).await;
    let root = set_up(&a).await;
    let admin = UserClient::login(&a, "root").await;
    let alice = UserClient::login(&a, "alice").await;
    let mut watches = Watches::open(&alice).await;
    assert!(!watches.create("r", "s").await.canceled);
    alice.lease().lease_grant(LeaseGrantRequest { ttl: 600, id: 7 }).await.unwrap();
    let (renewals, receiver) = mpsc::channel(1);
    let stream = ReceiverStream::new(receiver);
    let mut renewed = alice.lease().lease_keep_alive(stream).await.unwrap().into_inner();
    renewals.send(LeaseKeepAliveRequest { id: 7 }).await.unwrap();
    assert_eq!(renewed.message().await.unwrap().unwrap().ttl, 600);
    let followed = alice.membership().watch(v1::WatchRequest::default()).await;
    let mut followed = followed.unwrap().into_inner();

    // Another change leaves the streams alone.
    root.auth().role_add(AuthRoleAddRequest { name: "other".into() }).await.unwrap();
    admin.auth().user_list(AuthUserListRequest {}).await.unwrap();
    root.set_password("root", "new").await;
    let root = root.authenticate("root", "new").await.map(|token| root.with_token(&token));
    let root = root.unwrap();
    root.kv().put(put("r1")).await.unwrap();
    assert_eq!(watches.next().await.events.len(), 1);
    root.set_password("alice", "new").await;

    let ended = watches.next().await;
    assert!(ended.canceled);
    assert_eq!(ended.cancel_reason, reason("InvalidArgument", "revision of auth store is old"));
    assert_eq!(error(renewed.message().await), old_revision());
    let end = loop {
        if let Err(status) = followed.message().await {
            break status;
        }
    };
    assert_eq!(error::<()>(Err(end)), old_revision());
    let old = old_revision;
    let refused = admin.auth().user_list(AuthUserListRequest {}).await;
    assert_eq!(error(refused), old());
    let refused = admin.auth().role_add(AuthRoleAddRequest { name: "x".into() }).await;
    assert_eq!(error(refused), old());
    let compaction = CompactionRequest { revision: 2, physical: false };
    assert_eq!(error(admin.kv().compact(compaction).await), old());
    assert_eq!(error(admin.maintenance().snapshot(SnapshotRequest {}).await), old());
    assert_eq!(error(admin.maintenance().hash(HashRequest {}).await), old());
    let promoted = admin.cluster().member_promote(MemberPromoteRequest::default()).await;
    assert_eq!(error(promoted), old());
    let user = AuthUserGetRequest { name: "alice".into() };
    assert_eq!(error(alice.auth().user_get(user).await), old());
    let role = AuthRoleGetRequest { role: "some".into() };
    assert_eq!(error(alice.auth().role_get(role).await), old());
    let grant = LeaseGrantRequest { ttl: 600, id: 8 };
    assert_eq!(error(alice.lease().lease_grant(grant).await), old());
    let listed = alice.cluster().member_list(MemberListRequest::default()).await;
    assert_eq!(error(listed), old());
    assert_eq!(error(alice.maintenance().status(StatusRequest {}).await), old());
    let status = alice.membership().status(v1::StatusRequest::default()).await;
    assert_eq!(error(status), old());
    server.stop_now().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_signed_token_expires() {
    let a = TestMember::new("a");
    let server = start_with_ttl(&a, Duration::from_secs(4)).await;
    set_up(&a).await;
    // On a slow machine the token may expire before the watch exists.
    let mut watches = loop {
        let alice = UserClient::login(&a, "alice").await;
        let mut watches = Watches::open(&alice).await;
        if !watches.create("r", "s").await.canceled {
            break watches;
        }
    };
    let ended = watches.next().await;
    assert!(ended.canceled);
    assert_eq!(ended.cancel_reason, reason("Unauthenticated", "invalid auth token"));
    server.stop_now().await;
}
