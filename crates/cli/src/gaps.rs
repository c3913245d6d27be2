//! The longest time without any successful request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shared by all clients of a run.
pub(crate) struct Gaps {
    started: Instant,
    latest_nanos: AtomicU64,
    longest_nanos: AtomicU64,
}

impl Gaps {
    pub(crate) fn new(started: Instant) -> Self {
        Self { started, latest_nanos: AtomicU64::new(0), longest_nanos: AtomicU64::new(0) }
    }

    pub(crate) fn succeeded(&self, now: Instant) {
        let nanos = u64::try_from((now - self.started).as_nanos()).unwrap_or(u64::MAX);
        // Never backwards: two clients may arrive here out of order.
        let previous = self.latest_nanos.fetch_max(nanos, Ordering::Relaxed);
        self.longest_nanos.fetch_max(nanos.saturating_sub(previous), Ordering::Relaxed);
    }

    /// Includes the gap between the last success and the end.
    pub(crate) fn longest(&self, until: Instant) -> Duration {
        let latest = Duration::from_nanos(self.latest_nanos.load(Ordering::Relaxed));
        let open = (until - self.started).saturating_sub(latest);
        Duration::from_nanos(self.longest_nanos.load(Ordering::Relaxed)).max(open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_at_the_start_and_the_end_count() {
        let started = Instant::now();
        let after = |millis| started + Duration::from_millis(millis);
        let gaps = Gaps::new(started);
        assert_eq!(gaps.longest(after(5)), Duration::from_millis(5));
        for millis in [10, 12, 40, 39, 50] {
            gaps.succeeded(after(millis));
        }
        assert_eq!(gaps.longest(after(55)), Duration::from_millis(28));
        assert_eq!(gaps.longest(after(90)), Duration::from_millis(40));
    }
}
