//! What the tasks of a transport share, and how they are stopped.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use quorate_core::MemberId;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::config::TcpConfig;
use super::connections::IncomingConnections;
use super::counters::{TcpCounter, TcpCounters};
use super::outgoing::Link;
use super::port_budget::PortBudget;
use super::rate_limit::RateLimit;
use crate::runtime::{Inbox, Introduction, MemberKey, lock};

pub(crate) struct TcpShared {
    pub(crate) config: TcpConfig,
    /// The address where peers reach this process.
    pub(crate) advertise: String,
    pub(crate) counts: TcpCounters,
    /// The memory of all frames that arrive.
    pub(crate) budget: Arc<PortBudget>,
    pub(crate) inbox: OnceLock<Inbox>,
    /// The runtime that started the transport. All of its tasks run there, also those that a
    /// thread of another runtime causes by sending a message.
    pub(crate) runtime: OnceLock<Handle>,
    pub(crate) routes: Mutex<Routes>,
    pub(crate) connections: Mutex<IncomingConnections>,
    pub(crate) snapshot_permits: Semaphore,
    pub(crate) snapshots_waiting: AtomicUsize,
    pub(crate) snapshot_rate: RateLimit,
    stopping: watch::Sender<bool>,
    /// Each task holds a clone of the sender; the receiver ends when no task is left.
    running: Mutex<Option<mpsc::Sender<()>>>,
    ended: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

impl TcpShared {
    pub(crate) fn new(config: TcpConfig, advertise: String) -> Self {
        let (running, ended) = mpsc::channel(1);
        Self {
            advertise,
            counts: TcpCounters::default(),
            budget: PortBudget::new(config.buffered_bytes_max.max(config.frame_bytes_max)),
            inbox: OnceLock::new(),
            runtime: OnceLock::new(),
            routes: Mutex::default(),
            connections: Mutex::default(),
            snapshot_permits: Semaphore::new(config.snapshots_max.max(1)),
            snapshots_waiting: AtomicUsize::new(0),
            snapshot_rate: RateLimit::new(config.snapshot_bytes_per_second),
            stopping: watch::Sender::new(false),
            running: Mutex::new(Some(running)),
            ended: tokio::sync::Mutex::new(ended),
            config,
        }
    }

    /// Spawns a task that runs until it is done or the transport stops. When the transport has
    /// stopped, the task comes back, so that the caller chooses where it is dropped.
    pub(crate) fn spawn<F>(&self, task: F) -> Result<AbortHandle, F>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(running) = lock(&self.running).clone() else { return Err(task) };
        let mut stopping = self.stopping.subscribe();
        let task = async move {
            tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => {}
                () = task => {}
            }
            drop(running);
        };
        let spawned = match self.runtime.get() {
            Some(runtime) => runtime.spawn(task),
            None => tokio::spawn(task),
        };
        Ok(spawned.abort_handle())
    }

    pub(crate) fn begin_stop(&self) {
        lock(&self.running).take();
        self.stopping.send_replace(true);
    }

    pub(crate) async fn stop(&self) {
        self.begin_stop();
        while self.ended.lock().await.recv().await.is_some() {}
        lock(&self.routes).clear();
    }

    /// The peer's address is not known.
    pub(crate) fn no_route(&self, from: MemberKey, to: MemberId) {
        self.counts.one(TcpCounter::DroppedNoAddress);
        let report = lock(&self.routes).may_report(from, to, self.config.unreachable_every);
        if let Some(inbox) = self.inbox.get().filter(|_| report) {
            inbox.unreachable(from, to);
        }
    }

    pub(crate) fn unreachable(&self, pair: Introduction) {
        if let Some(inbox) = self.inbox.get() {
            inbox.unreachable(pair.from, pair.to);
        }
    }

    /// The link from a local member to its peer, if the address is known; and the member's
    /// introduction.
    pub(crate) fn route(self: &Arc<Self>, from: MemberKey, to: MemberId) -> Option<Route> {
        lock(&self.routes).find(self, from, to)
    }
}

/// How a member reaches one peer.
pub(crate) struct Route {
    pub(crate) pair: Introduction,
    pub(crate) link: Arc<Link>,
}

/// The local members, and the addresses of their peers.
#[derive(Default)]
pub(crate) struct Routes {
    members: BTreeMap<MemberKey, MemberRoutes>,
    /// Addresses that peers advertised when they connected: for those that are not (yet) in
    /// the membership.
    advertised: BTreeMap<(MemberKey, MemberId), AdvertisedPeer>,
    links: BTreeMap<String, Weak<Link>>,
}

