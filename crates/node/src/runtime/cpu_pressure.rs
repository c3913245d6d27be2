//! Whether processors are scarce, and how long requests are gathered because of it.
//!
//! A batch costs the same however few requests it has. With many processors small batches are right:
//! they are complete sooner, and cost little of the whole. With few, a limit on how often a batch begins
//! keeps them from taking much of it. When threads wait for a processor, batches take time from
//! everything else, so they become larger: requests are gathered for longer, up to a limit. The
//! sign of it is how long Raft's own thread waits for a processor each time it is ready to run, which
//! Linux counts. The sum of these times would say less: it also grows with the number of batches.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The shortest time between two batches of requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct GatherTime {
    /// In microseconds; zero while processors are not scarce.
    scarce: Arc<AtomicU64>,
    /// It is never shorter; zero with many processors.
    least: Duration,
}

impl GatherTime {
    /// For a process that may use this many processors.
    pub(crate) fn for_processors(processors: usize) -> Self {
        let processors = u32::try_from(processors.max(PROCESSORS_MIN)).unwrap_or(u32::MAX);
        let least = Some(GATHER_ON_ONE_PROCESSOR / processors).filter(|time| *time >= LEAST_MIN);
        Self { scarce: Arc::default(), least: least.unwrap_or_default() }
    }

    pub(crate) fn get(&self) -> Duration {
        self.scarce().max(self.least)
    }

    fn scarce(&self) -> Duration {
        Duration::from_micros(self.scarce.load(Ordering::Relaxed))
    }

    /// Follows how long the thread waited for a processor each time, on average.
    fn follow(&self, wait: Duration) {
        let now = self.scarce();
        let next = if wait > SCARCE_ABOVE {
            (now + STEP_UP).min(GATHER_MAX)
        } else if wait < IDLE_BELOW {
            now.saturating_sub(STEP_DOWN)
        } else {
            now
        };
        self.set(next);
    }

    pub(crate) fn set(&self, time: Duration) {
        self.scarce.store(time.as_micros() as u64, Ordering::Relaxed);
    }
}

/// Observes the thread that it is created on.
pub(crate) struct CpuPressure {
    gather: GatherTime,
    /// None where the system does not count it.
    waits: Option<ThreadWaits>,
}

struct ThreadWaits {
    statistics: File,
    last: RunStatistics,
    at: Instant,
}

/// What Linux has counted of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RunStatistics {
    /// How long it was ready and had no processor.
    waited: Duration,
    /// How often it got one.
    runs: u64,
}

impl RunStatistics {
    /// The average wait since an earlier moment.
    fn wait_since(self, earlier: Self) -> Duration {
        let waited = self.waited.saturating_sub(earlier.waited);
        let runs = self.runs.saturating_sub(earlier.runs);
        waited.checked_div(u32::try_from(runs).unwrap_or(u32::MAX)).unwrap_or_default()
    }
}

impl CpuPressure {
    /// Observes the calling thread.
    pub(crate) fn of_this_thread(gather: GatherTime) -> Self {
        let waits = File::open("/proc/thread-self/schedstat").ok().and_then(|statistics| {
            let last = read_statistics(&statistics)?;
            Some(ThreadWaits { statistics, last, at: Instant::now() })
        });
        Self { gather, waits }
    }

    /// To be called regularly on any thread.
    pub(crate) fn observe(&mut self) {
        let Some(waits) = &mut self.waits else { return };
        let now = Instant::now();
        if now.saturating_duration_since(waits.at) < OBSERVED_AT_LEAST {
            return;
        }
        let Some(statistics) = read_statistics(&waits.statistics) else { return };
        self.gather.follow(statistics.wait_since(waits.last));
        (waits.last, waits.at) = (statistics, now);
    }
}

fn read_statistics(file: &File) -> Option<RunStatistics> {
    let mut buffer = [0; 128];
    let length = read_start(file, &mut buffer)?;
    parse_statistics(buffer.get(..length)?)
}

