//! Numbers under etcd's names, as text for Prometheus: here the page, beside it what counts.

mod calls;
mod histogram;
mod measured;
mod methods;
mod process;
mod traffic;

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use calls::Counted;
pub(crate) use measured::{Measured, Tally};
pub(crate) use traffic::{Metered, Traffic};

use crate::context::Context;
use crate::member_info::address_of;
use calls::{CODES, Calls, Counts};
use histogram::Histogram;
use methods::Method;

/// The whole page.
pub(crate) async fn page(context: &Context, measured: &Measured) -> String {
    let mut page = Page::default();
    server(&mut page, context, measured).await;
    tallied(&mut page, &context.tally, measured);
    store(&mut page, context);
    peers(&mut page, context, measured);
    clients(&mut page, measured);
    grpc(&mut page, &measured.calls);
    process::write(&mut page);
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
    let changes = get(&measured.leader_changes);
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
    let id = format!("server_id=\"{:x}\"", node.id().0);
    page.named("etcd_server_id", "Which member this is.", &id);
    let version = format!("server_version=\"{}\"", crate::ETCD_VERSION);
    page.named("etcd_server_version", "Which version it speaks.", &version);
    let version = format!("cluster_version=\"{}\"", crate::http::cluster_version());
    page.named("etcd_cluster_version", "Which version all members speak.", &version);
    let name = "etcd_disk_wal_fsync_duration_seconds";
    page.histogram(name, "How long the log took to become durable.", &measured.syncs);
    let name = "etcd_disk_backend_commit_duration_seconds";
    page.histogram(name, "How long a batch of entries took to run.", &measured.applies);
}

fn tallied(page: &mut Page, tally: &Tally, measured: &Measured) {
    let slow = get(&measured.slow_applies);
    page.counter("etcd_server_slow_apply_total", "Batches that took over 100 ms.", slow);
    let slow = get(&tally.reads_not_confirmed);
    page.counter("etcd_server_slow_read_indexes_total", "Reads that nobody confirmed.", slow);
    page.counter("etcd_server_health_success", "Healthy when asked.", get(&tally.healthy));
    page.counter("etcd_server_health_failures", "Not healthy when asked.", get(&tally.unhealthy));
    let name = "etcd_server_learner_promote_successes";
    page.counter(name, "Learners given a vote here.", get(&tally.promoted));
    let name = "etcd_server_learner_promote_failures";
    page.counter(name, "Learners refused a vote here.", get(&tally.not_promoted));
}

fn store(page: &mut Page, context: &Context) {
    let watchers = context.store.watchers();
    let kv = context.store.read();
    let (used, total) = (kv.bytes_in_use(), kv.bytes_total().unwrap_or_default());
    page.gauge("etcd_mvcc_db_total_size_in_bytes", "What the data takes up.", total);
    page.gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "What of it is in use.", used);
    let quota = kv.quota().bytes;
    page.gauge("etcd_server_quota_backend_bytes", "How large the data may grow.", quota);
    page.gauge("etcd_debugging_mvcc_keys_total", "Keys, deleted ones too.", kv.key_count());
    page.gauge("etcd_debugging_mvcc_watcher_total", "Watchers.", watchers);
    let (now, compacted) = (kv.revision(), kv.compact_revision().max(0));
    page.gauge("etcd_debugging_mvcc_current_revision", "The newest revision.", now);
    page.gauge("etcd_debugging_mvcc_compact_revision", "The compacted revision.", compacted);
}

fn peers(page: &mut Page, context: &Context, measured: &Measured) {
    let transport = context.node.metrics().transport;
    let count = |name: &str| transport.get(name).copied().unwrap_or_default();
    page.counter("etcd_network_peer_sent_bytes_total", "To peers.", count("bytes_sent"));
    page.counter("etcd_network_peer_received_bytes_total", "From peers.", count("bytes_received"));
    let dropped = transport.iter().filter(|(name, _)| name.starts_with("dropped_"));
    let dropped: u64 = dropped.map(|(_, count)| count).sum();
    page.counter("etcd_network_peer_sent_failures_total", "Not sent to peers.", dropped);
    let name = "etcd_network_peer_round_trip_time_seconds";
    page.head(name, "histogram", "How long a peer takes to answer.");
    let membership = context.node.membership();
    for id in membership.members().iter() {
        let address = membership.info(id).and_then(address_of);
        if let Some(times) = address.and_then(|address| measured.round_trips(&address)) {
            page.buckets(name, &format!("To=\"{:x}\"", id.0), &times);
        }
    }
    page.head("quorate_transport_total", "counter", "What the peer port counts, by name.");
    for (name, count) in &transport {
        page.line("quorate_transport_total", &format!("what=\"{name}\""), count);
    }
}

