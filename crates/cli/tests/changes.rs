//! Members come, get votes, are replaced and go, as an operator asks for it: against real
//! servers, in tables and in JSON, with every refusal's reason.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::member::{Member, asked, done, found_all, json, refused};
use common::{Place, Running, both, quorate, wait_until};
use serde_json::Value;
use tokio::runtime::Runtime;

#[test]
fn a_learner_comes_and_gets_its_vote() {
    let place = Place::new("changes-learner");
    let [a, b, c, d] = Member::all(&place, ["a", "b", "c", "d"]);
    let old = [&a, &b, &c];
    let all = [&a, &b, &c, &d];
    let runtime = Runtime::new().unwrap();
    let _running = found_all(&old);
    runtime.block_on(a.put("key", "value"));

    let (table, _) = done(&old, &["member", "list"]);
    for heading in ["ID", "STATUS", "NAME", "PEER ADDRS", "CLIENT ADDRS", "COUNTS AS"] {
        assert!(table.contains(heading), "{table}");
    }
    assert_eq!(table.matches("| voter ").count(), 3, "{table}");
    let list = json(&old, &["member", "list"]);
    assert!(list["header"]["cluster_id"].as_u64().is_some_and(|id| id > 0), "{list}");
    let first = &list["members"].as_array().unwrap()[0];
    for field in ["ID", "name", "peerURLs", "clientURLs", "isLearner", "countsAs"] {
        assert!(first.get(field).is_some(), "no {field} in {list}");
    }

    let (told, _) = done(&old, &["member", "add", "d", "--peer-urls", &d.peer, "--learner"]);
    assert!(told.contains("ETCD_NAME=\"d\""), "{told}");
    assert!(told.contains("ETCD_INITIAL_CLUSTER_STATE=\"existing\""), "{told}");
    assert!(told.contains(&a.pair()) && told.contains(&d.pair()), "{told}");
    let id = id_at(&json(&old, &["member", "list"]), &d);

    // What cannot be done is refused, each with its reason.
    let text = refused(&old, &["member", "promote", &id]);
    assert!(text.contains("can only promote a learner member which is in sync"), "{text}");
    assert!(text.contains("the learner has not started yet"), "{text}");
    let text = refused(&old, &["member", "promote", "a"]);
    assert!(text.contains("cannot promote a (") && text.contains("a learner member"), "{text}");
    let text = refused(&old, &["member", "promote", "nobody"]);
    assert!(text.contains("no member has the name or id 'nobody'; there are"), "{text}");
    let text = refused(&old, &["member", "add", &format!("e={}", d.peer)]);
    assert!(text.contains("cannot add e: etcdserver: Peer URLs already exists"), "{text}");
    let text = refused(&old, &["member", "add", "a=http://127.0.0.1:1"]);
    assert!(text.contains("there is a member of that name, a ("), "{text}");

    let _d = d.join(&all);
    wait_until(|| asked(&old, &["member", "promote", &id]).status.success(), "d gets its vote");
    let list = json(&[&d], &["member", "list"]);
    let votes = |one: &Value| one["countsAs"] == "voter" && one["isLearner"] == false;
    assert_eq!(list["members"].as_array().unwrap().iter().filter(|one| votes(one)).count(), 4);
    assert_eq!(runtime.block_on(d.value("key")), "value");
    wait_until(|| names(&all).contains(&"d".to_string()), "d has said its name");
    let text = refused(&all, &["member", "promote", "d"]);
    assert!(text.contains("can only promote a learner member"), "{text}");
}

#[test]
fn learners_are_asked_only_if_that_is_said() {
    let place = Place::new("changes-skip");
    let [a, d] = Member::all(&place, ["a", "d"]);
    let _a = found_all(&[&a]);
    let (added, _) = done(&[&a], &["member", "add", &d.pair(), "--learner", "-w", "json"]);
    let added: Value = serde_json::from_str(&added).unwrap();
    assert_eq!(added["member"]["name"], "d", "{added}");
    assert_eq!(added["environment"]["ETCD_NAME"], "d", "{added}");
    let _d = d.join(&[&a, &d]);
    let learns = || {
        json(&[&a], &["status"])["members"][1]["role"] == "learner"
            || json(&[&a], &["status"])["members"][0]["role"] == "learner"
    };
    wait_until(learns, "d is a learner");

    // Named first, it is passed over.
    let (table, _) = done(&[&d, &a], &["member", "list"]);
    assert!(table.contains("| learner "), "{table}");
    let file = place.path.join("saved");
    let file = file.to_str().unwrap();
    for command in [&["member", "list"][..], &["status"], &["snapshot", "save", file]] {
        let text = refused(&[&d], command);
        assert!(text.contains("is a learner; ask it with --ask-learners"), "{text}");
    }
    let text = refused(&[&d], &["member", "list", "--ask-learners"]);
    assert!(text.contains("not supported for learner"), "{text}");
    done(&[&d], &["snapshot", "save", file, "--ask-learners"]);
    assert!(fs::metadata(file).unwrap().len() > 0);
    let (table, _) = done(&[&a], &["status"]);
    assert!(table.contains("| learner "), "{table}");
    assert!(table.contains("1 voter, quorum 1, live 1: no further failure"), "{table}");
    // One learner at a time, unless the server is told otherwise; the count is told.
    let text = refused(&[&a], &["member", "add", "e=http://127.0.0.1:1", "--learner"]);
    assert!(text.contains("too many learner members in cluster"), "{text}");
    assert!(text.contains("1 learners have started, the limit is 1"), "{text}");
    done(&[&a], &["member", "remove", "d"]);
    assert_eq!(json(&[&a], &["member", "list"])["members"].as_array().unwrap().len(), 1);
    let text = refused(&[&a], &["member", "remove", "a"]);
    assert!(text.contains("no voters would be left"), "{text}");
}

