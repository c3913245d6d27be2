//! Every gRPC method that this server answers, including those it answers with Unimplemented.

/// Which sides of a call are streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    Unary,
    ServerStream,
    BidiStream,
}

impl StreamKind {
    /// The name in gRPC's metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::ServerStream => "server_stream",
            Self::BidiStream => "bidi_stream",
        }
    }
}

/// One method.
#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) path: &'static str,
    pub(crate) kind: StreamKind,
}

impl Method {
    pub(crate) fn service(&self) -> &'static str {
        self.parts().0
    }

    pub(crate) fn name(&self) -> &'static str {
        self.parts().1
    }

    /// The type of the request in etcd's metrics, for requests that it measures.
    pub(crate) fn request_type(&self) -> Option<String> {
        let (service, name) = self.parts();
        match (service, name) {
            ("etcdserverpb.KV", "Compact") => Some("Compaction".to_owned()),
            ("etcdserverpb.KV", name) => Some(name.to_owned()),
            ("etcdserverpb.Lease", "LeaseGrant" | "LeaseRevoke") => Some(name.to_owned()),
            ("etcdserverpb.Maintenance", "Alarm") => Some(name.to_owned()),
            ("etcdserverpb.Auth", name) if name.starts_with("Auth") => Some(name.to_owned()),
            ("etcdserverpb.Auth", name) => Some(format!("Auth{name}")),
            _ => None,
        }
    }

    fn parts(&self) -> (&'static str, &'static str) {
        self.path.trim_start_matches('/').split_once('/').unwrap_or_default()
    }
}

const fn unary(path: &'static str) -> Method {
    Method { path, kind: StreamKind::Unary }
}

const fn server_stream(path: &'static str) -> Method {
    Method { path, kind: StreamKind::ServerStream }
}

const fn bidi_stream(path: &'static str) -> Method {
    Method { path, kind: StreamKind::BidiStream }
}

/// The most frequent methods come first, since a path is looked up from the start.
pub(crate) const METHODS: &[Method] = &[
    unary("/etcdserverpb.KV/Put"),
    unary("/etcdserverpb.KV/Range"),
    unary("/etcdserverpb.KV/Txn"),
    unary("/etcdserverpb.KV/DeleteRange"),
    bidi_stream("/etcdserverpb.Lease/LeaseKeepAlive"),
    bidi_stream("/etcdserverpb.Watch/Watch"),
    unary("/etcdserverpb.Lease/LeaseGrant"),
    unary("/etcdserverpb.Lease/LeaseRevoke"),
    unary("/etcdserverpb.Lease/LeaseTimeToLive"),
    unary("/etcdserverpb.Lease/LeaseLeases"),
    unary("/etcdserverpb.KV/Compact"),
    server_stream("/etcdserverpb.KV/RangeStream"),
    unary("/etcdserverpb.Maintenance/Status"),
    unary("/etcdserverpb.Maintenance/Alarm"),
    unary("/etcdserverpb.Maintenance/Defragment"),
    unary("/etcdserverpb.Maintenance/Hash"),
    unary("/etcdserverpb.Maintenance/HashKV"),
    server_stream("/etcdserverpb.Maintenance/Snapshot"),
    unary("/etcdserverpb.Maintenance/MoveLeader"),
    unary("/etcdserverpb.Maintenance/Downgrade"),
    unary("/etcdserverpb.Cluster/MemberAdd"),
    unary("/etcdserverpb.Cluster/MemberRemove"),
    unary("/etcdserverpb.Cluster/MemberUpdate"),
    unary("/etcdserverpb.Cluster/MemberList"),
    unary("/etcdserverpb.Cluster/MemberPromote"),
    unary("/grpc.health.v1.Health/Check"),
    unary("/grpc.health.v1.Health/List"),
    server_stream("/grpc.health.v1.Health/Watch"),
    unary("/quorate.v1.Membership/SetGoal"),
    unary("/quorate.v1.Membership/Plan"),
    unary("/quorate.v1.Membership/Cancel"),
    unary("/quorate.v1.Membership/Status"),
    server_stream("/quorate.v1.Membership/Watch"),
    unary("/quorate.v1.Membership/Overview"),
    unary("/quorate.v1.Leadership/Transfer"),
    unary("/etcdserverpb.Auth/AuthEnable"),
    unary("/etcdserverpb.Auth/AuthDisable"),
    unary("/etcdserverpb.Auth/AuthStatus"),
    unary("/etcdserverpb.Auth/Authenticate"),
    unary("/etcdserverpb.Auth/UserAdd"),
    unary("/etcdserverpb.Auth/UserGet"),
    unary("/etcdserverpb.Auth/UserList"),
    unary("/etcdserverpb.Auth/UserDelete"),
    unary("/etcdserverpb.Auth/UserChangePassword"),
    unary("/etcdserverpb.Auth/UserGrantRole"),
    unary("/etcdserverpb.Auth/UserRevokeRole"),
    unary("/etcdserverpb.Auth/RoleAdd"),
    unary("/etcdserverpb.Auth/RoleGet"),
    unary("/etcdserverpb.Auth/RoleList"),
    unary("/etcdserverpb.Auth/RoleDelete"),
    unary("/etcdserverpb.Auth/RoleGrantPermission"),
    unary("/etcdserverpb.Auth/RoleRevokePermission"),
    unary("/v3electionpb.Election/Campaign"),
    unary("/v3electionpb.Election/Proclaim"),
    unary("/v3electionpb.Election/Leader"),
    server_stream("/v3electionpb.Election/Observe"),
    unary("/v3electionpb.Election/Resign"),
    unary("/v3lockpb.Lock/Lock"),
    unary("/v3lockpb.Lock/Unlock"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_methods_of_the_protocol_are_listed() {
        let mut expected = BTreeSet::new();
        let mut service = None;
        for line in include_str!("../../../proto/tests/wire.txt").lines() {
            if !line.starts_with(' ') {
                service = line.strip_prefix("service ");
            } else if let Some(service) = service
                && let Some((name, types)) = line.trim().split_once(": ")
            {
                let (request, reply) = types.split_once(" -> ").unwrap();
                let streams = |text: &str| text.starts_with("stream ");
                let kind = match (streams(request), streams(reply)) {
                    (false, false) => StreamKind::Unary,
                    (false, true) => StreamKind::ServerStream,
                    _ => StreamKind::BidiStream,
                };
                expected.insert((service, name, kind.name()));
            }
        }
        let listed: BTreeSet<_> = METHODS
            .iter()
            .map(|method| (method.service(), method.name(), method.kind.name()))
            .collect();
        assert_eq!(listed, expected);
        assert_eq!(listed.len(), METHODS.len());
    }
}
