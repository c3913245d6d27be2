//! How long things took, in buckets whose width grows with the time: at most 1.6 % off,
//! in fixed memory.

use std::time::Duration;

/// Buckets for each doubling of the time.
const STEPS: u64 = 64;
const STEPS_LOG2: u32 = 6;
/// Up to 2^42 microseconds; nobody waits so long.
const BUCKETS: usize = (STEPS as usize) * 37;

#[derive(Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    longest: u64,
}

impl Histogram {
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
        for (mine, more) in self.counts.iter_mut().zip(&other.counts) {
            *mine += more;
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

    /// So many of a thousand took at most this long. Zero when there was nothing.
    pub(crate) fn per_mille(&self, part: u64) -> Duration {
        let wanted = (self.total * part).div_ceil(1000).max(1);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_micros(upper(at).min(self.longest));
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
    let at = u64::from(doublings + 1) * STEPS + within;
    (at as usize).min(BUCKETS - 1)
}

/// The longest time that falls into a bucket.
fn upper(at: usize) -> u64 {
    let at = at as u64;
    if at < STEPS {
        return at;
    }
    let doublings = at / STEPS - 1;
    ((STEPS + at % STEPS + 1) << doublings) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_within_its_bucket() {
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
    fn parts_of_a_thousand() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.per_mille(500), Duration::ZERO);
        (1..=50).for_each(|millis| histogram.record(Duration::from_micros(millis)));
        assert_eq!(histogram.per_mille(500), Duration::from_micros(25));
        assert_eq!(histogram.per_mille(990), Duration::from_micros(50));
        let mut other = Histogram::new();
        other.record(Duration::from_secs(1));
        histogram.add(&other);
        assert_eq!(histogram.total(), 51);
        assert_eq!(histogram.per_mille(1000), Duration::from_secs(1));
        assert_eq!(histogram.longest(), Duration::from_secs(1));
    }
}
