//! A server whose table is a redb file: a restart continues from the file. If the file is missing,
//! damaged or another member's, it is rebuilt from the snapshot and the log.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::path::PathBuf;

use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::{
    CompactionRequest, DefragmentRequest, DeleteRangeRequest, HashKvRequest, StatusRequest,
    StatusResponse,
};
use quorate_server::RunningServer;
use quorate_server::config::{ClusterState, TableKind};
use support::{TEST_TIMEOUT, TestMember};
use tokio::time::Instant;
use tonic::transport::Channel;

/// What happens to a file between two starts.
type FileChange<'a> = &'a dyn Fn(&PathBuf);

/// Small, so that there are snapshots and later log entries.
const SNAPSHOT_COUNT: u64 = 40;

async fn start(member: &TestMember, cluster: &[&TestMember], table: TableKind) -> RunningServer {
    let mut config = member.config(cluster, ClusterState::New);
    (config.table, config.snapshot_count) = (table, Some(SNAPSHOT_COUNT));
    RunningServer::start(config).await.unwrap()
}

fn file_of(member: &TestMember) -> PathBuf {
    member.directory().join("data/member/table/rows")
}

async fn maintenance(member: &TestMember) -> MaintenanceClient<Channel> {
    MaintenanceClient::new(member.channel().await)
}

async fn status(member: &TestMember) -> StatusResponse {
    maintenance(member).await.status(StatusRequest {}).await.unwrap().into_inner()
}

/// The hash of everything up to this revision, once the member has it.
async fn hash(member: &TestMember, revision: i64) -> u32 {
    let began = Instant::now();
    loop {
        let response = maintenance(member).await.hash_kv(HashKvRequest { revision }).await;
        match response {
            Ok(hash) => return hash.into_inner().hash,
            Err(error) => assert!(began.elapsed() < TEST_TIMEOUT, "{error}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

async fn put_many(member: &TestMember, count: usize, value: &str) -> i64 {
    for number in 0..count {
        member.put_until_done(&format!("k{number}"), value).await;
    }
    status(member).await.header.unwrap().revision
}

#[tokio::test(flavor = "multi_thread")]
async fn every_start_finds_the_data_after_any_change_of_the_file() {
    let a = TestMember::new("a");
    let cluster = [&a];
    let running = start(&a, &cluster, TableKind::Redb).await;
    let mut revision = put_many(&a, 100, "first").await;
    let mut expected = hash(&a, revision).await;
    running.stop().await;

    let truncate = |path: &PathBuf| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(5_000).unwrap();
    };
    let garbage = |path: &PathBuf| std::fs::write(path, vec![7; 100_000]).unwrap();
    let delete = |path: &PathBuf| std::fs::remove_file(path).unwrap();
    let unchanged = |_: &PathBuf| {};
    let changes: [(FileChange<'_>, TableKind); 6] = [
        (&unchanged, TableKind::Redb),
        (&truncate, TableKind::Redb),
        (&garbage, TableKind::Redb),
        (&delete, TableKind::Redb),
        // Meanwhile the file becomes stale.
        (&unchanged, TableKind::Memory),
        (&unchanged, TableKind::Redb),
    ];
    for (number, (change, table)) in changes.into_iter().enumerate() {
        change(&file_of(&a));
        let running = start(&a, &cluster, table).await;
        assert_eq!(hash(&a, revision).await, expected, "start {number}");
        assert_eq!(a.get("k7").await.as_deref(), Some("first"), "start {number}");
        revision = {
            a.put_until_done("more", &number.to_string()).await;
            status(&a).await.header.unwrap().revision
        };
        expected = hash(&a, revision).await;
        running.stop().await;
    }
}

/// The file of one member is copied to another.
#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_another_member_is_rejected() {
    let [a, b] = ["a", "b"].map(TestMember::new);
    for (member, value) in [(&a, "of a"), (&b, "of b")] {
        let running = start(member, &[member], TableKind::Redb).await;
        put_many(member, 50, value).await;
        running.stop().await;
    }
    std::fs::copy(file_of(&a), file_of(&b)).unwrap();
    let running = start(&b, &[&b], TableKind::Redb).await;
    assert_eq!(b.get("k7").await.as_deref(), Some("of b"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_may_use_different_tables() {
    let test_members = ["a", "b", "c"].map(TestMember::new);
    let cluster: Vec<&TestMember> = test_members.iter().collect();
    let tables = [TableKind::Redb, TableKind::Memory, TableKind::Redb];
    let mut running = Vec::new();
    for (member, table) in test_members.iter().zip(tables) {
        running.push(start(member, &cluster, table).await);
    }
    put_many(&test_members[0], 60, "first").await;
    // It misses so much that it receives a snapshot, which replaces its table.
    running.pop().unwrap().stop().await;
    let revision = put_many(&test_members[0], 200, "second").await;
    running.push(start(&test_members[2], &cluster, TableKind::Redb).await);
    let first = hash(&test_members[0], revision).await;
    for member in &test_members[1..] {
        assert_eq!(hash(member, revision).await, first);
    }
    for server in running {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_are_those_of_the_file_and_defragmentation_frees_space() {
    let a = TestMember::new("a");
    let running = start(&a, &[&a], TableKind::Redb).await;
    let revision = put_many(&a, 60, &"large".repeat(20_000)).await;
    let full = status(&a).await;
    assert!(full.db_size >= full.db_size_in_use && full.db_size_in_use > 60 * 100_000);

    let all = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    a.kv().await.delete_range(all).await.unwrap();
    let compaction = CompactionRequest { revision: revision + 1, physical: true };
    a.kv().await.compact(compaction).await.unwrap();
    // Compacted rows are deleted with the next command.
    a.put_until_done("last", "1").await;
    maintenance(&a).await.defragment(DefragmentRequest {}).await.unwrap();
    let empty = status(&a).await;
    assert!(empty.db_size_in_use < 10_000, "{}", empty.db_size_in_use);
    assert!(empty.db_size < full.db_size / 4, "{} of {}", empty.db_size, full.db_size);
    assert_eq!(empty.db_size as u64, std::fs::metadata(file_of(&a)).unwrap().len());
    assert_eq!(a.get("last").await.as_deref(), Some("1"));
    running.stop().await;
}

/// Rows wait in memory before they are written to the file.
#[tokio::test(flavor = "multi_thread")]
async fn the_reported_size_is_never_smaller_than_the_size_in_use() {
    let member = TestMember::new("a");
    let server = start(&member, &[&member], TableKind::Redb).await;
    let value = "v".repeat(1 << 20);
    for number in 0..6 {
        member.put_until_done(&format!("large{number}"), &value).await;
        let status = status(&member).await;
        assert!(status.db_size >= status.db_size_in_use, "{status:?}");
    }
    server.stop().await;
}
