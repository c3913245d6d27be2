//! Connection-lost hints from the transport, true or false: a process that dies closes its
//! connections, and a connection may also break while both processes run.

use quorate_core::status::RoleKind;

use super::simulation::{SimEvent, Simulation};

impl Simulation {
    /// A process died. Some of the other members see their connection to it close.
    pub(crate) fn hint_of_death(&mut self, place: usize) {
        if self.setting.hints == 0 {
            return;
        }
        let dead = self.members[place].id;
        for peer in 0..self.members.len() {
            if self.members[peer].is_up() && self.hints.per_mille(self.setting.hints) {
                let time = self.now + 1 + self.hints.below(self.setting.delay);
                let run = self.members[peer].run;
                self.schedule(time, SimEvent::ConnectionLost { place: peer, run, to: dead });
                self.report.count("hint that a member died");
            }
        }
    }

    /// At a tick of this member: its connection to the leader may break although the leader
    /// is running.
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
