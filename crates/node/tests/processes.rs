//! Members in separate processes: killed, suspended, disconnected from each other.
//!
//! Each process is this test binary, started to run one member; it reads commands from its
//! standard input and replies on its standard output.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue panics")]

mod support;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use quorate::storage::{FileDisk, StoreConfig};
use quorate::testkit::ports::free_ports;
use quorate::{
    DirectoryStorage, KvCommand, KvReply, MemberInfo, MemoryKv, Node, NodeConfig, TcpConfig,
    TcpTransport,
};
use quorate_core::MemberId;
use quorate_sim::checkers::linearizable::{Call, Seen};
use rustix::process::{Pid, Signal, kill_process};
use support::{CLUSTER, Clients, Outcome, Service, TICK, in_time, wait_for};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;

/// Where a member's process finds what it is to run.
const MEMBER: &str = "QUORATE_TEST_MEMBER";

/// Not a test: the member processes run it. Without its variable it does nothing.
#[test]
fn member_process() {
    let Ok(spec) = std::env::var(MEMBER) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let ended = runtime.block_on(run_member(&spec));
    if let Err(why) = ended {
        say(&format!("0 ended {why}"));
        std::process::exit(3);
    }
    std::process::exit(0);
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// `ID|DIRECTORY|LISTEN|first|1=ADDRESS,2=ADDRESS` or `…|join|INDEX`
async fn run_member(spec: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let parts: Vec<&str> = spec.split('|').collect();
    let [id, directory, listen, how, rest] = parts[..] else { return Err("bad spec".into()) };
    let id: u64 = id.parse()?;
    let config = match how {
        "first" => {
            let members = rest.split(',').filter_map(|one| one.split_once('='));
            let members = members.map(|(id, address)| (id.parse::<u64>().unwrap(), address));
            NodeConfig::first(CLUSTER, id, members)
        }
        _ => NodeConfig::join(CLUSTER, id, rest.parse()?),
    };
    let transport = TcpTransport::bind(TcpConfig::new(listen.parse()?)).await?;
    let store = StoreConfig::new().segment_bytes(256 << 10);
    let storage = DirectoryStorage::with_disk(FileDisk::open(directory)?, store);
    let machine = MemoryKv::default();
    let node = Node::start(config.with_tick(TICK), storage, machine, transport).await?;
    say("0 started");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line?,
            why = node.wait_stopped() => return Err(why.into()),
        };
        let Some(line) = line else { return Ok(()) };
        let node = node.clone();
        tokio::spawn(async move {
            let (number, words) = line.split_once(' ').unwrap_or((&line, ""));
            say(&format!("{number} {}", answer(&node, words).await));
        });
    }
}

async fn answer(node: &Node, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let failed = |why: quorate::RequestError| why.to_string();
    let run = async |command: KvCommand| match node.propose(command.encode()).await {
        Ok(reply) => {
            let done = KvReply::decode(&reply.bytes).is_some_and(|reply| reply.done);
            format!("done {} {done}", reply.index)
        }
        Err(why) => why.to_string(),
    };
    let bytes = |word: &str| Bytes::copy_from_slice(word.as_bytes());
    match words[..] {
        ["put", key, value] => run(KvCommand::Put { key: bytes(key), value: bytes(value) }).await,
        ["create", key, value] => {
            let (key, value) = (bytes(key), bytes(value));
            run(KvCommand::CompareAndSet { key, expected: None, value }).await
        }
        ["get", key] => match node.read(bytes(key)).await {
            Ok(reply) => match KvReply::decode(&reply).and_then(|reply| reply.value) {
                Some(value) => format!("value {}", String::from_utf8_lossy(&value)),
                None => "none".into(),
            },
            Err(why) => why.to_string(),
        },
        ["add", id, address] => {
            let id = MemberId(id.parse().unwrap());
            let added = node.add_learner(id, MemberInfo::address(address)).await;
            added.map_or_else(failed, |id| format!("added {}", id.index))
        }
        ["goal", voters] => {
            let voters = voters.split(',').map(|id| MemberId(id.parse().unwrap()));
            let ended = node.set_goal(voters, [], []).await;
            ended.map_or_else(failed, |ended| format!("ended {:?}", ended.end))
        }
        ["leader"] => node.leader().map_or("none".into(), |leader| leader.0.to_string()),
        ["voters"] => node.membership().voters().to_string(),
        _ => format!("not understood: {line}"),
    }
}

