//! Replaces every member of a cluster, one after the other, while it serves requests.
//!
//! Three members over TCP and files, and a few writers that never stop. Members 4, 5 and 6
//! are started, and a goal for each replacement adds the new member, lets it catch up, moves
//! the vote and removes the old member. No write fails, and none is lost.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quorate::membership::MembershipEvent;
use quorate::{
    DirectoryStorage, KvCommand, KvReply, MemberId, MemberInfo, MemoryKv, Node, NodeConfig,
    TcpConfig, TcpTransport,
};
use tokio::time::Instant;

type AnyError = Box<dyn Error + Send + Sync>;

const CLUSTER: u64 = 0x5eb1;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let directory = tempfile::tempdir()?;
    let (mut transports, mut addresses) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let transport = listen().await?;
        addresses.push(transport.local_address().to_string());
        transports.push(transport);
    }
    let members: Vec<(u64, String)> = (1..).zip(addresses).collect();
    let mut nodes = Vec::new();
    for (id, transport) in (1..).zip(transports) {
        let config = NodeConfig::first(CLUSTER, id, members.clone());
        nodes.push(start(config, directory.path(), transport).await?);
    }

    let load = Arc::new(Load::default());
    let mut writers = Vec::new();
    for writer in 0..8 {
        // Clients use the newest members, which stay in the cluster.
        let node = Arc::new(std::sync::Mutex::new(nodes[writer % 3].clone()));
        let task = tokio::spawn(write(writer, Arc::clone(&node), Arc::clone(&load)));
        writers.push((node, task));
    }

    for old in 1..=3u64 {
        let new = old + 3;
        let transport = listen().await?;
        let address = MemberInfo::address(transport.local_address().to_string());
        // Call it on a member that stays: a removed member does not hear of the end.
        let speaker = nodes[usize::try_from(old)? % 3].clone();
        let plan = speaker.plan(voters_after(old), []).await?;
        println!("to replace {old} by {new}:");
        for step in &plan.steps {
            println!("    {}", step.step);
        }
        let added = speaker.add_learner(MemberId(new), address).await?;
        let config = NodeConfig::join(CLUSTER, new, added.index);
        let node = start(config, directory.path(), transport).await?;
        // Clients move from the old member to the new one before the old one stops.
        for (at, (handle, _)) in writers.iter().enumerate() {
            if at as u64 % 3 == old - 1 {
                *handle.lock().map_err(|_| "a writer panicked")? = node.clone();
            }
        }
        let printer = tokio::spawn(print_events(node.clone()));
        let ended = node.set_goal(voters_after(old), [], []).await?;
        printer.abort();
        println!("    settled as of entry {}", ended.at);
        let gone = std::mem::replace(&mut nodes[usize::try_from(old)? - 1], node);
        gone.stop().await;
        gone.host().clone().stop().await;
    }

    load.stop.store(true, Ordering::Relaxed);
    let mut written = Vec::new();
    for (_, task) in writers {
        written.push(task.await??);
    }
    check_writes(&nodes[0], &written, &load).await?;
    for node in nodes {
        node.stop_now().await;
    }
    Ok(())
}

/// Checks that the last write of every writer is there, and that no write failed.
async fn check_writes(node: &Node, written: &[u64], load: &Load) -> Result<(), AnyError> {
    for (writer, last) in written.iter().enumerate() {
        let bytes = node.read(format!("writer {writer}")).await?;
        let value = KvReply::decode(&bytes).and_then(|reply| reply.value).ok_or("a key is lost")?;
        if value != last.to_string() {
            return Err(format!("writer {writer} wrote {last}, found {value:?}").into());
        }
    }
    println!("members now: {}", node.membership().voters());
    println!(
        "writes: {}, failed: {}",
        load.done.load(Ordering::Relaxed),
        load.failed.load(Ordering::Relaxed)
    );
    println!("longest gap: {} ms", load.gap.load(Ordering::Relaxed));
    if load.failed.load(Ordering::Relaxed) > 0 {
        return Err("a write failed".into());
    }
    Ok(())
}

/// The voters once this one was replaced by the one three above it.
fn voters_after(old: u64) -> [MemberId; 3] {
    [old + 1, old + 2, old + 3].map(MemberId)
}

async fn listen() -> Result<TcpTransport, AnyError> {
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    Ok(TcpTransport::bind(TcpConfig::new(any_port)).await?)
}

async fn start(
    config: NodeConfig,
    directory: &Path,
    transport: TcpTransport,
) -> Result<Node, AnyError> {
    let storage = DirectoryStorage::new(directory.join(config.raft.id.to_string()))?;
    Ok(Node::start(config, storage, MemoryKv::default(), transport).await?)
}

async fn print_events(node: Node) {
    let mut watch = node.watch_membership();
    while let Some(event) = watch.next().await {
        if let MembershipEvent::InEffect { id, membership } = event {
            println!("    {id}: {membership}");
        }
    }
}

#[derive(Default)]
struct Load {
    stop: AtomicBool,
    done: AtomicU64,
    failed: AtomicU64,
    gap: AtomicU64,
}

/// Writes increasing numbers to one key. Returns the last one that was acknowledged.
async fn write(
    writer: usize,
    node: Arc<std::sync::Mutex<Node>>,
    load: Arc<Load>,
) -> Result<u64, AnyError> {
    let mut last = 0;
    for number in 1.. {
        if load.stop.load(Ordering::Relaxed) {
            break;
        }
        let node = node.lock().map_err(|_| "a writer panicked")?.clone();
        let (key, value) = (format!("writer {writer}").into(), number.to_string().into());
        let began = Instant::now();
        match node.propose(KvCommand::Put { key, value }.encode()).await {
            Ok(_) => {
                last = number;
                load.done.fetch_add(1, Ordering::Relaxed);
            }
            Err(why) => {
                println!("writer {writer}: {why}");
                load.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        if number == 1 {
            continue; // Waited for the first election.
        }
        load.gap.fetch_max(began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
    Ok(last)
}
