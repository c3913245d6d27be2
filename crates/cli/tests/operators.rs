//! What operators are told: two operators at once, members that were removed or have no quorum,
//! interrupted commands, and the same as JSON.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;

use serde_json::Value;
use support::messages::{ACCEPTING, CHANGED_MEANWHILE, GOAL_IN_PROGRESS, READY, REMOVED};
use support::proxy::act_before;
use support::server::{TestServer, endpoints, json, output_of, refused, start_all, succeed};
use support::{
    TestDirectory, TestProcess, output_text, quorate, run, run_failing, wait_for_text, wait_until,
};

/// A second operator adds a learner after the first one has read the members, and before the
/// request arrives. The request must not remove the learner again.
#[test]
fn a_change_prepared_from_an_old_list_changes_nothing() {
    let directory = TestDirectory::new("operators-two");
    let [a, b, c, d, e] = TestServer::all(&directory, ["a", "b", "c", "d", "e"]);
    let all = [&a, &b, &c];
    let _processes = start_all(&all);
    wait_until(|| names(&all) == ["a", "b", "c"], "all have published their names");
    let second = {
        let (endpoint, learner) = (a.client_url.clone(), e.pair());
        move || {
            run(&["member", "add", &learner, "--learner", "--endpoints", &endpoint]);
        }
    };
    // The new member's URL is in the request that sets the goal, and in no earlier one.
    let proxy = act_before(&a.client_url, &d.peer_url, second);
    let replace = ["member", "replace", "c", &d.pair(), "--no-wait", "--endpoints", &proxy];
    let (code, text) = run_failing(&replace);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(CHANGED_MEANWHILE), "{text}");
    assert!(text.contains("{a b c} learners e"), "{text}");
    assert!(text.contains("run the command again"), "{text}");
    assert_eq!(names(&all), ["a", "b", "c", "e"], "the second operator's change is kept");

    // The name that was given to `member add` is known although e has not started.
    let (table, _) = succeed(&all, &["member", "list"]);
    assert!(table.contains("| unstarted | e "), "{table}");
    let text = refused(&all, &["member", "add", "e=http://127.0.0.1:1"]);
    assert!(text.contains("a member with that name exists: e ("), "{text}");

    // A change that was planned from an older membership is refused.
    let planned = json(&all, &["member", "plan", "a", "b", "c"]);
    let planned = planned["membership"].as_str().unwrap().to_string();
    succeed(&all, &["member", "remove", "e"]);
    let set = ["member", "set", "a", "b", &d.pair(), "--no-wait"];
    let text = refused(&all, &[&set[..], &["--expect", &planned]].concat());
    assert!(text.contains(CHANGED_MEANWHILE) && text.contains(&planned), "{text}");
    let current = json(&all, &["status"])["membership"].as_str().unwrap().to_string();
    succeed(&all, &[&set[..], &["--expect", &current]].concat());

    // The goal in progress and its target are shown, and it is not replaced.
    let (status, _) = succeed(&all, &["status"]);
    assert!(status.contains(" to {a b d}"), "{status}");
    let status = json(&all, &["status"]);
    assert_eq!(status["goal"]["voters"].as_array().map(Vec::len), Some(3), "{status}");
    let text = refused(&all, &["member", "set", "a", "b"]);
    assert!(text.contains(GOAL_IN_PROGRESS) && text.contains("{a b d}"), "{text}");
    let (_, text) = succeed(&all, &["member", "cancel"]);
    assert!(text.contains("to {a b d} is abandoned"), "{text}");
    assert!(text.contains("restores {a b c}"), "{text}");
}

#[test]
fn an_interrupted_command_says_what_continues() {
    let directory = TestDirectory::new("operators-interrupt");
    let [a, b] = TestServer::all(&directory, ["a", "b"]);
    let _processes = start_all(&[&a]);
    let log = directory.path.join("set.log");
    let mut command = quorate();
    command.args(["member", "set", "a", &b.pair(), "--endpoints", &endpoints(&[&a])]);
    let mut setting = TestProcess::start(&mut command, &log);
    wait_for_text(&log, "waiting for b (");
    setting.signal("INT");
    assert_eq!(setting.wait_exit("member set"), Some(130));
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("the cluster continues with goal "), "{text}");
    assert!(text.contains("quorate member cancel"), "{text}");
    let (status, _) = succeed(&[&a], &["status"]);
    assert!(status.contains("a membership change is in progress"), "{status}");
}

#[test]
fn a_removed_member_exits_with_its_own_code() {
    let directory = TestDirectory::new("operators-removed");
    let [a, b, c] = TestServer::all(&directory, ["a", "b", "c"]);
    let all = [&a, &b, &c];
    let rest = [&a, &b];
    let mut processes = start_all(&all);
    wait_until(|| names(&all) == ["a", "b", "c"], "all have published their names");
    drop(processes.pop());
    succeed(&rest, &["member", "remove", "c"]);

    let mut removed = c.start_new(&all);
    assert_eq!(removed.wait_exit("the removed member"), Some(3));
    let log = fs::read_to_string(&c.log).unwrap();
    assert!(log.contains(REMOVED), "{log}");
    assert!(!log.contains(READY), "{log}");
    assert_eq!(json(&rest, &["status"])["voters"], 2);

    // One that is removed while it runs ends with the same code.
    succeed(&[&a], &["member", "remove", "b"]);
    let mut running = processes.pop().unwrap();
    assert_eq!(running.wait_exit("the removed member"), Some(3));
    let log = fs::read_to_string(&b.log).unwrap();
    assert!(log.contains(REMOVED), "{log}");
}

