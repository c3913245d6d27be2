//! `quorate put`, `get`, `del`, `watch`, `txn` and `lease`: what they do, and that they print what
//! etcdctl prints.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::server::{TestServer, endpoints, refused, start_all, succeed};
use support::{TestDirectory, TestProcess, output_text, quorate, wait_for_text, wait_until};

#[test]
fn keys_are_written_read_and_deleted() {
    let directory = TestDirectory::new("keys-basic");
    let [a] = TestServer::all(&directory, ["a"]);
    let _process = start_all(&[&a]);
    let run = |arguments: &[&str]| succeed(&[&a], arguments).0;
    assert_eq!(run(&["put", "greeting", "hello"]), "OK\n");
    assert_eq!(run(&["get", "greeting"]), "greeting\nhello\n");
    assert_eq!(run(&["get", "greeting", "--print-value-only"]), "hello\n");
    assert_eq!(
        run(&["get", "greeting", "--hex", "--print-value-only"]),
        "\\x68\\x65\\x6c\\x6c\\x6f\n"
    );
    assert_eq!(run(&["put", "greeting", "good morning", "--prev-kv"]), "OK\ngreeting\nhello\n");
    // After `--` everything is a key or a value.
    let endpoint = endpoints(&[&a]);
    assert!(quorate_succeeds(&["put", "--endpoints", &endpoint, "--", "greeting/2", "-1"]));
    assert_eq!(run(&["get", "greeting", "--prefix", "--keys-only"]), "greeting\n\ngreeting/2\n\n");
    assert_eq!(run(&["get", "greeting", "--prefix", "--count-only"]), "2\n");
    let last = run(&["get", "greeting", "--prefix", "--order", "descend", "--limit", "1"]);
    assert_eq!(last, "greeting/2\n-1\n");
    assert_eq!(run(&["get", "greeting", "--rev", "2"]), "greeting\nhello\n");
    assert_eq!(run(&["get", "missing"]), "");
    assert_eq!(run(&["del", "greeting", "--prev-kv"]), "1\ngreeting\ngood morning\n");
    assert_eq!(run(&["del", "greeting", "--prefix"]), "1\n");
    let text = refused(&[&a], &["get", "greeting", "--rev", "999"]);
    assert!(text.contains("mvcc: required revision is a future revision"), "{text}");
    // A value from standard input, which need not be text.
    let output = with_input(&a, &["put", "binary"], b"\xff\n");
    assert!(output.0, "{}", output.1);
    assert_eq!(run(&["get", "binary", "--hex", "--print-value-only"]), "\\xff\\x0a\n");
}

#[test]
fn a_transaction_has_conditions_and_two_branches() {
    let directory = TestDirectory::new("keys-txn");
    let [a] = TestServer::all(&directory, ["a"]);
    let _process = start_all(&[&a]);
    let text = b"version(\"k\") = \"0\"\n\nput k \"first value\"\nget k\n\nget k\ndel k\n\n";
    let (_, first) = with_input(&a, &["txn"], text);
    assert_eq!(first, "SUCCESS\n\nOK\n\nk\nfirst value\n");
    let (_, second) = with_input(&a, &["txn"], text);
    assert_eq!(second, "FAILURE\n\nk\nfirst value\n\n1\n");
    let (done, error) = with_input(&a, &["txn"], b"size(\"k\") = \"0\"\n\n\n\n");
    assert!(!done && error.contains("is not one of value, version"), "{error}");
}

#[test]
fn a_lease_deletes_its_keys() {
    let directory = TestDirectory::new("keys-lease");
    let [a] = TestServer::all(&directory, ["a"]);
    let _process = start_all(&[&a]);
    let run = |arguments: &[&str]| succeed(&[&a], arguments).0;
    let granted = run(&["lease", "grant", "600"]);
    let id = granted.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(granted, format!("lease {id} granted with TTL(600s)\n"));
    run(&["put", "k", "v", "--lease", &id]);
    assert_eq!(run(&["lease", "list"]), format!("found 1 leases\n{id}\n"));
    let shown = run(&["lease", "timetolive", &id, "--keys"]);
    assert!(
        shown.starts_with(&format!("lease {id} granted with TTL(600s), remaining(")),
        "{shown}"
    );
    assert!(shown.ends_with("attached keys([k])\n"), "{shown}");
    let kept = run(&["lease", "keep-alive", &id, "--once"]);
    assert_eq!(kept, format!("lease {id} keepalived with TTL(600)\n"));
    assert_eq!(run(&["lease", "revoke", &id]), format!("lease {id} revoked\n"));
    assert_eq!(run(&["get", "k"]), "");
    assert_eq!(run(&["lease", "timetolive", &id]), format!("lease {id} already expired\n"));
    let text = refused(&[&a], &["lease", "keep-alive", &id]);
    assert!(text.contains("expired or revoked"), "{text}");
    let text = refused(&[&a], &["lease", "revoke", &id]);
    assert!(text.contains("requested lease not found"), "{text}");
}

