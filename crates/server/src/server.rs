//! A running server: how its parts are put together, and its graceful shutdown.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quorate::storage::{FileDisk, MovedDirectory, StoreConfig};
use quorate::tls::TlsConfigError;
use quorate::transport::RejectReason;
use quorate::{DirectoryStorage, Node, NodeError, StopReason, TcpConfig, TcpTransport};
use quorate_kv::{SUPPORTED_VERSIONS, TableError};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_stream::{Stream, StreamExt};

use crate::auth::audit::{AuditLog, AuditedService};
use crate::auth::{Auth, AuthConfigError};
use crate::bootstrap::{BootstrapError, TAIL_BYTES_MAX, hex, prepare, store_directory};
use crate::config::{ServerConfig, TableKind};
use crate::connections::{
    ClientListener, ConnectionLimit, FileLimits, accept_connections, addresses, bind_all,
};
use crate::context::{ServiceContext, ServiceLimits, SharedStore};
use crate::corruption::{DataMismatch, check_initially};
use crate::front::{Front, UnaryCalls};
use crate::gateway::Gateway;
use crate::grpc_guard::GrpcGuard;
use crate::http::{HttpState, client_router, metrics_router};
use crate::member_details::{MemberDetails, address_of};
use crate::metrics::{CountedService, MeteredConnection, ServerMetrics, Traffic};
use crate::overview::ClusterOverview;
use crate::recover::{RecoverError, adopt_etcd_member, finish_interrupted, force_new_cluster};
use crate::request_kinds::{OnlyKinds, RequestKinds};
use crate::service::dispatch::Dispatch;
use crate::service::kv::KvService;
use crate::service::{kv_service, message_bytes_max, routes};
use crate::shutdown::{
    LeadershipTransfer, ShutdownSignals, decline_leadership, transfer_leadership,
};
use crate::systemd::notify;
use crate::table::{OpenedTable, open_table};
use crate::tls::{Handshakes, client_acceptor, peer_security};
use crate::url::{Url, join};
use crate::{background, logs};

/// Runs a server until a signal stops it, its member is removed, or its member fails.
pub async fn run(config: ServerConfig) -> Result<(), ServerError> {
    logs::start(&config.log_level, config.log_format, &config.log_outputs)
        .map_err(ServerError::System)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let mut signals = ShutdownSignals::listen().map_err(ServerError::System)?;
    let running = tokio::select! {
        started = RunningServer::start(config) => started?,
        signal = signals.next() => {
            tracing::info!(signal, "received a signal before the start was complete; stopping");
            return Ok(());
        }
    };
    let ended = tokio::select! {
        ended = running.node.wait_stopped() => ShutdownCause::Member(ended),
        () = running.removed() => ShutdownCause::Removed,
        signal = signals.next() => {
            tracing::info!(signal, "received a signal; shutting down");
            ShutdownCause::Signal
        }
        never = announce_ready(&running) => match never {},
    };
    notify("STOPPING=1");
    tokio::select! {
        () = running.stop() => {}
        signal = signals.next() => {
            tracing::warn!(signal, "received a second signal; stopping immediately");
            return Err(ServerError::Interrupted);
        }
    }
    match ended {
        ShutdownCause::Member(ended) if !matches!(ended, StopReason::Stopped) => {
            Err(ServerError::Ended(ended))
        }
        ShutdownCause::Removed => Err(ServerError::Removed),
        ShutdownCause::Member(_) | ShutdownCause::Signal => Ok(()),
    }
}

/// Why a server shuts down.
enum ShutdownCause {
    /// Its member has stopped by itself.
    Member(StopReason),
    /// Its member was removed, while it ran or before.
    Removed,
    Signal,
}

/// Tells the log and systemd when clients can use this server, and runs on.
async fn announce_ready(running: &RunningServer) -> Infallible {
    running.wait_ready().await;
    running.wait_published().await;
    for address in &running.client_addresses {
        tracing::info!(address = %address, name = running.name, member_id = %running.node.id(),
            cluster = %hex(running.context.cluster_id), "ready to serve client requests");
    }
    if running.client_addresses.is_empty() {
        tracing::info!(name = running.name, "ready to serve client requests on sockets in files");
    }
    notify("READY=1");
    std::future::pending().await
}

