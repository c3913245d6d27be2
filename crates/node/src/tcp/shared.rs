//! What the tasks of a transport share, and how they end.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use quorate_core::MemberId;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::config::TcpConfig;
use super::connections::IncomingConnections;
use super::counters::{TcpCounter, TcpCounters};
use super::outgoing::Link;
use super::rate_limit::RateLimit;
use crate::runtime::{Inbox, Introduction, MemberKey, lock};

pub(crate) struct TcpShared {
    pub(crate) config: TcpConfig,
    /// Where others reach this process.
    pub(crate) advertise: String,
    pub(crate) counts: TcpCounters,
    pub(crate) inbox: OnceLock<Inbox>,
    pub(crate) routes: Mutex<Routes>,
    pub(crate) connections: Mutex<IncomingConnections>,
    pub(crate) snapshot_places: Semaphore,
    pub(crate) snapshots_waiting: AtomicUsize,
    pub(crate) snapshot_rate: RateLimit,
    stopping: watch::Sender<bool>,
    /// Every task holds one of these; the receiver ends when none is left.
    running: Mutex<Option<mpsc::Sender<()>>>,
    ended: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

impl TcpShared {
    pub(crate) fn new(config: TcpConfig, advertise: String) -> Self {
        let (running, ended) = mpsc::channel(1);
        Self {
            advertise,
            counts: TcpCounters::default(),
            inbox: OnceLock::new(),
            routes: Mutex::default(),
            connections: Mutex::default(),
            snapshot_places: Semaphore::new(config.snapshots_max.max(1)),
            snapshots_waiting: AtomicUsize::new(0),
            snapshot_rate: RateLimit::new(config.snapshot_bytes_per_second),
            stopping: watch::Sender::new(false),
            running: Mutex::new(Some(running)),
            ended: tokio::sync::Mutex::new(ended),
            config,
        }
    }

    /// Runs until it is done or the transport stops. EmptyHead runs after that: then the task
    /// comes back, so that the advertised_peer chooses where it is dropped.
    pub(crate) fn spawn<F>(&self, task: F) -> Result<AbortHandle, F>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(running) = lock(&self.running).clone() else { return Err(task) };
        let mut stopping = self.stopping.subscribe();
        let spawned = tokio::spawn(async move {
            tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => {}
                () = task => {}
            }
            drop(running);
        });
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

    /// Nobody knows where this peer is.
    pub(crate) fn no_route(&self, from: MemberKey, to: MemberId) {
        self.counts.one(TcpCounter::DroppedNoAddress);
        let tell = lock(&self.routes).may_tell(from, to, self.config.unreachable_every);
        if let Some(inbox) = self.inbox.get().filter(|_| tell) {
            inbox.unreachable(from, to);
        }
    }

    pub(crate) fn unreachable(&self, pair: Introduction) {
        if let Some(inbox) = self.inbox.get() {
            inbox.unreachable(pair.from, pair.to);
        }
    }

    /// The way from a member here to a peer of it, if there is one; and its introduction.
    pub(crate) fn route(self: &Arc<Self>, from: MemberKey, to: MemberId) -> Option<Route> {
        lock(&self.routes).find(self, from, to)
    }
}

/// A way to a peer.
pub(crate) struct Route {
    pub(crate) pair: Introduction,
    pub(crate) link: Arc<Link>,
}

/// Who lives here, and where their peers are.
#[derive(Default)]
pub(crate) struct Routes {
    members: BTreeMap<MemberKey, MemberRoutes>,
    /// Where peers message that they are, when they connected: for those that nobody named.
    advertised: BTreeMap<(MemberKey, MemberId), AdvertisedPeer>,
    links: BTreeMap<String, Weak<Link>>,
}

struct MemberRoutes {
    incarnation: u64,
    peers: BTreeMap<MemberId, PeerRoute>,
    /// When it was last told that nobody knows where a peer is.
    told: BTreeMap<MemberId, Instant>,
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
            MemberRoutes { incarnation, peers: BTreeMap::new(), told: BTreeMap::new() },
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

    /// Whether to tell a member that nobody knows where this peer is.
    pub(crate) fn may_tell(&mut self, from: MemberKey, to: MemberId, every: Duration) -> bool {
        let Some(local) = self.members.get_mut(&from) else { return false };
        local.told.retain(|_, told| told.elapsed() < every);
        if local.told.contains_key(&to) {
            return false;
        }
        local.told.insert(to, Instant::now());
        true
    }

    /// This peer connected, and message where it is reached.
    pub(crate) fn called(&mut self, to: MemberKey, from: MemberId, connection: u64, at: &str) {
        let key = (to, from);
        match self.advertised.get_mut(&key) {
            Some(advertised_peer) if advertised_peer.peer.address == at => {
                advertised_peer.connection = connection
            }
            _ if at.is_empty() => {}
            _ => {
                let peer = PeerRoute { address: at.to_owned(), link: None };
                self.advertised.insert(key, AdvertisedPeer { connection, peer });
            }
        }
    }

    /// This connection of a peer is gone. False when there is a newer one.
    pub(crate) fn hung_up(&mut self, to: MemberKey, from: MemberId, connection: u64) -> bool {
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
