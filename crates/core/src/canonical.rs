//! One form for all members that behave the same, for whoever explores what members
//! can do and wants to see each situation once.
//!
//! Only what has no influence on later behaviour is forgotten here; everything else
//! stays part of the value, of its equality and of its hash.

use crate::timer::Timer;
use crate::{Raft, SaveId};

impl Raft {
    /// Forgets what only time would bring out: clocks, the timeout that was drawn, who
    /// was heard when. Behaves as before for a caller that lets no election timeout
    /// pass: whose ticks are so few that nothing but heartbeats comes of them.
    ///
    /// Saves in flight are numbered from 1 again, in the same order; so must be those
    /// that the caller holds.
    pub fn make_canonical(&mut self) {
        let config = &self.config;
        self.timer = Timer::new(config, config.seed, self.timer.loyal);
        // Its only effect is on the timeout.
        self.taught = false;
        for (number, save) in (1..).zip(&mut self.saves.in_flight) {
            save.id = SaveId(number);
        }
        self.saves.newest = self.saves.in_flight.len() as u64;
        self.make_leader_canonical();
    }

    fn make_leader_canonical(&mut self) {
        let config = &self.config;
        let clock = 2 * u64::from(config.election_ticks);
        let Some(leader) = self.role.leader_mut() else { return };
        let left = leader.hand_over_after.saturating_sub(leader.clock);
        leader.hand_over_after = if left == 0 { 0 } else { clock + left };
        (leader.clock, leader.begun_at, leader.step_since) = (clock, clock, clock);
        leader.pace.ticks = 0;
        if config.uncommitted_bytes_max == u64::MAX {
            leader.uncommitted_bytes = 0;
        }
        let endless =
            (config.inflight_messages_max, config.inflight_bytes_max) == (u32::MAX, u64::MAX);
        for peer in &mut leader.peers {
            (peer.answered_at, peer.heard_at) = (clock, 0);
            if endless {
                peer.progress.inflight.clear();
            }
            if peer.rounds.finished > 0 {
                // Whether one was finished is all that counts.
                (peer.rounds.finished, peer.rounds.target) = (1, 0);
            }
        }
    }
}
