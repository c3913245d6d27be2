//! A server whose data is in a file of redb: it goes on from there, and where the file is
//! lost, damaged or another's, from snapshot and log.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::path::PathBuf;

use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::{
    CompactionRequest, DefragmentRequest, DeleteRangeRequest, HashKvRequest, StatusRequest,
    StatusResponse,
};
use quorate_server::RunningServer;
use quorate_server::config::{ClusterState, TableKind};
use support::{PATIENCE, TestMember};
use tokio::time::Instant;
use tonic::transport::Channel;

/// What happens to a file between two starts.
type Fate<'a> = &'a dyn Fn(&PathBuf);

/// So that there are snapshots, and a log behind them.
const SNAPSHOT_COUNT: u64 = 40;

async fn start(place: &TestMember, cluster: &[&TestMember], table: TableKind) -> RunningServer {
    let mut config = place.config(cluster, ClusterState::New);
    (config.table, config.snapshot_count) = (table, SNAPSHOT_COUNT);
    RunningServer::start(config).await.unwrap()
}

fn file_of(place: &TestMember) -> PathBuf {
    place.directory().join("data/member/table/rows")
}

async fn maintenance(place: &TestMember) -> MaintenanceClient<Channel> {
    MaintenanceClient::new(place.channel().await)
}

async fn status(place: &TestMember) -> StatusResponse {
    maintenance(place).await.status(StatusRequest {}).await.unwrap().into_inner()
}

/// The hash of everything up to this revision, once it is there.
async fn hash(place: &TestMember, revision: i64) -> u32 {
    let began = Instant::now();
    loop {
        let asked = maintenance(place).await.hash_kv(HashKvRequest { revision }).await;
        match asked {
            Ok(hash) => return hash.into_inner().hash,
            Err(why) => assert!(began.elapsed() < PATIENCE, "{why}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

async fn put_many(place: &TestMember, count: usize, value: &str) -> i64 {
    for number in 0..count {
        place.put_surely(&format!("k{number}"), value).await;
    }
    status(place).await.header.unwrap().revision
}

#[tokio::test(flavor = "multi_thread")]
async fn every_start_finds_the_data_whatever_became_of_the_file() {
    let a = TestMember::new("a");
    let cluster = [&a];
    let running = start(&a, &cluster, TableKind::Redb).await;
    let mut revision = put_many(&a, 100, "first").await;
    let mut known = hash(&a, revision).await;
    running.stop().await;

    let cut = |path: &PathBuf| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(5_000).unwrap();
    };
    let garbage = |path: &PathBuf| std::fs::write(path, vec![7; 100_000]).unwrap();
    let none = |path: &PathBuf| std::fs::remove_file(path).unwrap();
    let as_it_was = |_: &PathBuf| {};
    let fates: [(Fate<'_>, TableKind); 6] = [
        (&as_it_was, TableKind::Redb),
        (&cut, TableKind::Redb),
        (&garbage, TableKind::Redb),
        (&none, TableKind::Redb),
        // Meanwhile the file falls behind.
        (&as_it_was, TableKind::Memory),
        (&as_it_was, TableKind::Redb),
    ];
    for (number, (fate, table)) in fates.into_iter().enumerate() {
        fate(&file_of(&a));
        let running = start(&a, &cluster, table).await;
        assert_eq!(hash(&a, revision).await, known, "start {number}");
        assert_eq!(a.get("k7").await.as_deref(), Some("first"), "start {number}");
        revision = {
            a.put_surely("more", &number.to_string()).await;
            status(&a).await.header.unwrap().revision
        };
        known = hash(&a, revision).await;
        running.stop().await;
    }
}

/// A file that was put under another member is not that member's.
#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_another_is_not_taken_for_ones_own() {
    let [a, b] = ["a", "b"].map(TestMember::new);
    for (place, value) in [(&a, "of a"), (&b, "of b")] {
        let running = start(place, &[place], TableKind::Redb).await;
        put_many(place, 50, value).await;
        running.stop().await;
    }
    std::fs::copy(file_of(&a), file_of(&b)).unwrap();
    let running = start(&b, &[&b], TableKind::Redb).await;
    assert_eq!(b.get("k7").await.as_deref(), Some("of b"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_may_differ_in_their_tables() {
    let places = ["a", "b", "c"].map(TestMember::new);
    let cluster: Vec<&TestMember> = places.iter().collect();
    let tables = [TableKind::Redb, TableKind::Memory, TableKind::Redb];
    let mut running = Vec::new();
    for (place, table) in places.iter().zip(tables) {
        running.push(start(place, &cluster, table).await);
    }
    put_many(&places[0], 60, "first").await;
    // It misses so much that it is sent a snapshot, which replaces what it has kept.
    running.pop().unwrap().stop().await;
    let revision = put_many(&places[0], 200, "second").await;
    running.push(start(&places[2], &cluster, TableKind::Redb).await);
    let first = hash(&places[0], revision).await;
    for place in &places[1..] {
        assert_eq!(hash(place, revision).await, first);
    }
    for server in running {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_are_those_of_the_file_and_defragmentation_gives_space_back() {
    let a = TestMember::new("a");
    let running = start(&a, &[&a], TableKind::Redb).await;
    let revision = put_many(&a, 60, &"large".repeat(20_000)).await;
    let full = status(&a).await;
    assert!(full.db_size >= full.db_size_in_use && full.db_size_in_use > 60 * 100_000);

    let all = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    a.kv().await.delete_range(all).await.unwrap();
    let compaction = CompactionRequest { revision: revision + 1, physical: true };
    a.kv().await.compact(compaction).await.unwrap();
    // What is compacted away goes with the commands after it.
    a.put_surely("last", "1").await;
    maintenance(&a).await.defragment(DefragmentRequest {}).await.unwrap();
    let empty = status(&a).await;
    assert!(empty.db_size_in_use < 10_000, "{}", empty.db_size_in_use);
    assert!(empty.db_size < full.db_size / 4, "{} of {}", empty.db_size, full.db_size);
    assert_eq!(empty.db_size as u64, std::fs::metadata(file_of(&a)).unwrap().len());
    assert_eq!(a.get("last").await.as_deref(), Some("1"));
    running.stop().await;
}
