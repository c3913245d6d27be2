//! Upgrades, downgrades and mixes of two real programs under load: the one of this build, and one
//! that knows a made-up command of the next cluster version. No member may ever hold other data
//! than the rest, and no acknowledged write may be lost.
//!
//! `scripts/upgrade.sh` builds the second program and runs this. Without the variable
//! `QUORATE_NEXT`, which names it, the test says that it is skipped.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::{HashKvRequest, PutRequest};
use support::server::{TestServer, json, refused, start_all, succeed};
use support::{TestDirectory, TestProcess, wait_for_text, wait_until};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

/// Writers that put rising numbers to keys of their own, at any server that answers.
struct Writers {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    /// The newest number that was acknowledged, by key.
    acknowledged: Arc<Mutex<BTreeMap<String, u64>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start(servers: &[&TestServer]) -> Self {
        let urls: Vec<String> = servers.iter().map(|server| server.client_url.clone()).collect();
        let mut writers = Self {
            stop: Arc::default(),
            done: Arc::default(),
            acknowledged: Arc::default(),
            tasks: Vec::new(),
        };
        for writer in 0..WRITERS {
            let (stop, done) = (Arc::clone(&writers.stop), Arc::clone(&writers.done));
            let (acknowledged, urls) = (Arc::clone(&writers.acknowledged), urls.clone());
            writers.tasks.push(tokio::spawn(async move {
                let key = format!("key{writer}");
                let mut channels: Vec<Channel> = urls.iter().map(|url| lazy_channel(url)).collect();
                for number in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let place = (writer + number as usize) % channels.len();
                    let request = PutRequest {
                        key: key.clone().into(),
                        value: number.to_string().into(),
                        ..Default::default()
                    };
                    let put = KvClient::new(channels[place].clone()).put(request).await;
                    if put.is_ok() {
                        done.fetch_add(1, Ordering::Relaxed);
                        acknowledged.lock().unwrap().insert(key.clone(), number);
                    } else {
                        channels[place] = lazy_channel(&urls[place]);
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }));
        }
        writers
    }

    /// Waits until so many more writes were acknowledged.
    async fn wait_more(&self, count: u64) {
        let wanted = self.done.load(Ordering::Relaxed) + count;
        wait("writes go on", async || self.done.load(Ordering::Relaxed) >= wanted).await;
    }

    /// Stops, and checks that a server has every acknowledged write or a later one of its key.
    async fn judge(self, server: &TestServer) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        let acknowledged = self.acknowledged.lock().unwrap().clone();
        for (key, number) in acknowledged {
            let found: u64 = server.value(&key).await.parse().unwrap();
            assert!(found >= number, "{key}: {number} was acknowledged, {found} is there");
        }
        self.done.load(Ordering::Relaxed)
    }
}

fn lazy_channel(url: &str) -> Channel {
    let endpoint = Endpoint::from_shared(url.to_owned()).unwrap();
    endpoint.timeout(Duration::from_secs(10)).connect_lazy()
}

/// As `wait_until`, for conditions that need a server.
async fn wait(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(support::POLL_INTERVAL).await;
        }
    };
    let waited = tokio::time::timeout(support::TEST_TIMEOUT, waiting).await;
    assert!(waited.is_ok(), "timed out: {what}");
}

/// The hash of the data up to a revision that all servers have is the same on all of them.
async fn compare_hashes(servers: &[&TestServer]) {
    let revision = servers[0].revision().await;
    let mut hashes = Vec::new();
    for server in servers {
        // A read that waits for what the first server showed.
        wait("a server catches up", async || server.revision().await >= revision).await;
        let mut client = MaintenanceClient::new(server.channel().await);
        let reply = client.hash_kv(HashKvRequest { revision }).await.unwrap().into_inner();
        hashes.push((reply.hash, reply.compact_revision));
    }
    assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]), "at {revision}: {hashes:?}");
}

/// The text of the error of a put, if it is refused.
async fn try_put(server: &TestServer, key: &str, value: &str) -> Result<(), String> {
    let (key, value) = (key.to_owned().into(), value.to_owned().into());
    let request = PutRequest { key, value, ..Default::default() };
    let put = KvClient::new(server.channel().await).put(request).await;
    put.map(|_| ()).map_err(|status| status.message().to_owned())
}

/// One cluster whose members change their programs.
struct Rolling {
    servers: [TestServer; 3],
    processes: Vec<TestProcess>,
    writers: Writers,
    next: PathBuf,
}

impl Rolling {
    fn all(&self) -> Vec<&TestServer> {
        self.servers.iter().collect()
    }

    fn set_program(&mut self, place: usize, next: bool) {
        self.servers[place].other_program = next.then(|| self.next.clone());
    }

    /// Restarts a server with the other program, and waits until it has caught up.
    async fn exchange(&mut self, place: usize, next: bool, signal: &str) {
        self.processes[place].signal(signal);
        self.processes[place].wait_exit("the replaced program");
        self.set_program(place, next);
        self.processes[place] = self.servers[place].start_new(&self.all());
        self.servers[place].wait_serving();
        self.writers.wait_more(WRITES_PER_STEP).await;
        compare_hashes(&self.all()).await;
    }

