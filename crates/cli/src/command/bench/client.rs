//! What the clients of a benchmark send, and their results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use prost::Message;
use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use tokio::task::JoinSet;
use tonic::Status;

use crate::arguments::{BenchArguments, BenchOperation};
use crate::client::ClientChannel;
use crate::error::{CliError, status_text};
use crate::gaps::Gaps;
use crate::histogram::LatencyHistogram;

/// Different error texts that are counted separately.
const ERROR_KINDS_MAX: usize = 8;

/// Shared by all clients of a run.
pub(crate) struct BenchRun {
    pub(crate) arguments: Arc<BenchArguments>,
    pub(crate) started: Instant,
    pub(crate) until: Instant,
    pub(crate) gaps: Gaps,
}

impl BenchRun {
    /// Whether a reply counts as a success. For `watch`, it is the arrival of an event.
    pub(super) fn counts_writes(&self) -> bool {
        self.arguments.operation != BenchOperation::Watch
    }
}

/// The results of one client, or the sum of several.
pub(crate) struct BenchResult {
    pub(crate) times: LatencyHistogram,
    pub(crate) errors: BTreeMap<String, u64>,
    /// Events that watchers did not receive although their writes succeeded.
    pub(crate) missing: u64,
}

impl BenchResult {
    pub(crate) fn new() -> Self {
        Self { times: LatencyHistogram::new(), errors: BTreeMap::new(), missing: 0 }
    }

    pub(crate) fn failed(&mut self, error: String) {
        self.count_errors(error, 1);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.times.add(&other.times);
        self.missing += other.missing;
        for (error, count) in &other.errors {
            self.count_errors(error.clone(), *count);
        }
    }

    fn count_errors(&mut self, error: String, count: u64) {
        let separate = self.errors.len() < ERROR_KINDS_MAX || self.errors.contains_key(&error);
        let error = if separate { error } else { "other".to_string() };
        *self.errors.entry(error).or_default() += count;
    }

    pub(crate) fn errors_total(&self) -> u64 {
        self.errors.values().sum()
    }

    pub(crate) fn first_error(&self) -> &str {
        self.errors.keys().next().map_or("no reply in time", String::as_str)
    }
}

/// One client: what it sends.
pub(super) struct ClosedLoopClient(KeySequence);

impl ClosedLoopClient {
    pub(super) fn new(number: u32) -> Self {
        Self(KeySequence::new(number))
    }

    /// The next request, which begins now.
    pub(super) fn next_request(&mut self, run: &BenchRun, now: Instant) -> LoadRequest {
        let arguments = &run.arguments;
        let key = key(self.0.below(arguments.keys));
        match self.0.operation(arguments.operation) {
            BenchOperation::Put | BenchOperation::Watch => {
                LoadRequest::Put(put(key, value(run, now)))
            }
            BenchOperation::Get | BenchOperation::Mixed => {
                let serializable = arguments.serializable;
                LoadRequest::Range(etcd::RangeRequest { key, serializable, ..Default::default() })
            }
            BenchOperation::Txn => LoadRequest::Txn(create_or_update(key, value(run, now))),
            BenchOperation::Lease => {
                let ttl = LEASE_SECONDS;
                LoadRequest::Lease(etcd::LeaseGrantRequest { ttl, ..Default::default() })
            }
        }
    }
}

pub(super) enum LoadRequest {
    Put(etcd::PutRequest),
    Range(etcd::RangeRequest),
    Txn(etcd::TxnRequest),
    Lease(etcd::LeaseGrantRequest),
}

impl LoadRequest {
    pub(super) fn path(&self) -> &'static str {
        match self {
            Self::Put(_) => "/etcdserverpb.KV/Put",
            Self::Range(_) => "/etcdserverpb.KV/Range",
            Self::Txn(_) => "/etcdserverpb.KV/Txn",
            Self::Lease(_) => "/etcdserverpb.Lease/LeaseGrant",
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Put(request) => request.encode_raw(out),
            Self::Range(request) => request.encode_raw(out),
            Self::Txn(request) => request.encode_raw(out),
            Self::Lease(request) => request.encode_raw(out),
        }
    }
}

fn put(key: Bytes, value: Bytes) -> etcd::PutRequest {
    etcd::PutRequest { key, value, ..Default::default() }
}

/// Creates the key if it does not exist, else reads and updates it, as Kubernetes does.
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

