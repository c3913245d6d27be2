//! Disks that are copied, moved, restored from a copy, or rolled back.
//!
//! A disk in another place is noticed when it is opened. A volume that is set back keeps its
//! place: the leader notices that the member lacks what it confirmed
//! (docs/decisions/013), and the others go on without it (L3).

use std::collections::BTreeSet;

use quorate::driver::StartError;
use quorate_core::MemberId;
use quorate_storage::OpenError;

use super::action::ActionKind;
use super::heal::have_quorums;
use super::member::MemberHealth;
use super::simulation::{SimEvent, Simulation, place_of};
use crate::checkers::{Checked, Violation};
use crate::faulty_disk::SharedDisk;

/// Within so many election timeouts a leader notices that a follower was rolled back.
const NOTICED_WITHIN: u64 = 20;

impl Simulation {
    pub(crate) fn copy_or_move(
        &mut self,
        kind: ActionKind,
        place: usize,
    ) -> Result<bool, Violation> {
        let member = &self.members[place];
        let is_good = member.health == MemberHealth::Healthy
            && !member.flipped
            && !member.disk.inner().is_lying();
        if !is_good {
            return Ok(false);
        }
        match kind {
            ActionKind::CopyDisk => {
                let copy = member.disk.copy();
                copy.inner().heal();
                copy.inner().flush();
                self.members[place].backup = Some(copy);
                Ok(true)
            }
            ActionKind::MoveDisk => self.move_disk(place),
            _ => self.restore_disk(place),
        }
    }

    /// The member is stopped and its disk is put in another place. It starts only when the
    /// operator says that this is right, and then it is the same member.
    fn move_disk(&mut self, place: usize) -> Result<bool, Violation> {
        if !self.kill(place)? {
            return Ok(false);
        }
        let member = &mut self.members[place];
        member.disk.inner().heal();
        member.disk.inner().flush();
        member.disk.inner().move_elsewhere();
        self.is_refused(place, self.members[place].disk.copy())?;
        self.members[place].accepts_move = true;
        self.schedule(self.now, SimEvent::Starts { place });
        Ok(true)
    }

    /// The disk is lost, and an old copy of it comes back. It must be refused, so that the disk
    /// is as good as lost.
    fn restore_disk(&mut self, place: usize) -> Result<bool, Violation> {
        if !self.quorums_survive(place) {
            return Ok(false);
        }
        let Some(backup) = self.members[place].backup.take() else { return Ok(false) };
        self.crash(place)?;
        let copy = backup.copy();
        copy.inner().move_elsewhere();
        self.is_refused(place, copy)?;
        self.members[place].health = MemberHealth::Lost;
        self.invariants.disk_lost(self.members[place].id);
        Ok(true)
    }

    fn is_refused(&mut self, place: usize, disk: SharedDisk) -> Checked {
        disk.inner().stop_after(None);
        // An earlier move that was accepted may still wait for a disk that hangs.
        self.members[place].accepts_move = false;
        let started = quorate::driver::start(disk, self.new_machine(), self.startup(place));
        if matches!(started, Err(StartError::Open(OpenError::Moved))) {
            return Ok(());
        }
        let id = self.members[place].id;
        Err(Violation::new("D4", format!("{id} starts with a disk in another place")))
    }

    /// After the faults: the volume of a follower is set back to an earlier state. The leader
    /// that it had confirmed more to notices, and does not count it. Without faults in between,
    /// nothing is lost.
    pub(crate) fn endure_rollback(&mut self, stays: &mut BTreeSet<MemberId>) -> Checked {
        let Some((leader, place)) = self.choose_rolled_back(stays) else { return Ok(()) };
        let id = self.members[place].id;
        let copy = self.members[place].disk.copy();
        copy.inner().flush();
        let last = |simulation: &Self| {
            let process = simulation.members[place].process.as_ref();
            process.map(|process| process.driver.raft().log_status())
        };
        let Some(before) = last(self) else { return Ok(()) };
        let end = self.deadline(NOTICED_WITHIN);
        while last(self).is_some_and(|now| now.commit < before.last.index + 3) {
            let (number, request) = self.clients.next_command(self.clients.count() + 2);
            self.submit(leader, number, request)?;
            self.run_until(self.now + self.election())?;
            if self.now > end {
                return Ok(());
            }
        }
        // The others have everything, and the leader is the one that the member confirmed it to.
        self.run_until(self.now + 2 * self.election())?;
        if self.leader() != Some(leader) {
            return Ok(());
        }
        let term = self.term_of(leader);
        self.say(|| format!("== {id} is rolled back"));
        self.crash(place)?;
        // What it confirmed was on its disk; the replies may still be on their way to the leader.
        // From now on nothing that it confirms counts.
        self.invariants.disk_lost(id);
        self.members[place].disk = copy;
        self.start(place)?;
        let end = self.deadline(NOTICED_WITHIN);
        while !self.noticed_rollbacks.contains(&id) {
            if self.leader() != Some(leader) || self.term_of(leader) != term {
                return Err(Violation::new("L3", format!("{id}, rolled back, deposes the leader")));
            }
            if self.now > end {
                return Err(Violation::new(
                    "L3",
                    format!("nobody notices that {id} was rolled back"),
                ));
            }
            self.run_until(self.now + self.election())?;
        }
        self.report.count("rolled-back disk noticed");
        self.crash(place)?;
        self.members[place].health = MemberHealth::Lost;
        stays.remove(&id);
        Ok(())
    }

    fn term_of(&self, place: usize) -> u64 {
        let process = self.members[place].process.as_ref();
        process.map_or(0, |process| process.driver.raft().term())
    }

    /// The leader, and a follower that the others can do without.
    fn choose_rolled_back(&mut self, stays: &BTreeSet<MemberId>) -> Option<(usize, usize)> {
        let leader = self.leader()?;
        let now = self.membership();
        let all: Vec<MemberId> = stays.iter().copied().collect();
        let id = *self.random.pick(&all)?;
        let mut others = stays.clone();
        others.remove(&id);
        let place = place_of(id);
        let is_possible = place != leader
            && now.is_voter(id)
            && self.is_awake(place)
            && have_quorums(&others, &self.memberships_needed());
        is_possible.then_some((leader, place))
    }
}
