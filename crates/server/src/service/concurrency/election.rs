//! etcd's service Election.

use bytes::Bytes;
use prost::Message;
use quorate_kv::WatchEventKind;
use quorate_proto::etcdserverpb::{RangeRequest, ResponseHeader, TxnRequest};
use quorate_proto::mvccpb::KeyValue;
use quorate_proto::v3electionpb::election_server::Election;
use quorate_proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use tonic::{Request, Response, Status, async_trait};

use super::queue::{
    CallerCalls, DeleteOnDrop, KeyQueue, QueuedKey, create_revision, created_at, first_key, get,
    put,
};
use super::watch_key::KeyWatch;
use crate::context::{ServiceContext, requires_leader};
use crate::response_budget::MemoryWait;
use crate::response_queue::{ResponseReceiver, ResponseSender, response_queue};
use crate::service::kv::key_value;
use crate::status::ServiceError;

pub(crate) struct ElectionService {
    context: ServiceContext,
}

impl ElectionService {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context }
    }
}

#[async_trait]
impl Election for ElectionService {
    async fn campaign(
        &self,
        request: Request<CampaignRequest>,
    ) -> Result<Response<CampaignResponse>, Status> {
        let (calls, request) = CallerCalls::of(&self.context, request).await;
        let CampaignRequest { name, lease, value } = request;
        let lease = calls.lease(lease).await?;
        let queue = KeyQueue::new(&name);
        let key = queue.key_of(lease);
        let own_key = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let queued = TxnRequest {
            compare: vec![created_at(key.clone(), 0)],
            success: vec![put(key.clone(), value.clone(), lease)],
            failure: vec![get(own_key)],
        };
        let reply = calls.txn(queued).await?;
        let rev = create_revision(&reply)?;
        let place = QueuedKey { queue, key: key.clone(), create_revision: rev };
        let guard = DeleteOnDrop::new(&calls, place.clone());
        let has_other_value = first_key(&reply, 0).is_some_and(|kv| kv.value != value);
        if !reply.succeeded
            && has_other_value
            && let Err(status) = proclaim(&calls, &place, value, lease).await
        {
            guard.delete().await;
            return Err(status);
        }
        let waited = place.wait_for_earlier(&calls).await;
        // A caller that is gone has dropped this call. Any other error leaves the key in place,
        // so that the caller can try again.
        guard.keep();
        waited?;
        check_exists(&calls, &place).await?;
        let leader = Some(LeaderKey { name, key, rev, lease });
        Ok(Response::new(CampaignResponse { header: reply.header, leader }))
    }

    async fn proclaim(
        &self,
        request: Request<ProclaimRequest>,
    ) -> Result<Response<ProclaimResponse>, Status> {
        let (calls, request) = CallerCalls::of(&self.context, request).await;
        let ProclaimRequest { leader, value } = request;
        let (place, lease) = resume(leader)?;
        let header = proclaim(&calls, &place, value, lease).await?;
        Ok(Response::new(ProclaimResponse { header }))
    }

