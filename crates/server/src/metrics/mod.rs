//! Metrics under etcd's names, as text for Prometheus. This module writes the page; the
//! submodules count.

mod calls;
mod commands;
mod histogram;
mod membership;
mod methods;
mod process;
mod recent;
mod recorder;
mod traffic;

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use calls::{
    ActiveCall, CallCounters, CountedService, MethodIndex, client_version, method_of,
};
pub(crate) use commands::CommandMetrics;
#[cfg(test)]
pub(crate) use methods::METHODS;
pub(crate) use process::{open_files_max, resident_bytes};
pub(crate) use recorder::{ServerMetrics, ServiceCounters};
pub(crate) use traffic::{MeteredConnection, Traffic};

use quorate_kv::{AlarmKind, RowFileUsage, SUPPORTED_VERSIONS};

use crate::auth::TokenProvider;
use crate::context::ServiceContext;
use crate::lost_peers::lost_peers;
use crate::member_details::address_of;
use crate::request_budget::AwaitedRequests;
use crate::response_budget::ResponseBudget;
use crate::tls::HandshakeCounters;
use calls::{CODES, MethodCounters};
use histogram::DurationHistogram;
use methods::Method;

/// Writes the whole page.
pub(crate) async fn page(context: &ServiceContext, metrics: &ServerMetrics) -> String {
    let mut page = MetricsPage::default();
    server(&mut page, context, metrics).await;
    counters(&mut page, &context.counters, metrics);
    store(&mut page, context).await;
    membership::write(&mut page, context).await;
    context.commands.write(&mut page);
    maintenance(&mut page, &context.counters);
    auth(&mut page, context);
    peers(&mut page, context, metrics);
    clients(&mut page, metrics);
    tls(&mut page, context, &metrics.handshakes);
    requests(&mut page, &context.awaited_requests);
    responses(&mut page, &context.responses);
    grpc(&mut page, &metrics.calls);
    process::write(&mut page);
    page.text
}

async fn server(page: &mut MetricsPage, context: &ServiceContext, metrics: &ServerMetrics) {
    let node = &context.node;
    let node_metrics = node.metrics();
    let flag = u8::from;
    let has_leader = flag(node.leader().is_some());
    page.gauge("etcd_server_has_leader", "Whether a leader is known.", has_leader);
    page.gauge(
        "etcd_server_is_leader",
        "Whether this member is the leader.",
        flag(node.is_leader()),
    );
    page.gauge(
        "etcd_server_is_learner",
        "Whether this member is a learner.",
        flag(context.is_learner()),
    );
    let changes = get(&metrics.leader_changes);
    page.counter(
        "etcd_server_leader_changes_seen_total",
        "The number of leader changes seen.",
        changes,
    );
    if let Ok(status) = node.status().await {
        let log = status.raft.log;
        page.gauge(
            "etcd_server_proposals_committed_total",
            "The index of the last committed entry.",
            log.commit,
        );
        page.gauge(
            "etcd_server_proposals_applied_total",
            "The index of the last applied entry.",
            log.applied,
        );
    }
    let open = node_metrics.open_requests;
    page.gauge("etcd_server_proposals_pending", "Requests in progress.", open);
    let failed = node_metrics.refused + node_metrics.unknown;
    page.counter(
        "etcd_server_proposals_failed_total",
        "Requests refused or with an unknown outcome.",
        failed,
    );
    let id = format!("server_id=\"{}\"", node.id());
    page.info("etcd_server_id", "The member id, in hexadecimal, as a label.", &id);
    let release = context.limits.etcd_release;
    let version = format!("server_version=\"{}\"", release.version());
    page.info("etcd_server_version", "The etcd version of the API, as a label.", &version);
    let version = format!("version=\"{}\"", crate::VERSION);
    page.info("quorate_build_info", "The version of this server, as a label.", &version);
    // Without the patch version, as etcd has it.
    let version = format!("cluster_version=\"{release}\"");
    page.info("etcd_cluster_version", "The etcd version of the cluster, as a label.", &version);
    let cluster = node.cluster_version();
    let name = "quorate_cluster_version";
    page.gauge(name, "The cluster version that is agreed in the log.", cluster.version);
    let name = "quorate_downgrade_in_progress";
    page.gauge(name, "Whether a downgrade is in progress.", flag(cluster.downgrading));
    let name = "quorate_supported_version_max";
    let help = "The highest cluster version that this program supports.";
    page.gauge(name, help, SUPPORTED_VERSIONS.max);
    let name = "etcd_disk_wal_fsync_duration_seconds";
    page.histogram(name, "Duration of an fsync of the log.", &metrics.syncs);
    let name = "etcd_disk_wal_write_duration_seconds";
    page.histogram(name, "Duration of a write of the log.", &metrics.writes);
    let name = "etcd_disk_wal_write_bytes_total";
    page.gauge(name, "Bytes of entries written to the log.", get(&metrics.written_bytes));
    let name = "etcd_disk_backend_commit_duration_seconds";
    page.histogram(name, "Duration of applying a batch of entries.", &metrics.applies);
}

