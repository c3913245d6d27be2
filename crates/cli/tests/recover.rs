//! `quorate recover`: a new cluster from the disk of one stopped member.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;

use support::cluster::TestCluster;
use support::messages::{NOT_IN_MEMBERS, WRONG_CLUSTER};
use support::server::{TestServer, json, pairs, start_all, succeed};
use support::{TestDirectory, run, run_failing, wait_for_text, wait_until};
use tokio::runtime::Runtime;

const KEYS: i64 = 300;

#[test]
fn a_single_member_becomes_a_new_cluster() {
    let directory = TestDirectory::new("recover");
    let runtime = Runtime::new().unwrap();
    let cluster = TestCluster::new::<3>(&directory, "lost");
    let processes = cluster.start();
    for number in 0..KEYS {
        runtime.block_on(cluster[0].put(&format!("key{number}"), &number.to_string()));
    }
    // After a linearizable read, the member that remains has all keys.
    assert_eq!(runtime.block_on(cluster[1].count()).0, KEYS);
    drop(processes);
    let data_dir = cluster[1].data_dir.to_str().unwrap();
    let shown = run(&["recover", "--data-dir", data_dir]);
    assert!(shown.contains("would be removed: ") && shown.contains("lost0 ("), "{shown}");
    let (_, confirmation) = shown.trim_end().rsplit_once("--confirm ").unwrap();
    let (code, text) =
        run_failing(&["recover", "--data-dir", data_dir, "--confirm", "something else"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("does not confirm"), "{text}");
    let done = run(&["recover", "--data-dir", data_dir, "--confirm", confirmation]);
    assert!(done.contains("has one member"), "{done}");
    let _process = cluster.spawn(1);
    cluster[1].wait_serving();
    assert_eq!(runtime.block_on(cluster[1].count()).0, KEYS);
    let (code, text) = run_failing(&["recover", "--data-dir", &directory.file("missing")]);
    assert_eq!(code, Some(1));
    assert!(text.contains("is empty"), "{text}");
}

#[test]
fn a_recovered_cluster_gets_all_members_back() {
    let directory = TestDirectory::new("recover-members");
    let [a, b, c] = TestServer::all(&directory, ["a", "b", "c"]);
    let all = [&a, &b, &c];
    let runtime = Runtime::new().unwrap();
    let processes = start_all(&all);
    for number in 0..50 {
        runtime.block_on(a.put(&format!("key{number}"), "kept"));
    }
    assert_eq!(runtime.block_on(b.value("key49")), "kept");
    let old_cluster = json(&[&a], &["member", "list"])["header"]["cluster_id"].clone();
    // The quorum is lost: only the disk of b is left.
    drop(processes);
    recover_with(&b, &all);

    let recovered = b.start_new(&all);
    b.wait_serving();
    assert_eq!(runtime.block_on(b.value("key7")), "kept");
    runtime.block_on(b.put("key7", "new"));
    let (status, _) = succeed(&[&b], &["status"]);
    assert!(status.contains("| b    | leader "), "{status}");
    assert!(status.contains("| a    | unstarted"), "{status}");
    assert!(status.contains("a membership change is in progress"), "{status}");
    assert!(status.contains("1 voter, quorum 1, live 1"), "{status}");

    // An old member that starts with its old disk is rejected and does no harm.
    let old = c.start_new(&all);
    wait_for_text(&c.log, WRONG_CLUSTER);
    assert!(!c.is_serving(), "it has no quorum");
    runtime.block_on(b.put("key8", "new"));
    drop(old);

    // With empty disks they join and become voters.
    fs::remove_dir_all(&a.data_dir).unwrap();
    fs::remove_dir_all(&c.data_dir).unwrap();
    let joined = [a.start_joining(&all), c.start_joining(&all)];
    let whole = || {
        let status = json(&[&b], &["status"]);
        status["voters"] == 3 && status["failuresTolerated"] == 1 && status["settled"] == true
    };
    wait_until(whole, "all three are voters");
    let list = json(&[&a, &b, &c], &["member", "list"]);
    assert_ne!(list["header"]["cluster_id"], old_cluster);
    for member in all {
        member.wait_serving();
        assert_eq!(runtime.block_on(member.value("key7")), "new", "{}", member.name);
        assert_eq!(runtime.block_on(member.value("key9")), "kept", "{}", member.name);
    }
    // The cluster also works without the member from which it was recovered.
    drop(recovered);
    a.wait_serving();
    runtime.block_on(a.put("key9", "newer"));
    assert_eq!(runtime.block_on(c.value("key9")), "newer");
    drop(joined);
}

/// Shows the consequences, checks them and confirms. The survivor is the second member.
fn recover_with(survivor: &TestServer, all: &[&TestServer; 3]) {
    let data_dir = survivor.data_dir.to_str().unwrap();
    let members = pairs(all);
    let recover = ["recover", "--data-dir", data_dir, "--members", &members];
    let shown = run(&recover);
    for text in [
        "b (",
        "members that would be removed: ",
        "data that would be kept: everything on this disk",
        "data that would be lost: writes that were acknowledged without this member",
        "members that would join with empty data directories",
        &all[0].pair(),
        &all[2].pair(),
    ] {
        assert!(shown.contains(text), "no '{text}' in\n{shown}");
    }
    let (line, confirmation) = shown.trim_end().rsplit_once(" --confirm ").unwrap();
    assert!(line.ends_with(&format!("to recover, run: quorate {}", recover.join(" "))), "{shown}");

    // The confirmation is valid for this list only.
    let fewer = pairs(&all[..2]);
    for other in [&["--members", &fewer][..], &[]] {
        let arguments = ["recover", "--data-dir", data_dir, "--confirm", confirmation];
        let arguments: Vec<&str> = arguments.iter().chain(other).copied().collect();
        let (code, text) = run_failing(&arguments);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("does not confirm"), "{text}");
    }
    let done = run(&[&recover[..], &["--confirm", confirmation]].concat());
    assert!(done.contains("ETCD_INITIAL_CLUSTER_STATE=\"existing\""), "{done}");
    assert!(done.contains(&format!("ETCD_INITIAL_CLUSTER=\"{members}\"")), "{done}");
}

