//! Complete nodes: three members in this process, over loopback TCP and real files, from
//! `propose` to the reply of the machine.
//!
//! The same run measures group commit without consensus on the same disk, for comparison.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate::{
    BadSnapshot, DirectoryStorage, Machine, MachineError, Node, NodeConfig, SnapshotChunks,
    TcpConfig, TcpTransport,
};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::args::NodeArgs;
use crate::raw;
use crate::table::BenchTable;

/// The result for one number of proposers.
struct NodeMeasurement {
    operations: u64,
    took: Duration,
    /// The latency of each operation, sorted.
    latencies: Vec<Duration>,
    cpu: Duration,
    /// Time in syncs, of the leader and of all members together.
    leader_sync: Duration,
    all_sync: Duration,
    syncs: u64,
}

/// The table of throughput and cost.
pub(crate) fn table(args: &NodeArgs) -> Result<BenchTable, Box<dyn std::error::Error>> {
    let directory = TempDirectory::new(args.directory.as_deref())?;
    let runtime = Builder::new_multi_thread().worker_threads(args.workers).enable_all().build()?;
    let heads = [
        "proposers",
        "payload",
        "ops/s",
        "p50 us",
        "p99 us",
        "CPU us/op",
        "ops/sync",
        "in fdatasync",
        "raw ops/s",
        "of raw",
    ];
    let mut table = BenchTable::new(&heads);
    let cluster = runtime.block_on(NodeCluster::start(&directory.0))?;
    for proposers in args.proposers() {
        let length = Duration::from_secs(args.seconds);
        runtime.block_on(cluster.measure(proposers, args.size, length / 5))?;
        let raw = runtime.block_on(raw::rate(&directory.0, proposers, args.size, length / 3))?;
        let measured = runtime.block_on(cluster.measure(proposers, args.size, length))?;
        table.row(&measured.row(proposers, args.size, raw));
    }
    stop(&runtime, cluster);
    Ok(table)
}

impl NodeMeasurement {
    fn row(&self, proposers: usize, size: usize, raw: f64) -> Vec<String> {
        let seconds = self.took.as_secs_f64();
        let rate = self.operations as f64 / seconds;
        let at = |share: f64| {
            let directory = (self.latencies.len().saturating_sub(1)) as f64 * share;
            self.latencies
                .get(directory as usize)
                .copied()
                .unwrap_or_default()
                .as_micros()
                .to_string()
        };
        vec![
            proposers.to_string(),
            format!("{size} B"),
            format!("{rate:.0}"),
            at(0.5),
            at(0.99),
            format!("{:.1}", self.cpu.as_secs_f64() * 1e6 / self.operations.max(1) as f64),
            format!("{:.0}", self.operations as f64 / self.syncs.max(1) as f64),
            format!(
                "{:.0} % / {:.0} %",
                100.0 * self.leader_sync.as_secs_f64() / seconds,
                100.0 * self.all_sync.as_secs_f64() / seconds / 3.0
            ),
            format!("{raw:.0}"),
            format!("{:.0} %", 100.0 * rate / raw),
        ]
    }
}

struct NodeCluster {
    nodes: Vec<Node>,
}

impl NodeCluster {
    async fn start(directory: &Path) -> Result<Self, Box<dyn std::error::Error>> {
        let mut transports = Vec::new();
        for _ in 0..3 {
            let listen = SocketAddr::from(([127, 0, 0, 1], 0));
            transports.push(TcpTransport::bind(TcpConfig::new(listen)).await?);
        }
        let addresses = transports.iter().map(|one| one.local_address().to_string());
        let members: Vec<(u64, String)> = (1..).zip(addresses).collect();
        let mut nodes = Vec::new();
        for (id, transport) in (1..).zip(transports) {
            let config = NodeConfig::first(0xbe, id, members.clone());
            let storage = DirectoryStorage::new(directory.join(id.to_string()))?;
            nodes.push(Node::start(config, storage, SumMachine::default(), transport).await?);
        }
        nodes[0].campaign();
        nodes[0].propose("ready").await?;
        Ok(Self { nodes })
    }

