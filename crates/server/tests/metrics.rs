//! All metrics that etcd's dashboards and alerts use are on the page, with correct values.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use quorate_proto::etcdserverpb::compare::{CompareTarget, TargetUnion};
use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::request_op::Request as Part;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, MemberPromoteRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest, WatchCreateRequest, WatchRequest,
};
use quorate_server::RunningServer;
use quorate_server::config::ClusterState;
use tokio_stream::wrappers::ReceiverStream;

use support::{TestMember, http_get, put, start_all, wait_for};

/// The value of this metric; the name includes the labels.
fn value(page: &str, name: &str) -> Option<f64> {
    let parse = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    page.lines().find_map(parse)
}

fn call(name: &str, method: &str, kind: &str) -> String {
    let (service, method) = method.split_once('/').unwrap();
    format!("{name}{{grpc_method=\"{method}\",grpc_service=\"{service}\",grpc_type=\"{kind}\"}}")
}

fn handled(code: &str, method: &str, kind: &str) -> String {
    let name = call("grpc_server_handled_total", method, kind);
    name.replacen('{', &format!("{{grpc_code=\"{code}\","), 1)
}

async fn page(server: &RunningServer) -> String {
    http_get(server.client_addresses()[0], "/metrics").await.1
}

/// Metrics whose labels are the same on every member.
const NAMES: &[&str] = &[
    "etcd_server_has_leader",
    "etcd_server_is_leader",
    "etcd_server_is_learner",
    "etcd_server_leader_changes_seen_total",
    "etcd_server_proposals_failed_total",
    "etcd_server_proposals_pending",
    "etcd_server_proposals_committed_total",
    "etcd_server_proposals_applied_total",
    "etcd_server_quota_backend_bytes",
    "etcd_server_slow_apply_total",
    "etcd_server_slow_read_indexes_total",
    "etcd_server_health_success",
    "etcd_server_health_failures",
    "etcd_server_learner_promote_successes",
    "etcd_server_learner_promote_failures",
    "etcd_cluster_version{cluster_version=\"3.7\"}",
    "quorate_cluster_version",
    "quorate_downgrade_in_progress",
    "quorate_supported_version_max",
    "etcd_mvcc_db_total_size_in_bytes",
    "etcd_mvcc_db_total_size_in_use_in_bytes",
    "etcd_debugging_mvcc_keys_total",
    "etcd_debugging_mvcc_watcher_total",
    "etcd_debugging_mvcc_current_revision",
    "etcd_debugging_mvcc_compact_revision",
    "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.001\"}",
    "etcd_disk_wal_fsync_duration_seconds_sum",
    "etcd_disk_backend_commit_duration_seconds_bucket{le=\"8.192\"}",
    "etcd_network_peer_sent_bytes_total",
    "etcd_network_peer_received_bytes_total",
    "etcd_network_peer_sent_failures_total",
    "etcd_network_client_grpc_sent_bytes_total",
    "etcd_network_client_grpc_received_bytes_total",
    "etcd_server_read_indexes_failed_total",
    "etcd_mvcc_put_total",
    "etcd_mvcc_delete_total",
    "etcd_mvcc_range_total",
    "etcd_mvcc_txn_total",
    "etcd_mvcc_hash_duration_seconds_count",
    "etcd_mvcc_hash_rev_duration_seconds_count",
    "etcd_debugging_mvcc_total_put_size_in_bytes",
    "etcd_debugging_mvcc_events_total",
    "etcd_debugging_mvcc_watch_stream_total",
    "etcd_debugging_mvcc_slow_watcher_total",
    "etcd_debugging_mvcc_pending_events_total",
    "etcd_server_heartbeat_send_failures_total",
    "quorate_alarms{kind=\"NOSPACE\"}",
    "quorate_goal_age_seconds",
    "quorate_goal_in_progress",
    "quorate_joint",
    "quorate_last_backup_timestamp_seconds",
    "quorate_learners",
    "quorate_settled",
    "quorate_stalled{what=\"disk\"}",
    "quorate_voters",
    "etcd_debugging_lease_granted_total",
    "etcd_debugging_lease_renewed_total",
    "etcd_debugging_lease_revoked_total",
    "etcd_debugging_lease_ttl_total_bucket{le=\"64\"}",
    "etcd_debugging_server_lease_expired_total",
    "etcd_disk_wal_write_bytes_total",
    "etcd_disk_wal_write_duration_seconds_bucket{le=\"8.192\"}",
    "etcd_disk_backend_defrag_duration_seconds_bucket{le=\"409.6\"}",
    "etcd_disk_backend_snapshot_duration_seconds_bucket{le=\"655.36\"}",
    "etcd_disk_defrag_inflight",
    "os_fd_used",
    "os_fd_limit",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
];

