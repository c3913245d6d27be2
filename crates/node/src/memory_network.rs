//! A network within one process, for tests and examples: no sockets, no addresses.
//!
//! Bounded like a real one: messages that a busy member does not read are dropped. Links can
//! be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};

use quorate_core::MemberId;
use quorate_core::membership::MemberInfo;
use tokio::sync::{mpsc, watch};

use crate::runtime::{
    Inbox, Introduction, MemberKey, OutgoingSnapshot, PeerMessage, RejectReason,
    SnapshotReceiveError, Transport, TransportError, lock,
};

/// Deliveries that may wait for one member.
const WAITING_MAX: usize = 256;

/// Snapshots that one transport may send at the same time.
const SNAPSHOTS_MAX: usize = 16;

/// Members find each other by their keys, on any transport of this network.
#[derive(Clone, Default)]
pub struct MemoryNetwork {
    state: Arc<Mutex<NetworkState>>,
}

#[derive(Default)]
struct NetworkState {
    endpoints: BTreeMap<MemberKey, MemberEndpoint>,
    cut: BTreeSet<(MemberKey, MemberKey)>,
}

/// Where a member is reached.
#[derive(Clone)]
struct MemberEndpoint {
    /// Of the member's transport.
    stopping: watch::Sender<bool>,
    inbox: Inbox,
    deliveries: mpsc::Sender<QueuedDelivery>,
}

struct QueuedDelivery {
    pair: Introduction,
    messages: Vec<PeerMessage>,
}

impl MemoryNetwork {
    /// A network without members.
    pub fn new() -> Self {
        Self::default()
    }

    /// One process on this network.
    pub fn transport(&self) -> MemoryTransport {
        MemoryTransport {
            network: self.clone(),
            inbox: OnceLock::new(),
            own: Mutex::default(),
            counts: Arc::default(),
            snapshots: Arc::new(tokio::sync::Semaphore::new(SNAPSHOTS_MAX)),
            stopping: watch::Sender::new(false),
        }
    }

    /// Drops everything between these two members, in both directions, until it is healed.
    pub fn cut(&self, one: MemberKey, other: MemberKey) {
        lock(&self.state).cut.extend([(one, other), (other, one)]);
    }

    /// Undoes [`MemoryNetwork::cut`].
    pub fn heal(&self, one: MemberKey, other: MemberKey) {
        let cut = &mut lock(&self.state).cut;
        cut.remove(&(one, other));
        cut.remove(&(other, one));
    }

    /// Undoes every cut.
    pub fn heal_all(&self) {
        lock(&self.state).cut.clear();
    }

    fn endpoint(&self, from: MemberKey, to: MemberKey) -> Option<MemberEndpoint> {
        let state = lock(&self.state);
        if state.cut.contains(&(from, to)) { None } else { state.endpoints.get(&to).cloned() }
    }

    fn is_cut(&self, from: MemberKey, to: MemberKey) -> bool {
        lock(&self.state).cut.contains(&(from, to))
    }
}

impl fmt::Debug for MemoryNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryNetwork").finish_non_exhaustive()
    }
}

/// One process on a [`MemoryNetwork`].
pub struct MemoryTransport {
    network: MemoryNetwork,
    inbox: OnceLock<Inbox>,
    /// The members of this transport, with the incarnations of their disks.
    own: Mutex<BTreeMap<MemberKey, u64>>,
    counts: Arc<Mutex<BTreeMap<&'static str, u64>>>,
    snapshots: Arc<tokio::sync::Semaphore>,
    stopping: watch::Sender<bool>,
}

impl MemoryTransport {
    fn count(&self, what: &'static str) {
        count(&self.counts, what);
    }

    /// Removes a member, and tells its peers that the connection is lost.
    fn disconnect(&self, key: MemberKey) {
        let mut state = lock(&self.network.state);
        // It may have started on another transport since.
        let here = |endpoint: &MemberEndpoint| endpoint.stopping.same_channel(&self.stopping);
        if !state.endpoints.get(&key).is_some_and(here) {
            return;
        }
        state.endpoints.remove(&key);
        for (other, endpoint) in
            state.endpoints.iter().filter(|(other, _)| other.cluster == key.cluster)
        {
            endpoint.inbox.connection_lost(*other, key.member);
        }
    }

    fn send_to(&self, pair: Introduction, messages: Vec<PeerMessage>) {
        let to = MemberKey { cluster: pair.from.cluster, member: pair.to };
        let sent = match self.network.endpoint(pair.from, to) {
            None => Err("dropped_unreachable"),
            Some(endpoint) => endpoint
                .deliveries
                .try_send(QueuedDelivery { pair, messages })
                .map_err(|_| "dropped_full"),
        };
        match (sent, self.inbox.get()) {
            (Ok(()), _) => self.count("sent"),
            (Err(what), inbox) => {
                self.count(what);
                if let Some(inbox) = inbox {
                    inbox.unreachable(pair.from, pair.to);
                }
            }
        }
    }
}

