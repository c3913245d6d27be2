//! Authentication and authorisation over the network: rights of each call, errors, tokens at
//! other members, and streams of users who lose a right.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod client;
mod jwt;
mod rights;
mod secrets;
mod streams;
#[path = "../support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use client::{UserClient, bad_token, denied, error, no_user, password, set_up};
use quorate_proto::authpb::UserAddOptions;
use quorate_proto::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGetRequest, AuthRoleGrantPermissionRequest, AuthRoleListRequest,
    AuthRoleRevokePermissionRequest, AuthStatusRequest, AuthUserAddRequest,
    AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGetRequest,
    AuthUserGrantRoleRequest, AuthUserListRequest, AuthUserRevokeRoleRequest, PutRequest,
    RangeRequest,
};
use quorate_server::config::{ClusterState, ServerConfig};
use quorate_server::{AuthConfig, RunningServer};
use support::TestMember;
use tokio::task::JoinSet;
use tonic::Code;

/// Cheap passwords, so that tests do not wait for them.
pub(crate) fn config(member: &TestMember, cluster: &[&TestMember]) -> ServerConfig {
    let auth = AuthConfig { bcrypt_cost: 4, ..AuthConfig::default() };
    ServerConfig { auth, ..member.config(cluster, ClusterState::New) }
}

pub(crate) async fn start(member: &TestMember, cluster: &[&TestMember]) -> RunningServer {
    RunningServer::start(config(member, cluster)).await.unwrap()
}

pub(crate) fn put(key: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: "v".into(), ..Default::default() }
}

