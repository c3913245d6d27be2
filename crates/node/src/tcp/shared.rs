//! What the tasks of a transport share, and how they are stopped.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use quorate_core::MemberId;
use quorate_core::membership::MemberInfo;
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
use super::security::PeerIdentity;
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

    /// Messages of this pair are being lost at this address. While the peer is reached at
    /// another address, the member need not know.
    pub(crate) fn unreachable(&self, pair: Introduction, address: &str) {
        if lock(&self.routes).reaches_elsewhere(&pair, address) {
            return;
        }
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
    /// Other addresses that may be the peer's, or will be. Messages go there too, until the peer
    /// accepts connections at the address that the membership names: it may lose, delay and
    /// duplicate messages, so that a copy does no harm.
    pub(crate) also: Vec<Arc<Link>>,
}

impl Route {
    /// Whether several messages may be in one frame.
    pub(crate) fn accepts_runs(&self) -> bool {
        self.link.accepts_runs() && self.also.iter().all(|link| link.accepts_runs())
    }
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
    /// All peers, with their addresses, also those that have none.
    known: BTreeMap<MemberId, (MemberInfo, Option<String>)>,
    /// When it was last told that a peer's address is not known.
    reported: BTreeMap<MemberId, Instant>,
}

struct PeerRoute {
    present: PeerAddress,
    /// The addresses before, newest first, until the peer accepts connections at this one. An
    /// operator announces a new address first and restarts the member with it later.
    earlier: Vec<PeerAddress>,
}

struct PeerAddress {
    address: String,
    /// Opened when there is something to send.
    link: Option<Arc<Link>>,
}

struct AdvertisedPeer {
    connection: u64,
    peer: PeerAddress,
}

impl Routes {
    /// The bytes that wait to be written to each address.
    pub(crate) fn queued_bytes(&self) -> Vec<usize> {
        let links = self.links.values().filter_map(Weak::upgrade);
        links.map(|link| link.queued_bytes()).collect()
    }

    /// The peers in the membership that this member is connected with, in either direction.
    pub(crate) fn connected_peers(&self, key: MemberKey) -> Vec<MemberId> {
        let Some(local) = self.members.get(&key) else { return Vec::new() };
        let is_connected = |id: &MemberId| {
            let pair = Introduction { from: key, incarnation: local.incarnation, to: *id };
            self.advertised.contains_key(&(key, *id)) || self.reaches_elsewhere(&pair, "")
        };
        local.peers.keys().copied().filter(is_connected).collect()
    }

