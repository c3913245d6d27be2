//! What every service holds: the member, its data, its limits, and the checks that each
//! request passes first.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{Extensions, HeaderMap};
use quorate::{CommandBuffer, Node};
use quorate_kv::{
    AnyTable, Command, CommandIssuer, CommandObserver, KvCommandReply, KvError, Query, RowFile,
    SharedKv, check,
};
use quorate_proto::etcdserverpb::ResponseHeader;
use quorate_proto::quorate::v1;
use tokio::sync::watch;
use tonic::Request;
use tonic::metadata::MetadataMap;

use crate::access::{AccessPolicy, AllowAll, ClientAction, ClientIdentity, ServedBy};
use crate::auth::audit::{self, AuditLog};
use crate::auth::{Auth, TokenProvider};
use crate::etcd_release::EtcdRelease;
use crate::metrics::{CommandMetrics, ServiceCounters};
use crate::overview::ClusterOverview;
use crate::request_budget::AwaitedRequests;
use crate::response_budget::ResponseBudget;
use crate::service::kv::ReadTurns;
use crate::service::lease::LessorHandle;
use crate::status::ServiceError;
use crate::url::Url;

/// The data of this member, shared with the node that applies commands to it.
pub type SharedStore = SharedKv<AnyTable>;

/// What every service holds. Cheap to clone.
#[derive(Clone)]
pub struct ServiceContext {
    pub(crate) node: Node,
    pub(crate) store: SharedStore,
    pub(crate) cluster_id: u64,
    pub(crate) limits: Arc<ServiceLimits>,
    pub(crate) lessor: Arc<LessorHandle>,
    pub(crate) counters: Arc<ServiceCounters>,
    pub(crate) commands: Arc<CommandMetrics>,
    pub(crate) overview: Arc<ClusterOverview>,
    pub(crate) row_file: Option<RowFile>,
    pub(crate) reads: Arc<ReadTurns>,
    pub(crate) responses: Arc<ResponseBudget>,
    pub(crate) awaited_requests: AwaitedRequests,
    /// Where this member listens without TLS for other machines: the kind and the URL.
    pub(crate) plaintext_listeners: Arc<[(&'static str, Url)]>,
    /// Listeners with TLS that ask for no certificate and that other machines can reach.
    without_certificates: Arc<[(&'static str, Url)]>,
    pub(crate) auth: Arc<Auth>,
    pub(crate) audit_log: Option<Arc<AuditLog>>,
    /// Whether this member has applied everything that was committed when it started.
    caught_up: Arc<AtomicBool>,
    policy: Arc<dyn AccessPolicy>,
    stage: Arc<watch::Sender<ServingStage>>,
}

/// Who makes a call, as its headers and its connection tell.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) client: ClientIdentity,
    /// The client prefers an error over waiting while there is no leader.
    pub(crate) requires_leader: bool,
}

impl Caller {
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        Self::from_parts(request.metadata().as_ref(), request.extensions())
    }

    /// The same from the parts of a request.
    pub(crate) fn from_parts(headers: &HeaderMap, extensions: &Extensions) -> Self {
        let requires_leader = headers.get(HAS_LEADER).is_some_and(|value| value == "true");
        Self { client: ClientIdentity::from_parts(headers, extensions), requires_leader }
    }
}

/// How far the shutdown of a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ServingStage {
    Serving,
    /// It serves, and its health checks tell clients to use other members.
    Leaving,
    /// It finishes requests in progress and ends its streams.
    Closing,
}

/// Limits of requests, intervals, and the reported version. The defaults are etcd's.
#[derive(Clone, Debug)]
pub struct ServiceLimits {
    /// The release of etcd that is reported as the version of this server.
    pub etcd_release: EtcdRelease,
    /// The size of the largest command.
    pub request_bytes_max: usize,
    /// Requests in one branch of a transaction.
    pub txn_requests_max: usize,
    /// Learners also serve linearizable reads and watches.
    pub learner_reads: bool,
    /// The memory that responses may take until their clients have read them.
    pub response_memory_max: u64,
    /// How often a watch that asked for it is told that nothing happened.
    pub watch_progress_interval: Duration,
    /// The shortest lease, in seconds. It must be longer than an election takes: otherwise
    /// leases would expire because no leader could renew them.
    pub lease_ttl_min: i64,
    /// How much a new leader extends all leases, so that their owners have time to find it.
    pub lease_grace: Duration,
    /// The time between heartbeats of the leader, which is the tick of Raft.
    pub heartbeat_interval: Duration,
    /// How often the remaining time of long leases is logged for later leaders.
    pub lease_checkpoint_interval: Duration,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            etcd_release: EtcdRelease::default(),
            request_bytes_max: 3 << 19,
            txn_requests_max: check::TXN_REQUESTS_MAX,
            learner_reads: false,
            response_memory_max: RESPONSE_MEMORY_DEFAULT,
            watch_progress_interval: Duration::from_secs(600),
            lease_ttl_min: 2,
            lease_grace: Duration::from_secs(1),
            heartbeat_interval: Duration::from_millis(100),
            lease_checkpoint_interval: Duration::from_secs(300),
        }
    }
}

