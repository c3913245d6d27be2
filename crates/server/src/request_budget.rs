//! Requests whose message has not arrived completely: their number and their bytes are limited for
//! each connection, for each client address and overall. A client that begins very many requests
//! and completes none would otherwise hold memory for as long as it likes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::status::ServiceError;

/// The requests without a complete message. Only those whose message did not arrive together with
/// the headers are counted, which are few.
#[derive(Clone, Debug)]
pub(crate) struct AwaitedRequests {
    counts: Arc<Mutex<AwaitedCounts>>,
    /// The limit of the bytes of all of them.
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct AwaitedCounts {
    connections: HashMap<Option<SocketAddr>, AwaitedShare>,
    addresses: HashMap<Option<IpAddr>, AwaitedShare>,
    bytes: usize,
    refused: u64,
}

/// What one connection or one address has.
#[derive(Clone, Copy, Debug, Default)]
struct AwaitedShare {
    requests: usize,
    bytes: usize,
}

impl AwaitedRequests {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { counts: Arc::default(), bytes_max }
    }

    fn lock(&self) -> MutexGuard<'_, AwaitedCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes that have arrived of all of them.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Requests that were refused because of these limits.
    pub(crate) fn refused(&self) -> u64 {
        self.lock().refused
    }

    /// Those of this connection.
    pub(crate) fn of(&self, connection: Option<SocketAddr>) -> ConnectionRequests {
        ConnectionRequests { requests: self.clone(), connection }
    }
}

/// The requests of one connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionRequests {
    requests: AwaitedRequests,
    connection: Option<SocketAddr>,
}

impl ConnectionRequests {
    /// Whether little memory is left, so that requests without progress have to end.
    pub(crate) fn is_short(&self) -> bool {
        self.requests.bytes() > self.requests.bytes_max / 4 * 3
    }

    /// Counts a request without a complete message.
    pub(crate) fn begin(&self) -> Result<AwaitedRequest, ServiceError> {
        let Self { requests, connection } = self.clone();
        let mut counts = requests.lock();
        let address = address_of(connection);
        let of_connection = counts.connections.get(&connection).map_or(0, |it| it.requests);
        let of_address = counts.addresses.get(&address).map_or(0, |it| it.requests);
        let exceeded = if of_connection >= AWAITED_MAX {
            Some(AWAITED_MAX)
        } else {
            // Others may share the address with a client that floods: each connection has a share.
            let has_share = of_connection < CONNECTION_SHARE;
            (of_address >= AWAITED_OF_ADDRESS_MAX && !has_share).then_some(AWAITED_OF_ADDRESS_MAX)
        };
        if let Some(limit) = exceeded {
            counts.refused += 1;
            return Err(ServiceError::TooManyOpenRequests { limit });
        }
        counts.of_connection(connection).requests += 1;
        counts.of_address(address).requests += 1;
        drop(counts);
        Ok(AwaitedRequest { requests, connection, bytes: 0 })
    }
}

impl AwaitedCounts {
    fn of_connection(&mut self, connection: Option<SocketAddr>) -> &mut AwaitedShare {
        self.connections.entry(connection).or_default()
    }

    fn of_address(&mut self, address: Option<IpAddr>) -> &mut AwaitedShare {
        self.addresses.entry(address).or_default()
    }
}

fn address_of(connection: Option<SocketAddr>) -> Option<IpAddr> {
    connection.map(|connection| connection.ip().to_canonical())
}

/// One of them. It is no longer counted when this is dropped.
#[derive(Debug)]
pub(crate) struct AwaitedRequest {
    requests: AwaitedRequests,
    connection: Option<SocketAddr>,
    bytes: usize,
}

