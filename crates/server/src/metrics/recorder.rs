//! The counters and histograms of a running server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate::Index;
use quorate::metrics::{Event, NodeObserver};

use super::calls::CallCounters;
use super::histogram::{DISK, DurationHistogram, PEERS};
use super::traffic::Traffic;

/// What is measured inside the member and on the connections.
#[derive(Debug)]
pub(crate) struct ServerMetrics {
    pub(super) syncs: DurationHistogram,
    pub(super) applies: DurationHistogram,
    pub(super) slow_applies: AtomicU64,
    pub(super) leader_changes: AtomicU64,
    /// By address; each is updated about once a second.
    round_trips: Mutex<BTreeMap<String, Arc<DurationHistogram>>>,
    pub(crate) calls: Arc<CallCounters>,
    pub(crate) traffic: Arc<Traffic>,
}

impl ServerMetrics {
    /// With `timed`, the duration of each call is measured too.
    pub(crate) fn new(timed: bool) -> Self {
        Self {
            syncs: DurationHistogram::new(DISK),
            applies: DurationHistogram::new(DISK),
            slow_applies: AtomicU64::new(0),
            leader_changes: AtomicU64::new(0),
            round_trips: Mutex::new(BTreeMap::new()),
            calls: CallCounters::new(timed),
            traffic: Arc::new(Traffic::default()),
        }
    }

    /// Records a round trip to the peer at this address.
    pub(crate) fn on_round_trip(&self, address: &str, duration: Duration) {
        let mut histograms = self.round_trips.lock().unwrap_or_else(PoisonError::into_inner);
        if !histograms.contains_key(address) {
            histograms.insert(address.to_owned(), Arc::new(DurationHistogram::new(PEERS)));
        }
        if let Some(histogram) = histograms.get(address) {
            histogram.observe(duration);
        }
    }

    pub(super) fn round_trips(&self, address: &str) -> Option<Arc<DurationHistogram>> {
        self.round_trips.lock().unwrap_or_else(PoisonError::into_inner).get(address).cloned()
    }
}

impl NodeObserver for ServerMetrics {
    fn on_event(&self, event: &Event) {
        if let Event::Leader { leader: Some(_), .. } = event {
            self.leader_changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn on_sync(&self, duration: Duration, _saves: u64) {
        self.syncs.observe(duration);
    }

    fn on_applied(&self, _index: Index, _entries: u64, duration: Duration) {
        self.applies.observe(duration);
        if duration > SLOW_APPLY {
            self.slow_applies.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Counters that the services increment.
#[derive(Debug, Default)]
pub(crate) struct ServiceCounters {
    pub(crate) reads_not_confirmed: AtomicU64,
    pub(crate) healthy: AtomicU64,
    pub(crate) unhealthy: AtomicU64,
    pub(crate) promoted: AtomicU64,
    pub(crate) not_promoted: AtomicU64,
}

impl ServiceCounters {
    pub(crate) fn increment(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// As etcd's.
const SLOW_APPLY: Duration = Duration::from_millis(100);
