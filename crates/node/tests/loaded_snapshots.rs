//! Snapshots of peers that a machine loads while they arrive.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue panics")]

mod support;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use quorate::{
    LoadedState, Machine, MachineError, MemberInfo, MemoryKv, MemoryNetwork, MemoryStorage, Node,
    NodeConfig, SnapshotChunks, SnapshotLoader,
};
use quorate_core::{Index, MemberId};
use support::{CLUSTER, TICK, get, put, until_done, wait_for};

/// Records how it got its state.
#[derive(Default)]
struct RecordingMachine {
    kv: MemoryKv,
    /// Whether its loader returns the state, or only checks it.
    loads: bool,
    installs: Arc<Mutex<Vec<&'static str>>>,
}

impl Machine for RecordingMachine {
    fn apply(&mut self, index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        self.kv.apply(index, command)
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        self.kv.query(query)
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        self.kv.snapshot()
    }

    fn snapshot_loader(&self) -> SnapshotLoader {
        let (load, loads) = (self.kv.snapshot_loader(), self.loads);
        Box::new(move |chunks| load(chunks).map(|state| state.filter(|_| loads)))
    }

    fn install_loaded(&mut self, state: LoadedState) -> Result<(), MachineError> {
        self.installs.lock().unwrap().push("loaded");
        self.kv.install_loaded(state)
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        self.installs.lock().unwrap().push("from disk");
        self.kv.install(chunks)
    }
}

/// A new member receives a snapshot. How its machine got the state.
async fn install_on_new_member(loads: bool) -> Vec<&'static str> {
    let network = MemoryNetwork::new();
    let config = NodeConfig::first(CLUSTER, 1, [(1, "1")]).with_tick(TICK);
    let first = MemoryStorage::new();
    let leader =
        Node::start(config, first, MemoryKv::default(), network.transport()).await.unwrap();
    for number in 0..20 {
        let command = put(&format!("key {number}"), &number.to_string());
        until_done("a write", async || leader.propose(command.clone()).await).await;
    }
    let taken = until_done("a snapshot", async || leader.snapshot().await).await;
    leader.trim(taken);
    let added = until_done("a learner is added", async || {
        leader.add_learner(MemberId(2), MemberInfo::address("2")).await
    })
    .await;
    let (machine, disk) = (RecordingMachine { loads, ..Default::default() }, MemoryStorage::new());
    let installs = Arc::clone(&machine.installs);
    let config = NodeConfig::join(CLUSTER, 2, added.index).with_tick(TICK);
    let learner = Node::start(config, disk, machine, network.transport()).await.unwrap();
    wait_for("the learner has the state", async || {
        let at = learner.status().await.ok()?.raft.log.applied;
        (at >= added.index).then_some(())
    })
    .await;
    assert_eq!(get(&learner, "key 7").await.as_deref(), Some("7"));
    learner.stop_now().await;
    leader.stop_now().await;
    let installs = installs.lock().unwrap();
    installs.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_was_loaded_while_it_arrived_is_taken_over() {
    assert_eq!(install_on_new_member(true).await, ["loaded"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_only_checks_snapshots_installs_them_from_the_disk() {
    assert_eq!(install_on_new_member(false).await, ["from disk"]);
}
