//! The leader's duty: taking the steps towards the goal that stands in the
//! membership, whoever set it and whoever led before.
//!
//! [`next_step`] decides; this file only looks at the peers for it, and acts. And
//! before a change of votes it counts who could carry it.

use crate::membership::quorum_size;
use crate::membership::{
    Change, ChangeRefusal, GoalStep, Membership, Operation, Plan, PlanContext, next_step, plan,
};
use crate::progress::{Flow, Peer};
use crate::role::Leader;
use crate::{Activation, Event, Index, MemberId, MemberSet, Raft, Refusal};

/// The way of a goal, as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GoalStatus {
    pub step: GoalStep,
    /// Ticks since the step became due.
    pub since_ticks: u64,
    /// Why a step that could be taken is not: who could carry it is missing, or a zone
    /// would gain the power to block.
    pub held_up: Option<ChangeRefusal>,
    /// Entries that each member is behind, and how many rounds it has caught up.
    pub behind: Vec<(MemberId, u64, u32)>,
}

/// Catching up in rounds (thesis §4.2.1): each lasts until what was the end of the
/// log at its start has arrived.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Rounds {
    /// Where the present round ends; 0 before the first.
    pub(crate) target: Index,
    pub(crate) finished: u32,
}

impl Rounds {
    pub(crate) fn advance(&mut self, matched: Index, last: Index) {
        if self.target > 0 && matched >= self.target || matched == last {
            self.finished = self.finished.saturating_add(1);
        }
        if matched >= self.target {
            self.target = last;
        }
    }
}

/// Where the log ended half an election timeout ago, or up to a whole one. Whoever
/// has that much has just finished a round that was short enough.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pace {
    before: Index,
    lately: Index,
    pub(crate) ticks: u32,
}

impl Pace {
    pub(crate) fn new(last: Index) -> Self {
        Self { before: last, lately: last, ticks: 0 }
    }

    pub(crate) fn tick(&mut self, last: Index, election_ticks: u32) {
        self.ticks += 1;
        if self.ticks * 2 >= election_ticks {
            self.ticks = 0;
            self.before = std::mem::replace(&mut self.lately, last);
        }
    }
}

/// Election timeouts that joiners who have caught up wait for one that is on its way.
const PATIENCE_TIMEOUTS: u64 = 20;

impl Raft {
    /// Takes the next step if one is due. Cheap when there is no goal.
    pub(crate) fn pursue_goal(&mut self) {
        let Some(leader) = self.role.leader() else { return };
        let newest = &self.memberships.newest().membership;
        if newest.goal().is_none() || leader.transfer.is_some() {
            return;
        }
        if self.check_no_change_in_flight().is_err() {
            return;
        }
        let newest = newest.clone();
        let step = next_step(&newest, &self.view(leader));
        self.note_step(step.clone());
        match step {
            Some(GoalStep::HandOver(heirs)) => self.hand_over_to_one_of(&heirs),
            Some(step) if !step.is_wait() => self.take_step(&newest, &step),
            _ => {}
        }
    }

    /// What a goal would lead to, by what this leader sees of its members: the steps, in
    /// order, and the losses that each could not bear. Nothing is proposed.
    pub fn plan(&self, voters: &MemberSet, learners: &MemberSet) -> Result<Plan, Refusal> {
        let Some(leader) = self.role.leader() else { return Err(self.not_leader()) };
        let newest = &self.memberships.newest().membership;
        plan(newest, &self.view(leader), voters, learners).map_err(Refusal::Change)
    }

    /// What this member sees of the others, if it leads: what its plans rest on.
    pub fn plan_context(&self) -> Option<PlanContext> {
        self.role.leader().map(|leader| self.view(leader))
    }

    fn take_step(&mut self, now: &Membership, step: &GoalStep) {
        if self.held_up(now, step).is_some() {
            return;
        }
        let Ok(next) = now.take_step(step) else { return };
        let change = match step {
            GoalStep::MoveVotes(operations) => Change::new(operations.iter().copied()),
            GoalStep::AddLearners(ids) => Change::new(ids.iter().map(Operation::Learner)),
            GoalStep::RemoveLearners(ids) => Change::new(ids.iter().map(Operation::Remove)),
            _ => Change::leave(),
        };
        // Refused only while this leader takes no proposals at all: tried again.
        let _ = self.log_membership(change, next);
    }

    /// Why a step has to wait. Entering a joint cannot be undone without a majority of
    /// every part of it; and out of it, see below.
    pub(crate) fn held_up(&self, now: &Membership, step: &GoalStep) -> Option<ChangeRefusal> {
        let checked = match step {
            GoalStep::MoveVotes(_) => true,
            GoalStep::Leave => self.leaving_burns_bridges(),
            _ => false,
        };
        let next = now.take_step(step).ok().filter(|_| checked)?;
        self.check_carried(now, &next).err()
    }

    /// Where a membership counts as soon as it is logged, the other majority of a joint
    /// counts no more from then on: left towards the dead half, the living one could not
    /// take it back.
    /// Shown by scenarios/onappend_joint_not_left_for_dead_majority.txt.
    pub(crate) fn leaving_burns_bridges(&self) -> bool {
        self.config.activation == Activation::OnAppend
    }

