//! Two members of a cluster of three over TCP, and a client that keeps them busy.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate::{DirectoryStorage, KvCommand, MemoryKv, Node, NodeConfig, TcpConfig, TcpTransport};
use rustix::process::{Resource, getrlimit, setrlimit};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

pub(crate) const CLUSTER: u64 = 0xabc;
pub(crate) const BUFFERED_BYTES_MAX: usize = 64 << 20;
pub(crate) const UNIDENTIFIED_MAX: usize = 64;

/// Far longer than anything takes on the slowest machine: only a failure lasts this long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(180);

pub(crate) struct Service {
    nodes: Vec<Node>,
    addresses: Vec<SocketAddr>,
    done: Arc<AtomicU64>,
    client: JoinHandle<()>,
    storage: TempDir,
}

pub(crate) fn config() -> TcpConfig {
    let mut config = TcpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.handshake_timeout = Duration::from_millis(800);
    config.silence_timeout = Duration::from_millis(1500);
    config.keep_alive_every = Duration::from_millis(200);
    config.refused_min = Duration::from_millis(100);
    config.unidentified_max = UNIDENTIFIED_MAX;
    config.channels_max = 8;
    config.buffered_bytes_max = BUFFERED_BYTES_MAX;
    config
}

impl Service {
    pub(crate) async fn start() -> Self {
        let storage = tempfile::tempdir().unwrap();
        let mut transports = Vec::new();
        for _ in 0..2 {
            transports.push(TcpTransport::bind(config()).await.unwrap());
        }
        let addresses: Vec<_> = transports.iter().map(TcpTransport::local_address).collect();
        // The third member does not run.
        let nowhere = "127.0.0.1:1".to_owned();
        let all = [addresses[0].to_string(), addresses[1].to_string(), nowhere];
        let mut nodes = Vec::new();
        for (id, transport) in (1..).zip(transports) {
            nodes.push(start_member(id, &all, &storage, transport).await);
        }
        let done = Arc::new(AtomicU64::new(0));
        let client = tokio::spawn(ask(nodes[1].clone(), Arc::clone(&done)));
        let service = Self { nodes, addresses, done, client, storage };
        service.keeps_serving("start").await;
        service
    }

    pub(crate) fn address(&self, at: usize) -> SocketAddr {
        self.addresses[at]
    }

    pub(crate) fn count(&self, at: usize, name: &str) -> u64 {
        let counts = self.nodes[at].metrics().transport;
        *counts.get(name).unwrap_or_else(|| panic!("{name} is not counted"))
    }

    /// How many messages a member dropped for this reason.
    pub(crate) fn dropped(&self, at: usize, reason: &str) -> u64 {
        self.nodes[at].metrics().dropped.get(reason).copied().unwrap_or(0)
    }

    pub(crate) fn node(&self, at: usize) -> &Node {
        &self.nodes[at]
    }

    pub(crate) async fn wait_count(&self, at: usize, name: &str, count: u64, what: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while self.count(at, name) < count {
            assert!(Instant::now() < deadline, "{what}: {name} is not counted");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Commands are still done.
    pub(crate) async fn keeps_serving(&self, what: &str) {
        let wanted = self.done.load(Ordering::SeqCst) + 2;
        let deadline = Instant::now() + TIMEOUT;
        while self.done.load(Ordering::SeqCst) < wanted {
            assert!(Instant::now() < deadline, "{what}: the service does not go on");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops a member and starts it again on the same disk.
    pub(crate) async fn restart(mut self, at: usize) -> Self {
        self.nodes[at].stop_now().await;
        let mut config = config();
        config.listen = self.addresses[at];
        let transport = TcpTransport::bind(config).await.unwrap();
        let all = [self.addresses[0].to_string(), self.addresses[1].to_string(), String::new()];
        self.nodes[at] = start_member(at as u64 + 1, &all, &self.storage, transport).await;
        self
    }

    pub(crate) async fn stop(self) {
        self.client.abort();
        for node in &self.nodes {
            node.stop_now().await;
        }
    }
}

async fn start_member(
    id: u64,
    addresses: &[String],
    storage: &TempDir,
    transport: TcpTransport,
) -> Node {
    let members = (1..).zip(addresses.to_vec());
    let config = NodeConfig::first(CLUSTER, id, members).with_tick(TICK);
    let disk = DirectoryStorage::new(storage.path().join(id.to_string())).unwrap();
    Node::start(config, disk, MemoryKv::default(), transport).await.unwrap()
}

const TICK: Duration = Duration::from_millis(20);

async fn ask(node: Node, done: Arc<AtomicU64>) {
    for value in 0.. {
        let value = u64::to_string(&value).into();
        let command = KvCommand::Put { key: "key".into(), value }.encode();
        if node.propose(command).await.is_ok() {
            done.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A member of another cluster that has the address of a member of this one.
pub(crate) async fn stranger(service: &Service) -> (Node, TempDir) {
    let storage = tempfile::tempdir().unwrap();
    let transport = TcpTransport::bind(config()).await.unwrap();
    let members = [(1, service.address(0).to_string()), (2, transport.advertised().to_owned())];
    let config = NodeConfig::first(CLUSTER + 5, 2, members).with_tick(TICK);
    let disk = DirectoryStorage::new(storage.path().join("2")).unwrap();
    (Node::start(config, disk, MemoryKv::default(), transport).await.unwrap(), storage)
}

/// Whether this process may have this many files open; asks for it, too.
pub(crate) fn may_open_files(count: u64) -> bool {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return true;
    }
    limit.current = Some(limit.maximum.map_or(count, |maximum| maximum.min(count)));
    setrlimit(Resource::Nofile, limit).is_ok() && limit.current >= Some(count)
}

/// What of this process is in memory; 0 where the system does not say.
pub(crate) fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let resident = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    resident.unwrap_or(0) * rustix::param::page_size() as u64
}
