//! A member that was removed learns it, even if the entry that says so never reaches it.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod support;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quorate::transport::{
    Inbox, MemberKey, OutgoingSnapshot, PeerMessage, RejectReason, Transport, TransportError,
};
use quorate::{
    MemberId, MemberInfo, MemoryKv, MemoryStorage, Node, NodeConfig, TcpConfig, TcpTransport,
};
use quorate_core::Change;
use quorate_core::membership::RemovedVoters;
use quorate_core::message::Message;
use support::{CLUSTER, TICK, until_done, wait_for};

const REMOVED: MemberId = MemberId(3);

/// Loses what leaders send to the member that is removed. Its connections stay open.
struct SilentLeaders {
    transport: TcpTransport,
    silent: Arc<AtomicBool>,
}

impl SilentLeaders {
    fn loses(&self, message: &PeerMessage) -> bool {
        let PeerMessage::Raft(envelope) = message else { return false };
        let of_leader = matches!(envelope.message, Message::Append(_) | Message::Heartbeat(_));
        of_leader && envelope.to == REMOVED && self.silent.load(Ordering::Relaxed)
    }
}

impl Transport for SilentLeaders {
    fn start(&self, inbox: Inbox) -> Result<(), TransportError> {
        self.transport.start(inbox)
    }

    fn add_member(&self, key: MemberKey, incarnation: u64) {
        self.transport.add_member(key, incarnation);
    }

    fn remove_member(&self, key: MemberKey) {
        self.transport.remove_member(key);
    }

    fn set_peers(&self, key: MemberKey, peers: Vec<(MemberId, MemberInfo)>) {
        self.transport.set_peers(key, peers);
    }

    fn send(&self, key: MemberKey, mut messages: Vec<PeerMessage>) {
        messages.retain(|message| !self.loses(message));
        self.transport.send(key, messages);
    }

    fn send_snapshot(&self, key: MemberKey, snapshot: OutgoingSnapshot) {
        self.transport.send_snapshot(key, snapshot);
    }

    fn reject(&self, key: MemberKey, from: MemberId, why: RejectReason) {
        self.transport.reject(key, from, why);
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.transport.counts()
    }

    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.transport.stop()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_missed_its_removal_is_told_on_the_connections_that_it_has() {
    let silent = Arc::new(AtomicBool::new(false));
    let told = Arc::new(AtomicBool::new(false));
    let mut transports = Vec::new();
    let mut addresses = BTreeMap::new();
    for id in 1..=3 {
        let mut config = TcpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let told = Arc::clone(&told);
        config.on_rejected = Arc::new(move |key, _, why| {
            if key.member == REMOVED && why == RejectReason::Removed {
                told.store(true, Ordering::Relaxed);
            }
        });
        let transport = TcpTransport::bind(config).await.unwrap();
        addresses.insert(id, transport.local_address().to_string());
        transports.push((id, SilentLeaders { transport, silent: Arc::clone(&silent) }));
    }
    let mut nodes = Vec::new();
    for (id, transport) in transports {
        let config = NodeConfig::first(CLUSTER, id, addresses.clone()).with_tick(TICK);
        let (storage, machine) = (MemoryStorage::new(), MemoryKv::default());
        nodes.push(Node::start(config, storage, machine, transport).await.unwrap());
    }
    // A member that stays has to lead: the one that is removed would take part otherwise.
    wait_for("another leader", async || {
        let leader = nodes.iter().find(|node| node.is_leader())?;
        if leader.id() == REMOVED {
            let _ = leader.transfer(MemberId(1)).await;
            return None;
        }
        nodes.iter().all(|node| node.leader().is_some()).then_some(())
    })
    .await;
    silent.store(true, Ordering::Relaxed);
    until_done("the removal", async || {
        let voters = [MemberId(1), MemberId(2)];
        nodes[0].change(Change::set_voters(voters, RemovedVoters::Leave)).await
    })
    .await;
    wait_for("the removed member is told", async || told.load(Ordering::Relaxed).then_some(()))
        .await;
    assert!(nodes[2].membership().contains(REMOVED), "it has not learned it from its log");
    for node in &nodes {
        node.stop_now().await;
    }
}
