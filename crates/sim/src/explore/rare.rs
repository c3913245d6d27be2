//! Rarer acts of storage and operators: syncs that lie, and ids that are used again.

use quorate_core::{Change, MemberId};

use super::member::{MemberHealth, SimMember};
use super::simulation::Simulation;
use crate::checkers::Violation;

impl Simulation {
    /// Syncs of this disk report success and make nothing durable, until the disk is repaired.
    pub(crate) fn lie_about_sync(&mut self, place: usize) -> bool {
        let member = &mut self.members[place];
        if member.health != MemberHealth::Healthy || !member.is_up() || member.flipped {
            return false;
        }
        member.disk.inner().lie_about_syncs();
        true
    }

    /// The power fails at a disk that lied about syncs: what the cluster relied on is lost, so
    /// the disk counts as lost. Where that cannot be tolerated only the process dies.
    pub(crate) fn lose_what_was_not_synced(&mut self, place: usize) -> Result<(), Violation> {
        if !self.members[place].disk.inner().is_lying() {
            self.members[place].lose_unsynced();
            return Ok(());
        }
        if self.members[place].health != MemberHealth::Healthy || !self.quorums_survive(place) {
            self.members[place].disk.inner().flush();
            return Ok(());
        }
        self.members[place].lose_unsynced();
        // It may start or not, but a start never panics.
        let disk = self.members[place].disk.copy();
        disk.inner().heal();
        disk.inner().stop_after(None);
        let _ = quorate::driver::start(disk, self.new_machine(), self.startup(place));
        self.members[place].health = MemberHealth::Lost;
        self.invariants.disk_lost(self.members[place].id);
        self.report.count("disk lost by a lying sync");
        Ok(())
    }

    /// The operator adds a removed member again under its old id, with an empty disk.
    pub(crate) fn reuse_id(&mut self, number: u64) -> Result<bool, Violation> {
        let in_use = self.memberships_in_use();
        let is_removed = |member: &SimMember| {
            member.run > 0
                && !member.ghost
                && in_use.iter().all(|membership| !membership.contains(member.id))
        };
        let removed: Vec<usize> =
            (0..self.members.len()).filter(|place| is_removed(&self.members[*place])).collect();
        let Some(leader) = self.leader().filter(|place| self.is_awake(*place)) else {
            return Ok(false);
        };
        let Some(place) = removed.get(number as usize % removed.len().max(1)).copied() else {
            return Ok(false);
        };
        self.crash(place)?;
        let id: MemberId = self.members[place].id;
        self.invariants.disk_lost(id);
        let commit = self.invariants.commit();
        let disk = self.new_disk();
        let member = &mut self.members[place];
        member.disk = disk;
        member.backup = None;
        member.incarnation = member.random.next_u64() | 1;
        member.joined_at = 0;
        member.added_after = commit;
        member.health = MemberHealth::NotStarted;
        member.wiped = false;
        member.flipped = false;
        self.ask_change(leader, Change::add_learner(id))?;
        Ok(true)
    }
}
