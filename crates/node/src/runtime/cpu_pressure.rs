//! Whether processors are scarce, and how long requests are gathered because of it.
//!
//! A batch costs the same however few requests it has. While processors are idle, small batches
//! are right: they are complete sooner. When threads wait for a processor, they take time from
//! everything else, so batches become larger: requests are gathered for longer, up to a limit. The
//! sign of it is how long Raft's own thread has waited for a processor, which Linux counts.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The shortest time between two batches of requests; zero while processors are not scarce.
#[derive(Clone, Debug, Default)]
pub(crate) struct GatherTime(Arc<AtomicU64>);

impl GatherTime {
    pub(crate) fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    /// Follows the share of time for which the thread was ready and had no processor.
    fn follow(&self, waiting_share: f64) {
        let now = self.get();
        let next = if waiting_share > SCARCE_ABOVE {
            (now + STEP_UP).min(GATHER_MAX)
        } else if waiting_share < IDLE_BELOW {
            now.saturating_sub(STEP_DOWN)
        } else {
            now
        };
        self.set(next);
    }

    pub(crate) fn set(&self, time: Duration) {
        self.0.store(time.as_micros() as u64, Ordering::Relaxed);
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
    waited: Duration,
    at: Instant,
}

impl CpuPressure {
    /// Observes the calling thread.
    pub(crate) fn of_this_thread(gather: GatherTime) -> Self {
        let waits = File::open("/proc/thread-self/schedstat").ok().and_then(|statistics| {
            let waited = read_waited(&statistics)?;
            Some(ThreadWaits { statistics, waited, at: Instant::now() })
        });
        Self { gather, waits }
    }

    /// To be called regularly on any thread.
    pub(crate) fn observe(&mut self) {
        let Some(waits) = &mut self.waits else { return };
        let now = Instant::now();
        let passed = now.saturating_duration_since(waits.at);
        if passed < OBSERVED_AT_LEAST {
            return;
        }
        let Some(waited) = read_waited(&waits.statistics) else { return };
        let share = waited.saturating_sub(waits.waited).as_secs_f64() / passed.as_secs_f64();
        (waits.waited, waits.at) = (waited, now);
        self.gather.follow(share);
    }
}

/// How long the thread of this file was ready and had no processor.
fn read_waited(statistics: &File) -> Option<Duration> {
    let mut buffer = [0; 128];
    let length = read_start(statistics, &mut buffer)?;
    parse_waited(buffer.get(..length)?)
}

#[cfg(unix)]
fn read_start(file: &File, buffer: &mut [u8]) -> Option<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, 0).ok()
}

#[cfg(not(unix))]
fn read_start(_file: &File, _buffer: &mut [u8]) -> Option<usize> {
    None
}

/// The second of three numbers, in nanoseconds.
fn parse_waited(text: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// A thread that waits for more of the time than this has too few processors.
const SCARCE_ABOVE: f64 = 0.06;
/// Below this there are enough of them.
const IDLE_BELOW: f64 = 0.03;
const STEP_UP: Duration = Duration::from_micros(500);
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
            gather.follow(0.5);
        }
        assert_eq!(gather.get(), GATHER_MAX);
        gather.follow(f64::midpoint(SCARCE_ABOVE, IDLE_BELOW));
        assert_eq!(gather.get(), GATHER_MAX);
        for _ in 0..100 {
            gather.follow(0.0);
        }
        assert_eq!(gather.get(), Duration::ZERO);
    }

    #[test]
    fn the_statistics_of_linux_are_understood() {
        let waited = parse_waited(b"5203041 7000000 12\n");
        assert_eq!(waited, Some(Duration::from_millis(7)));
        for malformed in [&b""[..], b"5203041", b"1 x 2", b"1 -2 3", b"\xff \xff \xff"] {
            assert_eq!(parse_waited(malformed), None, "{malformed:?}");
        }
    }
}
