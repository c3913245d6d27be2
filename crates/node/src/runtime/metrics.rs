//! What can be counted about a running member, and a hook for who wants to measure.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate_core::{Event, Index};

use crate::outcome::{RequestError, RequestOutcome};

/// Called by a running member when something happens. Everything here is called on the
/// member's own threads: be quick, and do not block.
pub trait NodeObserver: Send + Sync + 'static {
    /// A role, leader or membership changed, a change settled, a goal moved on, …
    fn on_event(&self, _event: &Event) {}

    /// So many saves became durable with one sync that took so long.
    fn on_sync(&self, _took: Duration, _saves: u64) {}

    /// So many entries ran on the machine, up to this index, in this time.
    fn on_applied(&self, _index: Index, _entries: u64, _took: Duration) {}
}

/// Observes nothing.
impl NodeObserver for () {}

/// Numbers about a running member, as of one moment. All but the two gauges only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Commands that were proposed here.
    pub proposals: u64,
    /// Linearizable reads that were asked here.
    pub reads: u64,
    /// Requests that ended as done.
    pub done: u64,
    /// Requests that ended as refused.
    pub refused: u64,
    /// Requests that ended as unknown.
    pub unknown: u64,
    /// Gauge: requests that have no answer yet.
    pub open_requests: u64,
    /// Saves that were written.
    pub saves: u64,
    /// Gauge: saves that wait for the disk.
    pub saves_waiting: u64,
    /// Syncs of the log; fewer than saves, where they were made durable together.
    pub syncs: u64,
    /// Time spent in them.
    pub sync_time: Duration,
    /// Entries that ran on the machine.
    pub applied: u64,
    /// Time spent on them.
    pub apply_time: Duration,
    /// How often the member looked into its mailbox and found something.
    pub turns: u64,
    /// Messages sent to peers.
    pub sent: u64,
    /// Messages received from peers.
    pub received: u64,
    /// Snapshots that reached a peer.
    pub snapshots_sent: u64,
    /// Snapshots that did not.
    pub snapshots_lost: u64,
    /// Snapshots of the own machine that were written.
    pub snapshots_taken: u64,
    /// Inputs that had no effect, by the reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// What the transport counts, for all members of this process together.
    pub transport: BTreeMap<&'static str, u64>,
}

/// The same while they change.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) proposals: Count,
    pub(crate) reads: Count,
    pub(crate) done: Count,
    pub(crate) refused: Count,
    pub(crate) unknown: Count,
    pub(crate) open_requests: Count,
    pub(crate) saves: Count,
    pub(crate) saves_waiting: Count,
    pub(crate) syncs: Count,
    pub(crate) sync_nanos: Count,
    pub(crate) applied: Count,
    pub(crate) apply_nanos: Count,
    pub(crate) turns: Count,
    pub(crate) sent: Count,
    pub(crate) received: Count,
    pub(crate) snapshots_sent: Count,
    pub(crate) snapshots_lost: Count,
    pub(crate) snapshots_taken: Count,
}

/// One number that threads share.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn count_sync(&self, took: Duration, saves: u64) {
        self.syncs.add(1);
        self.saves.add(saves);
        self.sync_nanos.add(nanos(took));
    }

    pub(crate) fn count_answer(&self, answer: &RequestOutcome) {
        match answer {
            Ok(_) => self.done.add(1),
            Err(RequestError::Refused(_)) => self.refused.add(1),
            Err(RequestError::Unknown(_)) => self.unknown.add(1),
        }
    }

    pub(crate) fn count_applied(&self, took: Duration, entries: u64) {
        self.applied.add(entries);
        self.apply_nanos.add(nanos(took));
    }

    /// Without what the driver and the transport count.
    pub(crate) fn read(&self) -> Metrics {
        Metrics {
            proposals: self.proposals.get(),
            reads: self.reads.get(),
            done: self.done.get(),
            refused: self.refused.get(),
            unknown: self.unknown.get(),
            open_requests: self.open_requests.get(),
            saves: self.saves.get(),
            saves_waiting: self.saves_waiting.get(),
            syncs: self.syncs.get(),
            sync_time: Duration::from_nanos(self.sync_nanos.get()),
            applied: self.applied.get(),
            apply_time: Duration::from_nanos(self.apply_nanos.get()),
            turns: self.turns.get(),
            sent: self.sent.get(),
            received: self.received.get(),
            snapshots_sent: self.snapshots_sent.get(),
            snapshots_lost: self.snapshots_lost.get(),
            snapshots_taken: self.snapshots_taken.get(),
            ..Metrics::default()
        }
    }
}

fn nanos(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}
