//! A place in a queue of keys, and the calls of other services on behalf of a caller.

use bytes::Bytes;
use quorate_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_proto::etcdserverpb::kv_server::Kv;
use quorate_proto::etcdserverpb::lease_server::Lease;
use quorate_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use quorate_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest, PutRequest, RangeRequest,
    RangeResponse, RequestOp, TxnRequest, TxnResponse, request_op, response_op,
};
use quorate_proto::mvccpb::KeyValue;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Request, Status};

use super::watch_key::KeyWatch;
use crate::access::ClientIdentity;
use crate::auth::UserIdentity;
use crate::context::ServiceContext;
use crate::service::kv::KvService;
use crate::service::lease::LeaseService;
use crate::status::ServiceError;

/// Calls of other services with the credentials of one caller. Cheap to clone.
#[derive(Clone)]
pub(super) struct CallerCalls {
    pub(super) context: ServiceContext,
    pub(super) client: ClientIdentity,
    metadata: MetadataMap,
    extensions: Extensions,
    /// The token of the caller stays valid while the call waits.
    _identity: Option<UserIdentity>,
}

impl CallerCalls {
    /// The caller of this request, and the request.
    pub(super) async fn of<T>(context: &ServiceContext, request: Request<T>) -> (Self, T) {
        let client = ClientIdentity::of(&request);
        let _identity = context.hold_token(&client).await;
        let (metadata, extensions, message) = request.into_parts();
        (Self { context: context.clone(), client, metadata, extensions, _identity }, message)
    }

    pub(super) fn metadata(&self) -> &MetadataMap {
        &self.metadata
    }

    fn request<T>(&self, message: T) -> Request<T> {
        Request::from_parts(self.metadata.clone(), self.extensions.clone(), message)
    }

    fn kv(&self) -> KvService {
        KvService::new(self.context.clone())
    }

    pub(super) async fn txn(&self, txn: TxnRequest) -> Result<TxnResponse, Status> {
        Ok(self.kv().txn(self.request(txn)).await?.into_inner())
    }

    pub(super) async fn range(&self, range: RangeRequest) -> Result<RangeResponse, Status> {
        Ok(self.kv().range(self.request(range)).await?.into_inner())
    }

    pub(super) async fn delete(&self, key: Bytes) -> Result<DeleteRangeResponse, Status> {
        let deletion = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
        Ok(self.kv().delete_range(self.request(deletion)).await?.into_inner())
    }

    /// The lease of the call: the given one, or a new one if it is 0.
    pub(super) async fn lease(&self, given: i64) -> Result<i64, Status> {
        if given != 0 {
            return Ok(given);
        }
        let grant = LeaseGrantRequest { ttl: NEW_LEASE_TTL, id: 0 };
        let lease = LeaseService::new(self.context.clone());
        Ok(lease.lease_grant(self.request(grant)).await?.into_inner().id)
    }
}

/// The keys of one name.
#[derive(Clone, Debug)]
pub(super) struct KeyQueue {
    prefix: Bytes,
}

impl KeyQueue {
    pub(super) fn new(name: &[u8]) -> Self {
        Self { prefix: [name, b"/"].concat().into() }
    }

    /// The key of a lease, as Go prints its id in hexadecimal.
    pub(super) fn key_of(&self, lease: i64) -> Bytes {
        let sign = if lease < 0 { "-" } else { "" };
        let digits = format!("{sign}{:x}", lease.unsigned_abs());
        [&self.prefix[..], digits.as_bytes()].concat().into()
    }

    pub(super) fn prefix(&self) -> Bytes {
        self.prefix.clone()
    }

    /// The first key behind the prefix: `0` follows `/`.
    pub(super) fn range_end(&self) -> Bytes {
        let mut end = self.prefix.to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        end.into()
    }

    /// Reads the oldest key.
    pub(super) fn oldest(&self) -> RangeRequest {
        self.first_by_create_revision(SortOrder::Ascend)
    }

    /// Reads the newest key that is older than this revision.
    fn newest_before(&self, revision: i64) -> RangeRequest {
        let max_create_revision = revision - 1;
        RangeRequest { max_create_revision, ..self.first_by_create_revision(SortOrder::Descend) }
    }

    fn first_by_create_revision(&self, order: SortOrder) -> RangeRequest {
        RangeRequest {
            key: self.prefix(),
            range_end: self.range_end(),
            limit: 1,
            sort_order: order as i32,
            sort_target: SortTarget::Create as i32,
            ..RangeRequest::default()
        }
    }
}

