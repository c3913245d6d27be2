//! What comes back: a snapshot as a cluster of three, one member of a lost cluster alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;

use common::cluster::Cluster;
use common::{Place, run, run_refused};
use tokio::runtime::Runtime;

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
    (0..3).for_each(|number| restore(&new, number, file));
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
    let (_, text) =
        run_refused(&["snapshot", "restore", path, "--data-dir", target.to_str().unwrap()]);
    assert!(text.contains("exists; name a --data-dir"), "{text}");
}

#[test]
fn one_member_of_a_lost_cluster_becomes_a_new_one() {
    let place = Place::new("recover");
    fs::create_dir_all(&place.path).unwrap();
    let runtime = Runtime::new().unwrap();
    let cluster = Cluster::new(&place, "lost", 3);
    let running = cluster.start();
    for number in 0..KEYS {
        runtime.block_on(cluster.put(0, &format!("key{number}"), &number.to_string()));
    }
    // Asked linearizably, the one that will be left has all of it.
    assert_eq!(runtime.block_on(cluster.count(1)).0, KEYS);
    drop(running);
    let directory = cluster.directory(1);
    let told = run(&["recover", "--data-dir", &directory]);
    assert!(told.contains("members no more: ") && told.contains("lost0 ("), "{told}");
    let (_, confirmation) = told.trim_end().rsplit_once("--confirm ").unwrap();
    let (code, text) =
        run_refused(&["recover", "--data-dir", &directory, "--confirm", "something else"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("does not confirm"), "{text}");
    let told = run(&["recover", "--data-dir", &directory, "--confirm", confirmation]);
    assert!(told.contains("has one member"), "{told}");
    let _running = cluster.start_one(1);
    assert_eq!(runtime.block_on(cluster.count(1)).0, KEYS);
    let (code, text) = run_refused(&["recover", "--data-dir", &cluster.directory(9)]);
    assert_eq!(code, Some(1));
    assert!(text.contains("is empty"), "{text}");
}

fn restore(cluster: &Cluster, number: usize, file: &str) {
    let flags = cluster.flags(number);
    let mut arguments = vec!["snapshot", "restore", file];
    arguments.extend(flags.iter().map(String::as_str));
    let text = run(&arguments);
    assert!(text.contains("for a new cluster"), "{text}");
}
