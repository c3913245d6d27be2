//! The second half of a run: faults stop, and the remaining members must recover.
//!
//! Some members are restarted, connected and given working disks; the others stay down.
//! If the running members have a quorum of every membership that may be active at a member,
//! they must elect a leader, finish the change in progress, reach a new goal, serve all
//! clients and agree (L1, L2, L4, L5).

use std::collections::BTreeSet;
use std::sync::Arc;

use quorate::Machine as _;
use quorate_core::membership::{ChangeKind, GoalEnd};
use quorate_core::{Change, EntryId, Event, MemberId, MemberSet, Membership};

use super::member::{MemberHealth, SimMember};
use super::rerun::{self, Reached};
use super::setting::{FOCUS_COMMITS, RunSettings, TICK};
use super::simulation::{SimEvent, Simulation, place_of};
use super::workload::WorkloadVerdict;
use crate::checkers::{Checked, Violation, has_quorum};

/// Time limits, in election timeouts. The time to replicate the backlog is added: with tiny
/// windows and messages it takes a round trip for each entry.
const ELECTED_WITHIN: u64 = 20;
const CHANGED_WITHIN: u64 = 60;
const CAUGHT_UP_WITHIN: u64 = 40;
const VERSION_RISEN_WITHIN: u64 = 30;
/// After so many election timeouts no request to cancel is on its way.
const LAST_CANCEL: u64 = 50;
/// Longer than the timeout of a request.
const REPLIED_WITHIN: u64 = 50;

/// How long a message, and the work of a disk or machine, takes after the faults, at most.
pub(super) const DELAY_MAX: u64 = 300;
const WORK_MAX: u64 = 400;

impl Simulation {
    /// Ends the faults and requires that the cluster recovers.
    pub(crate) fn heal(&mut self) -> Checked {
        self.healed = true;
        self.network.heal();
        let mut stays = self.choose_members_that_stay();
        let names: Vec<String> = stays.iter().map(ToString::to_string).collect();
        self.say(|| format!("== healed: {}", names.join(" ")));
        self.bring_back(&stays)?;
        let in_progress = self.possible_goal(&stays);
        // A leader may start a change that needs members that stay down. The cluster is checked
        // only after the leader can know that they are down.
        self.run_until(self.now + 3 * self.election())?;
        // Members may have joined meanwhile. A member with an empty disk is excluded until it is
        // added again.
        let joined = |member: &&SimMember| member.is_up() && member.health == MemberHealth::Healthy;
        stays.extend(self.members.iter().filter(joined).map(|member| member.id));
        if !self.can_continue(&stays) {
            self.report.not_judged += 1;
            return self.finish(&stays, false);
        }
        self.wait_for(
            "L1",
            ELECTED_WITHIN,
            "no leader commits an entry of its term",
            |simulation| simulation.has_working_leader(),
        )?;
        if let Some(goal) = in_progress.or_else(|| self.possible_goal(&stays)) {
            self.finish_goal(goal, &stays)?;
        }
        self.reach_goal(&stays)?;
        if self.setting.gray > 0 {
            self.endure_gray_faults(&mut stays)?;
            self.reach_goal(&stays)?;
        }
        if self.setting.rollback > 0 {
            self.endure_rollback(&mut stays)?;
            self.reach_goal(&stays)?;
        }
        self.serve(&stays)?;
        self.report.healed += 1;
        self.finish(&stays, true)
    }

    /// All members that can be restarted, except a few that stay down, as long as the others
    /// can continue without them.
    fn choose_members_that_stay(&mut self) -> BTreeSet<MemberId> {
        let mut stays: BTreeSet<MemberId> = self
            .members
            .iter()
            .filter(|member| member.health == MemberHealth::Healthy && !member.flipped)
            .map(|member| member.id)
            .collect();
        if let Some(place) = self.over_at {
            let first = self.members[place].id;
            if stays.remove(&first) && !self.can_continue(&stays) {
                stays.insert(first);
            }
        }
        for _ in 0..self.setting.absent {
            let all: Vec<MemberId> = stays.iter().copied().collect();
            let Some(down) = self.random.pick(&all).copied() else { break };
            stays.remove(&down);
            if !self.can_continue(&stays) {
                stays.insert(down);
            }
        }
        stays
    }