#[test]
fn invalid_member_lists_are_refused() {
    let directory = TestDirectory::new("recover-lists");
    let [a, b, c] = TestServer::all(&directory, ["a", "b", "c"]);
    let processes = start_all(&[&a, &b]);
    succeed(&[&a], &["member", "set", "a", "b", &c.pair(), "--no-wait"]);
    let known = || json(&[&a], &["member", "list"])["members"].as_array().unwrap().len() == 3;
    wait_until(known, "c is a learner");
    drop(processes);
    let data_dir = a.data_dir.to_str().unwrap();
    // Members that were added after the last snapshot are known from the log.
    let shown = run(&["recover", "--data-dir", data_dir]);
    let removed = shown.lines().find(|line| line.contains("would be removed")).unwrap();
    assert!(removed.contains("b (") && removed.contains("c ("), "{shown}");
    let refused =
        |members: &str| run_failing(&["recover", "--data-dir", data_dir, "--members", members]);
    let (code, text) = refused(&b.pair());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(NOT_IN_MEMBERS), "{text}");
    assert!(text.contains(&a.pair()), "{text}");
    let (code, text) = refused(&format!("{},b={}", a.pair(), a.peer_url));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("two members"), "{text}");
    for invalid in ["a", "", "a=nowhere", "a=ftp://h:1"] {
        let (code, text) = refused(invalid);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("--members"), "{text}");
    }
    // A new peer URL of this member is shown, and is part of the confirmation.
    let moved = run(&["recover", "--data-dir", data_dir, "--members", "a=http://127.0.0.1:1"]);
    assert!(moved.contains("its new peer URLs: a=http://127.0.0.1:1"), "{moved}");
    assert_ne!(moved.lines().last(), run(&["recover", "--data-dir", data_dir]).lines().last());
}
