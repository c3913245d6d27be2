//! The demo's clients: they write continuously and record which writes were acknowledged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::client::{self, ClientChannel};
use crate::client_tls::ClientTls;
use crate::error::{CliError, status_text};
use crate::gaps::Gaps;
use crate::histogram::LatencyHistogram;

/// Each client pauses between its writes, so that the load is light.
pub(super) const WRITE_INTERVAL: Duration = Duration::from_millis(10);
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of keys of each client.
const KEYS_PER_CLIENT: u64 = 100;

pub(super) struct DemoLoad {
    stats: Arc<LoadStats>,
    endpoints: watch::Sender<Vec<String>>,
    tls: ClientTls,
    clients: Mutex<JoinSet<LastWrites>>,
}

/// The results of all clients so far.
struct LoadStats {
    gaps: Gaps,
    results: Mutex<LoadResults>,
}

struct LoadResults {
    times: LatencyHistogram,
    /// Since the last call of [`DemoLoad::take_recent`].
    recent: LatencyHistogram,
    errors: BTreeMap<String, u64>,
}

/// For each key, the number of the last acknowledged write.
type LastWrites = BTreeMap<String, u64>;

pub(super) struct LoadSummary {
    pub(super) times: LatencyHistogram,
    pub(super) gap: Duration,
    pub(super) errors: BTreeMap<String, u64>,
    /// Keys that were read back, and those whose value is older than the acknowledged write.
    pub(super) checked: u64,
    pub(super) lost: u64,
}

impl LoadSummary {
    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }
}

impl DemoLoad {
    pub(super) fn start(endpoints: Vec<String>, tls: ClientTls, clients: u32) -> Self {
        let results = LoadResults {
            times: LatencyHistogram::new(),
            recent: LatencyHistogram::new(),
            errors: BTreeMap::new(),
        };
        let stats =
            Arc::new(LoadStats { gaps: Gaps::new(Instant::now()), results: Mutex::new(results) });
        let (sender, receiver) = watch::channel(endpoints);
        let mut tasks = JoinSet::new();
        for number in 0..clients {
            tasks
                .spawn(LoadClient::new(number, receiver.clone(), stats.clone(), tls.clone()).run());
        }
        Self { stats, endpoints: sender, tls, clients: Mutex::new(tasks) }
    }

    /// Makes the clients use these endpoints. Returns when requests to others have ended.
    pub(super) async fn switch_to(&self, endpoints: Vec<String>) {
        self.endpoints.send_replace(endpoints);
        tokio::time::sleep(WRITE_INTERVAL * 10).await;
    }

    pub(super) fn tls(&self) -> &ClientTls {
        &self.tls
    }

    /// The durations since the last call, and the number of all failures.
    pub(super) fn take_recent(&self) -> (LatencyHistogram, u64) {
        let mut results = self.stats.results.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = std::mem::replace(&mut results.recent, LatencyHistogram::new());
        (recent, results.errors.values().sum())
    }

    /// The longest time without a successful write so far.
    pub(super) fn longest_gap(&self) -> Duration {
        self.stats.gaps.longest(Instant::now())
    }

    /// Stops the clients and reads all keys back.
    pub(super) async fn stop(&self) -> Result<LoadSummary, CliError> {
        let gap = self.stats.gaps.longest(Instant::now());
        let endpoints = self.endpoints.send_replace(Vec::new());
        let mut clients = {
            let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *clients)
        };
        let mut acknowledged = LastWrites::new();
        while let Some(writes) = clients.join_next().await {
            acknowledged.extend(writes.unwrap_or_default());
        }
        let stored = read_all(&endpoints, &self.tls).await?;
        let is_lost =
            |(key, number): &(&String, &u64)| stored.get(*key).is_none_or(|found| found < number);
        let lost = acknowledged.iter().filter(is_lost).count() as u64;
        let results = self.stats.results.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(LoadSummary {
            times: results.times.clone(),
            gap,
            errors: results.errors.clone(),
            checked: acknowledged.len() as u64,
            lost,
        })
    }
}

impl LoadStats {
    fn succeeded(&self, took: Duration, now: Instant) {
        self.gaps.succeeded(now);
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        results.times.record(took);
        results.recent.record(took);
    }

