//! Members reach each other over TCP: one connection for each direction between two
//! processes, shared by all members on both sides; and one for every snapshot.
//!
//! # Reading order
//! `frame` and `message` (what is on the wire; docs/formats.md), `handshake` (who speaks),
//! `queue` and `outgoing` (one address that is dialled), `guests` and `incoming` (who
//! dials), `snapshot_stream`. What somebody here said is trusted no further than the
//! introduction that was let in: see `incoming`.

mod config;
mod counts;
mod frame;
mod guests;
mod handshake;
mod incoming;
mod inquiry;
mod message;
mod outgoing;
mod queue;
mod rate;
mod secure;
mod shared;
mod snapshot_receive;
mod snapshot_send;
mod snapshot_stream;

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_core::{Entries, Envelope, MemberId, MemberInfo, Message};
use tokio::net::TcpListener;
use tokio::time::Instant;

pub use config::{AddressResolver, RoundTripCallback, TcpConfig};
pub use inquiry::DiscoveryError;
pub use secure::{ConnectionSecurity, PeerStream, Plaintext, SecurityFuture};

use crate::runtime::{
    HostedMember, Inbox, Introduction, MemberKey, OutgoingSnapshot, PeerMessage, RejectReason,
    Transport, TransportError, lock,
};
use counts::Counted;
use frame::Body;
use message::{MessageHead, Unsendable, body_of, encode_entries};
use queue::Queued;
use shared::Shared;

/// Carries messages and snapshots over TCP.
pub struct TcpTransport {
    shared: Arc<Shared>,
    local: SocketAddr,
    /// Until it is started.
    listeners: Mutex<Option<Vec<TcpListener>>>,
}

impl TcpTransport {
    /// Takes its address; nobody is accepted before it is started.
    pub async fn bind(config: TcpConfig) -> io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        let local = listener.local_addr()?;
        let mut listeners = vec![listener];
        for address in &config.listen_also {
            listeners.push(TcpListener::bind(address).await?);
        }
        let advertise = match config.advertise.as_str() {
            "" => local.to_string(),
            given => given.to_owned(),
        };
        let shared = Arc::new(Shared::new(config, advertise));
        Ok(Self { shared, local, listeners: Mutex::new(Some(listeners)) })
    }

    /// Where it listens; the first address, if there are several.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Asks the process at this `host:port` which members live there, and what each of them
    /// knows of its cluster: for one that is to join and has yet to find out who it is.
    /// Nothing has to be started for it.
    pub async fn discover(
        &self,
        address: &str,
        patience: Duration,
    ) -> Result<Vec<HostedMember>, DiscoveryError> {
        inquiry::ask(&self.shared, address, patience).await
    }

    /// Under which address others are told to reach it.
    pub fn advertised(&self) -> &str {
        &self.shared.advertise
    }
}

impl std::fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpTransport").field("local", &self.local).finish_non_exhaustive()
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.shared.begin_stop();
    }
}

impl Transport for TcpTransport {
    fn start(&self, inbox: Inbox) -> Result<(), TransportError> {
        let listeners = lock(&self.listeners).take().ok_or("started already")?;
        let _ = self.shared.inbox.set(inbox);
        for listener in listeners {
            let _ = self.shared.spawn(incoming::listen(Arc::clone(&self.shared), listener));
        }
        Ok(())
    }

    fn add_member(&self, key: MemberKey, incarnation: u64) {
        lock(&self.shared.routes).add_member(key, incarnation);
    }

    fn remove_member(&self, key: MemberKey) {
        lock(&self.shared.routes).remove_member(key);
    }

    fn set_peers(&self, key: MemberKey, peers: Vec<(MemberId, MemberInfo)>) {
        let resolve_address = &self.shared.config.resolve_address;
        let peers =
            peers.iter().filter_map(|(id, info)| Some((*id, resolve_address(info)?))).collect();
        lock(&self.shared.routes).set_peers(key, peers);
    }

    fn send(&self, key: MemberKey, parcels: Vec<PeerMessage>) {
        let (mut bodies, now) = (SharedBodies::default(), Instant::now());
        for parcel in parcels {
            let Some(route) = self.shared.route(key, parcel.to()) else {
                self.shared.no_route(key, parcel.to());
                continue;
            };
            match queued(route.pair, parcel, &mut bodies, now) {
                Ok(queued) => route.link.send(queued, &self.shared),
                Err(Unsendable) => self.shared.counts.one(Counted::DroppedUnsendable),
            }
        }
        self.shared.counts.add(Counted::BodiesEncoded, bodies.made);
    }

    fn send_snapshot(&self, key: MemberKey, snapshot: OutgoingSnapshot) {
        snapshot_send::send_snapshot(&self.shared, key, snapshot);
    }

    fn reject(&self, key: MemberKey, from: MemberId, why: RejectReason) {
        lock(&self.shared.guests).turn_away(key, from, why);
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = self.shared.counts.by_name();
        counts.extend(lock(&self.shared.guests).counts());
        counts
    }

    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            drop(lock(&self.listeners).take());
            self.shared.stop().await;
        })
    }
}

/// A parcel as it waits for its turn on the channel of this pair.
fn queued(
    pair: Introduction,
    parcel: PeerMessage,
    bodies: &mut SharedBodies,
    now: Instant,
) -> Result<Queued, Unsendable> {
    match parcel {
        PeerMessage::Side { from, bytes, .. } if from == pair.from.member => {
            Ok(Queued::aside(pair, Body::new(bytes), now))
        }
        PeerMessage::Side { .. } => Err(Unsendable),
        PeerMessage::Raft(Envelope { message: Message::Snapshot(_), .. }) => Err(Unsendable),
        PeerMessage::Raft(envelope) => {
            let head = MessageHead::new(&envelope, pair.from.member, pair.incarnation)?;
            let body = match &envelope.message {
                Message::Append(append) if !append.entries.is_empty() => {
                    Some(bodies.body(&append.entries)?)
                }
                other => body_of(other)?,
            };
            Ok(Queued::message(pair, head, body, now))
        }
    }
}

/// Entries that go to several peers are encoded once.
#[derive(Default)]
struct SharedBodies {
    bodies: Vec<(Entries, Body)>,
    made: u64,
}

impl SharedBodies {
    fn body(&mut self, entries: &Entries) -> Result<Body, Unsendable> {
        if let Some((_, body)) = self.bodies.iter().find(|(other, _)| are_same(entries, other)) {
            return Ok(body.clone());
        }
        let body = encode_entries(entries)?;
        self.bodies.push((entries.clone(), body.clone()));
        self.made += 1;
        Ok(body)
    }
}

/// Whether these are the very same entries in memory.
fn are_same(some: &Entries, others: &Entries) -> bool {
    let (mut some, mut others) = (some.chunks(), others.chunks());
    loop {
        match (some.next(), others.next()) {
            (None, None) => return true,
            (Some(one), Some(other)) if std::ptr::eq(one, other) => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod talk_tests;
#[cfg(test)]
mod tests;
