//! When a member begins the next batch of clients' requests.
//!
//! Requests that arrive while a batch is in progress wait for it and form the next one: each batch
//! costs a sync, an append for each peer, a job for the machine and several wake-ups on every
//! member, however few requests it has. The wait is bounded, so that a slow disk, machine or peer
//! delays requests by little.

use std::time::{Duration, Instant};

use super::cpu_pressure::GatherTime;

/// What has not ended of the batches before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchesInProgress {
    /// Saves, or jobs of the machine, whichever are more.
    pub(crate) steps: usize,
    /// Whether this member leads and has entries that are not committed.
    pub(crate) is_committing: bool,
}

/// Remembers the last batch.
#[derive(Debug)]
pub(crate) struct BatchPace {
    began: Instant,
    requests: usize,
    gather: GatherTime,
}

impl BatchPace {
    pub(crate) fn new(now: Instant, gather: GatherTime) -> Self {
        Self { began: now, requests: 0, gather }
    }

    /// A batch of this many requests begins.
    pub(crate) fn begin(&mut self, now: Instant, requests: usize) {
        (self.began, self.requests) = (now, requests);
    }

    /// Whether requests may be taken now.
    pub(crate) fn may_begin(&self, now: Instant, in_progress: BatchesInProgress) -> bool {
        let since = now.saturating_duration_since(self.began);
        let BatchesInProgress { steps, is_committing } = in_progress;
        let is_disk_free = steps == 0 || since >= SLOW_AFTER && steps < STEPS_MAX;
        let is_quorum_free = !is_committing || since >= QUORUM_WAIT_MAX;
        is_disk_free && is_quorum_free && since >= self.gather_time() || since >= HANGS_AFTER
    }

    /// When requests may be taken although nothing else happens, if they do not wait for the disk
    /// or the machine.
    pub(crate) fn next_check(&self, in_progress: BatchesInProgress) -> Option<Instant> {
        let quorum = if in_progress.is_committing { QUORUM_WAIT_MAX } else { Duration::ZERO };
        let wait = quorum.max(self.gather_time());
        (in_progress.steps == 0 && !wait.is_zero()).then(|| self.began + wait)
    }

    /// Few requests are not delayed: nothing is gained.
    fn gather_time(&self) -> Duration {
        if self.requests < GATHERED_MIN { Duration::ZERO } else { self.gather.get() }
    }
}

/// The size of a batch from which on it is worth to wait for more.
const GATHERED_MIN: usize = 8;
/// How long requests wait for the quorum to accept the batch before. More than a round trip and a
/// sync take within a site; between distant sites several batches are in flight.
const QUORUM_WAIT_MAX: Duration = Duration::from_millis(5);
/// The disk or the machine is slow when the last batch has taken so long. Otherwise requests wait
/// for it even if nothing else is in progress.
const SLOW_AFTER: Duration = Duration::from_millis(10);
/// So many saves or jobs may be in progress if the disk or the machine is slow.
const STEPS_MAX: usize = 16;
/// It hangs when the last batch has taken so long. Then some requests are accepted all the same, so
/// that they end at their deadline instead of waiting in the queue without one: a snapshot may take
/// minutes to install, and a disk may never return. Few enough at a time that the memory they take
/// is bounded.
const HANGS_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn may_begin(after: Duration, steps: usize, is_committing: bool) -> bool {
        let began = Instant::now();
        let pace = BatchPace::new(began, GatherTime::default());
        pace.may_begin(began + after, BatchesInProgress { steps, is_committing })
    }

    #[test]
    fn a_batch_begins_when_the_one_before_is_done() {
        assert!(may_begin(Duration::ZERO, 0, false));
        assert!(!may_begin(Duration::ZERO, 1, false), "its save or job is in progress");
        assert!(!may_begin(Duration::ZERO, 0, true), "it is not committed");
    }

    #[test]
    fn a_slow_quorum_disk_or_machine_is_not_waited_for() {
        assert!(!may_begin(QUORUM_WAIT_MAX / 2, 0, true));
        assert!(may_begin(QUORUM_WAIT_MAX, 0, true));
        assert!(!may_begin(QUORUM_WAIT_MAX, 1, true));
        assert!(may_begin(SLOW_AFTER, 1, true));
        assert!(!may_begin(SLOW_AFTER, STEPS_MAX, false));
        assert!(may_begin(HANGS_AFTER, STEPS_MAX, true));
    }

    #[test]
    fn only_the_wait_for_the_quorum_needs_a_timer() {
        let began = Instant::now();
        let pace = BatchPace::new(began, GatherTime::default());
        let next =
            |steps, is_committing| pace.next_check(BatchesInProgress { steps, is_committing });
        assert_eq!(next(0, true), Some(began + QUORUM_WAIT_MAX));
        // A save or job that ends wakes the member.
        assert_eq!((next(1, true), next(0, false)), (None, None));
    }
}