    fn wait_cluster_version(&self, version: u64, downgrading: bool) {
        let servers = self.all();
        let reached = || {
            let status = json(&servers, &["status"]);
            status["clusterVersion"] == version && status["downgrading"] == downgrading
        };
        wait_until(reached, &format!("the cluster version is {version}"));
    }

    /// A put that only the next program knows, through every server.
    async fn new_command_works(&self, round: &str) {
        for server in &self.servers {
            let key = format!("reversed/{round}/{}", server.name);
            // A server may not have heard of the version yet.
            wait("the new command", async || try_put(server, &key, "abc").await.is_ok()).await;
            for reader in &self.servers {
                assert_eq!(reader.value(&key).await, "cba", "{key} at {}", reader.name);
            }
        }
        compare_hashes(&self.all()).await;
    }

    /// It is refused by a server that knows it, and unknown to one that does not.
    async fn new_command_is_refused(&self, place: usize) {
        let refusal = try_put(&self.servers[place], "reversed/early", "abc").await.unwrap_err();
        assert!(refusal.contains("needs cluster version 2; it is 1"), "{refusal}");
    }

    /// The old program does not run in a cluster of the next version, and loses nothing.
    async fn old_program_refuses(&mut self, directory: &TestDirectory) {
        self.processes[0].signal("TERM");
        self.processes[0].wait_exit("the replaced program");
        self.set_program(0, false);
        let mut old = self.servers[0].start_new(&self.all());
        assert_ne!(old.wait_exit("the old program"), Some(0));
        let log = fs::read_to_string(&self.servers[0].log).unwrap();
        let reason = "cluster version 2 is needed, this program supports 1 to 1";
        assert!(log.contains(reason), "{log}");
        self.set_program(0, true);
        self.processes[0] = self.servers[0].start_new(&self.all());
        self.servers[0].wait_serving();
        self.writers.wait_more(WRITES_PER_STEP).await;
        compare_hashes(&self.all()).await;
        // Nor does it join.
        let [joiner] = TestServer::all(directory, ["d"]);
        let joiner = TestServer { token: self.servers[0].token.clone(), ..joiner };
        let added = json(&self.all(), &["member", "add", &joiner.pair(), "--learner"]);
        let id = added["member"]["ID"].as_str().unwrap();
        let mut members = self.all();
        members.push(&joiner);
        let mut process = joiner.start_joining(&members);
        assert_ne!(process.wait_exit("the old program"), Some(0));
        wait_for_text(&joiner.log, "cannot join: cluster version 2 is needed");
        succeed(&self.all(), &["member", "remove", id]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_are_upgraded_downgraded_and_mixed_under_load() {
    let Some(next) = std::env::var_os("QUORATE_NEXT").map(PathBuf::from) else {
        eprintln!(
            "skipped: programs_are_upgraded_downgraded_and_mixed_under_load: QUORATE_NEXT does \
             not name the second program; run scripts/upgrade.sh"
        );
        return;
    };
    let directory = TestDirectory::new("upgrade");
    let servers = TestServer::all(&directory, ["a", "b", "c"]);
    let processes = start_all(&servers.each_ref());
    let writers = Writers::start(&servers.each_ref());
    let mut cluster = Rolling { servers, processes, writers, next };
    cluster.writers.wait_more(WRITES_PER_STEP).await;
    cluster.wait_cluster_version(1, false);

    // Upgrade: the command of the next version works only when the last program is exchanged.
    for place in 0..2 {
        cluster.exchange(place, true, "TERM").await;
        cluster.new_command_is_refused(place).await;
    }
    cluster.exchange(2, true, "TERM").await;
    cluster.wait_cluster_version(2, false);
    cluster.new_command_works("first").await;
    cluster.old_program_refuses(&directory).await;

    // Downgrade: one program at a time, when its disk is ready for it.
    let text = refused(&cluster.all(), &["downgrade", "enable", "2"]);
    assert!(text.contains("not lower than the cluster version 2"), "{text}");
    succeed(&cluster.all(), &["downgrade", "enable", "1"]);
    cluster.wait_cluster_version(1, true);
    for place in 0..3 {
        cluster.new_command_is_refused(2).await;
        let servers = cluster.all();
        let ready = || {
            let status = json(&servers, &["status"]);
            let members = status["members"].as_array().unwrap().clone();
            members.iter().all(|member| member["storageVersion"] == "1")
        };
        wait_until(ready, "the older program can read the disks");
        cluster.exchange(place, false, "TERM").await;
    }
    cluster.wait_cluster_version(1, false);

    // Upgrade again, without graceful stops.
    for place in 0..3 {
        cluster.exchange(place, true, "KILL").await;
    }
    cluster.wait_cluster_version(2, false);
    cluster.new_command_works("second").await;
    for server in &cluster.servers {
        assert_eq!(server.value("reversed/first/a").await, "cba");
        assert_eq!(server.value("reversed/early").await, "");
    }
    let Rolling { servers, writers, .. } = cluster;
    let done = writers.judge(&servers[1]).await;
    println!("{done} writes were acknowledged while programs were exchanged");
}

const WRITERS: usize = 4;
const WRITES_PER_STEP: u64 = 50;