/// The member that serves a watch is killed: the watch goes on with another one, and each event
/// arrives once.
#[test]
fn a_watch_survives_the_loss_of_its_member() {
    let directory = TestDirectory::new("keys-watch");
    let [a, b, c] = TestServer::all(&directory, ["a", "b", "c"]);
    let all = [&a, &b, &c];
    let mut processes = start_all(&all);
    let log = directory.path.join("watch.log");
    let mut command = quorate();
    command.args(["watch", "k", "--prefix", "--endpoints", &endpoints(&all)]);
    command.args(["--", "sh", "-c", "echo ran $ETCD_WATCH_KEY $ETCD_WATCH_VALUE"]);
    let mut watch = TestProcess::start(&mut command, &log);
    // The watch is there once an event arrives.
    let arrives = |key: &str| {
        succeed(&[&b, &c], &["put", key, "v"]);
        fs::read_to_string(&log).unwrap().contains("PUT\nk0\n")
    };
    wait_until(|| arrives("k0"), "the watch has begun");
    drop(processes.remove(0));
    wait_until(
        || quorate_succeeds(&["put", "k1", "x", "--endpoints", &endpoints(&[&b, &c])]),
        "the others serve",
    );
    for number in 2..10 {
        succeed(&[&b, &c], &["put", &format!("k{number}"), "x"]);
    }
    succeed(&[&b, &c], &["del", "k9"]);
    wait_for_text(&log, "DELETE\nk9\n\n");
    // The commands of a response run after its events are printed.
    wait_for_text(&log, "ran \"k9\" \"\"");
    assert!(watch.is_running());
    let text = fs::read_to_string(&log).unwrap();
    for number in 2..10 {
        assert_eq!(text.matches(&format!("PUT\nk{number}\nx\n")).count(), 1, "{text}");
        assert!(text.contains(&format!("ran \"k{number}\" \"x\"")), "{text}");
    }
}

#[test]
fn invalid_arguments_are_refused_before_connecting() {
    for arguments in [
        &["put", "k", "v", "--lease", "zz"][..],
        &["put", "k", "v", "--ignore-value"],
        &["get", "k", "z", "--prefix"],
        &["get", "k", "--keys-only", "--count-only"],
        &["lease", "grant", "0"],
    ] {
        let output = quorate().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", output_text(&output));
    }
}

/// The same commands, run by etcdctl and by quorate, print the same.
#[test]
fn output_is_that_of_etcdctl() {
    if Command::new("etcdctl").arg("version").output().is_err() {
        eprintln!("skipped: etcdctl is not installed");
        return;
    }
    let directory = TestDirectory::new("keys-etcdctl");
    let [a] = TestServer::all(&directory, ["a"]);
    let _process = start_all(&[&a]);
    succeed(&[&a], &["put", "key", "value"]);
    succeed(&[&a], &["put", "key2", ""]);
    let lines = [
        "get key",
        "get key --prefix",
        "get key --prefix --keys-only",
        "get key --print-value-only",
        "get key --prefix --sort-by MODIFY --order DESCEND",
        "get key --hex",
        "get nothing",
        "get a z --limit 1",
        "get key --from-key",
        "get key -w json",
        "get key --prefix --limit 1 -w json",
        "get key --prefix --count-only -w json",
        "get nothing -w json",
        "lease list",
        "lease list -w json",
    ];
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        assert_same(&a, line, &words, b"");
    }
    let txn: &[(&str, &[u8])] = &[
        ("txn", b"value(\"key\") = \"value\"\n\nget key\n\nput key x\n\n"),
        ("txn -w json", b"mod(\"key\") < \"1\"\n\n\n\nget key\nget key2\n\n"),
    ];
    for (line, input) in txn {
        let words: Vec<_> = line.split(' ').collect();
        assert_same(&a, line, &words, input);
    }
}

fn assert_same(server: &TestServer, line: &str, words: &[&str], input: &[u8]) {
    let (done, own) = with_input(server, words, input);
    let mut etcdctl = Command::new("etcdctl");
    etcdctl.env("ETCDCTL_API", "3").args(["--endpoints", &server.client_address()]);
    let (_, other) = run_with_input(etcdctl.args(words), input);
    assert!(done, "{line}: {own}");
    if other.contains("unknown flag") {
        println!("skipped: {line}: the installed etcdctl does not know it");
        return;
    }
    match (serde_json::from_str::<Value>(&own), serde_json::from_str::<Value>(&other)) {
        (Ok(own), Ok(other)) if own.is_object() => assert_eq!(own, other, "{line}"),
        _ => assert_eq!(own, other, "{line}"),
    }
}

/// Whether the command succeeded, and its output or its error.
fn with_input(server: &TestServer, arguments: &[&str], input: &[u8]) -> (bool, String) {
    let mut command = quorate();
    run_with_input(command.args(arguments).args(["--endpoints", &endpoints(&[server])]), input)
}

fn run_with_input(command: &mut Command, input: &[u8]) -> (bool, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may exit without reading.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let text = if output.status.success() { &output.stdout } else { &output.stderr };
    (output.status.success(), String::from_utf8_lossy(text).into_owned())
}

fn quorate_succeeds(arguments: &[&str]) -> bool {
    quorate().args(arguments).output().unwrap().status.success()
}
