//! The commands of `quorate member` against real servers: members are added, promoted, replaced
//! and removed; output as tables and as JSON; refusals with their reasons.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;
use std::process::Command;

use serde_json::Value;
use support::messages::{
    GOAL_IN_PROGRESS, NO_CHANGE, NO_VOTERS_LEFT, NOT_STARTED, TOO_FEW_LIVE, TOO_MANY_LEARNERS,
};
use support::server::{TestServer, endpoints, json, output_of, refused, start_all, succeed};
use support::{TestDirectory, TestProcess, output_text, quorate, wait_for_text, wait_until};
use tokio::runtime::Runtime;

#[test]
fn a_learner_is_added_and_promoted() {
    let directory = TestDirectory::new("changes-learner");
    let [a, b, c, d] = TestServer::all(&directory, ["a", "b", "c", "d"]);
    let old = [&a, &b, &c];
    let all = [&a, &b, &c, &d];
    let runtime = Runtime::new().unwrap();
    let _processes = start_all(&old);
    runtime.block_on(a.put("key", "value"));

    let (table, _) = succeed(&old, &["member", "list"]);
    for heading in ["ID", "STATUS", "NAME", "PEER ADDRS", "CLIENT ADDRS", "VOTING ROLE"] {
        assert!(table.contains(heading), "{table}");
    }
    assert_eq!(table.matches("| voter ").count(), 3, "{table}");
    let list = json(&old, &["member", "list"]);
    assert_eq!(list["header"]["cluster_id"].as_str().map(str::len), Some(16), "{list}");
    let first = &list["members"].as_array().unwrap()[0];
    for field in ["ID", "name", "peerURLs", "clientURLs", "isLearner", "votingRole"] {
        assert!(first.get(field).is_some(), "no {field} in {list}");
    }

    let (added, _) =
        succeed(&old, &["member", "add", "d", "--peer-urls", &d.peer_url, "--learner"]);
    assert!(added.contains("ETCD_NAME=\"d\""), "{added}");
    assert!(added.contains("ETCD_INITIAL_CLUSTER_STATE=\"existing\""), "{added}");
    assert!(added.contains(&a.pair()) && added.contains(&d.pair()), "{added}");
    let id = hex_id_of(&json(&old, &["member", "list"]), &d);
    assert!(added.contains(&format!("added d ({id})")), "{added}");

    // Impossible requests are refused with the reason.
    let text = refused(&old, &["member", "promote", &id]);
    assert!(text.contains("can only promote a learner member which is in sync"), "{text}");
    assert!(text.contains(NOT_STARTED), "{text}");
    let text = refused(&old, &["member", "promote", "a"]);
    assert!(text.contains("cannot promote a (") && text.contains("a learner member"), "{text}");
    let text = refused(&old, &["member", "promote", "unknown"]);
    assert!(text.contains("no member has the name or id 'unknown'; the members are"), "{text}");
    let text = refused(&old, &["member", "add", &format!("e={}", d.peer_url)]);
    assert!(text.contains("cannot add e: etcdserver: Peer URLs already exists"), "{text}");
    let text = refused(&old, &["member", "add", "a=http://127.0.0.1:1"]);
    assert!(text.contains("a member with that name exists: a ("), "{text}");

    let _d = d.start_joining(&all);
    wait_until(|| output_of(&old, &["member", "promote", &id]).status.success(), "d is promoted");
    let list = json(&[&d], &["member", "list"]);
    let is_voter = |one: &Value| one["votingRole"] == "voter" && one["isLearner"] == false;
    assert_eq!(list["members"].as_array().unwrap().iter().filter(|one| is_voter(one)).count(), 4);
    assert_eq!(runtime.block_on(d.value("key")), "value");
    wait_until(|| names(&all).contains(&"d".to_string()), "d has published its name");
    let text = refused(&all, &["member", "promote", "d"]);
    assert!(text.contains("can only promote a learner member"), "{text}");
}