/// A server that serves until it is stopped.
pub struct RunningServer {
    name: String,
    node: Node,
    /// Whether a peer has rejected this member as removed.
    rejected: watch::Receiver<bool>,
    context: ServiceContext,
    peer_address: SocketAddr,
    client_addresses: Vec<SocketAddr>,
    http_addresses: Vec<SocketAddr>,
    metrics_addresses: Vec<SocketAddr>,
    console_addresses: Vec<SocketAddr>,
    stopping: watch::Sender<bool>,
    drain_timeout: Duration,
    serving: Vec<JoinHandle<()>>,
    background: JoinHandle<()>,
}

/// The bound ports, by what they serve.
struct Listeners {
    clients: Vec<(ClientListener, RequestKinds)>,
    metrics: Vec<ClientListener>,
    console: Vec<ClientListener>,
}

impl RunningServer {
    /// The server serves when this returns. It may not have found a leader yet.
    pub async fn start(config: ServerConfig) -> Result<Self, ServerError> {
        let metrics = Arc::new(ServerMetrics::new(config.extensive_metrics));
        let (rejected_sender, rejected) = watch::channel(false);
        let transport = bind_peers(&config, &metrics, rejected_sender).await?;
        let peer_address = transport.local_address();
        let acceptor = client_acceptor(&config).map_err(ServerError::Tls)?;
        let client_listeners = bind_all(&config.listen_client_urls, acceptor.as_ref()).await?;
        let http_listeners = bind_all(&config.listen_client_http_urls, acceptor.as_ref()).await?;
        let metrics_listeners = bind_all(&config.listen_metrics_urls, acceptor.as_ref()).await?;
        let console_listeners = bind_all(&config.listen_console_urls, acceptor.as_ref()).await?;
        let mut auth = Auth::new(&config.auth).map_err(ServerError::Auth)?;
        auth.trusts_certificates = config.client_security.settings.client_cert_auth;
        let audit_log = config.auth.audit_log.as_deref().map(AuditLog::open).transpose();
        let audit_log = audit_log.map_err(ServerError::System)?;
        finish_interrupted(&config).map_err(ServerError::Recover)?;
        adopt_etcd_member(&config).map_err(ServerError::Recover)?;
        if config.force_new_cluster {
            force_new_cluster(&config).map_err(ServerError::Recover)?;
        }
        let mut node_config = prepare(&config, &transport).await?;
        node_config.versions = SUPPORTED_VERSIONS;
        node_config.observer = Arc::clone(&metrics) as Arc<dyn quorate::metrics::NodeObserver>;
        let cluster_id = node_config.cluster;
        let disk = FileDisk::open(store_directory(&config)).map_err(ServerError::System)?;
        let storage = DirectoryStorage::with_disk(disk, store_config(&config));
        let OpenedTable { kv, row_file } = open_table(&config).await?;
        let store = SharedStore::new(kv);
        // No request of a client delays a heartbeat.
        node_config.own_threads = true;
        // Commands on a table in a file wait for the disk.
        node_config.machine_blocks = config.table == TableKind::Redb;
        let node = Node::start(node_config, storage, store.clone(), transport).await?;
        apply_own_log(&node).await;
        let context = ServiceContext::new(node.clone(), store, cluster_id, limits(&config))
            .with_open_listeners(warn_of_plaintext(&config), warn_of_unverified(&config))
            .with_auth(auth, audit_log)
            .with_row_file(row_file)
            .with_overview(ClusterOverview::new(Arc::clone(&metrics), config.data_dir.clone()));
        if config.corruption_checks.initial
            && let Err(mismatch) = check_initially(&context).await
        {
            node.stop_now().await;
            node.host().clone().stop().await;
            return Err(ServerError::Corrupt(mismatch));
        }
        let (stopping, _) = watch::channel(false);
        let mut server = Self {
            background: tokio::spawn(background::run(context.clone(), config.clone())),
            client_addresses: addresses(&client_listeners)?,
            http_addresses: addresses(&http_listeners)?,
            metrics_addresses: addresses(&metrics_listeners)?,
            console_addresses: addresses(&console_listeners)?,
            name: config.name.clone(),
            peer_address,
            rejected,
            node,
            context,
            stopping,
            drain_timeout: config.drain_timeout,
            serving: Vec::new(),
        };
        let mut clients: Vec<_> =
            client_listeners.into_iter().map(|one| (one, config.client_requests())).collect();
        clients.extend(http_listeners.into_iter().map(|one| (one, RequestKinds::Http)));
        let listeners =
            Listeners { clients, metrics: metrics_listeners, console: console_listeners };
        server.serve(listeners, &config, metrics);
        Ok(server)
    }

