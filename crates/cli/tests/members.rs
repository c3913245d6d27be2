//! What an operator types, against a cluster of three.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;

use common::{Place, Running, free_ports, quorate, run, run_refused, wait_until};

#[test]
fn members_are_shown_planned_changed_and_put_back() {
    let place = Place::new("members");
    fs::create_dir_all(&place.path).unwrap();
    let (log, data) = (place.path.join("demo.log"), place.path.join("data"));
    let mut demo = quorate();
    demo.arg("demo").arg("--data-dir").arg(&data).args(["--seconds", "2"]);
    let mut demo = Running::start(&mut demo, &log);
    let endpoints = endpoints(&log);
    let with = |arguments: &[&str]| -> Vec<String> {
        let all = arguments.iter().copied().chain(["--endpoints", &endpoints]);
        all.map(str::to_string).collect()
    };
    let run = |arguments: &[&str]| run(&borrowed(&with(arguments)));
    let run_refused = |arguments: &[&str]| run_refused(&borrowed(&with(arguments)));

    let names = names(&run(&["member", "list", "-w", "json"]));
    assert_eq!(names.len(), 3, "{names:?}");
    let status = run(&["status"]);
    assert!(status.contains("1 more failure is tolerated right now"), "{status}");
    assert_eq!(status.matches("| leader ").count(), 1, "{status}");
    assert_eq!(status.matches("| follower ").count(), 2, "{status}");

    let peer = format!("new=http://127.0.0.1:{}", free_ports(1)[0]);
    let plan = run(&["member", "plan", &names[0], &names[1], &peer]);
    for step in ["add as learners: new", "catch up: new", "new gets a vote", "settle"] {
        assert!(plan.contains(step), "no '{step}' in\n{plan}");
    }

    // Nobody starts the new one: the change waits, says for whom, and can be undone.
    let (code, text) = run_refused(&["member", "replace", &names[2], &peer, "--patience", "3s"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("ETCD_INITIAL_CLUSTER_STATE=\"existing\""), "{text}");
    assert!(text.contains("waits for new") && text.contains("still under way"), "{text}");
    let status = run(&["status"]);
    assert!(status.contains("a change is under way"), "{status}");
    run(&["member", "cancel"]);
    let (code, text) = run_refused(&["member", "cancel"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("no change is under way"), "{text}");

    run(&["member", "remove", &names[2]]);
    let status = run(&["status"]);
    assert!(status.contains("2 voters, quorum 2"), "{status}");
    assert!(status.contains("no further failure is tolerated"), "{status}");
    let (code, text) = run_refused(&["member", "remove", &names[2]]);
    assert_eq!(code, Some(1));
    assert!(text.contains("no member has the name or id"), "{text}");
    demo.interrupt();
    assert!(demo.ended());
}

#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let text = run(&["completions", shell]);
        assert!(text.contains("snapshot") && text.contains("ask-learners"), "{shell}");
    }
    let place = Place::new("man");
    run(&["man", place.text()]);
    let page = fs::read_to_string(place.path.join("quorate-member-replace.1")).unwrap();
    assert!(page.contains("Replace a member by a new one"), "{page}");
    let page = fs::read_to_string(place.path.join("quorate-server.1")).unwrap();
    assert!(page.contains("initial\\-cluster\\-state"), "{page}");
    assert!(
        !fs::read_dir(&place.path)
            .unwrap()
            .any(|entry| { entry.unwrap().file_name().to_string_lossy().contains("demo-member") })
    );
}

/// Where the demo's cluster is, once it stays up.
fn endpoints(log: &std::path::Path) -> String {
    let find = || {
        let text = fs::read_to_string(log).unwrap();
        let (_, rest) = text.split_once("ETCDCTL_ENDPOINTS=")?;
        rest.split_once('\n').map(|(endpoints, _)| endpoints.to_string())
    };
    wait_until(|| find().is_some(), "the demo stays up");
    find().unwrap()
}

fn names(list: &str) -> Vec<String> {
    let list: serde_json::Value = serde_json::from_str(list).unwrap();
    let members = list["members"].as_array().unwrap();
    members.iter().map(|member| member["name"].as_str().unwrap().to_string()).collect()
}

fn borrowed(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}
