//! One client: asks, waits, asks again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::arguments::{BenchArguments, Operation};
use crate::failure::{Failure, said};
use crate::gaps::Gaps;
use crate::histogram::Histogram;

/// A server that refuses at once must not be asked in a circle.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);
/// Different texts of errors that are kept apart.
const ERROR_KINDS_MAX: usize = 8;

/// What all clients of a run share.
pub(crate) struct Work {
    pub(crate) arguments: Arc<BenchArguments>,
    pub(crate) began: Instant,
    pub(crate) until: Instant,
    pub(crate) gaps: Gaps,
}

/// What came of it.
pub(crate) struct Outcome {
    pub(crate) times: Histogram,
    pub(crate) errors: BTreeMap<String, u64>,
    /// Events that watchers did not see though the writes behind them succeeded.
    pub(crate) missing: u64,
}

impl Outcome {
    pub(crate) fn new() -> Self {
        Self { times: Histogram::new(), errors: BTreeMap::new(), missing: 0 }
    }

    pub(crate) fn failed(&mut self, why: String) {
        let known = self.errors.len() < ERROR_KINDS_MAX || self.errors.contains_key(&why);
        *self.errors.entry(if known { why } else { "other".to_string() }).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.times.add(&other.times);
        self.missing += other.missing;
        for (why, count) in &other.errors {
            let known = self.errors.len() < ERROR_KINDS_MAX || self.errors.contains_key(why);
            let why = if known { why.clone() } else { "other".to_string() };
            *self.errors.entry(why).or_default() += count;
        }
    }

    pub(crate) fn errors_total(&self) -> u64 {
        self.errors.values().sum()
    }

    pub(crate) fn first_error(&self) -> &str {
        self.errors.keys().next().map_or("no answer came in time", String::as_str)
    }
}

pub(crate) async fn run(number: u32, channel: Channel, work: Arc<Work>) -> Outcome {
    let mut kv = KvClient::new(channel);
    let mut outcome = Outcome::new();
    let mut draw = Draw::new(number);
    loop {
        let began = Instant::now();
        if began >= work.until {
            return outcome;
        }
        let value = value(&work, began);
        let key = key(draw.below(work.arguments.keys));
        let asked = ask(&mut kv, &work.arguments, key, value);
        let answer = tokio::time::timeout(work.arguments.client.command_timeout, asked).await;
        let answer = answer
            .unwrap_or_else(|_| Err(Status::new(Code::DeadlineExceeded, "no answer in time")));
        let now = Instant::now();
        match answer {
            Ok(()) => {
                outcome.times.record(now - began);
                // What a watcher sees is a success of watching; the writes are only its cause.
                if work.arguments.operation != Operation::Watch {
                    work.gaps.succeeded(now);
                }
            }
            Err(status) => {
                outcome.failed(said(&status));
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

async fn ask(
    kv: &mut KvClient<Channel>,
    arguments: &BenchArguments,
    key: Bytes,
    value: Bytes,
) -> Result<(), Status> {
    match arguments.operation {
        Operation::Put | Operation::Watch => kv.put(put(key, value)).await.map(|_| ()),
        Operation::Get => {
            let serializable = arguments.serializable;
            let request = etcd::RangeRequest { key, serializable, ..Default::default() };
            kv.range(request).await.map(|_| ())
        }
        Operation::Txn => kv.txn(create_or_update(key, value)).await.map(|_| ()),
    }
}

fn put(key: Bytes, value: Bytes) -> etcd::PutRequest {
    etcd::PutRequest { key, value, ..Default::default() }
}

/// Create it if it is not there, else read and write it: what a Kubernetes does all day.
fn create_or_update(key: Bytes, value: Bytes) -> etcd::TxnRequest {
    use quorate_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
    use quorate_proto::etcdserverpb::request_op::Request;
    let operation = |request| etcd::RequestOp { request: Some(request) };
    let absent = etcd::Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.clone(),
        target_union: Some(TargetUnion::CreateRevision(0)),
        ..Default::default()
    };
    let read = etcd::RangeRequest { key: key.clone(), ..Default::default() };
    let write = operation(Request::RequestPut(put(key, value)));
    etcd::TxnRequest {
        compare: vec![absent],
        success: vec![write.clone()],
        failure: vec![operation(Request::RequestRange(read)), write],
    }
}

/// Writes every key once, so that reads find something.
pub(crate) async fn fill(
    channels: &[Channel],
    arguments: &Arc<BenchArguments>,
) -> Result<(), Failure> {
    let clients = u64::from(arguments.clients);
    let mut filling = JoinSet::new();
    for (number, channel) in (0..clients).zip(channels.iter().cycle()) {
        let mut kv = KvClient::new(channel.clone());
        let arguments = arguments.clone();
        filling.spawn(async move {
            let value = Bytes::from(vec![b'v'; arguments.value_bytes as usize]);
            let mut at = number;
            while at < arguments.keys {
                kv.put(put(key(at), value.clone())).await?;
                at += clients;
            }
            Ok::<(), Status>(())
        });
    }
    for filled in filling.join_all().await {
        filled.map_err(|status| {
            Failure::failed(format!("cannot write keys to read: {}", said(&status)))
        })?;
    }
    Ok(())
}

pub(crate) const PREFIX: &str = "bench/";

fn key(number: u64) -> Bytes {
    Bytes::from(format!("{PREFIX}{number:012}"))
}

/// Begins with the time of writing, for who watches; the rest is to have the size.
fn value(work: &Work, now: Instant) -> Bytes {
    let nanos = u64::try_from((now - work.began).as_nanos()).unwrap_or(u64::MAX);
    let mut value = vec![b'v'; work.arguments.value_bytes as usize];
    value[..8].copy_from_slice(&nanos.to_be_bytes());
    Bytes::from(value)
}

/// Which key is next: spread evenly, the same in every run.
struct Draw(u64);

impl Draw {
    fn new(number: u32) -> Self {
        Self(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_stay_few() {
        let mut outcome = Outcome::new();
        (0..100).for_each(|number| outcome.failed(format!("error {number}")));
        outcome.failed("error 1".to_string());
        assert_eq!(outcome.errors_total(), 101);
        assert_eq!(outcome.errors.len(), ERROR_KINDS_MAX + 1);
        assert_eq!(outcome.errors["error 1"], 2);
        let mut sum = Outcome::new();
        sum.add(&outcome);
        sum.add(&outcome);
        assert_eq!(sum.errors_total(), 202);
        assert_eq!(sum.errors.len(), ERROR_KINDS_MAX + 1);
    }

    #[test]
    fn keys_are_spread() {
        let mut draw = Draw::new(3);
        let drawn: std::collections::BTreeSet<u64> = (0..1000).map(|_| draw.below(10)).collect();
        assert_eq!(drawn.len(), 10);
        assert_ne!(Draw::new(1).below(1 << 60), Draw::new(2).below(1 << 60));
    }
}
