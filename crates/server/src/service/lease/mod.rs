//! etcd's service Lease. Grants and revocations go through the log. Only the leader knows how
//! much time is left, so keep-alives are forwarded to it.

mod expiry;
mod lessor;
mod renewal_rights;

pub(crate) use expiry::LeaseExpiry;
pub(crate) use lessor::LessorHandle;

use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use lessor::ask_leader;
use quorate_kv::{
    AnyTable, AuthVersion, Command, Issuer, Kv, KvError, LeaseGrant, LeaseQuery, Query, check,
};
use quorate_proto::etcdserverpb::lease_server::Lease;
use quorate_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use renewal_rights::RenewalRights;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, async_trait};

use crate::access::{ClientAction, ClientIdentity};
use crate::auth::RequiredRight;
use crate::context::{ServiceContext, requires_leader};
use crate::response_body::{can_stream, send_counted};
use crate::status::ServiceError;

pub(crate) struct LeaseService {
    context: ServiceContext,
}

impl LeaseService {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context }
    }

    /// The revision of the store and the ids of all leases, if the client may see them. There may
    /// be very many: commands are applied between the steps of the check.
    async fn readable_leases(
        &self,
        client: &ClientIdentity,
    ) -> Result<(i64, Vec<i64>), ServiceError> {
        let mut checked = Vec::new();
        let mut checked_at = None;
        loop {
            let step = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| {
                let now = Some(AuthVersion::of(kv.auth()));
                if checked_at != now {
                    checked.clear();
                    checked_at = now;
                }
                let ids = kv.readable_leases(issuer, &mut checked, LEASES_AT_ONCE)?;
                // As in etcd, only the leader knows in which order they end.
                let ordered =
                    |ids| self.context.lessor.by_end(&self.context.store, kv).unwrap_or(ids);
                Ok(ids.map(|ids| (kv.revision(), ordered(ids))))
            };
            if let Some(found) = self.context.with_identity(client, step).await? {
                return Ok(found);
            }
        }
    }
}

#[async_trait]
impl Lease for LeaseService {
    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let client = self.context.admit(&request, &ClientAction::LeaseGrant).await?;
        let LeaseGrantRequest { ttl, id: requested_id } = request.into_inner();
        let ttl = ttl.max(self.context.limits.lease_ttl_min);
        loop {
            let id = if requested_id == 0 { random_id() } else { requested_id };
            let grant = LeaseGrant { id, ttl };
            if let Err(error) = check::lease_grant(&grant) {
                // As in etcd, users who are not known are told so first.
                self.context.check_right(&client, RequiredRight::AnyUser).await?;
                return Err(ServiceError::Kv(error).into());
            }
            let reply = match self.context.run_for(&client, Command::LeaseGrant(grant)).await {
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
        let client = self.context.admit(&request, &ClientAction::LeaseRevoke { id }).await?;
        let reply = self.context.run_for(&client, Command::LeaseRevoke(id)).await?;
        let header = Some(self.context.header(reply.revision));
        Ok(Response::new(LeaseRevokeResponse { header }))
    }

    type LeaseKeepAliveStream = ReceiverStream<Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let client = self.context.admit(&request, &ClientAction::LeaseKeepAlive).await?;
        let requires_leader = requires_leader(request.metadata());
        let (responses, receiver) = mpsc::channel(RESPONSES_QUEUED_MAX);
        let context = self.context.clone();
        tokio::spawn(async move {
            let rights = RenewalRights::new(&context, client).await;
            tokio::select! {
                () = keep_alive(&rights, request.into_inner(), &responses) => {}
                error = rights.lost() => {
                    let _ = responses.try_send(Err(error.into()));
                }
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
        let is_streamed = can_stream(&request);
        let action = ClientAction::LeaseTimeToLive { id, keys };
        let client = self.context.admit(&request, &action).await?;
        self.context.catch_up().await?;
        let look_up = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| look_up_lease(kv, issuer, id, keys);
        // Before the leader is asked: a client without rights costs no round trip.
        let check = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| check_lease(kv, issuer, id, keys);
        self.context.with_identity(&client, check).await?;
        let time_left = ask_leader(&self.context, LeaseQuery::TimeLeft(id)).await?;
        let lease = self.context.with_identity(&client, look_up).await?;
        let revision = self.context.store.read_when_free().await.revision();
        let mut response = LeaseTimeToLiveResponse {
            header: Some(self.context.header(revision)),
            id,
            ttl: -1,
            granted_ttl: 0,
            keys: Vec::new(),
        };
        if let (Some(time_left), Some(lease)) = (time_left, lease) {
            response.ttl = time_left;
            response.granted_ttl = lease.granted_ttl;
            response.keys = lease.keys;
        }
        send_counted(&self.context.responses, response, is_streamed).await
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        let client = self.context.admit(&request, &ClientAction::LeaseLeases).await?;
        let is_streamed = can_stream(&request);
        self.context.catch_up().await?;
        let (revision, ids) = self.readable_leases(&client).await?;
        let header = Some(self.context.header(revision));
        let leases = ids.into_iter().map(|id| LeaseStatus { id }).collect();
        let response = LeaseLeasesResponse { header, leases };
        send_counted(&self.context.responses, response, is_streamed).await
    }
}

/// Renews leases, several at a time and answers in order: a renewal takes a round trip between
/// the members, and a client may have very many leases. A client that sends faster is blocked
/// (backpressure).
async fn keep_alive(
    rights: &RenewalRights,
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
            let rights = rights.clone();
            let renewal = tokio::spawn(async move {
                rights.check(id).await?;
                renew(rights.context(), id).await
            });
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
    let header = Some(context.header(context.store.read_when_free().await.revision()));
    // A lease that does not exist is answered with a TTL of 0, which is no error.
    let ttl = ask_leader(context, LeaseQuery::Renew(id)).await?.unwrap_or(0);
    Ok(LeaseKeepAliveResponse { header, id, ttl })
}

/// What a response says about a lease.
struct LeaseShown {
    granted_ttl: i64,
    keys: Vec<Bytes>,
}

/// The lease, if it exists and the issuer may see it: with its keys, only if the issuer may read
/// all of them.
fn look_up_lease(
    kv: &Kv<AnyTable>,
    issuer: Issuer<'_>,
    id: i64,
    keys: bool,
) -> Result<Option<LeaseShown>, ServiceError> {
    check_lease(kv, issuer, id, keys)?;
    Ok(kv.lease(id).map(|lease| LeaseShown {
        granted_ttl: lease.ttl,
        keys: match keys {
            true => lease.keys().map(Bytes::copy_from_slice).collect(),
            false => Vec::new(),
        },
    }))
}

fn check_lease(
    kv: &Kv<AnyTable>,
    issuer: Issuer<'_>,
    id: i64,
    keys: bool,
) -> Result<(), ServiceError> {
    kv.auth().check_known(issuer)?;
    if keys {
        kv.check_query(issuer, &Query::Lease(id))?;
    }
    Ok(())
}

/// A random positive id. A collision is next to impossible.
fn random_id() -> i64 {
    (RandomState::new().hash_one(std::time::SystemTime::now()) >> 1).max(1) as i64
}

/// Leases that are checked before commands may be applied in between.
const LEASES_AT_ONCE: usize = 10_000;
const RESPONSES_QUEUED_MAX: usize = 16;
/// Leases of one stream that are renewed at the same time.
const RENEWALS_AT_ONCE: usize = 256;