/// Requests that have not arrived completely have half as much memory as responses; always
/// enough for several.
fn awaited_bytes_max(limits: &ServiceLimits) -> usize {
    let bytes = usize::try_from(limits.response_memory_max / 2).unwrap_or(usize::MAX);
    bytes.max(limits.request_bytes_max.saturating_mul(8))
}

impl ServiceContext {
    /// A context that allows every request.
    pub fn new(node: Node, store: SharedStore, cluster_id: u64, limits: ServiceLimits) -> Self {
        let commands = Arc::new(CommandMetrics::default());
        store.observe(Arc::clone(&commands) as Arc<dyn CommandObserver>);
        Self {
            node,
            store,
            cluster_id,
            commands,
            overview: Arc::default(),
            row_file: None,
            reads: Arc::default(),
            responses: Arc::new(ResponseBudget::new(limits.response_memory_max)),
            awaited_requests: AwaitedRequests::new(awaited_bytes_max(&limits)),
            lessor: Arc::new(LessorHandle::new(&limits)),
            limits: Arc::new(limits),
            counters: Arc::default(),
            plaintext_listeners: Arc::default(),
            without_certificates: Arc::default(),
            auth: Arc::default(),
            audit_log: None,
            caught_up: Arc::default(),
            policy: Arc::new(AllowAll),
            stage: Arc::new(watch::Sender::new(ServingStage::Serving)),
        }
    }