/// A key of a queue, and the revision that created it.
#[derive(Clone, Debug)]
pub(super) struct QueuedKey {
    pub(super) queue: KeyQueue,
    pub(super) key: Bytes,
    pub(super) create_revision: i64,
}

impl QueuedKey {
    /// Waits until all earlier keys of the queue are deleted.
    pub(super) async fn wait_for_earlier(&self, calls: &CallerCalls) -> Result<(), Status> {
        // No key is older than the first revision; and a limit of 0 would be none.
        if self.create_revision <= 1 {
            return Ok(());
        }
        loop {
            let found = calls.range(self.queue.newest_before(self.create_revision)).await?;
            let Some(earlier) = found.kvs.into_iter().next() else { return Ok(()) };
            let revision = found.header.map_or(0, |header| header.revision);
            let mut watch = KeyWatch::new(calls, earlier.key, Bytes::new(), revision).await;
            watch.wait_for_deletion().await?;
        }
    }

    /// Whether the key is still the one that was queued.
    pub(super) fn is_unchanged(&self) -> Compare {
        created_at(self.key.clone(), self.create_revision)
    }

    /// Deletes the key, unless another one has taken its place.
    pub(super) async fn delete(&self, calls: &CallerCalls) -> Result<TxnResponse, Status> {
        let deletion = DeleteRangeRequest { key: self.key.clone(), ..Default::default() };
        let deletion = operation(request_op::Request::RequestDeleteRange(deletion));
        let compare = vec![self.is_unchanged()];
        calls.txn(TxnRequest { compare, success: vec![deletion], failure: Vec::new() }).await
    }
}

/// Deletes its key when it is dropped: a caller that is gone must not keep others waiting.
pub(super) struct DeleteOnDrop<'a> {
    calls: &'a CallerCalls,
    key: Option<QueuedKey>,
}

impl<'a> DeleteOnDrop<'a> {
    pub(super) fn new(calls: &'a CallerCalls, key: QueuedKey) -> Self {
        Self { calls, key: Some(key) }
    }

    /// From now on the key is kept.
    pub(super) fn keep(mut self) {
        self.key = None;
    }

    /// Deletes the key now. If that fails, the key is deleted with its lease.
    pub(super) async fn delete(mut self) {
        if let Some(key) = &self.key {
            let _ = key.delete(self.calls).await;
        }
        self.key = None;
    }
}

impl Drop for DeleteOnDrop<'_> {
    fn drop(&mut self) {
        let (Some(key), Ok(runtime)) = (self.key.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let calls = self.calls.clone();
        runtime.spawn(async move {
            if let Err(error) = key.delete(&calls).await {
                tracing::debug!(%error, "the key of a cancelled call is deleted with its lease");
            }
        });
    }
}

/// The condition that this revision created the key; 0 if it does not exist.
pub(super) fn created_at(key: Bytes, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Create as i32,
        key,
        target_union: Some(TargetUnion::CreateRevision(revision)),
        ..Compare::default()
    }
}

pub(super) fn operation(request: request_op::Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

pub(super) fn put(key: Bytes, value: Bytes, lease: i64) -> RequestOp {
    let put = PutRequest { key, value, lease, ..PutRequest::default() };
    operation(request_op::Request::RequestPut(put))
}

pub(super) fn get(range: RangeRequest) -> RequestOp {
    operation(request_op::Request::RequestRange(range))
}

/// The first key of the range that is the `number`th response of a transaction.
pub(super) fn first_key(reply: &TxnResponse, number: usize) -> Option<&KeyValue> {
    match &reply.responses.get(number)?.response {
        Some(response_op::Response::ResponseRange(range)) => range.kvs.first(),
        _ => None,
    }
}

/// The create revision of a key that a transaction has put, or found.
pub(super) fn create_revision(reply: &TxnResponse) -> Result<i64, ServiceError> {
    if reply.succeeded {
        let header = reply.header.as_ref();
        return header.map(|header| header.revision).ok_or(ServiceError::UnexpectedReply);
    }
    first_key(reply, 0).map(|kv| kv.create_revision).ok_or(ServiceError::UnexpectedReply)
}

/// The lease of a call that names none, in seconds.
const NEW_LEASE_TTL: i64 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_that_etcd_writes() {
        let queue = KeyQueue::new(b"name");
        assert_eq!(queue.key_of(0x1f), "name/1f");
        assert_eq!(queue.key_of(-0x1f), "name/-1f");
        assert_eq!(queue.key_of(i64::MIN), "name/-8000000000000000");
        assert_eq!((queue.prefix(), queue.range_end()), ("name/".into(), "name0".into()));
        assert_eq!(KeyQueue::new(b"").key_of(1), "/1");
    }
}
