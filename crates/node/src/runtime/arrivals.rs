//! Wakes the member when as many requests have come as it waits for.
//!
//! While a member gathers requests, they do not wake it one by one: it says which one it waits for. No
//! request is overlooked that comes while the member counts those that are there.

use super::sync::{AtomicU64, Notify, Ordering, fence};

/// Counts requests.
pub(crate) struct Arrivals {
    so_far: AtomicU64,
    /// The member waits for the request with this number; for none with zero.
    awaited: AtomicU64,
    complete: Notify,
}

impl Arrivals {
    pub(crate) fn new() -> Self {
        let (so_far, awaited) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { so_far, awaited, complete: Notify::new() }
    }

    /// A request has been put where the member finds it.
    pub(crate) fn on_request(&self) {
        let number = self.so_far.fetch_add(1, Ordering::AcqRel) + 1;
        // With the one in `wait_for`: either this thread sees the number that the member waits for, or the
        // member sees that it has been reached.
        fence(Ordering::SeqCst);
        if number == self.awaited.load(Ordering::Relaxed) {
            self.complete.notify_one();
        }
    }

    /// How many have come. The member reads it before it counts the requests that wait.
    pub(crate) fn so_far(&self) -> u64 {
        self.so_far.load(Ordering::Acquire)
    }

    /// The member waits for this many requests after the first `so_far`; for none with zero.
    pub(crate) fn wait_for(&self, so_far: u64, missing: usize) {
        let awaited = if missing == 0 { 0 } else { so_far + missing as u64 };
        self.awaited.store(awaited, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if awaited > 0 && self.so_far() >= awaited {
            self.complete.notify_one();
        }
    }

    /// Returns when they may have come.
    pub(crate) async fn ready(&self) {
        self.complete.notified().await;
    }
}