#[test]
fn learners_are_used_only_with_ask_learners() {
    let directory = TestDirectory::new("changes-skip");
    let [a, d] = TestServer::all(&directory, ["a", "d"]);
    let _a = start_all(&[&a]);
    let (added, _) = succeed(&[&a], &["member", "add", &d.pair(), "--learner", "-w", "json"]);
    let added: Value = serde_json::from_str(&added).unwrap();
    assert_eq!(added["member"]["name"], "d", "{added}");
    assert_eq!(added["environment"]["ETCD_NAME"], "d", "{added}");
    let _d = d.start_joining(&[&a, &d]);
    let is_learner = || {
        let status = json(&[&a], &["status"]);
        status["members"].as_array().unwrap().iter().any(|one| one["role"] == "learner")
    };
    wait_until(is_learner, "d is a learner");

    // Although it is the first endpoint, it is skipped.
    let (table, _) = succeed(&[&d, &a], &["member", "list"]);
    assert!(table.contains("| learner "), "{table}");
    let file = directory.file("saved");
    let file = file.as_str();
    for command in [&["member", "list"][..], &["status"], &["snapshot", "save", file]] {
        let text = refused(&[&d], command);
        assert!(text.contains("is a learner; add --ask-learners"), "{text}");
    }
    let text = refused(&[&d], &["member", "list", "--ask-learners"]);
    assert!(text.contains("not supported for learner"), "{text}");
    succeed(&[&d], &["snapshot", "save", file, "--ask-learners"]);
    assert!(fs::metadata(file).unwrap().len() > 0);
    let (table, _) = succeed(&[&a], &["status"]);
    assert!(table.contains("| learner "), "{table}");
    assert!(table.contains("1 voter, quorum 1, live 1: no further failure"), "{table}");
    // The default limit is one learner; the refusal contains the count.
    let text = refused(&[&a], &["member", "add", "e=http://127.0.0.1:1", "--learner"]);
    assert!(text.contains("too many learner members in cluster"), "{text}");
    assert!(text.contains(TOO_MANY_LEARNERS), "{text}");
    succeed(&[&a], &["member", "remove", "d"]);
    assert_eq!(json(&[&a], &["member", "list"])["members"].as_array().unwrap().len(), 1);
    let text = refused(&[&a], &["member", "remove", "a"]);
    assert!(text.contains(NO_VOTERS_LEFT), "{text}");
}

#[test]
fn a_follower_and_the_leader_are_removed() {
    let directory = TestDirectory::new("changes-remove");
    let members = TestServer::all(&directory, ["a", "b", "c", "d", "e"]);
    let all: Vec<&TestServer> = members.iter().collect();
    let runtime = Runtime::new().unwrap();
    let mut processes = start_all(&all);
    runtime.block_on(all[0].put("key", "value"));

    // By id or by name; through the member itself or through others.
    let leader = leader(&all);
    let follower = all.iter().find(|one| one.name != leader).unwrap();
    let (table, stderr) = succeed(&[follower], &["member", "remove", &follower.name]);
    assert!(stderr.contains(&format!("{} (", follower.name)), "{stderr}");
    assert!(stderr.contains("is removed"), "{stderr}");
    assert!(!table.contains(&follower.client_url), "{table}");
    let rest: Vec<&TestServer> =
        all.iter().filter(|one| one.name != follower.name).copied().collect();
    let id = hex_id_of(&json(&rest, &["member", "list"]), by_name(&rest, &leader));
    let (_, stderr) = succeed(&[by_name(&rest, &leader)], &["member", "remove", &id]);
    assert!(stderr.contains("is removed"), "{stderr}");
    let rest: Vec<&TestServer> = rest.into_iter().filter(|one| one.name != leader).collect();
    let status = json(&rest, &["status"]);
    assert_eq!((&status["voters"], &status["failuresTolerated"]), (&3.into(), &1.into()));
    rest.iter().for_each(|one| assert_eq!(runtime.block_on(one.value("key")), "value"));
    let text = refused(&rest, &["member", "remove", &leader]);
    assert!(text.contains("no member has the name or id"), "{text}");

    // With one of three down, another one cannot be removed; the refusal contains the counts.
    let down = all.iter().position(|one| one.name == rest[2].name).unwrap();
    drop(processes.remove(down));
    let left = [rest[0], rest[1]];
    let noticed = || json(&left, &["status"])["failuresTolerated"] == 0;
    wait_until(noticed, "the leader notices the loss");
    let text = refused(&left, &["member", "remove", &rest[1].name]);
    assert!(text.contains("unhealthy cluster"), "{text}");
    assert!(text.contains(TOO_FEW_LIVE), "{text}");
    // The one that is down can be removed.
    succeed(&left, &["member", "remove", &rest[2].name]);
    assert_eq!(json(&left, &["status"])["voters"], 2);
}

