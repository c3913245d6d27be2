//! What the tests with real sockets and files share: clusters in one process, clients that
//! send requests all the time, and a check that their replies are linearizable.

#![allow(dead_code, reason = "each test uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot continue panics"
)]

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use quorate::{
    DirectoryStorage, KvCommand, KvReply, MemberInfo, MemoryKv, Node, NodeConfig, RequestError,
    TcpConfig, TcpTransport,
};
use quorate_core::{Index, MemberId};
use quorate_sim::checkers::linearizable::{
    Call, ClientOperation, History, STEPS_MAX, Seen, Verdict, check,
};
use tokio::task::JoinHandle;

pub(crate) const CLUSTER: u64 = 0x7e57;
/// Far longer than anything takes on the slowest machine: only a failure lasts this long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);
/// Short enough for quick elections, long enough for a busy machine.
pub(crate) const TICK: Duration = Duration::from_millis(30);

/// Members in this process, each with its files and its socket.
pub(crate) struct Cluster {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) nodes: BTreeMap<u64, Node>,
    pub(crate) addresses: BTreeMap<u64, String>,
    pub(crate) adjust: fn(&mut NodeConfig),
}

impl Cluster {
    pub(crate) async fn start(members: u64) -> Self {
        Self::start_with(members, |_| {}).await
    }

    pub(crate) async fn start_with(members: u64, adjust: fn(&mut NodeConfig)) -> Self {
        let mut transports = Vec::new();
        let mut addresses = BTreeMap::new();
        for id in 1..=members {
            let transport = listen(0).await;
            addresses.insert(id, transport.local_address().to_string());
            transports.push((id, transport));
        }
        let directory = tempfile::tempdir().unwrap();
        let mut cluster = Self { directory, nodes: BTreeMap::new(), addresses, adjust };
        for (id, transport) in transports {
            let config = cluster.first(id);
            cluster.run(config, transport).await.unwrap();
        }
        cluster
    }

    pub(crate) fn path(&self, id: u64) -> PathBuf {
        self.directory.path().join(id.to_string())
    }

    fn first(&self, id: u64) -> NodeConfig {
        NodeConfig::first(CLUSTER, id, self.addresses.clone())
    }

    pub(crate) async fn run(
        &mut self,
        config: NodeConfig,
        transport: TcpTransport,
    ) -> Result<Node, quorate::NodeError> {
        let id = config.raft.id.0;
        let mut config = config.with_tick(TICK);
        (self.adjust)(&mut config);
        let storage = DirectoryStorage::new(self.path(id)).unwrap();
        let node = Node::start(config, storage, MemoryKv::default(), transport).await?;
        self.nodes.insert(id, node.clone());
        Ok(node)
    }

    /// Adds a learner and starts it.
    pub(crate) async fn join(&mut self, id: u64) -> Node {
        let transport = listen(0).await;
        let address = transport.local_address().to_string();
        let speaker = self.any().clone();
        let added = until_done("a learner is added", async || {
            speaker.add_learner(MemberId(id), MemberInfo::address(&address)).await
        });
        let added = added.await;
        self.addresses.insert(id, address);
        self.run(NodeConfig::join(CLUSTER, id, added.index), transport).await.unwrap()
    }

    /// Stops a member without a transfer of leadership.
    pub(crate) async fn end(&mut self, id: u64) {
        let node = self.nodes.remove(&id).unwrap();
        node.stop_now().await;
    }

    /// Starts a member again, on the same files and port.
    pub(crate) async fn restart(&mut self, id: u64) -> Result<Node, quorate::NodeError> {
        let address: SocketAddr = self.addresses[&id].parse().unwrap();
        let transport = listen(address.port()).await;
        self.run(self.first(id), transport).await
    }

    pub(crate) fn any(&self) -> &Node {
        self.nodes.values().next().unwrap()
    }

    pub(crate) async fn leader(&self) -> Node {
        wait_for("a leader", async || {
            let leader = self.nodes.values().find(|node| node.is_leader())?;
            Some(leader.clone())
        })
        .await
    }

    pub(crate) async fn stop(self) {
        for node in self.nodes.values() {
            node.stop_now().await;
        }
    }
}

pub(crate) async fn listen(port: u16) -> TcpTransport {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    wait_for("a free port", async || TcpTransport::bind(TcpConfig::new(address)).await.ok()).await
}

/// Polls until there is a value.
pub(crate) async fn wait_for<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time(what, looking).await
}

pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(TIMEOUT, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {TIMEOUT:?}"),
    }
}

/// Retries requests that were refused.
pub(crate) async fn until_done<T>(
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, RequestError>,
) -> T {
    let asking = async {
        loop {
            match ask().await {
                Ok(done) => return done,
                Err(RequestError::Refused(_)) => {
                    tokio::time::sleep(Duration::from_millis(20)).await
                }
                Err(unknown) => panic!("{what}: {unknown}"),
            }
        }
    };
    in_time(what, asking).await
}

pub(crate) fn put(key: &str, value: &str) -> Bytes {
    let (key, value) = (key.to_owned().into(), value.to_owned().into());
    KvCommand::Put { key, value }.encode()
}

pub(crate) async fn get(node: &Node, key: &str) -> Option<String> {
    let reply = until_done("a read", async || node.read(key.to_owned()).await).await;
    let value = KvReply::decode(&reply).unwrap().value?;
    Some(String::from_utf8(value.to_vec()).unwrap())
}

/// The result of a client's call.
pub(crate) enum Outcome {
    Done(Seen, Option<Index>),
    Refused(String),
    Unknown(String),
}

