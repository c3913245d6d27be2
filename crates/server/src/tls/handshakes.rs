//! Handshakes with clients: each has a deadline, and their number is limited, independently of
//! the number of connections. A stranger who opens connections and is silent cannot keep others
//! out: when there are too many, the oldest one of the address that has the most is closed.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

/// The handshakes in progress at all listeners.
#[derive(Clone)]
pub(crate) struct Handshakes(Arc<HandshakesShared>);

struct HandshakesShared {
    table: Mutex<HandshakeTable>,
    limit: usize,
    counters: Arc<HandshakeCounters>,
}

#[derive(Default)]
struct HandshakeTable {
    last: u64,
    /// By number, so the first is the oldest.
    open: BTreeMap<u64, OpenHandshake>,
}

/// A handshake in progress. It ends when this is dropped.
struct OpenHandshake {
    address: IpAddr,
    _evict: oneshot::Sender<()>,
}

/// What happened to handshakes.
#[derive(Debug, Default)]
pub(crate) struct HandshakeCounters {
    pub(crate) in_progress: AtomicU64,
    pub(crate) completed: AtomicU64,
    /// Refused, or the client disconnected.
    pub(crate) failed: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    /// Closed since there were too many.
    pub(crate) evicted: AtomicU64,
}

impl Handshakes {
    pub(crate) fn new(limit: usize, counters: Arc<HandshakeCounters>) -> Self {
        let table = Mutex::default();
        Self(Arc::new(HandshakesShared { table, limit: limit.max(1), counters }))
    }

    /// Performs a handshake in a task. Its result is the work after the handshake, to which
    /// neither the deadline nor the limit apply.
    pub(crate) fn spawn<F, W>(&self, address: IpAddr, handshake: F)
    where
        F: Future<Output = Option<W>> + Send + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let counters = Arc::clone(&self.0.counters);
        let (evict, evicted) = oneshot::channel();
        let mut table = self.lock();
        if table.open.len() >= self.0.limit && table.evict_one() {
            count(&counters.evicted);
        }
        table.last += 1;
        let number = table.last;
        table.open.insert(number, OpenHandshake { address, _evict: evict });
        drop(table);
        count(&counters.in_progress);
        let slot = HandshakeSlot { handshakes: self.clone(), number };
        // Without the lock: a runtime that shuts down drops the task here, and the slot takes it.
        tokio::spawn(async move {
            let ended = tokio::select! {
                _ = evicted => return,
                ended = timeout(HANDSHAKE_TIMEOUT, handshake) => ended,
            };
            drop(slot);
            match ended {
                Ok(Some(work)) => {
                    count(&counters.completed);
                    work.await;
                }
                Ok(None) => count(&counters.failed),
                Err(_) => count(&counters.timed_out),
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, HandshakeTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HandshakeTable {
    /// Ends the oldest handshake of the address that has the most.
    fn evict_one(&mut self) -> bool {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for handshake in self.open.values() {
            *counts.entry(handshake.address).or_default() += 1;
        }
        // Of several addresses, the one with the oldest handshake.
        let most = counts.values().copied().max();
        let is_busiest =
            |handshake: &OpenHandshake| counts.get(&handshake.address).copied() == most;
        let oldest = self.open.iter().find(|(_, handshake)| is_busiest(handshake));
        let number = oldest.map(|(number, _)| *number);
        number.is_some_and(|number| self.open.remove(&number).is_some())
    }
}

/// Counts one handshake until it is dropped.
struct HandshakeSlot {
    handshakes: Handshakes,
    number: u64,
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.handshakes.lock().open.remove(&self.number);
        self.handshakes.0.counters.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    fn never(handshakes: &Handshakes, address: [u8; 4]) {
        handshakes.spawn(address.into(), pending::<Option<std::future::Ready<()>>>());
    }

    #[tokio::test(start_paused = true)]
    async fn handshakes_that_take_too_long_end() {
        let handshakes = Handshakes::new(10, Arc::default());
        let counters = Arc::clone(&handshakes.0.counters);
        never(&handshakes, [1, 1, 1, 1]);
        handshakes.spawn([1, 1, 1, 1].into(), async { Some(async {}) });
        handshakes.spawn([1, 1, 1, 1].into(), async { None::<std::future::Ready<()>> });
        tokio::time::sleep(HANDSHAKE_TIMEOUT / 2).await;
        assert_eq!(get(&counters.in_progress), 1);
        tokio::time::sleep(HANDSHAKE_TIMEOUT).await;
        assert_eq!(get(&counters.in_progress), 0);
        let ended = [&counters.completed, &counters.failed, &counters.timed_out].map(get);
        assert_eq!(ended, [1, 1, 1]);
        assert!(handshakes.lock().open.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_address_with_the_most_handshakes_loses_one() {
        let handshakes = Handshakes::new(4, Arc::default());
        never(&handshakes, [1, 1, 1, 1]);
        for _ in 0..3 {
            never(&handshakes, [2, 2, 2, 2]);
        }
        for _ in 0..5 {
            never(&handshakes, [2, 2, 2, 2]);
            tokio::task::yield_now().await;
        }
        never(&handshakes, [3, 3, 3, 3]);
        let addresses = |table: &HandshakeTable| {
            table.open.values().map(|open| open.address.to_string()).collect::<Vec<_>>()
        };
        let open = addresses(&handshakes.lock());
        assert_eq!(open, ["1.1.1.1", "2.2.2.2", "2.2.2.2", "3.3.3.3"]);
        assert_eq!(get(&handshakes.0.counters.evicted), 6);
    }

    /// A runtime that shuts down drops new tasks at once, with what they hold.
    #[test]
    fn a_handshake_that_begins_during_the_shutdown_ends() {
        let (sender, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let handle = runtime.handle().clone();
            runtime.shutdown_background();
            let _entered = handle.enter();
            let handshakes = Handshakes::new(1, Arc::default());
            for _ in 0..3 {
                never(&handshakes, [1, 1, 1, 1]);
            }
            let open = handshakes.lock().open.len();
            sender.send((open, get(&handshakes.0.counters.in_progress))).unwrap();
        });
        let ended = ended.recv_timeout(Duration::from_secs(60));
        assert_eq!(ended, Ok((0, 0)), "a handshake waits for its own lock");
    }
}
