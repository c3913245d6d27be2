//! The incoming connections of this process, and the limits on their number.
//!
//! Connections without a member yet must not keep members out: when there are too many, the
//! oldest is closed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::counters::TcpCounter;
use super::incoming::serve;
use super::shared::TcpShared;
use crate::runtime::{MemberKey, RejectReason, lock};
use quorate_core::MemberId;

/// All incoming connections, by their numbers.
#[derive(Default)]
pub(crate) struct IncomingConnections {
    last: u64,
    unidentified: BTreeMap<u64, AbortHandle>,
    identified: BTreeMap<u64, Arc<PendingRejections>>,
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
        let mut connections = lock(&shared.connections);
        if connections.unidentified.len() >= shared.config.unidentified_max.max(1)
            && let Some((_, oldest)) = connections.unidentified.pop_first()
        {
            oldest.abort();
            shared.counts.one(TcpCounter::Evicted);
        }
        connections.last += 1;
        let number = connections.last;
        let slot = ConnectionSlot { shared: Arc::clone(shared), number };
        // When the transport is stopping, the slot comes back; it takes the lock when dropped.
        match shared.spawn(serve(stream, slot)) {
            Ok(task) => {
                connections.unidentified.insert(number, task);
            }
            Err(never_run) => {
                drop(connections);
                drop(never_run);
            }
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