/// Without a quorum a member accepts connections and is not ready. A command prefers any
/// endpoint that knows a leader.
#[test]
fn a_member_is_ready_only_with_a_quorum() {
    let directory = TestDirectory::new("operators-ready");
    let [a, b, c] = TestServer::all(&directory, ["a", "b", "c"]);
    let all = [&a, &b, &c];
    let first = a.start_new(&all);
    wait_for_text(&a.log, ACCEPTING);
    // Long enough for several elections that fail.
    wait_for_text(&a.log, "not ready: waiting until a majority");
    assert!(!fs::read_to_string(&a.log).unwrap().contains(READY));
    let output = output_of(&[&a], &["status"]);
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["voters that answer: a (", "voters that do not: ", "'quorate recover'"] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }

    let others = [b.start_new(&all), c.start_new(&all)];
    all.iter().for_each(|server| wait_for_text(&server.log, READY));
    wait_until(|| names(&all) == ["a", "b", "c"], "all have published their names");
    drop(others);
    drop(first);
    // Restarted alone, a knows an old membership and no leader. b and c form a quorum.
    let _b = b.start_new(&all);
    let _c = c.start_new(&all);
    [&b, &c].iter().for_each(|server| server.wait_serving());
    let id = json(&[&b, &c], &["status"])["membership"].clone();
    let status = json(&all, &["status"]);
    assert_eq!((&status["hasQuorum"], &status["membership"]), (&true.into(), &id), "{status}");
}

/// `status` first reaches a member of the old membership that has no leader, and shows what the
/// others report.
#[test]
fn status_does_not_believe_a_member_without_a_leader() {
    let directory = TestDirectory::new("operators-stale");
    let [a, b, c] = TestServer::all(&directory, ["a", "b", "c"]);
    let all = [&a, &b, &c];
    let processes = start_all(&all);
    wait_until(|| names(&all) == ["a", "b", "c"], "all have published their names");
    // A copy of c's disk under other addresses: its peers reject it, and it knows no leader.
    drop(processes);
    let mut stale = c.clone();
    let [other] = TestServer::all(&directory, ["stale"]);
    (stale.peer_url, stale.client_url) = (other.peer_url, other.client_url);
    stale.log = other.log;
    let _stale = stale.start_new(&all);
    wait_for_text(&stale.log, ACCEPTING);
    let _others = [a.start_new(&all), b.start_new(&all)];
    [&a, &b].iter().for_each(|server| server.wait_serving());
    for endpoints in [&[&stale, &a][..], &[&a, &stale]] {
        let output = output_of(endpoints, &["status", "-w", "json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(status["hasQuorum"], true, "{}", output_text(&output));
    }
}

#[test]
fn errors_and_notes_are_json_on_request() {
    let directory = TestDirectory::new("operators-json");
    let [a] = TestServer::all(&directory, ["a"]);
    let _process = start_all(&[&a]);
    let lines = |text: &str| -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let output = output_of(&[&a], &["member", "remove", "unknown", "-w", "json"]);
    let error = lines(&String::from_utf8(output.stderr).unwrap()).pop().unwrap();
    assert!(error["error"].as_str().unwrap().contains("no member has the name"), "{error}");
    assert_eq!(error["exitCode"], 1);
    let output = quorate().args(["member", "list", "--unknown", "-w", "json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = lines(&String::from_utf8(output.stderr).unwrap()).pop().unwrap();
    assert!(error["error"].as_str().unwrap().contains("--unknown"), "{error}");
    let output = output_of(&[&a], &["member", "set", "a", "-w", "json"]);
    let notes = lines(&String::from_utf8(output.stderr).unwrap());
    assert!(notes.iter().all(|note| note["note"].is_string()), "{notes:?}");
    // Snapshots too.
    let file = directory.file("saved");
    let saved = json(&[&a], &["snapshot", "save", &file]);
    assert_eq!(saved["file"], file.as_str(), "{saved}");
    let status = json(&[&a], &["status"]);
    let member = &status["members"][0];
    assert_eq!(member["version"], env!("CARGO_PKG_VERSION"), "{status}");
    assert!(member["dbSize"].as_i64() >= member["dbSizeInUse"].as_i64(), "{status}");
}

fn names(members: &[&TestServer]) -> Vec<String> {
    let list = json(members, &["member", "list"]);
    let members = list["members"].as_array().unwrap();
    let mut names: Vec<_> =
        members.iter().map(|one| one["name"].as_str().unwrap().to_string()).collect();
    names.sort();
    names
}

/// A huge page that is used for a few kilobytes takes 2 MiB.
#[test]
#[cfg(target_os = "linux")]
fn a_server_takes_no_huge_pages() {
    let directory = TestDirectory::new("operators-huge-pages");
    let [server] = TestServer::all(&directory, ["a"]);
    let process = server.start_new(&[&server]);
    server.wait_serving();
    let status = fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    match status.lines().find_map(|line| line.strip_prefix("THP_enabled:")) {
        Some(enabled) => assert_eq!(enabled.trim(), "0"),
        None => println!("a_server_takes_no_huge_pages is skipped: the kernel does not tell"),
    }
}
