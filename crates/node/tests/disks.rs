//! What a member does when its disk is slow, stuck or broken, and when its machine panics.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue panics")]

mod support;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use quorate::metrics::NodeObserver;
use quorate::storage::{SnapshotSink, SnapshotSource, Storage, StorageError, StoredState};
use quorate::{
    CommandReply, EntryId, Index, Machine, MachineError, MemoryKv, MemoryNetwork, MemoryStorage,
    Node, NodeConfig, NodeError, RequestError, RequestRefused, SnapshotChunks, StopReason,
};
use quorate_core::{Boot, Entries, Event, Save, SnapshotMeta};
use quorate_storage::StoreIdentity;
use support::{CLUSTER, TICK, in_time, put, until_done, wait_for};
use tokio::task::JoinHandle;

/// The faults of a disk, from now on.
#[derive(Default)]
struct DiskFaults {
    sync_millis: AtomicU64,
    stuck: Mutex<bool>,
    freed: Condvar,
    broken: AtomicBool,
    panics: AtomicBool,
}

impl DiskFaults {
    fn set_stuck(&self, stuck: bool) {
        *self.stuck.lock().unwrap() = stuck;
        self.freed.notify_all();
    }
}

struct FaultyStorage {
    inner: MemoryStorage,
    faults: Arc<DiskFaults>,
}

impl Storage for FaultyStorage {
    fn open(&mut self, mark: StoreIdentity, first: &Boot) -> Result<StoredState, StorageError> {
        self.inner.open(mark, first)
    }

    fn write(&mut self, save: &Save) -> Result<(), StorageError> {
        self.inner.write(save)
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        let millis = self.faults.sync_millis.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(millis));
        let mut stuck = self.faults.stuck.lock().unwrap();
        while *stuck {
            stuck = self.faults.freed.wait(stuck).unwrap();
        }
        assert!(!self.faults.panics.load(Ordering::Relaxed), "the test wants it");
        if self.faults.broken.load(Ordering::Relaxed) {
            return Err("the test broke it".into());
        }
        self.inner.sync()
    }

    fn load(&mut self, range: Range<Index>, bytes_max: u64) -> Result<Entries, StorageError> {
        self.inner.load(range, bytes_max)
    }

    fn trim(&mut self, index: Index) -> Result<(), StorageError> {
        self.inner.trim(index)
    }

    fn begin_snapshot(
        &mut self,
        meta: SnapshotMeta,
    ) -> Result<Box<dyn SnapshotSink>, StorageError> {
        self.inner.begin_snapshot(meta)
    }

    fn adopt_snapshot(&mut self, id: EntryId) -> Result<(), StorageError> {
        self.inner.adopt_snapshot(id)
    }

    fn open_snapshot(&mut self, id: EntryId) -> Result<Box<dyn SnapshotSource>, StorageError> {
        self.inner.open_snapshot(id)
    }

    fn release_snapshot(&mut self, id: EntryId) {
        self.inner.release_snapshot(id);
    }

    fn close(&mut self) -> Result<(), StorageError> {
        self.inner.close()
    }
}

struct Members {
    nodes: Vec<Node>,
    troubles: Vec<Arc<DiskFaults>>,
}

