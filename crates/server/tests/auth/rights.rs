//! Which user may make which call: one table.

use quorate_proto::authpb::Permission;
use quorate_proto::etcdserverpb::compare::{CompareResult, CompareTarget};
use quorate_proto::etcdserverpb::request_op::Request as Operation;
use quorate_proto::etcdserverpb::{
    AlarmRequest, AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGetRequest, AuthRoleGrantPermissionRequest, AuthRoleListRequest,
    AuthRoleRevokePermissionRequest, AuthStatusRequest, AuthUserAddRequest,
    AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGetRequest,
    AuthUserGrantRoleRequest, AuthUserListRequest, AuthUserRevokeRoleRequest, CompactionRequest,
    Compare, DefragmentRequest, DeleteRangeRequest, DowngradeRequest, HashKvRequest, HashRequest,
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, MemberAddRequest, MemberListRequest, MemberPromoteRequest,
    MemberRemoveRequest, MemberUpdateRequest, MoveLeaderRequest, PutRequest, RequestOp,
    SnapshotRequest, StatusRequest, TxnRequest,
};
use quorate_proto::quorate::v1;
use tonic::{Code, Status};

use crate::client::{UserClient, denied, error, no_user, set_up};
use crate::support::TestMember;
use crate::{put, range, start};

/// What a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    Allowed,
    Denied,
}
use Right::{Allowed, Denied};

fn delete(key: &str, range_end: &str) -> DeleteRangeRequest {
    let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
    DeleteRangeRequest { key, range_end, ..Default::default() }
}

/// The operation in the branch that is not taken, in a nested transaction.
fn nested(operation: Operation) -> TxnRequest {
    let operations = |operation| vec![RequestOp { request: Some(operation) }];
    let inner = TxnRequest { failure: operations(operation), ..Default::default() };
    TxnRequest { success: operations(Operation::RequestTxn(inner)), ..Default::default() }
}

fn compare(key: &str) -> TxnRequest {
    let compare = Compare {
        key: key.to_owned().into(),
        result: CompareResult::Equal as i32,
        target: CompareTarget::Version as i32,
        ..Default::default()
    };
    TxnRequest { compare: vec![compare], ..Default::default() }
}

