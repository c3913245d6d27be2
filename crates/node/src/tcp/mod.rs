//! The TCP transport: one connection for each direction between two processes, shared by all
//! members on both sides, and one for each snapshot.
//!
//! # Reading order
//! `frame`, `message` and `message_run` (the wire format; docs/formats.md), `handshake` (identification),
//! `send_queue` and `outgoing` (one address that is dialled), `connections` and `incoming`
//! (peers that dial), `snapshot_stream`. A peer is trusted no further than the introduction
//! that was accepted from it: see `incoming`.

mod config;
mod connections;
mod counters;
mod discovery;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod incoming;
mod message;
mod message_run;
mod outgoing;
mod port_budget;
mod rate_limit;
mod security;
mod send_queue;
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

use quorate_core::membership::MemberInfo;
use quorate_core::message::Message;
use quorate_core::{Entries, Envelope, MemberId};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::time::Instant;

pub use config::{AddressResolver, RejectedCallback, RoundTripCallback, TcpConfig};
pub use discovery::DiscoveryError;
pub use security::{
    AcceptFuture, ConnectionSecurity, PeerIdentity, PeerStream, Plaintext, SecuredPeer,
    SecurityFuture,
};

use crate::runtime::{
    HostedMember, Inbox, Introduction, MemberKey, OutgoingSnapshot, PeerMessage, RejectReason,
    Transport, TransportError, lock,
};
use counters::TcpCounter;
use frame::FrameBody;
use message::{MessageHead, UnencodableMessage, body_of, encode_entries};
use message_run::{encode_run, run_length};
use send_queue::QueuedFrame;
use shared::{Route, TcpShared};

/// Carries messages and snapshots over TCP.
pub struct TcpTransport {
    shared: Arc<TcpShared>,
    local: SocketAddr,
    /// Until the transport is started.
    listeners: Mutex<Option<Vec<TcpListener>>>,
}

impl TcpTransport {
    /// Binds its address. Connections are accepted once the transport is started.
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
        let shared = Arc::new(TcpShared::new(config, advertise));
        Ok(Self { shared, local, listeners: Mutex::new(Some(listeners)) })
    }

    /// The address it listens on; the first one, if there are several.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Asks the process at this `host:port` which members it hosts, and which membership each
    /// of them knows: for a process that joins a cluster and has yet to learn its id. The
    /// transport need not be started for it.
    pub async fn discover(
        &self,
        address: &str,
        limit: Duration,
    ) -> Result<Vec<HostedMember>, DiscoveryError> {
        discovery::discover(&self.shared, address, limit).await
    }

    /// The address that peers are told to reach it at.
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
        let listeners = lock(&self.listeners).take().ok_or("the transport is already started")?;
        let _ = self.shared.inbox.set(inbox);
        let _ = self.shared.runtime.set(Handle::current());
        for listener in listeners {
            // It was bound on the caller's runtime, which may not be the one that serves it.
            let listener = TcpListener::from_std(listener.into_std()?)?;
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
        let peers = peers.into_iter().map(|(id, info)| {
            let address = resolve_address(&info);
            (id, (info, address))
        });
        let peers = peers.collect();
        lock(&self.shared.routes).set_peers(key, peers);
    }

    fn send(&self, key: MemberKey, messages: Vec<PeerMessage>) {
        let (mut bodies, now) = (SharedBodies::default(), Instant::now());
        // Many messages in a row go to the same peer: requests that a follower forwards.
        let mut last_route: Option<(MemberId, Route)> = None;
        let mut rest = &messages[..];
        while let Some(first) = rest.first() {
            let to = first.to();
            if last_route.as_ref().is_none_or(|(peer, _)| *peer != to) {
                last_route = self.shared.route(key, to).map(|route| (to, route));
            }
            let Some((_, route)) = &last_route else {
                self.shared.no_route(key, to);
                rest = &rest[1..];
                continue;
            };
            let runs = route.accepts_runs();
            let count = if runs { run_length(rest, self.shared.config.frame_bytes_max) } else { 1 };
            let (run, after) = rest.split_at(count);
            rest = after;
            match queued(route.pair, run, &mut bodies, now) {
                Ok(queued) => {
                    for other in &route.also {
                        other.send(queued.clone(), &self.shared);
                    }
                    route.link.send(queued, &self.shared);
                }
                Err(UnencodableMessage) => self.shared.counts.one(TcpCounter::DroppedUnsendable),
            }
        }
        self.shared.counts.add(TcpCounter::BodiesEncoded, bodies.made);
    }

    fn send_snapshot(&self, key: MemberKey, snapshot: OutgoingSnapshot) {
        snapshot_send::send_snapshot(&self.shared, key, snapshot);
    }

    fn reject(&self, key: MemberKey, from: MemberId, why: RejectReason) {
        lock(&self.shared.connections).reject(key, from, why);
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = self.shared.counts.by_name();
        counts.extend(lock(&self.shared.connections).counts());
        counts.insert("buffered_bytes", self.shared.budget.used() as u64);
        counts.insert("buffered_bytes_limit", self.shared.budget.limit() as u64);
        let queued = lock(&self.shared.routes).queued_bytes();
        let limit = self.shared.config.queue_bytes_max;
        counts.insert("queued_bytes", queued.iter().sum::<usize>() as u64);
        counts.insert("queued_bytes_limit", limit.saturating_mul(queued.len()) as u64);
        counts
    }

    fn connected_peers(&self, key: MemberKey) -> Vec<MemberId> {
        lock(&self.shared.routes).connected_peers(key)
    }

    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            drop(lock(&self.listeners).take());
            self.shared.stop().await;
        })
    }
}

