//! etcd's service Lease. Grants and revocations go through the log; how much time is left
//! only the leader knows, so that a keep-alive has to reach it.

mod expiry;
mod lessor;

pub(crate) use expiry::Expiry;
pub(crate) use lessor::Lessor;

use std::hash::{BuildHasher, RandomState};

use lessor::{Ask, ask_leader};
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

use crate::context::{Context, Needs, requires_leader};
use crate::errors::refused;

pub(crate) struct LeaseService {
    context: Context,
}

impl LeaseService {
    pub(crate) fn new(context: Context) -> Self {
        Self { context }
    }
}

#[async_trait]
impl Lease for LeaseService {
    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        self.context.admit(&request, Needs::Voter)?;
        let LeaseGrantRequest { ttl, id: wanted } = request.into_inner();
        let ttl = ttl.max(self.context.limits.lease_ttl_min);
        loop {
            let id = if wanted == 0 { draw_id() } else { wanted };
            let grant = LeaseGrant { id, ttl };
            check::lease_grant(&grant).map_err(refused)?;
            let reply = match self.context.run(&Command::LeaseGrant(grant)).await {
                Err(why) if wanted == 0 && why.message() == KvError::LeaseExists.text() => continue,
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
        self.context.admit(&request, Needs::Voter)?;
        let id = request.into_inner().id;
        let reply = self.context.run(&Command::LeaseRevoke(id)).await?;
        let header = Some(self.context.header(reply.revision));
        Ok(Response::new(LeaseRevokeResponse { header }))
    }

    type LeaseKeepAliveStream = ReceiverStream<Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        self.context.admit(&request, Needs::Voter)?;
        let wants_leader = requires_leader(request.metadata());
        let (responses, stream) = mpsc::channel(RESPONSES_WAITING_MAX);
        let context = self.context.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = keep_alive(&context, request.into_inner(), &responses) => {}
                why = context.end_of_stream(wants_leader) => {
                    let _ = responses.try_send(Err(why));
                }
                () = responses.closed() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        self.context.admit(&request, Needs::Voter)?;
        let LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        self.context.catch_up().await?;
        let told = ask_leader(&self.context, Ask::TimeLeft(id)).await?;
        let lease = self.context.look_up(&Query::Lease(id));
        let revision = self.context.store.read().revision();
        let mut response = LeaseTimeToLiveResponse {
            header: Some(self.context.header(revision)),
            id,
            ttl: -1,
            granted_ttl: 0,
            keys: Vec::new(),
        };
        if let (Some(left), Ok(Ok(KvOutcome::Lease(lease)))) = (told, lease.map(|it| it.result)) {
            response.ttl = left;
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
        self.context.admit(&request, Needs::Voter)?;
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

/// One after the other: a client that asks faster waits.
async fn keep_alive(
    context: &Context,
    mut requests: Streaming<LeaseKeepAliveRequest>,
    responses: &mpsc::Sender<Result<LeaseKeepAliveResponse, Status>>,
) {
    loop {
        let id = match requests.message().await {
            Ok(Some(LeaseKeepAliveRequest { id })) => id,
            Ok(None) => return,
            Err(why) => {
                // Nobody hears it if the client is gone.
                let _ = responses.send(Err(why)).await;
                return;
            }
        };
        // Before the leader is asked: a lease that is revoked at a later revision was still
        // alive at this one.
        let header = Some(context.header(context.store.read().revision()));
        let renewed = ask_leader(context, Ask::Renew(id)).await;
        let failed = renewed.is_err();
        // A lease that is gone has no time left; that is no error.
        let response = renewed.map(|told| {
            let ttl = told.unwrap_or(0);
            LeaseKeepAliveResponse { header, id, ttl }
        });
        if responses.send(response).await.is_err() || failed {
            return;
        }
    }
}

/// Positive, and of all numbers: that one is taken is next to impossible.
fn draw_id() -> i64 {
    (RandomState::new().hash_one(std::time::SystemTime::now()) >> 1).max(1) as i64
}

const RESPONSES_WAITING_MAX: usize = 16;
