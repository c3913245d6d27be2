//! What a transport may tell of connections, true or not: a process that dies closes them,
//! and some break by themselves.

use quorate_core::status::RoleKind;

use super::simulation::{SimEvent, Simulation};

impl Simulation {
    /// A process died. Some of the others see their connection to it close.
    pub(crate) fn hint_of_death(&mut self, place: usize) {
        if self.setting.hints == 0 {
            return;
        }
        let gone = self.members[place].id;
        for peer in 0..self.members.len() {
            if self.members[peer].is_up() && self.hints.per_mille(self.setting.hints) {
                let at = self.now + 1 + self.hints.below(self.setting.delay);
                let run = self.members[peer].run;
                self.schedule(at, SimEvent::ConnectionLost { place: peer, run, to: gone });
                self.report.count("hint that a member died");
            }
        }
    }

    /// At a tick of this member: its connection to the leader breaks, and the leader lives.
    pub(crate) fn hint_falsely(&mut self, place: usize) {
        if self.setting.hints == 0 || self.healed {
            return;
        }
        if self.hints.below(100_000) >= self.setting.hints {
            return;
        }
        let Some(process) = &self.members[place].process else { return };
        let raft = process.driver.raft();
        if let Some(to) = raft.leader().filter(|_| raft.role() == RoleKind::Follower) {
            let run = self.members[place].run;
            self.schedule(self.now, SimEvent::ConnectionLost { place, run, to });
            self.report.count("false hint");
        }
    }
}
