//! A backup comes back as a new cluster.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;

use common::cluster::Cluster;
use common::{Place, quorate, run, run_refused, wait_until};
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{HashKvRequest, WatchCreateRequest, WatchRequest};
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;
use tonic::transport::Channel;

const KEYS: i64 = 300;

#[test]
fn what_was_saved_is_served_again_by_a_new_cluster() {
    let place = Place::new("snapshot");
    fs::create_dir_all(&place.path).unwrap();
    let runtime = Runtime::new().unwrap();
    let file = place.path.join("saved");
    let file = file.to_str().unwrap();
    let saved_revision = {
        let old = Cluster::new(&place, "old", 1);
        let _running = old.start();
        for number in 0..KEYS {
            runtime.block_on(old.put(0, &format!("key{number}"), &number.to_string()));
        }
        run(&["snapshot", "save", file, "--endpoints", &old.client(0)]);
        runtime.block_on(old.revision(0))
    };
    let about: serde_json::Value =
        serde_json::from_str(&run(&["snapshot", "status", file, "-w", "json"])).unwrap();
    assert_eq!(about["revision"], saved_revision);

    let new = Cluster::new(&place, "new", 3);
    (0..3).for_each(|number| drop(restored(&new, number, file, &[])));
    let running = new.start();
    for number in 0..3 {
        let (count, revision) = runtime.block_on(new.count(number));
        assert_eq!((count, revision), (KEYS, saved_revision), "member {number}");
    }
    // The new cluster goes on where the old one was, and keeps what it adds.
    runtime.block_on(new.put(1, "more", "x"));
    drop(running);
    let _running = new.start();
    assert_eq!(runtime.block_on(new.count(2)), (KEYS, saved_revision + 1));
    assert_eq!(runtime.block_on(new.value(0, "more")), b"x");
    assert_eq!(runtime.block_on(new.value(0, "key7")), b"7");
}

