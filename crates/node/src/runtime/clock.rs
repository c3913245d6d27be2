//! Time, in ticks: one timer for all members of a process, and how many ticks each of
//! them is behind.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Wakes everybody once in a while, until nobody is left.
pub(crate) fn start_ticker(tick: Duration) -> watch::Receiver<()> {
    let (wake, woken) = watch::channel(());
    let mut interval = interval(tick);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::spawn(async move {
        while !wake.is_closed() {
            interval.tick().await;
            wake.send_replace(());
        }
    });
    woken
}

/// One member's share of it.
pub(crate) struct Clock {
    wakes: watch::Receiver<()>,
    tick: Duration,
    began: Instant,
    ticked: u64,
    /// Ticks that may pass at once. A process that stood still has not heard anybody: it
    /// should listen before it concludes that nobody is there.
    burst_max: u64,
}

impl Clock {
    /// With leader leases every tick has to be counted, however late: others have counted
    /// theirs.
    pub(crate) fn new(wakes: watch::Receiver<()>, tick: Duration, counts_all: bool) -> Self {
        let burst_max = if counts_all { MANY_TICKS } else { 2 };
        Self { wakes, tick, began: Instant::now(), ticked: 0, burst_max }
    }

    /// Some time has passed.
    pub(crate) async fn changed(&mut self) {
        if self.wakes.changed().await.is_err() {
            // The ticker ends only with the runtime.
            std::future::pending::<()>().await;
        }
    }

    /// How many ticks are to be counted now.
    pub(crate) fn take_due(&mut self) -> u64 {
        let passed = self.began.elapsed().as_nanos() / self.tick.as_nanos().max(1);
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        let due = passed.saturating_sub(self.ticked);
        self.ticked = passed;
        due.min(self.burst_max)
    }
}

/// More than any timeout: after so many, everything has run out.
const MANY_TICKS: u64 = 100_000;