impl Members {
    async fn start<M: Machine + Send + 'static>(machine: impl Fn() -> M) -> Self {
        let network = MemoryNetwork::new();
        let (mut nodes, mut troubles) = (Vec::new(), Vec::new());
        for id in 1..=3 {
            let faults = Arc::new(DiskFaults::default());
            let storage =
                FaultyStorage { inner: MemoryStorage::new(), faults: Arc::clone(&faults) };
            let mut config = NodeConfig::first(CLUSTER, id, [(1, ""), (2, ""), (3, "")]);
            config.mailbox_requests = 32;
            // These disks are slow or hang for less time than a leader waits before it hands over.
            config.raft.stall_timeouts = 1_000;
            let config = config.with_tick(TICK);
            nodes.push(Node::start(config, storage, machine(), network.transport()).await.unwrap());
            troubles.push(faults);
        }
        Self { nodes, troubles }
    }

    fn set_stuck(&self, stuck: bool) {
        self.troubles.iter().for_each(|faults| faults.set_stuck(stuck));
    }

    async fn leader(&self) -> usize {
        wait_for("a leader", async || self.nodes.iter().position(Node::is_leader)).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_a_slow_disk_keeps_sending_heartbeats() {
    let members = Members::start(MemoryKv::default).await;
    let leader = members.leader().await;
    let node = &members.nodes[leader];
    until_done("a write", async || node.propose(put("a", "1")).await).await;
    let term = node.term();
    // Every sync takes longer than the longest election timeout.
    let sync = TICK * 2 * 10 * 2;
    members.troubles[leader].sync_millis.store(sync.as_millis() as u64, Ordering::Relaxed);
    for number in 0..3 {
        // Done as soon as the other two have it.
        let command = put("a", &number.to_string());
        until_done("a write", async || node.propose(command.clone()).await).await;
    }
    tokio::time::sleep(sync).await;
    assert_eq!((node.term(), node.is_leader()), (term, true));
}

type WriteTask = JoinHandle<Result<CommandReply, RequestError>>;

fn write_at_once(node: &Node, count: u32) -> Vec<WriteTask> {
    let write = |number: u32| {
        let node = node.clone();
        tokio::spawn(async move { node.propose(put("a", &number.to_string())).await })
    };
    (0..count).map(write).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_disk_makes_clients_wait_within_bounds() {
    let members = Members::start(MemoryKv::default).await;
    let leader = members.leader().await;
    let node = members.nodes[leader].clone();
    until_done("a write", async || node.propose(put("a", "1")).await).await;
    members.set_stuck(true);
    let tasks = write_at_once(&node, 2_000);
    // The member accepts a few requests; further callers wait (backpressure).
    wait_for("saves wait", async || {
        let status = node.status().await.unwrap();
        (status.saves_waiting >= 16).then_some(())
    })
    .await;
    let open = node.status().await.unwrap().open_requests;
    assert!(open < 2_000, "{open} requests were taken");
    assert!(node.metrics().saves_waiting <= 64);
    members.set_stuck(false);
    for task in tasks {
        // Requests that waited too long have failed; none is forgotten.
        let _ = in_time("an answer", task).await.unwrap();
    }
    let node = members.nodes[members.leader().await].clone();
    until_done("a write", async || node.propose(put("a", "end")).await).await;
}

/// They wait for the batch in progress, as the leader's own requests do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_commands_make_few_batches_while_the_leader_saves() {
    let members = Members::start(MemoryKv::default).await;
    let leader = members.leader().await;
    let (node, follower) = (&members.nodes[leader], &members.nodes[(leader + 1) % 3]);
    until_done("a write", async || follower.propose(put("a", "1")).await).await;
    members.troubles[leader].set_stuck(true);
    let mut tasks = Vec::new();
    for number in 1..=400 {
        let before = node.metrics().received;
        tasks.extend(write_at_once(follower, 1));
        // One delivery for each command.
        wait_for("the command has arrived", async || {
            (node.metrics().received > before).then_some(())
        })
        .await;
        let waiting = node.metrics().saves_waiting;
        assert!(waiting < 200, "{number} commands made {waiting} saves");
    }
    members.troubles[leader].set_stuck(false);
    for task in tasks {
        in_time("an answer", task).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_end_although_the_disks_never_return() {
    let members = Members::start(MemoryKv::default).await;
    let leader = members.leader().await;
    let node = members.nodes[leader].clone();
    until_done("a write", async || node.propose(put("a", "1")).await).await;
    members.set_stuck(true);
    // More than the member accepts and its queue holds.
    let tasks = write_at_once(&node, 100);
    for task in tasks {
        assert!(in_time("an answer", task).await.unwrap().is_err());
    }
    members.set_stuck(false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_disk_stops_its_member_with_the_reason() {
    let members = Members::start(MemoryKv::default).await;
    let leader = members.leader().await;
    let node = members.nodes[leader].clone();
    until_done("a write", async || node.propose(put("a", "1")).await).await;
    members.troubles[leader].broken.store(true, Ordering::Relaxed);
    let _ = node.propose(put("a", "2")).await;
    let ended = in_time("the end", node.wait_stopped()).await;
    assert!(matches!(&ended, StopReason::Disk(why) if why.to_string() == "the test broke it"));
    assert_eq!(ended.to_string(), "the disk failed: the test broke it");
    let reason = "the disk failed: the test broke it".to_owned();
    let failed = RequestError::Refused(RequestRefused::MemberFailed { reason });
    assert_eq!(node.propose(put("a", "3")).await.unwrap_err(), failed);
    assert_eq!(node.status().await.unwrap_err(), failed);
    let other = &members.nodes[(leader + 1) % 3];
    until_done("a write", async || other.propose(put("a", "4")).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storage_that_panics_stops_its_member_and_its_watches() {
    let members = Members::start(MemoryKv::default).await;
    let node = members.nodes[members.leader().await].clone();
    until_done("a write", async || node.propose(put("a", "1")).await).await;
    let mut watch = node.watch_membership();
    members.troubles[node.id().0 as usize - 1].panics.store(true, Ordering::Relaxed);
    let _ = node.propose(put("a", "2")).await;
    let ended = in_time("the end", node.wait_stopped()).await;
    assert_eq!(ended.to_string(), "the disk failed: the storage panicked");
    assert_eq!(node.leader(), None);
    in_time("the end of the news", async { while watch.next().await.is_some() {} }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_can_restart_as_soon_as_it_has_stopped() {
    let network = MemoryNetwork::new();
    let host = quorate::Host::start(TICK, network.transport()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let storage = quorate::DirectoryStorage::new(directory.path().join("1")).unwrap();
        let mut config = NodeConfig::first(CLUSTER, 1, [(1, "")]);
        config.options.snapshot_entries = Some(2);
        let node = host.start_member(config, storage, MemoryKv::default()).await.unwrap();
        for number in 0..5 {
            let command = put("a", &format!("{round}.{number}"));
            until_done("a write", async || node.propose(command.clone()).await).await;
        }
        assert!(matches!(in_time("the end", node.stop_now()).await, StopReason::Stopped));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_membership_follows_the_activation_of_the_rules() {
    let mut config = NodeConfig::first(CLUSTER, 1, [(1, "")]).with_tick(TICK);
    config.raft.activation = quorate::Activation::OnAppend;
    let (storage, machine) = (MemoryStorage::new(), MemoryKv::default());
    let transport = MemoryNetwork::new().transport();
    let node = Node::start(config, storage, machine, transport).await.unwrap();
    until_done("a write", async || node.propose(put("a", "1")).await).await;
    assert_eq!(node.membership().activation(), quorate::Activation::OnAppend);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_too_large_to_send_is_refused() {
    let members = Members::start(MemoryKv::default).await;
    let node = members.nodes[members.leader().await].clone();
    let refused = node.propose(vec![0; 33 << 20]).await;
    assert!(
        matches!(refused, Err(RequestError::Refused(RequestRefused::TooLarge { .. }))),
        "{refused:?}"
    );
    until_done("a write", async || node.propose(put("a", "1")).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_goal_with_a_missing_member_does_not_block_others() {
    let members = Members::start(MemoryKv::default).await;
    let node = members.nodes[members.leader().await].clone();
    let asker = node.clone();
    // Member 4 is never started.
    let goal =
        tokio::spawn(async move { asker.set_goal([1, 2, 4].map(quorate::MemberId), [], []).await });
    wait_for("the goal", async || node.membership().goal().map(|_| ())).await;
    for number in 0..500 {
        until_done("a write", async || node.propose(put("a", &number.to_string())).await).await;
    }
    assert!(!goal.is_finished());
    until_done("a cancel", async || node.cancel().await).await;
    let ended = in_time("the goal's end", goal).await.unwrap().unwrap();
    assert_eq!(ended.end, quorate::membership::GoalEnd::Cancelled);
}

/// Panics at one command.
#[derive(Default)]
struct PanickingMachine(MemoryKv);

impl Machine for PanickingMachine {
    fn apply(&mut self, index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        assert!(!command.ends_with(b"ouch"), "ouch");
        if command.ends_with(b"full") {
            return Err("the disk is full".into());
        }
        self.0.apply(index, command)
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        self.0.query(query)
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        self.0.snapshot()
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        self.0.install(chunks)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_panics_stops_its_member_and_not_the_process() {
    let members = Members::start(PanickingMachine::default).await;
    let leader = members.leader().await;
    let node = members.nodes[leader].clone();
    until_done("a write", async || node.propose(put("a", "1")).await).await;
    let answer = in_time("an answer", node.propose(put("a", "ouch"))).await;
    assert!(matches!(answer, Err(RequestError::Unknown(_))), "{answer:?}");
    assert!(matches!(
        in_time("the end", node.wait_stopped()).await,
        StopReason::MachinePanicked(_)
    ));
}

/// Panics at the next event.
#[derive(Default)]
struct PanickingObserver(AtomicBool);

impl NodeObserver for PanickingObserver {
    fn on_event(&self, _: &Event) {
        assert!(!self.0.load(Ordering::SeqCst), "ouch");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_requests_end_when_the_member_panics() {
    let network = MemoryNetwork::new();
    let observer = Arc::new(PanickingObserver::default());
    let mut config = NodeConfig::first(CLUSTER, 1, [(1, ""), (2, ""), (3, "")]).with_tick(TICK);
    config.observer = Arc::clone(&observer) as Arc<dyn NodeObserver>;
    let storage = MemoryStorage::new();
    let node = Node::start(config, storage, MemoryKv::default(), network.transport()).await;
    let node = node.unwrap();
    // The other members do not run, so there is no leader.
    let open = tokio::spawn({
        let node = node.clone();
        async move { node.propose(put("a", "1")).await }
    });
    wait_for("the request", async || (node.metrics().open_requests == 1).then_some(())).await;
    observer.0.store(true, Ordering::SeqCst);
    node.campaign();
    let ended = in_time("the end", node.wait_stopped()).await;
    assert!(matches!(ended, StopReason::Panicked), "{ended:?}");
    let answer = in_time("an answer", open).await.unwrap();
    assert!(matches!(answer, Err(RequestError::Unknown(_))), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_returns_an_error_stops_its_member_with_that_error() {
    let network = MemoryNetwork::new();
    let config = NodeConfig::first(CLUSTER, 1, [(1, "")]).with_tick(TICK);
    let storage = MemoryStorage::new();
    let node = Node::start(config, storage, PanickingMachine::default(), network.transport())
        .await
        .unwrap();
    let before = node.propose(put("a", "1")).await.unwrap();
    assert!(node.barrier().await.unwrap() >= before.index);
    let local = node.read_local("a").await.unwrap();
    assert!(local.index >= before.index);
    assert_eq!(local.bytes, node.read("a").await.unwrap());

    let failed = node.propose(put("a", "full")).await.unwrap_err();
    let RequestError::Unknown(unknown) = &failed else { panic!("{failed}") };
    assert!(unknown.to_string().contains("the disk is full"), "{unknown}");
    assert!(!failed.is_retryable());
    let reason = in_time("the end", node.wait_stopped()).await;
    assert!(matches!(&reason, StopReason::Machine(failed) if failed.index > before.index));
    let late = node.barrier().await.unwrap_err();
    let RequestError::Refused(RequestRefused::MemberFailed { reason }) = late else {
        panic!("{late}")
    };
    assert!(reason.contains("the disk is full"), "{reason}");
}

/// Keeps its state on a disk of its own, which fails.
#[derive(Default)]
struct FailingMachine {
    kv: MemoryKv,
    fails_to_resume: bool,
    /// Not at once, but after the first chunks of its snapshot.
    fails_while_read: bool,
}

impl Machine for FailingMachine {
    fn resume(&mut self, _owner: &StoreIdentity) -> Result<Index, MachineError> {
        if self.fails_to_resume { Err("no such table".into()) } else { Ok(0) }
    }

    fn apply(&mut self, index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        self.kv.apply(index, command)
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        self.kv.query(query)
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        let failure = || MachineError::from("a page cannot be read");
        if !self.fails_while_read {
            return Err(failure());
        }
        // An early end would look like the end.
        Ok(Box::new(self.kv.snapshot()?.chain(std::iter::once(Err(failure())))))
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        self.kv.install(chunks)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_cannot_resume_or_be_captured_stops_its_member() {
    let config = || NodeConfig::first(CLUSTER, 1, [(1, "")]).with_tick(TICK);
    let machine = FailingMachine { fails_to_resume: true, ..FailingMachine::default() };
    let transport = MemoryNetwork::new().transport();
    let refused = Node::start(config(), MemoryStorage::new(), machine, transport).await;
    let error = refused.unwrap_err();
    assert!(matches!(&error, NodeError::Machine(_)), "{error:?}");
    assert!(error.to_string().contains("no such table"), "{error}");

    for fails_while_read in [false, true] {
        let transport = MemoryNetwork::new().transport();
        let machine = FailingMachine { fails_while_read, ..FailingMachine::default() };
        let storage = MemoryStorage::new();
        let node = Node::start(config(), storage, machine, transport).await.unwrap();
        until_done("a write", async || node.propose(put("a", "1")).await).await;
        let _ = node.snapshot().await;
        let ended = in_time("the end", node.wait_stopped()).await;
        assert!(matches!(&ended, StopReason::Machine(_)), "{ended:?}");
        assert!(ended.to_string().contains("a page cannot be read"), "{ended}");
    }
}
