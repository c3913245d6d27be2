//! `etcdctl` as operators use it, against three members: status, leadership, snapshots, space
//! alarms; and its tools that are built on keys.

use std::path::Path;

use serde_json::Value;

use crate::etcdctl::{CommandStream, etcdctl, installed, refused, succeed};
use crate::support::cluster::TestCluster;
use crate::support::server::TestServer;
use crate::support::{TestDirectory, TestProcess, quorate, run as run_quorate, wait_until};
use crate::transcripts::serves_etcdctl;

/// Three running members.
struct ThreeMembers {
    endpoints: Vec<String>,
    directory: TestDirectory,
    _processes: Vec<TestProcess>,
}

impl ThreeMembers {
    fn start(name: &'static str) -> Option<Self> {
        if !installed("etcdctl") {
            return None;
        }
        let directory = TestDirectory::new(&format!("operators-{name}"));
        let cluster = TestCluster::new::<3>(&directory, "m");
        let _processes = cluster.start();
        Some(Self { endpoints: cluster.client_addresses(), directory, _processes })
    }

    fn all(&self) -> String {
        self.endpoints.join(",")
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&succeed(&self.all(), &format!("{line} -w json"))).unwrap()
    }

    /// For each member: its id, and the id of the leader it knows.
    fn leaders(&self) -> Vec<(u64, u64)> {
        let status = self.json("endpoint status");
        let ids = |member: &Value| {
            let id = &member["Status"]["header"]["member_id"];
            (id.as_u64().unwrap(), member["Status"]["leader"].as_u64().unwrap_or(0))
        };
        status.as_array().unwrap().iter().map(ids).collect()
    }
}

