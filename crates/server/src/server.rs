//! A running server: put together, and taken apart in good order.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quorate::{
    DirectoryStorage, FileDisk, Node, NodeError, StopReason, StoreConfig, TcpConfig, TcpTransport,
};
use quorate_kv::TableError;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;

use crate::bootstrap::{BootstrapError, hex, prepare, store_directory};
use crate::config::{Config, TableKind};
use crate::connections::{Places, accepted};
use crate::context::{Context, Limits, Store};
use crate::http::{Shown, client_router, metrics_router};
use crate::member_info::address_of;
use crate::metrics::{Counted, Measured, Metered, Traffic};
use crate::notify::notify;
use crate::recover::{RecoverError, finish, force_new_cluster};
use crate::service::desk::Desk;
use crate::service::{keys, routes};
use crate::stopping::{Signals, hand_over, refuse_to_lead};
use crate::strict::Strict;
use crate::table::open_table;
use crate::url::{Url, join};
use crate::{duties, logs};

/// Runs a server until a signal ends it, or its member ends by itself.
pub async fn run(config: Config) -> Result<(), ServerError> {
    logs::start(&config.log_level);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let mut signals = Signals::listen().map_err(ServerError::System)?;
    let running = tokio::select! {
        started = Running::start(config) => started?,
        signal = signals.next() => {
            tracing::info!(signal, "received a signal; not started yet, ending");
            return Ok(());
        }
    };
    notify("READY=1");
    let ended = tokio::select! {
        ended = running.node.wait_stopped() => Some(ended),
        () = running.removed() => None,
        signal = signals.next() => {
            tracing::info!(signal, "received a signal; shutting down");
            None
        }
    };
    notify("STOPPING=1");
    tokio::select! {
        () = running.stop() => {}
        signal = signals.next() => {
            tracing::warn!(signal, "received another signal; ending at once");
            return Err(ServerError::Interrupted);
        }
    }
    match ended {
        Some(why) if !matches!(why, StopReason::Stopped) => Err(ServerError::Ended(why)),
        _ => Ok(()),
    }
}

/// A server that serves. It goes on until it is stopped.
pub struct Running {
    node: Node,
    context: Context,
    peer_address: SocketAddr,
    client_addresses: Vec<SocketAddr>,
    metrics_addresses: Vec<SocketAddr>,
    stopping: watch::Sender<bool>,
    drain_timeout: Duration,
    serving: Vec<JoinHandle<()>>,
    duties: JoinHandle<()>,
}

impl Running {
    /// Serves as soon as it returns; whether it has found a leader is another question.
    pub async fn start(config: Config) -> Result<Self, ServerError> {
        let measured = Arc::new(Measured::new(config.extensive_metrics));
        let transport = bind_peers(&config, &measured).await?;
        let peer_address = transport.local_address();
        let clients = bind_all(&config.listen_client_urls).await?;
        let metrics = bind_all(&config.listen_metrics_urls).await?;
        finish(&config).map_err(ServerError::Recover)?;
        if config.force_new_cluster {
            force_new_cluster(&config).map_err(ServerError::Recover)?;
        }
        let mut node_config = prepare(&config, &transport).await?;
        node_config.observer = Arc::clone(&measured) as Arc<dyn quorate::NodeObserver>;
        let cluster_id = node_config.cluster;
        let disk = FileDisk::open(store_directory(&config)).map_err(ServerError::System)?;
        let storage = DirectoryStorage::on(disk, StoreConfig::default());
        let store = Store::new(open_table(&config).await?);
        // A table on a disk is written to and synced while commands run.
        node_config.machine_blocks = config.table == TableKind::Redb;
        let node = Node::start(node_config, storage, store.clone(), transport).await?;
        let context = Context::new(node.clone(), store, cluster_id, limits(&config));
        let (stopping, _) = watch::channel(false);
        let mut running = Self {
            duties: tokio::spawn(duties::run(context.clone(), config.clone())),
            client_addresses: addresses(&clients)?,
            metrics_addresses: addresses(&metrics)?,
            peer_address,
            node,
            context,
            stopping,
            drain_timeout: config.drain_timeout,
            serving: Vec::new(),
        };
        running.serve(clients, metrics, &config, measured);
        Ok(running)
    }

