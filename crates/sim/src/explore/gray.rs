//! Gray faults: members and links that are slow or stand still, instead of dead. They last
//! until they are relieved.
//!
//! Random runs have them among other faults. After the healing some runs have them alone, at
//! members that no quorum needs: the others must serve clients and finish a goal meanwhile
//! (L3).

use std::collections::BTreeSet;

use quorate_core::membership::ChangeKind;
use quorate_core::{Change, MemberId, MemberSet};

use super::action::ActionKind;
use super::acts::MEMBERS_MAX;
use super::heal::have_quorums;
use super::setting::TICK;
use super::simulation::{SimEvent, Simulation, place_of};
use super::workload::ClientReply;
use crate::checkers::{Checked, Violation};

/// Time limits under gray faults, in election timeouts.
const SERVED_WITHIN: u64 = 30;
const CHANGED_WITHIN: u64 = 80;

/// More messages than this do not wait for a frozen member.
const HELD_MAX: usize = 2_000;

impl Simulation {
    /// Begins or ends a gray fault. False if it changes nothing.
    pub(crate) fn strike_gray(&mut self, kind: ActionKind, place: usize, number: u64) -> bool {
        let slow = (1 + number % 5) * self.election();
        let other = number as usize / 8 % self.members.len();
        let (now, member) = (self.now, &mut self.members[place]);
        let up = member.is_up();
        match kind {
            ActionKind::HangDisk => !std::mem::replace(&mut member.stall.disk, true),
            ActionKind::HangMachine if up => !std::mem::replace(&mut member.stall.machine, true),
            ActionKind::Freeze if up && member.stall.frozen.is_none() => {
                member.stall.frozen = Some(now);
                true
            }
            ActionKind::CrawlDisk => {
                member.disk_delay = slow;
                true
            }
            ActionKind::SlowLink if other != place => {
                let (from, to) =
                    if number.is_multiple_of(2) { (place, other) } else { (other, place) };
                self.network.slow_down(from, to, slow);
                true
            }
            ActionKind::Relieve => self.relieve(place),
            _ => false,
        }
    }

    /// Ends all gray faults of a member. False if it has none.
    pub(crate) fn relieve(&mut self, place: usize) -> bool {
        self.network.relieve(place);
        let election_ticks = self.setting.election_ticks;
        let member = &mut self.members[place];
        member.disk_delay = member.disk_delay.min(self.setting.disk_delay.max(1));
        let stall = std::mem::take(&mut member.stall);
        let held = std::mem::take(&mut member.held);
        let run = member.run;
        if let (Some(since), Some(process)) = (stall.frozen, &mut member.process) {
            // Time has passed: the clock ticks before anything else, or a lease would seem valid.
            let ticks = ((self.now - since) / TICK).min(2 * election_ticks);
            (0..ticks).for_each(|_| process.driver.tick());
            self.schedule(self.now, SimEvent::Resumes { place, run, ticks: 0 });
        }
        held.into_iter().for_each(|event| self.schedule(self.now, event));
        stall.is_any()
    }

    /// An event of a member that stands still waits until it is relieved.
    pub(crate) fn unless_stalled(&mut self, place: usize, what: SimEvent) -> Option<SimEvent> {
        let member = &mut self.members[place];
        let waits = member.stall.frozen.is_some()
            || member.stall.disk && matches!(what, SimEvent::DiskDone { .. })
            || member.stall.machine && matches!(what, SimEvent::MachineDone { .. });
        if !waits {
            return Some(what);
        }
        let is_message = matches!(what, SimEvent::Arrives { .. });
        if !is_message || member.held.len() < HELD_MAX {
            member.held.push(what);
        }
        None
    }

    /// Some members or links stand still or are slow. As long as the others have a quorum of
    /// every membership in use, they serve clients, and reach a goal without those members.
    pub(crate) fn endure_gray_faults(&mut self, stays: &mut BTreeSet<MemberId>) -> Checked {
        let mut well: BTreeSet<MemberId> = stays.clone();
        well.retain(|id| self.membership().contains(*id));
        let all = well.len();
        for _ in 0..self.setting.gray {
            self.strike_lasting(&mut well);
        }
        if well.len() == all {
            return Ok(());
        }
        self.serve_under_gray_faults(&well)?;
        self.reach_goal_under_gray_faults(&mut well)?;
        self.serve_under_gray_faults(&well)?;
        stays.extend(well);
        self.network.reconnect();
        for place in 0..self.members.len() {
            self.relieve(place);
        }
        self.report.endured += 1;
        Ok(())
    }