    fn serve(&mut self, listeners: Listeners, config: &ServerConfig, metrics: Arc<ServerMetrics>) {
        let state = HttpState { context: self.context.clone(), metrics: Arc::clone(&metrics) };
        let services = routes(&self.context, config).into_axum_router().reset_fallback();
        let has_own_port = !listeners.console.is_empty();
        let has_console = config.enable_grpc_gateway && !has_own_port;
        let console = services.clone().merge(client_router(state.clone(), true));
        let router = services.merge(client_router(state.clone(), has_console));
        let audit_log = self.context.audit_log.clone();
        let (awaited, bytes_max) =
            (&self.context.awaited_requests, message_bytes_max(&self.context));
        let counted = |dispatch| {
            let audited = AuditedService::new(dispatch, audit_log.clone());
            let guarded = GrpcGuard::new(audited, awaited.clone(), bytes_max);
            CountedService::new(guarded, Arc::clone(&metrics.calls))
        };
        let router = counted(Dispatch::new(Some(kv_service(&self.context)), router.into()));
        let router = Gateway::new(router, self.context.clone(), config, bytes_max);
        let console = counted(Dispatch::new(Some(kv_service(&self.context)), console.into()));
        let console = Gateway::new(console, self.context.clone(), config, bytes_max).for_console();
        let metrics_router = counted(Dispatch::new(None, metrics_router(state).into()));
        let streams_max = config.max_concurrent_streams;
        let files = FileLimits::of_process();
        let limit = ConnectionLimit::new(files.clients());
        let handshakes = Handshakes::new(files.handshakes(), Arc::clone(&metrics.handshakes));
        // The audit log is written by the layers of the router.
        let unary = audit_log.is_none().then(|| {
            let service = KvService::new(self.context.clone());
            UnaryCalls::new(service, Arc::clone(&metrics.calls), bytes_max)
        });
        let clients = listeners.clients.into_iter();
        let clients = clients.map(|(one, kinds)| (one, &router, kinds, unary.clone()));
        let consoles = listeners.console.into_iter();
        let consoles = consoles.map(|one| (one, &console, RequestKinds::All, None));
        for (listener, router, kinds, unary) in clients.chain(consoles) {
            let (incoming, accepting) =
                incoming(listener, &limit, &handshakes, Arc::clone(&metrics.traffic));
            let unary = unary.filter(|_| kinds != RequestKinds::Http);
            let router = OnlyKinds::new(router.clone(), kinds);
            let front = Front { router, unary, streams_max, stopping: self.stopping.subscribe() };
            self.serving.extend([tokio::spawn(front.serve(incoming)), accepting]);
        }
        let limit = ConnectionLimit::new(files.metrics());
        let handshakes = Handshakes::new(files.metrics(), Arc::default());
        for listener in listeners.metrics {
            // Bytes on these ports are not clients' traffic.
            let (incoming, accepting) =
                incoming(listener, &limit, &handshakes, Arc::new(Traffic::default()));
            let (router, stopping) = (metrics_router.clone(), self.stopping.subscribe());
            let front = Front { router, unary: None, streams_max, stopping };
            self.serving.extend([tokio::spawn(front.serve(incoming)), accepting]);
        }
        for address in &self.client_addresses {
            tracing::info!(address = %address, "accepting client connections");
        }
    }