#[test]
fn status_health_and_hashes_cover_all_members() {
    let Some(three) = ThreeMembers::start("status") else { return };
    succeed(&three.all(), "put a 1");
    let leaders = three.leaders();
    assert!(leaders.iter().all(|(_, leader)| *leader == leaders[0].1), "{leaders:?}");
    assert!(leaders.iter().any(|(id, leader)| id == leader), "{leaders:?}");
    let table = succeed(&three.all(), "endpoint status -w table");
    assert_eq!(table.lines().count(), 7, "{table}");
    for column in ["ENDPOINT", "VERSION", "DB SIZE", "IS LEADER", "RAFT APPLIED INDEX", "ERRORS"] {
        assert!(table.contains(column), "{table}");
    }
    // Sent to one member, `--cluster` covers all, at their advertised URLs.
    let one = &three.endpoints[0];
    for command in ["status", "hashkv"] {
        let text = succeed(one, &format!("endpoint {command} --cluster"));
        assert_eq!(text.lines().count(), 3, "{text}");
        for endpoint in &three.endpoints {
            assert!(text.contains(&format!("http://{endpoint}, ")), "{text}");
        }
    }
    let health = three.json("endpoint health --cluster");
    let healthy = |member: &Value| member["health"] == true;
    assert!(health.as_array().unwrap().len() == 3, "{health}");
    assert!(health.as_array().unwrap().iter().all(healthy), "{health}");
    for endpoint in &three.endpoints {
        succeed(endpoint, "get a");
    }
    let hashes = three.json("endpoint hashkv");
    let hashes: Vec<_> =
        hashes.as_array().unwrap().iter().map(|member| member["HashKV"]["hash"].clone()).collect();
    assert!(hashes[0].is_u64() && hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    assert_eq!(succeed(one, "defrag --cluster").matches("Finished defragmenting").count(), 3);

    let list = three.json("member list");
    let members = list["members"].as_array().unwrap();
    assert_eq!(members.len(), 3);
    for member in members {
        let url = member["clientURLs"][0].as_str().unwrap();
        let known = |endpoint: &String| url == format!("http://{endpoint}");
        assert!(three.endpoints.iter().any(known), "{member}");
    }
    assert_eq!(succeed(one, "member list -w table").matches("| started |").count(), 3);
}

#[test]
fn leadership_moves_to_the_given_member() {
    let Some(three) = ThreeMembers::start("leadership") else { return };
    let leaders = three.leaders();
    let leader = leaders.iter().position(|(id, leader)| id == leader).unwrap();
    let (successor, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let line = format!("move-leader {:x}", leaders[successor].0);
    let error = refused(&three.endpoints[other], &line);
    assert!(error.contains("no leader endpoint given at"), "{error}");
    // With all endpoints, etcdctl finds the leader.
    let text = succeed(&three.all(), &line);
    assert!(text.starts_with("Leadership transferred from"), "{text}");
    let now = three.leaders();
    assert!(now.iter().any(|(id, leader)| id == leader && *id == leaders[successor].0), "{now:?}");
    let unknown = refused(&three.all(), "move-leader 1234");
    assert!(unknown.contains("etcdserver: bad leader transferee"), "{unknown}");
    succeed(&three.all(), "put a 1");
}

/// Writes through one member are events at another.
#[test]
fn an_interactive_watch_prints_events() {
    let Some(three) = ThreeMembers::start("watch") else { return };
    let (writer, reader) = (&three.endpoints[0], &three.endpoints[1]);
    succeed(writer, "put a 0");
    let mut command = etcdctl(reader);
    command.args(["watch", "-i"]);
    let mut watch = CommandStream::start(command, "watch --prev-kv a --rev=2\n");
    assert_eq!(watch.lines(3), ["PUT", "a", "0"]);
    succeed(writer, "put a 1");
    assert_eq!(watch.lines(5), ["PUT", "a", "0", "a", "1"]);
    succeed(writer, "del a");
    assert_eq!(watch.lines(5), ["DELETE", "a", "1", "a", ""]);
    watch.write("progress\n");
    assert_eq!(watch.line(), "progress notify: 4");
}

/// etcdctl implements these with keys, leases and watches.
#[test]
fn locks_elections_and_mirrors_work() {
    let Some(three) = ThreeMembers::start("tools") else { return };
    assert_eq!(succeed(&three.endpoints[0], "lock l echo held"), "held");
    let mut command = etcdctl(&three.endpoints[1]);
    command.args(["lock", "l"]);
    let holder = CommandStream::start(command, "");
    let key = holder.line();
    assert!(key.starts_with("l/"), "{key}");
    // Another client waits until the holder's lease ends.
    let mut command = etcdctl(&three.endpoints[2]);
    command.args(["lock", "l", "echo", "mine"]);
    let waiting = CommandStream::start(command, "");
    let both_wait =
        || succeed(&three.endpoints[0], "get l/ --prefix --keys-only").matches("l/").count() == 2;
    wait_until(both_wait, "another client waits for the lock");
    let lease = three.json(&format!("get {key}"))["kvs"][0]["lease"].as_i64().unwrap();
    succeed(&three.endpoints[0], &format!("lease revoke {lease:x}"));
    assert_eq!(waiting.line(), "mine");
    drop(holder);

    let mut command = etcdctl(&three.endpoints[0]);
    command.args(["elect", "e", "first"]);
    let leader = CommandStream::start(command, "");
    assert!(leader.line().starts_with("e/"));
    assert_eq!(leader.line(), "first");
    let mut command = etcdctl(&three.endpoints[1]);
    command.args(["elect", "-l", "e"]);
    let observer = CommandStream::start(command, "");
    assert!(observer.line().starts_with("e/"));
    assert_eq!(observer.line(), "first");

    let directory = TestDirectory::new("operators-mirror");
    let mirror = TestCluster::new::<1>(&directory, "mirror");
    let _processes = mirror.start();
    let mirror = mirror[0].client_address();
    succeed(&three.endpoints[0], "put m/1 before");
    let mut command = etcdctl(&three.endpoints[2]);
    command.args(["make-mirror", "--prefix", "m/", &mirror]);
    let _mirroring = CommandStream::start(command, "");
    let has = |line: &str, expected: &str| succeed(&mirror, line) == expected;
    wait_until(|| has("get m/1 --print-value-only", "before"), "the mirror has the existing key");
    succeed(&three.endpoints[0], "put m/2 after");
    succeed(&three.endpoints[0], "del m/1");
    wait_until(|| has("get m/ --prefix", "m/2\nafter"), "the mirror has the later changes");
}

/// `etcdctl snapshot save` saves etcd's format: `quorate` and `etcdctl` both read it.
#[test]
fn snapshots_are_saved() {
    let Some(three) = ThreeMembers::start("snapshot") else { return };
    succeed(&three.all(), "put a 1");
    let file = three.directory.file("saved.db");
    let text = succeed(&three.endpoints[1], &format!("snapshot save {file}"));
    assert_eq!(text, format!("Snapshot saved at {file}"));
    let shown: Value =
        serde_json::from_str(&run_quorate(&["snapshot", "status", &file, "-w", "json"])).unwrap();
    assert_eq!(shown["revision"], 2, "{shown}");
    let stock = succeed(&three.endpoints[0], &format!("snapshot status {file} -w json"));
    let stock: Value = serde_json::from_str(&stock).unwrap();
    for field in ["hash", "revision", "totalSize"] {
        assert_eq!(stock[field], shown[field], "{field}");
    }
    let restored = three.directory.file("restored");
    succeed(&three.endpoints[0], &format!("snapshot restore {file} --data-dir {restored}"));
    assert!(Path::new(&restored).join("member/snap/db").exists());
}

/// A full server refuses writes, serves reads and deletes, and accepts writes after a cleanup.
#[test]
fn a_full_server_can_be_emptied() {
    if !installed("etcdctl") {
        return;
    }
    let directory = TestDirectory::new("operators-full");
    let [server] = TestServer::all(&directory, ["full"]);
    let mut command = quorate();
    command.args(["server", "--quota-backend-bytes", "100000"]);
    command.args(server.single_member_flags());
    let _process = TestProcess::start(&mut command, &server.log);
    let endpoint = server.client_address();
    let put = |key: usize| {
        let mut command = etcdctl(&endpoint);
        command.args(["put", &format!("k{key}"), &"a".repeat(20_000)]);
        command.output().unwrap()
    };
    wait_until(|| serves_etcdctl(&endpoint), "the server serves requests");
    let refusal = (0..20).map(put).find(|put| !put.status.success()).expect("there is a limit");
    let error = String::from_utf8_lossy(&refusal.stderr).into_owned();
    assert!(error.contains("etcdserver: mvcc: database space exceeded"), "{error}");
    let alarm = succeed(&endpoint, "alarm list");
    assert!(alarm.starts_with("memberID:") && alarm.ends_with("alarm:NOSPACE"), "{alarm}");

    assert_eq!(succeed(&endpoint, "get k0 --keys-only"), "k0");
    succeed(&endpoint, "del k --prefix");
    let status: Value =
        serde_json::from_str(&succeed(&endpoint, "endpoint status -w json")).unwrap();
    let revision = &status[0]["Status"]["header"]["revision"];
    succeed(&endpoint, &format!("compaction --physical {revision}"));
    succeed(&endpoint, "defrag");
    assert!(succeed(&endpoint, "alarm disarm").contains("alarm:NOSPACE"));
    assert_eq!(succeed(&endpoint, "alarm list"), "");
    assert!(put(0).status.success());
}

#[test]
fn endpoints_may_be_written_as_urls() {
    let Some(three) = ThreeMembers::start("urls") else { return };
    let url = format!("http://{}", three.endpoints[0]);
    succeed(&url, "put a 1");
    for line in ["get a", "endpoint status", "endpoint hashkv", "defrag", "endpoint health"] {
        succeed(&url, line);
    }
}