/// The same requests as in etcd 3.7 give the same numbers.
#[tokio::test(flavor = "multi_thread")]
async fn operations_are_counted_as_by_etcd() {
    let a = TestMember::new("a");
    let server = a.start(&[&a], ClusterState::New).await;
    let mut kv = a.kv().await;
    let client = |request: PutRequest| {
        let mut request = tonic::Request::new(request);
        request.metadata_mut().insert("client-api-version", "3.7".parse().unwrap());
        request
    };
    for key in ["k1", "k2", "k3"] {
        kv.put(client(put(key, "v"))).await.unwrap();
    }
    kv.put(put("", "v")).await.unwrap_err();
    let range = RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    kv.range(range.clone()).await.unwrap();
    let delete = DeleteRangeRequest { key: "k1".into(), ..Default::default() };
    kv.delete_range(delete).await.unwrap();
    let part = |request| RequestOp { request: Some(request) };
    let one =
        TxnRequest { success: vec![part(Part::RequestPut(put("t", "1")))], ..Default::default() };
    kv.txn(one).await.unwrap();
    let parts = vec![part(Part::RequestPut(put("t", "2"))), part(Part::RequestRange(range))];
    kv.txn(TxnRequest { success: parts, ..Default::default() }).await.unwrap();
    let grant = LeaseGrantRequest { ttl: 60, id: 7 };
    LeaseClient::new(a.channel().await).lease_grant(grant).await.unwrap();

    let page = page(&server).await;
    let duration = "etcd_server_apply_duration_seconds_count";
    let request = "etcd_server_request_duration_seconds_count";
    let clients = "etcd_server_client_requests_total";
    for (name, expected) in [
        ("etcd_mvcc_put_total", 5.),
        ("etcd_mvcc_range_total", 2.),
        ("etcd_mvcc_delete_total", 1.),
        // Only those with more than one operation.
        ("etcd_mvcc_txn_total", 1.),
        ("etcd_debugging_mvcc_total_put_size_in_bytes", 13.),
        ("etcd_debugging_lease_granted_total", 1.),
        ("etcd_debugging_lease_ttl_total_sum", 60.),
        (&format!("{duration}{{op=\"Put\",success=\"true\",version=\"v3\"}}"), 3.),
        (&format!("{duration}{{op=\"Txn\",success=\"true\",version=\"v3\"}}"), 2.),
        (&format!("{request}{{type=\"Put\",success=\"true\"}}"), 3.),
        (&format!("{request}{{type=\"Put\",success=\"false\"}}"), 1.),
        (&format!("{request}{{type=\"Range\",success=\"true\"}}"), 1.),
        ("etcd_server_range_duration_seconds_count{success=\"true\"}", 1.),
        (&format!("{clients}{{client_api_version=\"3.7\",type=\"unary\"}}"), 3.),
        (&format!("{clients}{{client_api_version=\"unknown\",type=\"unary\"}}"), 6.),
    ] {
        assert_eq!(value(&page, name), Some(expected), "{name} in {page}");
    }
    assert!(value(&page, "etcd_disk_wal_write_bytes_total").unwrap() > 0.);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_metrics_are_present() {
    let [a, b] = ["a", "b"].map(TestMember::new);
    let mut config = a.config(&[&a, &b], ClusterState::New);
    config.extensive_metrics = true;
    let first = RunningServer::start(config).await.unwrap();
    let second = b.start(&[&a, &b], ClusterState::New).await;
    a.put_until_done("x", "1").await;
    let peer = format!("{{To=\"{:016x}\"}}", second.node().id().0);
    let peer_bucket = format!("{{To=\"{:016x}\",le=\"0.0001\"}}", second.node().id().0);
    let round_trip = "etcd_network_peer_round_trip_time_seconds";
    // Peers are pinged once a second.
    wait_for("a round trip", async || {
        value(&page(&first).await, &format!("{round_trip}_count{peer}")).is_some()
    })
    .await;
    let page = page(&first).await;
    let own = [
        format!("etcd_server_id{{server_id=\"{:016x}\"}}", first.node().id().0),
        format!(
            "etcd_server_version{{server_version=\"{}\"}}",
            quorate_server::EtcdRelease::default().version()
        ),
        format!("{round_trip}_bucket{peer_bucket}"),
        format!("{round_trip}_sum{peer}"),
        format!(
            "etcd_network_active_peers{{Local=\"{:016x}\",Remote=\"{:016x}\"}}",
            first.node().id().0,
            second.node().id().0
        ),
        format!(
            "etcd_network_known_peers{{Local=\"{0:016x}\",Remote=\"{0:016x}\"}}",
            first.node().id().0
        ),
        call("grpc_server_started_total", "etcdserverpb.KV/Put", "unary"),
        call("grpc_server_msg_received_total", "etcdserverpb.KV/Put", "unary"),
        call("grpc_server_msg_sent_total", "etcdserverpb.Watch/Watch", "bidi_stream"),
        handled("OK", "etcdserverpb.Lease/LeaseGrant", "unary"),
        call("grpc_server_handling_seconds_count", "etcdserverpb.KV/Put", "unary"),
        call("grpc_server_handling_seconds_bucket", "etcdserverpb.KV/Put", "unary")
            .replace('}', ",le=\"0.005\"}"),
    ];
    for name in NAMES.iter().copied().chain(own.iter().map(String::as_str)) {
        assert!(value(&page, name).is_some(), "{name} in {page}");
    }
    // Prometheus rejects a page with a duplicate metric.
    let mut seen = std::collections::BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, _) = line.rsplit_once(' ').unwrap();
        assert!(seen.insert(name), "{name} twice");
    }
    let first_count = call("grpc_server_handling_seconds_count", "etcdserverpb.KV/Put", "unary");
    assert!(value(&page, &first_count).unwrap() >= 1.0);
    first.stop_now().await;
    second.stop_now().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_counted_by_status_code() {
    let a = TestMember::new("a");
    let server = start_all(&[&a]).await.pop().unwrap();
    let before = page(&server).await;
    let growth = |page: &str, name: &str| {
        value(page, name).unwrap_or_default() - value(&before, name).unwrap_or_default()
    };
    let mut kv = a.kv().await;
    for _ in 0..3 {
        kv.put(put("x", &"y".repeat(10_000))).await.unwrap();
    }
    kv.put(put("", "")).await.unwrap_err();
    let future = RangeRequest { key: "x".into(), revision: 99, ..RangeRequest::default() };
    kv.range(future).await.unwrap_err();
    for _ in 0..2 {
        kv.range(RangeRequest { key: "x".into(), ..RangeRequest::default() }).await.unwrap();
    }
    let compare = Compare {
        target: CompareTarget::Version.into(),
        target_union: Some(TargetUnion::Version(1)),
        key: "x".into(),
        ..Compare::default()
    };
    kv.txn(TxnRequest { compare: vec![compare], ..TxnRequest::default() }).await.unwrap();
    a.cluster().await.member_promote(MemberPromoteRequest { id: 5 }).await.unwrap_err();

    // Three responses: the creation of the watch, and two events.
    let create = WatchCreateRequest { key: "w".into(), ..WatchCreateRequest::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let mut watch = WatchClient::new(a.channel().await);
    let (requests, stream) = tokio::sync::mpsc::channel(1);
    requests.send(create).await.unwrap();
    let mut watched = watch.watch(ReceiverStream::new(stream)).await.unwrap().into_inner();
    watched.message().await.unwrap().unwrap();
    for _ in 0..2 {
        kv.put(put("w", "1")).await.unwrap();
        watched.message().await.unwrap().unwrap();
    }
    let open = page(&server).await;
    let streamed = |name: &str| call(name, "etcdserverpb.Watch/Watch", "bidi_stream");
    assert_eq!(growth(&open, &streamed("grpc_server_started_total")), 1.0);
    assert_eq!(growth(&open, &streamed("grpc_server_msg_received_total")), 1.0);
    assert_eq!(growth(&open, &streamed("grpc_server_msg_sent_total")), 3.0);
    // Whether the stream ends as closed or as cancelled is a race.
    let ended_watches = |page: &str| {
        let ended = |code| growth(page, &handled(code, "etcdserverpb.Watch/Watch", "bidi_stream"));
        ended("OK") + ended("Canceled")
    };
    assert_eq!(ended_watches(&open), 0.0);
    drop((requests, watched));
    wait_for("the watch has ended", async || ended_watches(&page(&server).await) == 1.0).await;

    let now = page(&server).await;
    let unary = |name: &str, method: &str| growth(&now, &call(name, method, "unary"));
    let ended = |code: &str, method: &str| growth(&now, &handled(code, method, "unary"));
    assert_eq!(unary("grpc_server_started_total", "etcdserverpb.KV/Put"), 6.0);
    assert_eq!(unary("grpc_server_msg_received_total", "etcdserverpb.KV/Put"), 6.0);
    assert_eq!(unary("grpc_server_msg_sent_total", "etcdserverpb.KV/Put"), 5.0);
    assert_eq!(ended("OK", "etcdserverpb.KV/Put"), 5.0);
    assert_eq!(ended("InvalidArgument", "etcdserverpb.KV/Put"), 1.0);
    assert_eq!(ended("OK", "etcdserverpb.KV/Range"), 2.0);
    assert_eq!(ended("OutOfRange", "etcdserverpb.KV/Range"), 1.0);
    assert_eq!(ended("OK", "etcdserverpb.KV/Txn"), 1.0);
    assert_eq!(ended("NotFound", "etcdserverpb.Cluster/MemberPromote"), 1.0);
    assert_eq!(growth(&now, "etcd_server_learner_promote_failures"), 1.0);
    // HTTP's own bytes included; three large values were received, two were sent.
    assert!(growth(&now, "etcd_network_client_grpc_received_bytes_total") > 30_000.0);
    let sent = growth(&now, "etcd_network_client_grpc_sent_bytes_total");
    assert!(sent > 20_000.0, "{sent}");
    // The duration of calls is measured only with `--metrics extensive`.
    assert!(!now.contains("grpc_server_handling_seconds"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_about_health_are_counted() {
    let a = TestMember::new("a");
    let server = start_all(&[&a]).await.pop().unwrap();
    let address = server.client_addresses()[0];
    assert_eq!(http_get(address, "/health").await.0, "HTTP/1.1 200 OK");
    server.leave().await;
    http_get(address, "/health").await;
    let page = page(&server).await;
    assert_eq!(value(&page, "etcd_server_health_success"), Some(1.0));
    assert_eq!(value(&page, "etcd_server_health_failures"), Some(1.0));
    server.stop().await;
}

/// Every member says how many failures are tolerated, and the leader who lags.
#[tokio::test(flavor = "multi_thread")]
async fn the_membership_is_on_the_page() {
    let members = ["a", "b", "c"].map(TestMember::new);
    let all: Vec<&TestMember> = members.iter().collect();
    let servers = start_all(&all).await;
    for server in &servers {
        wait_for("the numbers of three live members", async || {
            let page = page(server).await;
            let has = |name: &str, number: f64| value(&page, name) == Some(number);
            let peers = servers.iter().filter(|other| other.node().id() != server.node().id());
            let lags = peers.filter(|peer| {
                let name = format!("quorate_peer_lag_entries{{peer=\"{}\"}}", peer.node().id());
                value(&page, &name).is_some()
            });
            let lags_expected = if server.node().is_leader() { 2 } else { 0 };
            has("quorate_failures_tolerated", 1.0)
                && has("quorate_has_quorum", 1.0)
                && has("quorate_voters", 3.0)
                && has("quorate_settled", 1.0)
                && has("quorate_joint", 0.0)
                && has("quorate_goal_in_progress", 0.0)
                && value(&page, "quorate_disk_free_bytes").is_some_and(|free| free > 0.0)
                && lags.count() == lags_expected
        })
        .await;
    }
    for server in servers {
        server.stop_now().await;
    }
}
