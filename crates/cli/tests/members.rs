//! The commands of an operator against the cluster of a running demo; completions and manual
//! pages.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;

use support::messages::NO_CHANGE;
use support::{TestDirectory, TestProcess, free_urls, quorate, run, run_failing, wait_for_text};

#[test]
fn members_are_listed_planned_changed_and_restored() {
    let directory = TestDirectory::new("members");
    let (log, data) = (directory.path.join("demo.log"), directory.path.join("data"));
    let mut demo = quorate();
    demo.arg("demo").arg("--data-dir").arg(&data).args(["--seconds", "2"]);
    let mut demo = TestProcess::start(&mut demo, &log);
    let endpoints = endpoints(&log);
    let flags = ["--endpoints", &endpoints];
    let run = |arguments: &[&str]| run(&[arguments, &flags].concat());
    let run_failing = |arguments: &[&str]| run_failing(&[arguments, &flags].concat());

    let names = names(&run(&["member", "list", "-w", "json"]));
    assert_eq!(names.len(), 3, "{names:?}");
    let status = run(&["status"]);
    assert!(status.contains("1 more failure is tolerated right now"), "{status}");
    assert_eq!(status.matches("| leader ").count(), 1, "{status}");
    assert_eq!(status.matches("| follower ").count(), 2, "{status}");

    let [url] = free_urls();
    let peer = format!("new={url}");
    let plan = run(&["member", "plan", &names[0], &names[1], &peer]);
    for step in ["add learners: new", "catch up: new", "promote new", "settle"] {
        assert!(plan.contains(step), "no '{step}' in\n{plan}");
    }

    // The new member is not started: the command says what it waits for, and times out.
    let (code, text) = run_failing(&["member", "replace", &names[2], &peer, "--timeout", "3s"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("ETCD_INITIAL_CLUSTER_STATE=\"existing\""), "{text}");
    assert!(text.contains("waiting for new (") && text.contains("still in progress"), "{text}");
    let status = run(&["status"]);
    assert!(status.contains("a membership change is in progress"), "{status}");
    run(&["member", "cancel"]);
    let (code, text) = run_failing(&["member", "cancel"]);
    assert_eq!(code, Some(1));
    assert!(text.contains(NO_CHANGE), "{text}");

    run(&["member", "remove", &names[2]]);
    let status = run(&["status"]);
    assert!(status.contains("2 voters, quorum 2"), "{status}");
    assert!(status.contains("no further failure is tolerated"), "{status}");
    let (code, text) = run_failing(&["member", "remove", &names[2]]);
    assert_eq!(code, Some(1));
    assert!(text.contains("no member has the name or id"), "{text}");
    demo.signal("INT");
    demo.wait_exit("the demo");
}

#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let text = run(&["completions", shell]);
        assert!(text.contains("snapshot") && text.contains("ask-learners"), "{shell}");
    }
    let directory = TestDirectory::new("man");
    let pages = directory.path.join("pages");
    run(&["man", pages.to_str().unwrap()]);
    let page = fs::read_to_string(pages.join("quorate-member-replace.1")).unwrap();
    assert!(page.contains("Replace a member with a new one"), "{page}");
    let page = fs::read_to_string(pages.join("quorate-server.1")).unwrap();
    assert!(page.contains("initial\\-cluster\\-state"), "{page}");
    assert!(
        !fs::read_dir(&pages)
            .unwrap()
            .any(|entry| { entry.unwrap().file_name().to_string_lossy().contains("demo-member") })
    );
}

/// The endpoints of the demo's cluster, after the replacement.
fn endpoints(log: &std::path::Path) -> String {
    wait_for_text(log, "etcdctl endpoint status");
    let text = fs::read_to_string(log).unwrap();
    let (_, rest) = text.split_once("ETCDCTL_ENDPOINTS=").unwrap();
    rest.lines().next().unwrap().to_string()
}

fn names(list: &str) -> Vec<String> {
    let list: serde_json::Value = serde_json::from_str(list).unwrap();
    let members = list["members"].as_array().unwrap();
    members.iter().map(|member| member["name"].as_str().unwrap().to_string()).collect()
}
