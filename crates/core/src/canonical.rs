//! One canonical form for all members that behave the same, for model checkers that want to
//! visit each state once.
//!
//! Only state without influence on later behaviour is removed; the rest stays part of the
//! value, its equality and its hash.

use crate::slow_disk::DiskPace;
use crate::stall::StallTimer;
use crate::timer::Timer;
use crate::{Raft, SaveId};

impl Raft {
    /// Removes what only matters over time: clocks, the random timeout, when peers last
    /// replied. The member behaves as before for a caller that lets no election timeout
    /// pass.
    ///
    /// Saves in flight are numbered from 1 again, in the same order; the caller must
    /// renumber those that it holds.
    pub fn make_canonical(&mut self) {
        let config = &self.config;
        self.timer = Timer::new(config, config.seed, self.timer.lease_guard);
        self.stall = StallTimer::default();
        // Its only effect is on the timeout.
        self.informed_by_vote = false;
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
        // A pause that lasts goes on for two election timeouts, which do not pass. If it were
        // stored as the time left, every heartbeat would lead to a new state.
        let pauses = leader.hand_over_after > leader.clock;
        leader.hand_over_after = if pauses { 2 * clock } else { 0 };
        (leader.clock, leader.elected_at, leader.step_since) = (clock, clock, clock);
        leader.membership_since = clock;
        leader.recent_log_end.ticks = 0;
        leader.pace = DiskPace::default();
        if config.uncommitted_bytes_max == u64::MAX {
            leader.uncommitted_bytes = 0;
        }
        let endless =
            (config.inflight_messages_max, config.inflight_bytes_max) == (u32::MAX, u64::MAX);
        for peer in &mut leader.peers {
            (peer.replied_at, peer.heard_at) = (clock, 0);
            (peer.grew_at, peer.since) = (clock, clock);
            if config.stall_timeouts == 0 {
                peer.applied = 0; // Only shown.
            }
            if endless {
                peer.progress.inflight.clear();
            }
            if peer.rounds.finished > 0 {
                // Only whether a round was finished matters.
                (peer.rounds.finished, peer.rounds.target) = (1, 0);
            }
        }
    }
}
