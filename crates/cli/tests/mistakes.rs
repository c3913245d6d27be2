//! What is typed wrongly is told so that it can be typed rightly, and the name `etcd`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;
use std::process::Command;

use common::member::{Member, done, found_all, refused};
use common::{Place, Running, free_ports, run, run_refused, wait_until};

#[test]
fn nobody_is_there() {
    let endpoint = format!("127.0.0.1:{}", free_ports(1)[0]);
    for command in [
        &["status"][..],
        &["member", "list"],
        &["member", "add", "d=http://127.0.0.1:1"],
        &["member", "promote", "d"],
        &["member", "remove", "d"],
        &["member", "replace", "c", "d=http://127.0.0.1:1"],
        &["member", "set", "a"],
        &["member", "plan", "a"],
        &["member", "cancel"],
        &["member", "watch"],
        &["snapshot", "save", "/nowhere/at/all"],
    ] {
        let arguments: Vec<&str> =
            command.iter().copied().chain(["--endpoints", &endpoint]).collect();
        let (code, text) = run_refused(&arguments);
        assert_eq!(code, Some(1), "{command:?}: {text}");
        assert!(text.contains("no member answers; tell where they are with --endpoints"), "{text}");
        assert!(text.contains(&endpoint) && text.contains("refused"), "{text}");
    }
    let (code, text) = run_refused(&["bench", "put", "--endpoints", &endpoint]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("cannot reach {endpoint}")), "{text}");
}

#[test]
fn addresses_that_cannot_be_meant() {
    for (endpoint, words) in [
        ("https://127.0.0.1:2379", "asks for TLS"),
        ("unix:///run/etcd", "begins with 'unix://'"),
        ("127.0.0.1:port", "is not HOST:PORT"),
        ("http://", "has no port"),
        ("127.0.0.1", "has no port"),
    ] {
        for command in [&["status"][..], &["bench", "get"], &["snapshot", "save", "file"]] {
            let arguments: Vec<&str> =
                command.iter().copied().chain(["--endpoints", endpoint]).collect();
            let (code, text) = run_refused(&arguments);
            assert_eq!(code, Some(2), "{endpoint}: {text}");
            assert!(text.contains(words), "{endpoint}: {text}");
        }
    }
}

#[test]
fn members_that_cannot_be_meant() {
    let place = Place::new("mistakes");
    let [a] = Member::all(&place, ["a"]);
    let _running = found_all(&[&a]);
    for new in ["d", "d=", "=http://h:1", "d=h:1", "d=http://h", "d=https://h:1", "d=ftp://h:1"] {
        for command in ["add", "replace", "set", "plan"] {
            let old = if command == "replace" { &["a"][..] } else { &[] };
            let head = ["member", command];
            let tail = [new, "--endpoints", &a.client];
            let arguments: Vec<&str> = head.iter().chain(old).chain(&tail).copied().collect();
            // Without an address it may mean one that is there.
            let known = new == "d" && matches!(command, "set" | "plan");
            let (code, text) = run_refused(&arguments);
            assert_eq!(code, Some(if known { 1 } else { 2 }), "{arguments:?}: {text}");
            let words = if known { "no member has the name or id" } else { "is not NAME=PEER_URL" };
            assert!(text.contains(words), "{arguments:?}: {text}");
        }
    }
    for command in ["promote", "remove"] {
        let text = refused(&[&a], &["member", command, "zz"]);
        assert!(text.contains("no member has the name or id 'zz'; there are a ("), "{text}");
    }
    for command in [
        &["member", "add", "a=http://127.0.0.1:1"][..],
        &["member", "replace", "a", "a=http://127.0.0.1:1"],
        &["member", "set", "a", "a=http://127.0.0.1:1"],
    ] {
        let text = refused(&[&a], command);
        assert!(text.contains("there is a member of that name, a ("), "{text}");
    }
    // The peers' port is not the clients'.
    let (code, text) = run_refused(&["status", "--endpoints", &a.peer]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no member answers") && text.contains(&a.peer), "{text}");
    assert!(text.contains("is that the port for clients?"), "{text}");
    let (list, _) = done(&[&a], &["member", "list"]);
    assert_eq!(list.lines().count(), 5, "nothing was done\n{list}");
}

#[test]
fn servers_that_cannot_be_meant() {
    let place = Place::new("mistakes-server");
    fs::create_dir_all(&place.path).unwrap();
    let directory = place.path.join("data");
    let directory = directory.to_str().unwrap();
    let port = free_ports(2);
    let [peer, client] = [port[0], port[1]].map(|port| format!("http://127.0.0.1:{port}"));
    let plain = [
        "server",
        "--data-dir",
        directory,
        "--listen-peer-urls",
        &peer,
        "--listen-client-urls",
        &client,
        "--initial-advertise-peer-urls",
        &peer,
    ];
    let twice = format!("default={peer},other={peer}");
    for (more, code, words) in [
        (&["--nam", "x"][..], 2, "name"),
        (&["--listen-client-urls", "https://127.0.0.1:1"], 2, "https"),
        (&["--initial-cluster-state", "old"], 2, "new or existing"),
        (&["--initial-cluster", &twice], 1, "two members of the initial cluster are at"),
        (&["--initial-cluster", "other=http://127.0.0.1:1"], 1, "couldn't find local name"),
        (&["--election-timeout", "100"], 2, "election-timeout"),
    ] {
        let kept = plain[1..].chunks(2).filter(|pair| !more.contains(&pair[0])).flatten();
        let arguments: Vec<&str> = ["server"].iter().chain(kept).chain(more).copied().collect();
        let (is, text) = run_refused(&arguments);
        assert_eq!(is, Some(code), "{more:?}: {text}");
        assert!(text.contains(words), "{more:?}: {text}");
    }
}

#[test]
fn under_the_name_etcd_it_takes_etcds_arguments() {
    let place = Place::new("etcd-name");
    let [a] = Member::all(&place, ["a"]);
    let etcd = place.path.join("etcd");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_quorate"), &etcd).unwrap();
    let told = Command::new(&etcd).arg("--version").output().unwrap();
    let text = String::from_utf8_lossy(&told.stdout);
    assert!(text.starts_with("etcd Version: 3."), "{text}");
    let refused = Command::new(&etcd).args(["member", "list"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(run(&["server", "--version"]), text);
    assert!(run(&["server", "--help"]).contains("--initial-cluster-state"));

    let mut command = Command::new(&etcd);
    command
        .args(["--name", "a", "--listen-peer-urls", &a.peer])
        .arg("--data-dir")
        .arg(&a.directory);
    command.args(["--initial-advertise-peer-urls", &a.peer, "--listen-client-urls", &a.client]);
    command.args(["--initial-cluster", &a.pair()]);
    command.env("ETCD_ADVERTISE_CLIENT_URLS", &a.client);
    let _running = Running::start(&mut command, &a.log);
    a.wait_served();
    let row = format!("| started | a    | {} | {} |", a.peer, a.client);
    wait_until(|| done(&[&a], &["member", "list"]).0.contains(&row), "it has said who it is");
}
