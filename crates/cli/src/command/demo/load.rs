//! Clients that write one after the other, and remember what was acknowledged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::client;
use crate::failure::{Failure, said};
use crate::gaps::Gaps;
use crate::histogram::Histogram;

/// Light: each client rests between its writes.
const REST: Duration = Duration::from_millis(10);
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Keys of each client.
const SLOTS: u64 = 100;

pub(super) struct Load {
    shared: Arc<Shared>,
    endpoints: watch::Sender<Vec<String>>,
    clients: Mutex<JoinSet<Acknowledged>>,
}

struct Shared {
    gaps: Gaps,
    results: Mutex<Results>,
}

struct Results {
    times: Histogram,
    /// Since the view looked last.
    recent: Histogram,
    errors: BTreeMap<String, u64>,
}

/// By key the number of the last write that was acknowledged.
type Acknowledged = BTreeMap<String, u64>;

pub(super) struct Summary {
    pub(super) times: Histogram,
    pub(super) gap: Duration,
    pub(super) errors: BTreeMap<String, u64>,
    /// Keys that were looked up again, and those whose value is older than acknowledged.
    pub(super) checked: u64,
    pub(super) lost: u64,
}

impl Summary {
    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }
}

impl Load {
    pub(super) fn start(endpoints: Vec<String>, clients: u32) -> Self {
        let results =
            Results { times: Histogram::new(), recent: Histogram::new(), errors: BTreeMap::new() };
        let shared =
            Arc::new(Shared { gaps: Gaps::new(Instant::now()), results: Mutex::new(results) });
        let (sender, receiver) = watch::channel(endpoints);
        let mut tasks = JoinSet::new();
        for number in 0..clients {
            tasks.spawn(Client::new(number, receiver.clone(), shared.clone()).run());
        }
        Self { shared, endpoints: sender, clients: Mutex::new(tasks) }
    }

    /// Everybody asks these from now on. Returns when nobody asks another one any more.
    pub(super) async fn move_to(&self, endpoints: Vec<String>) {
        self.endpoints.send_replace(endpoints);
        tokio::time::sleep(REST * 10).await;
    }

    /// What happened since the last look: how many, how long, failures in all.
    pub(super) fn look(&self) -> (Histogram, u64) {
        let mut results = self.shared.results.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = std::mem::replace(&mut results.recent, Histogram::new());
        (recent, results.errors.values().sum())
    }

    /// Ends the writing and reads everything again.
    pub(super) async fn stop(&self) -> Result<Summary, Failure> {
        let gap = self.shared.gaps.longest(Instant::now());
        let endpoints = self.endpoints.send_replace(Vec::new());
        let mut clients = {
            let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *clients)
        };
        let mut acknowledged = Acknowledged::new();
        while let Some(one) = clients.join_next().await {
            acknowledged.extend(one.unwrap_or_default());
        }
        let found = read_all(&endpoints).await?;
        let is_lost =
            |(key, number): &(&String, &u64)| found.get(*key).is_none_or(|is| is < number);
        let lost = acknowledged.iter().filter(is_lost).count() as u64;
        let results = self.shared.results.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Summary {
            times: results.times.clone(),
            gap,
            errors: results.errors.clone(),
            checked: acknowledged.len() as u64,
            lost,
        })
    }
}

impl Shared {
    fn succeeded(&self, took: Duration, at: Instant) {
        self.gaps.succeeded(at);
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        results.times.record(took);
        results.recent.record(took);
    }

    fn failed(&self, why: String) {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        *results.errors.entry(why).or_default() += 1;
    }
}

struct Client {
    number: u32,
    endpoints: watch::Receiver<Vec<String>>,
    shared: Arc<Shared>,
    /// How often it went on to the next endpoint.
    moves: usize,
    asked: Option<(String, KvClient<Channel>)>,
}

impl Client {
    fn new(number: u32, endpoints: watch::Receiver<Vec<String>>, shared: Arc<Shared>) -> Self {
        Self { number, endpoints, shared, moves: 0, asked: None }
    }

    /// Until there is nobody left to ask.
    async fn run(mut self) -> Acknowledged {
        let mut acknowledged = Acknowledged::new();
        for write in 1.. {
            let Some(mut kv) = self.choose().await else { break };
            let key = format!("demo/{}/{}", self.number, write % SLOTS);
            let began = Instant::now();
            match put(&mut kv, &key, write).await {
                Ok(()) => {
                    let now = Instant::now();
                    self.shared.succeeded(now - began, now);
                    acknowledged.insert(key, write);
                }
                Err(status) => {
                    self.shared.failed(said(&status));
                    self.move_on();
                }
            }
            tokio::time::sleep(REST).await;
        }
        acknowledged
    }

    /// The one asked before if it still counts, else the next that can be reached.
    async fn choose(&mut self) -> Option<KvClient<Channel>> {
        loop {
            let endpoints = self.endpoints.borrow_and_update().clone();
            if endpoints.is_empty() {
                return None;
            }
            if let Some((_, kv)) = self.asked.as_ref().filter(|(url, _)| endpoints.contains(url)) {
                return Some(kv.clone());
            }
            let url = &endpoints[(self.number as usize + self.moves) % endpoints.len()];
            match client::open(url, DIAL_TIMEOUT, REQUEST_TIMEOUT).await {
                Ok(connection) => {
                    self.asked = Some((url.clone(), KvClient::new(connection.channel)));
                }
                Err(failure) => {
                    self.shared.failed(failure.to_string());
                    self.move_on();
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }

    fn move_on(&mut self) {
        self.asked = None;
        self.moves += 1;
    }
}

async fn put(kv: &mut KvClient<Channel>, key: &str, number: u64) -> Result<(), Status> {
    let request = etcd::PutRequest {
        key: Bytes::from(key.to_string()),
        value: Bytes::from(number.to_string()),
        ..Default::default()
    };
    let answer = tokio::time::timeout(REQUEST_TIMEOUT, kv.put(request)).await;
    let answer =
        answer.unwrap_or_else(|_| Err(Status::new(Code::DeadlineExceeded, "no answer in time")));
    answer.map(|_| ())
}

async fn read_all(endpoints: &[String]) -> Result<Acknowledged, Failure> {
    let first = endpoints.first().ok_or_else(|| Failure::failed("nobody is left to ask"))?;
    let connection = client::open(first, DIAL_TIMEOUT, REQUEST_TIMEOUT).await?;
    let request = etcd::RangeRequest {
        key: Bytes::from_static(b"demo/"),
        range_end: Bytes::from_static(b"demo0"),
        ..Default::default()
    };
    let reply = KvClient::new(connection.channel.clone()).range(connection.request(request)).await;
    let reply = reply
        .map_err(|status| Failure::answered("cannot read back", &connection.endpoint, &status))?;
    let pairs = reply.into_inner().kvs.into_iter().map(|kv| {
        let number = std::str::from_utf8(&kv.value).ok().and_then(|text| text.parse().ok());
        (String::from_utf8_lossy(&kv.key).into_owned(), number.unwrap_or(0))
    });
    Ok(pairs.collect())
}