fn maintenance(page: &mut MetricsPage, counters: &ServiceCounters) {
    let name = "etcd_disk_backend_defrag_duration_seconds";
    page.histogram(name, "Duration of a defragmentation.", &counters.defragmentations);
    let name = "etcd_disk_defrag_inflight";
    page.gauge(name, "Defragmentations in progress.", get(&counters.defragmenting));
    let name = "etcd_disk_backend_snapshot_duration_seconds";
    page.histogram(name, "Duration of sending a snapshot to a client.", &counters.snapshots);
    let name = "etcd_mvcc_hash_duration_seconds";
    page.histogram(name, "Duration of hashing all data.", &counters.hashes);
    let name = "etcd_mvcc_hash_rev_duration_seconds";
    page.histogram(name, "Duration of hashing the data at a revision.", &counters.revision_hashes);
}

fn counters(page: &mut MetricsPage, counters: &ServiceCounters, metrics: &ServerMetrics) {
    let failed = get(&counters.reads_not_confirmed);
    page.counter(
        "etcd_server_read_indexes_failed_total",
        "Linearizable reads that were not confirmed.",
        failed,
    );
    let name = "etcd_debugging_server_lease_expired_total";
    page.counter(name, "Leases that expired.", get(&counters.leases_expired));
    let name = "etcd_debugging_lease_renewed_total";
    page.counter(name, "Leases renewed, as the leader counts them.", get(&counters.leases_renewed));
    let name = "etcd_debugging_mvcc_events_total";
    page.counter(name, "Events sent to watches.", get(&counters.events_sent));
    let name = "etcd_debugging_mvcc_watch_stream_total";
    page.gauge(name, "Open streams of watches.", get(&counters.watch_streams));
    let slow = get(&metrics.slow_applies);
    page.counter(
        "etcd_server_slow_apply_total",
        "Batches of entries whose apply took over 100 ms.",
        slow,
    );
    let slow = get(&counters.reads_not_confirmed);
    page.counter(
        "etcd_server_slow_read_indexes_total",
        "Linearizable reads that were not confirmed.",
        slow,
    );
    page.counter("etcd_server_health_success", "Successful health checks.", get(&counters.healthy));
    page.counter("etcd_server_health_failures", "Failed health checks.", get(&counters.unhealthy));
    let name = "etcd_server_learner_promote_successes";
    page.counter(name, "Learners promoted through this member.", get(&counters.promoted));
    let name = "etcd_server_learner_promote_failures";
    page.counter(name, "Promotions of learners that failed.", get(&counters.not_promoted));
}

async fn store(page: &mut MetricsPage, context: &ServiceContext) {
    let watchers = context.store.watchers();
    let kv = context.store.read_when_free().await;
    let (used, total) = (kv.bytes_in_use(), kv.bytes_total().unwrap_or_default());
    page.gauge("etcd_mvcc_db_total_size_in_bytes", "Allocated size of the data.", total);
    page.gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "Size of the data in use.", used);
    let quota = kv.quota().bytes;
    page.gauge("etcd_server_quota_backend_bytes", "Size limit of the data.", quota);
    page.gauge("etcd_debugging_mvcc_keys_total", "Keys that exist.", kv.live_key_count());
    page.gauge("etcd_debugging_mvcc_watcher_total", "Open watches.", watchers);
    let (now, compacted) = (kv.revision(), kv.compact_revision().max(0));
    let backlog = context.store.watch_backlog(now);
    let name = "etcd_debugging_mvcc_slow_watcher_total";
    page.gauge(name, "Watches that have not received all events.", backlog.watchers);
    let name = "etcd_debugging_mvcc_pending_events_total";
    let help = "Revisions that watches have not looked at, summed over them.";
    page.gauge(name, help, backlog.revisions);
    let name = "quorate_alarms";
    page.head(name, "gauge", "Active alarms, by kind.");
    let alarms = kv.alarms();
    for (kind, label) in [(AlarmKind::NoSpace, "NOSPACE"), (AlarmKind::Corrupt, "CORRUPT")] {
        let count = alarms.iter().filter(|alarm| alarm.kind == kind).count();
        page.line(name, &format!("kind=\"{label}\""), count);
    }
    page.gauge("etcd_debugging_mvcc_current_revision", "The current revision.", now);
    page.gauge("etcd_debugging_mvcc_compact_revision", "The last compacted revision.", compacted);
    if let Some(file) = &context.row_file {
        rows(page, file.usage());
    }
}