    /// The node of this server's member.
    pub fn node(&self) -> &Node {
        &self.node
    }

    pub fn cluster_id(&self) -> u64 {
        self.context.cluster_id
    }

    /// The data of this member. Change it only through the log.
    pub fn store(&self) -> &SharedStore {
        &self.context.store
    }

    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    pub fn client_addresses(&self) -> &[SocketAddr] {
        &self.client_addresses
    }

    /// Those of `--listen-client-http-urls`.
    pub fn http_addresses(&self) -> &[SocketAddr] {
        &self.http_addresses
    }

    pub fn console_addresses(&self) -> &[SocketAddr] {
        &self.console_addresses
    }

    pub fn metrics_addresses(&self) -> &[SocketAddr] {
        &self.metrics_addresses
    }

    /// Waits until this member has joined a cluster with a quorum and has applied everything
    /// that was committed before: from then on it serves all requests.
    pub async fn wait_ready(&self) {
        while let Err(error) = self.node.barrier().await {
            tracing::warn!(reason = %error, "not ready: waiting until a majority of the members \
                runs and can be reached");
            tokio::time::sleep(READY_RETRY_INTERVAL).await;
        }
    }

    /// Waits until this member is listed with its name and client URLs. etcd says that it is
    /// ready only then.
    async fn wait_published(&self) {
        let mut changes = self.node.watch_membership();
        let is_listed = || {
            let details = MemberDetails::of(&self.node.membership(), self.node.id());
            details.has_started() && details.name == self.name
        };
        while !is_listed() && changes.next().await.is_some() {}
    }

    /// Waits until this member knows that it was removed from the cluster: from its log, or from
    /// another member if it was removed while it did not run or before the last entry reached it.
    pub async fn removed(&self) {
        tokio::select! {
            () = self.left_the_membership() => {}
            () = self.rejected_as_removed() => {}
        }
    }

    /// Waits until another member says that this one was removed. A member that hears from a leader is a member, whatever another one says.
    async fn rejected_as_removed(&self) {
        let mut rejected = self.rejected.clone();
        loop {
            let is_rejected = rejected.wait_for(|rejected| *rejected).await.is_ok();
            if is_rejected && self.node.leader().is_none() {
                break;
            }
            tokio::time::sleep(READY_RETRY_INTERVAL).await;
        }
        let member = self.node.id();
        tracing::error!(%member, "{REMOVED}; its data directory is of no further use");
    }

    /// Waits until this member was in the membership and has been removed from it.
    async fn left_the_membership(&self) {
        let node = &self.node;
        let mut events = node.watch_membership();
        let mut was_member = false;
        while events.next().await.is_some() {
            let membership = node.membership();
            was_member |= membership.contains(node.id());
            let has_left = was_member && !membership.contains(node.id());
            if has_left || membership.removed().contains(&node.id()) {
                let member_id = node.id();
                tracing::error!(member = %member_id, "{REMOVED}");
                return;
            }
        }
        // The member has stopped, which `Node::wait_stopped` reports.
        std::future::pending().await
    }

    /// Makes health checks tell clients to use other members, and transfers leadership. Requests
    /// are served as before.
    pub async fn leave(&self) -> LeadershipTransfer {
        self.context.leave();
        transfer_leadership(&self.node).await
    }

    /// Graceful shutdown: leaves, accepts no further requests, finishes those in progress, and
    /// stops. Requests that take longer than the drain timeout are cut off.
    pub async fn stop(self) {
        self.background.abort();
        self.leave().await;
        self.stopping.send_replace(true);
        self.context.close();
        tokio::select! {
            () = drain(self.serving, self.drain_timeout) => {}
            () = decline_leadership(&self.node) => {}
        }
        self.node.stop_now().await;
        self.node.host().clone().stop().await;
    }

    /// Stops immediately, as if the process were killed: leadership is not transferred, and
    /// requests in progress are cut off.
    pub async fn stop_now(self) {
        self.background.abort();
        self.serving.iter().for_each(JoinHandle::abort);
        self.node.stop_now().await;
        self.node.host().clone().stop().await;
        for task in self.serving {
            ended(task).await;
        }
    }
}