    /// Asks one heir after the other, with a pause in between in which clients are
    /// served: one that does not take over must not keep everybody waiting.
    /// Shown by scenarios/goal_handover_tries_another_successor.txt.
    fn hand_over_to_one_of(&mut self, heirs: &MemberSet) {
        let pause = 2 * u64::from(self.config.election_ticks);
        let Some(leader) = self.role.leader_mut() else { return };
        if leader.clock < leader.hand_over_after {
            return;
        }
        leader.hand_over_after = leader.clock + pause;
        let tried = leader.heir_tried;
        let best = leader.peers.iter().filter(|peer| heirs.contains(peer.id)).max_by_key(|peer| {
            let fresh = Some(peer.id) != tried;
            (fresh, peer.progress.matched, std::cmp::Reverse(peer.id))
        });
        let best = best.map(|peer| peer.id);
        leader.heir_tried = best;
        if let Some(to) = best {
            let _ = self.on_transfer(to);
        }
    }

    pub(crate) fn note_step(&mut self, step: Option<GoalStep>) {
        let Some(leader) = self.role.leader_mut() else { return };
        if leader.step != step {
            leader.step.clone_from(&step);
            leader.step_since = leader.clock;
            if let Some(step) = step {
                self.out.events.push(Event::GoalStep { step });
            }
        }
    }

    fn view(&self, leader: &Leader) -> PlanContext {
        let able = leader.peers.iter().filter(|peer| self.is_able(leader, peer));
        let patience = PATIENCE_TIMEOUTS * u64::from(self.config.election_ticks);
        let patient = leader.clock - leader.followed_at < patience;
        let coming = leader.peers.iter().filter(|peer| patient && self.is_heard(leader, peer));
        PlanContext {
            leader: self.config.id,
            caught_up: able.map(|peer| peer.id).collect(),
            coming: coming.map(|peer| peer.id).collect(),
            settled: !self.config.liveness.settle
                || self.reports.settled >= self.memberships.newest().since().index,
        }
    }

    /// Names the disks of voters that were seen and are not named: first members, and
    /// voters that were added unseen. All at once, or those that showed up in time.
    /// Shown by scenarios/identity_first_members_are_named.txt.
    pub(crate) fn name_disks(&mut self) {
        let Some(leader) = self.role.leader() else { return };
        let newest = &self.memberships.newest().membership;
        let busy = newest.is_joint() || newest.goal().is_some();
        if self.config.incarnation == 0 || busy {
            return;
        }
        let unnamed = || newest.incoming().iter().filter(|id| newest.incarnation(*id).is_none());
        if unnamed().next().is_none() {
            return;
        }
        let seen: Vec<_> = unnamed()
            .filter(|id| self.incarnation_seen(*id).is_some())
            .map(Operation::Update)
            .collect();
        let waited = leader.clock - leader.begun_at >= u64::from(self.config.election_ticks);
        let enough = seen.len() == unnamed().count() || waited;
        if seen.is_empty() || !enough || self.check_no_change_in_flight().is_err() {
            return;
        }
        let next = newest.as_ref().clone();
        let _ = self.log_membership(Change::new(seen), next);
    }

    /// Live, and so near the end of the log that it can be counted on.
    fn is_able(&self, leader: &Leader, peer: &Peer) -> bool {
        let near = peer.rounds.finished > 0 && peer.progress.matched >= leader.pace.before;
        let keeps_up = near && peer.progress.flow == Flow::Replicate;
        peer.id == self.config.id || keeps_up && self.is_heard(leader, peer)
    }

    /// Has answered lately, or was added so lately that it could not.
    fn is_heard(&self, leader: &Leader, peer: &Peer) -> bool {
        let silent = leader.clock.saturating_sub(peer.answered_at);
        silent < 2 * u64::from(self.config.election_ticks)
    }

    /// Whether each majority of the next membership could decide at once, by what
    /// this leader sees of its members.
    pub(crate) fn check_carried(
        &self,
        now: &Membership,
        next: &Membership,
    ) -> Result<(), ChangeRefusal> {
        let Some(leader) = self.role.leader() else { return Ok(()) };
        if !self.config.pre_flight || now.majorities() == next.majorities() {
            return Ok(());
        }
        if now.blocking_zone().is_none() && next.blocking_zone().is_some() {
            return Err(ChangeRefusal::ZoneWouldBlock);
        }
        let able = |id| leader.peer(id).is_some_and(|peer| self.is_able(leader, peer));
        for majority in next.majorities() {
            let (voters, quorum) = (majority.len(), quorum_size(majority.len()));
            let live = majority.iter().filter(|id| able(*id)).count();
            if live < quorum {
                return Err(ChangeRefusal::QuorumNotReady { voters, quorum, live });
            }
        }
        Ok(())
    }

    pub(crate) fn goal_status(&self) -> Option<GoalStatus> {
        let leader = self.role.leader()?;
        let last = self.log.last().index;
        let others = leader.peers.iter().filter(|peer| peer.id != self.config.id);
        let step = leader.step.clone()?;
        let newest = &self.memberships.newest().membership;
        Some(GoalStatus {
            held_up: self.held_up(newest, &step),
            step,
            since_ticks: leader.clock - leader.step_since,
            behind: others
                .map(|peer| (peer.id, last - peer.progress.matched, peer.rounds.finished))
                .collect(),
        })
    }
}