    /// Whether these have a quorum of every membership that is or may become active.
    fn can_continue(&self, stays: &BTreeSet<MemberId>) -> bool {
        let memberships = match self.setting.focus {
            FOCUS_COMMITS => self.memberships_needed(),
            _ => self.memberships_in_use(),
        };
        have_quorums(stays, &memberships)
    }

    /// The memberships whose quorums must suffice: the newest one that is committed, the one
    /// before it until that is settled, and those that are logged after it.
    pub(super) fn memberships_needed(&self) -> Vec<Arc<Membership>> {
        let mut committed = self.invariants.memberships();
        let Some((newest, membership)) = committed.next() else { return Vec::new() };
        let before = committed.next().filter(|_| newest.index > self.settled);
        let before = before.map(|(_, membership)| Arc::clone(membership));
        let rafts = self.members.iter().filter_map(|member| member.process.as_ref());
        let logged = rafts.map(|process| process.driver.raft().membership_at(u64::MAX));
        let logged = logged.filter(|membership| membership.since().index > newest.index);
        std::iter::once(Arc::clone(membership)).chain(before).chain(logged).collect()
    }

    fn bring_back(&mut self, stays: &BTreeSet<MemberId>) -> Checked {
        for place in 0..self.members.len() {
            self.relieve(place);
            self.members[place].repair_disk();
            self.members[place].disk_delay = self.members[place].disk_delay.min(WORK_MAX);
            if stays.contains(&self.members[place].id) {
                self.upgrade_before_healing(place)?;
                self.start(place)?;
            } else {
                self.crash(place)?;
            }
            self.end_pause(place);
        }
        self.setting.apply_delay = self.setting.apply_delay.min(WORK_MAX);
        // Members that join later have such disks as well.
        self.setting.disk_delay = self.setting.disk_delay.min(WORK_MAX);
        self.setting.delay = self.setting.delay.min(DELAY_MAX);
        Ok(())
    }

    pub(super) fn election(&self) -> u64 {
        self.setting.election_ticks_max() * TICK
    }

    /// The end of a wait that begins now.
    pub(super) fn deadline(&self, elections: u64) -> u64 {
        self.deadline_of(elections, |_| true)
    }

    /// The same for these members only.
    pub(super) fn deadline_of(&self, elections: u64, of: impl Fn(MemberId) -> bool) -> u64 {
        let backlog = backlog_time(&self.setting, self.backlog(of));
        self.now + elections * self.election() + backlog
    }

    /// How many entries the member that is furthest behind still has to receive, to commit or
    /// to apply.
    fn backlog(&self, of: impl Fn(MemberId) -> bool) -> u64 {
        let members = || self.members.iter().filter(|member| of(member.id));
        let processes = || members().filter_map(|member| member.process.as_ref());
        let newest = processes().map(|process| process.driver.raft().log_status().last.index).max();
        let oldest = processes().map(|process| process.applier.applied()).min();
        newest.unwrap_or(0).saturating_sub(oldest.unwrap_or(0))
    }

    /// Runs until a condition holds.
    fn wait_for(
        &mut self,
        rule: &'static str,
        elections: u64,
        failure: &str,
        condition: impl Fn(&Self) -> bool,
    ) -> Checked {
        let end = self.deadline(elections);
        while self.now < end {
            if condition(self) {
                return Ok(());
            }
            self.run_until(self.now + TICK)?;
        }
        let membership = self.membership();
        let message = format!("{failure} within {elections} election timeouts; {membership}");
        Err(Violation::new(rule, message))
    }

    fn has_working_leader(&self) -> bool {
        let process = self.leader().and_then(|place| self.members[place].process.as_ref());
        process.is_some_and(|process| process.driver.raft().has_own_commit())
    }

    /// The goal in progress, if all of its members are among these.
    fn possible_goal(&self, stays: &BTreeSet<MemberId>) -> Option<EntryId> {
        let now = self.membership();
        let goal = now.goal()?;
        let mut members = goal.voters.iter().chain(goal.learners.iter());
        members.all(|id| stays.contains(&id)).then_some(goal.id)
    }

