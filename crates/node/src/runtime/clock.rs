//! Time, in ticks: one timer for all members of a process, and the count of ticks that each
//! member has yet to process.

use std::time::Duration;

use super::cpu_pressure::{CpuPressure, GatherTime};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// Wakes all members of a process once per tick.
pub(crate) struct Ticker {
    tick: Duration,
    began: Instant,
    woken: watch::Receiver<()>,
    task: AbortHandle,
}

impl Ticker {
    /// On a thread that runs only Raft (`gather`), it also follows how scarce processors are.
    pub(crate) fn start(tick: Duration, gather: Option<GatherTime>) -> Self {
        let (wake, woken) = watch::channel(());
        let began = Instant::now();
        let mut interval = interval_at(began + tick, tick);
        // Members count the ticks since it began: it wakes them when one is due.
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let task = tokio::spawn(async move {
            let mut pressure = gather.map(CpuPressure::of_this_thread);
            loop {
                interval.tick().await;
                pressure.iter_mut().for_each(CpuPressure::observe);
                wake.send_replace(());
            }
        });
        Self { tick, began, woken, task: task.abort_handle() }
    }

    pub(crate) fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One member's clock.
pub(crate) struct Clock {
    wakes: watch::Receiver<()>,
    tick: Duration,
    began: Instant,
    ticked: u64,
    /// How many ticks may pass at once. A process that was suspended has received nothing:
    /// it should read its messages before it concludes that its peers are gone.
    burst_max: u64,
}

impl Clock {
    /// With leader leases (`counts_all`) every tick has to be counted, however late: the
    /// peers have counted theirs.
    pub(crate) fn new(ticker: &Ticker, counts_all: bool) -> Self {
        let burst_max = if counts_all { MANY_TICKS } else { 2 };
        let Ticker { tick, began, ref woken, .. } = *ticker;
        let mut clock = Self { wakes: woken.clone(), tick, began, ticked: 0, burst_max };
        clock.wakes.mark_unchanged();
        clock.ticked = clock.passed();
        clock
    }

    /// Waits for the next tick.
    pub(crate) async fn changed(&mut self) {
        if self.wakes.changed().await.is_err() {
            // The ticker ends only after all members, or with the runtime.
            std::future::pending::<()>().await;
        }
    }

    /// How many ticks are to be counted now.
    pub(crate) fn take_due(&mut self) -> u64 {
        let passed = self.passed();
        let due = passed.saturating_sub(self.ticked);
        self.ticked = passed;
        due.min(self.burst_max)
    }

    /// Ticks since the ticker began.
    fn passed(&self) -> u64 {
        let passed = self.began.elapsed().as_nanos() / self.tick.as_nanos().max(1);
        u64::try_from(passed).unwrap_or(u64::MAX)
    }
}

/// More than any timeout: after this many ticks every deadline has passed.
const MANY_TICKS: u64 = 100_000;

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    /// Otherwise what is due in one tick happens up to two ticks later in a member without other work.
    #[tokio::test(start_paused = true)]
    async fn a_member_that_started_later_counts_each_tick_when_it_is_woken() {
        let ticker = Ticker::start(TICK, None);
        sleep(TICK / 3).await;
        let mut clock = Clock::new(&ticker, false);
        for _ in 0..5 {
            clock.changed().await;
            assert_eq!(clock.take_due(), 1);
            // A turn for another reason.
            sleep(TICK / 2).await;
            assert_eq!(clock.take_due(), 0);
        }
    }
}