/// Messages as one frame for the channel of this pair: one message, or a run.
fn queued(
    pair: Introduction,
    messages: &[PeerMessage],
    bodies: &mut SharedBodies,
    now: Instant,
) -> Result<QueuedFrame, UnencodableMessage> {
    match messages.first().ok_or(UnencodableMessage)? {
        PeerMessage::Side { from, bytes, .. } if *from == pair.from.member => {
            Ok(QueuedFrame::side_message(pair, FrameBody::new(bytes.clone()), now))
        }
        PeerMessage::Side { .. } => Err(UnencodableMessage),
        PeerMessage::Raft(Envelope { message: Message::Snapshot(_), .. }) => {
            Err(UnencodableMessage)
        }
        PeerMessage::Raft(first) if messages.len() > 1 => {
            let (run, body) = encode_run(messages).ok_or(UnencodableMessage)?;
            let head = MessageHead::of_run(first, run, pair.from.member, pair.incarnation)?;
            Ok(QueuedFrame::message(pair, head, body, now))
        }
        PeerMessage::Raft(envelope) => {
            let head = MessageHead::new(envelope, pair.from.member, pair.incarnation)?;
            let body = match &envelope.message {
                Message::Append(append) if !append.entries.is_empty() => {
                    Some(bodies.body(&append.entries)?)
                }
                other => body_of(other)?,
            };
            Ok(QueuedFrame::message(pair, head, body, now))
        }
    }
}

/// The bodies of one call: entries that go to several peers are encoded once.
#[derive(Default)]
struct SharedBodies {
    bodies: Vec<(Entries, FrameBody)>,
    made: u64,
}

impl SharedBodies {
    fn body(&mut self, entries: &Entries) -> Result<FrameBody, UnencodableMessage> {
        if let Some((_, body)) = self.bodies.iter().find(|(other, _)| are_same(entries, other)) {
            return Ok(body.clone());
        }
        let body = encode_entries(entries)?;
        self.bodies.push((entries.clone(), body.clone()));
        self.made += 1;
        Ok(body)
    }
}

/// Whether these are the same entries in memory.
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
mod connection_tests;
#[cfg(test)]
mod tests;
