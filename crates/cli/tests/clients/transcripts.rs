//! Plays the same transcripts against one member, against three in turn, and against etcd.
//!
//! The expected output is etcd's: `UPDATE=1` plays the files against etcd and rewrites them. Those in
//! the folder `3.7` are for the `etcdctl` of that version, the others for 3.4, which Debian has.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::etcdctl::{etcdctl, installed};
use crate::support::cluster::TestCluster;
use crate::support::server::TestServer;
use crate::support::{TestDirectory, TestProcess, wait_until};
use crate::transcript::{parse, play};

/// For `etcdctl` 3.4.
const TRANSCRIPTS: &[&str] = &["keys", "txn", "watch", "lease", "upkeep", "auth"];
/// For `etcdctl` 3.7.
const NEW_TRANSCRIPTS: &[&str] = &["3.7/auth"];

/// The transcripts for the installed `etcdctl`; prints a message if there are none.
fn transcripts() -> &'static [&'static str] {
    if !installed("etcdctl") {
        return &[];
    }
    let output = Command::new("etcdctl").arg("version").env("ETCDCTL_API", "3").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.lines().find_map(|line| line.strip_prefix("API version: ")) {
        Some("3.4") => TRANSCRIPTS,
        Some("3.7") => NEW_TRANSCRIPTS,
        version => {
            eprintln!("skipped: there are no transcripts for etcdctl {version:?}");
            &[]
        }
    }
}

#[test]
fn one_member_replies_like_etcd() {
    check::<1>();
}

/// Each command goes to the next member: all of them give the same replies.
#[test]
fn three_members_reply_like_etcd() {
    check::<3>();
}

#[test]
fn the_transcripts_are_those_of_etcd() {
    if !installed("etcd") {
        return;
    }
    let update = std::env::var_os("UPDATE").is_some();
    for name in transcripts() {
        let etcd = Etcd::start(name);
        let path = path(name);
        let expected = fs::read_to_string(&path).unwrap();
        let played = play(&parse(&expected), std::slice::from_ref(&etcd.endpoint));
        if update {
            fs::write(&path, &played).unwrap();
        } else {
            assert_same(name, &played, &expected);
        }
    }
}

fn check<const N: usize>() {
    for name in transcripts() {
        let directory = TestDirectory::new(&format!("transcript-{N}-{}", name.replace('/', "-")));
        let mut cluster = TestCluster::new::<N>(&directory, "m");
        for server in cluster.iter_mut() {
            server.extra_flags.extend(CHEAP_PASSWORDS.map(str::to_owned));
        }
        let _processes = cluster.start();
        let expected = fs::read_to_string(path(name)).unwrap();
        let played = play(&parse(&expected), &cluster.client_addresses());
        assert_same(name, &played, &expected);
    }
}

/// For a server: tests do not wait for the hashes of passwords.
const CHEAP_PASSWORDS: [&str; 2] = ["--bcrypt-cost", "4"];

fn path(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients/transcripts");
    folder.join(format!("{name}.txt"))
}

/// On failure shows the first line that differs, instead of two long texts.
fn assert_same(name: &str, played: &str, expected: &str) {
    let mut command = "";
    let mut lines = expected.lines();
    for line in played.lines() {
        let expected = lines.next().unwrap_or("(the end)");
        if line.starts_with(['$', '~']) {
            command = line;
        }
        assert_eq!(line, expected, "in {name}.txt after: {command}");
    }
    assert_eq!(lines.next(), None, "at the end of {name}.txt");
}

/// etcd itself, with one member.
struct Etcd {
    endpoint: String,
    _process: TestProcess,
    _directory: TestDirectory,
}

impl Etcd {
    fn start(name: &str) -> Self {
        let directory = TestDirectory::new(&format!("etcd-{}", name.replace('/', "-")));
        let [server] = TestServer::all(&directory, ["etcd"]);
        let mut command = Command::new("etcd");
        command.args(server.single_member_flags()).args(CHEAP_PASSWORDS);
        let process = TestProcess::start(&mut command, &server.log);
        let endpoint = server.client_address();
        wait_until(|| serves_etcdctl(&endpoint), "etcd serves requests");
        Self { endpoint, _process: process, _directory: directory }
    }
}

pub(crate) fn serves_etcdctl(endpoint: &str) -> bool {
    etcdctl(endpoint).args(["get", "x"]).output().unwrap().status.success()
}