#[test]
fn the_leader_is_replaced_and_each_step_is_printed() {
    let directory = TestDirectory::new("changes-replace");
    let [a, b, c, d] = TestServer::all(&directory, ["a", "b", "c", "d"]);
    let old = [&a, &b, &c];
    let runtime = Runtime::new().unwrap();
    let _processes = start_all(&old);
    (0..20).for_each(|number| runtime.block_on(a.put(&format!("key{number}"), "value")));
    wait_until(|| names(&old) == ["a", "b", "c"], "all have published their names");
    // The leader is replaced, and is the first endpoint.
    let leaving = by_name(&old, &leader(&old));
    let staying: Vec<&TestServer> =
        old.iter().filter(|one| one.name != leaving.name).copied().collect();
    let [text_log, json_log] = ["watch.log", "watch.json"].map(|name| directory.path.join(name));
    let _watches = [
        TestProcess::start(&mut watch(&[leaving], &[]), &text_log),
        TestProcess::start(&mut watch(&[leaving], &["-w", "json"]), &json_log),
    ];
    wait_for_text(&text_log, "current  ");
    wait_for_text(&json_log, "\"current\"");

    let log = directory.path.join("replace.log");
    let mut command = quorate();
    command.args(["member", "replace", &leaving.name, &d.pair()]);
    command.args(["--endpoints", &endpoints(&[leaving, staying[0], staying[1]])]);
    let mut replacing = TestProcess::start(&mut command, &log);
    // It waits for the member that has not started, and prints the step, the member, its lag.
    for text in ["catch up: d (", "waiting for d (", "start d (", "ETCD_NAME=\"d\"", &d.pair()] {
        wait_for_text(&log, text);
    }
    for text in [" [", " behind, ", " round"] {
        wait_for_text(&log, text);
    }
    let (status, _) = succeed(&old, &["status"]);
    assert!(status.contains("a membership change is in progress (goal "), "{status}");
    assert!(status.contains("catch up: d ("), "{status}");

    let _d = d.start_joining(&[&a, &b, &c, &d]);
    let code = replacing.wait_exit("member replace");
    let text = fs::read_to_string(&log).unwrap();
    assert!(code == Some(0) && text.contains("done and settled"), "{text}");
    let new = [staying[0], staying[1], &d];
    let mut expected = new.map(|one| one.name.clone());
    expected.sort_unstable();
    wait_until(|| names(&new) == expected, "the new member has published its name");
    assert_eq!(runtime.block_on(d.value("key7")), "value");
    let events = ["step ", "add learners: d", "committed ", "active ", "settled ", " reached"];
    events.iter().for_each(|event| wait_for_text(&text_log, event));
    wait_for_text(&json_log, " reached");
    let text = fs::read_to_string(&json_log).unwrap();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        assert!(record["event"].is_string() && record["text"].is_string(), "{line}");
    }
}

