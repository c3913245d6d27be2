//! etcd's service Lease. Grants and revocations go through the log. Only the leader knows how
//! much time is left, so keep-alives are forwarded to it.

mod expiry;
mod lessor;

pub(crate) use expiry::LeaseExpiry;
pub(crate) use lessor::Lessor;

use std::hash::{BuildHasher, RandomState};

use lessor::{LeaseQuery, ask_leader};
use quorate_kv::{Command, KvError, KvOutcome, LeaseGrant, Query, check};
use quorate_proto::etcdserverpb::lease_server::Lease;
use quorate_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, async_trait};

use crate::access::ClientAction;
use crate::context::{ServiceContext, requires_leader};
use crate::status::ServiceError;

pub(crate) struct LeaseService {
    context: ServiceContext,
}

impl LeaseService {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context }
    }
}

#[async_trait]
impl Lease for LeaseService {
    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        self.context.admit(&request, &ClientAction::LeaseGrant)?;
        let LeaseGrantRequest { ttl, id: requested_id } = request.into_inner();
        let ttl = ttl.max(self.context.limits.lease_ttl_min);
        loop {
            let id = if requested_id == 0 { random_id() } else { requested_id };
            let grant = LeaseGrant { id, ttl };
            check::lease_grant(&grant).map_err(ServiceError::Kv)?;
            let reply = match self.context.run(&Command::LeaseGrant(grant)).await {
                Err(ServiceError::Kv(KvError::LeaseExists)) if requested_id == 0 => continue,
                reply => reply?,
            };
            let header = Some(self.context.header(reply.revision));
            let granted = LeaseGrantResponse { header, id, ttl, error: String::new() };
            return Ok(Response::new(granted));
        }
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let id = request.get_ref().id;
        self.context.admit(&request, &ClientAction::LeaseRevoke { id })?;
        let reply = self.context.run(&Command::LeaseRevoke(id)).await?;
        let header = Some(self.context.header(reply.revision));
        Ok(Response::new(LeaseRevokeResponse { header }))
    }

    type LeaseKeepAliveStream = ReceiverStream<Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        self.context.admit(&request, &ClientAction::LeaseKeepAlive)?;
        let requires_leader = requires_leader(request.metadata());
        let (responses, receiver) = mpsc::channel(RESPONSES_QUEUED_MAX);
        let context = self.context.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = keep_alive(&context, request.into_inner(), &responses) => {}
                error = context.end_of_stream(requires_leader) => {
                    let _ = responses.try_send(Err(error.into()));
                }
                () = responses.closed() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let LeaseTimeToLiveRequest { id, keys } = *request.get_ref();
        self.context.admit(&request, &ClientAction::LeaseTimeToLive { id, keys })?;
        self.context.catch_up().await?;
        let time_left = ask_leader(&self.context, LeaseQuery::TimeLeft(id)).await?;
        let lease = self.context.look_up(&Query::Lease(id));
        let revision = self.context.store.read().revision();
        let mut response = LeaseTimeToLiveResponse {
            header: Some(self.context.header(revision)),
            id,
            ttl: -1,
            granted_ttl: 0,
            keys: Vec::new(),
        };
        let lease = lease.map(|reply| reply.result);
        if let (Some(time_left), Ok(Ok(KvOutcome::Lease(lease)))) = (time_left, lease) {
            response.ttl = time_left;
            response.granted_ttl = lease.ttl;
            if keys {
                response.keys = lease.keys;
            }
        }
        Ok(Response::new(response))
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        self.context.admit(&request, &ClientAction::LeaseLeases)?;
        self.context.catch_up().await?;
        let reply = self.context.look_up(&Query::Leases)?;
        let ids = match reply.result {
            Ok(KvOutcome::Leases(ids)) => ids,
            _ => Vec::new(),
        };
        let header = Some(self.context.header(reply.revision));
        let leases = ids.into_iter().map(|id| LeaseStatus { id }).collect();
        Ok(Response::new(LeaseLeasesResponse { header, leases }))
    }
}

/// Renews leases, several at a time and answers in order: a renewal takes a round trip between
/// the members, and a client may have very many leases. A client that sends faster is blocked
/// (backpressure).
async fn keep_alive(
    context: &ServiceContext,
    mut requests: Streaming<LeaseKeepAliveRequest>,
    responses: &mpsc::Sender<Result<LeaseKeepAliveResponse, Status>>,
) {
    let (renewing, mut renewed) = mpsc::channel(RENEWALS_AT_ONCE);
    let receive = async move {
        loop {
            let id = match requests.message().await {
                Ok(Some(LeaseKeepAliveRequest { id })) => id,
                Ok(None) => return,
                Err(status) => {
                    // If the client is gone, the error is lost, which is fine.
                    let _ = responses.send(Err(status)).await;
                    return;
                }
            };
            let context = context.clone();
            let renewal = tokio::spawn(async move { renew(&context, id).await });
            if renewing.send(renewal).await.is_err() {
                return;
            }
        }
    };
    let respond = async {
        while let Some(renewal) = renewed.recv().await {
            let response = renewal.await.unwrap_or_else(|error| Err(ServiceError::Task(error)));
            let failed = response.is_err();
            if responses.send(response.map_err(Into::into)).await.is_err() || failed {
                return;
            }
        }
    };
    tokio::pin!(receive, respond);
    tokio::select! {
        () = &mut receive => respond.await,
        () = &mut respond => {}
    }
}

async fn renew(context: &ServiceContext, id: i64) -> Result<LeaseKeepAliveResponse, ServiceError> {
    // The revision is read before the leader is asked: a lease that is revoked at a later
    // revision was still alive at this one.
    let header = Some(context.header(context.store.read().revision()));
    // A lease that does not exist is answered with a TTL of 0, which is no error.
    let ttl = ask_leader(context, LeaseQuery::Renew(id)).await?.unwrap_or(0);
    Ok(LeaseKeepAliveResponse { header, id, ttl })
}

/// A random positive id. A collision is next to impossible.
fn random_id() -> i64 {
    (RandomState::new().hash_one(std::time::SystemTime::now()) >> 1).max(1) as i64
}

const RESPONSES_QUEUED_MAX: usize = 16;
/// Leases of one stream that are renewed at the same time.
const RENEWALS_AT_ONCE: usize = 256;
