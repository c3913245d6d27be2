//! Election and heartbeat timers, in ticks.

use crate::Config;
use crate::pack::pack_fields;
use crate::random::SeededRandom;

/// The timers of one member. A tick without consequences changes only these.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Timer {
    /// Follower or candidate: ticks since the leader was heard or the last campaign.
    /// Leader: ticks since the last quorum check.
    pub(crate) elapsed: u32,
    /// Leader: ticks since the last heartbeat.
    pub(crate) heartbeat_elapsed: u32,
    /// A follower or candidate campaigns when `elapsed` reaches this.
    pub(crate) timeout: u32,
    /// Or already when it reaches this: the connection to the leader was lost.
    pub(crate) early_timeout: Option<u32>,
    /// With leader-lease reads: for this many ticks a leader may rely on this member,
    /// whether the member still knows that leader or not.
    pub(crate) lease_guard: u32,
    random: SeededRandom,
}

pack_fields!(Timer { elapsed, heartbeat_elapsed, timeout, early_timeout, lease_guard, random });

impl Timer {
    pub(crate) fn new(config: &Config, seed: u64, lease_guard: u32) -> Self {
        let random = SeededRandom::new(seed);
        let mut timer = Self {
            elapsed: 0,
            heartbeat_elapsed: 0,
            timeout: 0,
            early_timeout: None,
            lease_guard,
            random,
        };
        timer.restart(config);
        timer
    }

    /// Restarts the timers with a new random timeout.
    pub(crate) fn restart(&mut self, config: &Config) {
        self.reset();
        self.heartbeat_elapsed = 0;
        let drawn = config.election_ticks + self.random.below(config.election_ticks);
        self.timeout = drawn.saturating_add(config.priority_delay_ticks());
    }

    /// A leader was heard, or a vote granted: wait the whole timeout again.
    pub(crate) fn reset(&mut self) {
        self.elapsed = 0;
        self.early_timeout = None;
    }

    /// Sets a short timeout, unless the normal one ends earlier. Members at different places in the row
    /// have time for a campaign between them.
    pub(crate) fn set_early_timeout(&mut self, place: u32) {
        let ticks = place.saturating_mul(2).saturating_add(1);
        self.early_timeout = Some(self.elapsed.saturating_add(ticks));
    }

    /// A timeout has ended. A campaign after a hint does not delay the one after the normal
    /// timeout.
    pub(crate) fn begin_campaign(&mut self) {
        if self.elapsed >= self.timeout {
            self.elapsed = 0;
        }
        self.early_timeout = None;
    }

    pub(crate) fn tick(&mut self) {
        self.elapsed = self.elapsed.saturating_add(1);
        self.lease_guard = self.lease_guard.saturating_sub(1);
    }

    pub(crate) fn is_due(&self) -> bool {
        self.elapsed >= self.timeout
            || self.early_timeout.is_some_and(|early_timeout| self.elapsed >= early_timeout)
    }
}