#[test]
fn a_goal_can_be_cancelled() {
    let directory = TestDirectory::new("changes-set");
    let [a, b, c, d] = TestServer::all(&directory, ["a", "b", "c", "d"]);
    let all = [&a, &b, &c];
    let _processes = start_all(&all);
    wait_until(|| names(&all) == ["a", "b", "c"], "all have published their names");
    assert_plan(&all, &d);

    let (_, stderr) = succeed(&all, &["member", "set", "a", "b", "c", &d.pair(), "--no-wait"]);
    assert!(stderr.contains("goal ") && stderr.contains("start d ("), "{stderr}");
    let text = refused(&all, &["member", "set", "a", "b"]);
    assert!(text.contains(GOAL_IN_PROGRESS), "{text}");
    let text = refused(&all, &["member", "plan", "a", "b"]);
    assert!(text.contains(GOAL_IN_PROGRESS), "{text}");
    let text = refused(&all, &["member", "set", "a", "b", "c", "d", "--timeout", "1s"]);
    assert!(text.contains(GOAL_IN_PROGRESS), "{text}");
    let (_, stderr) = succeed(&all, &["member", "cancel"]);
    assert!(stderr.contains("cancelling; goal "), "{stderr}");
    assert!(stderr.contains("done and settled"), "{stderr}");
    assert_eq!(names(&all), ["a", "b", "c"]);
    let text = refused(&all, &["member", "cancel"]);
    assert!(text.contains("cannot cancel") && text.contains(NO_CHANGE), "{text}");
    let text = refused(&all, &["member", "set", "a", "b", "unknown"]);
    assert!(text.contains("no member has the name or id 'unknown'"), "{text}");

    // The same goal again. d is not started: the command times out, the change continues.
    let text = refused(&all, &["member", "set", "a", "b", "c", &d.pair(), "--timeout", "2s"]);
    assert!(text.contains("is still in progress after 2 s, and the cluster continues"), "{text}");
    assert_eq!(json(&all, &["status"])["settled"], true);
    succeed(&all, &["member", "cancel"]);

    // A goal that is already reached succeeds.
    let (_, stderr) = succeed(&all, &["member", "set", "a", "b", "c"]);
    assert!(stderr.contains("already has these members"), "{stderr}");
    succeed(&all, &["member", "set", "a", "b", "--learners", "c"]);
    let status = json(&[&a, &b], &["status"]);
    assert_eq!(status["voters"], 2, "{status}");
    let (table, _) = succeed(&[&a, &b], &["member", "list"]);
    assert_eq!(table.matches("| learner ").count(), 1, "{table}");
    // The demoted member can be promoted in the same way.
    succeed(&[&a, &b], &["member", "set", "a", "b", "c"]);
    assert_eq!(json(&all, &["status"])["voters"], 3);
}

#[test]
fn status_shows_the_remaining_tolerance() {
    let directory = TestDirectory::new("changes-status");
    let [a, b, c] = TestServer::all(&directory, ["a", "b", "c"]);
    let all = [&a, &b, &c];
    let mut processes = start_all(&all);
    let whole = || json(&all, &["status"])["failuresTolerated"] == 1;
    wait_until(whole, "all have caught up");
    let (table, _) = succeed(&all, &["status", "--wide"]);
    for heading in ["ID", "NAME", "ROLE", "TERM", "COMMITTED", "LAG", "ENDPOINT", "ERRORS"] {
        assert!(table.contains(heading), "{table}");
    }
    let (table, _) = succeed(&all, &["status"]);
    let mut rows = table.lines().filter(|line| line.starts_with(['+', '|']));
    assert!(rows.all(|row| row.chars().count() <= 80), "{table}");
    assert!(table.contains(&format!("| {} ", env!("CARGO_PKG_VERSION"))), "{table}");
    assert_eq!(table.matches("| leader ").count(), 1, "{table}");
    assert_eq!(table.matches("| follower ").count(), 2, "{table}");
    assert!(table.contains("3 voters, quorum 2, live 3: 1 more failure is tolerated"), "{table}");
    assert!(
        table.contains("losing any of these sets of members would stop writes: a+b; a+c; b+c"),
        "{table}"
    );
    let status = json(&all, &["status"]);
    for field in ["voters", "quorum", "live", "hasQuorum", "failuresTolerated", "settled"] {
        assert!(!status[field].is_null(), "no {field} in {status}");
    }
    for one in status["members"].as_array().unwrap() {
        for field in
            ["ID", "name", "endpoint", "role", "term", "committed", "lag", "version", "etcdVersion"]
        {
            assert!(!one[field].is_null(), "no {field} in {status}");
        }
    }

    drop(processes.pop());
    let noticed = || json(&[&a, &b], &["status"])["failuresTolerated"] == 0;
    wait_until(noticed, "the leader notices the loss");
    let (table, _) = succeed(&[&a, &b], &["status"]);
    assert!(table.contains("| unreachable "), "{table}");
    assert!(table.contains("live 2: no further failure is tolerated right now"), "{table}");

    drop(processes.pop());
    let lost = || output_of(&[&a], &["status"]).status.code() == Some(1);
    wait_until(lost, "the quorum is lost");
    let output = output_of(&[&a], &["status"]);
    let text = output_text(&output);
    assert!(text.contains("no quorum: the cluster accepts no writes"), "{text}");
    assert_eq!(text.matches("| unreachable ").count(), 2, "{text}");
    let json = output_of(&[&a], &["status", "-w", "json"]);
    let status: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(status["hasQuorum"], false, "{status}");
    let text = refused(&[&a], &["member", "add", "e=http://127.0.0.1:1"]);
    assert!(text.contains("reports that the cluster has no leader"), "{text}");
}

