//! The incoming connections of this process, and the limits on their number.
//!
//! Connections without a member yet must not keep members out: when there are too many, the
//! oldest of the address that has the most is closed.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};

use super::counters::TcpCounter;
use super::incoming::serve;
use super::shared::TcpShared;
use crate::runtime::{MemberKey, RejectReason, lock};
use quorate_core::MemberId;

/// All incoming connections, by their numbers.
#[derive(Default)]
pub(crate) struct IncomingConnections {
    last: u64,
    unidentified: BTreeMap<u64, UnidentifiedConnection>,
    identified: BTreeMap<u64, Arc<PendingRejections>>,
}

/// A connection without a member. It is closed when this is dropped.
struct UnidentifiedConnection {
    address: IpAddr,
    _evict: oneshot::Sender<()>,
}

/// Members that the task of a connection has to reject.
#[derive(Default)]
pub(crate) struct PendingRejections {
    list: Mutex<Vec<(MemberKey, MemberId, RejectReason)>>,
    pub(crate) filled: Notify,
}

impl PendingRejections {
    pub(crate) fn take(&self) -> Vec<(MemberKey, MemberId, RejectReason)> {
        std::mem::take(&mut *lock(&self.list))
    }
}

impl IncomingConnections {
    /// Accepts a connection that has yet to identify itself.
    pub(crate) fn accept(shared: &Arc<TcpShared>, stream: TcpStream) {
        let address = stream.peer_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| peer.ip());
        let (evict, evicted) = oneshot::channel();
        let mut connections = lock(&shared.connections);
        if connections.unidentified.len() >= shared.config.unidentified_max.max(1) {
            connections.evict_one();
            shared.counts.one(TcpCounter::Evicted);
        }
        connections.last += 1;
        let number = connections.last;
        let connection = UnidentifiedConnection { address: address.to_canonical(), _evict: evict };
        connections.unidentified.insert(number, connection);
        drop(connections);
        // Without the lock: when the transport or its runtime is stopping, the slot is dropped
        // here, and takes the lock.
        let slot = ConnectionSlot { shared: Arc::clone(shared), number };
        let _ = shared.spawn(serve(stream, slot, evicted));
    }

    /// Closes the oldest connection of the address that has the most.
    fn evict_one(&mut self) {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for connection in self.unidentified.values() {
            *counts.entry(connection.address).or_default() += 1;
        }
        let most = counts.values().copied().max();
        let is_busiest =
            |connection: &UnidentifiedConnection| counts.get(&connection.address).copied() == most;
        let oldest = self.unidentified.iter().find(|(_, connection)| is_busiest(connection));
        if let Some(number) = oldest.map(|(number, _)| *number) {
            self.unidentified.remove(&number);
        }
    }

    pub(crate) fn reject(&self, key: MemberKey, from: MemberId, why: RejectReason) {
        for connection in self.identified.values() {
            let mut list = lock(&connection.list);
            if !list.contains(&(key, from, why)) {
                list.push((key, from, why));
            }
            drop(list);
            connection.filled.notify_one();
        }
    }

    pub(crate) fn counts(&self) -> [(&'static str, u64); 2] {
        [
            ("connections_unidentified", self.unidentified.len() as u64),
            ("connections_identified", self.identified.len() as u64),
        ]
    }
}

/// Registers one connection, until it is dropped.
pub(crate) struct ConnectionSlot {
    pub(crate) shared: Arc<TcpShared>,
    pub(crate) number: u64,
}

impl ConnectionSlot {
    /// The connection has identified itself. None when there are too many of those.
    pub(crate) fn identified(&self) -> Option<Arc<PendingRejections>> {
        let mut connections = lock(&self.shared.connections);
        if connections.identified.len() >= self.shared.config.identified_max {
            return None;
        }
        connections.unidentified.remove(&self.number)?;
        let rejections = Arc::new(PendingRejections::default());
        connections.identified.insert(self.number, Arc::clone(&rejections));
        Some(rejections)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut connections = lock(&self.shared.connections);
        connections.unidentified.remove(&self.number);
        connections.identified.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_connection_of_the_busiest_address_is_evicted() {
        let mut connections = IncomingConnections::default();
        let mut receivers = BTreeMap::new();
        for (number, last) in [1, 2, 2, 3, 2].into_iter().enumerate() {
            let (evict, evicted) = oneshot::channel();
            let connection =
                UnidentifiedConnection { address: [10, 0, 0, last].into(), _evict: evict };
            connections.unidentified.insert(number as u64, connection);
            receivers.insert(number as u64, evicted);
        }
        // Two of address 2; then the oldest, since each address has one.
        for expected in [1, 2, 0] {
            connections.evict_one();
            assert!(!connections.unidentified.contains_key(&expected));
            let evicted = receivers.get_mut(&expected).unwrap().try_recv();
            assert_eq!(evicted, Err(oneshot::error::TryRecvError::Closed));
        }
        assert_eq!(connections.unidentified.keys().copied().collect::<Vec<_>>(), [3, 4]);
    }
}