struct MemberRoutes {
    incarnation: u64,
    peers: BTreeMap<MemberId, PeerRoute>,
    /// When it was last told that a peer's address is not known.
    reported: BTreeMap<MemberId, Instant>,
}

struct PeerRoute {
    address: String,
    link: Option<Arc<Link>>,
}

struct AdvertisedPeer {
    connection: u64,
    peer: PeerRoute,
}

impl Routes {
    pub(crate) fn add_member(&mut self, key: MemberKey, incarnation: u64) {
        self.members.insert(
            key,
            MemberRoutes { incarnation, peers: BTreeMap::new(), reported: BTreeMap::new() },
        );
    }

    pub(crate) fn remove_member(&mut self, key: MemberKey) {
        self.members.remove(&key);
        for link in self.links.values().filter_map(Weak::upgrade) {
            link.leave(key, None);
        }
        for (_, advertised_peer) in self.advertised.iter_mut().filter(|((to, _), _)| *to == key) {
            advertised_peer.peer.link = None;
        }
    }

    pub(crate) fn set_peers(&mut self, key: MemberKey, peers: BTreeMap<MemberId, String>) {
        let Some(local) = self.members.get_mut(&key) else { return };
        let mut before = std::mem::take(&mut local.peers);
        for (id, address) in peers {
            let peer = match before.remove(&id) {
                Some(peer) if peer.address == address => peer,
                Some(peer) => {
                    peer.leave(key, id);
                    PeerRoute { address, link: None }
                }
                None => PeerRoute { address, link: None },
            };
            local.peers.insert(id, peer);
        }
        before.into_iter().for_each(|(id, peer)| peer.leave(key, id));
    }

    fn find(&mut self, shared: &Arc<TcpShared>, from: MemberKey, to: MemberId) -> Option<Route> {
        let local = self.members.get_mut(&from)?;
        let pair = Introduction { from, incarnation: local.incarnation, to };
        let advertised_peer =
            self.advertised.get_mut(&(from, to)).map(|advertised_peer| &mut advertised_peer.peer);
        let peer = local.peers.get_mut(&to).or(advertised_peer)?;
        let link = match &peer.link {
            Some(link) => Arc::clone(link),
            None => open_link(&mut self.links, shared, &peer.address),
        };
        peer.link = Some(Arc::clone(&link));
        Some(Route { pair, link })
    }

    /// Whether to tell a member that this peer's address is not known.
    pub(crate) fn may_report(&mut self, from: MemberKey, to: MemberId, every: Duration) -> bool {
        let Some(local) = self.members.get_mut(&from) else { return false };
        local.reported.retain(|_, last| last.elapsed() < every);
        if local.reported.contains_key(&to) {
            return false;
        }
        local.reported.insert(to, Instant::now());
        true
    }

    /// This peer connected, and advertised this address.
    pub(crate) fn on_connected(
        &mut self,
        to: MemberKey,
        from: MemberId,
        connection: u64,
        address: &str,
    ) {
        let key = (to, from);
        match self.advertised.get_mut(&key) {
            Some(advertised_peer) if advertised_peer.peer.address == address => {
                advertised_peer.connection = connection
            }
            _ if address.is_empty() => {}
            _ => {
                let peer = PeerRoute { address: address.to_owned(), link: None };
                self.advertised.insert(key, AdvertisedPeer { connection, peer });
            }
        }
    }

    /// This connection of a peer is closed. False when there is a newer one.
    pub(crate) fn on_disconnected(
        &mut self,
        to: MemberKey,
        from: MemberId,
        connection: u64,
    ) -> bool {
        let last =
            self.advertised.get(&(to, from)).is_none_or(|last| last.connection == connection);
        if last {
            self.advertised.remove(&(to, from));
        }
        last
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl PeerRoute {
    fn leave(&self, key: MemberKey, id: MemberId) {
        if let Some(link) = &self.link {
            link.leave(key, Some(id));
        }
    }
}

fn open_link(
    links: &mut BTreeMap<String, Weak<Link>>,
    shared: &Arc<TcpShared>,
    address: &str,
) -> Arc<Link> {
    if let Some(link) = links.get(address).and_then(Weak::upgrade) {
        return link;
    }
    links.retain(|_, link| link.strong_count() > 0);
    let link = Arc::new(Link::open(shared, address));
    links.insert(address.to_owned(), Arc::downgrade(&link));
    link
}
