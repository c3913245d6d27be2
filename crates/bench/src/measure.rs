//! Numbers out of noise: medians of short slices, sides taken in turn.

use std::time::{Duration, Instant};

use crate::cluster::{Cluster, Shape, TRIM_EVERY};
use crate::counting::Counts;
use crate::side::Side;

/// What one side did in one cell.
pub(crate) struct Measured {
    pub(crate) side: Side,
    /// Nanoseconds an operation, of each slice.
    pub(crate) nanos: Vec<f64>,
    pub(crate) allocations: f64,
    pub(crate) bytes: f64,
}

/// Where most of the values lie.
pub(crate) struct Spread {
    pub(crate) median: f64,
    /// A tenth of the values are below, a tenth above.
    low: f64,
    high: f64,
}

impl Spread {
    pub(crate) fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
            sorted.get(place).copied().unwrap_or(f64::NAN)
        };
        Self { median: at(0.5), low: at(0.1), high: at(0.9) }
    }

    /// How many times longer the second side took than the first, slice by slice:
    /// neighbours in time, so that a machine that slows down slows both.
    pub(crate) fn of_ratios(nanos: &[Vec<f64>]) -> Option<Self> {
        let [ours, peer] = nanos else { return None };
        let ratios: Vec<f64> = ours.iter().zip(peer).map(|(ours, peer)| peer / ours).collect();
        Some(Self::of(&ratios))
    }

    pub(crate) fn times(&self) -> String {
        format!("{:.1}x", self.median)
    }

    pub(crate) fn range(&self) -> String {
        format!("{:.1}-{:.1}", self.low, self.high)
    }
}

pub(crate) fn per_operation(count: u64, operations: u64) -> f64 {
    count as f64 / operations as f64
}

/// Measures one cell for about this long, the sides in turn, slice by slice.
pub(crate) fn cell(sides: &[Side], shape: Shape, time: Duration) -> Vec<Measured> {
    const SLICE: Duration = Duration::from_millis(10);
    const ROUNDS_MIN: usize = 5;
    let mut runs: Vec<Run> = sides.iter().map(|side| Run::new(*side, shape, SLICE)).collect();
    let start = Instant::now();
    let mut rounds = 0;
    while rounds < ROUNDS_MIN || start.elapsed() < time {
        runs.iter_mut().for_each(|run| run.slice(shape));
        rounds += 1;
    }
    runs.into_iter().map(Run::finish).collect()
}

struct Run {
    side: Side,
    cluster: Box<dyn Cluster>,
    /// Operations in a slice: whole rounds of trimming, so that all slices are alike.
    operations: u64,
    nanos: Vec<f64>,
    done: u64,
    allocations: u64,
    bytes: u64,
}

impl Run {
    fn new(side: Side, shape: Shape, slice: Duration) -> Self {
        let mut cluster = side.cluster();
        // The first run fills caches and grows buffers; the second is measured.
        cluster.run(shape, TRIM_EVERY);
        let start = Instant::now();
        cluster.run(shape, TRIM_EVERY);
        let rounds = (slice.as_nanos() / start.elapsed().as_nanos().max(1)).max(1) as u64;
        let operations = rounds * TRIM_EVERY;
        Self { side, cluster, operations, nanos: Vec::new(), done: 0, allocations: 0, bytes: 0 }
    }

    fn slice(&mut self, shape: Shape) {
        let (before, start) = (Counts::now(), Instant::now());
        let done = self.cluster.run(shape, self.operations);
        let took = start.elapsed();
        let counts = Counts::since(before);
        self.nanos.push(took.as_nanos() as f64 / done as f64);
        self.done += done;
        self.allocations += counts.allocations;
        self.bytes += counts.bytes;
    }

    fn finish(self) -> Measured {
        Measured {
            side: self.side,
            allocations: per_operation(self.allocations, self.done),
            bytes: per_operation(self.bytes, self.done),
            nanos: self.nanos,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_what_is_far_out() {
        let spread = Spread::of(&[3.0, 1.0, 2.0, 1000.0, 2.5]);
        assert!((spread.median - 2.5).abs() < 1e-9);
    }

    #[test]
    fn ratios_are_taken_slice_by_slice() {
        let nanos = vec![vec![1.0, 10.0, 100.0], vec![4.0, 40.0, 400.0]];
        assert_eq!(Spread::of_ratios(&nanos).map(|spread| spread.times()), Some("4.0x".into()));
        assert!(Spread::of_ratios(&nanos[..1]).is_none());
    }
}
