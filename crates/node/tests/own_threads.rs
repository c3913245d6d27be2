//! A leader with threads of its own keeps leading while the process around it is busy.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::thread::sleep;
use std::time::Duration;

use bytes::Bytes;
use quorate::{
    Machine, MachineError, MemoryNetwork, MemoryStorage, Node, NodeConfig, SnapshotChunks,
};
use tokio::runtime::{Builder, Runtime};

/// Counts commands. The command `slow` takes long.
#[derive(Default)]
struct SlowMachine(u64);

impl Machine for SlowMachine {
    fn apply(&mut self, _index: u64, command: &Bytes) -> Result<Bytes, MachineError> {
        if command[..] == *b"slow" {
            sleep(BUSY);
        }
        self.0 += 1;
        Ok(Bytes::copy_from_slice(&self.0.to_be_bytes()))
    }

    fn query(&self, _query: &Bytes) -> Result<Bytes, MachineError> {
        Ok(Bytes::copy_from_slice(&self.0.to_be_bytes()))
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        Ok(Box::new(std::iter::once(Ok(Bytes::copy_from_slice(&self.0.to_be_bytes())))))
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        let bytes: Vec<u8> = chunks.flatten().collect();
        let bytes = bytes.try_into().map_err(|_| "not eight bytes")?;
        self.0 = u64::from_be_bytes(bytes);
        Ok(())
    }
}

/// Several election timeouts.
const BUSY: Duration = Duration::from_secs(6);
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Three members, each on a runtime with one thread.
struct SeparateMembers {
    nodes: Vec<Node>,
    runtimes: Vec<Runtime>,
}

impl SeparateMembers {
    fn start() -> Self {
        let network = MemoryNetwork::new();
        let mut members = Self { nodes: Vec::new(), runtimes: Vec::new() };
        for id in 1..=3u64 {
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.unwrap();
            let all = [(1, ""), (2, ""), (3, "")];
            let mut config = NodeConfig::first(7, id, all).with_tick(Duration::from_millis(100));
            config.own_threads = true;
            let storage = MemoryStorage::new();
            let started = Node::start(config, storage, SlowMachine::default(), network.transport());
            members.nodes.push(runtime.block_on(started).unwrap());
            members.runtimes.push(runtime);
        }
        members
    }

    /// The position of the leader, once it has committed an entry.
    fn leader(&self) -> usize {
        self.runtimes[0].block_on(async {
            let committed = async {
                while self.nodes[0].propose(&b"first"[..]).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            tokio::time::timeout(TEST_TIMEOUT, committed).await.unwrap();
        });
        self.nodes.iter().position(Node::is_leader).unwrap()
    }

    fn stop(self) {
        for (node, runtime) in self.nodes.into_iter().zip(self.runtimes) {
            runtime.block_on(node.stop_now());
            runtime.shutdown_background();
        }
    }
}

#[test]
fn a_busy_runtime_does_not_depose_the_leader() {
    let members = SeparateMembers::start();
    let leader = members.leader();
    let term = members.nodes[leader].term();
    // No task of the caller's runtime runs for a while.
    members.runtimes[leader].spawn(async { sleep(BUSY) });
    sleep(BUSY);
    let terms: Vec<u64> = members.nodes.iter().map(Node::term).collect();
    assert_eq!(terms, [term; 3]);
    assert!(members.nodes[leader].is_leader());
    members.stop();
}

#[test]
fn a_slow_command_does_not_depose_the_leader() {
    let members = SeparateMembers::start();
    let leader = members.leader();
    let term = members.nodes[leader].term();
    let node = members.nodes[leader].clone();
    members.runtimes[leader].spawn(async move { node.propose(&b"slow"[..]).await });
    sleep(BUSY);
    let terms: Vec<u64> = members.nodes.iter().map(Node::term).collect();
    assert_eq!(terms, [term; 3]);
    members.stop();
}

/// A member that is alone on its threads stops them, and the host waits for their end.
#[test]
fn a_member_and_its_threads_are_stopped() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut config = NodeConfig::first(8, 1, [(1, "")]);
        config.own_threads = true;
        let transport = MemoryNetwork::new().transport();
        let machine = SlowMachine::default();
        let node = Node::start(config, MemoryStorage::new(), machine, transport).await.unwrap();
        let stopped = async {
            node.stop_now().await;
            node.host().clone().stop().await;
        };
        tokio::time::timeout(TEST_TIMEOUT, stopped).await.unwrap();
    });
}
