//! `quorate snapshot`: a saved snapshot is restored as a new cluster.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;

use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{HashKvRequest, WatchCreateRequest, WatchRequest};
use support::cluster::TestCluster;
use support::messages::{DAMAGED_SNAPSHOT, FOREIGN_SNAPSHOT, WRONG_CLUSTER};
use support::{TestDirectory, run, run_failing, wait_for_text};
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;

const KEYS: i64 = 300;

#[test]
fn a_new_cluster_serves_the_restored_data() {
    let directory = TestDirectory::new("snapshot");
    let runtime = Runtime::new().unwrap();
    let file = directory.file("saved");
    let file = file.as_str();
    let saved_revision = {
        let old = TestCluster::new::<1>(&directory, "old");
        let _processes = old.start();
        for number in 0..KEYS {
            runtime.block_on(old[0].put(&format!("key{number}"), &number.to_string()));
        }
        run(&["snapshot", "save", file, "--endpoints", &old[0].client_url]);
        runtime.block_on(old[0].revision())
    };
    let about: serde_json::Value =
        serde_json::from_str(&run(&["snapshot", "status", file, "-w", "json"])).unwrap();
    assert_eq!(about["revision"], saved_revision);

    let new = TestCluster::new::<3>(&directory, "new");
    (0..3).for_each(|number| drop(restore(&new, number, file, &[])));
    let processes = new.start();
    for number in 0..3 {
        let (count, revision) = runtime.block_on(new[number].count());
        assert_eq!((count, revision), (KEYS, saved_revision), "member {number}");
    }
    // The new cluster continues at the old revision and keeps its own writes.
    runtime.block_on(new[1].put("more", "x"));
    drop(processes);
    let _processes = new.start();
    assert_eq!(runtime.block_on(new[2].count()), (KEYS, saved_revision + 1));
    assert_eq!(runtime.block_on(new[0].value("more")), "x");
    assert_eq!(runtime.block_on(new[0].value("key7")), "7");
}