    /// A goal that was in progress is reached without the operator, by any leader: in some runs
    /// another member is asked to take over meanwhile.
    fn finish_goal(&mut self, goal: EntryId, stays: &BTreeSet<MemberId>) -> Checked {
        let mut moves = self.random.below(3);
        // No request to cancel can still be on its way.
        if self.now > self.admin.cancelled_at + LAST_CANCEL * self.election() {
            self.finishing = Some(goal);
        }
        let end = self.deadline(CHANGED_WITHIN);
        while self.membership().goal().is_some_and(|open| open.id == goal) {
            if self.now >= end {
                let now = self.membership();
                let message = format!("the goal {goal} is not finished: {now}");
                return Err(Violation::new("L2", message));
            }
            if moves > 0 && self.random.per_mille(100) {
                moves -= 1;
                self.move_leadership(stays)?;
            }
            self.run_until(self.now + TICK)?;
        }
        self.finishing = None;
        self.report.goals_finished += 1;
        Ok(())
    }

    /// The leader is asked to hand over to a member that stays.
    fn move_leadership(&mut self, stays: &BTreeSet<MemberId>) -> Checked {
        let all: Vec<MemberId> = stays.iter().copied().collect();
        let (Some(leader), Some(to)) = (self.leader(), self.random.pick(&all).copied()) else {
            return Ok(());
        };
        if let Some(process) = &mut self.members[leader].process {
            let _ = process.driver.transfer(to);
            self.report.count("transfer during a goal");
        }
        self.pump(leader)
    }

    /// A goal ends in the way that was requested.
    pub(crate) fn note_ended_goal(&mut self, event: &Event) -> Checked {
        let Event::GoalEnded(ended) = event else { return Ok(()) };
        if !self.ended_goals.insert(ended.id) {
            return Ok(());
        }
        self.report.goals_reached += u64::from(ended.end == GoalEnd::Reached);
        let is_cancelled = ended.end == GoalEnd::Cancelled;
        if is_cancelled && (!self.admin.has_cancelled || self.finishing == Some(ended.id)) {
            let message = format!("the goal {} was cancelled without a request", ended.id);
            return Err(Violation::new("L2", message));
        }
        Ok(())
    }

    /// The operator requests exactly the running members as a goal, and retries until the
    /// membership matches.
    fn reach_goal(&mut self, stays: &BTreeSet<MemberId>) -> Checked {
        let end = self.deadline(CHANGED_WITHIN);
        while self.now < end {
            let now = self.membership();
            let (voters, learners) = goal_for(&now, stays);
            if now.goal().is_none()
                && now.majorities().len() == 1
                && *now.incoming() == voters
                && *now.learners() == learners
            {
                return Ok(());
            }
            if let Some(place) = self.leader()
                && let Some(change) = next_change(&now, voters, learners)
            {
                self.ask_change(place, change)?;
            }
            self.run_until(self.now + self.election())?;
        }
        let now = self.membership();
        let names: Vec<String> = stays.iter().map(ToString::to_string).collect();
        Err(Violation::new("L2", format!("the members are not exactly {}: {now}", names.join(" "))))
    }

    /// A write and a read at every member get replies, and all members catch up.
    fn serve(&mut self, stays: &BTreeSet<MemberId>) -> Checked {
        for id in stays {
            let client = self.clients.count() + 2;
            let (number, request) = self.clients.next_query(client);
            self.submit(place_of(*id), number, request)?;
            let (number, request) = self.clients.next_command(client);
            self.submit(place_of(*id), number, request)?;
        }
        if self.setting.versions == 1 {
            self.wait_for("V2", VERSION_RISEN_WITHIN, "the version does not rise", |simulation| {
                simulation.version_has_risen()
            })?;
        }
        self.stop_clients();
        self.leases_end()?;
        self.wait_for("L5", REPLIED_WITHIN, "a request has no reply", |simulation| {
            simulation.clients.open() == 0 && simulation.admin.open() == 0
        })?;
        self.wait_for("L4", CAUGHT_UP_WITHIN, "a member does not catch up", |simulation| {
            let commit = simulation.invariants.commit();
            let now = simulation.membership();
            // A leader may have proposed meanwhile to revoke a lease.
            simulation.clients.open() == 0
                && stays.iter().filter(|id| now.contains(**id)).all(|id| {
                    let process = simulation.members[place_of(*id)].process.as_ref();
                    process.is_some_and(|process| process.applier.applied() == commit)
                })
        })
    }

