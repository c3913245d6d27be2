//! Ticks of an idle member: only its timers advance.
//!
//! A process may hold thousands of members, most of them idle, and each is ticked all the time.
//! A tick that finds a member idle remembers it, and until the next other input the following
//! ticks do nothing but count.

use std::hash::{Hash, Hasher};

use crate::Raft;
use crate::role::Role;

/// Whether the last tick found the member idle. It follows from the rest of the member, so it
/// counts neither for equality nor for the hash.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdleMark(bool);

impl IdleMark {
    pub(crate) const NO: Self = Self(false);

    #[inline]
    pub(crate) fn is_set(self) -> bool {
        self.0
    }
}

impl PartialEq for IdleMark {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for IdleMark {}

impl Hash for IdleMark {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Raft {
    /// Advances the timers of a member that was idle at the last tick. False, with no effect,
    /// when a timer ends.
    #[inline]
    pub(crate) fn tick_idle(&mut self) -> bool {
        let (timer, config) = (&mut self.timer, &self.config);
        if let Role::Leader(leader) = &mut self.role {
            let last = timer.elapsed + 1 >= config.election_ticks
                || timer.heartbeat_elapsed + 1 >= config.heartbeat_ticks;
            if last {
                return false;
            }
            timer.heartbeat_elapsed += 1;
            leader.clock += 1;
            leader.recent_log_end.tick(self.log.last().index, config.election_ticks);
        } else if timer.elapsed + 1 >= timer.timeout || timer.early_timeout.is_some() {
            return false;
        }
        timer.tick();
        true
    }

    /// At the end of a tick: marks an idle member. One without unfinished work also frees its
    /// buffers, which would otherwise be most of its memory.
    pub(crate) fn rest_if_idle(&mut self) {
        let is_finished = !self.would_output() && self.is_work_finished();
        if is_finished {
            self.log.free_buffers();
            self.saves.free_buffers();
            self.out.free_buffers();
            if let Some(leader) = self.role.leader_mut() {
                leader.free_buffers();
            }
        }
        self.idle = IdleMark(is_finished && self.ticks_only_count());
    }

    /// For the invariants: what the mark says is so.
    pub(crate) fn is_idle_mark_right(&self) -> bool {
        let is_idle = !self.would_output() && self.is_work_finished() && self.ticks_only_count();
        is_idle || !self.idle.is_set()
    }

    /// The next ticks have nothing to do but count, until a timer ends.
    fn ticks_only_count(&self) -> bool {
        let role_rests = match &self.role {
            Role::Follower => self.leader.is_some(),
            Role::Leader(leader) => {
                self.is_membership_at_rest() && leader.is_at_rest(self.log.last().index)
            }
            Role::PreCandidate(_) | Role::Candidate(_) => false,
        };
        role_rests && self.term_budget.is_full()
    }
}
