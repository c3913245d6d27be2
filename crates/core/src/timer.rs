//! Ticks counted since something happened.

use crate::Config;
use crate::random::Random;

/// The clocks of one member. A tick that leads to nothing touches only these.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Timer {
    /// Follower or candidate: since the leader was heard or the last campaign.
    /// Leader: since it last checked its quorum.
    pub(crate) elapsed: u32,
    /// Leader: since the last heartbeat.
    pub(crate) beat_elapsed: u32,
    /// A follower or candidate campaigns when `elapsed` reaches this.
    pub(crate) timeout: u32,
    /// Or already when it reaches this: the leader is said to be gone.
    pub(crate) hurry: Option<u32>,
    /// With leader-lease reads: for so many ticks a leader may count on this member,
    /// whether it still remembers that leader or not.
    pub(crate) loyal: u32,
    random: Random,
}

impl Timer {
    pub(crate) fn new(config: &Config, seed: u64, loyal: u32) -> Self {
        let random = Random::new(seed);
        let mut timer =
            Self { elapsed: 0, beat_elapsed: 0, timeout: 0, hurry: None, loyal, random };
        timer.restart(config);
        timer
    }

    /// Starts counting again, towards a newly drawn timeout.
    pub(crate) fn restart(&mut self, config: &Config) {
        self.wait_again();
        self.beat_elapsed = 0;
        let drawn = config.election_ticks + self.random.below(config.election_ticks);
        self.timeout = drawn.saturating_add(config.handicap_ticks());
    }

    /// Somebody leads, or stands with our vote: it has the whole timeout.
    pub(crate) fn wait_again(&mut self) {
        self.elapsed = 0;
        self.hurry = None;
    }

    /// Draws a short time after which to campaign, unless the timeout is over before. A
    /// leader that lives sends a heartbeat within it.
    pub(crate) fn hurry(&mut self, config: &Config) {
        let half = config.election_ticks.div_ceil(2);
        let drawn = config.heartbeat_ticks + 1 + self.random.below(half);
        let ticks = drawn.saturating_add(config.handicap_ticks() / 2);
        self.hurry = Some(self.elapsed.saturating_add(ticks));
    }

    /// What was waited for is over. A campaign on a mere hint does not put off the one
    /// that the timeout leads to.
    pub(crate) fn begin_campaign(&mut self) {
        if self.elapsed >= self.timeout {
            self.elapsed = 0;
        }
        self.hurry = None;
    }

    pub(crate) fn tick(&mut self) {
        self.elapsed = self.elapsed.saturating_add(1);
        self.loyal = self.loyal.saturating_sub(1);
    }

    pub(crate) fn is_due(&self) -> bool {
        self.elapsed >= self.timeout || self.hurry.is_some_and(|hurry| self.elapsed >= hurry)
    }
}