/// A member's process.
#[derive(Clone)]
struct Process {
    inner: Arc<Inner>,
}

struct Inner {
    child: Mutex<Child>,
    input: tokio::sync::Mutex<ChildStdin>,
    open: Arc<Mutex<BTreeMap<u64, oneshot::Sender<String>>>>,
    last_output: Arc<Mutex<String>>,
    /// Whether everything that the process wrote has been read.
    output_ended: Arc<AtomicBool>,
    next: AtomicU64,
    pid: Pid,
}

impl Process {
    fn spawn(spec: &str, namespace: Option<&str>) -> Self {
        let own = std::env::current_exe().unwrap();
        let mut command = match namespace {
            None => Command::new(own),
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(own);
                command
            }
        };
        command.args(["--exact", "member_process", "--nocapture"]).env(MEMBER, spec);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
        let input = tokio::sync::Mutex::new(child.stdin.take().unwrap());
        let output = child.stdout.take().unwrap();
        let open: Arc<Mutex<BTreeMap<u64, oneshot::Sender<String>>>> = Arc::default();
        let last_output: Arc<Mutex<String>> = Arc::default();
        let output_ended: Arc<AtomicBool> = Arc::default();
        let (waiting, words) = (Arc::clone(&open), Arc::clone(&last_output));
        let ended = Arc::clone(&output_ended);
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let Some((number, answer)) = line.split_once(' ') else { continue };
                match number.parse() {
                    Ok(0) => *words.lock().unwrap() = answer.to_owned(),
                    Ok(number) => {
                        if let Some(reply) = waiting.lock().unwrap().remove(&number) {
                            let _ = reply.send(answer.to_owned());
                        }
                    }
                    Err(_) => {} // The test harness talks, too.
                }
            }
            waiting.lock().unwrap().clear();
            ended.store(true, Ordering::Release);
        });
        let (child, next) = (Mutex::new(child), AtomicU64::new(1));
        Self { inner: Arc::new(Inner { child, input, open, last_output, output_ended, next, pid }) }
    }

    /// None when the process is gone before it answers.
    async fn ask(&self, line: &str) -> Option<String> {
        let number = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        self.inner.open.lock().unwrap().insert(number, reply);
        let mut input = self.inner.input.lock().await;
        if input.write_all(format!("{number} {line}\n").as_bytes()).await.is_err() {
            return None;
        }
        drop(input);
        answer.await.ok()
    }

    async fn ask_until(&self, line: &str, good: impl Fn(&str) -> bool) -> String {
        wait_for(line, async || self.ask(line).await.filter(|answer| good(answer))).await
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.inner.pid, signal).unwrap();
    }

    async fn kill(&self) {
        self.signal(Signal::KILL);
        self.exited().await;
    }

    /// Its exit code. What it wrote before it ended has been read when this returns.
    async fn exited(&self) -> i32 {
        wait_for("its output ends", async || {
            self.inner.output_ended.load(Ordering::Acquire).then_some(())
        })
        .await;
        let status = wait_for("the process ends", async || {
            self.inner.child.lock().unwrap().try_wait().unwrap()
        });
        status.await.code().unwrap_or(-1)
    }

    fn last_output(&self) -> String {
        self.inner.last_output.lock().unwrap().clone()
    }
}

impl Service for Process {
    async fn call(&self, call: Call) -> Outcome {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap().replace(' ', "_");
        let line = match &call {
            Call::Put(key, value) => format!("put {} {}", text(key), text(value)),
            Call::CompareAndSet { key, new, .. } => format!("create {} {}", text(key), text(new)),
            other => format!("get {}", text(&other.keys()[0])),
        };
        let unknown = |why: &str| Outcome::Unknown(why.to_owned());
        let answered = tokio::time::timeout(Duration::from_secs(10), self.ask(&line)).await;
        let Ok(Some(answer)) = answered else { return unknown("no answer") };
        let words: Vec<&str> = answer.split(' ').collect();
        match words[..] {
            ["done", index, done] => {
                let swap = matches!(call, Call::CompareAndSet { .. });
                let seen = if swap { Seen::Swapped(done == "true") } else { Seen::Done };
                Outcome::Done(seen, index.parse().ok())
            }
            ["value", value] => Outcome::Done(Seen::Value(Some(value.to_owned().into())), None),
            ["none"] => Outcome::Done(Seen::Value(None), None),
            ["refused:", ..] => Outcome::Refused(answer),
            _ => Outcome::Unknown(answer),
        }
    }
}

