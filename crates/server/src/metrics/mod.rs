//! Numbers under etcd's names, as text for Prometheus.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate::{Event, Index, Observer};

use crate::context::Context;

/// Measures what only happens inside the member.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    syncs: Histogram,
    applies: Histogram,
    leader_changes: AtomicU64,
}

impl Observer for Measured {
    fn on_event(&self, event: &Event) {
        if let Event::Leader { leader: Some(_), .. } = event {
            self.leader_changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn on_sync(&self, took: Duration, _saves: u64) {
        self.syncs.observe(took);
    }

    fn on_applied(&self, _index: Index, _entries: u64, took: Duration) {
        self.applies.observe(took);
    }
}

/// How often something took how long, in etcd's buckets: from 1 ms, each twice the last.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    count: AtomicU64,
    micros: AtomicU64,
}

const BUCKETS: usize = 14;

impl Histogram {
    fn observe(&self, took: Duration) {
        let bound = |at: usize| Duration::from_millis(1 << at);
        if let Some(at) = (0..BUCKETS).find(|at| took <= bound(*at)) {
            self.buckets[at].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }
}

/// The page as it is being written.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a text cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.text, "{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        let _ = writeln!(self.text, "{name} {value}");
    }

    fn histogram(&mut self, name: &str, help: &str, values: &Histogram) {
        self.head(name, "histogram", help);
        let mut sum = 0;
        for (at, bucket) in values.buckets.iter().enumerate() {
            sum += bucket.load(Ordering::Relaxed);
            let bound = f64::from(1_u32 << at) / 1_000.0;
            let _ = writeln!(self.text, "{name}_bucket{{le=\"{bound}\"}} {sum}");
        }
        let count = values.count.load(Ordering::Relaxed);
        let seconds = values.micros.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(self.text, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(self.text, "{name}_sum {seconds}\n{name}_count {count}");
    }
}

/// The whole page.
pub(crate) async fn page(context: &Context, measured: &Measured) -> String {
    let mut page = Page::default();
    server(&mut page, context, measured).await;
    store(&mut page, context);
    network(&mut page, context);
    process(&mut page);
    page.text
}

async fn server(page: &mut Page, context: &Context, measured: &Measured) {
    let node = &context.node;
    let metrics = node.metrics();
    let flag = u8::from;
    let has_leader = flag(node.leader().is_some());
    page.gauge("etcd_server_has_leader", "Whether a leader is known.", has_leader);
    page.gauge("etcd_server_is_leader", "Whether this one leads.", flag(node.is_leader()));
    page.gauge("etcd_server_is_learner", "Whether it has no vote.", flag(context.is_learner()));
    let changes = measured.leader_changes.load(Ordering::Relaxed);
    page.counter("etcd_server_leader_changes_seen_total", "Leaders seen.", changes);
    if let Ok(status) = node.status().await {
        let log = status.raft.log;
        page.gauge("etcd_server_proposals_committed_total", "Entries committed.", log.commit);
        page.gauge("etcd_server_proposals_applied_total", "Entries applied.", log.applied);
    }
    let open = metrics.open_requests;
    page.gauge("etcd_server_proposals_pending", "Requests without an answer.", open);
    let failed = metrics.refused + metrics.unknown;
    page.counter("etcd_server_proposals_failed_total", "Requests not done.", failed);
    page.head("etcd_server_id", "gauge", "Which member this is.");
    let _ = writeln!(page.text, "etcd_server_id{{server_id=\"{:x}\"}} 1", node.id().0);
    page.head("etcd_server_version", "gauge", "Which version it speaks.");
    let version = crate::ETCD_VERSION;
    let _ = writeln!(page.text, "etcd_server_version{{server_version=\"{version}\"}} 1");
    let name = "etcd_disk_wal_fsync_duration_seconds";
    page.histogram(name, "How long the log took to become durable.", &measured.syncs);
    let name = "etcd_disk_backend_commit_duration_seconds";
    page.histogram(name, "How long a batch of entries took to run.", &measured.applies);
}

fn store(page: &mut Page, context: &Context) {
    let watchers = context.store.watchers();
    let kv = context.store.read();
    let (used, total) = (kv.bytes_in_use(), kv.bytes_total().unwrap_or_default());
    page.gauge("etcd_mvcc_db_total_size_in_bytes", "What the data takes up.", total);
    page.gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "What of it is in use.", used);
    let quota = kv.quota().bytes;
    page.gauge("etcd_server_quota_backend_bytes", "How large the data may grow.", quota);
    page.gauge("etcd_debugging_mvcc_keys_total", "Keys, deleted ones too.", kv.keys_known());
    page.gauge("etcd_debugging_mvcc_watcher_total", "Watchers.", watchers);
    let (now, compacted) = (kv.revision(), kv.compact_revision().max(0));
    page.gauge("etcd_debugging_mvcc_current_revision", "The newest revision.", now);
    page.gauge("etcd_debugging_mvcc_compact_revision", "The compacted revision.", compacted);
}

fn network(page: &mut Page, context: &Context) {
    let transport = context.node.metrics().transport;
    let count = |name: &str| transport.get(name).copied().unwrap_or_default();
    page.counter("etcd_network_peer_sent_bytes_total", "To peers.", count("bytes_sent"));
    page.counter("etcd_network_peer_received_bytes_total", "From peers.", count("bytes_received"));
    let dropped = transport.iter().filter(|(name, _)| name.starts_with("dropped_"));
    let dropped = dropped.map(|(_, count)| count).sum();
    page.counter("etcd_network_peer_sent_failures_total", "Not sent to peers.", dropped);
    page.head("quorate_transport_total", "counter", "What the peer port counts, by name.");
    for (name, count) in &transport {
        let _ = writeln!(page.text, "quorate_transport_total{{what=\"{name}\"}} {count}");
    }
}

/// Where the system tells.
fn process(page: &mut Page) {
    let Ok(statm) = std::fs::read_to_string("/proc/self/statm") else { return };
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    if let Some(pages) = pages {
        let name = "process_resident_memory_bytes";
        page.gauge(name, "Memory in use.", pages.saturating_mul(PAGE_BYTES));
    }
}

const PAGE_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_everything_below_them() {
        let histogram = Histogram::default();
        for millis in [1, 3, 3, 100_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let mut page = Page::default();
        page.histogram("x", "y", &histogram);
        for line in [
            "x_bucket{le=\"0.001\"} 1",
            "x_bucket{le=\"0.004\"} 3",
            "x_bucket{le=\"8.192\"} 3",
            "x_bucket{le=\"+Inf\"} 4",
            "x_sum 100.007",
        ] {
            assert!(page.text.lines().any(|found| found == line), "{line} in {}", page.text);
        }
    }
}
