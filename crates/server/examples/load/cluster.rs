//! A cluster under load: its members, a client that puts beside the load, memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::{PutRequest, RequestOp, StatusRequest, TxnRequest, request_op};
use tokio::task::{JoinHandle, JoinSet};
use tonic::transport::Channel;

pub(crate) type LoadError = Box<dyn std::error::Error + Send + Sync>;

pub(crate) struct LoadedCluster {
    /// `host:port` of each member, the leader first.
    pub(crate) addresses: Vec<String>,
    pids: Vec<u32>,
}

impl LoadedCluster {
    pub(crate) async fn connect(endpoints: &str, pids: &str) -> Result<Self, LoadError> {
        let pids = pids.split(',').filter_map(|pid| pid.parse().ok()).collect();
        let addresses = endpoints.split(',').map(str::to_owned).collect();
        let mut cluster = Self { addresses, pids };
        for at in 0..cluster.addresses.len() {
            let status = cluster.status(at).await?;
            if status.leader == status.header.ok_or("no header")?.member_id {
                cluster.addresses.swap(0, at);
            }
        }
        Ok(cluster)
    }

    pub(crate) async fn channel(&self, member: usize) -> Result<Channel, LoadError> {
        let address = format!("http://{}", self.addresses[member]);
        Ok(Channel::from_shared(address)?.connect().await?)
    }

    /// A client of the leader.
    pub(crate) async fn kv(&self) -> Result<KvClient<Channel>, LoadError> {
        Ok(KvClient::new(self.channel(0).await?).max_decoding_message_size(usize::MAX))
    }

    async fn status(
        &self,
        member: usize,
    ) -> Result<quorate_proto::etcdserverpb::StatusResponse, LoadError> {
        let mut client = MaintenanceClient::new(self.channel(member).await?);
        Ok(client.status(StatusRequest::default()).await?.into_inner())
    }

    pub(crate) async fn terms(&self) -> Result<Vec<u64>, LoadError> {
        let mut terms = Vec::new();
        for member in 0..self.addresses.len() {
            terms.push(self.status(member).await?.raft_term);
        }
        Ok(terms)
    }

    /// Adds the keys `k0000000` and so on, many with each transaction.
    pub(crate) async fn fill(&self, keys: usize) -> Result<(), LoadError> {
        let mut clients = JoinSet::new();
        let numbers: Vec<usize> = (0..keys).collect();
        for part in numbers.chunks(keys.div_ceil(8)) {
            let (part, mut kv) = (part.to_vec(), self.kv().await?);
            clients.spawn(async move {
                for some in part.chunks(128) {
                    let puts = some.iter().map(|number| put(&key(*number), 16));
                    let success = puts.map(put_operation).collect();
                    kv.txn(TxnRequest { success, ..Default::default() }).await?;
                }
                Ok::<(), LoadError>(())
            });
        }
        while let Some(done) = clients.join_next().await {
            done??;
        }
        Ok(())
    }

    /// The memory of all processes together, in MiB.
    pub(crate) fn memory_mib(&self) -> Vec<u64> {
        let of = |pid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0u64)
                / 1024
        };
        self.pids.iter().map(of).collect()
    }
}

pub(crate) fn key(number: usize) -> String {
    format!("k{number:07}")
}

pub(crate) fn put(key: &str, value_bytes: usize) -> PutRequest {
    let value = vec![b'v'; value_bytes].into();
    PutRequest { key: key.to_owned().into(), value, ..Default::default() }
}

fn put_operation(put: PutRequest) -> RequestOp {
    RequestOp { request: Some(request_op::Request::RequestPut(put)) }
}

/// One client of the leader that puts small values beside the load.
pub(crate) struct PutsBeside {
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicU64>,
    task: JoinHandle<Vec<Duration>>,
}

impl PutsBeside {
    pub(crate) async fn start(cluster: &LoadedCluster) -> Result<Self, LoadError> {
        let mut kv = cluster.kv().await?;
        let (stop, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let task = tokio::spawn({
            let (stop, failed) = (Arc::clone(&stop), Arc::clone(&failed));
            async move {
                let mut times = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let done = kv.put(put("beside", 16)).await;
                    failed.fetch_add(u64::from(done.is_err()), Ordering::Relaxed);
                    times.push(began.elapsed());
                    tokio::time::sleep(PUT_INTERVAL).await;
                }
                times
            }
        });
        Ok(Self { stop, failed, task })
    }

    pub(crate) async fn end(self) -> Result<String, LoadError> {
        self.stop.store(true, Ordering::Relaxed);
        let times = Percentiles::of(self.task.await?);
        Ok(format!("puts beside {times}, {} failed", self.failed.load(Ordering::Relaxed)))
    }
}

const PUT_INTERVAL: Duration = Duration::from_millis(5);

/// Times of requests, sorted.
pub(crate) struct Percentiles(Vec<Duration>);

impl Percentiles {
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    fn millis(&self, percent: usize) -> f64 {
        let at = (self.0.len() * percent / 100).min(self.0.len().saturating_sub(1));
        self.0.get(at).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    }
}

impl std::fmt::Display for Percentiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (p50, p99, max) = (self.millis(50), self.millis(99), self.millis(100));
        write!(f, "{} with p50 {p50:.1} ms, p99 {p99:.1} ms, max {max:.1} ms", self.0.len())
    }
}
