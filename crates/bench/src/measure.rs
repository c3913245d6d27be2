//! Measurements on a noisy machine: medians of short slices, alternating between libraries.

use std::time::{Duration, Instant};

use crate::cluster::{BenchCluster, Shape, TRIM_EVERY};
use crate::counting::Counts;
use crate::library::Library;

/// The result of one library in one cell.
pub(crate) struct CellMeasurement {
    pub(crate) library: Library,
    /// Nanoseconds per operation, for each slice.
    pub(crate) nanos: Vec<f64>,
    pub(crate) allocations: f64,
    pub(crate) bytes: f64,
}

/// The distribution of values.
pub(crate) struct Spread {
    pub(crate) median: f64,
    /// The 10th and the 90th percentile.
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

    /// The ratio of the second library to the first, slice by slice. Neighbouring slices are
    /// compared, so that a slowdown of the machine affects both.
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

/// Measures one cell for about this long, alternating between libraries slice by slice.
pub(crate) fn cell(libraries: &[Library], shape: Shape, time: Duration) -> Vec<CellMeasurement> {
    const SLICE: Duration = Duration::from_millis(10);
    const ROUNDS_MIN: usize = 5;
    let mut runs: Vec<LibraryRun> =
        libraries.iter().map(|library| LibraryRun::new(*library, shape, SLICE)).collect();
    let start = Instant::now();
    let mut rounds = 0;
    while rounds < ROUNDS_MIN || start.elapsed() < time {
        runs.iter_mut().for_each(|run| run.slice(shape));
        rounds += 1;
    }
    runs.into_iter().map(LibraryRun::finish).collect()
}

struct LibraryRun {
    library: Library,
    cluster: Box<dyn BenchCluster>,
    /// Operations per slice: complete rounds of trimming, so that all slices are equal.
    operations: u64,
    nanos: Vec<f64>,
    done: u64,
    allocations: u64,
    bytes: u64,
}

impl LibraryRun {
    fn new(library: Library, shape: Shape, slice: Duration) -> Self {
        let mut cluster = library.cluster();
        // The first run fills caches and grows buffers; the second one calibrates.
        cluster.run(shape, TRIM_EVERY);
        let start = Instant::now();
        cluster.run(shape, TRIM_EVERY);
        let rounds = (slice.as_nanos() / start.elapsed().as_nanos().max(1)).max(1) as u64;
        let operations = rounds * TRIM_EVERY;
        Self { library, cluster, operations, nanos: Vec::new(), done: 0, allocations: 0, bytes: 0 }
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

    fn finish(self) -> CellMeasurement {
        CellMeasurement {
            library: self.library,
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
    fn median_ignores_outliers() {
        let spread = Spread::of(&[3.0, 1.0, 2.0, 1000.0, 2.5]);
        assert!((spread.median - 2.5).abs() < 1e-9);
    }

    #[test]
    fn ratios_are_computed_per_slice() {
        let nanos = vec![vec![1.0, 10.0, 100.0], vec![4.0, 40.0, 400.0]];
        assert_eq!(Spread::of_ratios(&nanos).map(|spread| spread.times()), Some("4.0x".into()));
        assert!(Spread::of_ratios(&nanos[..1]).is_none());
    }
}
