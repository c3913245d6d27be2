//! Who sends a request, what it asks for, and whether it is allowed.
//!
//! Every service method, and every HTTP page that shows or does something, passes [`ServiceContext::admit`] or
//! [`ServiceContext::authorize`] before it does anything. Both ask the one [`AccessPolicy`] of
//! the server. This module does not know how a policy decides.
//!
//! [`ServiceContext::admit`]: crate::ServiceContext
//! [`ServiceContext::authorize`]: crate::ServiceContext

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{Extensions, HeaderMap};
use quorate_proto::etcdserverpb::request_op::Request as TxnOperation;
use quorate_proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest, WatchCreateRequest,
};
use tonic::Request;
use tonic::transport::server::TcpConnectInfo;

use crate::client_certificate::ClientCertificate;

/// What is known about the client that sends a request. It is read once per request (once per
/// stream for streaming calls) from the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientIdentity {
    /// The remote end of the connection. `None` for a call within the process.
    pub peer_address: Option<SocketAddr>,
    pub(crate) credentials: ClientCredentials,
}

/// What a client proves its identity with. Tokens do not appear in logs.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct ClientCredentials {
    token: Option<Arc<str>>,
    common_name: Option<Arc<str>>,
}

impl ClientCredentials {
    /// The token of a request; that of a user takes precedence over the certificate.
    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The common name of a verified certificate.
    pub(crate) fn common_name(&self) -> Option<&str> {
        self.common_name.as_deref()
    }

    fn of(headers: &HeaderMap, extensions: &Extensions) -> Self {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let token = header("token").or_else(|| header("authorization")).map(Into::into);
        // A gateway connects with its own certificate, on behalf of others.
        let is_gateway = headers.contains_key("grpcgateway-accept");
        let certificate = extensions.get::<ClientCertificate>().filter(|_| !is_gateway);
        let name = certificate.map(|certificate| certificate.common_name.as_str());
        Self { token, common_name: name.filter(|name| !name.is_empty()).map(Into::into) }
    }
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("ClientCredentials");
        let token = self.token.as_ref().map(|_| "redacted");
        text.field("token", &token).field("common_name", &self.common_name).finish()
    }
}

impl ClientIdentity {
    /// The identity of the client that sent this gRPC request.
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        Self::from_parts(request.metadata().as_ref(), request.extensions())
    }

    /// The same from the parts of a gRPC request.
    pub(crate) fn from_parts(headers: &HeaderMap, extensions: &Extensions) -> Self {
        let credentials = ClientCredentials::of(headers, extensions);
        Self { credentials, ..Self::from_extensions(extensions) }
    }

    /// The same for a page that shows what a call shows: with the token of the request. The name in
    /// a certificate is not used, as in the gateway.
    pub(crate) fn with_token(headers: &HeaderMap, extensions: &Extensions) -> Self {
        let credentials = ClientCredentials::of(headers, &Extensions::new());
        Self { credentials, ..Self::from_extensions(extensions) }
    }

    /// The same for an HTTP request outside of gRPC, in whose extensions the listener stores what
    /// it knows about the connection. Pages need no credentials.
    pub(crate) fn from_extensions(extensions: &Extensions) -> Self {
        let info = extensions.get::<TcpConnectInfo>();
        let peer_address = info.and_then(TcpConnectInfo::remote_addr);
        Self { peer_address, credentials: ClientCredentials::default() }
    }
}

