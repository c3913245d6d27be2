//! Wakes the member when as many requests have come as it waits for.
//!
//! While a member gathers requests, they do not wake it one by one. It says how many are missing.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts the requests that come while the member gathers them.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// Zero if the member does not wait for a number of requests.
    missing: AtomicUsize,
    complete: Notify,
}

impl Arrivals {
    /// A request has been put where the member finds it.
    pub(crate) fn on_request(&self) {
        if self.missing.load(Ordering::Relaxed) == 0 {
            return;
        }
        let one_less = |missing: usize| missing.checked_sub(1);
        let before = self.missing.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less);
        if before == Ok(1) {
            self.complete.notify_one();
        }
    }

    /// The member waits for so many requests; for none with zero. One that comes at this moment may not
    /// be counted: the time to gather is limited.
    pub(crate) fn wait_for(&self, missing: usize) {
        self.missing.store(missing, Ordering::Release);
    }

    /// Returns when they may have come.
    pub(crate) async fn ready(&self) {
        self.complete.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_ready(arrivals: &Arrivals) -> bool {
        pin!(arrivals.ready()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_member_is_woken_once_by_the_last_request_that_it_waits_for() {
        let arrivals = Arrivals::default();
        arrivals.on_request();
        assert!(!is_ready(&arrivals), "it waits for none");
        arrivals.wait_for(2);
        arrivals.on_request();
        assert!(!is_ready(&arrivals));
        arrivals.on_request();
        assert!(is_ready(&arrivals));
        arrivals.on_request();
        assert!(!is_ready(&arrivals));
        arrivals.wait_for(3);
        arrivals.wait_for(0);
        arrivals.on_request();
        assert!(!is_ready(&arrivals));
    }
}
