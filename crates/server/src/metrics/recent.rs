//! The durations of the last one or two minutes, in buckets.

use std::time::{Duration, Instant};

/// Two windows of a minute: the present one, and the one before it.
#[derive(Debug)]
pub(super) struct RecentDurations {
    windows: [[u64; BUCKETS]; 2],
    /// When the present window began.
    began: Instant,
}

impl RecentDurations {
    pub(super) fn new(now: Instant) -> Self {
        Self { windows: [[0; BUCKETS]; 2], began: now }
    }

    pub(super) fn observe(&mut self, duration: Duration, now: Instant) {
        self.advance(now);
        self.windows[0][bucket(duration)] += 1;
    }

    /// The number of durations, and an upper bound of 99 of 100 of them, at most a quarter above.
    pub(super) fn percentile_99(&mut self, now: Instant) -> (u64, Duration) {
        self.advance(now);
        let [present, before] = &self.windows;
        let counts = || present.iter().zip(before).map(|(one, other)| one + other);
        let total: u64 = counts().sum();
        // Those that may lie above it.
        let above = total / 100;
        let mut left = total.saturating_sub(above);
        for (number, count) in counts().enumerate() {
            if count >= left && left > 0 {
                return (total, bound(number));
            }
            left = left.saturating_sub(count);
        }
        (total, Duration::ZERO)
    }

    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.began);
        if passed < WINDOW {
            return;
        }
        let before = if passed < WINDOW * 2 { self.windows[0] } else { [0; BUCKETS] };
        *self = Self { windows: [[0; BUCKETS], before], began: now };
    }
}

/// The first bucket whose bound is not below the duration.
fn bucket(duration: Duration) -> usize {
    (0..BUCKETS - 1).find(|number| duration <= bound(*number)).unwrap_or(BUCKETS - 1)
}

/// From 0.1 ms to about 30 s, each a quarter above the one before.
fn bound(number: usize) -> Duration {
    Duration::from_micros((100.0 * 1.25_f64.powi(number as i32)) as u64)
}

const BUCKETS: usize = 58;
const WINDOW: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_sync_of_a_hundred_is_left_out() {
        let now = Instant::now();
        let mut recent = RecentDurations::new(now);
        assert_eq!(recent.percentile_99(now), (0, Duration::ZERO));
        for _ in 0..99 {
            recent.observe(Duration::from_millis(2), now);
        }
        recent.observe(Duration::from_secs(5), now);
        let (count, p99) = recent.percentile_99(now);
        assert_eq!(count, 100);
        assert!(p99 >= Duration::from_millis(2) && p99 < Duration::from_millis(3), "{p99:?}");
        recent.observe(Duration::from_secs(5), now);
        assert!(recent.percentile_99(now).1 >= Duration::from_secs(5));
    }

    #[test]
    fn old_durations_are_forgotten() {
        let now = Instant::now();
        let mut recent = RecentDurations::new(now);
        recent.observe(Duration::from_secs(5), now);
        assert_eq!(recent.percentile_99(now + WINDOW).0, 1);
        assert_eq!(recent.percentile_99(now + WINDOW * 2).0, 0);
        recent.observe(Duration::from_secs(5), now + WINDOW * 3);
        assert_eq!(recent.percentile_99(now + WINDOW * 9).0, 0);
    }
}