#[test]
fn a_damaged_file_is_refused_and_nothing_is_made_of_it() {
    let place = Place::new("snapshot-damaged");
    fs::create_dir_all(&place.path).unwrap();
    let runtime = Runtime::new().unwrap();
    let old = Cluster::new(&place, "old", 1);
    let _running = old.start();
    runtime.block_on(old.put(0, "key", "value"));
    let file = place.path.join("saved");
    let path = file.to_str().unwrap();
    run(&["snapshot", "save", path, "--endpoints", &old.client(0)]);
    let mut bytes = fs::read(&file).unwrap();
    bytes[100] ^= 1;
    fs::write(&file, bytes).unwrap();
    let (code, text) = run_refused(&["snapshot", "status", path]);
    assert_eq!(code, Some(1));
    assert!(text.contains("are not the SHA-256 of the others"), "{text}");
    let target = place.path.join("target");
    let (code, text) =
        run_refused(&["snapshot", "restore", path, "--data-dir", target.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(text.contains("cut or damaged"), "{text}");
    assert!(!target.exists());
    fs::create_dir(&target).unwrap();
    fs::write(target.join("precious"), "data").unwrap();
    let (_, text) =
        run_refused(&["snapshot", "restore", path, "--data-dir", target.to_str().unwrap()]);
    assert!(text.contains("is not empty") && text.contains("--data-dir"), "{text}");
}

#[test]
fn a_bumped_backup_tells_who_holds_on_to_what_was_lost() {
    let place = Place::new("snapshot-bumped");
    fs::create_dir_all(&place.path).unwrap();
    let runtime = Runtime::new().unwrap();
    let file = place.path.join("saved");
    let file = file.to_str().unwrap();
    let (saved, seen, old_cluster) = {
        let old = Cluster::new(&place, "old", 1);
        let _running = old.start();
        for number in 0..KEYS {
            runtime.block_on(old.put(0, &format!("key{}", number % 50), &number.to_string()));
        }
        run(&["snapshot", "save", file, "--endpoints", &old.client(0)]);
        let saved = runtime.block_on(old.revision(0));
        // Clients see this, and it is lost.
        (0..20).for_each(|_| runtime.block_on(old.put(0, "key1", "lost")));
        (saved, runtime.block_on(old.revision(0)), runtime.block_on(hash(&old, 0)).0)
    };
    let new = Cluster::new(&place, "new", 3);
    for number in 0..3 {
        let told = restored(&new, number, file, &["--bump-revision", "1000", "--mark-compacted"]);
        assert!(told.contains(&format!("begins at revision {}", saved + 1000)), "{told}");
    }
    let _running = new.start();
    for number in 0..3 {
        assert_eq!(runtime.block_on(new.count(number)), (50, saved + 1000), "member {number}");
        for from in [1, saved, seen, saved + 999] {
            let told = runtime.block_on(watch_from(&new, number, from));
            assert_eq!(told, Some(saved + 1000), "member {number}, watched from {from}");
        }
        let told = runtime.block_on(watch_from(&new, number, saved + 1000));
        assert_eq!(told, None, "what the new cluster begins with is not compacted");
    }
    // Commands carry the compaction on, on each member alike.
    for number in 0..KEYS as usize {
        runtime.block_on(new.put(number % 3, &format!("key{}", number % 50), "new"));
    }
    let (count, revision) = runtime.block_on(new.count(1));
    assert_eq!((count, revision), (50, saved + 1000 + KEYS));
    let hash_of = |number| runtime.block_on(hash_at(&new, number, revision));
    let hashes: Vec<_> = (0..3).map(hash_of).collect();
    assert!(hashes.iter().all(|one| *one == hashes[0]), "{hashes:?}");
    assert_ne!(hashes[0].0, old_cluster, "the new cluster has an id of its own");
}

#[test]
fn members_of_the_old_cluster_are_not_listened_to() {
    let place = Place::new("snapshot-old-member");
    fs::create_dir_all(&place.path).unwrap();
    let runtime = Runtime::new().unwrap();
    let file = place.path.join("saved");
    let file = file.to_str().unwrap();
    let cluster = Cluster::new(&place, "m", 2);
    {
        let _running = cluster.start();
        runtime.block_on(cluster.put(0, "key1", "saved"));
        run(&["snapshot", "save", file, "--endpoints", &cluster.client(0)]);
        runtime.block_on(cluster.put(0, "key1", "lost"));
    }
    let old = place.path.join("old");
    fs::rename(cluster.directory(1), &old).unwrap();
    fs::remove_dir_all(cluster.directory(0)).unwrap();
    // The same names, addresses and token: only what they begin with is another.
    (0..2).for_each(|number| drop(restored(&cluster, number, file, &[])));
    let new = place.path.join("new");
    fs::rename(cluster.directory(1), &new).unwrap();
    fs::rename(&old, cluster.directory(1)).unwrap();
    let log = place.path.join("m0.log");
    let first = cluster.spawn(0);
    let stale = cluster.spawn(1);
    let refused =
        || fs::read_to_string(&log).unwrap().contains("no member of that cluster runs here");
    wait_until(refused, "the old member is turned away");
    assert!(!served(&cluster, 0), "one of two is no majority, and the old one does not count");
    drop(stale);
    fs::remove_dir_all(cluster.directory(1)).unwrap();
    fs::rename(&new, cluster.directory(1)).unwrap();
    let second = cluster.start_one(1);
    cluster.wait_served(0);
    assert_eq!(runtime.block_on(cluster.value(0, "key1")), b"saved");
    drop((first, second));
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let place = Place::new("snapshot-flags");
    fs::create_dir_all(&place.path).unwrap();
    let file = place.path.join("saved");
    let path = file.to_str().unwrap();
    let old = Cluster::new(&place, "old", 1);
    let running = old.start();
    run(&["snapshot", "save", path, "--endpoints", &old.client(0)]);
    drop(running);
    let new = Cluster::new(&place, "new", 1);
    let refused = |more: &[&str]| restore_refused(&new, path, more);
    for odd in [&["--mark-compacted"][..], &["--bump-revision", "5"]] {
        let (code, text) = refused(odd);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("--mark-compacted is required with"), "{text}");
    }
    let (code, _) = refused(&["--bump-revision", "18446744073709551615", "--mark-compacted"]);
    assert_eq!(code, Some(2));
    let wal = place.path.join("wal");
    let wal_text = wal.to_str().unwrap().to_string();
    fs::create_dir(&wal).unwrap();
    let (code, text) = refused(&["--wal-dir", &wal_text]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("name another --wal-dir"), "{text}");
    fs::remove_dir(&wal).unwrap();
    let (code, text) = refused(&["--name", "somebody"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("\"somebody\" in the initial cluster"), "{text}");

    // A file without its checksum is taken only if that is said.
    let mut bytes = fs::read(&file).unwrap();
    bytes.truncate(bytes.len() - 32);
    fs::write(&file, bytes).unwrap();
    let (code, text) = refused(&[]);
    assert_eq!(code, Some(1));
    assert!(text.contains("cut or damaged"), "{text}");
    fs::create_dir(new.directory(0)).unwrap();
    restored(&new, 0, path, &["--skip-hash-check", "--wal-dir", &wal_text]);
    assert!(wal.read_dir().unwrap().count() > 0);
    fs::write(&file, vec![b'x'; 4_096]).unwrap();
    let (code, text) = restore_refused(&old, path, &["--skip-hash-check", "--data-dir", "none"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("not a snapshot of this program"), "{text}");
}

fn restore_refused(cluster: &Cluster, file: &str, more: &[&str]) -> (Option<i32>, String) {
    let flags = cluster.flags(0);
    // What is said again takes the place of what was said before.
    let kept = flags.chunks(2).filter(|pair| !more.contains(&pair[0].as_str())).flatten();
    let mut arguments = vec!["snapshot", "restore", file];
    arguments.extend(kept.map(String::as_str).chain(more.iter().copied()));
    run_refused(&arguments)
}

fn restored(cluster: &Cluster, number: usize, file: &str, more: &[&str]) -> String {
    let flags = cluster.flags(number);
    let mut arguments = vec!["snapshot", "restore", file];
    arguments.extend(flags.iter().map(String::as_str).chain(more.iter().copied()));
    let text = run(&arguments);
    assert!(text.contains("for the new cluster"), "{text}");
    text
}

fn served(cluster: &Cluster, number: usize) -> bool {
    let status = quorate().args(["status", "--endpoints", &cluster.client(number)]).output();
    status.unwrap().status.success()
}

async fn channel(cluster: &Cluster<'_>, number: usize) -> Channel {
    let endpoint = tonic::transport::Endpoint::from_shared(cluster.client(number)).unwrap();
    endpoint.connect().await.unwrap()
}

/// Cluster, hash and compact revision, as the member has them now.
async fn hash(cluster: &Cluster<'_>, number: usize) -> (u64, u32, i64) {
    hash_at(cluster, number, 0).await
}

async fn hash_at(cluster: &Cluster<'_>, number: usize, revision: i64) -> (u64, u32, i64) {
    // A read first: it may be behind.
    cluster.count(number).await;
    let mut maintenance = MaintenanceClient::new(channel(cluster, number).await);
    let reply = maintenance.hash_kv(HashKvRequest { revision }).await.unwrap().into_inner();
    (reply.header.unwrap().cluster_id, reply.hash, reply.compact_revision)
}

/// From where on there is something to watch, if it was told that this is too far back.
async fn watch_from(cluster: &Cluster<'_>, number: usize, revision: i64) -> Option<i64> {
    let create = WatchCreateRequest {
        key: "key".into(),
        range_end: "kez".into(),
        start_revision: revision,
        ..Default::default()
    };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let asked = tokio_stream::iter([request]).chain(tokio_stream::pending());
    let mut watch = WatchClient::new(channel(cluster, number).await);
    let mut replies = watch.watch(asked).await.unwrap().into_inner();
    let created = replies.message().await.unwrap().unwrap();
    assert!(created.created);
    if revision >= cluster.revision(number).await {
        return (created.compact_revision > 0).then_some(created.compact_revision);
    }
    let told = replies.message().await.unwrap().unwrap();
    assert!(told.canceled, "{told:?}");
    Some(told.compact_revision)
}