/// Of a table in memory with a file (--row-memory-bytes).
fn rows(page: &mut MetricsPage, usage: RowFileUsage) {
    let help = "Bytes of rows in memory that may be moved to the file.";
    page.gauge("quorate_row_memory_bytes", help, usage.memory_bytes);
    page.gauge("quorate_row_file_bytes", "Bytes of old rows in the file.", usage.file_bytes);
    let help = "Attempts to move rows to the file that failed. The rows stay in memory.";
    page.counter("quorate_row_file_failures_total", help, usage.failures);
    let help = "Reads of rows in the file that failed.";
    page.counter("quorate_row_file_read_failures_total", help, usage.read_failures);
    let help = "Bytes of rows that may stay in memory (--row-memory-bytes).";
    page.gauge("quorate_row_memory_limit_bytes", help, usage.memory_bytes_max);
}

fn auth(page: &mut MetricsPage, context: &ServiceContext) {
    let version = context.store.auth_version();
    let help = "The current revision of users and roles.";
    page.gauge("etcd_debugging_auth_revision", help, version.revision);
    let help = "Whether authentication is enabled.";
    page.gauge("quorate_auth_enabled", help, u8::from(version.enabled));
    let failed = get(&context.auth.failed_logins);
    page.counter("quorate_auth_failures_total", "Failed attempts to authenticate.", failed);
    let denied = get(&context.auth.denied);
    page.counter("quorate_auth_denied_total", "Requests without the right they need.", denied);
    if let TokenProvider::Simple(tokens) = &context.auth.tokens {
        page.gauge("quorate_auth_tokens", "Tokens that this member accepts.", tokens.len());
    }
}

fn peers(page: &mut MetricsPage, context: &ServiceContext, metrics: &ServerMetrics) {
    let mut node_metrics = context.node.metrics();
    let transport = &node_metrics.transport;
    let count = |name: &str| transport.get(name).copied().unwrap_or_default();
    page.counter("etcd_network_peer_sent_bytes_total", "Bytes sent to peers.", count("bytes_sent"));
    page.counter(
        "etcd_network_peer_received_bytes_total",
        "Bytes received from peers.",
        count("bytes_received"),
    );
    let dropped = transport.iter().filter(|(name, _)| name.starts_with("dropped_"));
    let dropped: u64 = dropped.map(|(_, count)| count).sum();
    page.counter(
        "etcd_network_peer_sent_failures_total",
        "Messages to peers that were dropped.",
        dropped,
    );
    let name = "etcd_server_heartbeat_send_failures_total";
    let help = "Messages to peers, heartbeats among them, dropped because too many were waiting.";
    page.counter(name, help, count("dropped_full"));
    let name = "etcd_network_peer_round_trip_time_seconds";
    page.head(name, "histogram", "Round-trip time to a peer.");
    let membership = context.node.membership();
    for id in membership.members().iter() {
        let address = membership.info(id).and_then(address_of);
        if let Some(times) = address.and_then(|address| metrics.round_trips(&address)) {
            page.buckets(name, &format!("To=\"{id}\""), &times);
        }
    }
    let connected = context.node.connected_peers();
    let local = context.node.id();
    let others = || membership.members().iter().filter(|id| *id != local).collect::<Vec<_>>();
    let name = "etcd_network_active_peers";
    page.head(name, "gauge", "Peers that this member is connected with.");
    for id in others() {
        let labels = format!("Local=\"{local}\",Remote=\"{id}\"");
        page.line(name, &labels, u8::from(connected.contains(&id)));
    }
    let name = "etcd_network_known_peers";
    page.head(name, "gauge", "Members of the cluster.");
    for id in membership.members().iter() {
        page.line(name, &format!("Local=\"{local}\",Remote=\"{id}\""), 1);
    }
    let cluster = format!("{:016x}", context.cluster_id);
    let member = context.node.id().to_string();
    let labels = [("cluster", cluster.as_str()), ("member", member.as_str())];
    node_metrics.peers_lost = lost_peers(context);
    page.text.push_str(&node_metrics.to_prometheus(&labels));
}

