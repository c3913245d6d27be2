//! Histograms of durations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts in buckets with upper bounds. Threads share it without a lock.
#[derive(Debug)]
pub(crate) struct DurationHistogram {
    /// Upper bounds in microseconds, ascending.
    bounds: &'static [u64],
    buckets: Box<[AtomicU64]>,
    /// All observations, also those above the last bound.
    count: AtomicU64,
    micros: AtomicU64,
}

/// etcd's buckets for disks: from 1 ms, doubling.
pub(crate) const DISK: &[u64] = &doubled::<14>(1_000);
/// etcd's buckets for peers: from 0.1 ms, doubling.
pub(crate) const PEERS: &[u64] = &doubled::<16>(100);
/// etcd's buckets for applied commands: from 0.1 ms, doubling.
pub(crate) const SHORT: &[u64] = &doubled::<20>(100);
/// etcd's buckets for hashes: from 10 ms, doubling.
pub(crate) const HASHES: &[u64] = &doubled::<15>(10_000);
/// etcd's buckets for snapshots that are sent: from 10 ms, doubling.
pub(crate) const SNAPSHOTS: &[u64] = &doubled::<17>(10_000);
/// etcd's buckets for defragmentations: from 0.1 s, doubling.
pub(crate) const DEFRAGMENTATIONS: &[u64] = &doubled::<13>(100_000);
/// etcd's buckets for TTLs of leases: from 1 s, doubling.
pub(crate) const LEASE_TTLS: &[u64] = &doubled::<24>(1_000_000);
/// The usual buckets of gRPC servers: from 5 ms to 10 s.
pub(crate) const CALLS: &[u64] = &[
    5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000,
];

const fn doubled<const COUNT: usize>(first: u64) -> [u64; COUNT] {
    let mut bounds = [first; COUNT];
    let mut number = 1;
    while number < COUNT {
        bounds[number] = bounds[number - 1] * 2;
        number += 1;
    }
    bounds
}

impl DurationHistogram {
    pub(crate) fn new(bounds: &'static [u64]) -> Self {
        let buckets = bounds.iter().map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, count: AtomicU64::new(0), micros: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, duration: Duration) {
        // Rounded up, so that no duration lands in a bucket below it.
        let micros = u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        let number = self.bounds.partition_point(|bound| *bound < micros);
        if let Some(bucket) = self.buckets.get(number) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Each bound in seconds, with the number of durations up to it.
    pub(crate) fn cumulative_counts(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut sum = 0;
        self.bounds.iter().zip(&self.buckets).map(move |(bound, bucket)| {
            sum += bucket.load(Ordering::Relaxed);
            (*bound as f64 / 1e6, sum)
        })
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.micros.load(Ordering::Relaxed) as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative() {
        let histogram = DurationHistogram::new(DISK);
        for millis in [1, 3, 3, 100_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let sums: Vec<(f64, u64)> = histogram.cumulative_counts().collect();
        assert_eq!(sums[..3], [(0.001, 1), (0.002, 1), (0.004, 3)]);
        assert_eq!((sums[13], histogram.count()), ((8.192, 3), 4));
        assert_eq!(histogram.seconds(), 100.007);
    }

    #[test]
    fn a_duration_just_above_a_bound_is_in_the_next_bucket() {
        let histogram = DurationHistogram::new(PEERS);
        histogram.observe(Duration::from_nanos(100_000));
        histogram.observe(Duration::from_nanos(100_001));
        let sums: Vec<(f64, u64)> = histogram.cumulative_counts().collect();
        assert_eq!(sums[..2], [(0.0001, 1), (0.0002, 2)]);
    }
}
