//! A policy decides by the key ranges of a request, also inside transactions and watch streams.

use std::sync::Arc;

use quorate_proto::etcdserverpb::request_op::Request as Operation;
use quorate_proto::etcdserverpb::{RequestOp, TxnRequest, WatchCreateRequest};
use quorate_server::ServiceLimits;
use quorate_server::access::{AccessDenied, AccessPolicy, ClientAction, ClientIdentity};
use tonic::{Code, Status};

use crate::support::{ServiceMember, from, get, put};
use crate::watches::{WatchClientStream, events, watch_of};

/// Denies every access to a range that could contain a key from "secret" on.
struct NoSecrets;

impl AccessPolicy for NoSecrets {
    fn check(
        &self,
        client: &ClientIdentity,
        action: &ClientAction<'_>,
    ) -> Result<(), AccessDenied> {
        assert!(client.peer_address.unwrap().ip().is_loopback());
        let is_secret = |key: &[u8], range_end: &[u8]| {
            key >= &b"secret"[..] || range_end > &b"secret"[..] || range_end == [0]
        };
        let mut accesses = action.key_accesses().into_iter();
        match accesses.any(|access| is_secret(access.key, access.range_end)) {
            true => Err(AccessDenied::PermissionDenied),
            false => Ok(()),
        }
    }
}

fn denied<T>(reply: Result<T, Status>) {
    let Err(status) = reply else { panic!("allowed") };
    let expected = (Code::PermissionDenied, "etcdserver: permission denied");
    assert_eq!((status.code(), status.message()), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_protects_key_ranges() {
    let member = ServiceMember::single_with(ServiceLimits::default(), Arc::new(NoSecrets)).await;
    let mut kv = member.kv();
    member.put("a", "1").await;
    assert_eq!(member.keys(from("a", "b")).await, ["a"]);
    denied(kv.put(put("secret", "1")).await);
    denied(kv.range(get("secret")).await);
    denied(kv.range(from("a", "\0")).await);
    denied(kv.range_stream(from("a", "t")).await);
    let operation = |request| vec![RequestOp { request: Some(request) }];
    let inner = operation(Operation::RequestPut(put("secret", "1")));
    let inner = TxnRequest { failure: inner, ..TxnRequest::default() };
    let success = operation(Operation::RequestTxn(inner));
    denied(kv.txn(TxnRequest { success, ..TxnRequest::default() }).await);

    // A denied watch is cancelled; the stream and its other watches continue.
    let mut stream = WatchClientStream::open(&member).await;
    assert!(!stream.create(watch_of("a")).await.canceled);
    let request = WatchCreateRequest { range_end: "t".into(), ..watch_of("a") };
    let refused = stream.create(request).await;
    assert_eq!((refused.watch_id, refused.created, refused.canceled), (-1, true, true));
    // As Go prints a status.
    let reason = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
    assert_eq!(refused.cancel_reason, reason);
    member.put("a", "2").await;
    assert_eq!(events(&stream.next().await), ["put a=2"]);
    member.stop().await;
}
