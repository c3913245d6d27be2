//! The threads that serve clients.
//!
//! Requests of many clients that are answered together come back together, one after the other
//! within a fraction of a millisecond. A thread that waits for its sockets would be woken for nearly
//! each of them, which takes longer than to serve it, and all of them become part of the same batch
//! anyway. So a thread that was woken several times in short order, while many calls are open, pauses
//! before it waits again, and then reads what has arrived (`docs/decisions/035-client-threads-pause.md`).

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

/// A runtime for a process that runs one server. Raft, the state machine and the disk have threads
/// of their own, which take about as much as clients do: with a thread for each processor, requests that
/// arrive together would only wake more of them.
///
/// # Errors
/// When the system starts no more threads.
pub fn start() -> io::Result<Runtime> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.saturating_sub(1).max(1);
    Builder::new_multi_thread()
        .worker_threads(threads)
        .on_thread_park(move || {
            let open_calls = OPEN_CALLS.load(Ordering::Relaxed) / threads;
            if PACE.get().is_pause_due(open_calls) {
                thread::sleep(PAUSE);
            }
            WAITS_SINCE.set(Some(Instant::now()));
        })
        .on_thread_unpark(|| {
            if let Some(since) = WAITS_SINCE.take() {
                PACE.set(PACE.get().after_wait(since.elapsed()));
            }
        })
        .enable_all()
        .build()
}

thread_local! {
    static PACE: Cell<ReadPace> = const { Cell::new(ReadPace { short_waits: 0 }) };
    static WAITS_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Calls of KV that this process serves: others may wait for long, such as for a lock. It does not
/// belong to the server, because its threads come first.
static OPEN_CALLS: AtomicUsize = AtomicUsize::new(0);

/// A call of KV in progress.
#[derive(Debug)]
pub(crate) struct OpenCall(());

impl OpenCall {
    pub(crate) fn begin() -> Self {
        OPEN_CALLS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        OPEN_CALLS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// When a thread pauses before it waits for its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadPace {
    /// How many waits were short, the last one among them.
    short_waits: u32,
}

impl ReadPace {
    /// With few open calls, a pause would delay them by much of the time that they take.
    fn is_pause_due(self, open_calls: usize) -> bool {
        self.short_waits >= SHORT_WAITS_MIN && open_calls >= OPEN_CALLS_MIN
    }

    fn after_wait(self, waited: Duration) -> Self {
        let is_short = waited < SHORT_WAIT;
        Self { short_waits: if is_short { self.short_waits.saturating_add(1) } else { 0 } }
    }
}

/// A fraction of what calls take that are open at the same time as so many others.
const PAUSE: Duration = Duration::from_micros(150);
const OPEN_CALLS_MIN: usize = 32;
/// A client that waits for each reply before its next request causes one short wait after a long one.
const SHORT_WAITS_MIN: u32 = 2;
const SHORT_WAIT: Duration = Duration::from_micros(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn after(waits: &[u64]) -> ReadPace {
        let waits = waits.iter().map(|wait| Duration::from_micros(*wait));
        waits.fold(ReadPace { short_waits: 0 }, ReadPace::after_wait)
    }

    #[test]
    fn a_pause_follows_short_waits_while_many_calls_are_open() {
        assert!(after(&[500, 20, 20]).is_pause_due(OPEN_CALLS_MIN));
        assert!(!after(&[500, 20, 20]).is_pause_due(OPEN_CALLS_MIN - 1));
        assert!(after(&[500, 20, 20, 0, 0]).is_pause_due(OPEN_CALLS_MIN));
        assert!(!after(&[20, 20, 500]).is_pause_due(OPEN_CALLS_MIN), "nothing came for long");
        assert!(
            !after(&[500, 20, 500, 20]).is_pause_due(OPEN_CALLS_MIN),
            "one client after another"
        );
    }
}