pub(crate) fn range(key: &str, range_end: &str) -> RangeRequest {
    let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
    RangeRequest { key, range_end, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_those_of_etcd() {
    let a = TestMember::new("a");
    let server = start(&a, &[&a]).await;
    let client = UserClient::anonymous(&a).await;
    server.wait_ready().await;
    let mut auth = client.auth();
    let invalid = |text: &str| (Code::InvalidArgument, format!("etcdserver: {text}"));
    let failed = |text: &str| (Code::FailedPrecondition, format!("etcdserver: {text}"));
    let (name, role) = (|| "u".to_owned(), || "r".to_owned());

    let enable = auth.auth_enable(AuthEnableRequest {}).await;
    assert_eq!(error(enable), failed("root user does not exist"));
    assert_eq!(
        error(client.authenticate("root", "x").await),
        failed("authentication is not enabled")
    );
    let empty = auth.user_add(AuthUserAddRequest::default()).await;
    assert_eq!(error(empty), invalid("user name is empty"));
    client.add_user("root").await;
    let again = AuthUserAddRequest { name: "root".into(), ..Default::default() };
    assert_eq!(error(auth.user_add(again).await), failed("user name already exists"));
    let enable = auth.auth_enable(AuthEnableRequest {}).await;
    assert_eq!(error(enable), failed("root user does not have root role"));
    let long = AuthUserAddRequest { name: name(), password: "x".repeat(73), ..Default::default() };
    assert_eq!(error(auth.user_add(long).await).0, Code::InvalidArgument);

    let no_user = failed("user name not found");
    assert_eq!(error(auth.user_get(AuthUserGetRequest { name: name() }).await), no_user);
    assert_eq!(error(auth.user_delete(AuthUserDeleteRequest { name: name() }).await), no_user);
    let change = AuthUserChangePasswordRequest { name: name(), ..Default::default() };
    assert_eq!(error(auth.user_change_password(change).await), no_user);
    let grant = AuthUserGrantRoleRequest { user: name(), role: role() };
    assert_eq!(error(auth.user_grant_role(grant).await), no_user);
    let grant = AuthUserGrantRoleRequest { user: "root".into(), role: role() };
    let no_role = failed("role name not found");
    assert_eq!(error(auth.user_grant_role(grant).await), no_role);
    let revoke = AuthUserRevokeRoleRequest { name: "root".into(), role: role() };
    let revoked = auth.user_revoke_role(revoke).await;
    assert_eq!(error(revoked), failed("role is not granted to the user"));
    assert_eq!(error(auth.role_get(AuthRoleGetRequest { role: role() }).await), no_role);
    assert_eq!(error(auth.role_delete(AuthRoleDeleteRequest { role: role() }).await), no_role);
    let added = auth.role_add(AuthRoleAddRequest::default()).await;
    assert_eq!(error(added), invalid("role name is empty"));
    auth.role_add(AuthRoleAddRequest { name: role() }).await.unwrap();
    let added = auth.role_add(AuthRoleAddRequest { name: role() }).await;
    assert_eq!(error(added), failed("role name already exists"));
    let nothing = AuthRoleGrantPermissionRequest { name: role(), perm: None };
    let granted = auth.role_grant_permission(nothing).await;
    assert_eq!(error(granted), invalid("permission not given"));
    let revoke = AuthRoleRevokePermissionRequest { role: role(), ..Default::default() };
    let revoked = auth.role_revoke_permission(revoke).await;
    assert_eq!(error(revoked), failed("permission is not granted to the role"));

    client.grant_role("root", "root").await;
    auth.auth_enable(AuthEnableRequest {}).await.unwrap();
    let root = UserClient::login(&a, "root").await;
    let mut auth = root.auth();
    let deleted = auth.user_delete(AuthUserDeleteRequest { name: "root".into() }).await;
    assert_eq!(error(deleted), invalid("invalid auth management"));
    let status = auth.auth_status(AuthStatusRequest {}).await.unwrap().into_inner();
    assert!(status.enabled && status.auth_revision > 1);
    let users = auth.user_list(AuthUserListRequest {}).await.unwrap().into_inner().users;
    let roles = auth.role_list(AuthRoleListRequest {}).await.unwrap().into_inner().roles;
    assert_eq!((users, roles), (vec!["root".to_owned()], vec!["r".to_owned()]));
    auth.auth_disable(AuthDisableRequest {}).await.unwrap();
    client.kv().put(put("x")).await.unwrap();
    server.stop_now().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_passwords_unknown_users_and_users_without_a_password_get_the_same_error() {
    let a = TestMember::new("a");
    let server = start(&a, &[&a]).await;
    let root = set_up(&a).await;
    let options = Some(UserAddOptions { no_password: true });
    let request = AuthUserAddRequest { name: "cn".into(), options, ..Default::default() };
    root.auth().user_add(request).await.unwrap();
    let expected = (
        Code::InvalidArgument,
        "etcdserver: authentication failed, invalid user ID or password".to_owned(),
    );
    for (user, password) in [("alice", "wrong"), ("unknown", "x"), ("cn", ""), ("", "")] {
        assert_eq!(error(root.authenticate(user, password).await), expected, "{user}");
    }
    let (_, page) = support::http_get(server.client_addresses()[0], "/metrics").await;
    assert!(page.lines().any(|line| line == "quorate_auth_failures_total 4"), "{page}");
    assert!(page.contains("etcd_debugging_auth_revision "));
    server.stop_now().await;
}

/// Attempts at the same moment are made one after the other, with growing delays.
#[tokio::test(flavor = "multi_thread")]
async fn parallel_guesses_are_delayed() {
    let a = TestMember::new("a");
    let server = start(&a, &[&a]).await;
    let root = set_up(&a).await;
    let began = Instant::now();
    let mut guesses = JoinSet::new();
    for number in 0..6 {
        let root = root.clone();
        guesses.spawn(async move { root.authenticate("alice", &format!("guess {number}")).await });
    }
    for guess in guesses.join_all().await {
        let (code, text) = error(guess);
        assert_eq!(code, Code::InvalidArgument, "{text}");
    }
    // 100 + 200 + 400 ms.
    assert!(began.elapsed() >= Duration::from_millis(690), "{:?}", began.elapsed());
    UserClient::login(&a, "alice").await;
    server.stop_now().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_end_with_the_password_and_with_the_user() {
    let a = TestMember::new("a");
    let server = start(&a, &[&a]).await;
    let root = set_up(&a).await;
    let alice = UserClient::login(&a, "alice").await;
    alice.kv().put(put("w1")).await.unwrap();
    let forged = alice.with_token("forged.1");
    assert_eq!(error(forged.kv().put(put("w1")).await), bad_token());
    let name = "alice".to_owned();
    let change = AuthUserChangePasswordRequest {
        name: name.clone(),
        password: password("alice"),
        ..Default::default()
    };
    root.auth().user_change_password(change).await.unwrap();
    assert_eq!(error(alice.kv().put(put("w1")).await), bad_token());
    let alice = UserClient::login(&a, "alice").await;
    alice.kv().put(put("w1")).await.unwrap();
    root.auth().user_delete(AuthUserDeleteRequest { name }).await.unwrap();
    assert_eq!(error(alice.kv().put(put("w1")).await), bad_token());
    assert_eq!(error(UserClient::anonymous(&a).await.kv().put(put("w1")).await), no_user());
    server.stop_now().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_one_member_is_valid_at_the_others() {
    let members = [TestMember::new("a"), TestMember::new("b"), TestMember::new("c")];
    let all: Vec<&TestMember> = members.iter().collect();
    let mut servers = Vec::new();
    for member in &members {
        servers.push(start(member, &all).await);
    }
    let root = set_up(&members[0]).await;
    // Each change is seen by the next request, at whichever member.
    for round in 0..10 {
        let alice = UserClient::login(&members[round % 3], "alice").await;
        for member in &members {
            let there = alice.at(member).await;
            there.kv().put(put("w1")).await.unwrap();
            assert_eq!(error(there.kv().put(put("r1")).await), denied());
            there.kv().range(range("r", "s")).await.unwrap();
            assert_eq!(error(there.kv().range(range("w", "x")).await), denied());
        }
        let role = format!("extra-{round}");
        let request = AuthRoleAddRequest { name: role.clone() };
        root.at(&members[round % 3]).await.auth().role_add(request).await.unwrap();
        root.grant(&role, client::Mode::Readwrite, "z", "").await;
        root.grant_role("alice", &role).await;
        let there = alice.at(&members[(round + 1) % 3]).await;
        there.kv().put(put("z")).await.unwrap();
        let revoke = AuthUserRevokeRoleRequest { name: "alice".into(), role };
        root.auth().user_revoke_role(revoke).await.unwrap();
        let there = alice.at(&members[(round + 2) % 3]).await;
        assert_eq!(error(there.kv().put(put("z")).await), denied());
    }
    for server in servers {
        server.stop_now().await;
    }
}
