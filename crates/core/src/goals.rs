//! The leader's steps towards the membership's goal, whichever member set it and led
//! before.
//!
//! [`next_step`] decides; this module collects the state of the peers for it, and acts. It
//! also checks that a change of votes has a live quorum.

use crate::awaited::AwaitedMember;
use crate::membership::quorum_size;
use crate::membership::{
    Change, ChangeRefusal, GoalStep, Membership, Operation, Plan, PlanContext, next_step, plan,
};
use crate::pack::pack_fields;
use crate::progress::{Flow, Peer};
use crate::role::Leader;
use crate::{Activation, Event, Index, MemberId, MemberSet, Raft, Refusal};

/// The progress of a goal, as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct GoalStatus {
    /// The step that is due.
    pub step: GoalStep,
    /// Ticks since the step became due.
    pub since_ticks: u64,
    /// Why a due step is not taken: too few voters are live and caught up, or a zone could
    /// then block the cluster.
    pub held_up: Option<ChangeRefusal>,
    /// The members that the step needs and that are not ready, and why.
    pub awaited: Vec<AwaitedMember>,
    /// For each member: how many entries it lacks, and how many catch-up rounds it has
    /// finished.
    pub behind: Vec<(MemberId, u64, u32)>,
}

/// Catching up in rounds (thesis §4.2.1): a round ends when the peer has everything that
/// was in the log at its start.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct CatchUpRounds {
    /// Where the current round ends; 0 before the first.
    pub(crate) target: Index,
    pub(crate) finished: u32,
}

pack_fields!(CatchUpRounds { target, finished });

impl CatchUpRounds {
    pub(crate) fn advance(&mut self, matched: Index, last: Index) {
        if self.target > 0 && matched >= self.target || matched == last {
            self.finished = self.finished.saturating_add(1);
        }
        if matched >= self.target {
            self.target = last;
        }
    }
}

/// Where the log ended half to one election timeout ago. A peer that has that much has just
/// finished a round that was short enough.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RecentLogEnd {
    /// At the end of the interval before the current one.
    previous: Index,
    /// At the end of the last interval.
    latest: Index,
    pub(crate) ticks: u32,
}

pack_fields!(RecentLogEnd { previous, latest, ticks });

impl RecentLogEnd {
    pub(crate) fn new(last: Index) -> Self {
        Self { previous: last, latest: last, ticks: 0 }
    }

    pub(crate) fn tick(&mut self, last: Index, election_ticks: u32) {
        self.ticks += 1;
        if self.ticks * 2 >= election_ticks {
            self.ticks = 0;
            self.previous = std::mem::replace(&mut self.latest, last);
        }
    }
}

