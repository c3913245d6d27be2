//! A server with little memory for rows: it writes, reads old values, compacts, restarts and
//! receives a snapshot while almost all rows are in the file.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use quorate_proto::etcdserverpb::{CompactionRequest, RangeRequest};
use quorate_server::RunningServer;
use quorate_server::config::ClusterState;
use support::{TestMember, http_get, wait_for};

const ROW_MEMORY_BYTES: u64 = 100_000;
const KEYS: usize = 20;

async fn start(member: &TestMember, cluster: &[&TestMember]) -> RunningServer {
    let mut config = member.config(cluster, ClusterState::New);
    // So that there are snapshots and later log entries.
    (config.row_memory_bytes, config.snapshot_count) = (ROW_MEMORY_BYTES, Some(40));
    RunningServer::start(config).await.unwrap()
}

fn value_of(round: usize) -> String {
    format!("{round}:").repeat(10_000)
}

async fn put_round(member: &TestMember, round: usize) {
    for key in 0..KEYS {
        member.put_until_done(&format!("k{key}"), &value_of(round)).await;
    }
}

/// The value of a key at a revision, and the current revision.
async fn get_at(member: &TestMember, revision: i64) -> (Option<Vec<u8>>, i64) {
    let request = RangeRequest { key: "k3".into(), revision, ..Default::default() };
    let response = member.kv().await.range(request).await.unwrap().into_inner();
    let value = response.kvs.into_iter().next().map(|kv| kv.value.to_vec());
    (value, response.header.unwrap().revision)
}

async fn metric(server: &RunningServer, name: &str) -> u64 {
    let page = http_get(server.client_addresses()[0], "/metrics").await.1;
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

async fn wait_for_file(server: &RunningServer, bytes_min: u64) {
    wait_for("old rows to be in the file", async || {
        metric(server, "quorate_row_memory_bytes").await <= ROW_MEMORY_BYTES
            && metric(server, "quorate_row_file_bytes").await >= bytes_min
    })
    .await;
    assert_eq!(metric(server, "quorate_row_file_failures_total").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_rows_are_read_from_the_file_and_compacted() {
    let a = TestMember::new("a");
    let mut server = start(&a, &[&a]).await;
    let mut revisions = Vec::new();
    for round in 0..10 {
        put_round(&a, round).await;
        revisions.push(get_at(&a, 0).await.1);
    }
    for restarts in 0..2 {
        // Ten versions of twenty keys with 20 kB each.
        wait_for_file(&server, 3_800_000).await;
        for (round, revision) in revisions.iter().enumerate() {
            let expected = Some(value_of(round).into_bytes());
            assert_eq!(get_at(&a, *revision).await.0, expected, "{restarts} restarts");
        }
        server.stop().await;
        let name = a.directory().join("data/member/rows.tmp");
        assert!(!name.exists(), "the file has no name");
        // As if the process had been killed while it created the file.
        std::fs::write(name, "leftover").unwrap();
        server = start(&a, &[&a]).await;
    }
    let compaction = CompactionRequest { revision: *revisions.last().unwrap(), physical: true };
    a.kv().await.compact(compaction).await.unwrap();
    wait_for("compacted rows to leave the file", async || {
        // Compacted rows are removed with the next commands.
        a.put_until_done("other", "1").await;
        metric(&server, "quorate_row_file_bytes").await < 800_000
    })
    .await;
    for key in 0..KEYS {
        assert_eq!(a.get(&format!("k{key}")).await, Some(value_of(9)));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_receives_a_snapshot_puts_it_into_its_file() {
    let test_members = ["a", "b", "c"].map(TestMember::new);
    let cluster: Vec<&TestMember> = test_members.iter().collect();
    let mut running = Vec::new();
    for member in &test_members {
        running.push(start(member, &cluster).await);
    }
    put_round(&test_members[0], 0).await;
    running.pop().unwrap().stop().await;
    for round in 1..5 {
        put_round(&test_members[0], round).await;
    }
    let last = start(&test_members[2], &cluster).await;
    last.wait_ready().await;
    wait_for_file(&last, 1_800_000).await;
    assert_eq!(test_members[2].get("k7").await, Some(value_of(4)));
    running.push(last);
    for server in running {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_rows_stay_in_memory_without_a_limit() {
    let a = TestMember::new("a");
    let mut config = a.config(&[&a], ClusterState::New);
    config.row_memory_bytes = 0;
    let server = RunningServer::start(config).await.unwrap();
    put_round(&a, 0).await;
    let page = http_get(server.client_addresses()[0], "/metrics").await.1;
    assert!(!page.contains("quorate_row_"), "{page}");
    assert_eq!(a.get("k7").await, Some(value_of(0)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_created_is_named() {
    let a = TestMember::new("a");
    // A directory has its name.
    std::fs::create_dir_all(a.directory().join("data/member/rows.tmp")).unwrap();
    use std::os::unix::fs::PermissionsExt;
    let private = std::fs::Permissions::from_mode(0o700);
    for path in ["data", "data/member"] {
        std::fs::set_permissions(a.directory().join(path), private.clone()).unwrap();
    }
    let config = a.config(&[&a], ClusterState::New);
    let error = RunningServer::start(config).await.err().unwrap().to_string();
    assert!(error.contains("cannot create") && error.contains("rows.tmp"), "{error}");
}