/// With everything that belongs to HTTP, as it is on the wire.
fn clients(page: &mut Page, measured: &Measured) {
    let Traffic { received, sent } = &*measured.traffic;
    let name = "etcd_network_client_grpc_received_bytes_total";
    page.counter(name, "From clients.", get(received));
    let name = "etcd_network_client_grpc_sent_bytes_total";
    page.counter(name, "To clients.", get(sent));
}

fn grpc(page: &mut Page, calls: &Calls) {
    let labels = |method: &Method| {
        let (kind, name) = (method.kind.name(), method.name());
        let service = method.service();
        format!("grpc_method=\"{name}\",grpc_service=\"{service}\",grpc_type=\"{kind}\"")
    };
    type Which = fn(&Counts) -> &AtomicU64;
    let simple: [(&str, &str, Which); 3] = [
        ("grpc_server_started_total", "Calls begun.", |counts| &counts.started),
        ("grpc_server_msg_received_total", "Messages of clients.", |counts| &counts.received),
        ("grpc_server_msg_sent_total", "Messages to clients.", |counts| &counts.sent),
    ];
    for (name, help, which) in simple {
        page.head(name, "counter", help);
        for (method, counts) in calls.iter() {
            page.line(name, &labels(method), get(which(counts)));
        }
    }
    let name = "grpc_server_handled_total";
    page.head(name, "counter", "Calls ended, by how.");
    for (method, counts) in calls.iter() {
        for (code, count) in CODES.iter().zip(&counts.handled) {
            let count = get(count);
            if count > 0 || *code == "OK" {
                page.line(name, &format!("grpc_code=\"{code}\",{}", labels(method)), count);
            }
        }
    }
    if calls.is_timed() {
        let name = "grpc_server_handling_seconds";
        page.head(name, "histogram", "How long calls took.");
        for (method, counts) in calls.iter() {
            page.buckets(name, &labels(method), &counts.took);
        }
    }
}

fn get(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// The page as it is being written. Writing to a text cannot fail.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.text, "{name} {value}"),
            _ => writeln!(self.text, "{name}{{{labels}}} {value}"),
        };
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.line(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "counter", help);
        self.line(name, "", value);
    }

    /// Something that is told by its label.
    fn named(&mut self, name: &str, help: &str, label: &str) {
        self.head(name, "gauge", help);
        self.line(name, label, 1);
    }

    fn histogram(&mut self, name: &str, help: &str, values: &Histogram) {
        self.head(name, "histogram", help);
        self.buckets(name, "", values);
    }

    fn buckets(&mut self, name: &str, labels: &str, values: &Histogram) {
        let comma = if labels.is_empty() { "" } else { "," };
        let bucket = format!("{name}_bucket");
        // Before the buckets: what is counted meanwhile must not make them larger than all.
        let (count, seconds) = (values.count(), values.seconds());
        for (bound, sum) in values.sums() {
            self.line(&bucket, &format!("{labels}{comma}le=\"{bound}\""), sum.min(count));
        }
        self.line(&bucket, &format!("{labels}{comma}le=\"+Inf\""), count);
        self.line(&format!("{name}_sum"), labels, seconds);
        self.line(&format!("{name}_count"), labels, count);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn histograms_are_written_with_and_without_labels() {
        let values = Histogram::new(histogram::DISK);
        for millis in [1, 3, 3, 100_000] {
            values.observe(Duration::from_millis(millis));
        }
        let mut page = Page::default();
        page.histogram("x", "y", &values);
        page.buckets("z", "a=\"b\"", &values);
        for line in [
            "# TYPE x histogram",
            "x_bucket{le=\"0.001\"} 1",
            "x_bucket{le=\"0.004\"} 3",
            "x_bucket{le=\"8.192\"} 3",
            "x_bucket{le=\"+Inf\"} 4",
            "x_sum 100.007",
            "x_count 4",
            "z_bucket{a=\"b\",le=\"0.004\"} 3",
            "z_sum{a=\"b\"} 100.007",
        ] {
            assert!(page.text.lines().any(|found| found == line), "{line} in {}", page.text);
        }
    }
}
