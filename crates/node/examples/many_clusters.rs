//! A hundred clusters in three hosts: each host has one ticker, one disk thread and one
//! connection to each other host, independent of the number of clusters.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use quorate::{
    DirectoryStorage, Host, KvCommand, KvReply, MemoryKv, Node, NodeConfig, TcpConfig, TcpTransport,
};
use tokio::time::Instant;

type AnyError = Box<dyn Error + Send + Sync>;

const GROUPS: u64 = 100;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let directory = tempfile::tempdir()?;
    let (mut hosts, mut addresses) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let transport = TcpTransport::bind(TcpConfig::new(any_port)).await?;
        addresses.push(transport.local_address().to_string());
        hosts.push(Host::start(Duration::from_millis(100), transport)?);
    }
    let members: Vec<(u64, String)> = (1..).zip(addresses).collect();

    let began = Instant::now();
    let mut groups: Vec<Vec<Node>> = Vec::new();
    for group in 1..=GROUPS {
        let mut nodes = Vec::new();
        for (id, host) in (1..).zip(&hosts) {
            let mut config = NodeConfig::first(group, id, members.clone());
            // Small segments: a hundred logs of 64 MiB each would be a lot of disk.
            config.raft.tail_bytes_max = 1 << 20;
            let disk =
                quorate::storage::FileDisk::open(directory.path().join(format!("{group}-{id}")))?;
            let store = quorate::storage::StoreConfig::new().segment_bytes(1 << 20);
            let storage = DirectoryStorage::with_disk(disk, store);
            nodes.push(host.start_member(config, storage, MemoryKv::default()).await?);
        }
        groups.push(nodes);
    }
    println!("{GROUPS} groups of three members started in {:?}", began.elapsed());

    let began = Instant::now();
    let mut writes = tokio::task::JoinSet::new();
    for (group, nodes) in (1..).zip(&groups) {
        let node = nodes[group as usize % 3].clone();
        writes.spawn(async move {
            let command = KvCommand::Put { key: "group".into(), value: group.to_string().into() };
            node.propose(command.encode()).await
        });
    }
    while let Some(written) = writes.join_next().await {
        written??;
    }
    println!("every group elected a leader and accepted a write in {:?}", began.elapsed());

    for (group, nodes) in (1u64..).zip(&groups) {
        let bytes = nodes[(group as usize + 1) % 3].read("group").await?;
        let value =
            KvReply::decode(&bytes).and_then(|reply| reply.value).ok_or("the key is missing")?;
        if value != group.to_string() {
            return Err(format!("group {group} answers {value:?}").into());
        }
    }
    let connections = groups[0][0].metrics().transport;
    println!("every group has its own value; counters of host 1: {connections:?}");
    for node in groups.iter().flatten() {
        node.stop_now().await;
    }
    for host in hosts {
        host.stop().await;
    }
    Ok(())
}