    fn serve(
        &mut self,
        clients: Vec<TcpListener>,
        metrics: Vec<TcpListener>,
        config: &Config,
        measured: Arc<Measured>,
    ) {
        let shown = Shown { context: self.context.clone(), measured: Arc::clone(&measured) };
        let services = routes(&self.context, config).into_axum_router();
        let router = services.reset_fallback().merge(client_router(shown.clone()));
        let counted = |desk| Counted::new(Strict(desk), Arc::clone(&measured.calls));
        let router = counted(Desk::new(Some(keys(&self.context)), router.into()));
        let metrics_router = counted(Desk::new(None, metrics_router(shown).into()));
        let streams = config.max_concurrent_streams;
        let places = Places::for_clients();
        for listener in clients {
            let incoming = incoming(listener, &places, Arc::clone(&measured.traffic));
            let served = serve(incoming, router.clone(), streams, self.stop_signal());
            self.serving.push(tokio::spawn(served));
        }
        let places = Places::new(METRICS_CONNECTIONS_MAX);
        for listener in metrics {
            // What is asked here is not asked by clients.
            let incoming = incoming(listener, &places, Arc::new(Traffic::default()));
            let served = serve(incoming, metrics_router.clone(), streams, self.stop_signal());
            self.serving.push(tokio::spawn(served));
        }
        for address in &self.client_addresses {
            tracing::info!(address = %address, member_id = %hex(self.node.id().0),
                cluster_id = %hex(self.context.cluster_id), "ready to serve client requests");
        }
    }

    fn stop_signal(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopping = self.stopping.subscribe();
        async move {
            let _ = stopping.wait_for(|stopping| *stopping).await;
        }
    }

    /// The member behind it.
    pub fn node(&self) -> &Node {
        &self.node
    }

    pub fn cluster_id(&self) -> u64 {
        self.context.cluster_id
    }

    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    pub fn client_addresses(&self) -> &[SocketAddr] {
        &self.client_addresses
    }

    pub fn metrics_addresses(&self) -> &[SocketAddr] {
        &self.metrics_addresses
    }

    /// Waits until this member was in its cluster, and is no more: it serves nobody.
    pub async fn removed(&self) {
        let node = &self.node;
        let mut news = node.watch_membership();
        let mut was_in = false;
        while news.next().await.is_some() {
            let membership = node.membership();
            was_in |= membership.contains(node.id());
            let left = was_in && !membership.contains(node.id());
            if left || membership.removed().contains(&node.id()) {
                let member_id = hex(node.id().0);
                let text = "the member has been permanently removed from the cluster";
                tracing::error!(member_id, "{text}");
                return;
            }
        }
        // It has ended, and that is another matter.
        std::future::pending().await
    }

    /// Tells whoever asks that clients should go elsewhere, and lets another member lead.
    /// Requests are served as before.
    pub async fn leave(&self) {
        self.context.leave();
        hand_over(&self.node).await;
    }

    /// Leaves, takes no more requests, finishes what was begun, and ends. That takes bounded
    /// time: what is not finished after a while is cut off.
    pub async fn stop(self) {
        self.duties.abort();
        self.leave().await;
        self.stopping.send_replace(true);
        self.context.close();
        tokio::select! {
            () = drain(self.serving, self.drain_timeout) => {}
            () = refuse_to_lead(&self.node) => {}
        }
        self.node.stop_now().await;
        self.node.host().clone().stop().await;
    }

    /// Ends at once, as if the process were killed: nothing is handed over or finished.
    pub async fn end(self) {
        self.duties.abort();
        self.serving.iter().for_each(JoinHandle::abort);
        self.node.stop_now().await;
        self.node.host().clone().stop().await;
    }
}

/// Waits for what is being served, but not for ever.
async fn drain(serving: Vec<JoinHandle<()>>, patience: Duration) {
    let deadline = Instant::now() + patience;
    for task in serving {
        let abort = task.abort_handle();
        if timeout_at(deadline, task).await.is_err() {
            tracing::warn!("requests that took too long were cut off");
            abort.abort();
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("node", &self.node).finish_non_exhaustive()
    }
}

async fn serve(
    incoming: impl Stream<Item = io::Result<Metered>>,
    service: Counted<Strict<Desk>>,
    streams_max: u32,
    stop: impl Future<Output = ()> + Send,
) {
    let served = Server::builder()
        .accept_http1(true)
        .max_concurrent_streams(streams_max)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEP_ALIVE_EVERY))
        .serve_with_incoming_shutdown(service, incoming, stop)
        .await;
    if let Err(why) = served {
        tracing::error!(%why, "a port is served no more");
    }
}

