//! What operators ask `etcdctl`, of three members: how they are, who leads, what was saved,
//! what is full; and the tools that it has on top of keys.

use std::fs;

use serde_json::Value;

use crate::common::cluster::Cluster;
use crate::common::{Place, Running, quorate, run as run_quorate, wait_until};
use crate::etcdctl::{Stream, ask, etcdctl, installed, refused};
use crate::transcripts::{address, alone};

/// Three members, and how to ask one of them or all.
struct Three {
    endpoints: Vec<String>,
    place: Place,
    _running: Vec<Running>,
}

impl Three {
    fn start(name: &'static str) -> Option<Self> {
        if !installed("etcdctl") {
            return None;
        }
        let place = Place::new(&format!("operators-{name}"));
        fs::create_dir_all(&place.path).unwrap();
        let cluster = Cluster::new(&place, "m", 3);
        let _running = cluster.start();
        let endpoints = (0..3).map(|number| address(&cluster.client(number))).collect();
        Some(Self { endpoints, place, _running })
    }

    fn all(&self) -> String {
        self.endpoints.join(",")
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&ask(&self.all(), &format!("{line} -w json"))).unwrap()
    }

    /// Of each member: its id, and whom it takes for the leader.
    fn leaders(&self) -> Vec<(u64, u64)> {
        let status = self.json("endpoint status");
        let one = |it: &Value| {
            let id = &it["Status"]["header"]["member_id"];
            (id.as_u64().unwrap(), it["Status"]["leader"].as_u64().unwrap_or(0))
        };
        status.as_array().unwrap().iter().map(one).collect()
    }
}

