//! Members of a cluster that is lost or stopped become a new one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;

use common::cluster::Cluster;
use common::member::{Member, asked, done, found_all, json, pairs};
use common::{Place, run, run_refused, wait_until};
use tokio::runtime::Runtime;

const KEYS: i64 = 300;

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

#[test]
fn a_lost_cluster_comes_back_with_all_of_its_members() {
    let place = Place::new("recover-members");
    let [a, b, c] = Member::all(&place, ["a", "b", "c"]);
    let all = [&a, &b, &c];
    let runtime = Runtime::new().unwrap();
    let running = found_all(&all);
    for number in 0..50 {
        runtime.block_on(a.put(&format!("key{number}"), "kept"));
    }
    assert_eq!(runtime.block_on(b.value("key49")), "kept");
    let old_cluster = json(&[&a], &["member", "list"])["header"]["cluster_id"].clone();
    // The quorum is lost: b is all that is left.
    drop(running);
    recover_with(&b, &all);

    let again = b.found(&all);
    b.wait_served();
    assert_eq!(runtime.block_on(b.value("key7")), "kept");
    runtime.block_on(b.put("key7", "new"));
    let (status, _) = done(&[&b], &["status"]);
    assert!(status.contains("| b    | leader "), "{status}");
    assert!(status.contains("| a    | unreachable "), "{status}");
    assert!(status.contains("a change is under way"), "{status}");
    assert!(status.contains("1 voter, quorum 1, live 1"), "{status}");

    // An old member that comes back with its disk is turned away, and disturbs nobody.
    let old = c.found(&all);
    let turned_away = || {
        let log = fs::read_to_string(&c.log).unwrap();
        log.contains("no member of that cluster runs here")
    };
    wait_until(turned_away, "the old member is turned away");
    assert!(!asked(&[&c], &["status"]).status.success(), "it has nobody to serve with");
    runtime.block_on(b.put("key8", "new"));
    drop(old);

    // With empty disks they are let in, and get their votes.
    fs::remove_dir_all(&a.directory).unwrap();
    fs::remove_dir_all(&c.directory).unwrap();
    let joined = [a.join(&all), c.join(&all)];
    let whole = || {
        let status = json(&[&b], &["status"]);
        status["voters"] == 3 && status["failuresTolerated"] == 1 && status["settled"] == true
    };
    wait_until(whole, "all three vote");
    let list = json(&[&a, &b, &c], &["member", "list"]);
    assert_ne!(list["header"]["cluster_id"], old_cluster);
    for member in all {
        member.wait_served();
        assert_eq!(runtime.block_on(member.value("key7")), "new", "{}", member.name);
        assert_eq!(runtime.block_on(member.value("key9")), "kept", "{}", member.name);
    }
    // It is a cluster like any other: it goes on without the one that it came from.
    drop(again);
    a.wait_served();
    runtime.block_on(a.put("key9", "newer"));
    assert_eq!(runtime.block_on(c.value("key9")), "newer");
    drop(joined);
}

/// Asks, is told, and confirms what was told. The survivor is the one in the middle.
fn recover_with(survivor: &Member, all: &[&Member; 3]) {
    let directory = survivor.directory.to_str().unwrap();
    let members = pairs(all);
    let recover = ["recover", "--data-dir", directory, "--members", &members];

    let told = run(&recover);
    for words in [
        "b (",
        "these would be members no more: ",
        "this would be kept: everything that this disk holds",
        "this would be lost: whatever was acknowledged without this member",
        "these would join it with empty directories",
        &all[0].pair(),
        &all[2].pair(),
    ] {
        assert!(told.contains(words), "no '{words}' in\n{told}");
    }
    let (line, confirmation) = told.trim_end().rsplit_once(" --confirm ").unwrap();
    assert!(line.ends_with(&format!("to do it: quorate {}", recover.join(" "))), "{told}");

    // What is confirmed is this list and no other.
    let fewer = pairs(&all[..2]);
    for other in [&["--members", &fewer][..], &[]] {
        let arguments = ["recover", "--data-dir", directory, "--confirm", confirmation];
        let arguments: Vec<&str> = arguments.iter().chain(other).copied().collect();
        let (code, text) = run_refused(&arguments);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("does not confirm"), "{text}");
    }
    let told = run(&[&recover[..], &["--confirm", confirmation]].concat());
    assert!(told.contains("ETCD_INITIAL_CLUSTER_STATE=\"existing\""), "{told}");
    assert!(told.contains(&format!("ETCD_INITIAL_CLUSTER=\"{members}\"")), "{told}");
}

#[test]
fn lists_that_cannot_be_meant_are_refused() {
    let place = Place::new("recover-lists");
    let [a, b, c] = Member::all(&place, ["a", "b", "c"]);
    let running = found_all(&[&a, &b]);
    done(&[&a], &["member", "set", "a", "b", &c.pair(), "--no-wait"]);
    let known = || json(&[&a], &["member", "list"])["members"].as_array().unwrap().len() == 3;
    wait_until(known, "c is a learner");
    drop(running);
    let directory = a.directory.to_str().unwrap();
    // Who came since the last snapshot is known from the log.
    let told = run(&["recover", "--data-dir", directory]);
    let gone = told.lines().find(|line| line.contains("members no more")).unwrap();
    assert!(gone.contains("b (") && gone.contains("c ("), "{told}");
    let refused =
        |members: &str| run_refused(&["recover", "--data-dir", directory, "--members", members]);
    let (code, text) = refused(&b.pair());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("this is the disk of a, want it among the members"), "{text}");
    assert!(text.contains(&a.pair()), "{text}");
    let (code, text) = refused(&format!("{},b={}", a.pair(), a.peer));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("two members"), "{text}");
    for odd in ["a", "", "a=nowhere", "a=https://h:1"] {
        let (code, text) = refused(odd);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("--members"), "{text}");
    }
    // Another address is a wish like any other, and is told.
    let told = run(&["recover", "--data-dir", directory, "--members", "a=http://127.0.0.1:1"]);
    assert!(told.contains("its peers would find it at a=http://127.0.0.1:1"), "{told}");
    assert_ne!(told.lines().last(), run(&["recover", "--data-dir", directory]).lines().last());
}