impl Transport for MemoryTransport {
    fn start(&self, inbox: Inbox) -> Result<(), TransportError> {
        self.inbox.set(inbox).map_err(|_| "the transport is already started".into())
    }

    fn add_member(&self, key: MemberKey, incarnation: u64) {
        let Some(inbox) = self.inbox.get() else { return };
        let (sender, deliveries) = mpsc::channel(WAITING_MAX);
        let endpoint = MemberEndpoint {
            stopping: self.stopping.clone(),
            inbox: inbox.clone(),
            deliveries: sender,
        };
        lock(&self.own).insert(key, incarnation);
        lock(&self.network.state).endpoints.insert(key, endpoint);
        let counts = Arc::clone(&self.counts);
        let delivering = deliver_all(self.network.clone(), inbox.clone(), key, deliveries, counts);
        let mut stopping = self.stopping.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => {}
                () = delivering => {}
            }
        });
    }

    fn remove_member(&self, key: MemberKey) {
        lock(&self.own).remove(&key);
        self.disconnect(key);
    }

    /// Members need no address here.
    fn set_peers(&self, _key: MemberKey, _peers: Vec<(MemberId, MemberInfo)>) {}

    fn send(&self, key: MemberKey, messages: Vec<PeerMessage>) {
        let Some(incarnation) = lock(&self.own).get(&key).copied() else { return };
        let mut by_peer: BTreeMap<MemberId, Vec<PeerMessage>> = BTreeMap::new();
        for message in messages {
            by_peer.entry(message.to()).or_default().push(message);
        }
        for (to, messages) in by_peer {
            self.send_to(Introduction { from: key, incarnation, to }, messages);
        }
    }

    fn send_snapshot(&self, key: MemberKey, snapshot: OutgoingSnapshot) {
        let to = MemberKey { cluster: key.cluster, member: snapshot.envelope().to };
        let incarnation = lock(&self.own).get(&key).copied();
        let (Some(incarnation), Some(endpoint)) = (incarnation, self.network.endpoint(key, to))
        else {
            return self.count("snapshots_lost");
        };
        let Ok(permit) = Arc::clone(&self.snapshots).try_acquire_owned() else {
            return self.count("snapshots_lost");
        };
        let pair = Introduction { from: key, incarnation, to: to.member };
        if let Err(why) = endpoint.inbox.admit(&pair) {
            return self.count(why.name());
        }
        let (counts, mut stopping) = (Arc::clone(&self.counts), self.stopping.subscribe());
        tokio::spawn(async move {
            let what = tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => "snapshots_lost",
                moved = move_snapshot(endpoint.inbox, to, snapshot) => match moved {
                    Ok(()) => "snapshots_sent",
                    Err(_) => "snapshots_refused",
                },
            };
            count(&counts, what);
            drop(permit);
        });
    }

    /// Each delivery is checked: there is no connection to close.
    fn reject(&self, _key: MemberKey, _from: MemberId, why: RejectReason) {
        self.count(why.name());
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.counts).clone()
    }

    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            self.stopping.send_replace(true);
            let own = std::mem::take(&mut *lock(&self.own));
            own.into_keys().for_each(|key| self.disconnect(key));
            self.stopping.closed().await;
        })
    }
}

impl fmt::Debug for MemoryTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTransport").finish_non_exhaustive()
    }
}

/// Delivers to one member, until it is removed.
async fn deliver_all(
    network: MemoryNetwork,
    inbox: Inbox,
    to: MemberKey,
    mut deliveries: mpsc::Receiver<QueuedDelivery>,
    counts: Arc<Mutex<BTreeMap<&'static str, u64>>>,
) {
    while let Some(QueuedDelivery { pair, messages }) = deliveries.recv().await {
        if network.is_cut(pair.from, to) {
            continue;
        }
        match inbox.admit(&pair) {
            Err(why) => count(&counts, why.name()),
            Ok(()) => {
                if inbox.deliver(to, messages).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn move_snapshot(
    inbox: Inbox,
    to: MemberKey,
    mut snapshot: OutgoingSnapshot,
) -> Result<(), SnapshotReceiveError> {
    let mut landing = inbox.begin_snapshot(to, snapshot.envelope().clone()).await?;
    while let Some(chunk) = snapshot.next_chunk().await.map_err(SnapshotReceiveError::Disk)? {
        landing.append(chunk).await?;
    }
    landing.finish().await?;
    snapshot.arrived();
    Ok(())
}

fn count(counts: &Mutex<BTreeMap<&'static str, u64>>, what: &'static str) {
    *lock(counts).entry(what).or_default() += 1;
}
