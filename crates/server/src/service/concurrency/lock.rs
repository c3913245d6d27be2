//! etcd's service Lock.

use bytes::Bytes;
use quorate_proto::etcdserverpb::{RangeRequest, ResponseHeader, TxnRequest};
use quorate_proto::v3lockpb::lock_server::Lock;
use quorate_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use tonic::{Request, Response, Status, async_trait};

use super::queue::{
    CallerCalls, DeleteOnDrop, KeyQueue, QueuedKey, create_revision, created_at, first_key, get,
    put,
};
use crate::context::ServiceContext;
use crate::status::ServiceError;

pub(crate) struct LockService {
    context: ServiceContext,
}

impl LockService {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context }
    }
}

#[async_trait]
impl Lock for LockService {
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        let (calls, LockRequest { name, lease }) = CallerCalls::of(&self.context, request).await;
        let lease = calls.lease(lease).await?;
        let queue = KeyQueue::new(&name);
        let key = queue.key_of(lease);
        let own_key = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let queued = TxnRequest {
            compare: vec![created_at(key.clone(), 0)],
            success: vec![put(key.clone(), Bytes::new(), lease), get(queue.oldest())],
            failure: vec![get(own_key), get(queue.oldest())],
        };
        let reply = calls.txn(queued).await?;
        let create_revision = create_revision(&reply)?;
        if first_key(&reply, 1).is_none_or(|owner| owner.create_revision == create_revision) {
            return Ok(Response::new(LockResponse { header: reply.header, key }));
        }
        let place = QueuedKey { queue, key: key.clone(), create_revision };
        let guard = DeleteOnDrop::new(&calls, place.clone());
        match wait(&calls, &place).await {
            Ok(Some(header)) => {
                guard.keep();
                Ok(Response::new(LockResponse { header, key }))
            }
            // The key was deleted with its lease while it waited.
            Ok(None) => {
                guard.keep();
                Err(ServiceError::LockSessionExpired.into())
            }
            Err(status) => {
                guard.delete().await;
                Err(status)
            }
        }
    }

    async fn unlock(
        &self,
        request: Request<UnlockRequest>,
    ) -> Result<Response<UnlockResponse>, Status> {
        let (calls, UnlockRequest { key }) = CallerCalls::of(&self.context, request).await;
        let header = calls.delete(key).await?.header;
        Ok(Response::new(UnlockResponse { header }))
    }
}

/// Waits for the lock. `None` if the key no longer exists.
async fn wait(
    calls: &CallerCalls,
    place: &QueuedKey,
) -> Result<Option<Option<ResponseHeader>>, Status> {
    place.wait_for_earlier(calls).await?;
    let own_key = RangeRequest { key: place.key.clone(), ..RangeRequest::default() };
    let found = calls.range(own_key).await?;
    let is_own = |found: i64| found == place.create_revision;
    let exists = found.kvs.first().is_some_and(|kv| is_own(kv.create_revision));
    Ok(exists.then_some(found.header))
}