struct Cluster {
    directory: tempfile::TempDir,
    addresses: BTreeMap<u64, SocketAddr>,
    processes: BTreeMap<u64, Process>,
}

impl Cluster {
    fn start(members: u64) -> Self {
        let mut cluster = Self::new(members);
        for id in 1..=members {
            cluster.run(id);
        }
        cluster
    }

    fn new(members: u64) -> Self {
        let ports = free_ports(usize::try_from(members).unwrap()).unwrap();
        let addresses = ports.into_iter().map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let addresses: BTreeMap<u64, SocketAddr> = (1..).zip(addresses).collect();
        let directory = tempfile::tempdir().unwrap();
        Self { directory, addresses, processes: BTreeMap::new() }
    }

    fn path(&self, id: u64) -> PathBuf {
        self.directory.path().join(id.to_string())
    }

    fn run(&mut self, id: u64) -> Process {
        let process = Process::spawn(&first(id, &self.path(id), &self.addresses), None);
        self.processes.insert(id, process.clone());
        process
    }

    async fn leader(&self) -> u64 {
        let (_, any) = self.processes.iter().next().unwrap();
        let answer = any.ask_until("leader", |answer| answer != "none").await;
        answer.parse().unwrap()
    }
}

fn first(id: u64, path: &Path, addresses: &BTreeMap<u64, SocketAddr>) -> String {
    let members: Vec<String> = addresses.iter().map(|(id, at)| format!("{id}={at}")).collect();
    format!("{id}|{}|{}|first|{}", path.display(), addresses[&id], members.join(","))
}