#[cfg(unix)]
fn read_start(file: &File, buffer: &mut [u8]) -> Option<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, 0).ok()
}

#[cfg(not(unix))]
fn read_start(_file: &File, _buffer: &mut [u8]) -> Option<usize> {
    None
}

/// Three numbers: how long it ran, how long it waited, in nanoseconds, and how often it ran.
fn parse_statistics(text: &[u8]) -> Option<RunStatistics> {
    let text = std::str::from_utf8(text).ok()?;
    let mut numbers = text.split_ascii_whitespace().skip(1).map(str::parse);
    let (waited, runs) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(RunStatistics { waited: Duration::from_nanos(waited), runs })
}

/// A batch takes about 0.2 ms of processor time on a member, however few requests it has. With so much time between
/// batches, divided by the processors, batches take a twentieth of them.
const GATHER_ON_ONE_PROCESSOR: Duration = Duration::from_millis(4);
/// With one processor it is as short as with two: 2 ms are still short for a client.
const PROCESSORS_MIN: usize = 2;
/// A batch takes about as long. Nothing more would come in less, and the member would be woken for it.
const LEAST_MIN: Duration = Duration::from_micros(500);
/// A thread that waits for longer than this has too few processors.
const SCARCE_ABOVE: Duration = Duration::from_micros(70);
/// Below this there are enough of them.
const IDLE_BELOW: Duration = Duration::from_micros(60);
const STEP_UP: Duration = Duration::from_millis(1);
const STEP_DOWN: Duration = Duration::from_micros(250);
/// Short for a client that waits for a busy server, and far below an election timeout.
const GATHER_MAX: Duration = Duration::from_millis(5);
/// The shortest time that is judged.
const OBSERVED_AT_LEAST: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_gathered_for_longer_while_processors_are_scarce() {
        let gather = GatherTime::default();
        assert_eq!(gather.get(), Duration::ZERO);
        for _ in 0..100 {
            gather.follow(2 * SCARCE_ABOVE);
        }
        assert_eq!(gather.get(), GATHER_MAX);
        gather.follow(SCARCE_ABOVE);
        assert_eq!(gather.get(), GATHER_MAX);
        for _ in 0..100 {
            gather.follow(Duration::ZERO);
        }
        assert_eq!(gather.get(), Duration::ZERO);
    }

    #[test]
    fn the_time_follows_the_number_of_processors_and_is_longer_while_they_are_scarce() {
        let time = |processors| GatherTime::for_processors(processors).get();
        assert_eq!(time(1), Duration::from_millis(2));
        assert_eq!(time(2), Duration::from_millis(2));
        assert_eq!(time(8), Duration::from_micros(500));
        assert_eq!(time(9), Duration::ZERO);
        let gather = GatherTime::for_processors(2);
        for _ in 0..100 {
            gather.follow(2 * SCARCE_ABOVE);
        }
        assert_eq!(gather.get(), GATHER_MAX);
        for _ in 0..100 {
            gather.follow(Duration::ZERO);
        }
        assert_eq!(gather.get(), Duration::from_millis(2));
    }

    #[test]
    fn the_statistics_of_linux_are_understood() {
        let statistics = parse_statistics(b"5203041 7000000 12\n").unwrap();
        assert_eq!(statistics, RunStatistics { waited: Duration::from_millis(7), runs: 12 });
        for malformed in [&b""[..], b"5203041", b"1 2", b"1 x 2", b"1 -2 3", b"\xff \xff \xff"] {
            assert_eq!(parse_statistics(malformed), None, "{malformed:?}");
        }
    }

    #[test]
    fn a_wait_is_the_average_of_those_since_the_last_time() {
        let at = |waited, runs| RunStatistics { waited: Duration::from_micros(waited), runs };
        assert_eq!(at(700, 12).wait_since(at(100, 2)), Duration::from_micros(60));
        assert_eq!(at(100, 2).wait_since(at(100, 2)), Duration::ZERO, "it did not run");
        assert_eq!(at(0, 0).wait_since(at(100, 2)), Duration::ZERO);
    }
}