    async fn leader(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<LeaderResponse>, Status> {
        let (calls, LeaderRequest { name }) = CallerCalls::of(&self.context, request).await;
        let found = calls.range(KeyQueue::new(&name).oldest()).await?;
        let kv = found.kvs.into_iter().next().ok_or(ServiceError::NoElectionLeader)?;
        Ok(Response::new(LeaderResponse { header: found.header, kv: Some(kv) }))
    }

    type ObserveStream = ResponseReceiver<LeaderResponse>;

    async fn observe(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let (calls, LeaderRequest { name }) = CallerCalls::of(&self.context, request).await;
        let requires_leader = requires_leader(calls.metadata());
        let queue = KeyQueue::new(&name);
        // Before the stream begins: a caller without rights gets the error of this read.
        let first = calls.range(queue.oldest()).await?;
        let (responses, receiver) = response_queue(RESPONSES_QUEUED_MAX);
        tokio::spawn(async move {
            let observer = Observer { calls: &calls, queue, responses: &responses };
            let ended = tokio::select! {
                Err(status) = observer.run(first) => status,
                error = calls.context.end_of_stream(requires_leader) => error.into(),
                () = responses.closed() => return,
            };
            responses.send_last(ended);
        });
        Ok(Response::new(receiver))
    }

    async fn resign(
        &self,
        request: Request<ResignRequest>,
    ) -> Result<Response<ResignResponse>, Status> {
        let (calls, ResignRequest { leader }) = CallerCalls::of(&self.context, request).await;
        let (place, _) = resume(leader)?;
        let header = place.delete(&calls).await?.header;
        Ok(Response::new(ResignResponse { header }))
    }
}

/// The key of a leader that won an earlier campaign, and its lease.
fn resume(leader: Option<LeaderKey>) -> Result<(QueuedKey, i64), ServiceError> {
    let LeaderKey { name, key, rev, lease } = leader.ok_or(ServiceError::MissingLeaderKey)?;
    let place = QueuedKey { queue: KeyQueue::new(&name), key, create_revision: rev };
    Ok((place, lease))
}

/// Changes the value of a leader.
async fn proclaim(
    calls: &CallerCalls,
    place: &QueuedKey,
    value: Bytes,
    lease: i64,
) -> Result<Option<ResponseHeader>, Status> {
    let proclaimed = TxnRequest {
        compare: vec![place.is_unchanged()],
        success: vec![put(place.key.clone(), value, lease)],
        failure: Vec::new(),
    };
    let reply = calls.txn(proclaimed).await?;
    if !reply.succeeded {
        return Err(ServiceError::NotElectionLeader.into());
    }
    Ok(reply.header)
}

/// A key that was deleted with its lease while it waited does not lead.
async fn check_exists(calls: &CallerCalls, place: &QueuedKey) -> Result<(), Status> {
    let own_key = RangeRequest { key: place.key.clone(), ..RangeRequest::default() };
    let found = calls.range(own_key).await?;
    if found.kvs.first().is_some_and(|kv| kv.create_revision == place.create_revision) {
        return Ok(());
    }
    Err(ServiceError::NotElectionLeader.into())
}

/// Sends every leader of an election, and every value that it proclaims.
struct Observer<'a> {
    calls: &'a CallerCalls,
    queue: KeyQueue,
    responses: &'a ResponseSender<LeaderResponse>,
}

impl Observer<'_> {
    /// Runs until the stream ends. `Ok` means that the client is gone.
    async fn run(
        &self,
        mut found: quorate_proto::etcdserverpb::RangeResponse,
    ) -> Result<(), Status> {
        loop {
            let mut revision = found.header.as_ref().map_or(0, |header| header.revision);
            let leader = match found.kvs.into_iter().next() {
                Some(kv) => Some(kv),
                None => self.first_candidate(revision).await?,
            };
            if let Some(kv) = leader {
                // That of the read, or of the put of the first candidate.
                revision = revision.max(kv.mod_revision);
                let key = kv.key.clone();
                self.send(revision, kv).await?;
                self.follow(key, revision + 1).await?;
            }
            found = self.calls.range(self.queue.oldest()).await?;
        }
    }

    /// Waits for the first key of an election without a leader.
    async fn first_candidate(&self, revision: i64) -> Result<Option<KeyValue>, Status> {
        let (key, end) = (self.queue.prefix(), self.queue.range_end());
        let mut watch = KeyWatch::new(self.calls, key, end, revision).await;
        while let Some(event) = watch.next().await? {
            if event.event.kind == WatchEventKind::Put {
                return Ok(Some(key_value(event.event.kv)));
            }
        }
        Ok(None)
    }

    /// Sends the values of a leader until its key is deleted.
    async fn follow(&self, key: Bytes, start_revision: i64) -> Result<(), Status> {
        let mut watch = KeyWatch::new(self.calls, key, Bytes::new(), start_revision).await;
        while let Some(event) = watch.next().await? {
            match event.event.kind {
                WatchEventKind::Delete => break,
                WatchEventKind::Put => {
                    self.send(event.revision, key_value(event.event.kv)).await?;
                }
            }
        }
        Ok(())
    }

    async fn send(&self, revision: i64, kv: KeyValue) -> Result<(), Status> {
        let header = Some(self.calls.context.header(revision));
        let response = LeaderResponse { header, kv: Some(kv) };
        let bytes = response.encoded_len() as u64;
        let budget = &self.calls.context.responses;
        let memory = budget.reserve(bytes, MemoryWait::UntilFree).await?;
        if self.responses.send(Ok(response), Some(memory)).await.is_err() {
            // The client is gone, which `observe` waits for too.
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

/// Responses that wait for a slow client. When the queue is full, no further events are read.
const RESPONSES_QUEUED_MAX: usize = 16;