#[test]
fn followers_and_the_leader_are_removed() {
    let place = Place::new("changes-remove");
    let members = Member::all(&place, ["a", "b", "c", "d", "e"]);
    let all: Vec<&Member> = members.iter().collect();
    let runtime = Runtime::new().unwrap();
    let mut running = found_all(&all);
    runtime.block_on(all[0].put("key", "value"));

    // Named by id or by name; asked through itself or through others.
    let leader = leader(&all);
    let follower = all.iter().find(|one| one.name != leader).unwrap();
    let (table, told) = done(&[follower], &["member", "remove", follower.name]);
    assert!(
        told.contains(&format!("{} (", follower.name)) && told.contains("is removed"),
        "{told}"
    );
    assert!(!table.contains(&follower.client), "{table}");
    let rest: Vec<&Member> = all.iter().filter(|one| one.name != follower.name).copied().collect();
    let id = id_at(&json(&rest, &["member", "list"]), by_name(&rest, &leader));
    let (_, told) = done(&[by_name(&rest, &leader)], &["member", "remove", &id]);
    assert!(told.contains("is removed"), "{told}");
    let rest: Vec<&Member> = rest.into_iter().filter(|one| one.name != leader).collect();
    let status = json(&rest, &["status"]);
    assert_eq!((&status["voters"], &status["failuresTolerated"]), (&3.into(), &1.into()));
    rest.iter().for_each(|one| assert_eq!(runtime.block_on(one.value("key")), "value"));
    let text = refused(&rest, &["member", "remove", &leader]);
    assert!(text.contains("no member has the name or id"), "{text}");

    // With one of three down, another cannot go: the arithmetic is told.
    let gone = all.iter().position(|one| one.name == rest[2].name).unwrap();
    drop(running.remove(gone));
    let left = [rest[0], rest[1]];
    let unseen = || json(&left, &["status"])["failuresTolerated"] == 0;
    wait_until(unseen, "the loss is noticed");
    let text = refused(&left, &["member", "remove", rest[1].name]);
    assert!(text.contains("unhealthy cluster"), "{text}");
    assert!(text.contains("afterwards: 2 voters, quorum 2, live and caught up 1"), "{text}");
    // The one that is down can.
    done(&left, &["member", "remove", rest[2].name]);
    assert_eq!(json(&left, &["status"])["voters"], 2);
}

