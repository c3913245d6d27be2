//! The longest time in which nothing succeeded anywhere.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shared by all who do something. Time begins when it is made.
pub(crate) struct Gaps {
    began: Instant,
    latest_nanos: AtomicU64,
    longest_nanos: AtomicU64,
}

impl Gaps {
    pub(crate) fn new(began: Instant) -> Self {
        Self { began, latest_nanos: AtomicU64::new(0), longest_nanos: AtomicU64::new(0) }
    }

    pub(crate) fn succeeded(&self, at: Instant) {
        let nanos = u64::try_from((at - self.began).as_nanos()).unwrap_or(u64::MAX);
        // Never backwards: two may arrive here in the other order.
        let before = self.latest_nanos.fetch_max(nanos, Ordering::Relaxed);
        self.longest_nanos.fetch_max(nanos.saturating_sub(before), Ordering::Relaxed);
    }

    /// The gap that is open at the end counts as well.
    pub(crate) fn longest(&self, until: Instant) -> Duration {
        let latest = Duration::from_nanos(self.latest_nanos.load(Ordering::Relaxed));
        let open = (until - self.began).saturating_sub(latest);
        Duration::from_nanos(self.longest_nanos.load(Ordering::Relaxed)).max(open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_counts_also_at_the_ends() {
        let began = Instant::now();
        let after = |millis| began + Duration::from_millis(millis);
        let gaps = Gaps::new(began);
        assert_eq!(gaps.longest(after(5)), Duration::from_millis(5));
        for millis in [10, 12, 40, 39, 50] {
            gaps.succeeded(after(millis));
        }
        assert_eq!(gaps.longest(after(55)), Duration::from_millis(28));
        assert_eq!(gaps.longest(after(90)), Duration::from_millis(40));
    }
}
