//! A histogram of durations in fixed memory. The width of a bucket grows with the duration, so
//! that a value is at most 1.6 % off.

use std::time::Duration;

/// Buckets for each doubling of the duration.
const STEPS: u64 = 64;
const STEPS_LOG2: u32 = 6;
/// Up to 2^42 microseconds (50 days).
const BUCKETS: usize = (STEPS as usize) * 37;

#[derive(Clone)]
pub(crate) struct LatencyHistogram {
    counts: Vec<u64>,
    total: u64,
    longest: u64,
}

impl LatencyHistogram {
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0, longest: 0 }
    }

    pub(crate) fn record(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.counts[bucket(micros)] += 1;
        self.total += 1;
        self.longest = self.longest.max(micros);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (own, other) in self.counts.iter_mut().zip(&other.counts) {
            *own += other;
        }
        self.total += other.total;
        self.longest = self.longest.max(other.longest);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn longest(&self) -> Duration {
        Duration::from_micros(self.longest)
    }

    /// The duration that `part` of 1,000 values do not exceed. Zero without values.
    pub(crate) fn per_mille(&self, part: u64) -> Duration {
        let rank = (self.total * part).div_ceil(1000).max(1);
        let mut passed = 0;
        for (index, count) in self.counts.iter().enumerate() {
            passed += count;
            if passed >= rank {
                return Duration::from_micros(upper(index).min(self.longest));
            }
        }
        Duration::ZERO
    }
}

fn bucket(micros: u64) -> usize {
    if micros < STEPS {
        return micros as usize;
    }
    let doublings = micros.ilog2() - STEPS_LOG2;
    let within = (micros >> doublings) - STEPS;
    let index = u64::from(doublings + 1) * STEPS + within;
    (index as usize).min(BUCKETS - 1)
}

/// The longest duration of a bucket, in microseconds.
fn upper(index: usize) -> u64 {
    let index = index as u64;
    if index < STEPS {
        return index;
    }
    let doublings = index / STEPS - 1;
    ((STEPS + index % STEPS + 1) << doublings) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_within_its_bucket() {
        for micros in (0..5_000).chain([65_535, 65_536, 1_000_000, 59_999_999]) {
            let top = upper(bucket(micros));
            assert!(top >= micros, "{micros} is above {top}");
            assert!(
                (top - micros) as f64 <= micros as f64 / 64.0 + 1.0,
                "{micros} is far from {top}"
            );
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn per_mille_values_are_exact_for_small_durations() {
        let mut histogram = LatencyHistogram::new();
        assert_eq!(histogram.per_mille(500), Duration::ZERO);
        (1..=50).for_each(|millis| histogram.record(Duration::from_micros(millis)));
        assert_eq!(histogram.per_mille(500), Duration::from_micros(25));
        assert_eq!(histogram.per_mille(990), Duration::from_micros(50));
        let mut other = LatencyHistogram::new();
        other.record(Duration::from_secs(1));
        histogram.add(&other);
        assert_eq!(histogram.total(), 51);
        assert_eq!(histogram.per_mille(1000), Duration::from_secs(1));
        assert_eq!(histogram.longest(), Duration::from_secs(1));
    }
}
