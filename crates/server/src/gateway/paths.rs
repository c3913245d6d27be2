//! The path of each call, as etcd's gateway has them.

use super::schema::{MethodSchema, SCHEMA};

/// A call of the gateway.
#[derive(Clone, Copy, Debug)]
pub(super) struct GatewayCall {
    /// The path of the gRPC method.
    pub(super) method: &'static str,
    pub(super) schema: MethodSchema,
}

/// The part of a gateway path behind the version; `None` if it is not one.
pub(super) fn below_version(path: &str) -> Option<&str> {
    // etcd 3.4 and later serve these two; `/v3alpha` was dropped with 3.4.
    path.strip_prefix("/v3/").or_else(|| path.strip_prefix("/v3beta/"))
}

/// The call of a path of the gateway: etcd's below its versions, and ours.
pub(super) fn find_path(path: &str) -> Option<Option<GatewayCall>> {
    match path.strip_prefix(OWN_PREFIX).filter(|own| own.contains('/')) {
        Some(own) => Some(find_in(OWN_PATHS, own)),
        None => below_version(path).map(find),
    }
}

/// The call of a path below the version.
pub(super) fn find(path: &str) -> Option<GatewayCall> {
    find_in(PATHS, path)
}

fn find_in(paths: &[(&str, &'static str)], path: &str) -> Option<GatewayCall> {
    let (_, method) = paths.iter().find(|(known, _)| *known == path)?;
    Some(GatewayCall { method, schema: SCHEMA.method(method)? })
}

impl GatewayCall {
    /// Whether the call changes nothing.
    pub(super) fn only_reads(&self) -> bool {
        READS.contains(&self.method)
    }
}

/// All calls.
pub(super) fn all() -> impl Iterator<Item = GatewayCall> {
    let etcd = PATHS.iter().filter_map(|(path, _)| find(path));
    etcd.chain(OWN_PATHS.iter().filter_map(|(path, _)| find_in(OWN_PATHS, path)))
}

/// Where the calls of `quorate.v1` are.
const OWN_PREFIX: &str = "/quorate/v1/";

/// Other paths below the prefix have no second slash: pages and feeds.
const OWN_PATHS: &[(&str, &str)] = &[
    ("membership/setgoal", "/quorate.v1.Membership/SetGoal"),
    ("membership/plan", "/quorate.v1.Membership/Plan"),
    ("membership/cancel", "/quorate.v1.Membership/Cancel"),
    ("membership/status", "/quorate.v1.Membership/Status"),
    ("membership/watch", "/quorate.v1.Membership/Watch"),
    ("membership/overview", OVERVIEW),
    ("leadership/transfer", "/quorate.v1.Leadership/Transfer"),
];

pub(super) const OVERVIEW: &str = "/quorate.v1.Membership/Overview";

/// Calls that change nothing, and the login.
const READS: &[&str] = &[
    "/etcdserverpb.KV/Range",
    "/etcdserverpb.Watch/Watch",
    "/etcdserverpb.Lease/LeaseTimeToLive",
    "/etcdserverpb.Lease/LeaseLeases",
    "/etcdserverpb.Cluster/MemberList",
    "/etcdserverpb.Maintenance/Status",
    "/etcdserverpb.Auth/AuthStatus",
    "/etcdserverpb.Auth/Authenticate",
    "/quorate.v1.Membership/Plan",
    "/quorate.v1.Membership/Status",
    "/quorate.v1.Membership/Watch",
    OVERVIEW,
];

const PATHS: &[(&str, &str)] = &[
    ("kv/range", "/etcdserverpb.KV/Range"),
    ("kv/put", "/etcdserverpb.KV/Put"),
    ("kv/deleterange", "/etcdserverpb.KV/DeleteRange"),
    ("kv/txn", "/etcdserverpb.KV/Txn"),
    ("kv/compaction", "/etcdserverpb.KV/Compact"),
    ("watch", "/etcdserverpb.Watch/Watch"),
    ("lease/grant", "/etcdserverpb.Lease/LeaseGrant"),
    ("lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
    ("kv/lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
    ("lease/keepalive", "/etcdserverpb.Lease/LeaseKeepAlive"),
    ("lease/timetolive", "/etcdserverpb.Lease/LeaseTimeToLive"),
    ("kv/lease/timetolive", "/etcdserverpb.Lease/LeaseTimeToLive"),
    ("lease/leases", "/etcdserverpb.Lease/LeaseLeases"),
    ("kv/lease/leases", "/etcdserverpb.Lease/LeaseLeases"),
    ("cluster/member/add", "/etcdserverpb.Cluster/MemberAdd"),
    ("cluster/member/remove", "/etcdserverpb.Cluster/MemberRemove"),
    ("cluster/member/update", "/etcdserverpb.Cluster/MemberUpdate"),
    ("cluster/member/list", "/etcdserverpb.Cluster/MemberList"),
    ("cluster/member/promote", "/etcdserverpb.Cluster/MemberPromote"),
    ("maintenance/alarm", "/etcdserverpb.Maintenance/Alarm"),
    ("maintenance/status", "/etcdserverpb.Maintenance/Status"),
    ("maintenance/defragment", "/etcdserverpb.Maintenance/Defragment"),
    ("maintenance/hash", "/etcdserverpb.Maintenance/Hash"),
    ("maintenance/hashkv", "/etcdserverpb.Maintenance/HashKV"),
    ("maintenance/snapshot", "/etcdserverpb.Maintenance/Snapshot"),
    ("maintenance/transfer-leadership", "/etcdserverpb.Maintenance/MoveLeader"),
    ("maintenance/downgrade", "/etcdserverpb.Maintenance/Downgrade"),
    ("auth/enable", "/etcdserverpb.Auth/AuthEnable"),
    ("auth/disable", "/etcdserverpb.Auth/AuthDisable"),
    ("auth/status", "/etcdserverpb.Auth/AuthStatus"),
    ("auth/authenticate", "/etcdserverpb.Auth/Authenticate"),
    ("auth/user/add", "/etcdserverpb.Auth/UserAdd"),
    ("auth/user/get", "/etcdserverpb.Auth/UserGet"),
    ("auth/user/list", "/etcdserverpb.Auth/UserList"),
    ("auth/user/delete", "/etcdserverpb.Auth/UserDelete"),
    ("auth/user/changepw", "/etcdserverpb.Auth/UserChangePassword"),
    ("auth/user/grant", "/etcdserverpb.Auth/UserGrantRole"),
    ("auth/user/revoke", "/etcdserverpb.Auth/UserRevokeRole"),
    ("auth/role/add", "/etcdserverpb.Auth/RoleAdd"),
    ("auth/role/get", "/etcdserverpb.Auth/RoleGet"),
    ("auth/role/list", "/etcdserverpb.Auth/RoleList"),
    ("auth/role/delete", "/etcdserverpb.Auth/RoleDelete"),
    ("auth/role/grant", "/etcdserverpb.Auth/RoleGrantPermission"),
    ("auth/role/revoke", "/etcdserverpb.Auth/RoleRevokePermission"),
    ("lock/lock", "/v3lockpb.Lock/Lock"),
    ("lock/unlock", "/v3lockpb.Lock/Unlock"),
    ("election/campaign", "/v3electionpb.Election/Campaign"),
    ("election/proclaim", "/v3electionpb.Election/Proclaim"),
    ("election/leader", "/v3electionpb.Election/Leader"),
    ("election/observe", "/v3electionpb.Election/Observe"),
    ("election/resign", "/v3electionpb.Election/Resign"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::schema::{FieldKind, MessageId};
    use super::*;

    /// Every method of etcd's services has a path, except `RangeStream`, which has none in etcd.
    #[test]
    fn all_methods_have_a_path() {
        let services = ["/etcdserverpb.", "/v3lockpb.", "/v3electionpb."];
        let is_served = |path: &&str| services.iter().any(|service| path.starts_with(service));
        let mut expected: BTreeSet<&str> = SCHEMA.method_paths().filter(is_served).collect();
        assert!(expected.remove("/etcdserverpb.KV/RangeStream"));
        assert_eq!(PATHS.iter().map(|(_, method)| *method).collect::<BTreeSet<_>>(), expected);
        let paths: BTreeSet<&str> = PATHS.iter().map(|(path, _)| *path).collect();
        assert_eq!(paths.len(), PATHS.len());
        assert!(paths.iter().all(|path| find(path).is_some()));
        let own: BTreeSet<&str> = OWN_PATHS.iter().map(|(_, method)| *method).collect();
        let is_own = |path: &&str| path.starts_with("/quorate.v1.");
        assert_eq!(own, SCHEMA.method_paths().filter(is_own).collect());
        let is_served = |path: &&str| all().any(|call| call.method == *path);
        assert!(READS.iter().all(is_served), "a name is misspelled");
    }

    #[test]
    fn calls_that_change_something_are_not_reads() {
        let reads = |path: &str| find_path(path).unwrap().unwrap().only_reads();
        for path in ["/v3/kv/range", "/v3/watch", "/quorate/v1/membership/plan"] {
            assert!(reads(path), "{path}");
        }
        for path in ["/v3/kv/put", "/v3/kv/txn", "/quorate/v1/membership/setgoal"] {
            assert!(!reads(path), "{path}");
        }
        assert!(find_path("/quorate/v1/membership/x").unwrap().is_none());
        assert!(find_path("/quorate/v1/events").is_none());
    }

    #[test]
    fn all_fields_can_be_converted() {
        fn check(message: MessageId, seen: &mut Vec<MessageId>) {
            if seen.contains(&message) {
                return;
            }
            seen.push(message);
            for field in &SCHEMA.message(message).fields {
                assert_ne!(field.kind, FieldKind::Unsupported, "{}", field.name);
                if let FieldKind::Message(nested) = field.kind {
                    check(nested, seen);
                }
            }
        }
        let mut seen = Vec::new();
        for (path, _) in PATHS {
            let call = find(path).unwrap();
            check(call.schema.request, &mut seen);
            check(call.schema.response, &mut seen);
        }
        for call in all() {
            check(call.schema.response, &mut seen);
        }
        assert!(seen.len() > 80, "{}", seen.len());
    }

    #[test]
    fn versions_are_those_of_etcd() {
        assert_eq!(below_version("/v3/kv/range"), Some("kv/range"));
        assert_eq!(below_version("/v3beta/kv/range"), Some("kv/range"));
        assert_eq!(below_version("/v3alpha/kv/range"), None);
        assert_eq!(below_version("/v3"), None);
        assert!(find("kv/range/").is_none() && find("kv").is_none());
    }
}