/// The only voter knows that its whole log is committed: it serves nothing before it has applied
/// all of it, since its clients have seen it. Others may not know what is committed before they
/// hear from a leader.
async fn apply_own_log(node: &Node) {
    let is_alone = || {
        let membership = node.membership();
        membership.is_single() && membership.is_voter(node.id())
    };
    let applied = async {
        while is_alone() && node.barrier().await.is_err() {
            tokio::time::sleep(READY_RETRY_INTERVAL).await;
        }
    };
    tokio::select! {
        () = applied => {}
        _ = node.wait_stopped() => {}
    }
}

/// Waits for the requests in progress, up to the timeout.
async fn drain(serving: Vec<JoinHandle<()>>, timeout: Duration) {
    let deadline = Instant::now() + timeout;
    for mut task in serving {
        if timeout_at(deadline, &mut task).await.is_err() {
            tracing::warn!("the drain timeout has passed; requests in progress were cut off");
            task.abort();
            ended(task).await;
        }
    }
}

/// Waits for the end of an aborted task. Only then its listener is closed, and its address can be used
/// again.
async fn ended(task: JoinHandle<()>) {
    let _ = task.await;
}

impl fmt::Debug for RunningServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningServer").field("node", &self.node).finish_non_exhaustive()
    }
}

fn store_config(config: &ServerConfig) -> StoreConfig {
    let moved = match config.allow_moved_data_dir {
        true => MovedDirectory::Accept,
        false => MovedDirectory::Refuse,
    };
    StoreConfig::new().moved(moved).tail_bytes_max(TAIL_BYTES_MAX)
}

fn incoming(
    listener: ClientListener,
    limit: &ConnectionLimit,
    handshakes: &Handshakes,
    traffic: Arc<Traffic>,
) -> (impl Stream<Item = io::Result<MeteredConnection>> + use<>, JoinHandle<()>) {
    let metered = move |client| MeteredConnection::new(client, Arc::clone(&traffic));
    let (accepted, accepting) = accept_connections(listener, limit.clone(), handshakes);
    (accepted.map(move |client| client.map(&metered)), accepting)
}

async fn bind_peers(
    config: &ServerConfig,
    metrics: &Arc<ServerMetrics>,
    rejected: watch::Sender<bool>,
) -> Result<TcpTransport, ServerError> {
    let urls = &config.listen_peer_urls;
    let failed = |error| ServerError::Bind { url: join(urls), error };
    let mut listeners = Vec::new();
    for url in urls {
        listeners.push((url.resolve().await.map_err(failed)?, url.is_tls()));
    }
    let Some(((first, _), others)) = listeners.split_first() else {
        return Err(failed(io::Error::other("no peer URL to listen on")));
    };
    let mut tcp = TcpConfig::new(*first);
    tcp.listen_also = others.iter().map(|(address, _)| *address).collect();
    tcp.security = Arc::new(peer_security(config, listeners).map_err(ServerError::Tls)?);
    tcp.buffered_bytes_max = config.max_peer_buffered_bytes;
    tcp.unidentified_max = FileLimits::of_process().unidentified_peers();
    tcp.resolve_address = Arc::new(address_of);
    let metrics = Arc::clone(metrics);
    tcp.on_round_trip = Arc::new(move |address, duration| metrics.on_round_trip(address, duration));
    tcp.on_rejected = Arc::new(move |_, _, reason| {
        if reason == RejectReason::Removed {
            rejected.send_replace(true);
        }
    });
    let advertised = config.initial_advertise_peer_urls.first();
    tcp.advertise = advertised.map(Url::peer_address).unwrap_or_default();
    TcpTransport::bind(tcp).await.map_err(failed)
}

/// Warns of each listener that other machines can reach, and that does not use TLS.
fn warn_of_plaintext(config: &ServerConfig) -> Vec<(&'static str, Url)> {
    let listeners = config.plaintext_listeners();
    for (kind, url) in &listeners {
        tracing::warn!(kind, %url, "NO TLS: everyone who can reach this address can read the \
            traffic, and connect without a certificate; use an https URL with a certificate, or \
            a loopback address");
    }
    listeners
}