#[test]
fn the_leader_is_replaced_and_each_step_is_told() {
    let place = Place::new("changes-replace");
    let [a, b, c, d] = Member::all(&place, ["a", "b", "c", "d"]);
    let old = [&a, &b, &c];
    let runtime = Runtime::new().unwrap();
    let _running = found_all(&old);
    (0..20).for_each(|number| runtime.block_on(a.put(&format!("key{number}"), "value")));
    wait_until(|| names(&old) == ["a", "b", "c"], "all have said their names");
    // The one that leads goes, and is the one that is asked.
    let going = by_name(&old, &leader(&old));
    let stay: Vec<&Member> = old.iter().filter(|one| one.name != going.name).copied().collect();
    let [words, records] = ["watch.log", "watch.json"].map(|name| place.path.join(name));
    let _watching = [
        Running::start(&mut watch(&[going], &[]), &words),
        Running::start(&mut watch(&[going], &["-w", "json"]), &records),
    ];
    wait_until(|| contains(&words, "now  ") && contains(&records, "\"now\""), "both watch");

    let told = place.path.join("replace.log");
    let mut command = quorate();
    command.args(["member", "replace", going.name, &d.pair()]);
    command.args(["--endpoints", &endpoints(&[going, stay[0], stay[1]])]);
    let mut replacing = Running::start(&mut command, &told);
    // It waits for the one that has not started, and says so: step, who, how far.
    wait_until(|| contains(&told, "catch up: d (") && contains(&told, "waits for d"), "it waits");
    for words in ["start d with", "ETCD_NAME=\"d\"", &d.pair(), " [", " behind, ", " round"] {
        assert!(contains(&told, words), "no '{words}' in\n{}", fs::read_to_string(&told).unwrap());
    }
    let (status, _) = done(&old, &["status"]);
    assert!(status.contains("a change is under way (goal "), "{status}");
    assert!(status.contains("catch up: d ("), "{status}");

    let _d = d.join(&[&a, &b, &c, &d]);
    assert!(replacing.ended());
    let text = fs::read_to_string(&told).unwrap();
    assert!(text.contains("done and settled"), "{text}");
    let new = [stay[0], stay[1], &d];
    let mut expected = new.map(|one| one.name);
    expected.sort_unstable();
    wait_until(|| names(&new) == expected, "the new one has said its name");
    assert_eq!(runtime.block_on(d.value("key7")), "value");
    let news = ["step ", "add as learners: d", "committed ", "counts ", "settled ", " reached"];
    news.iter().for_each(|news| wait_until(|| contains(&words, news), news));
    wait_until(|| contains(&records, " reached"), "both have heard the end");
    let text = fs::read_to_string(&records).unwrap();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        assert!(record["news"].is_string() && record["text"].is_string(), "{line}");
    }
}

#[test]
fn what_was_set_can_be_taken_back() {
    let place = Place::new("changes-set");
    let [a, b, c, d] = Member::all(&place, ["a", "b", "c", "d"]);
    let all = [&a, &b, &c];
    let _running = found_all(&all);
    wait_until(|| names(&all) == ["a", "b", "c"], "all have said their names");
    plan_is_told(&all, &d);

    let (_, told) = done(&all, &["member", "set", "a", "b", "c", &d.pair(), "--no-wait"]);
    assert!(told.contains("goal ") && told.contains("start d with"), "{told}");
    let text = refused(&all, &["member", "set", "a", "b"]);
    assert!(text.contains("a goal is being pursued; cancel it first"), "{text}");
    let text = refused(&all, &["member", "plan", "a", "b"]);
    assert!(text.contains("a goal is being pursued"), "{text}");
    let text = refused(&all, &["member", "set", "a", "b", "c", "d", "--patience", "1s"]);
    assert!(text.contains("a goal is being pursued"), "{text}");
    let (_, told) = done(&all, &["member", "cancel"]);
    assert!(told.contains("going back; goal ") && told.contains("done and settled"), "{told}");
    assert_eq!(names(&all), ["a", "b", "c"]);
    let text = refused(&all, &["member", "cancel"]);
    assert!(text.contains("cannot cancel") && text.contains("no change is under way"), "{text}");
    let text = refused(&all, &["member", "set", "a", "b", "nobody"]);
    assert!(text.contains("no member has the name or id 'nobody'"), "{text}");

    // It may come again, also at once. Nobody starts it: the command gives up, the change does not.
    let text = refused(&all, &["member", "set", "a", "b", "c", &d.pair(), "--patience", "2s"]);
    assert!(text.contains("is still under way after 2 s; it goes on"), "{text}");
    assert_eq!(json(&all, &["status"])["settled"], true);
    done(&all, &["member", "cancel"]);

    // There already: nothing to do is no failure.
    let (_, told) = done(&all, &["member", "set", "a", "b", "c"]);
    assert!(told.contains("as wished already"), "{told}");
    done(&all, &["member", "set", "a", "b", "--learners", "c"]);
    let status = json(&[&a, &b], &["status"]);
    assert_eq!(status["voters"], 2, "{status}");
    let (table, _) = done(&[&a, &b], &["member", "list"]);
    assert_eq!(table.matches("| learner ").count(), 1, "{table}");
    // And a vote can be given back in the same way.
    done(&[&a, &b], &["member", "set", "a", "b", "c"]);
    assert_eq!(json(&all, &["status"])["voters"], 3);
}

