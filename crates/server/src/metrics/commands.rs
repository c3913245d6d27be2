//! Counts the commands that are applied, under etcd's names.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate_kv::{Applied, CommandObserver, KvOutcome};

use super::histogram::{DurationHistogram, LEASE_TTLS, SHORT};
use super::{MetricsPage, get};

/// The commands that this member has applied since it started.
#[derive(Debug)]
pub(crate) struct CommandMetrics {
    started: Instant,
    puts: AtomicU64,
    deletes: AtomicU64,
    /// Also those of requests that are not in the log.
    pub(crate) ranges: AtomicU64,
    /// Transactions with more than one operation, as etcd counts them.
    txns: AtomicU64,
    put_bytes: AtomicU64,
    leases_granted: AtomicU64,
    leases_revoked: AtomicU64,
    lease_ttls: DurationHistogram,
    /// For each of `OPERATIONS`, that of failed commands and that of the others.
    durations: Vec<[DurationHistogram; 2]>,
}

/// The operations with a duration, by etcd's names.
const OPERATIONS: [&str; 9] = [
    "Put",
    "DeleteRange",
    "Txn",
    "Compaction",
    "LeaseGrant",
    "LeaseRevoke",
    "LeaseCheckpoint",
    "Alarm",
    "Auth",
];

impl Default for CommandMetrics {
    fn default() -> Self {
        let histograms = |_| [DurationHistogram::new(SHORT), DurationHistogram::new(SHORT)];
        Self {
            started: Instant::now(),
            puts: AtomicU64::new(0),
            deletes: AtomicU64::new(0),
            ranges: AtomicU64::new(0),
            txns: AtomicU64::new(0),
            put_bytes: AtomicU64::new(0),
            leases_granted: AtomicU64::new(0),
            leases_revoked: AtomicU64::new(0),
            lease_ttls: DurationHistogram::new(LEASE_TTLS),
            durations: OPERATIONS.iter().map(histograms).collect(),
        }
    }
}

/// How many operations a command ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OperationCounts {
    puts: u64,
    deletes: u64,
    ranges: u64,
}

impl OperationCounts {
    fn of(outcome: &KvOutcome) -> Self {
        let mut counts = Self::default();
        counts.add(outcome);
        counts
    }

    fn add(&mut self, outcome: &KvOutcome) {
        match outcome {
            KvOutcome::Put(_) => self.puts += 1,
            KvOutcome::DeleteRange(_) => self.deletes += 1,
            KvOutcome::Range(_) => self.ranges += 1,
            KvOutcome::Txn(txn) => txn.responses.iter().for_each(|part| self.add(&part.outcome)),
            _ => {}
        }
    }

    fn total(self) -> u64 {
        self.puts + self.deletes + self.ranges
    }
}

impl CommandObserver for CommandMetrics {
    fn begin(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn applied(&self, began: u64, applied: &Applied) {
        let took = Duration::from_nanos(self.begin().saturating_sub(began));
        let operation = OPERATIONS.iter().position(|name| *name == applied.operation);
        if let Some(histograms) = operation.and_then(|number| self.durations.get(number)) {
            histograms[usize::from(applied.reply.result.is_ok())].observe(took);
        }
        let Ok(outcome) = &applied.reply.result else { return };
        let counts = OperationCounts::of(outcome);
        add(&self.puts, counts.puts);
        add(&self.deletes, counts.deletes);
        add(&self.ranges, counts.ranges);
        add(&self.txns, u64::from(counts.total() > 1));
        add(&self.put_bytes, applied.put_bytes);
        if let KvOutcome::Lease(lease) = outcome {
            add(&self.leases_granted, 1);
            self.lease_ttls.observe(Duration::from_secs(lease.ttl.max(0) as u64));
        }
        add(&self.leases_revoked, u64::from(applied.operation == "LeaseRevoke"));
    }
}

impl CommandMetrics {
    /// A read outside the log ran these operations.
    pub(crate) fn on_read(&self, outcome: &KvOutcome) {
        let counts = OperationCounts::of(outcome);
        add(&self.ranges, counts.ranges);
        add(&self.txns, u64::from(counts.total() > 1));
    }

    pub(super) fn write(&self, page: &mut MetricsPage) {
        page.counter("etcd_mvcc_put_total", "Puts seen by this member.", get(&self.puts));
        page.counter("etcd_mvcc_delete_total", "Deletes seen by this member.", get(&self.deletes));
        page.counter("etcd_mvcc_range_total", "Ranges seen by this member.", get(&self.ranges));
        let help = "Transactions of more than one operation seen by this member.";
        page.counter("etcd_mvcc_txn_total", help, get(&self.txns));
        let name = "etcd_debugging_mvcc_total_put_size_in_bytes";
        page.gauge(name, "Size of all keys and values put.", get(&self.put_bytes));
        let name = "etcd_debugging_lease_granted_total";
        page.counter(name, "Leases granted.", get(&self.leases_granted));
        let name = "etcd_debugging_lease_revoked_total";
        page.counter(name, "Leases revoked, also those that expired.", get(&self.leases_revoked));
        let name = "etcd_debugging_lease_ttl_total";
        page.histogram(name, "TTLs of granted leases in seconds.", &self.lease_ttls);
        let name = "etcd_server_apply_duration_seconds";
        page.head(name, "histogram", "Duration of applying a command, by operation.");
        for (operation, histograms) in OPERATIONS.iter().zip(&self.durations) {
            for (success, histogram) in ["false", "true"].iter().zip(histograms) {
                if histogram.count() > 0 {
                    let labels = format!("op=\"{operation}\",success=\"{success}\",version=\"v3\"");
                    page.buckets(name, &labels, histogram);
                }
            }
        }
    }
}

fn add(count: &AtomicU64, more: u64) {
    if more > 0 {
        count.fetch_add(more, Ordering::Relaxed);
    }
}
