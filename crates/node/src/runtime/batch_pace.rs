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
    pub(crate) saves: usize,
    /// Of the machine.
    pub(crate) jobs: usize,
    /// Whether this member leads and has entries that are not committed.
    pub(crate) is_committing: bool,
}

/// Remembers the last batch.
#[derive(Debug)]
pub(crate) struct BatchPace {
    began: Instant,
    requests: usize,
    /// The size of recent batches: a small one among large ones does not count as few requests.
    recent: usize,
    /// When a batch last had anything but reads.
    wrote_at: Option<Instant>,
    gather: GatherTime,
    /// How many requests are likely to come until the time to gather them is over.
    expected: usize,
    /// Batches in a row that began as soon as the expected requests had come.
    early: u32,
    /// After this many of them, one is gathered to the end.
    early_max: u32,
}

impl BatchPace {
    pub(crate) fn new(now: Instant, gather: GatherTime) -> Self {
        Self {
            began: now,
            requests: 0,
            recent: 0,
            wrote_at: None,
            gather,
            expected: 0,
            early: 0,
            early_max: EARLY_AT_FIRST,
        }
    }

    /// A batch of this many requests begins; `writes` is how many of them are not reads.
    pub(crate) fn begin(&mut self, now: Instant, requests: usize, writes: usize) {
        if now < self.gathers_until() {
            (self.expected, self.early) = (requests.max(self.expected), self.early + 1);
        } else {
            if requests > self.expected {
                self.early_max = EARLY_AT_FIRST;
            } else if self.early >= self.early_max {
                // Gathered to the end, and no more came.
                self.early_max = (2 * self.early_max).min(EARLY_MAX);
            }
            // A few may come alone before all others, when the batch before took long.
            (self.expected, self.early) = (requests.max(self.expected / 2), 0);
        }
        (self.began, self.requests) = (now, requests);
        self.recent = requests.max(self.recent / 2);
        if writes > 0 {
            self.wrote_at = Some(now);
        }
    }

    /// Whether the last batch was a single request. Then it is likely that no other request comes
    /// before its reply: the member waits for requests instead of for the end of the batch.
    pub(crate) fn was_single(&self) -> bool {
        self.requests <= 1
    }

    /// Whether requests may be taken now, if this many wait.
    pub(crate) fn may_begin(
        &self,
        now: Instant,
        in_progress: BatchesInProgress,
        waiting: usize,
    ) -> bool {
        now >= self.next_check(in_progress, waiting)
    }

    /// When requests may be taken although nothing else happens.
    pub(crate) fn next_check(&self, in_progress: BatchesInProgress, waiting: usize) -> Instant {
        let gathered = if self.are_enough(waiting) { self.began } else { self.gathers_until() };
        self.in_progress_awaited_until(in_progress).max(gathered)
    }

    /// Until when the next batch waits for those in progress.
    fn in_progress_awaited_until(&self, in_progress: BatchesInProgress) -> Instant {
        let disk = match in_progress.saves.max(in_progress.jobs) {
            0 => Duration::ZERO,
            1..STEPS_MAX => SLOW_AFTER,
            _ => HANGS_AFTER,
        };
        let quorum = if in_progress.is_committing { QUORUM_WAIT_MAX } else { Duration::ZERO };
        self.began + disk.max(quorum)
    }

    /// Whether this many requests are all that are likely to come: those who wait for a reply before their
    /// next request are back. Now and then a batch is gathered to the end, to see whether there are more.
    pub(crate) fn are_enough(&self, waiting: usize) -> bool {
        self.enough().is_some_and(|enough| waiting >= enough)
    }

    /// How many requests are all that are likely to come. None if it is not known.
    pub(crate) fn enough(&self) -> Option<usize> {
        (self.expected > 0 && self.early < self.early_max).then_some(self.expected)
    }

    /// When reads that followers forwarded are processed although a batch is in progress: they need
    /// neither the disk nor the machine of this member.
    pub(crate) fn reads_due(&self) -> Instant {
        (self.began + QUORUM_WAIT_MAX).max(self.gathers_until())
    }

    /// Requests are gathered until then at most, whatever is in progress: what ends before does not matter.
    pub(crate) fn gathers_until(&self) -> Instant {
        self.began + self.gather_time()
    }