    fn leader(&self) -> &Node {
        self.nodes.iter().find(|node| node.is_leader()).unwrap_or(&self.nodes[0])
    }

    async fn measure(
        &self,
        proposers: usize,
        size: usize,
        length: Duration,
    ) -> Result<NodeMeasurement, Box<dyn std::error::Error>> {
        let stop = Arc::new(AtomicBool::new(false));
        let before = self.syncs();
        let (cpu, start) = (cpu_time(), Instant::now());
        let mut tasks = JoinSet::new();
        for _ in 0..proposers {
            tasks.spawn(propose(self.leader().clone(), size, Arc::clone(&stop)));
        }
        tokio::time::sleep(length).await;
        stop.store(true, Ordering::Relaxed);
        let mut latencies = Vec::new();
        while let Some(done) = tasks.join_next().await {
            latencies.extend(done??);
        }
        let took = start.elapsed();
        latencies.sort_unstable();
        let after = self.syncs();
        Ok(NodeMeasurement {
            operations: latencies.len() as u64,
            took,
            latencies,
            cpu: cpu_time().saturating_sub(cpu),
            leader_sync: after.leader - before.leader,
            all_sync: after.all - before.all,
            syncs: after.count - before.count,
        })
    }

    fn syncs(&self) -> SyncTimes {
        let leader = self.leader().metrics();
        let all = self.nodes.iter().map(|node| node.metrics().sync_time).sum();
        SyncTimes { leader: leader.sync_time, all, count: leader.syncs }
    }
}

struct SyncTimes {
    leader: Duration,
    all: Duration,
    count: u64,
}

async fn propose(
    node: Node,
    size: usize,
    stop: Arc<AtomicBool>,
) -> Result<Vec<Duration>, quorate::RequestError> {
    let command = Bytes::from(vec![7; size]);
    let mut latencies = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        node.propose(command.clone()).await?;
        latencies.push(start.elapsed());
    }
    Ok(latencies)
}

fn stop(runtime: &Runtime, cluster: NodeCluster) {
    runtime.block_on(async {
        for node in cluster.nodes {
            node.stop_now().await;
            node.host().clone().stop().await;
        }
    });
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// A directory that is removed when the run ends.
struct TempDirectory(PathBuf);

impl TempDirectory {
    fn new(parent: Option<&Path>) -> io::Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let path = parent.join(format!("quorate-bench-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A minimal machine that depends on every command.
#[derive(Default)]
struct SumMachine {
    bytes: u64,
}

impl Machine for SumMachine {
    fn apply(&mut self, _: u64, command: &Bytes) -> Result<Bytes, MachineError> {
        self.bytes += command.len() as u64;
        Ok(Bytes::new())
    }

    fn query(&self, _: &Bytes) -> Result<Bytes, MachineError> {
        Ok(Bytes::copy_from_slice(&self.bytes.to_le_bytes()))
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        Ok(Box::new(std::iter::once(Ok(Bytes::copy_from_slice(&self.bytes.to_le_bytes())))))
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        let chunk = chunks.next().ok_or(BadSnapshot)?;
        self.bytes = u64::from_le_bytes(chunk[..].try_into().map_err(|_| BadSnapshot)?);
        Ok(())
    }
}

pub(crate) const LEGEND: &str = "\
op            one command of this size, proposed at the leader, durable on a majority, applied, replied to
proposers     tasks that each propose the next command after the reply to the last one
CPU           of the whole process: three members and the proposers
ops/sync      operations for each sync of the leader's log
in fdatasync  share of the time: the leader's disk thread / the mean of all three
raw ops/s     as many proposers on bare group commit: one thread writes and syncs the
              queued operations, two more do the same with other files on the same disk, and an
              operation is done when two of the three are: what three disks could do for free";
