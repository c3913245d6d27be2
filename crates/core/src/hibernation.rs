//! The compact form of an idle member, for a process that holds thousands of them.
//!
//! A [`HibernatedRaft`] takes about a fifth of the memory of the [`Raft`] that it replaces. It only
//! counts ticks; for everything else it is woken, and continues as a member that was not packed.
//! Whether to hibernate is the caller's choice, because it costs time: each wake-up builds the member again.

use std::sync::Arc;

use crate::Raft;
use crate::entry::Slice;
use crate::membership::Membership;
use crate::pack::{Pack, Reader, Writer};
use crate::role::Role;

/// An idle member in compact form. Its entries share memory with their other holders, such as the
/// disk; everything else is one block of bytes.
#[derive(Clone, Debug)]
#[must_use = "dropping it loses the member"]
pub struct HibernatedRaft {
    bytes: Box<[u8]>,
    /// Where the flags begin in them.
    flags_at: u32,
    /// Ticks since the member was packed.
    ticks: u32,
    /// With the tick after so many the member has to do something.
    ticks_max: u32,
    /// The entries of the log that are in memory.
    slices: Box<[Slice]>,
    /// The memberships that have more than members in them, which is not packed.
    memberships: Box<[Arc<Membership>]>,
}

impl HibernatedRaft {
    /// Counts a tick. False, with no effect, if a timer ends with this tick: wake the member and
    /// give the tick to it.
    #[inline]
    #[must_use = "a tick that is not counted belongs to the member"]
    pub fn tick(&mut self) -> bool {
        let counts = self.ticks < self.ticks_max;
        self.ticks += u32::from(counts);
        counts
    }

    /// The member, equal to the one that was packed after the same ticks. Takes time in proportion
    /// to the ticks.
    pub fn wake(&self) -> Raft {
        let flags_at = self.flags_at as usize;
        let (numbers, flags) = self.bytes.split_at(flags_at);
        let mut raft =
            Raft::unpack(&mut Reader::new(numbers, flags, &self.slices, &self.memberships));
        for _ in 0..self.ticks {
            let counted = raft.tick_idle();
            assert!(counted, "a hibernated member counts only ticks without consequences");
        }
        raft
    }
}

impl Raft {
    /// The compact form of this member, if it was idle at the last tick and has had no other
    /// input since. A member with unfinished work, such as a change of members or a slow peer,
    /// has none.
    pub fn hibernate(&self) -> Option<HibernatedRaft> {
        if !self.idle.is_set() {
            return None;
        }
        let clock = self.role.leader().map_or(0, |leader| leader.clock);
        let mut writer = Writer::new([self.log.last().index, clock]);
        self.pack(&mut writer);
        let (bytes, flags_at, slices, memberships) = writer.finish()?;
        let ticks_max = self.idle_ticks_left();
        Some(HibernatedRaft { bytes, flags_at, ticks: 0, ticks_max, slices, memberships })
    }

    /// How many ticks [`Raft::tick_idle`] only counts.
    fn idle_ticks_left(&self) -> u32 {
        let (timer, config) = (&self.timer, &self.config);
        let left = match &self.role {
            _ if timer.early_timeout.is_some() => 0,
            Role::Leader(_) => (config.election_ticks - timer.elapsed)
                .min(config.heartbeat_ticks - timer.heartbeat_elapsed),
            _ => timer.timeout.saturating_sub(timer.elapsed),
        };
        left.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Boot, Config, Input, MemberId, RequestId};

    /// The only voter, which leads and is idle.
    fn idle_leader() -> Raft {
        let mut config = Config::new(MemberId(1));
        (config.election_ticks, config.heartbeat_ticks) = (20, 10);
        let boot = Boot::first(Membership::new([MemberId(1)], [MemberId(2)]));
        let mut raft = Raft::new(config, boot).unwrap();
        for _ in 0..4 {
            raft.step(Input::Tick).unwrap();
            finish_work(&mut raft);
        }
        raft.step(Input::Tick).unwrap();
        raft
    }

    fn finish_work(raft: &mut Raft) {
        while raft.has_output() {
            let output = raft.take_output();
            if let Some(save) = output.save {
                raft.step(Input::Saved(save.id)).unwrap();
            }
            if let Some(last) = output.apply.last() {
                raft.step(Input::Applied(last.id.index)).unwrap();
            }
        }
    }

    #[test]
    fn woken_member_equals_the_one_that_was_only_ticked() {
        let mut raft = idle_leader();
        let mut packed = raft.hibernate().unwrap();
        assert_eq!(packed.wake(), raft);
        let mut ticks = 0;
        while packed.tick() {
            raft.step(Input::Tick).unwrap();
            ticks += 1;
        }
        assert!(ticks > 0 && !packed.tick());
        let mut woken = packed.wake();
        assert_eq!(woken, raft);
        // The next tick ends a timer.
        woken.step(Input::Tick).unwrap();
        assert!(woken.has_output());
    }

    #[test]
    fn member_with_work_does_not_hibernate() {
        let mut raft = idle_leader();
        let command = Input::Propose(RequestId(1), vec![1].into());
        raft.step(command).unwrap();
        assert!(raft.hibernate().is_none());
        raft.step(Input::Tick).unwrap();
        assert!(raft.hibernate().is_none());
    }
}