#[test]
fn status_health_and_hashes_of_all() {
    let Some(three) = Three::start("status") else { return };
    ask(&three.all(), "put a 1");
    let leaders = three.leaders();
    assert!(leaders.iter().all(|(_, leader)| *leader == leaders[0].1), "{leaders:?}");
    assert!(leaders.iter().any(|(id, leader)| id == leader), "{leaders:?}");
    let table = ask(&three.all(), "endpoint status -w table");
    assert_eq!(table.lines().count(), 7, "{table}");
    for column in ["ENDPOINT", "VERSION", "DB SIZE", "IS LEADER", "RAFT APPLIED INDEX", "ERRORS"] {
        assert!(table.contains(column), "{table}");
    }
    // Asked of one, answered by all, at the URLs that they advertise.
    let one = &three.endpoints[0];
    for what in ["status", "hashkv"] {
        let told = ask(one, &format!("endpoint {what} --cluster"));
        assert_eq!(told.lines().count(), 3, "{told}");
        for endpoint in &three.endpoints {
            assert!(told.contains(&format!("http://{endpoint}, ")), "{told}");
        }
    }
    let health = three.json("endpoint health --cluster");
    let healthy = |it: &Value| it["health"] == true;
    assert!(health.as_array().unwrap().len() == 3, "{health}");
    assert!(health.as_array().unwrap().iter().all(healthy), "{health}");
    for endpoint in &three.endpoints {
        ask(endpoint, "get a");
    }
    let hashes = three.json("endpoint hashkv");
    let hashes: Vec<_> =
        hashes.as_array().unwrap().iter().map(|it| it["HashKV"]["hash"].clone()).collect();
    assert!(hashes[0].is_u64() && hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    assert_eq!(ask(one, "defrag --cluster").matches("Finished defragmenting").count(), 3);

    let list = three.json("member list");
    let members = list["members"].as_array().unwrap();
    assert_eq!(members.len(), 3);
    for member in members {
        let client = address(member["clientURLs"][0].as_str().unwrap());
        assert!(three.endpoints.contains(&client), "{member}");
    }
    assert_eq!(ask(one, "member list -w table").matches("| started |").count(), 3);
}

#[test]
fn leadership_moves_where_it_is_told() {
    let Some(three) = Three::start("leadership") else { return };
    let leaders = three.leaders();
    let at = leaders.iter().position(|(id, leader)| id == leader).unwrap();
    let (heir, other) = ((at + 1) % 3, (at + 2) % 3);
    let line = format!("move-leader {:x}", leaders[heir].0);
    let error = refused(&three.endpoints[other], &line);
    assert!(error.contains("no leader endpoint given at"), "{error}");
    // With all of them given, it finds the leader by itself.
    let told = ask(&three.all(), &line);
    assert!(told.starts_with("Leadership transferred from"), "{told}");
    let told = three.leaders();
    assert!(told.iter().any(|(id, leader)| id == leader && *id == leaders[heir].0), "{told:?}");
    let learner = refused(&three.all(), "move-leader 1234");
    assert!(learner.contains("etcdserver: bad leader transferee"), "{learner}");
    ask(&three.all(), "put a 1");
}

/// What is written on one member is told by another, as it happens.
#[test]
fn a_watch_goes_on() {
    let Some(three) = Three::start("watch") else { return };
    let (writer, reader) = (&three.endpoints[0], &three.endpoints[1]);
    ask(writer, "put a 0");
    let mut command = etcdctl(reader);
    command.args(["watch", "-i"]);
    let mut watch = Stream::start(command, "watch --prev-kv a --rev=2\n");
    assert_eq!(watch.lines(3), ["PUT", "a", "0"]);
    ask(writer, "put a 1");
    assert_eq!(watch.lines(5), ["PUT", "a", "0", "a", "1"]);
    ask(writer, "del a");
    assert_eq!(watch.lines(5), ["DELETE", "a", "1", "a", ""]);
    watch.write("progress\n");
    assert_eq!(watch.line(), "progress notify: 4");
}

/// Written with keys, leases and watches alone.
#[test]
fn locks_elections_and_mirrors() {
    let Some(three) = Three::start("tools") else { return };
    assert_eq!(ask(&three.endpoints[0], "lock l echo held"), "held");
    let mut command = etcdctl(&three.endpoints[1]);
    command.args(["lock", "l"]);
    let holder = Stream::start(command, "");
    let key = holder.line();
    assert!(key.starts_with("l/"), "{key}");
    // Another one has to wait until the holder goes.
    let mut command = etcdctl(&three.endpoints[2]);
    command.args(["lock", "l", "echo", "mine"]);
    let waiting = Stream::start(command, "");
    let both =
        || ask(&three.endpoints[0], "get l/ --prefix --keys-only").matches("l/").count() == 2;
    wait_until(both, "another one waits for the lock");
    let lease = three.json(&format!("get {key}"))["kvs"][0]["lease"].as_i64().unwrap();
    ask(&three.endpoints[0], &format!("lease revoke {lease:x}"));
    assert_eq!(waiting.line(), "mine");
    drop(holder);

    let mut command = etcdctl(&three.endpoints[0]);
    command.args(["elect", "e", "first"]);
    let leader = Stream::start(command, "");
    assert!(leader.line().starts_with("e/"));
    assert_eq!(leader.line(), "first");
    let mut command = etcdctl(&three.endpoints[1]);
    command.args(["elect", "-l", "e"]);
    let observer = Stream::start(command, "");
    assert!(observer.line().starts_with("e/"));
    assert_eq!(observer.line(), "first");

    let place = Place::new("operators-mirror");
    fs::create_dir_all(&place.path).unwrap();
    let mirror = Cluster::new(&place, "mirror", 1);
    let _running = mirror.start();
    let mirror = address(&mirror.client(0));
    ask(&three.endpoints[0], "put m/1 before");
    let mut command = etcdctl(&three.endpoints[2]);
    command.args(["make-mirror", "--prefix", "m/", &mirror]);
    let _mirroring = Stream::start(command, "");
    let has = |line: &str, wanted: &str| ask(&mirror, line) == wanted;
    wait_until(|| has("get m/1 --print-value-only", "before"), "the mirror has what was there");
    ask(&three.endpoints[0], "put m/2 after");
    ask(&three.endpoints[0], "del m/1");
    wait_until(|| has("get m/ --prefix", "m/2\nafter"), "the mirror has what happens");
}

/// What `etcdctl` saves is a snapshot of ours: `quorate` reads it, `etcdctl` does not.
#[test]
fn snapshots_are_saved() {
    let Some(three) = Three::start("snapshot") else { return };
    ask(&three.all(), "put a 1");
    let file = three.place.path.join("saved.db");
    let file = file.to_str().unwrap();
    let told = ask(&three.endpoints[1], &format!("snapshot save {file}"));
    assert_eq!(told, format!("Snapshot saved at {file}"));
    let shown: Value =
        serde_json::from_str(&run_quorate(&["snapshot", "status", file, "-w", "json"])).unwrap();
    assert_eq!(shown["revision"], 2, "{shown}");
    let error = refused(&three.endpoints[0], &format!("snapshot status {file}"));
    assert!(error.contains("invalid database"), "{error}");
}

/// A full server says so, serves reads and deletes, and goes on when it was made room.
#[test]
fn what_is_full_can_be_emptied() {
    if !installed("etcdctl") {
        return;
    }
    let place = Place::new("operators-full");
    fs::create_dir_all(&place.path).unwrap();
    let mut command = quorate();
    command.args(["server", "--quota-backend-bytes", "100000"]);
    let client = alone(&mut command, &place);
    let _running = Running::start(&mut command, &place.path.join("full.log"));
    let endpoint = address(&client);
    let put = |key: usize| {
        let mut command = etcdctl(&endpoint);
        command.args(["put", &format!("k{key}"), &"a".repeat(20_000)]);
        command.output().unwrap()
    };
    let serves = || etcdctl(&endpoint).args(["get", "x"]).output().unwrap().status.success();
    wait_until(serves, "the server serves");
    let refusal = (0..20).map(put).find(|put| !put.status.success()).expect("there is a limit");
    let error = String::from_utf8_lossy(&refusal.stderr).into_owned();
    assert!(error.contains("etcdserver: mvcc: database space exceeded"), "{error}");
    let alarm = ask(&endpoint, "alarm list");
    assert!(alarm.starts_with("memberID:") && alarm.ends_with("alarm:NOSPACE"), "{alarm}");

    assert_eq!(ask(&endpoint, "get k0 --keys-only"), "k0");
    ask(&endpoint, "del k --prefix");
    let status: Value = serde_json::from_str(&ask(&endpoint, "endpoint status -w json")).unwrap();
    let revision = &status[0]["Status"]["header"]["revision"];
    ask(&endpoint, &format!("compaction --physical {revision}"));
    ask(&endpoint, "defrag");
    assert!(ask(&endpoint, "alarm disarm").contains("alarm:NOSPACE"));
    assert_eq!(ask(&endpoint, "alarm list"), "");
    assert!(put(0).status.success());
}

/// What is not there yet says so.
#[test]
fn what_is_missing_is_told() {
    let Some(three) = Three::start("missing") else { return };
    for line in ["user list", "role list", "auth enable", "user add x:y"] {
        let error = refused(&three.endpoints[0], line);
        let wanted = "code = Unimplemented desc = etcdserver: authentication is not supported";
        assert!(error.contains(wanted), "{line}: {error}");
    }
    // Endpoints may be written as URLs.
    let url = format!("http://{}", three.endpoints[0]);
    ask(&url, "put a 1");
    for line in ["get a", "endpoint status", "endpoint hashkv", "defrag", "endpoint health"] {
        ask(&url, line);
    }
}
