//! Invalid arguments are refused with a helpful message; a program named `etcd` takes etcd's
//! flags.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::process::Command;

use support::server::{TestServer, refused, start_all, succeed};
use support::{TestDirectory, TestProcess, free_urls, run, run_failing, wait_until};

#[test]
fn unreachable_endpoints_are_named() {
    let [endpoint] = free_urls();
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
        let (code, text) = run_failing(&arguments);
        assert_eq!(code, Some(1), "{command:?}: {text}");
        assert!(
            text.contains("no member answered; set the members' client addresses with --endpoints"),
            "{text}"
        );
        assert!(text.contains(&endpoint) && text.contains("refused"), "{text}");
    }
    let (code, text) = run_failing(&["bench", "put", "--endpoints", &endpoint]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("cannot connect to {endpoint}")), "{text}");
}

#[test]
fn invalid_endpoints_are_refused() {
    for (endpoint, message) in [
        ("https://127.0.0.1", "has no port"),
        ("unix:///run/etcd", "unsupported scheme 'unix://'"),
        ("127.0.0.1:port", "is not HOST:PORT"),
        ("http://", "has no port"),
        ("127.0.0.1", "has no port"),
    ] {
        for command in [&["status"][..], &["bench", "get"], &["snapshot", "save", "file"]] {
            let arguments: Vec<&str> =
                command.iter().copied().chain(["--endpoints", endpoint]).collect();
            let (code, text) = run_failing(&arguments);
            assert_eq!(code, Some(2), "{endpoint}: {text}");
            assert!(text.contains(message), "{endpoint}: {text}");
        }
    }
}

#[test]
fn invalid_members_are_refused() {
    let directory = TestDirectory::new("mistakes");
    let [a] = TestServer::all(&directory, ["a"]);
    let _process = start_all(&[&a]);
    for new in ["d", "d=", "=http://h:1", "d=h:1", "d=http://h", "d=https://h", "d=ftp://h:1"] {
        for command in ["add", "replace", "set", "plan"] {
            let old = if command == "replace" { &["a"][..] } else { &[] };
            let head = ["member", command];
            let tail = [new, "--endpoints", &a.client_url];
            let arguments: Vec<&str> = head.iter().chain(old).chain(&tail).copied().collect();
            // Without an address it names an existing member.
            let existing = new == "d" && matches!(command, "set" | "plan");
            let (code, text) = run_failing(&arguments);
            assert_eq!(code, Some(if existing { 1 } else { 2 }), "{arguments:?}: {text}");
            let message =
                if existing { "no member has the name or id" } else { "is not NAME=PEER_URL" };
            assert!(text.contains(message), "{arguments:?}: {text}");
        }
    }
    for command in ["promote", "remove"] {
        let text = refused(&[&a], &["member", command, "zz"]);
        assert!(text.contains("no member has the name or id 'zz'; the members are a ("), "{text}");
    }
    for command in [
        &["member", "add", "a=http://127.0.0.1:1"][..],
        &["member", "replace", "a", "a=http://127.0.0.1:1"],
        &["member", "set", "a", "a=http://127.0.0.1:1"],
    ] {
        let text = refused(&[&a], command);
        assert!(text.contains("a member with that name exists: a ("), "{text}");
    }
    // The peer port is not the client port.
    let (code, text) = run_failing(&["status", "--endpoints", &a.peer_url]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no member answered") && text.contains(&a.peer_url), "{text}");
    assert!(text.contains("is this the client port, and does it need https://?"), "{text}");
    let (list, _) = succeed(&[&a], &["member", "list"]);
    assert_eq!(list.lines().count(), 5, "the members changed\n{list}");
}

#[test]
fn invalid_server_flags_are_refused() {
    let directory = TestDirectory::new("mistakes-server");
    let data_dir = directory.file("data");
    let [peer, client] = free_urls();
    let valid = [
        "--data-dir",
        &data_dir,
        "--listen-peer-urls",
        &peer,
        "--listen-client-urls",
        &client,
        "--initial-advertise-peer-urls",
        &peer,
    ];
    let twice = format!("default={peer},other={peer}");
    for (invalid, code, message) in [
        (&["--nam", "x"][..], 2, "name"),
        (&["--listen-client-urls", "https://127.0.0.1:1"], 2, "https"),
        (&["--initial-cluster-state", "old"], 2, "new or existing"),
        (&["--initial-cluster", &twice], 1, "two members of the initial cluster are at"),
        (&["--initial-cluster", "other=http://127.0.0.1:1"], 1, "couldn't find local name"),
        (&["--election-timeout", "100"], 2, "election-timeout"),
    ] {
        let others = valid.chunks(2).filter(|pair| !invalid.contains(&pair[0])).flatten();
        let arguments: Vec<&str> =
            ["server"].iter().chain(others).chain(invalid).copied().collect();
        let (exit_code, text) = run_failing(&arguments);
        assert_eq!(exit_code, Some(code), "{invalid:?}: {text}");
        assert!(text.contains(message), "{invalid:?}: {text}");
    }
}

#[test]
fn a_program_named_etcd_takes_etcd_flags() {
    let directory = TestDirectory::new("etcd-name");
    let [a] = TestServer::all(&directory, ["a"]);
    let etcd = directory.path.join("etcd");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_quorate"), &etcd).unwrap();
    let version = Command::new(&etcd).arg("--version").output().unwrap();
    let text = String::from_utf8_lossy(&version.stdout);
    assert!(text.starts_with("etcd Version: 3."), "{text}");
    let refused = Command::new(&etcd).args(["member", "list"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(run(&["server", "--version"]), text);
    assert!(run(&["server", "--help"]).contains("--initial-cluster-state"));

    let mut command = Command::new(&etcd);
    command.args(a.member_flags(&[&a])).args(["--listen-peer-urls", &a.peer_url]);
    command.args(["--listen-client-urls", &a.client_url]);
    command.env("ETCD_ADVERTISE_CLIENT_URLS", &a.client_url);
    let _process = TestProcess::start(&mut command, &a.log);
    a.wait_serving();
    let row = format!("| started | a    | {} | {} |", a.peer_url, a.client_url);
    let published = || succeed(&[&a], &["member", "list"]).0.contains(&row);
    wait_until(published, "the member has published its name");
}