/// What a request asks for. Requests about keys are borrowed whole, so that naming the action
/// costs nothing on the path of every put; [`ClientAction::key_accesses`] lists their ranges.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ClientAction<'a> {
    /// KV.Range and KV.RangeStream.
    Range(&'a RangeRequest),
    Put(&'a PutRequest),
    DeleteRange(&'a DeleteRangeRequest),
    Txn(&'a TxnRequest),
    Compact,
    /// Opens a stream for watches. Each watch on it is an action of its own.
    WatchStream,
    /// Creates one watch on an open stream.
    Watch(&'a WatchCreateRequest),
    LeaseGrant,
    LeaseRevoke {
        id: i64,
    },
    /// Opens a stream that keeps leases alive.
    LeaseKeepAlive,
    LeaseTimeToLive {
        id: i64,
        /// The reply lists the keys of the lease.
        keys: bool,
    },
    LeaseLeases,
    MemberList,
    /// Adds, removes, updates or promotes a member, or sets or cancels a goal.
    MemberChange,
    /// Shows the steps of a membership change without making it.
    MemberPlan,
    /// The state of the membership, once or as a stream.
    MembershipStatus,
    /// The state of this member.
    Status,
    AlarmRead,
    AlarmChange,
    Defragment,
    Hash,
    Snapshot,
    MoveLeader,
    Downgrade,
    /// Exchanges a user name and a password for a token.
    Authenticate,
    /// Reads users and roles, or whether authentication is enabled.
    AuthRead,
    /// Changes users or roles, or enables or disables authentication.
    AuthChange,
    /// gRPC's health service, `/health`, `/livez` and `/readyz`.
    Health,
    /// `/metrics`.
    Metrics,
    /// `/version`.
    Version,
}

/// One key range that an action reads or writes. An empty `range_end` means the key alone, as
/// in etcd's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyAccess<'a> {
    pub mode: AccessMode,
    pub key: &'a [u8],
    pub range_end: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    Read,
    Write,
}

/// Which members serve an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedBy {
    /// Any member, whether or not a leader is known.
    Always,
    /// Any member, learners included.
    Member,
    /// Voters, and learners if the server lets them serve reads.
    Reader,
    Voter,
}

impl<'a> ClientAction<'a> {
    /// All key ranges that the action touches, nested transactions included. Both branches of a
    /// transaction count: which one runs is known only when it runs. A request that returns the
    /// previous value also reads. The keys of a lease are not listed, because only the store knows
    /// them: a policy that protects keys has to treat calls that name a lease as touching any key,
    /// or look them up.
    pub fn key_accesses(&self) -> Vec<KeyAccess<'a>> {
        let mut accesses = Vec::new();
        match self {
            Self::Range(range) => add_range(&mut accesses, range),
            Self::Put(put) => add_put(&mut accesses, put),
            Self::DeleteRange(deletion) => add_delete(&mut accesses, deletion),
            Self::Txn(txn) => add_txn(&mut accesses, txn),
            Self::Watch(watch) => accesses.push(read(&watch.key, &watch.range_end)),
            _ => {}
        }
        accesses
    }

    pub(crate) fn served_by(&self) -> ServedBy {
        match self {
            Self::Range(range) if range.serializable => ServedBy::Member,
            Self::Range(_) | Self::WatchStream | Self::Watch(_) => ServedBy::Reader,
            Self::Status | Self::Snapshot => ServedBy::Member,
            Self::Put(_)
            | Self::DeleteRange(_)
            | Self::Txn(_)
            | Self::Compact
            | Self::LeaseGrant
            | Self::LeaseRevoke { .. }
            | Self::LeaseKeepAlive
            | Self::LeaseTimeToLive { .. }
            | Self::LeaseLeases
            | Self::MemberList
            | Self::MemberChange
            | Self::MemberPlan
            | Self::AlarmRead
            | Self::AlarmChange
            | Self::Defragment
            | Self::Hash
            | Self::MoveLeader
            | Self::Authenticate
            | Self::AuthRead
            | Self::AuthChange => ServedBy::Voter,
            Self::MembershipStatus
            | Self::Downgrade
            | Self::Health
            | Self::Metrics
            | Self::Version => ServedBy::Always,
        }
    }
}

fn read<'a>(key: &'a [u8], range_end: &'a [u8]) -> KeyAccess<'a> {
    KeyAccess { mode: AccessMode::Read, key, range_end }
}

fn write<'a>(key: &'a [u8], range_end: &'a [u8]) -> KeyAccess<'a> {
    KeyAccess { mode: AccessMode::Write, key, range_end }
}

fn add_range<'a>(accesses: &mut Vec<KeyAccess<'a>>, range: &'a RangeRequest) {
    accesses.push(read(&range.key, &range.range_end));
}

