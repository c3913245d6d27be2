//! A server as a process of its own: what it logs, what it tells systemd, how signals end it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use quorate_server::config::{self, Invocation};
use serde_json::Value;
use support::{PATIENCE, TestMember, put, put_begun};
use tempfile::TempDir;

/// No test: what the others start. Without the variable it does nothing.
#[test]
#[ignore = "started by the other tests here, as a process"]
fn child() {
    let Ok(words) = std::env::var(WORDS) else { return };
    let Invocation::Run(config) = config::parse(words.lines().map(str::to_owned), []).unwrap()
    else {
        panic!("{words}");
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let served = runtime.block_on(quorate_server::run(*config));
    std::process::exit(if served.is_ok() { 0 } else { 7 });
}

const WORDS: &str = "QUORATE_TEST_WORDS";

/// A server in a process, and what it tells systemd.
struct Process {
    child: Child,
    told: UnixDatagram,
    _directory: TempDir,
}

impl Process {
    fn start(place: &TestMember, more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("notify");
        let told = UnixDatagram::bind(&socket).unwrap();
        told.set_read_timeout(Some(PATIENCE)).unwrap();
        let words = [
            format!("--name={}", place.name),
            format!("--data-dir={}", place.directory().join("data").display()),
            format!("--listen-peer-urls={}", place.peer),
            format!("--initial-advertise-peer-urls={}", place.peer),
            format!("--listen-client-urls={}", place.client),
            format!("--advertise-client-urls={}", place.client),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).chain(more.to_vec()).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env(WORDS, words.join("\n"))
            .env("NOTIFY_SOCKET", &socket)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, told, _directory: directory }
    }

    fn told(&self) -> String {
        let mut bytes = [0; 64];
        let length = self.told.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// How it ended, and the lines that it logged.
    fn ended(mut self) -> (ExitStatus, Vec<Value>) {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        (self.child.wait().unwrap(), text.lines().map(parse).collect())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended, unless a test failed.
        let _ = self.child.kill();
    }
}

fn messages(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["msg"].as_str().unwrap()).collect()
}

#[test]
fn a_signal_ends_it_in_good_order_and_all_of_it_is_told() {
    for name in ["TERM", "INT"] {
        let place = TestMember::new("a");
        let process = Process::start(&place, &[&format!("--initial-cluster=a={}", place.peer)]);
        assert_eq!(process.told(), "READY=1");
        process.signal(name);
        assert_eq!(process.told(), "STOPPING=1");
        let (status, lines) = process.ended();
        assert_eq!(status.code(), Some(0));
        for line in &lines {
            assert!(matches!(line["level"].as_str(), Some("info" | "warn")), "{line}");
            let time = line["ts"].as_str().unwrap();
            assert!(time.len() == 27 && time.starts_with("20") && time.ends_with('Z'), "{line}");
            let (file, number) = line["caller"].as_str().unwrap().split_once(':').unwrap();
            assert!(file.starts_with("quorate") && number.parse::<u32>().is_ok(), "{line}");
        }
        let messages = messages(&lines);
        let at = |text: &str| messages.iter().position(|found| *found == text).unwrap();
        let ready = at("ready to serve client requests");
        assert!(lines[ready]["address"].as_str().is_some());
        assert!(ready < at("received a signal; shutting down"), "{messages:?}");
    }
}

#[test]
fn nothing_below_the_level_is_logged() {
    for (level, wanted) in [("warn", &["warn"][..]), ("error", &[]), ("panic", &[])] {
        let place = TestMember::new("a");
        let cluster = format!("--initial-cluster=a={}", place.peer);
        let level = format!("--log-level={level}");
        let process = Process::start(&place, &[&cluster, &level, "--logger=zap"]);
        assert_eq!(process.told(), "READY=1");
        process.signal("TERM");
        let (_, lines) = process.ended();
        let levels: Vec<&str> = lines.iter().map(|line| line["level"].as_str().unwrap()).collect();
        assert_eq!(levels, wanted, "{lines:?}");
        if let Some(line) = lines.first() {
            assert_eq!(line["msg"], "logger has no effect");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once() {
    let [a, b] = ["a", "b"].map(TestMember::new);
    let cluster = format!("--initial-cluster=a={},b={}", a.peer, b.peer);
    // Alone it has no leader: the request, and with it the end, would take for ever.
    let long = ["--drain-timeout=1000s", "--election-timeout=50000"];
    let process = Process::start(&a, &[&cluster, long[0], long[1]]);
    assert_eq!(process.told(), "READY=1");
    let mut kv = a.kv().await;
    let pending = tokio::spawn(async move { kv.put(put("x", "1")).await });
    let address = a.client.resolve().await.unwrap();
    put_begun(address).await;
    process.signal("TERM");
    assert_eq!(process.told(), "STOPPING=1");
    // It waits for the request, and for nothing else.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!pending.is_finished());
    process.signal("TERM");
    let (status, lines) = process.ended();
    assert_eq!(status.code(), Some(7));
    assert!(messages(&lines).contains(&"received a second signal; stopping immediately"), "{lines:?}");
    assert!(pending.await.unwrap().is_err());
}