fn is_done(answer: &str) -> bool {
    answer.starts_with("done")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_restart_and_all_replies_are_linearizable() {
    let mut cluster = Cluster::start(3);
    cluster.processes[&1].ask_until("put ready 1", is_done).await;
    let clients = Clients::start(4, cluster.processes.values().cloned().collect());
    for round in 0..3 {
        clients.wait_for_writes(100).await;
        // The leader first, then any member.
        let id = if round == 0 { cluster.leader().await } else { round };
        cluster.processes[&id].kill().await;
        let others = cluster.processes.iter().filter(|(other, _)| **other != id);
        clients.set_services(others.map(|(_, process)| process.clone()).collect());
        clients.wait_for_writes(100).await;
        cluster.run(id);
        clients.set_services(cluster.processes.values().cloned().collect());
    }
    clients.wait_for_writes(100).await;
    let results = clients.check_results().await;
    assert!(results.done >= 700, "{} done", results.done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_leader_is_replaced_and_returns_nothing_stale() {
    let cluster = Cluster::start(3);
    cluster.processes[&1].ask_until("put key before", is_done).await;
    let leader = cluster.leader().await;
    let stopped = cluster.processes[&leader].clone();
    stopped.signal(Signal::STOP);
    let other = cluster.processes.iter().find(|(id, _)| **id != leader).unwrap().1;
    other.ask_until("put key after", is_done).await;
    // It replies when it is resumed; the request came while it was suspended.
    let asked = stopped.clone();
    let read = tokio::spawn(async move { asked.ask("get key").await });
    let clients = Clients::start(3, vec![other.clone()]);
    clients.wait_for_writes(50).await;
    stopped.signal(Signal::CONT);
    let answer = in_time("the old leader's answer", read).await.unwrap().unwrap();
    assert_ne!(answer, "value before");
    clients.set_services(cluster.processes.values().cloned().collect());
    clients.wait_for_writes(100).await;
    clients.check_results().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_processes_survive_two_and_seven_three() {
    for members in [5, 7] {
        let mut cluster = Cluster::start(members);
        cluster.processes[&members].ask_until("put key 1", is_done).await;
        for _ in 0..members / 2 {
            let leader = cluster.leader().await;
            cluster.processes[&leader].kill().await;
            cluster.processes.remove(&leader);
            let any = cluster.processes.values().next().unwrap();
            any.ask_until("put key 2", is_done).await;
        }
        let any = cluster.processes.values().next().unwrap();
        assert_eq!(any.ask_until("get key", |answer| answer.starts_with("value")).await, "value 2");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_the_member_with_the_reason_and_not_the_cluster() {
    let mut cluster = Cluster::new(3);
    let Some(_small) = SmallDisk::mount(&cluster.path(3)) else {
        println!("skipped: a_full_disk: may not mount a small file system");
        return;
    };
    let processes: Vec<Process> = (1..=3).map(|id| cluster.run(id)).collect();
    processes[0].ask_until("put ready 1", is_done).await;
    let writer = processes[0].clone();
    let line = format!("put big {}", "x".repeat(8 << 10));
    let writing = tokio::spawn(async move { while writer.ask(&line).await.is_some() {} });
    assert_eq!(processes[2].exited().await, 3);
    writing.abort();
    let words = processes[2].last_output();
    assert!(words.contains("disk failed") && words.contains("wal"), "{words}");
    processes[1].ask_until("put still here", is_done).await;
}

/// A file system of a few megabytes, in memory, at the place of a directory.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let options = "size=2m,mode=0700";
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Self(path.to_path_buf()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_cut_off_from_the_network_is_replaced_and_joins_again() {
    let Some(network) = Network::new(3) else {
        println!("skipped: a_leader_cut_off: may not make network namespaces");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let addresses: BTreeMap<u64, SocketAddr> =
        (1..=3).map(|id| (id, SocketAddr::from(([10, 213, 57, id as u8], 7001)))).collect();
    let mut cluster = Cluster { directory, addresses, processes: BTreeMap::new() };
    for id in 1..=3 {
        let spec = first(id, &cluster.path(id), &cluster.addresses);
        cluster.processes.insert(id, Process::spawn(&spec, Some(&network.name(id))));
    }
    cluster.processes[&1].ask_until("put ready 1", is_done).await;
    let clients = Clients::start(4, cluster.processes.values().cloned().collect());
    for _ in 0..2 {
        clients.wait_for_writes(50).await;
        let leader = cluster.leader().await;
        network.set_link(leader, "down");
        let others = cluster.processes.iter().filter(|(id, _)| **id != leader);
        clients.set_services(others.map(|(_, process)| process.clone()).collect());
        clients.wait_for_writes(100).await;
        network.set_link(leader, "up");
        clients.set_services(cluster.processes.values().cloned().collect());
        let back = &cluster.processes[&leader];
        back.ask_until("get ready", |answer| answer == "value 1").await;
    }
    clients.wait_for_writes(50).await;
    clients.check_results().await;
}

/// A bridge, and a namespace on it for each member.
struct Network {
    prefix: String,
    members: u64,
}

impl Network {
    fn new(members: u64) -> Option<Self> {
        let network = Self { prefix: format!("q{}", std::process::id() % 100_000), members };
        let bridge = network.bridge();
        let mut made = ip(&["link", "add", &bridge, "type", "bridge"]);
        made &= ip(&["link", "set", &bridge, "up"]);
        for id in 1..=members {
            let (name, inner, outer) = (network.name(id), network.inner(id), network.outer(id));
            let address = format!("10.213.57.{id}/24");
            made &= ip(&["netns", "add", &name])
                && ip(&["link", "add", &outer, "type", "veth", "peer", "name", &inner])
                && ip(&["link", "set", &inner, "netns", &name])
                && ip(&["link", "set", &outer, "master", &bridge])
                && ip(&["link", "set", &outer, "up"])
                && ip(&["-n", &name, "address", "add", &address, "dev", &inner])
                && ip(&["-n", &name, "link", "set", &inner, "up"])
                && ip(&["-n", &name, "link", "set", "lo", "up"]);
        }
        // What was made goes when it is dropped, also if it is only a part.
        made.then_some(network)
    }

    fn bridge(&self) -> String {
        format!("{}b", self.prefix)
    }

    fn name(&self, id: u64) -> String {
        format!("{}-{id}", self.prefix)
    }

    fn inner(&self, id: u64) -> String {
        format!("{}i{id}", self.prefix)
    }

    fn outer(&self, id: u64) -> String {
        format!("{}o{id}", self.prefix)
    }

    fn set_link(&self, id: u64, state: &str) {
        assert!(ip(&["link", "set", &self.outer(id), state]));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for id in 1..=self.members {
            ip(&["netns", "delete", &self.name(id)]);
            ip(&["link", "delete", &self.outer(id)]);
        }
        ip(&["link", "delete", &self.bridge()]);
    }
}

fn ip(args: &[&str]) -> bool {
    let output = std::process::Command::new("ip").args(args).output();
    output.is_ok_and(|output| output.status.success())
}