/// All bytes on the wire, HTTP's own included.
fn clients(page: &mut MetricsPage, metrics: &ServerMetrics) {
    let Traffic { received, sent } = &*metrics.traffic;
    let name = "etcd_network_client_grpc_received_bytes_total";
    page.counter(name, "Bytes received from clients.", get(received));
    let name = "etcd_network_client_grpc_sent_bytes_total";
    page.counter(name, "Bytes sent to clients.", get(sent));
}

/// TLS of the listeners for clients, and what listens without it.
fn tls(page: &mut MetricsPage, context: &ServiceContext, handshakes: &HandshakeCounters) {
    let name = "quorate_plaintext_listeners";
    page.head(name, "gauge", "Listeners without TLS that other machines can reach.");
    for kind in LISTENERS {
        let count = context.plaintext_listeners.iter().filter(|(other, _)| *other == kind).count();
        page.line(name, &format!("kind=\"{kind}\""), count);
    }
    let name = "quorate_unverified_listeners";
    let help = "Listeners with TLS that other machines can reach and that verify nobody.";
    page.head(name, "gauge", help);
    for kind in LISTENERS {
        let count = context.unverified_listeners().filter(|(other, _)| *other == kind).count();
        page.line(name, &format!("kind=\"{kind}\""), count);
    }
    let name = "quorate_client_tls_handshakes_in_progress";
    page.gauge(name, "TLS handshakes with clients in progress.", get(&handshakes.in_progress));
    let name = "quorate_client_tls_handshakes_total";
    page.head(name, "counter", "TLS handshakes with clients that ended, by result.");
    for (result, counter) in [
        ("completed", &handshakes.completed),
        ("failed", &handshakes.failed),
        ("timed_out", &handshakes.timed_out),
        ("evicted", &handshakes.evicted),
    ] {
        page.line(name, &format!("result=\"{result}\""), get(counter));
    }
}

fn requests(page: &mut MetricsPage, requests: &AwaitedRequests) {
    let name = "quorate_client_incomplete_request_bytes";
    let help = "Memory of requests that have not arrived completely.";
    page.gauge(name, help, requests.bytes() as u64);
    let name = "quorate_client_incomplete_request_limit_bytes";
    let help = "The limit of that memory (half of --max-response-memory).";
    page.gauge(name, help, requests.bytes_max() as u64);
    let name = "quorate_client_incomplete_requests_refused_total";
    let help = "Requests that were refused because too many had not arrived completely.";
    page.counter(name, help, requests.refused());
}

fn responses(page: &mut MetricsPage, responses: &ResponseBudget) {
    let name = "quorate_client_response_bytes";
    page.gauge(name, "Memory of responses that are being read or sent.", responses.used());
    let name = "quorate_client_response_limit_bytes";
    page.gauge(name, "The limit of that memory (--max-response-memory).", responses.limit());
    let name = "quorate_client_responses_refused_total";
    page.counter(name, "Responses that were refused for lack of memory.", responses.refused());
    let name = "quorate_client_responses_dropped_total";
    let help = "Responses that were dropped because their clients did not read them.";
    page.counter(name, help, responses.dropped());
}

