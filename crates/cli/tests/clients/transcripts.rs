//! The same talks with one member, with three in turn, and with etcd.
//!
//! The files were written by etcd: `UPDATE=1` plays them with it and writes what it says.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::common::cluster::Cluster;
use crate::common::{Place, Running, free_ports, wait_until};
use crate::etcdctl::{etcdctl, installed};
use crate::transcript::{parse, play};

const TALKS: &[&str] = &["keys", "txn", "watch", "lease", "upkeep"];

#[test]
fn one_member_says_what_etcd_says() {
    check(1);
}

/// Each command goes to the next member: any of them answers as one would.
#[test]
fn three_members_say_what_etcd_says() {
    check(3);
}

#[test]
fn etcd_says_what_is_written() {
    if !installed("etcdctl") || !installed("etcd") {
        return;
    }
    let update = std::env::var_os("UPDATE").is_some();
    for talk in TALKS {
        let etcd = Etcd::start(talk);
        let path = path(talk);
        let written = fs::read_to_string(&path).unwrap();
        let played = play(&parse(&written), std::slice::from_ref(&etcd.endpoint));
        if update {
            fs::write(&path, &played).unwrap();
        } else {
            assert_same(talk, &played, &written);
        }
    }
}

fn check(members: usize) {
    if !installed("etcdctl") {
        return;
    }
    for talk in TALKS {
        let place = Place::new(&format!("talk-{members}-{talk}"));
        fs::create_dir_all(&place.path).unwrap();
        let cluster = Cluster::new(&place, "talk", members);
        let _running = cluster.start();
        let endpoints: Vec<String> =
            (0..members).map(|one| address(&cluster.client(one))).collect();
        let written = fs::read_to_string(path(talk)).unwrap();
        let played = play(&parse(&written), &endpoints);
        assert_same(talk, &played, &written);
    }
}

/// Without the scheme, as old versions of etcdctl want it.
pub(crate) fn address(url: &str) -> String {
    url.trim_start_matches("http://").to_owned()
}

fn path(talk: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients/transcripts");
    folder.join(format!("{talk}.txt"))
}

/// Shows the first place that differs, rather than two long texts.
fn assert_same(talk: &str, played: &str, written: &str) {
    let mut asked = "";
    let mut lines = written.lines();
    for line in played.lines() {
        let wanted = lines.next().unwrap_or("(the end)");
        if line.starts_with(['$', '~']) {
            asked = line;
        }
        assert_eq!(line, wanted, "in {talk}.txt after: {asked}");
    }
    assert_eq!(lines.next(), None, "in {talk}.txt, at its end");
}

/// Tells a server, ours or etcd's, to be a cluster of its own; gives the URL for clients.
pub(crate) fn alone(server: &mut Command, place: &Place) -> String {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let ports = free_ports(2);
    let (client, peer) = (url(ports[0]), url(ports[1]));
    server.arg("--data-dir").arg(place.path.join("data"));
    for flag in ["--listen-client-urls", "--advertise-client-urls"] {
        server.args([flag, &client]);
    }
    for flag in ["--listen-peer-urls", "--initial-advertise-peer-urls"] {
        server.args([flag, &peer]);
    }
    server.args(["--initial-cluster", &format!("default={peer}")]);
    client
}

/// The real one, alone.
pub(crate) struct Etcd {
    pub(crate) endpoint: String,
    _running: Running,
    _place: Place,
}

impl Etcd {
    pub(crate) fn start(name: &str) -> Self {
        let place = Place::new(&format!("etcd-{name}"));
        fs::create_dir_all(&place.path).unwrap();
        let mut command = Command::new("etcd");
        let endpoint = address(&alone(&mut command, &place));
        let running = Running::start(&mut command, &place.path.join("etcd.log"));
        let serves = || etcdctl(&endpoint).args(["get", "x"]).output().unwrap().status.success();
        wait_until(serves, "etcd serves");
        Self { endpoint, _running: running, _place: place }
    }
}
