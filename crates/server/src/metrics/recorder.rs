//! The counters and histograms of a running server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quorate::Index;
use quorate::metrics::{Event, NodeObserver};

use super::calls::CallCounters;
use super::histogram::{DEFRAGMENTATIONS, DISK, DurationHistogram, HASHES, PEERS, SNAPSHOTS};
use super::recent::RecentDurations;
use super::traffic::Traffic;
use crate::overview::timeline::EventTimeline;
use crate::tls::HandshakeCounters;

/// What is measured inside the member and on the connections.
#[derive(Debug)]
pub(crate) struct ServerMetrics {
    pub(super) syncs: DurationHistogram,
    pub(super) writes: DurationHistogram,
    pub(super) written_bytes: AtomicU64,
    pub(super) applies: DurationHistogram,
    pub(super) slow_applies: AtomicU64,
    pub(super) leader_changes: AtomicU64,
    /// By address; each is updated about once a second.
    round_trips: Mutex<BTreeMap<String, RoundTrips>>,
    recent_syncs: Mutex<RecentDurations>,
    /// What the member reports.
    pub(crate) timeline: Arc<EventTimeline>,
    pub(crate) calls: Arc<CallCounters>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) handshakes: Arc<HandshakeCounters>,
}

impl ServerMetrics {
    /// With `timed`, the duration of each call is measured too.
    pub(crate) fn new(timed: bool) -> Self {
        Self {
            syncs: DurationHistogram::new(DISK),
            writes: DurationHistogram::new(DISK),
            written_bytes: AtomicU64::new(0),
            applies: DurationHistogram::new(DISK),
            slow_applies: AtomicU64::new(0),
            leader_changes: AtomicU64::new(0),
            round_trips: Mutex::new(BTreeMap::new()),
            recent_syncs: Mutex::new(RecentDurations::new(Instant::now())),
            timeline: Arc::default(),
            calls: CallCounters::new(timed),
            traffic: Arc::new(Traffic::default()),
            handshakes: Arc::default(),
        }
    }

    /// Records a round trip to the peer at this address.
    pub(crate) fn on_round_trip(&self, address: &str, duration: Duration) {
        let mut all = self.round_trips.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(address) {
            let histogram = Arc::new(DurationHistogram::new(PEERS));
            all.insert(address.to_owned(), RoundTrips { histogram, latest: duration });
        }
        if let Some(known) = all.get_mut(address) {
            known.histogram.observe(duration);
            known.latest = duration;
        }
    }

    pub(super) fn round_trips(&self, address: &str) -> Option<Arc<DurationHistogram>> {
        let all = self.round_trips.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(address).map(|known| Arc::clone(&known.histogram))
    }

    /// The latest round trip to the peer at this address.
    pub(crate) fn latest_round_trip(&self, address: &str) -> Option<Duration> {
        let all = self.round_trips.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(address).map(|known| known.latest)
    }

    /// The number of syncs in the last one or two minutes, and what 99 of 100 took at most.
    pub(crate) fn recent_syncs(&self) -> (u64, Duration) {
        let mut recent = self.recent_syncs.lock().unwrap_or_else(PoisonError::into_inner);
        recent.percentile_99(Instant::now())
    }
}

/// Round trips to one address.
#[derive(Debug)]
struct RoundTrips {
    histogram: Arc<DurationHistogram>,
    latest: Duration,
}

impl NodeObserver for ServerMetrics {
    fn on_event(&self, event: &Event) {
        if let Event::Leader { leader: Some(_), .. } = event {
            self.leader_changes.fetch_add(1, Ordering::Relaxed);
        }
        self.timeline.event(event);
    }

    fn on_sync(&self, duration: Duration, _saves: u64) {
        self.syncs.observe(duration);
        let mut recent = self.recent_syncs.lock().unwrap_or_else(PoisonError::into_inner);
        recent.observe(duration, Instant::now());
    }

    fn on_write(&self, duration: Duration, bytes: u64) {
        self.writes.observe(duration);
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn on_applied(&self, _index: Index, _entries: u64, duration: Duration) {
        self.applies.observe(duration);
        if duration > SLOW_APPLY {
            self.slow_applies.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Counters that the services increment.
#[derive(Debug)]
pub(crate) struct ServiceCounters {
    pub(crate) reads_not_confirmed: AtomicU64,
    pub(crate) healthy: AtomicU64,
    pub(crate) unhealthy: AtomicU64,
    pub(crate) promoted: AtomicU64,
    pub(crate) not_promoted: AtomicU64,
    /// As the leader last said.
    pub(crate) peers_lost: AtomicU64,
    pub(crate) leases_expired: AtomicU64,
    pub(crate) leases_renewed: AtomicU64,
    pub(crate) events_sent: AtomicU64,
    pub(crate) watch_streams: AtomicU64,
    pub(crate) defragmenting: AtomicU64,
    pub(crate) defragmentations: DurationHistogram,
    pub(crate) snapshots: DurationHistogram,
    pub(crate) hashes: DurationHistogram,
    pub(crate) revision_hashes: DurationHistogram,
}

impl Default for ServiceCounters {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            reads_not_confirmed: zero(),
            healthy: zero(),
            unhealthy: zero(),
            promoted: zero(),
            not_promoted: zero(),
            peers_lost: zero(),
            leases_expired: zero(),
            leases_renewed: zero(),
            events_sent: zero(),
            watch_streams: zero(),
            defragmenting: zero(),
            defragmentations: DurationHistogram::new(DEFRAGMENTATIONS),
            snapshots: DurationHistogram::new(SNAPSHOTS),
            hashes: DurationHistogram::new(HASHES),
            revision_hashes: DurationHistogram::new(HASHES),
        }
    }
}

impl ServiceCounters {
    pub(crate) fn increment(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn decrement(count: &AtomicU64) {
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// As etcd's.
const SLOW_APPLY: Duration = Duration::from_millis(100);
