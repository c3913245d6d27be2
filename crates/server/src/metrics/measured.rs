//! What is counted and measured while a server runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate::{Event, Index, NodeObserver};

use super::calls::Calls;
use super::histogram::{DISK, Histogram, PEERS};
use super::traffic::Traffic;

/// What happens inside the member, and on the connections.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(super) syncs: Histogram,
    pub(super) applies: Histogram,
    pub(super) slow_applies: AtomicU64,
    pub(super) leader_changes: AtomicU64,
    /// By address; looked at once a second for each.
    round_trips: Mutex<BTreeMap<String, Arc<Histogram>>>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) traffic: Arc<Traffic>,
}

impl Measured {
    /// With `timed`, it is also measured how long each call takes.
    pub(crate) fn new(timed: bool) -> Self {
        Self {
            syncs: Histogram::new(DISK),
            applies: Histogram::new(DISK),
            slow_applies: AtomicU64::new(0),
            leader_changes: AtomicU64::new(0),
            round_trips: Mutex::new(BTreeMap::new()),
            calls: Calls::new(timed),
            traffic: Arc::new(Traffic::default()),
        }
    }

    /// The peer at this address took so long to answer.
    pub(crate) fn on_round_trip(&self, address: &str, took: Duration) {
        let mut known = self.round_trips.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(address) {
            known.insert(address.to_owned(), Arc::new(Histogram::new(PEERS)));
        }
        if let Some(times) = known.get(address) {
            times.observe(took);
        }
    }

    pub(super) fn round_trips(&self, address: &str) -> Option<Arc<Histogram>> {
        self.round_trips.lock().unwrap_or_else(PoisonError::into_inner).get(address).cloned()
    }
}

impl NodeObserver for Measured {
    fn on_event(&self, event: &Event) {
        if let Event::Leader { leader: Some(_), .. } = event {
            self.leader_changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn on_sync(&self, took: Duration, _saves: u64) {
        self.syncs.observe(took);
    }

    fn on_applied(&self, _index: Index, _entries: u64, took: Duration) {
        self.applies.observe(took);
        if took > SLOW_APPLY {
            self.slow_applies.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What the services count themselves.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) reads_not_confirmed: AtomicU64,
    pub(crate) healthy: AtomicU64,
    pub(crate) unhealthy: AtomicU64,
    pub(crate) promoted: AtomicU64,
    pub(crate) not_promoted: AtomicU64,
}

impl Tally {
    pub(crate) fn one(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// As etcd's.
const SLOW_APPLY: Duration = Duration::from_millis(100);