    fn failed(&self, error: String) {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        *results.errors.entry(error).or_default() += 1;
    }
}

struct LoadClient {
    number: u32,
    endpoints: watch::Receiver<Vec<String>>,
    stats: Arc<LoadStats>,
    tls: ClientTls,
    /// How many times it changed to the next endpoint.
    endpoint_changes: usize,
    connection: Option<(String, KvClient<ClientChannel>)>,
}

impl LoadClient {
    fn new(
        number: u32,
        endpoints: watch::Receiver<Vec<String>>,
        stats: Arc<LoadStats>,
        tls: ClientTls,
    ) -> Self {
        Self { number, endpoints, stats, tls, endpoint_changes: 0, connection: None }
    }

    /// Writes until there are no endpoints.
    async fn run(mut self) -> LastWrites {
        let mut acknowledged = LastWrites::new();
        for write in 1.. {
            let Some(mut kv) = self.connect().await else { break };
            let key = format!("demo/{}/{}", self.number, write % KEYS_PER_CLIENT);
            let started = Instant::now();
            match put(&mut kv, &key, write).await {
                Ok(()) => {
                    let now = Instant::now();
                    self.stats.succeeded(now - started, now);
                    acknowledged.insert(key, write);
                }
                Err(status) => {
                    self.stats.failed(status_text(&status));
                    self.change_endpoint();
                }
            }
            tokio::time::sleep(WRITE_INTERVAL).await;
        }
        acknowledged
    }

    /// The present connection if its endpoint is still in use, else the next reachable one.
    async fn connect(&mut self) -> Option<KvClient<ClientChannel>> {
        loop {
            let endpoints = self.endpoints.borrow_and_update().clone();
            if endpoints.is_empty() {
                return None;
            }
            if let Some((_, kv)) =
                self.connection.as_ref().filter(|(url, _)| endpoints.contains(url))
            {
                return Some(kv.clone());
            }
            let url = &endpoints[(self.number as usize + self.endpoint_changes) % endpoints.len()];
            match client::open(url, &self.tls, DIAL_TIMEOUT, REQUEST_TIMEOUT).await {
                Ok(connection) => {
                    self.connection = Some((url.clone(), KvClient::new(connection.channel)));
                }
                Err(error) => {
                    self.stats.failed(error.to_string());
                    self.change_endpoint();
                    tokio::time::sleep(WRITE_INTERVAL).await;
                }
            }
        }
    }

    fn change_endpoint(&mut self) {
        self.connection = None;
        self.endpoint_changes += 1;
    }
}

async fn put(kv: &mut KvClient<ClientChannel>, key: &str, number: u64) -> Result<(), Status> {
    let request = etcd::PutRequest {
        key: Bytes::from(key.to_string()),
        value: Bytes::from(number.to_string()),
        ..Default::default()
    };
    let reply = tokio::time::timeout(REQUEST_TIMEOUT, kv.put(request)).await;
    let reply =
        reply.unwrap_or_else(|_| Err(Status::new(Code::DeadlineExceeded, "request timed out")));
    reply.map(|_| ())
}

async fn read_all(endpoints: &[String], tls: &ClientTls) -> Result<LastWrites, CliError> {
    let first =
        endpoints.first().ok_or_else(|| CliError::failed("there is no member to read from"))?;
    let connection = client::open(first, tls, DIAL_TIMEOUT, REQUEST_TIMEOUT).await?;
    let request = etcd::RangeRequest {
        key: Bytes::from_static(b"demo/"),
        range_end: Bytes::from_static(b"demo0"),
        ..Default::default()
    };
    let reply = KvClient::new(connection.channel.clone()).range(connection.request(request)).await;
    let reply = reply.map_err(|status| {
        CliError::from_status("cannot read the keys back", &connection.endpoint, &status)
    })?;
    let pairs = reply.into_inner().kvs.into_iter().map(|kv| {
        let number = std::str::from_utf8(&kv.value).ok().and_then(|text| text.parse().ok());
        (String::from_utf8_lossy(&kv.key).into_owned(), number.unwrap_or(0))
    });
    Ok(pairs.collect())
}