fn check<T>(call: &str, expected: Right, reply: Result<T, Status>) {
    match (expected, reply) {
        (Allowed, Ok(_)) => {}
        (Allowed, Err(status)) => panic!("{call} is refused: {status}"),
        (Denied, reply) => assert_eq!(error(reply), denied(), "{call}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_needs_its_right() {
    let a = TestMember::new("a");
    let server = start(&a, &[&a]).await;
    let root = set_up(&a).await;
    let alice = UserClient::login(&a, "alice").await;
    let anonymous = UserClient::anonymous(&a).await;
    let grant = |id| LeaseGrantRequest { ttl: 600, id };
    root.lease().lease_grant(grant(1)).await.unwrap();
    root.kv().put(PutRequest { lease: 1, ..put("secret") }).await.unwrap();
    alice.lease().lease_grant(grant(2)).await.unwrap();
    assert_eq!(error(anonymous.lease().lease_grant(grant(3)).await), no_user());

    check_reads(&alice, &anonymous).await;
    check_writes(&alice, &anonymous).await;
    check_leases(&alice).await;
    check_upkeep(&alice).await;
    check_auth(&alice).await;

    // Root may do all of that.
    let disarm = AlarmRequest { action: 2, member_id: 0, alarm: 1 };
    let compaction = CompactionRequest { revision: 2, physical: false };
    let mut kv = root.kv();
    check("root", Allowed, kv.range(range("\0", "\0")).await);
    check("root", Allowed, kv.compact(compaction).await);
    check("root", Allowed, root.lease().lease_leases(LeaseLeasesRequest {}).await);
    check("root", Allowed, root.lease().lease_revoke(LeaseRevokeRequest { id: 1 }).await);
    check("root", Allowed, root.maintenance().hash(HashRequest {}).await);
    check("root", Allowed, root.maintenance().snapshot(SnapshotRequest {}).await);
    check("root", Allowed, root.maintenance().alarm(disarm).await);

    // Pages need no user.
    for page in ["/health", "/livez", "/readyz", "/metrics", "/version"] {
        let address = server.client_addresses()[0];
        let (status, _) = crate::support::http_get(address, page).await;
        assert!(status.to_string().contains("200"), "{page}: {status}");
    }
    let missing = anonymous.maintenance().status(StatusRequest {}).await;
    assert_eq!(error(missing).0, Code::InvalidArgument);
    server.stop_now().await;
}

/// Ranges, also in transactions.
async fn check_reads(alice: &UserClient, anonymous: &UserClient) {
    let mut kv = alice.kv();
    for (key, end, right) in [
        ("r", "s", Allowed),
        ("r1", "", Allowed),
        ("b", "", Allowed),
        ("q", "s", Denied),
        ("r", "t", Denied),
        ("r", "\0", Denied),
        ("\0", "\0", Denied),
        ("w", "", Denied),
    ] {
        let name = format!("range {key:?} {end:?}");
        check(&name, right, kv.range(range(key, end)).await);
        check(&name, right, kv.range_stream(range(key, end)).await);
        let serializable =
            |request| quorate_proto::etcdserverpb::RangeRequest { serializable: true, ..request };
        check(&name, right, kv.range(serializable(range(key, end))).await);
        check(&name, right, kv.txn(nested(Operation::RequestRange(range(key, end)))).await);
        assert_eq!(error(anonymous.kv().range(range(key, end)).await), no_user(), "{name}");
    }
}

/// Puts and deletions, also in transactions; comparisons; compaction.
async fn check_writes(alice: &UserClient, anonymous: &UserClient) {
    let mut kv = alice.kv();
    let prev = |request| PutRequest { prev_kv: true, ..request };
    let leased = |lease, request| PutRequest { lease, ..request };
    for (request, right) in [
        (put("w1"), Allowed),
        (put("r1"), Denied),
        (put("x"), Denied),
        (prev(put("w1")), Denied),
        (prev(put("b")), Allowed),
        (leased(1, put("w1")), Denied),
        (leased(2, put("w1")), Allowed),
        (PutRequest { value: "".into(), ignore_value: true, ..put("w1") }, Allowed),
        (PutRequest { ignore_lease: true, ..put("w1") }, Allowed),
        (PutRequest { value: "".into(), ignore_value: true, ..put("r1") }, Denied),
    ] {
        let name = format!("{request:?}");
        check(&name, right, kv.put(request.clone()).await);
        assert_eq!(error(anonymous.kv().put(request.clone()).await), no_user(), "{name}");
        check(&name, right, kv.txn(nested(Operation::RequestPut(request))).await);
    }
    for (request, right) in [
        (delete("w", "x"), Allowed),
        (delete("w", "\0"), Denied),
        (delete("r", ""), Denied),
        (DeleteRangeRequest { prev_kv: true, ..delete("w", "x") }, Denied),
        (DeleteRangeRequest { prev_kv: true, ..delete("b", "") }, Allowed),
    ] {
        let name = format!("{request:?}");
        check(&name, right, kv.delete_range(request.clone()).await);
        check(&name, right, kv.txn(nested(Operation::RequestDeleteRange(request))).await);
    }
    check("compare", Allowed, kv.txn(compare("r1")).await);
    check("compare", Denied, kv.txn(compare("w1")).await);
    let compaction = CompactionRequest { revision: 2, physical: false };
    check("compact", Denied, kv.compact(compaction).await);
}

/// Leases 1, with a key of root, and 2, with a key of alice.
async fn check_leases(alice: &UserClient) {
    let mut lease = alice.lease();
    let time = |id, keys| LeaseTimeToLiveRequest { id, keys };
    check("time to live", Allowed, lease.lease_time_to_live(time(1, false)).await);
    check("keys of a lease", Denied, lease.lease_time_to_live(time(1, true)).await);
    check("keys of a lease", Allowed, lease.lease_time_to_live(time(2, true)).await);
    check("leases", Denied, lease.lease_leases(LeaseLeasesRequest {}).await);
    for (id, right) in [(1, Denied), (2, Allowed), (404, Allowed)] {
        let renewal = tokio_stream::once(LeaseKeepAliveRequest { id });
        let mut renewed = lease.lease_keep_alive(renewal).await.unwrap().into_inner();
        check("keep alive", right, renewed.message().await);
    }
    check("revoke", Denied, lease.lease_revoke(LeaseRevokeRequest { id: 1 }).await);
    check("revoke", Allowed, lease.lease_revoke(LeaseRevokeRequest { id: 2 }).await);
}

/// Maintenance and members.
async fn check_upkeep(alice: &UserClient) {
    let mut maintenance = alice.maintenance();
    check("status", Allowed, maintenance.status(StatusRequest {}).await);
    check("alarms", Allowed, maintenance.alarm(AlarmRequest::default()).await);
    let disarm = AlarmRequest { action: 2, member_id: 0, alarm: 1 };
    check("disarm", Denied, maintenance.alarm(disarm).await);
    check("defragment", Denied, maintenance.defragment(DefragmentRequest {}).await);
    check("hash", Denied, maintenance.hash(HashRequest {}).await);
    check("hash of keys", Denied, maintenance.hash_kv(HashKvRequest::default()).await);
    check("snapshot", Denied, maintenance.snapshot(SnapshotRequest {}).await);
    check("move leader", Denied, maintenance.move_leader(MoveLeaderRequest::default()).await);
    let mut cluster = alice.cluster();
    check("members", Allowed, cluster.member_list(MemberListRequest::default()).await);
    check("add", Denied, cluster.member_add(MemberAddRequest::default()).await);
    check("remove", Denied, cluster.member_remove(MemberRemoveRequest::default()).await);
    check("update", Denied, cluster.member_update(MemberUpdateRequest::default()).await);
    check("promote", Denied, cluster.member_promote(MemberPromoteRequest::default()).await);
    let activate = AlarmRequest { action: 1, member_id: 0, alarm: 1 };
    check("activate", Denied, maintenance.alarm(activate).await);
    check("downgrade", Denied, maintenance.downgrade(DowngradeRequest::default()).await);
    // Our own calls.
    let mut membership = alice.membership();
    check("status", Allowed, membership.status(v1::StatusRequest::default()).await);
    check("watch", Allowed, membership.watch(v1::WatchRequest::default()).await);
    let plan = membership.plan(v1::PlanRequest::default()).await;
    assert_ne!(plan.err().map(|status| status.code()), Some(Code::PermissionDenied));
    check("goal", Denied, membership.set_goal(v1::SetGoalRequest::default()).await);
    check("cancel", Denied, membership.cancel(v1::CancelRequest::default()).await);
}

/// Users and roles.
async fn check_auth(alice: &UserClient) {
    let mut auth = alice.auth();
    check("auth status", Allowed, auth.auth_status(AuthStatusRequest {}).await);
    check("users", Denied, auth.user_list(AuthUserListRequest {}).await);
    check("roles", Denied, auth.role_list(AuthRoleListRequest {}).await);
    let user = |name: &str| AuthUserGetRequest { name: name.into() };
    check("own roles", Allowed, auth.user_get(user("alice")).await);
    check("roles of others", Denied, auth.user_get(user("root")).await);
    let role = |role: &str| AuthRoleGetRequest { role: role.into() };
    check("own role", Allowed, auth.role_get(role("some")).await);
    check("another role", Denied, auth.role_get(role("root")).await);
    check("enable", Denied, auth.auth_enable(AuthEnableRequest {}).await);
    check("disable", Denied, auth.auth_disable(AuthDisableRequest {}).await);
    check("add user", Denied, auth.user_add(AuthUserAddRequest::default()).await);
    check("delete user", Denied, auth.user_delete(AuthUserDeleteRequest::default()).await);
    let own = AuthUserChangePasswordRequest { name: "alice".into(), ..Default::default() };
    check("own password", Denied, auth.user_change_password(own).await);
    let root = AuthUserGrantRoleRequest { user: "alice".into(), role: "root".into() };
    check("grant role", Denied, auth.user_grant_role(root).await);
    let some = AuthUserRevokeRoleRequest { name: "alice".into(), role: "some".into() };
    check("revoke role", Denied, auth.user_revoke_role(some).await);
    check("add role", Denied, auth.role_add(AuthRoleAddRequest::default()).await);
    check("delete role", Denied, auth.role_delete(AuthRoleDeleteRequest::default()).await);
    let perm = Some(Permission { perm_type: 2, key: "a".into(), range_end: "\0".into() });
    let grant = AuthRoleGrantPermissionRequest { name: "some".into(), perm };
    check("grant", Denied, auth.role_grant_permission(grant).await);
    let revoke = AuthRoleRevokePermissionRequest::default();
    check("revoke", Denied, auth.role_revoke_permission(revoke).await);
}