/// Writes every key once, so that reads find a value. Many keys with each request: this is not measured.
pub(crate) async fn fill(
    channels: &[ClientChannel],
    arguments: &Arc<BenchArguments>,
) -> Result<(), CliError> {
    let clients = u64::from(arguments.clients);
    let mut filling = JoinSet::new();
    for (number, channel) in (0..clients).zip(channels.iter().cycle()) {
        let mut kv = KvClient::new(channel.clone());
        let arguments = arguments.clone();
        filling.spawn(async move {
            let value = Bytes::from(vec![b'v'; arguments.value_bytes as usize]);
            let fitting = FILL_BYTES_MAX / u64::from(arguments.value_bytes).max(1);
            let at_once = fitting.clamp(1, FILL_KEYS_MAX);
            let mut first = number * at_once;
            while first < arguments.keys {
                let keys = first..arguments.keys.min(first + at_once);
                kv.txn(put_all(keys, &value)).await?;
                first += clients * at_once;
            }
            Ok::<(), Status>(())
        });
    }
    for filled in filling.join_all().await {
        filled.map_err(|status| {
            CliError::failed(format!("cannot write the keys to read: {}", status_text(&status)))
        })?;
    }
    Ok(())
}

fn put_all(keys: std::ops::Range<u64>, value: &Bytes) -> etcd::TxnRequest {
    let operation = |index| {
        let put = put(key(index), value.clone());
        etcd::RequestOp { request: Some(etcd::request_op::Request::RequestPut(put)) }
    };
    etcd::TxnRequest { success: keys.map(operation).collect(), ..Default::default() }
}

/// Keys that are written at once before a measurement: fewer than a transaction of etcd may have.
const FILL_KEYS_MAX: u64 = 100;
/// And bytes of their values, far below the limit of a request.
const FILL_BYTES_MAX: u64 = 256 << 10;
/// Longer than any run.
const LEASE_SECONDS: i64 = 3600;

pub(crate) const PREFIX: &str = "bench/";

fn key(number: u64) -> Bytes {
    Bytes::from(format!("{PREFIX}{number:012}"))
}

/// Starts with the time of the write, for watchers, and is padded to the requested size.
fn value(run: &BenchRun, now: Instant) -> Bytes {
    let nanos = u64::try_from((now - run.started).as_nanos()).unwrap_or(u64::MAX);
    let mut value = vec![b'v'; run.arguments.value_bytes as usize];
    value[..8].copy_from_slice(&nanos.to_be_bytes());
    Bytes::from(value)
}

/// Reads for each write of `mixed`.
const MIXED_READS: u64 = 3;

/// Pseudo-random key numbers, the same in every run.
struct KeySequence(u64);

impl KeySequence {
    fn new(number: u32) -> Self {
        Self(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// What the next request does.
    fn operation(&mut self, operation: BenchOperation) -> BenchOperation {
        match operation {
            BenchOperation::Mixed if self.below(MIXED_READS + 1) == 0 => BenchOperation::Put,
            BenchOperation::Mixed => BenchOperation::Get,
            operation => operation,
        }
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
    fn the_number_of_error_texts_is_bounded() {
        let mut result = BenchResult::new();
        (0..100).for_each(|number| result.failed(format!("error {number}")));
        result.failed("error 1".to_string());
        assert_eq!(result.errors_total(), 101);
        assert_eq!(result.errors.len(), ERROR_KINDS_MAX + 1);
        assert_eq!(result.errors["error 1"], 2);
        let mut sum = BenchResult::new();
        sum.add(&result);
        sum.add(&result);
        assert_eq!(sum.errors_total(), 202);
        assert_eq!(sum.errors.len(), ERROR_KINDS_MAX + 1);
    }

    #[test]
    fn a_quarter_of_mixed_requests_writes() {
        let mut keys = KeySequence::new(3);
        let operations = (0..10_000).map(|_| keys.operation(BenchOperation::Mixed));
        let writes = operations.filter(|operation| *operation == BenchOperation::Put).count();
        assert!((2_300..2_700).contains(&writes), "{writes}");
        assert_eq!(keys.operation(BenchOperation::Txn), BenchOperation::Txn);
    }

    #[test]
    fn keys_are_spread_evenly() {
        let mut keys = KeySequence::new(3);
        let drawn: std::collections::BTreeSet<u64> = (0..1000).map(|_| keys.below(10)).collect();
        assert_eq!(drawn.len(), 10);
        assert_ne!(KeySequence::new(1).below(1 << 60), KeySequence::new(2).below(1 << 60));
    }
}