#[test]
fn status_tells_what_is_left() {
    let place = Place::new("changes-status");
    let [a, b, c] = Member::all(&place, ["a", "b", "c"]);
    let all = [&a, &b, &c];
    let mut running = found_all(&all);
    let whole = || json(&all, &["status"])["failuresTolerated"] == 1;
    wait_until(whole, "all have caught up");
    let (table, _) = done(&all, &["status"]);
    for heading in ["ID", "NAME", "ROLE", "TERM", "COMMITTED", "LAG", "ENDPOINT", "TROUBLE"] {
        assert!(table.contains(heading), "{table}");
    }
    assert_eq!(table.matches("| leader ").count(), 1, "{table}");
    assert_eq!(table.matches("| follower ").count(), 2, "{table}");
    assert!(table.contains("3 voters, quorum 2, live 3: 1 more failure is tolerated"), "{table}");
    assert!(table.contains("losing any of these would stop it: a+b; a+c; b+c"), "{table}");
    let status = json(&all, &["status"]);
    for field in ["voters", "quorum", "live", "hasQuorum", "failuresTolerated", "settled"] {
        assert!(!status[field].is_null(), "no {field} in {status}");
    }
    for one in status["members"].as_array().unwrap() {
        for field in ["ID", "name", "endpoint", "role", "term", "committed", "lag", "version"] {
            assert!(!one[field].is_null(), "no {field} in {status}");
        }
    }

    drop(running.pop());
    let noticed = || json(&[&a, &b], &["status"])["failuresTolerated"] == 0;
    wait_until(noticed, "the loss is noticed");
    let (table, _) = done(&[&a, &b], &["status"]);
    assert!(table.contains("| unreachable "), "{table}");
    assert!(table.contains("live 2: no further failure is tolerated right now"), "{table}");

    drop(running.pop());
    let lost = || asked(&[&a], &["status"]).status.code() == Some(1);
    wait_until(lost, "the quorum is lost");
    let output = asked(&[&a], &["status"]);
    let text = both(&output);
    assert!(text.contains("no quorum: the cluster takes no writes now"), "{text}");
    assert_eq!(text.matches("| unreachable ").count(), 2, "{text}");
    let json = asked(&[&a], &["status", "-w", "json"]);
    let status: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(status["hasQuorum"], false, "{status}");
    let text = refused(&[&a], &["member", "add", "e=http://127.0.0.1:1"]);
    assert!(text.contains("nobody leads the cluster now"), "{text}");
}

fn plan_is_told(members: &[&Member], new: &Member) {
    let wished = ["member", "plan", "a", "b", &new.pair()];
    let (table, _) = done(members, &wished);
    for words in [
        "STOPS COMMITS IF LOST",
        "STOPS ELECTIONS IF LOST",
        "as it is",
        "add as learners: d",
        "catch up: d",
        "move votes: d gets a vote, c gives up its vote",
        "remove: c",
        "settle",
        "a+b",
    ] {
        assert!(table.contains(words), "no '{words}' in\n{table}");
    }
    let plan = json(members, &wished);
    let steps = plan["steps"].as_array().unwrap();
    assert!(steps.len() >= 5, "{plan}");
    for step in steps {
        for field in ["step", "majorities", "learners", "stopsCommits", "stopsElections"] {
            assert!(!step[field].is_null(), "no {field} in {plan}");
        }
    }
    assert_eq!(names(members), ["a", "b", "c"], "nothing was done");
    let text = refused(members, &["member", "plan", "a", "b", "nobody"]);
    assert!(text.contains("no member has the name or id 'nobody'"), "{text}");
    let again = asked(members, &["member", "plan", "a", "a", "b"]);
    assert_eq!(again.status.code(), Some(2), "{}", both(&again));
}

fn watch(members: &[&Member], more: &[&str]) -> Command {
    let mut command = quorate();
    command.args(["member", "watch", "--endpoints", &endpoints(members)]).args(more);
    command
}

fn endpoints(members: &[&Member]) -> String {
    members.iter().map(|member| member.client.as_str()).collect::<Vec<_>>().join(",")
}

fn contains(log: &Path, words: &str) -> bool {
    fs::read_to_string(log).unwrap().contains(words)
}

/// The id of the member at this address, in hex.
fn id_at(list: &Value, member: &Member) -> String {
    let members = list["members"].as_array().unwrap();
    let found = members.iter().find(|one| one["peerURLs"][0] == member.peer.as_str()).unwrap();
    format!("{:x}", found["ID"].as_u64().unwrap())
}

fn names(members: &[&Member]) -> Vec<String> {
    let list = json(members, &["member", "list"]);
    let members = list["members"].as_array().unwrap();
    let mut names: Vec<_> =
        members.iter().map(|one| one["name"].as_str().unwrap().to_string()).collect();
    names.sort();
    names
}

fn leader(members: &[&Member]) -> String {
    let status = json(members, &["status"]);
    let members = status["members"].as_array().unwrap();
    let leader = members.iter().find(|one| one["role"] == "leader").unwrap();
    leader["name"].as_str().unwrap().to_string()
}

fn by_name<'a>(members: &[&'a Member], name: &str) -> &'a Member {
    members.iter().find(|one| one.name == name).unwrap()
}