/// Election timeouts for which caught-up members wait for one that is still catching up.
const CATCH_UP_TIMEOUTS: u64 = 20;

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
            Some(GoalStep::HandOver(successors)) => self.hand_over_to_one_of(&successors),
            Some(step) if !step.is_wait() => self.take_step(&newest, &step),
            _ => {}
        }
    }

    /// The steps towards a goal, in order, as this leader sees its peers, and which losses
    /// each step would not tolerate. Nothing is proposed.
    pub fn plan(&self, voters: &MemberSet, learners: &MemberSet) -> Result<Plan, Refusal> {
        let Some(leader) = self.role.leader() else { return Err(self.not_leader()) };
        let newest = &self.memberships.newest().membership;
        plan(newest, &self.view(leader), voters, learners).map_err(Refusal::Change)
    }

    /// What this leader sees of its peers, as input for [`plan`]; none on a follower.
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
        // Refused only while this leader accepts no proposals; then tried again.
        let _ = self.log_membership(change, next);
    }

    /// Why a step has to wait. A joint cannot be left without a majority of each of its
    /// parts; for leaving one, see below.
    pub(crate) fn held_up(&self, now: &Membership, step: &GoalStep) -> Option<ChangeRefusal> {
        let checked = match step {
            GoalStep::MoveVotes(_) => true,
            GoalStep::Leave => self.leave_is_irreversible(),
            _ => false,
        };
        let next = now.take_step(step).ok().filter(|_| checked)?;
        self.check_quorum_ready(now, &next).err()
    }

    /// On append, the other majority no longer counts as soon as the exit from the joint is
    /// logged: if the joint were left for a dead majority, the live one could not undo it.
    /// Shown by scenarios/onappend_joint_not_left_for_dead_majority.txt.
    pub(crate) fn leave_is_irreversible(&self) -> bool {
        self.config.activation == Activation::OnAppend
    }

    /// Asks one successor after the other, with a pause in between for client requests: a
    /// successor that does not take over must not block them.
    /// Shown by scenarios/goal_handover_tries_another_successor.txt.
    fn hand_over_to_one_of(&mut self, successors: &MemberSet) {
        let pause = 2 * u64::from(self.config.election_ticks);
        let Some(leader) = self.role.leader_mut() else { return };
        if leader.clock < leader.hand_over_after {
            return;
        }
        leader.hand_over_after = leader.clock + pause;
        let tried = leader.last_successor;
        let best =
            leader.peers.iter().filter(|peer| successors.contains(peer.id)).max_by_key(|peer| {
                let fresh = Some(peer.id) != tried;
                (fresh, peer.progress.matched, std::cmp::Reverse(peer.id))
            });
        let best = best.map(|peer| peer.id);
        leader.last_successor = best;
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
                self.out.rare().events.push(Event::GoalStep { step });
            }
        }
    }

    fn view(&self, leader: &Leader) -> PlanContext {
        let able = leader.peers.iter().filter(|peer| self.is_ready(leader, peer));
        let time_limit = CATCH_UP_TIMEOUTS * u64::from(self.config.election_ticks);
        let in_time = leader.clock - leader.membership_since < time_limit;
        let catching_up = leader.peers.iter().filter(|peer| in_time && self.is_live(leader, peer));
        PlanContext {
            leader: self.config.id,
            caught_up: able.map(|peer| peer.id).collect(),
            catching_up: catching_up.map(|peer| peer.id).collect(),
            settled: !self.config.liveness.settle
                || self.reports.settled >= self.memberships.newest().since().index,
        }
    }

    /// Records the incarnations of voters that were seen and have none recorded: first
    /// members, and voters that had not been seen when they were added. All together, or
    /// those that were seen within an election timeout.
    /// Shown by scenarios/identity_first_members_are_named.txt.
    pub(crate) fn record_incarnations(&mut self) {
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
        let waited = leader.clock - leader.elected_at >= u64::from(self.config.election_ticks);
        let enough = seen.len() == unnamed().count() || waited;
        if seen.is_empty() || !enough || self.check_no_change_in_flight().is_err() {
            return;
        }
        let next = newest.as_ref().clone();
        let _ = self.log_membership(Change::new(seen), next);
    }

    /// Live, and near enough to the end of the log to be needed for a quorum.
    pub(crate) fn is_ready(&self, leader: &Leader, peer: &Peer) -> bool {
        let near =
            peer.rounds.finished > 0 && peer.progress.matched >= leader.recent_log_end.previous;
        let keeps_up = near && peer.progress.flow == Flow::Replicate && peer.lost.is_none();
        if peer.id == self.config.id {
            return !self.stalled().any();
        }
        keeps_up && self.is_live(leader, peer)
    }

    /// Has replied recently, or was added too recently for that, and makes progress: a
    /// member that stands still answers heartbeats too.
    /// Shown by scenarios/stall_joiner_is_not_promoted.txt.
    pub(crate) fn is_live(&self, leader: &Leader, peer: &Peer) -> bool {
        leader.silent_ticks(peer) < self.live_ticks() && !peer.stalled.any()
    }

    /// A peer that has replied within this many ticks is live.
    pub(crate) fn live_ticks(&self) -> u64 {
        2 * u64::from(self.config.election_ticks)
    }

    /// Whether each majority of the next membership has a live quorum, as this leader sees
    /// its peers.
    pub(crate) fn check_quorum_ready(
        &self,
        now: &Membership,
        next: &Membership,
    ) -> Result<(), ChangeRefusal> {
        let Some(leader) = self.role.leader() else { return Ok(()) };
        if !self.config.pre_flight || now.majorities() == next.majorities() {
            return Ok(());
        }
        // Compared with what is live now: when a zone has failed, the loss of another would
        // block already, and the dead members of the failed one can be removed.
        // Shown by scenarios/preflight_zone_dead_member_is_removed.txt.
        let live = |id| {
            let peer = leader.peer(id);
            id == self.config.id || peer.is_some_and(|peer| self.is_live(leader, peer))
        };
        if now.blocking_zone_among(live).is_none() && next.blocking_zone().is_some() {
            return Err(ChangeRefusal::ZoneWouldBlock);
        }
        let able = |id| leader.peer(id).is_some_and(|peer| self.is_ready(leader, peer));
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
            awaited: self.awaited_by(leader, &step),
            step,
            since_ticks: leader.clock - leader.step_since,
            behind: others
                .map(|peer| (peer.id, last - peer.progress.matched, peer.rounds.finished))
                .collect(),
        })
    }
}