impl AwaitedRequest {
    /// Counts this many bytes of its message.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), ServiceError> {
        if bytes == self.bytes {
            return Ok(());
        }
        let limit = self.requests.bytes_max;
        let address = address_of(self.connection);
        let mut counts = self.requests.lock();
        let changed = |before: usize| before - self.bytes + bytes;
        let of_all = changed(counts.bytes);
        let of_connection = changed(counts.of_connection(self.connection).bytes);
        let of_address = changed(counts.of_address(address).bytes);
        let is_allowed = of_all <= limit
            && (of_address <= limit / 2 || of_connection <= limit / CONNECTION_BYTES_PART);
        if bytes > self.bytes && !is_allowed {
            counts.refused += 1;
            return Err(ServiceError::RequestMemoryUsedUp { limit: limit as u64 });
        }
        counts.bytes = of_all;
        counts.of_connection(self.connection).bytes = of_connection;
        counts.of_address(address).bytes = of_address;
        drop(counts);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for AwaitedRequest {
    fn drop(&mut self) {
        let mut counts = self.requests.lock();
        counts.bytes -= self.bytes;
        subtract(&mut counts.connections, self.connection, self.bytes);
        subtract(&mut counts.addresses, address_of(self.connection), self.bytes);
    }
}

fn subtract<K: Eq + Hash>(shares: &mut HashMap<K, AwaitedShare>, key: K, bytes: usize) {
    if let Entry::Occupied(mut share) = shares.entry(key) {
        share.get_mut().requests -= 1;
        share.get_mut().bytes -= bytes;
        if share.get().requests == 0 {
            share.remove();
        }
    }
}

/// This many requests of one connection may lack their message.
const AWAITED_MAX: usize = 4_096;
/// This many requests of one client address may lack their message.
const AWAITED_OF_ADDRESS_MAX: usize = 4 * AWAITED_MAX;
/// This many of each connection may lack their message whatever others of its address do.
const CONNECTION_SHARE: usize = 16;
/// One part in so many of the memory is for each connection, whatever others of its address have.
const CONNECTION_BYTES_PART: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn begin(requests: &AwaitedRequests, from: &str) -> Result<AwaitedRequest, ServiceError> {
        requests.of(Some(from.parse().unwrap())).begin()
    }

    fn assert_none_counted(requests: &AwaitedRequests) {
        let counts = requests.lock();
        assert!(counts.connections.is_empty() && counts.addresses.is_empty(), "{counts:?}");
        assert_eq!(counts.bytes, 0);
    }

    #[test]
    fn their_number_is_limited_for_each_connection_and_each_address() {
        let requests = AwaitedRequests::new(MIB);
        let mut open = Vec::new();
        for port in 1..=AWAITED_OF_ADDRESS_MAX / AWAITED_MAX {
            let connection = format!("127.0.0.1:{port}");
            for _ in 0..AWAITED_MAX {
                open.push(begin(&requests, &connection).unwrap());
            }
            let refused = begin(&requests, &connection).unwrap_err();
            assert!(matches!(refused, ServiceError::TooManyOpenRequests { limit: AWAITED_MAX }));
        }
        // Another connection, from the same address in its other notation, has its share.
        for _ in 0..CONNECTION_SHARE {
            open.push(begin(&requests, "[::ffff:127.0.0.1]:9999").unwrap());
        }
        assert!(begin(&requests, "[::ffff:127.0.0.1]:9999").is_err());
        open.push(begin(&requests, "127.0.0.2:1").unwrap());
        assert_eq!(requests.refused(), 5);
        drop(open);
        assert_none_counted(&requests);
    }

    #[test]
    fn their_bytes_are_limited_for_each_address_and_overall() {
        let requests = AwaitedRequests::new(64 * MIB);
        let mut flood = begin(&requests, "127.0.0.1:1").unwrap();
        flood.resize(32 * MIB).unwrap();
        assert!(flood.resize(32 * MIB + 1).is_err());
        assert!(!requests.of(None).is_short());
        // Another connection of the address has its share, and other addresses have the rest.
        let mut beside = begin(&requests, "127.0.0.1:2").unwrap();
        beside.resize(2 * MIB).unwrap();
        assert!(beside.resize(2 * MIB + 1).is_err());
        let mut other = begin(&requests, "127.0.0.2:1").unwrap();
        other.resize(30 * MIB).unwrap();
        assert!(other.resize(30 * MIB + 1).is_err());
        assert!(requests.of(None).is_short());
        assert_eq!((requests.bytes(), requests.refused()), (64 * MIB, 3));
        drop(flood);
        other.resize(32 * MIB).unwrap();
        other.resize(1).unwrap();
        assert_eq!(requests.bytes(), 2 * MIB + 1);
        drop((beside, other));
        assert_none_counted(&requests);
    }
}