#[test]
fn a_damaged_file_is_refused_before_anything_is_written() {
    let directory = TestDirectory::new("snapshot-damaged");
    let runtime = Runtime::new().unwrap();
    let old = TestCluster::new::<1>(&directory, "old");
    let _processes = old.start();
    runtime.block_on(old[0].put("key", "value"));
    let file = directory.file("saved");
    let path = file.as_str();
    run(&["snapshot", "save", path, "--endpoints", &old[0].client_url]);
    let mut bytes = fs::read(&file).unwrap();
    bytes[100] ^= 1;
    fs::write(&file, bytes).unwrap();
    let (code, text) = run_failing(&["snapshot", "status", path]);
    assert_eq!(code, Some(1));
    assert!(text.contains("are not the SHA-256 checksum of the others"), "{text}");
    let target = directory.path.join("target");
    let (code, text) =
        run_failing(&["snapshot", "restore", path, "--data-dir", target.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(text.contains(DAMAGED_SNAPSHOT), "{text}");
    assert!(!target.exists());
    fs::create_dir(&target).unwrap();
    fs::write(target.join("precious"), "data").unwrap();
    let (_, text) =
        run_failing(&["snapshot", "restore", path, "--data-dir", target.to_str().unwrap()]);
    assert!(text.contains("is not empty") && text.contains("--data-dir"), "{text}");
}

#[test]
fn a_bumped_restore_reports_lost_revisions_as_compacted() {
    let directory = TestDirectory::new("snapshot-bumped");
    let runtime = Runtime::new().unwrap();
    let file = directory.file("saved");
    let file = file.as_str();
    let (saved, seen, old_cluster) = {
        let old = TestCluster::new::<1>(&directory, "old");
        let _processes = old.start();
        for number in 0..KEYS {
            runtime.block_on(old[0].put(&format!("key{}", number % 50), &number.to_string()));
        }
        run(&["snapshot", "save", file, "--endpoints", &old[0].client_url]);
        let saved = runtime.block_on(old[0].revision());
        // Clients see these writes; the restored cluster does not have them.
        (0..20).for_each(|_| runtime.block_on(old[0].put("key1", "lost")));
        (saved, runtime.block_on(old[0].revision()), runtime.block_on(hash(&old, 0, 0)).0)
    };
    let new = TestCluster::new::<3>(&directory, "new");
    for number in 0..3 {
        let text = restore(&new, number, file, &["--bump-revision", "1000", "--mark-compacted"]);
        assert!(text.contains(&format!("starts at revision {}", saved + 1000)), "{text}");
    }
    let _processes = new.start();
    for number in 0..3 {
        assert_eq!(runtime.block_on(new[number].count()), (50, saved + 1000), "member {number}");
        for from in [1, saved, seen, saved + 999] {
            let compacted = runtime.block_on(watch_from(&new, number, from));
            assert_eq!(compacted, Some(saved + 1000), "member {number}, watched from {from}");
        }
        let compacted = runtime.block_on(watch_from(&new, number, saved + 1000));
        assert_eq!(compacted, None, "the first revision of the new cluster is not compacted");
    }
    // Later writes continue the compaction identically on each member.
    for number in 0..KEYS as usize {
        runtime.block_on(new[number % 3].put(&format!("key{}", number % 50), "new"));
    }
    let (count, revision) = runtime.block_on(new[1].count());
    assert_eq!((count, revision), (50, saved + 1000 + KEYS));
    let hash_of = |number| runtime.block_on(hash(&new, number, revision));
    let hashes: Vec<_> = (0..3).map(hash_of).collect();
    assert!(hashes.iter().all(|one| *one == hashes[0]), "{hashes:?}");
    assert_ne!(hashes[0].0, old_cluster, "the new cluster has a new id");
}

#[test]
fn members_of_the_old_cluster_are_rejected() {
    let directory = TestDirectory::new("snapshot-old-member");
    let runtime = Runtime::new().unwrap();
    let file = directory.file("saved");
    let file = file.as_str();
    let cluster = TestCluster::new::<2>(&directory, "m");
    {
        let _processes = cluster.start();
        runtime.block_on(cluster[0].put("key1", "saved"));
        run(&["snapshot", "save", file, "--endpoints", &cluster[0].client_url]);
        runtime.block_on(cluster[0].put("key1", "lost"));
    }
    let old = directory.path.join("old");
    fs::rename(&cluster[1].data_dir, &old).unwrap();
    fs::remove_dir_all(&cluster[0].data_dir).unwrap();
    // The same names, addresses and token; only the data they start with differs.
    (0..2).for_each(|number| drop(restore(&cluster, number, file, &[])));
    let new = directory.path.join("new");
    fs::rename(&cluster[1].data_dir, &new).unwrap();
    fs::rename(&old, &cluster[1].data_dir).unwrap();
    let first = cluster.spawn(0);
    let stale = cluster.spawn(1);
    wait_for_text(&cluster[0].log, WRONG_CLUSTER);
    assert!(!cluster[0].is_serving(), "one of two is no quorum, and the old one does not count");
    drop(stale);
    fs::remove_dir_all(&cluster[1].data_dir).unwrap();
    fs::rename(&new, &cluster[1].data_dir).unwrap();
    let second = cluster.spawn(1);
    cluster[1].wait_serving();
    cluster[0].wait_serving();
    assert_eq!(runtime.block_on(cluster[0].value("key1")), "saved");
    drop((first, second));
}

#[test]
fn invalid_restore_flags_are_refused() {
    let directory = TestDirectory::new("snapshot-flags");
    let file = directory.file("saved");
    let path = file.as_str();
    let old = TestCluster::new::<1>(&directory, "old");
    let processes = old.start();
    run(&["snapshot", "save", path, "--endpoints", &old[0].client_url]);
    drop(processes);
    let new = TestCluster::new::<1>(&directory, "new");
    let refused = |more: &[&str]| restore_refused(&new, path, more);
    for invalid in [&["--mark-compacted"][..], &["--bump-revision", "5"]] {
        let (code, text) = refused(invalid);
        assert_eq!(code, Some(2), "{text}");
        assert!(
            text.contains("--bump-revision and --mark-compacted must be used together"),
            "{text}"
        );
    }
    let (code, _) = refused(&["--bump-revision", "18446744073709551615", "--mark-compacted"]);
    assert_eq!(code, Some(2));
    let wal = directory.path.join("wal");
    let wal_text = directory.file("wal");
    fs::create_dir(&wal).unwrap();
    let (code, text) = refused(&["--wal-dir", &wal_text]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("use another --wal-dir"), "{text}");
    fs::remove_dir(&wal).unwrap();
    let (code, text) = refused(&["--name", "unknown"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("\"unknown\" in the initial cluster"), "{text}");

    // A file without its checksum is accepted only with --skip-hash-check.
    let mut bytes = fs::read(&file).unwrap();
    bytes.truncate(bytes.len() - 32);
    fs::write(&file, bytes).unwrap();
    let (code, text) = refused(&[]);
    assert_eq!(code, Some(1));
    assert!(text.contains(DAMAGED_SNAPSHOT), "{text}");
    fs::create_dir(&new[0].data_dir).unwrap();
    restore(&new, 0, path, &["--skip-hash-check", "--wal-dir", &wal_text]);
    assert!(wal.read_dir().unwrap().count() > 0);
    fs::write(&file, vec![b'x'; 4_096]).unwrap();
    let (code, text) = restore_refused(&old, path, &["--skip-hash-check", "--data-dir", "none"]);
    assert_eq!(code, Some(1));
    assert!(text.contains(FOREIGN_SNAPSHOT), "{text}");
}

fn restore_refused(cluster: &TestCluster, file: &str, more: &[&str]) -> (Option<i32>, String) {
    let flags = cluster[0].member_flags(&cluster.all());
    // A flag in `more` replaces the default one.
    let others = flags.chunks(2).filter(|pair| !more.contains(&pair[0].as_str())).flatten();
    let mut arguments = vec!["snapshot", "restore", file];
    arguments.extend(others.map(String::as_str).chain(more.iter().copied()));
    run_failing(&arguments)
}

fn restore(cluster: &TestCluster, number: usize, file: &str, more: &[&str]) -> String {
    let flags = cluster[number].member_flags(&cluster.all());
    let mut arguments = vec!["snapshot", "restore", file];
    arguments.extend(flags.iter().map(String::as_str).chain(more.iter().copied()));
    let text = run(&arguments);
    assert!(text.contains("for the new cluster"), "{text}");
    text
}

/// The cluster id, hash and compact revision of a member, up to this revision (0: the newest).
async fn hash(cluster: &TestCluster, number: usize, revision: i64) -> (u64, u32, i64) {
    // After a linearizable read the member has caught up.
    cluster[number].count().await;
    let mut maintenance = MaintenanceClient::new(cluster[number].channel().await);
    let reply = maintenance.hash_kv(HashKvRequest { revision }).await.unwrap().into_inner();
    (reply.header.unwrap().cluster_id, reply.hash, reply.compact_revision)
}

/// The compact revision that a watch from this revision reports, if it is too old.
async fn watch_from(cluster: &TestCluster, number: usize, revision: i64) -> Option<i64> {
    let create = WatchCreateRequest {
        key: "key".into(),
        range_end: "kez".into(),
        start_revision: revision,
        ..Default::default()
    };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::iter([request]).chain(tokio_stream::pending());
    let mut watch = WatchClient::new(cluster[number].channel().await);
    let mut replies = watch.watch(requests).await.unwrap().into_inner();
    let created = replies.message().await.unwrap().unwrap();
    assert!(created.created);
    if revision >= cluster[number].revision().await {
        return (created.compact_revision > 0).then_some(created.compact_revision);
    }
    let canceled = replies.message().await.unwrap().unwrap();
    assert!(canceled.canceled, "{canceled:?}");
    Some(canceled.compact_revision)
}