fn grpc(page: &mut MetricsPage, calls: &CallCounters) {
    let labels = |method: &Method| {
        let (kind, name) = (method.kind.name(), method.name());
        let service = method.service();
        format!("grpc_method=\"{name}\",grpc_service=\"{service}\",grpc_type=\"{kind}\"")
    };
    type Counter = fn(&MethodCounters) -> &AtomicU64;
    let simple: [(&str, &str, Counter); 3] = [
        ("grpc_server_started_total", "Calls started.", |counters| &counters.started),
        ("grpc_server_msg_received_total", "Messages received.", |counters| &counters.received),
        ("grpc_server_msg_sent_total", "Messages sent.", |counters| &counters.sent),
    ];
    for (name, help, counter) in simple {
        page.head(name, "counter", help);
        for (method, counters) in calls.iter() {
            page.line(name, &labels(method), get(counter(counters)));
        }
    }
    let name = "grpc_server_handled_total";
    page.head(name, "counter", "Calls ended, by status code.");
    for (method, counters) in calls.iter() {
        for (code, count) in CODES.iter().zip(&counters.handled) {
            let count = get(count);
            if count > 0 || *code == "OK" {
                page.line(name, &format!("grpc_code=\"{code}\",{}", labels(method)), count);
            }
        }
    }
    client_requests(page, calls);
    if calls.is_timed() {
        let name = "grpc_server_handling_seconds";
        page.head(name, "histogram", "Duration of calls.");
        for (method, counters) in calls.iter() {
            page.buckets(name, &labels(method), &counters.duration);
        }
    }
}

/// Requests by the version of the client, and their duration by etcd's names of requests.
fn client_requests(page: &mut MetricsPage, calls: &CallCounters) {
    let name = "etcd_server_client_requests_total";
    page.head(name, "counter", "Requests by the version of the client's API.");
    for (version, unary, stream) in calls.clients.counts() {
        for (kind, count) in [("stream", stream), ("unary", unary)] {
            if count > 0 {
                let labels = format!("client_api_version=\"{version}\",type=\"{kind}\"");
                page.line(name, &labels, count);
            }
        }
    }
    let durations = |page: &mut MetricsPage, name: &str, method: &Method, labels: &str| {
        let counters = calls.iter().find(|(other, _)| other.path == method.path);
        let Some((_, counters)) = counters else { return };
        let short = name == RANGE_DURATION;
        for (success, histogram) in ["false", "true"].iter().zip(match short {
            true => &counters.short_durations,
            false => &counters.durations,
        }) {
            if histogram.count() > 0 {
                page.buckets(name, &format!("{labels}success=\"{success}\""), histogram);
            }
        }
    };
    page.head(RANGE_DURATION, "histogram", "Duration of range requests.");
    for (method, _) in calls.iter().filter(|(method, _)| method.path == RANGE) {
        durations(page, RANGE_DURATION, method, "");
    }
    page.head(REQUEST_DURATION, "histogram", "Duration of requests, by type.");
    for (method, _) in calls.iter() {
        if let Some(kind) = method.request_type() {
            durations(page, REQUEST_DURATION, method, &format!("type=\"{kind}\","));
        }
    }
}

const LISTENERS: [&str; 4] = ["client", "peer", "metrics", "console"];
const RANGE: &str = "/etcdserverpb.KV/Range";
const RANGE_DURATION: &str = "etcd_server_range_duration_seconds";
const REQUEST_DURATION: &str = "etcd_server_request_duration_seconds";

fn get(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// The page while it is written. Writing to a string cannot fail.
#[derive(Default)]
struct MetricsPage {
    text: String,
}

impl MetricsPage {
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

    /// A constant 1 whose label carries the information.
    fn info(&mut self, name: &str, help: &str, label: &str) {
        self.head(name, "gauge", help);
        self.line(name, label, 1);
    }

    fn histogram(&mut self, name: &str, help: &str, values: &DurationHistogram) {
        self.head(name, "histogram", help);
        self.buckets(name, "", values);
    }

    fn buckets(&mut self, name: &str, labels: &str, values: &DurationHistogram) {
        let comma = if labels.is_empty() { "" } else { "," };
        let bucket = format!("{name}_bucket");
        // Read before the buckets: a concurrent observation must not make a bucket exceed the
        // total.
        let (count, seconds) = (values.count(), values.seconds());
        for (bound, count_below) in values.cumulative_counts() {
            self.line(&bucket, &format!("{labels}{comma}le=\"{bound}\""), count_below.min(count));
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
        let values = DurationHistogram::new(histogram::DISK);
        for millis in [1, 3, 3, 100_000] {
            values.observe(Duration::from_millis(millis));
        }
        let mut page = MetricsPage::default();
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