fn assert_plan(members: &[&TestServer], new: &TestServer) {
    let arguments = ["member", "plan", "a", "b", &new.pair()];
    let (table, _) = succeed(members, &arguments);
    for text in [
        "VOTERS AFTER",
        "LOSSES THAT STOP COMMITS",
        "LOSSES THAT STOP ELECTIONS",
        "(current)",
        "add learners: d",
        "catch up: d",
        "change voters: promote d, demote c",
        "remove: c",
        "settle",
        "a+b",
    ] {
        assert!(table.contains(text), "no '{text}' in\n{table}");
    }
    let plan = json(members, &arguments);
    let steps = plan["steps"].as_array().unwrap();
    assert!(steps.len() >= 5, "{plan}");
    for step in steps {
        for field in ["step", "majorities", "learners", "stopsCommits", "stopsElections"] {
            assert!(!step[field].is_null(), "no {field} in {plan}");
        }
    }
    assert_eq!(names(members), ["a", "b", "c"], "a plan changes nothing");
    let text = refused(members, &["member", "plan", "a", "b", "unknown"]);
    assert!(text.contains("no member has the name or id 'unknown'"), "{text}");
    let again = output_of(members, &["member", "plan", "a", "a", "b"]);
    assert_eq!(again.status.code(), Some(2), "{}", output_text(&again));
}

fn watch(members: &[&TestServer], more: &[&str]) -> Command {
    let mut command = quorate();
    command.args(["member", "watch", "--endpoints", &endpoints(members)]).args(more);
    command
}

/// The id in hex of the member with this peer URL.
fn hex_id_of(list: &Value, member: &TestServer) -> String {
    let members = list["members"].as_array().unwrap();
    let found = members.iter().find(|one| one["peerURLs"][0] == member.peer_url.as_str()).unwrap();
    let id = found["ID"].as_str().unwrap();
    assert_eq!(id.len(), 16, "{list}");
    id.to_string()
}

fn names(members: &[&TestServer]) -> Vec<String> {
    let list = json(members, &["member", "list"]);
    let members = list["members"].as_array().unwrap();
    let mut names: Vec<_> =
        members.iter().map(|one| one["name"].as_str().unwrap().to_string()).collect();
    names.sort();
    names
}

fn leader(members: &[&TestServer]) -> String {
    let status = json(members, &["status"]);
    let members = status["members"].as_array().unwrap();
    let leader = members.iter().find(|one| one["role"] == "leader").unwrap();
    leader["name"].as_str().unwrap().to_string()
}

fn by_name<'a>(members: &[&'a TestServer], name: &str) -> &'a TestServer {
    members.iter().find(|one| one.name == name).unwrap()
}

/// It tries again for a while, since the members that it asked may lag; the log has the reason
/// before that.
#[test]
fn a_server_that_was_never_added_says_so_at_once() {
    let directory = TestDirectory::new("changes-never-added");
    let [a, b] = TestServer::all(&directory, ["a", "b"]);
    let _first = start_all(&[&a]);
    let _second = b.start_joining(&[&a, &b]);
    wait_for_text(&b.log, "cannot join yet: this member was never added to the cluster");
    let log = fs::read_to_string(&b.log).unwrap();
    assert!(log.contains(&format!("quorate member add {}", b.pair())), "{log}");
}

#[test]
fn a_hangup_signal_begins_and_ends_debug_logging() {
    let directory = TestDirectory::new("changes-hangup");
    let [a] = TestServer::all(&directory, ["a"]);
    let mut processes = start_all(&[&a]);
    processes[0].signal("HUP");
    wait_for_text(&a.log, "debug logging begins");
    let has_debug_lines = || {
        succeed(&[&a], &["put", "k", "v"]);
        fs::read_to_string(&a.log).unwrap().contains("\"level\":\"debug\"")
    };
    wait_until(has_debug_lines, "requests are logged");
    processes[0].signal("HUP");
    wait_for_text(&a.log, "debug logging ends");
    assert!(processes[0].is_running());
}
