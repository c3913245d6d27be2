//! A member that was stopped leaves nothing behind: the same process starts it again on the
//! same address and directory, as often as it likes.

#![cfg(feature = "runtime")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use quorate::{
    DirectoryStorage, Host, KvCommand, KvReply, MemoryKv, Node, NodeConfig, NodeError, StopReason,
    TcpConfig, TcpTransport,
};
use tokio::time::timeout;

const CLUSTER: u64 = 0x5e57;
const TICK: Duration = Duration::from_millis(20);
/// Far longer than anything takes on the slowest machine: only a failure lasts this long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// No retry: the address has to be free at once.
async fn bind(address: SocketAddr) -> TcpTransport {
    TcpTransport::bind(TcpConfig::new(address)).await.unwrap()
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

async fn start_alone(address: SocketAddr, directory: &Path) -> Node {
    let transport = bind(address).await;
    let advertised = transport.advertised().to_owned();
    let config = NodeConfig::first(CLUSTER, 1, [(1, advertised)]).with_tick(TICK);
    let storage = DirectoryStorage::new(directory).unwrap();
    Node::start(config, storage, MemoryKv::default(), transport).await.unwrap()
}

async fn put(node: &Node, key: &str, value: &str) {
    let command = KvCommand::Put { key: key.to_owned().into(), value: value.to_owned().into() };
    timeout(TIMEOUT, node.propose(command.encode())).await.unwrap().unwrap();
}

async fn get(node: &Node, key: &str) -> Option<String> {
    let reply = timeout(TIMEOUT, node.read(key.to_owned())).await.unwrap().unwrap();
    let value = KvReply::decode(&reply).unwrap().value?;
    Some(String::from_utf8(value.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_member_restarts_on_the_same_address_and_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("1");
    let first = bind(any_port()).await;
    let address = first.local_address();
    drop(first);
    // Handles on stopped members keep nothing alive.
    let mut handles = Vec::new();
    for round in 0..5 {
        let node = start_alone(address, &path).await;
        if round > 0 {
            let value = get(&node, &format!("key{}", round - 1)).await;
            assert_eq!(value.as_deref(), Some("value"), "round {round}");
        }
        put(&node, &format!("key{round}"), "value").await;
        let stopped = if round % 2 == 0 { node.stop().await } else { node.stop_now().await };
        assert!(matches!(stopped, StopReason::Stopped), "{stopped:?}");
        handles.push(node);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_can_be_stopped_through_a_node() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("1");
    let node = start_alone(any_port(), &path).await;
    put(&node, "key", "value").await;
    node.host().stop().await;
    assert!(matches!(node.wait_stopped().await, StopReason::Stopped));
    node.host().stop().await;
    let storage = DirectoryStorage::new(&path).unwrap();
    let config = NodeConfig::join(CLUSTER, 1, 0);
    let refused = node.host().start_member(config, storage, MemoryKv::default()).await;
    assert!(matches!(refused, Err(NodeError::HostStopped)), "{refused:?}");
    // The refused start has freed the directory, too.
    let again = start_alone(any_port(), &path).await;
    assert_eq!(get(&again, "key").await.as_deref(), Some("value"));
    again.stop().await;
}

/// Two hosts with one member of each group: started, stopped and started again.
#[tokio::test(flavor = "multi_thread")]
async fn many_members_of_two_hosts_restart_on_the_same_addresses() {
    const GROUPS: u64 = 8;
    let directory = tempfile::tempdir().unwrap();
    let probes = [bind(any_port()).await, bind(any_port()).await];
    let addresses = [probes[0].local_address(), probes[1].local_address()];
    drop(probes);
    let mut handles = Vec::new();
    for round in 0..3 {
        let mut hosts = Vec::new();
        for address in addresses {
            hosts.push(Host::start(TICK, bind(address).await).unwrap());
        }
        let mut nodes = Vec::new();
        for group in 1..=GROUPS {
            let members = [(1, addresses[0].to_string()), (2, addresses[1].to_string())];
            for (id, host) in (1..=2).zip(&hosts) {
                let config = NodeConfig::first(group, id, members.clone());
                let path = directory.path().join(format!("{group}-{id}"));
                let storage = DirectoryStorage::new(path).unwrap();
                nodes.push(host.start_member(config, storage, MemoryKv::default()).await.unwrap());
            }
        }
        for node in nodes.iter().step_by(2) {
            if round > 0 {
                let before = get(node, &format!("key{}", round - 1)).await;
                assert_eq!(before.as_deref(), Some("value"), "round {round}");
            }
            put(node, &format!("key{round}"), "value").await;
        }
        // Some members are stopped before, the rest with their host.
        nodes[0].stop().await;
        nodes[3].stop_now().await;
        for host in &hosts {
            timeout(TIMEOUT, host.stop()).await.unwrap();
        }
        for node in &nodes {
            assert!(matches!(node.wait_stopped().await, StopReason::Stopped));
        }
        handles.push((hosts, nodes));
    }
}

/// The ticker, the tasks and the disk thread are gone, although a handle is still there.
#[cfg(target_os = "linux")]
#[test]
fn a_stopped_member_leaves_no_task_and_no_thread() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("1");
    let node = runtime.block_on(async {
        let node = start_alone(any_port(), &path).await;
        put(&node, "key", "value").await;
        node.stop().await;
        node
    });
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    // The task that reports the end, and the thread itself, may take a moment to be gone.
    while runtime.metrics().num_alive_tasks() > 0 {
        assert!(tokio::time::Instant::now() < deadline, "tasks are left");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(node);
}