/// Warns of each listener that other machines can reach, and that asks for no certificate.
fn warn_of_unverified(config: &ServerConfig) -> Vec<(&'static str, Url)> {
    let listeners = config.unverified_listeners();
    for (kind, url) in &listeners {
        let advice = match *kind {
            "peer" => "use --peer-trusted-ca-file",
            "client" | "console" => "use --trusted-ca-file, or enable authentication",
            _ => "use --trusted-ca-file",
        };
        tracing::warn!(kind, %url, advice, "NO CLIENT CERTIFICATES: connections to this address \
            are encrypted, but everyone who can reach it is accepted");
    }
    listeners
}

fn limits(config: &ServerConfig) -> ServiceLimits {
    let seconds = config.election_timeout.as_secs_f64() * 1.5;
    ServiceLimits {
        etcd_release: config.etcd_release,
        request_bytes_max: config.max_request_bytes,
        response_memory_max: config.max_response_memory,
        txn_requests_max: config.max_txn_ops,
        learner_reads: config.learner_reads,
        watch_progress_interval: config.watch_progress_notify_interval,
        lease_ttl_min: seconds.ceil() as i64,
        lease_grace: config.election_timeout,
        heartbeat_interval: config.heartbeat_interval,
        ..ServiceLimits::default()
    }
}

/// Why a server does not start, or has stopped.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServerError {
    /// Which member to start could not be decided.
    Bootstrap(BootstrapError),
    /// A listener could not be opened.
    Bind {
        url: String,
        error: io::Error,
    },
    /// TLS cannot be used as configured.
    Tls(TlsConfigError),
    Node(NodeError),
    Table(TableError),
    System(io::Error),
    /// The member failed.
    Ended(StopReason),
    /// The member was removed from its cluster while it did not run.
    Removed,
    /// A second signal stopped the server before its graceful shutdown was complete.
    Interrupted,
    /// No new cluster could be made from the data directory.
    Recover(RecoverError),
    /// The keys of tokens cannot be used.
    Auth(AuthConfigError),
    /// The data of this member differs from the leader's.
    Corrupt(DataMismatch),
}

impl From<BootstrapError> for ServerError {
    fn from(error: BootstrapError) -> Self {
        Self::Bootstrap(error)
    }
}

impl From<NodeError> for ServerError {
    fn from(error: NodeError) -> Self {
        Self::Node(error)
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bootstrap(error) => write!(f, "{error}"),
            Self::Bind { url, error } => write!(f, "cannot listen on {url}: {error}"),
            Self::Tls(error) => write!(f, "TLS: {error}"),
            Self::Node(error) => write!(f, "{error}"),
            Self::Table(error) => write!(f, "{error}"),
            Self::System(error) => write!(f, "{error}"),
            Self::Ended(ended) => write!(f, "the member has stopped: {ended}"),
            Self::Removed => write!(
                f,
                "{REMOVED}; to use this machine again, add it as a new member with an empty data \
                 directory ('quorate member add')"
            ),
            Self::Interrupted => f.write_str("a second signal interrupted the graceful shutdown"),
            Self::Recover(error) => write!(f, "{error}"),
            Self::Auth(error) => write!(f, "{error}"),
            Self::Corrupt(mismatch) => write!(f, "{mismatch}"),
        }
    }
}

impl std::error::Error for ServerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bootstrap(error) => Some(error),
            Self::Bind { error, .. } | Self::System(error) => Some(error),
            Self::Tls(error) => Some(error),
            Self::Node(error) => Some(error),
            Self::Table(error) => Some(error),
            Self::Recover(error) => Some(error),
            Self::Auth(error) => Some(error),
            Self::Ended(_) | Self::Interrupted | Self::Removed | Self::Corrupt(_) => None,
        }
    }
}

/// etcd's text.
const REMOVED: &str = "the member has been permanently removed from the cluster";
const READY_RETRY_INTERVAL: Duration = Duration::from_millis(100);