    /// Checks the replies to clients and the states of the machines.
    fn finish(&mut self, stays: &BTreeSet<MemberId>, judged: bool) -> Checked {
        self.stop_clients();
        for place in 0..self.members.len() {
            if !judged {
                self.crash(place)?;
            }
        }
        let now = self.membership();
        let caught_up: Vec<MemberId> =
            stays.iter().copied().filter(|id| judged && now.contains(*id)).collect();
        if let Some(violation) = self.clients.answers.finish(&caught_up).first() {
            return Err(Violation::new("R3", violation.to_string()));
        }
        self.check_replay()?;
        self.check_etcd(judged)?;
        if self.first_machine.is_some() {
            // What clients saw began with an earlier cluster.
            return Ok(());
        }
        match self.clients.workload.check(&self.clients.history) {
            WorkloadVerdict::Passed => Ok(()),
            WorkloadVerdict::Broken(violation) => Err(violation),
            WorkloadVerdict::Undecided => {
                self.report.undecided += 1;
                Ok(())
            }
        }
    }

    /// Replays the log: it must produce the replies to clients and the machines' states.
    fn check_replay(&self) -> Checked {
        let mut reached = Vec::new();
        for member in &self.members {
            let Some(process) = &member.process else { continue };
            let applier = &process.applier;
            let chunks = applier.machine().snapshot().and_then(Iterator::collect);
            let chunks = chunks.map_err(|error| Violation::new("replay", error.to_string()))?;
            let applied = applier.applied();
            reached.push(Reached { member: member.id, applied, chunks });
        }
        let memberships = self.invariants.memberships();
        let memberships: Vec<_> =
            memberships.map(|(id, known)| (id.index, Arc::clone(known))).collect();
        let machine = self.first_machine.as_ref().unwrap_or(&self.machine);
        rerun::check(machine(), &self.clients.history, &memberships, &reached)
    }
}

/// Whether these members have a quorum of each of these memberships, of which there is one.
pub(super) fn have_quorums(set: &BTreeSet<MemberId>, memberships: &[Arc<Membership>]) -> bool {
    let suffices = |membership: &Arc<Membership>| has_quorum(membership, |id| set.contains(&id));
    !memberships.is_empty() && memberships.iter().all(suffices)
}

/// An upper bound for replicating and applying so many entries one by one, while clients add
/// about as many. Each takes a message in both directions, a write and the machine's work.
fn backlog_time(setting: &RunSettings, entries: u64) -> u64 {
    let RunSettings { delay, disk_delay, apply_delay, .. } = setting;
    let each = 2 * delay.min(&DELAY_MAX) + disk_delay.min(&WORK_MAX) + apply_delay.min(&WORK_MAX);
    2 * entries * each
}

/// The running members that are not removed: five voters, and learners beyond that.
fn goal_for(now: &Membership, stays: &BTreeSet<MemberId>) -> (MemberSet, MemberSet) {
    // A removed member does not come back under its old id.
    let members: Vec<MemberId> = stays.iter().copied().filter(|id| now.contains(*id)).collect();
    let (voters, learners) = members.split_at(members.len().min(5));
    (voters.iter().copied().collect(), learners.iter().copied().collect())
}

/// The next change to request; none while it is in progress.
fn next_change(now: &Membership, voters: MemberSet, learners: MemberSet) -> Option<Change> {
    match now.goal() {
        Some(goal) if goal.voters == voters && goal.learners == learners => None,
        Some(goal) if !goal.cancels => Some(Change::cancel()),
        None if now.is_joint() && !now.auto_leave() => Some(Change::leave()),
        _ => Some(ChangeKind::Goal { voters, learners }.into()),
    }
}

impl Simulation {
    fn stop_clients(&mut self) {
        self.quiet = true;
        self.drop_events(|event| {
            matches!(event, SimEvent::Client(_) | SimEvent::Holder(_) | SimEvent::Watcher(_))
        });
    }
}