    /// One gray fault at a member that the others can do without, often the leader.
    fn strike_lasting(&mut self, well: &mut BTreeSet<MemberId>) {
        let leader = self.leader().map(|place| self.members[place].id);
        let all: Vec<MemberId> = well.iter().copied().collect();
        let is_leader = self.random.per_mille(600);
        let drawn = self.random.pick(&all).copied();
        let Some(id) = leader.filter(|id| is_leader && well.contains(id)).or(drawn) else { return };
        let others: BTreeSet<MemberId> = all.iter().copied().filter(|other| *other != id).collect();
        if !have_quorums(&others, &self.memberships_needed()) {
            return;
        }
        let kinds = [
            ActionKind::HangDisk,
            ActionKind::HangDisk,
            ActionKind::HangMachine,
            ActionKind::Freeze,
            ActionKind::CrawlDisk,
            ActionKind::SlowLink,
            ActionKind::CutLink,
        ];
        let Some(kind) = self.random.pick(&kinds).copied() else { return };
        let (place, number) = (place_of(id), self.random.below(1 << 16));
        let others: Vec<MemberId> = others.into_iter().collect();
        let Some(peer) = self.random.pick(&others).map(|id| place_of(*id)) else { return };
        match kind {
            ActionKind::CutLink if number % 2 == 0 => self.network.cut(place, peer),
            ActionKind::CutLink => self.network.cut(peer, place),
            ActionKind::SlowLink => {
                let number = number % 8 + 8 * peer as u64;
                self.strike_gray(kind, place, number);
            }
            _ => {
                self.strike_gray(kind, place, number);
            }
        }
        well.remove(&id);
        self.report.count(kind.name());
        let name = kind.name();
        self.say(|| format!("== lasting {name} at {id}, number {number}"));
    }

    /// Commands to members that are well: one of them is done in bounded time.
    fn serve_under_gray_faults(&mut self, well: &BTreeSet<MemberId>) -> Checked {
        let end = self.deadline_of(SERVED_WITHIN, |id| well.contains(&id));
        let client = self.clients.count() + 2;
        let all: Vec<MemberId> = well.iter().copied().collect();
        let mut asked = Vec::new();
        while self.now < end {
            let Some(id) = self.random.pick(&all).copied() else { return Ok(()) };
            let (number, request) = self.clients.next_command(client);
            self.submit(place_of(id), number, request)?;
            asked.push(number);
            self.run_until(self.now + self.election())?;
            let is_done = |number: &usize| {
                matches!(self.clients.history[*number].reply, ClientReply::Reply(_))
            };
            if asked.iter().any(is_done) {
                return Ok(());
            }
        }
        Err(self.no_progress("no command is done", well))
    }

    /// A goal without the members that are not well, some with a new member in their place.
    fn reach_goal_under_gray_faults(&mut self, well: &mut BTreeSet<MemberId>) -> Checked {
        let now = self.membership();
        let mut voters: MemberSet = well.iter().copied().filter(|id| now.is_voter(*id)).collect();
        let learners: MemberSet =
            well.iter().copied().filter(|id| now.learners().contains(*id)).collect();
        if voters.is_empty() {
            return Ok(());
        }
        if self.members.len() < MEMBERS_MAX && self.random.per_mille(400) {
            let new = self.add_place(ActionKind::GoalWithNew);
            voters = voters.iter().chain([new]).collect();
        }
        let end = self.deadline_of(CHANGED_WITHIN, |id| well.contains(&id));
        let all: Vec<MemberId> = well.iter().copied().collect();
        while self.now < end {
            let now = self.membership();
            let is_there = *now.incoming() == voters && *now.learners() == learners;
            if is_there && now.goal().is_none() && now.majorities().len() == 1 {
                well.extend(voters.iter());
                return Ok(());
            }
            let under_way = now.goal().is_some_and(|goal| goal.voters == voters);
            if let Some(id) = self.random.pick(&all).copied().filter(|_| !under_way) {
                let (voters, learners) = (voters.clone(), learners.clone());
                let change: Change = ChangeKind::Goal { voters, learners }.into();
                self.ask_change(place_of(id), change)?;
            }
            self.run_until(self.now + self.election())?;
        }
        Err(self.no_progress(&format!("the goal {voters} is not reached"), well))
    }

    fn no_progress(&self, what: &str, well: &BTreeSet<MemberId>) -> Violation {
        let well: Vec<String> = well.iter().map(ToString::to_string).collect();
        let (well, now) = (well.join(" "), self.membership());
        Violation::new("L3", format!("{what} while {well} are well; {now}"))
    }
}