    pub(crate) fn add_member(&mut self, key: MemberKey, incarnation: u64) {
        self.members.insert(
            key,
            MemberRoutes {
                incarnation,
                peers: BTreeMap::new(),
                known: BTreeMap::new(),
                reported: BTreeMap::new(),
            },
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

    pub(crate) fn set_peers(
        &mut self,
        key: MemberKey,
        known: BTreeMap<MemberId, (MemberInfo, Option<String>)>,
    ) {
        let Some(local) = self.members.get_mut(&key) else { return };
        let mut before = std::mem::take(&mut local.peers);
        let addresses = known.iter().filter_map(|(id, (_, address))| Some((*id, address.clone()?)));
        for (id, address) in addresses {
            let peer = match before.remove(&id) {
                Some(peer) if peer.present.address == address => peer,
                Some(peer) => peer.moved_to(address, key, id),
                None => PeerRoute::new(address),
            };
            local.peers.insert(id, peer);
        }
        before.into_iter().for_each(|(id, mut peer)| peer.leave(key, id));
        local.known = known;
    }

    /// Whether the other side of a connection may speak for this peer. None if the local member
    /// does not know the peer (yet).
    pub(crate) fn is_identity(
        &self,
        to: MemberKey,
        from: MemberId,
        identity: &dyn PeerIdentity,
    ) -> Option<bool> {
        let (info, address) = self.members.get(&to)?.known.get(&from)?;
        Some(identity.is_member(info, address.as_deref()))
    }

    fn find(&mut self, shared: &Arc<TcpShared>, from: MemberKey, to: MemberId) -> Option<Route> {
        let Self { members, advertised, links } = self;
        let local = members.get_mut(&from)?;
        let pair = Introduction { from, incarnation: local.incarnation, to };
        let advertised = advertised.get_mut(&(from, to)).map(|advertised| &mut advertised.peer);
        let Some(peer) = local.peers.get_mut(&to) else {
            let link = advertised?.open(links, shared);
            return Some(Route { pair, link, also: Vec::new() });
        };
        let link = peer.present.open(links, shared);
        let advertised = advertised.filter(|other| other.address != peer.present.address);
        if peer.earlier.is_empty() && advertised.is_none() {
            return Some(Route { pair, link, also: Vec::new() });
        }
        if link.serves(&pair) {
            peer.leave_earlier(from, to);
            return Some(Route { pair, link, also: Vec::new() });
        }
        let mut others: Vec<Arc<Link>> = Vec::new();
        for other in peer.earlier.iter_mut().chain(advertised) {
            let link = other.open(links, shared);
            if !others.iter().any(|known| Arc::ptr_eq(known, &link)) {
                others.push(link);
            }
        }
        match others.iter().position(|other| other.serves(&pair)) {
            Some(serves) => {
                let other = others.swap_remove(serves);
                Some(Route { pair, link: other, also: vec![link] })
            }
            None => Some(Route { pair, link, also: others }),
        }
    }

    /// Whether the peer has accepted this pair at another address than this one.
    fn reaches_elsewhere(&self, pair: &Introduction, address: &str) -> bool {
        let peer = self.members.get(&pair.from).and_then(|local| local.peers.get(&pair.to));
        let known = peer.into_iter().flat_map(|peer| peer.earlier.iter().chain([&peer.present]));
        let advertised = self.advertised.get(&(pair.from, pair.to)).map(|known| &known.peer);
        let links = known.chain(advertised).filter_map(|known| known.link.as_ref());
        links.into_iter().any(|link| link.address() != address && link.serves(pair))
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
                let peer = PeerAddress::new(address.to_owned());
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

impl PeerAddress {
    fn new(address: String) -> Self {
        Self { address, link: None }
    }

    fn open(
        &mut self,
        links: &mut BTreeMap<String, Weak<Link>>,
        shared: &Arc<TcpShared>,
    ) -> Arc<Link> {
        let link = self.link.get_or_insert_with(|| open_link(links, shared, &self.address));
        Arc::clone(link)
    }

    fn leave(&self, key: MemberKey, id: MemberId) {
        if let Some(link) = &self.link {
            link.leave(key, Some(id));
        }
    }
}

impl PeerRoute {
    fn new(address: String) -> Self {
        Self { present: PeerAddress::new(address), earlier: Vec::new() }
    }

    /// The same peer at another address. The present one stays in use until the peer accepts
    /// connections at the new one.
    fn moved_to(self, address: String, key: MemberKey, id: MemberId) -> Self {
        let Self { present, mut earlier } = self;
        earlier.insert(0, present);
        let known = earlier.iter().position(|known| known.address == address);
        let present = known.map(|known| earlier.remove(known));
        for dropped in earlier.drain(earlier.len().min(EARLIER_ADDRESSES_MAX)..) {
            dropped.leave(key, id);
        }
        Self { present: present.unwrap_or_else(|| PeerAddress::new(address)), earlier }
    }

    fn leave(&mut self, key: MemberKey, id: MemberId) {
        self.present.leave(key, id);
        self.leave_earlier(key, id);
    }

    fn leave_earlier(&mut self, key: MemberKey, id: MemberId) {
        self.earlier.drain(..).for_each(|earlier| earlier.leave(key, id));
    }
}

/// Earlier addresses of a peer that are kept until it accepts connections at its present one.
const EARLIER_ADDRESSES_MAX: usize = 4;

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