    /// The shortest time between two batches, unless all requests are likely to have come. Few requests are
    /// not delayed: nothing is gained.
    pub(crate) fn gather_time(&self) -> Duration {
        if self.recent < GATHERED_MIN {
            return Duration::ZERO;
        }
        let writes = |at: Instant| self.began.duration_since(at) < WRITES_EXPECTED;
        let limit = match self.wrote_at.is_some_and(writes) {
            false => READS_GATHERED,
            true if self.recent < LARGE_MIN => FEW_GATHERED,
            true => Duration::MAX,
        };
        self.gather.get().min(limit)
    }

    /// How long a message may wait, so that it leaves with the next batch: as long as requests are
    /// gathered. It does not wait if no batch began lately.
    pub(crate) fn gather_time_of_messages(&self, now: Instant) -> Duration {
        let are_frequent = now.saturating_duration_since(self.began) < BATCHES_EXPECTED;
        if are_frequent { self.gather_time() } else { Duration::ZERO }
    }
}

/// The size of recent batches from which on it is worth to wait for more requests.
const GATHERED_MIN: usize = 8;
/// A batch of reads costs a round of heartbeats and no sync: less is gained by larger ones.
const READS_GATHERED: Duration = Duration::from_millis(2);
/// Batches of fewer requests do not keep the processors busy for long: clients that wait for them are back
/// soon, and nothing more comes.
const LARGE_MIN: usize = 72;
const FEW_GATHERED: Duration = Duration::from_millis(3);
/// After a write more of them are expected for so long.
const WRITES_EXPECTED: Duration = Duration::from_millis(100);
/// After a batch more of them are expected for so long.
const BATCHES_EXPECTED: Duration = Duration::from_millis(20);
/// This many batches in a row may begin before the time to gather requests is over; twice as many, up to the
/// maximum, each time that the one after them was gathered to the end and had no more requests.
const EARLY_AT_FIRST: u32 = 15;
const EARLY_MAX: u32 = 240;
/// How long requests wait for the quorum to accept the batch before. More than a round trip and a
/// sync take within a site; between distant sites several batches are in flight.
const QUORUM_WAIT_MAX: Duration = Duration::from_millis(5);
/// The disk or the machine is slow when the last batch has taken so long. Otherwise requests wait
/// for it even if nothing else is in progress.
const SLOW_AFTER: Duration = Duration::from_millis(10);
/// This many saves or jobs may be in progress if the disk or the machine is slow.
const STEPS_MAX: usize = 16;
/// It hangs when the last batch has taken so long. Then some requests are accepted all the same, so
/// that they end at their deadline instead of waiting in the queue without one: a snapshot may take
/// minutes to install, and a disk may never return. Few enough at a time that the memory they take
/// is bounded.
const HANGS_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn may_begin(after: Duration, saves: usize, is_committing: bool) -> bool {
        let began = Instant::now();
        let pace = BatchPace::new(began, GatherTime::default());
        pace.may_begin(began + after, BatchesInProgress { saves, jobs: 0, is_committing }, 1)
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
    fn forwarded_reads_wait_for_no_disk_and_no_machine() {
        let began = Instant::now();
        let pace = BatchPace::new(began, GatherTime::default());
        let hung = BatchesInProgress { saves: STEPS_MAX, jobs: STEPS_MAX, is_committing: true };
        assert_eq!(pace.reads_due(), began + QUORUM_WAIT_MAX);
        assert!(!pace.may_begin(pace.reads_due(), hung, 1));
    }

    #[test]
    fn large_batches_are_gathered_while_processors_are_scarce() {
        let (began, none) =
            (Instant::now(), BatchesInProgress { saves: 0, jobs: 0, is_committing: false });
        let gather = GatherTime::default();
        let mut pace = BatchPace::new(began, gather.clone());
        pace.begin(began, GATHERED_MIN, 1);
        assert!(pace.may_begin(began, none, 1));
        gather.set(Duration::from_millis(3));
        assert!(!pace.may_begin(began, none, 1));
        assert_eq!(pace.next_check(none, 1), began + Duration::from_millis(3));
        pace.begin(began, 1, 1);
        assert!(pace.may_begin(began, none, 1), "few requests are not delayed");
        // Unless there were many shortly before.
        pace.begin(began, 4 * GATHERED_MIN, 1);
        pace.begin(began, 1, 1);
        assert!(!pace.may_begin(began, none, 1));
        pace.begin(began, 1, 1);
        pace.begin(began, 1, 1);
        assert!(pace.may_begin(began, none, 1));
    }

    /// Clients that wait for their replies: no more requests come than there are clients.
    #[test]
    fn gathering_ends_when_as_many_requests_wait_as_usual() {
        let none = BatchesInProgress { saves: 0, jobs: 0, is_committing: false };
        let committing = BatchesInProgress { is_committing: true, ..none };
        let gather = GatherTime::default();
        gather.set(FEW_GATHERED);
        let (mut now, soon) = (Instant::now(), Duration::from_micros(500));
        let mut pace = BatchPace::new(now, gather);
        pace.begin(now, 16, 16);
        assert!(pace.may_begin(now + soon, none, 16));
        // The first one begins at once, so nothing was gathered for it. Gathered are 20.
        now += FEW_GATHERED;
        pace.begin(now, 20, 20);
        assert!(!pace.may_begin(now + soon, none, 19));
        assert!(pace.may_begin(now + soon, none, 20));
        assert!(!pace.may_begin(now + soon, committing, 20));
        // Now and then one is gathered to the end, less often if that brings no more.
        for early_max in [EARLY_AT_FIRST, 2 * EARLY_AT_FIRST, 4 * EARLY_AT_FIRST] {
            for _ in 0..early_max {
                assert_eq!(pace.enough(), Some(20));
                now += soon;
                pace.begin(now, 20, 20);
            }
            assert!(!pace.may_begin(now + soon, none, 1_000));
            assert!(pace.may_begin(now + FEW_GATHERED, none, 20));
            now += FEW_GATHERED;
            let came = if early_max < 4 * EARLY_AT_FIRST { 20 } else { 30 };
            pace.begin(now, came, came);
        }
        assert_eq!(pace.early_max, EARLY_AT_FIRST);
        assert_eq!(pace.enough(), Some(30), "there were more");
        now += soon;
        pace.begin(now, 40, 40);
        assert_eq!(pace.enough(), Some(40), "even more came at once");
        // One comes alone after a batch that took long: the others follow.
        now += 4 * FEW_GATHERED;
        pace.begin(now, 1, 1);
        assert_eq!(pace.enough(), Some(20));
        assert!(!pace.may_begin(now + soon, none, 2));
        // All but two clients are gone.
        for _ in 0..5 {
            now += FEW_GATHERED;
            pace.begin(now, 2, 2);
        }
        assert_eq!(pace.enough(), Some(2));
    }

    /// It says nothing about how many clients there are.
    #[test]
    fn a_late_batch_without_more_requests_does_not_change_how_often_one_is_gathered_to_the_end() {
        let gather = GatherTime::default();
        gather.set(FEW_GATHERED);
        let mut now = Instant::now();
        let mut pace = BatchPace::new(now, gather);
        pace.early_max = EARLY_MAX;
        for requests in [20, 20, 3] {
            pace.begin(now, 20, 20);
            pace.early_max = EARLY_MAX;
            now += FEW_GATHERED;
            pace.begin(now, requests, requests);
            assert_eq!(pace.early_max, EARLY_MAX);
        }
        now += FEW_GATHERED;
        pace.begin(now, 21, 21);
        assert_eq!(pace.early_max, EARLY_AT_FIRST, "there are more");
    }

    #[test]
    fn messages_wait_for_batches_only_while_these_are_frequent() {
        let (began, gather) = (Instant::now(), GatherTime::default());
        gather.set(FEW_GATHERED);
        let mut pace = BatchPace::new(began, gather);
        pace.begin(began, 64, 64);
        assert_eq!(pace.gather_time_of_messages(began + FEW_GATHERED), FEW_GATHERED);
        assert_eq!(pace.gather_time_of_messages(began + BATCHES_EXPECTED), Duration::ZERO);
    }

    #[test]
    fn reads_alone_and_few_requests_are_gathered_for_less() {
        let gather = GatherTime::default();
        let began = Instant::now();
        let mut pace = BatchPace::new(began, gather.clone());
        let long = 2 * FEW_GATHERED;
        gather.set(long);
        pace.begin(began, LARGE_MIN, 0);
        assert_eq!(pace.gather_time(), READS_GATHERED);
        pace.begin(began, LARGE_MIN, 1);
        assert_eq!(pace.gather_time(), long);
        // A batch without writes among others that have some.
        pace.begin(began + WRITES_EXPECTED / 2, LARGE_MIN, 0);
        assert_eq!(pace.gather_time(), long);
        pace.begin(began + WRITES_EXPECTED, LARGE_MIN, 0);
        assert_eq!(pace.gather_time(), READS_GATHERED);
        let mut pace = BatchPace::new(began, gather.clone());
        pace.begin(began, LARGE_MIN - 1, 1);
        assert_eq!(pace.gather_time(), FEW_GATHERED);
        gather.set(READS_GATHERED / 2);
        assert_eq!(pace.gather_time(), READS_GATHERED / 2);
    }
}