fn add_put<'a>(accesses: &mut Vec<KeyAccess<'a>>, put: &'a PutRequest) {
    if put.prev_kv {
        accesses.push(read(&put.key, &[]));
    }
    accesses.push(write(&put.key, &[]));
}

fn add_delete<'a>(accesses: &mut Vec<KeyAccess<'a>>, deletion: &'a DeleteRangeRequest) {
    if deletion.prev_kv {
        accesses.push(read(&deletion.key, &deletion.range_end));
    }
    accesses.push(write(&deletion.key, &deletion.range_end));
}

fn add_txn<'a>(accesses: &mut Vec<KeyAccess<'a>>, txn: &'a TxnRequest) {
    for compare in &txn.compare {
        accesses.push(read(&compare.key, &compare.range_end));
    }
    for operation in txn.success.iter().chain(&txn.failure) {
        match &operation.request {
            Some(TxnOperation::RequestRange(range)) => add_range(accesses, range),
            Some(TxnOperation::RequestPut(put)) => add_put(accesses, put),
            Some(TxnOperation::RequestDeleteRange(deletion)) => add_delete(accesses, deletion),
            Some(TxnOperation::RequestTxn(nested)) => add_txn(accesses, nested),
            None => {}
        }
    }
}

/// Decides which client may do what.
pub trait AccessPolicy: Send + Sync {
    /// Called before anything is done for the request. It must not block: it runs on the path
    /// of every request.
    fn check(&self, client: &ClientIdentity, action: &ClientAction<'_>)
    -> Result<(), AccessDenied>;
}

/// Why a policy rejects a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessDenied {
    /// This client may not do this.
    PermissionDenied,
    /// A web page of an origin that `--cors` does not name has sent the request.
    OriginNotAllowed,
    /// The port of the console changes nothing while there are no users.
    ConsoleReadOnly,
}

/// The policy of a server without authentication.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

impl AccessPolicy for AllowAll {
    fn check(&self, _: &ClientIdentity, _: &ClientAction<'_>) -> Result<(), AccessDenied> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use quorate_proto::etcdserverpb::{Compare, RequestOp};

    use super::*;

    fn operation(request: TxnOperation) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    #[test]
    fn a_transaction_lists_the_ranges_of_both_branches_and_of_nested_transactions() {
        let put = PutRequest { key: "p".into(), prev_kv: true, ..Default::default() };
        let deletion =
            DeleteRangeRequest { key: "d".into(), range_end: "e".into(), ..Default::default() };
        let nested = TxnRequest {
            compare: vec![Compare { key: "c".into(), ..Default::default() }],
            failure: vec![operation(TxnOperation::RequestDeleteRange(deletion))],
            ..Default::default()
        };
        let range = RangeRequest { key: "r".into(), range_end: "s".into(), ..Default::default() };
        let txn = TxnRequest {
            compare: vec![Compare { key: "a".into(), range_end: "b".into(), ..Default::default() }],
            success: vec![
                operation(TxnOperation::RequestPut(put)),
                operation(TxnOperation::RequestTxn(nested)),
                RequestOp { request: None },
            ],
            failure: vec![operation(TxnOperation::RequestRange(range))],
        };
        let expected = [
            read(b"a", b"b"),
            read(b"p", b""),
            write(b"p", b""),
            read(b"c", b""),
            write(b"d", b"e"),
            read(b"r", b"s"),
        ];
        assert_eq!(ClientAction::Txn(&txn).key_accesses(), expected);
        assert_eq!(ClientAction::Compact.key_accesses(), []);
    }
}