/// What clients send requests to: a node in this process, or another process.
pub(crate) trait Service: Clone + Send + Sync + 'static {
    fn call(&self, call: Call) -> impl Future<Output = Outcome> + Send;
}

impl Service for Node {
    async fn call(&self, call: Call) -> Outcome {
        let done = match command(&call) {
            None => {
                let read = self.read(call.keys()[0].clone()).await;
                read.map(|bytes| (Seen::Value(KvReply::decode(&bytes).unwrap().value), None))
            }
            Some(command) => self.propose(command.encode()).await.map(|reply| {
                let swapped = KvReply::decode(&reply.bytes).unwrap().done;
                let swap = matches!(call, Call::CompareAndSet { .. });
                let seen = if swap { Seen::Swapped(swapped) } else { Seen::Done };
                (seen, Some(reply.index))
            }),
        };
        match done {
            Ok((seen, index)) => Outcome::Done(seen, index),
            Err(RequestError::Refused(why)) => Outcome::Refused(why.to_string()),
            Err(RequestError::Unknown(why)) => Outcome::Unknown(why.to_string()),
        }
    }
}

/// None for a read.
pub(crate) fn command(call: &Call) -> Option<KvCommand> {
    match call.clone() {
        Call::Put(key, value) => Some(KvCommand::Put { key, value }),
        Call::Delete(key) => Some(KvCommand::Delete { key }),
        Call::CompareAndSet { key, expected, new } => {
            Some(KvCommand::CompareAndSet { key, expected, value: new })
        }
        Call::Get(_) | Call::GetSeveral(_) => None,
    }
}

/// Clients that put, read and swap a few keys, at services that may be exchanged.
pub(crate) struct Clients<S> {
    pub(crate) services: Arc<Mutex<Vec<S>>>,
    recorder: Arc<Recorder>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Recorder {
    clock: AtomicU64,
    stop: AtomicBool,
    operations: Mutex<Vec<ClientOperation>>,
    failures: Mutex<Vec<String>>,
    done: AtomicU64,
}

/// The calls and replies of all clients.
pub(crate) struct ClientResults {
    pub(crate) done: u64,
    /// Refused or unknown, with the reason.
    pub(crate) failures: Vec<String>,
}

impl<S: Service> Clients<S> {
    pub(crate) fn start(count: u64, services: Vec<S>) -> Self {
        let services = Arc::new(Mutex::new(services));
        let recorder = Arc::new(Recorder::default());
        let tasks = (0..count)
            .map(|client| {
                let (services, recorder) = (Arc::clone(&services), Arc::clone(&recorder));
                tokio::spawn(async move {
                    let mut number = 0;
                    while !recorder.stop.load(Ordering::Relaxed) {
                        number += 1;
                        one_call(client, number, &services, &recorder).await;
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                })
            })
            .collect();
        Self { services, recorder, tasks }
    }

    pub(crate) fn set_services(&self, services: Vec<S>) {
        *self.services.lock().unwrap() = services;
    }

    /// Waits until this many more calls have got a reply.
    pub(crate) async fn wait_for_writes(&self, more: u64) {
        let wanted = self.recorder.done.load(Ordering::Relaxed) + more;
        wait_for("more replies to clients", async || {
            (self.recorder.done.load(Ordering::Relaxed) >= wanted).then_some(())
        })
        .await;
    }

    /// Stops all clients; panics if their replies are not linearizable.
    pub(crate) async fn check_results(self) -> ClientResults {
        self.recorder.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            in_time("a client's last call", task).await.unwrap();
        }
        let operations = std::mem::take(&mut *self.recorder.operations.lock().unwrap());
        let done = self.recorder.done.load(Ordering::Relaxed);
        let report = check(&History { operations }, STEPS_MAX);
        if let Verdict::Violation(violation) = &report.verdict {
            panic!("{violation}");
        }
        let failures = std::mem::take(&mut *self.recorder.failures.lock().unwrap());
        ClientResults { done, failures }
    }
}

const KEYS: u64 = 5;

async fn one_call<S: Service>(
    client: u64,
    number: u64,
    services: &Mutex<Vec<S>>,
    recorder: &Recorder,
) {
    let key = Bytes::from(format!("key {}", (client + number) % KEYS));
    let value = Bytes::from(format!("{client}.{number}"));
    let call = match number % 4 {
        0 | 1 => Call::Put(key, value),
        2 => Call::Get(key),
        _ => Call::CompareAndSet { key, expected: None, new: value },
    };
    let service = {
        let services = services.lock().unwrap();
        services[(client + number) as usize % services.len()].clone()
    };
    let called = recorder.clock.fetch_add(1, Ordering::SeqCst);
    let outcome = service.call(call.clone()).await;
    let returned = Some(recorder.clock.fetch_add(1, Ordering::SeqCst));
    let (seen, applied, returned) = match outcome {
        Outcome::Done(seen, applied) => {
            recorder.done.fetch_add(1, Ordering::Relaxed);
            (seen, applied, returned)
        }
        Outcome::Refused(why) => {
            recorder.failures.lock().unwrap().push(format!("refused: {why}"));
            (Seen::Refused, None, returned)
        }
        Outcome::Unknown(why) => {
            recorder.failures.lock().unwrap().push(format!("unknown: {why}"));
            (Seen::Nothing, None, None)
        }
    };
    let operation = ClientOperation { client, called, returned, call, seen, applied };
    recorder.operations.lock().unwrap().push(operation);
}

/// Alters one byte of a file.
pub(crate) fn flip_byte(path: &Path, offset: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], offset).unwrap();
}