    /// The same context with these listeners in its status: those without TLS, and those that ask
    /// for no certificate.
    pub(crate) fn with_open_listeners(
        self,
        plaintext: Vec<(&'static str, Url)>,
        without_certificates: Vec<(&'static str, Url)>,
    ) -> Self {
        let (plaintext, without) = (plaintext.into(), without_certificates.into());
        Self { plaintext_listeners: plaintext, without_certificates: without, ..self }
    }

    /// The listeners with TLS that verify nobody: neither certificates nor, with authentication,
    /// users.
    pub(crate) fn unverified_listeners(&self) -> impl Iterator<Item = &(&'static str, Url)> {
        let has_users = self.store.auth_version().enabled;
        let asks_users = move |kind: &str| has_users && (kind == "client" || kind == "console");
        self.without_certificates.iter().filter(move |(kind, _)| !asks_users(kind))
    }

    /// The same context with what a server measures, for reports to other members.
    #[must_use]
    pub(crate) fn with_overview(self, overview: ClusterOverview) -> Self {
        Self { overview: Arc::new(overview), ..self }
    }

    /// The same context with the file of the table's old rows, for metrics.
    #[must_use]
    pub(crate) fn with_row_file(self, row_file: Option<RowFile>) -> Self {
        Self { row_file, ..self }
    }

    /// The same context with another policy. Services made from it afterwards use it.
    #[must_use]
    pub fn with_policy(self, policy: Arc<dyn AccessPolicy>) -> Self {
        Self { policy, ..self }
    }

    /// The same context with these tokens and passwords, and this audit log.
    #[must_use]
    pub(crate) fn with_auth(self, auth: Auth, audit_log: Option<Arc<AuditLog>>) -> Self {
        Self { auth: Arc::new(auth), audit_log, ..self }
    }

    /// The header of a reply at this revision.
    pub(crate) fn header(&self, revision: i64) -> ResponseHeader {
        audit::note(|entry| entry.revision = Some(revision).filter(|revision| *revision > 0));
        ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.node.id().0,
            revision,
            raft_term: self.node.term(),
        }
    }

    /// The header of replies of `quorate.v1`.
    pub(crate) fn membership_header(&self) -> Option<v1::Header> {
        Some(v1::Header {
            cluster_id: self.cluster_id,
            member_id: self.node.id().0,
            term: self.node.term(),
            leader_id: self.node.leader().map_or(0, |leader| leader.0),
        })
    }

    /// The check that every service method calls first: may this member serve the request
    /// now, and may this client make it? In etcd's order.
    ///
    /// The returned future does not borrow the request: requests of streams cannot be shared
    /// between threads.
    pub(crate) fn admit<'s, T>(
        &'s self,
        request: &Request<T>,
        action: &ClientAction<'_>,
    ) -> impl Future<Output = Result<ClientIdentity, ServiceError>> + Send + use<'s, T> {
        self.admit_caller(Caller::of(request), action)
    }

    /// The same without a request of gRPC's library.
    pub(crate) fn admit_caller<'s>(
        &'s self,
        caller: Caller,
        action: &ClientAction<'_>,
    ) -> impl Future<Output = Result<ClientIdentity, ServiceError>> + Send + use<'s> {
        let client = self.admit_by_policy(caller, action);
        let right = action.required_right();
        // Nothing checks these again when they are carried out, and this member may not know the
        // newest users and roles.
        let needs_newest_rights = matches!(
            action,
            ClientAction::MemberChange | ClientAction::MoveLeader | ClientAction::Downgrade
        );
        async move {
            let client = client?;
            if needs_newest_rights {
                self.catch_up().await?;
            }
            self.check_right(&client, right).await?;
            Ok(client)
        }
    }

    fn admit_by_policy(
        &self,
        caller: Caller,
        action: &ClientAction<'_>,
    ) -> Result<ClientIdentity, ServiceError> {
        let Caller { client, requires_leader } = caller;
        audit::note_action(&client, action);
        let served_by = action.served_by();
        let served_by_learners = match served_by {
            ServedBy::Always | ServedBy::Member => true,
            ServedBy::Reader => self.limits.learner_reads,
            ServedBy::Voter => false,
        };
        if !served_by_learners && self.is_learner() {
            return Err(ServiceError::NotServedByLearners);
        }
        let needs_leader = served_by != ServedBy::Always && requires_leader;
        if needs_leader && self.node.leader().is_none() {
            return Err(ServiceError::NoLeader);
        }
        self.authorize(&client, action)?;
        Ok(client)
    }

    /// Whether the policy of the server lets this client do this. `admit` calls it for each call;
    /// a stream calls it again for each request on it that names keys.
    pub(crate) fn authorize(
        &self,
        client: &ClientIdentity,
        action: &ClientAction<'_>,
    ) -> Result<(), ServiceError> {
        self.policy.check(client, action).map_err(ServiceError::Access)
    }

    pub(crate) fn is_learner(&self) -> bool {
        self.node.membership().is_learner(self.node.id())
    }

    /// Runs a command on every member, once, and decodes the reply of the data model.
    pub(crate) async fn run(&self, command: &Command) -> Result<KvCommandReply, ServiceError> {
        self.check_version(command)?;
        let command = encode(command);
        if command.len() > self.limits.request_bytes_max {
            return Err(ServiceError::Kv(KvError::RequestTooLarge));
        }
        decode(&self.node.propose(command).await?)
    }

    /// Runs a command on behalf of this member itself, which needs no rights.
    pub(crate) async fn run_as_member(
        &self,
        command: Command,
    ) -> Result<KvCommandReply, ServiceError> {
        self.run(&command.issued_by(CommandIssuer::Member)).await
    }

    /// Runs a command that only the leader of this term may decide on. It is refused if this
    /// member is not that leader.
    pub(crate) async fn run_in(
        &self,
        term: u64,
        command: &Command,
    ) -> Result<KvCommandReply, ServiceError> {
        self.check_version(command)?;
        let command = encode(command);
        decode(&self.node.propose_in(term, command).await?)
    }

    /// Refuses a command that not all members know. The state machine checks it again, since the
    /// cluster version may be lowered while the command is on its way.
    fn check_version(&self, command: &Command) -> Result<(), ServiceError> {
        let (needs, current) = (command.version(), self.node.cluster_version().version);
        if needs <= current {
            return Ok(());
        }
        Err(ServiceError::NeedsClusterVersion { needs, current })
    }

    /// Queries the store as it is, which may be stale.
    pub(crate) async fn look_up(&self, question: &Query) -> Result<KvCommandReply, ServiceError> {
        accepted(self.store.read_when_free().await.query(question)?)
    }

    /// A barrier for reads: after this the store shows everything that completed before the
    /// call.
    pub(crate) async fn catch_up(&self) -> Result<(), ServiceError> {
        match self.node.barrier().await {
            Ok(_) => {
                if !self.caught_up.load(Ordering::Relaxed) {
                    // Tokens of the replayed log may have expired long ago.
                    if let TokenProvider::Simple(tokens) = &self.auth.tokens {
                        tokens.learn(&self.store, false);
                    }
                    self.caught_up.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
            Err(error) => {
                ServiceCounters::increment(&self.counters.reads_not_confirmed);
                Err(error.into())
            }
        }
    }

    /// Whether this member has applied everything that was committed when it started.
    pub(crate) fn has_caught_up(&self) -> bool {
        self.caught_up.load(Ordering::Relaxed)
    }

    /// From now on health checks say that this server is leaving. It serves as before.
    pub fn leave(&self) {
        self.stage.send_replace(ServingStage::Leaving);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        *self.stage.borrow() >= ServingStage::Leaving
    }

    /// From now on streams end, so that the server can stop.
    pub fn close(&self) {
        self.stage.send_replace(ServingStage::Closing);
    }

    /// Waits until a stream has to end, and says why: the server stops, or the client requires
    /// a leader and there has been none for a while.
    pub(crate) async fn end_of_stream(&self, requires_leader: bool) -> ServiceError {
        tokio::select! {
            error = self.server_stopped() => error,
            () = self.leader_lost(), if requires_leader => ServiceError::NoLeader,
        }
    }

    /// Waits until the server stops: the end of a stream that needs no leader.
    pub(crate) async fn server_stopped(&self) -> ServiceError {
        let mut stage = self.stage.subscribe();
        tokio::select! {
            _ = stage.wait_for(|stage| *stage == ServingStage::Closing) => {}
            _ = self.node.wait_stopped() => {}
        }
        ServiceError::ServerStopped
    }

    async fn leader_lost(&self) {
        let mut leader = self.node.watch_leader();
        loop {
            if leader.wait_for(Option::is_none).await.is_err() {
                return;
            }
            let elected = leader.wait_for(Option::is_some);
            if tokio::time::timeout(LEADER_LOST_TIMEOUT, elected).await.is_err() {
                return;
            }
        }
    }
}

fn encode(command: &Command) -> CommandBuffer {
    CommandBuffer::encode_sized(command.bytes_hint(), |out| command.encode_into(out))
}

fn decode(reply: &quorate::CommandReply) -> Result<KvCommandReply, ServiceError> {
    accepted(KvCommandReply::decode(&reply.bytes).ok_or(ServiceError::UnexpectedReply)?)
}

fn accepted(reply: KvCommandReply) -> Result<KvCommandReply, ServiceError> {
    match reply.result {
        Ok(_) => Ok(reply),
        Err(error) => Err(ServiceError::Kv(error)),
    }
}

/// Whether the client prefers an error over waiting while there is no leader.
pub(crate) fn requires_leader(metadata: &MetadataMap) -> bool {
    metadata.get(HAS_LEADER).is_some_and(|value| value == "true")
}

const HAS_LEADER: &str = "hasleader";

/// 512 MiB.
pub(crate) const RESPONSE_MEMORY_DEFAULT: u64 = 512 << 20;
/// How long there may be no leader before a stream whose client requires one ends.
const LEADER_LOST_TIMEOUT: Duration = Duration::from_secs(3);