fn incoming(
    listener: TcpListener,
    places: &Places,
    traffic: Arc<Traffic>,
) -> impl Stream<Item = io::Result<Metered>> + use<> {
    let metered = move |client| Metered::new(client, Arc::clone(&traffic));
    accepted(listener, places.clone()).map(move |client| client.map(&metered))
}

async fn bind_peers(
    config: &Config,
    measured: &Arc<Measured>,
) -> Result<TcpTransport, ServerError> {
    let urls = &config.listen_peer_urls;
    let failed = |why| ServerError::Bind { url: join(urls), why };
    let mut addresses = Vec::new();
    for url in urls {
        addresses.push(url.resolve().await.map_err(failed)?);
    }
    let Some((first, others)) = addresses.split_first() else {
        return Err(failed(io::Error::other("no peer URL to listen on")));
    };
    let mut tcp = TcpConfig::new(*first);
    tcp.listen_also = others.to_vec();
    tcp.resolve_address = Arc::new(address_of);
    let measured = Arc::clone(measured);
    tcp.on_round_trip = Arc::new(move |address, took| measured.on_round_trip(address, took));
    let advertised = config.initial_advertise_peer_urls.first();
    tcp.advertise = advertised.map(Url::address).unwrap_or_default();
    TcpTransport::bind(tcp).await.map_err(failed)
}

async fn bind_all(urls: &[Url]) -> Result<Vec<TcpListener>, ServerError> {
    let mut bound = Vec::new();
    for url in urls {
        let failed = |why| ServerError::Bind { url: url.to_string(), why };
        let address = url.resolve().await.map_err(failed)?;
        bound.push(TcpListener::bind(address).await.map_err(failed)?);
    }
    Ok(bound)
}

fn addresses(listeners: &[TcpListener]) -> Result<Vec<SocketAddr>, ServerError> {
    listeners.iter().map(|one| one.local_addr().map_err(ServerError::System)).collect()
}

fn limits(config: &Config) -> Limits {
    let seconds = config.election_timeout.as_secs_f64() * 1.5;
    Limits {
        request_bytes_max: config.max_request_bytes,
        txn_requests_max: config.max_txn_ops,
        learner_reads: config.learner_reads,
        watch_progress_every: config.watch_progress_notify_interval,
        lease_ttl_min: seconds.ceil() as i64,
        lease_grace: config.election_timeout,
        ..Limits::default()
    }
}

/// Why a server does not run.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServerError {
    /// Nobody knows which member to start.
    Bootstrap(BootstrapError),
    /// An address cannot be listened on.
    Bind {
        url: String,
        why: io::Error,
    },
    Node(NodeError),
    Table(TableError),
    System(io::Error),
    /// The member ended by itself.
    Ended(StopReason),
    /// A second signal ended it before it had stopped in good order.
    Interrupted,
    /// No new cluster can be made of what the disk holds.
    Recover(RecoverError),
}

impl From<BootstrapError> for ServerError {
    fn from(why: BootstrapError) -> Self {
        Self::Bootstrap(why)
    }
}

impl From<NodeError> for ServerError {
    fn from(why: NodeError) -> Self {
        Self::Node(why)
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bootstrap(why) => write!(f, "{why}"),
            Self::Bind { url, why } => write!(f, "cannot listen on {url}: {why}"),
            Self::Node(why) => write!(f, "{why}"),
            Self::Table(why) => write!(f, "{why}"),
            Self::System(why) => write!(f, "{why}"),
            Self::Ended(why) => write!(f, "the member has ended: {why}"),
            Self::Interrupted => f.write_str("ended by a second signal, not in good order"),
            Self::Recover(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for ServerError {}

const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(30);
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
const HEADER_BYTES_MAX: u32 = 16 << 10;
const METRICS_CONNECTIONS_MAX: usize = 64;
