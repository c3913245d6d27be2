//! A server as a separate process: its logs, its notifications to systemd, and signals.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use quorate_server::config::{self, Invocation};
use serde_json::Value;
use support::{TEST_TIMEOUT, TestMember, put, put_started};
use tempfile::TempDir;

/// Not a test: the process that the tests start. Without the variable it does nothing.
#[test]
#[ignore = "started by the other tests here, as a process"]
fn child() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let Invocation::Run(config) = config::parse(arguments.lines().map(str::to_owned), []).unwrap()
    else {
        panic!("{arguments}");
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let served = runtime.block_on(quorate_server::run(*config));
    std::process::exit(if served.is_ok() { 0 } else { 7 });
}

const ARGUMENTS: &str = "QUORATE_TEST_ARGUMENTS";

/// A server in a process, and the socket that it notifies.
struct Process {
    child: Child,
    notifications: UnixDatagram,
    _directory: TempDir,
}

impl Process {
    fn start(member: &TestMember, more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("notify");
        let notifications = UnixDatagram::bind(&socket).unwrap();
        notifications.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let arguments = [
            format!("--name={}", member.name),
            format!("--data-dir={}", member.directory().join("data").display()),
            format!("--listen-peer-urls={}", member.peer),
            format!("--initial-advertise-peer-urls={}", member.peer),
            format!("--listen-client-urls={}", member.client),
            format!("--advertise-client-urls={}", member.client),
        ];
        let arguments: Vec<&str> =
            arguments.iter().map(String::as_str).chain(more.to_vec()).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env(ARGUMENTS, arguments.join("\n"))
            .env("NOTIFY_SOCKET", &socket)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, notifications, _directory: directory }
    }

    fn notification(&self) -> String {
        let mut bytes = [0; 64];
        let length = self.notifications.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Waits for the exit, and returns the exit status and the log lines.
    fn wait(mut self) -> (ExitStatus, Vec<Value>) {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        (self.child.wait().unwrap(), text.lines().map(parse).collect())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has exited already, unless a test failed.
        let _ = self.child.kill();
    }
}

fn messages(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["msg"].as_str().unwrap()).collect()
}

#[test]
fn a_signal_causes_a_graceful_shutdown() {
    for name in ["TERM", "INT"] {
        let member = TestMember::new("a");
        let process = Process::start(&member, &[&format!("--initial-cluster=a={}", member.peer)]);
        assert_eq!(process.notification(), "READY=1");
        process.signal(name);
        assert_eq!(process.notification(), "STOPPING=1");
        let (status, lines) = process.wait();
        assert_eq!(status.code(), Some(0));
        for line in &lines {
            assert!(matches!(line["level"].as_str(), Some("info" | "warn")), "{line}");
            let time = line["ts"].as_str().unwrap();
            assert!(time.len() == 27 && time.starts_with("20") && time.ends_with('Z'), "{line}");
            let (file, number) = line["caller"].as_str().unwrap().split_once(':').unwrap();
            assert!(file.starts_with("quorate") && number.parse::<u32>().is_ok(), "{line}");
        }
        let messages = messages(&lines);
        let position = |text: &str| messages.iter().position(|other| *other == text).unwrap();
        let ready = position("ready to serve client requests");
        assert!(lines[ready]["address"].as_str().is_some());
        assert!(ready < position("received a signal; shutting down"), "{messages:?}");
    }
}

#[test]
fn events_below_the_log_level_are_left_out() {
    for (level, expected) in [("warn", &["warn"][..]), ("error", &[]), ("panic", &[])] {
        let member = TestMember::new("a");
        let cluster = format!("--initial-cluster=a={}", member.peer);
        let level = format!("--log-level={level}");
        let process = Process::start(&member, &[&cluster, &level, "--logger=zap"]);
        assert_eq!(process.notification(), "READY=1");
        process.signal("TERM");
        let (_, lines) = process.wait();
        let levels: Vec<&str> = lines.iter().map(|line| line["level"].as_str().unwrap()).collect();
        assert_eq!(levels, expected, "{lines:?}");
        if let Some(line) = lines.first() {
            assert_eq!(line["msg"], "logger has no effect");
        }
    }
}

/// Lines for people, in a file, with one line per request at the level debug.
#[tokio::test(flavor = "multi_thread")]
async fn log_lines_go_to_the_configured_outputs_in_the_configured_format() {
    let member = TestMember::new("a");
    let file = member.directory().join("server.log");
    let cluster = format!("--initial-cluster=a={}", member.peer);
    let outputs = format!("--log-outputs=stderr,{}", file.display());
    let process = Process::start(&member, &[&cluster, &outputs, "--log-level=debug"]);
    assert_eq!(process.notification(), "READY=1");
    member.put_until_done("x", "1").await;
    process.signal("TERM");
    let (_, lines) = process.wait();
    assert!(messages(&lines).contains(&"ready to serve client requests"), "{lines:?}");
    let put = |line: &&Value| line["msg"] == "request handled" && line["level"] == "debug";
    let put = lines.iter().find(put).unwrap();
    assert_eq!(put["method"], "/etcdserverpb.KV/Put", "{put}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), lines.len(), "the file has the same lines");

    let outputs = format!("--log-outputs={}", file.display());
    let process = Process::start(&member, &[&cluster, &outputs, "--log-format=console"]);
    assert_eq!(process.notification(), "READY=1");
    process.signal("TERM");
    let (_, none) = process.wait();
    assert!(none.is_empty(), "{none:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    // Lines are appended.
    let line = text.lines().skip(lines.len()).find(|line| line.contains("ready to serve")).unwrap();
    let columns: Vec<&str> = line.split('\t').collect();
    assert_eq!((columns.len(), columns[1]), (5, "info"), "{line}");
    assert!(columns[4].starts_with('{') && columns[4].contains("\"member-id\""), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_stops_the_process_immediately() {
    let [a, b] = ["a", "b"].map(TestMember::new);
    let cluster = format!("--initial-cluster=a={},b={}", a.peer, b.peer);
    // Without the other member there is no leader, so the request never completes.
    let long = ["--drain-timeout=1000s", "--election-timeout=50000"];
    let process = Process::start(&a, &[&cluster, long[0], long[1]]);
    // It is never ready, and serves requests that need no quorum.
    let mut kv = a.kv().await;
    let pending = tokio::spawn(async move { kv.put(put("x", "1")).await });
    let address = a.client.resolve().await.unwrap();
    put_started(address).await;
    process.signal("TERM");
    assert_eq!(process.notification(), "STOPPING=1");
    // The shutdown waits for the request.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!pending.is_finished());
    process.signal("TERM");
    let (status, lines) = process.wait();
    assert_eq!(status.code(), Some(7));
    assert!(
        messages(&lines).contains(&"received a second signal; stopping immediately"),
        "{lines:?}"
    );
    assert!(pending.await.unwrap().is_err());
}
