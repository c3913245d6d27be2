//! Where a change is to end, and the way there.
//!
//! A goal stands in the membership, so it is in the log and in snapshots, and
//! whoever leads pursues it. [`next_step`] alone decides what to do next; a leader
//! asks it to act, [`plan`] asks it to show the whole way beforehand.

use std::fmt;

use super::{ChangeKind, ChangeRefusal, Membership, Operation};
use crate::{EntryId, MemberId, MemberSet};

/// Voters and learners to end with, and those it began with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Goal {
    /// The entry that set it, by which it is known ever after; zero before it is logged.
    pub id: EntryId,
    pub voters: MemberSet,
    pub learners: MemberSet,
    /// What cancelling goes back to.
    pub from_voters: MemberSet,
    pub from_learners: MemberSet,
    /// It is the way back of a change that was cancelled.
    pub cancels: bool,
}

/// What became of a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum GoalEnd {
    /// The members are as wished.
    Reached,
    /// It was called off. The way back is a goal of its own, known by the entry that
    /// called it off.
    Cancelled,
    /// Another goal took its place.
    Replaced,
}

/// A goal that is pursued no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EndedGoal {
    /// The entry that set the goal.
    pub id: EntryId,
    pub end: GoalEnd,
    /// The entry whose membership was the first without it.
    pub at: EntryId,
}

/// Ended goals that a membership remembers.
const ENDED_MAX: usize = 8;

impl Goal {
    /// A member when it is reached.
    pub(super) fn wants(&self, id: MemberId) -> bool {
        self.voters.contains(id) || self.learners.contains(id)
    }
}

/// What a leader sees that the membership does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PlanContext {
    pub leader: MemberId,
    /// Live, and so near the end of the log that they can vote without harm.
    pub caught_up: MemberSet,
    /// On their way to be caught up: worth waiting for.
    pub coming: MemberSet,
    /// The membership is settled.
    pub settled: bool,
}

/// One step towards a goal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum GoalStep {
    /// Let those receive the log who do not yet.
    AddLearners(MemberSet),
    /// Wait until these can vote without harm.
    CatchUp(MemberSet),
    /// The leader will have no vote: one of these takes over first.
    HandOver(MemberSet),
    /// Votes change hands, in one step or by entering a joint.
    MoveVotes(Vec<Operation>),
    /// Out of the joint.
    Leave,
    /// Wait until a quorum durably knows the new voters.
    Settle,
    /// Those who have no vote any more may go.
    RemoveLearners(MemberSet),
}

impl GoalStep {
    /// Nothing to be done but to wait.
    pub fn is_wait(&self) -> bool {
        matches!(self, Self::CatchUp(_) | Self::Settle)
    }
}

/// What to do next to reach the membership's goal; nothing when there is none.
pub fn next_step(membership: &Membership, view: &PlanContext) -> Option<GoalStep> {
    let goal = membership.goal()?;
    if membership.is_joint() {
        return Some(GoalStep::Leave);
    }
    let missing = goal.voters.iter().chain(goal.learners.iter());
    let missing: MemberSet = missing.filter(|id| !membership.contains(*id)).collect();
    if !missing.is_empty() {
        return Some(GoalStep::AddLearners(missing));
    }
    if *membership.incoming() != goal.voters {
        let step = toward_voters(membership, goal, view);
        // Who came with this goal and is wanted no more does not wait for the others: its
        // address may be needed for somebody else.
        // Shown by scenarios/goal_continues_without_member_that_never_starts.txt.
        let began = |id| goal.from_voters.contains(id) || goal.from_learners.contains(id);
        let unwanted = |id: &MemberId| !goal.wants(*id) && !began(*id);
        let unwanted: MemberSet = membership.learners().iter().filter(unwanted).collect();
        if matches!(step, GoalStep::CatchUp(_)) && view.settled && !unwanted.is_empty() {
            return Some(GoalStep::RemoveLearners(unwanted));
        }
        return Some(step);
    }
    if !view.settled {
        return Some(GoalStep::Settle);
    }
    let leavers: MemberSet = membership.learners().iter().filter(|id| !goal.wants(*id)).collect();
    (!leavers.is_empty()).then_some(GoalStep::RemoveLearners(leavers))
}

fn toward_voters(membership: &Membership, goal: &Goal, view: &PlanContext) -> GoalStep {
    let voters = membership.incoming();
    let joining = || goal.voters.iter().filter(|id| !voters.contains(*id));
    let ready: MemberSet = joining().filter(|id| view.caught_up.contains(*id)).collect();
    let lagging: MemberSet = joining().filter(|id| !view.caught_up.contains(*id)).collect();
    let expected = lagging.iter().any(|id| view.coming.contains(id));
    if expected || ready.is_empty() && !lagging.is_empty() {
        return GoalStep::CatchUp(lagging);
    }
    let leaving = leaving(voters, goal, view);
    // One that never comes must not keep the others from their vote. Until it does, each
    // that comes takes the place of one that goes, so that the cluster does not shrink.
    // Shown by scenarios/goal_continues_without_member_that_never_starts.txt.
    let seats = if lagging.is_empty() { leaving.len() } else { ready.len().min(leaving.len()) };
    let demoted = &leaving[..seats];
    let stays = |id| goal.voters.contains(id) || voters.contains(id) && !demoted.contains(&id);
    let heirs = goal.voters.iter().filter(|id| voters.contains(*id));
    let heirs: MemberSet = heirs.filter(|id| view.caught_up.contains(*id)).collect();
    if !stays(view.leader) && !heirs.is_empty() {
        return GoalStep::HandOver(heirs);
    }
    let promotions = ready.iter().map(Operation::Voter);
    let demotions = voters.iter().filter(|id| demoted.contains(id)).map(Operation::Learner);
    GoalStep::MoveVotes(promotions.chain(demotions).collect())
}

/// Who is to lose its vote: first who is of no use, last who leads.
fn leaving(voters: &MemberSet, goal: &Goal, view: &PlanContext) -> Vec<MemberId> {
    let mut leaving: Vec<MemberId> =
        voters.iter().filter(|id| !goal.voters.contains(*id)).collect();
    leaving.sort_by_key(|id| (*id == view.leader, view.caught_up.contains(*id), *id));
    leaving
}

impl Membership {
    /// This membership with a goal, or why it cannot be one.
    pub fn set_goal(
        &self,
        voters: &MemberSet,
        learners: &MemberSet,
    ) -> Result<Self, ChangeRefusal> {
        // A way back may be left for another goal: who was to come back may be gone.
        if self.goal().is_some_and(|goal| !goal.cancels) {
            return Err(ChangeRefusal::GoalInProgress);
        }
        self.aim(voters, learners)
    }

    /// This membership with a goal, in place of the one that it may have.
    pub(super) fn aim(
        &self,
        voters: &MemberSet,
        learners: &MemberSet,
    ) -> Result<Self, ChangeRefusal> {
        if self.is_joint() {
            return Err(ChangeRefusal::AlreadyJoint);
        }
        if voters.is_empty() {
            return Err(ChangeRefusal::NoVotersLeft);
        }
        if voters.contains(MemberId(0)) || learners.contains(MemberId(0)) {
            return Err(ChangeRefusal::MemberZero);
        }
        if let Some(id) = voters.iter().find(|id| learners.contains(*id)) {
            return Err(ChangeRefusal::InvalidMembership(super::MembershipError::VoterAndLearner(
                id,
            )));
        }
        // Aimed anew, it began where the first aim began.
        let (from_voters, from_learners) = match self.goal().filter(|goal| !goal.cancels) {
            Some(goal) => (goal.from_voters.clone(), goal.from_learners.clone()),
            None => (self.incoming().clone(), self.learners().clone()),
        };
        let goal = Goal {
            id: EntryId::ZERO,
            voters: voters.clone(),
            learners: learners.clone(),
            from_voters,
            from_learners,
            cancels: false,
        };
        let next = self.with_goal(Some(goal)).without_reached_goal();
        let nothing = next.goal().is_none() && self.goal().is_none();
        if nothing { Err(ChangeRefusal::AlreadyReached) } else { Ok(next) }
    }

    /// This membership on its way back to where its change began; out of a joint at once,
    /// so that it takes no more than the majority that it came from, where that is enough.
    /// Shown by scenarios/onappend_joint_not_left_for_dead_majority.txt.
    pub fn cancel_goal(&self) -> Result<Self, ChangeRefusal> {
        let goal = match (self.goal(), self.outgoing().first()) {
            // Asked twice, because the first answer was lost: not back again.
            (Some(goal), _) if goal.cancels => {
                return Err(ChangeRefusal::AlreadyCancelled);
            }
            (Some(goal), _) => Goal {
                id: EntryId::ZERO,
                voters: goal.from_voters.clone(),
                learners: goal.from_learners.clone(),
                from_voters: goal.voters.clone(),
                from_learners: goal.learners.clone(),
                cancels: true,
            },
            // A joint that somebody entered by hand goes back to what it came from.
            (None, Some(old)) if self.outgoing().len() == 1 => Goal {
                id: EntryId::ZERO,
                voters: old.clone(),
                // Nobody asked for anybody to go.
                learners: self.members().iter().filter(|id| !old.contains(*id)).collect(),
                from_voters: self.incoming().clone(),
                from_learners: self.learners().clone(),
                cancels: true,
            },
            // Of several majorities on their way out, which one it began with is not
            // known: name the way with a list.
            (None, _) => return Err(ChangeRefusal::NothingToCancel),
        };
        let turned = self.with_goal(Some(goal));
        let back = match self.outgoing().first() {
            Some(old) => turned.go_to(std::slice::from_ref(old))?,
            None => turned,
        };
        Ok(back.without_reached_goal())
    }

    /// It is on its way to a membership with this one. What was said about it when the
    /// goal was set is kept until it comes.
    /// Shown by scenarios/goal_keeps_info_of_joining_member.txt.
    pub(super) fn aims_at(&self, id: MemberId) -> bool {
        self.goal().is_some_and(|goal| goal.wants(id))
    }

    /// The goals that ended of late, the latest last.
    pub fn ended_goals(&self) -> &[EndedGoal] {
        &self.ended
    }

    /// Remembers that a goal ended; of many, the latest.
    pub fn with_ended_goal(mut self, ended: EndedGoal) -> Self {
        self.ended.push(ended);
        let excess = self.ended.len().saturating_sub(ENDED_MAX);
        self.ended.drain(..excess);
        self
    }

    /// This membership as the successor of `before`, brought by the entry `since`: a new
    /// goal gets its name, and what became of an old one is remembered.
    pub(super) fn keeping_goals(mut self, before: &Self, since: EntryId, by: &ChangeKind) -> Self {
        let is_new = self.goal.is_some() && self.goal != before.goal;
        let aims = is_new || matches!(by, ChangeKind::Goal { .. } | ChangeKind::Cancel);
        let end = match before.goal() {
            Some(_) if *by == ChangeKind::Cancel => Some(GoalEnd::Cancelled),
            Some(_) if aims => Some(GoalEnd::Replaced),
            Some(_) if self.goal.is_none() => Some(GoalEnd::Reached),
            _ => None,
        };
        if let (Some(goal), Some(end)) = (before.goal(), end) {
            self = self.with_ended_goal(EndedGoal { id: goal.id, end, at: since });
        }
        if aims && self.goal.is_none() {
            // There is nothing to do: it ends where it begins.
            let end = GoalEnd::Reached;
            self = self.with_ended_goal(EndedGoal { id: since, end, at: since });
        }
        if let Some(goal) = self.goal.as_mut().filter(|_| is_new) {
            goal.id = since;
        }
        self
    }

    /// What a step makes of this membership. Waiting and handing over change nothing.
    pub fn take_step(&self, step: &GoalStep) -> Result<Self, ChangeRefusal> {
        let learners = |ids: &MemberSet| ids.iter().map(Operation::Learner).collect::<Vec<_>>();
        let next = match step {
            GoalStep::CatchUp(_) | GoalStep::HandOver(_) | GoalStep::Settle => Ok(self.clone()),
            GoalStep::AddLearners(ids) => self.simple(&learners(ids)),
            GoalStep::MoveVotes(operations) => match self.simple(operations) {
                Err(ChangeRefusal::ManyVoters) => self.enter_joint(operations, true),
                other => other,
            },
            GoalStep::Leave => self.leave(),
            GoalStep::RemoveLearners(ids) => {
                self.simple(&ids.iter().map(Operation::Remove).collect::<Vec<_>>())
            }
        };
        next.map(Self::without_reached_goal)
    }

    /// A goal that is reached is a goal no more.
    pub(super) fn without_reached_goal(self) -> Self {
        let reached = self.goal().is_some_and(|goal| {
            !self.is_joint() && *self.incoming() == goal.voters && *self.learners() == goal.learners
        });
        if reached { self.with_goal(None) } else { self }
    }
}

/// The whole way to a goal, before anything is done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Plan {
    pub steps: Vec<PlannedStep>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PlannedStep {
    pub step: GoalStep,
    /// What counts once the step is done.
    pub membership: Membership,
    /// The least losses, of one or two members, after which nothing could be
    /// committed.
    pub stops_commits: Vec<MemberSet>,
    /// The least losses, of one or two members, after which nobody could be elected
    /// before the step is settled: then the majorities before it count as well.
    pub stops_elections: Vec<MemberSet>,
}

/// Lists the steps from this membership to these voters and learners, for a cluster
/// that looks like this at the start. The same code that acts decides here; what has to
/// be waited for is listed, and then taken to have happened.
pub fn plan(
    membership: &Membership,
    view: &PlanContext,
    voters: &MemberSet,
    learners: &MemberSet,
) -> Result<Plan, ChangeRefusal> {
    let mut now = membership.set_goal(voters, learners)?;
    // Everybody is waited for.
    let mut view = PlanContext { coming: voters.clone(), ..view.clone() };
    let mut steps = Vec::new();
    while let Some(step) = next_step(&now, &view) {
        let next = now.take_step(&step)?;
        match &step {
            GoalStep::CatchUp(ids) => {
                view.caught_up = view.caught_up.iter().chain(ids.iter()).collect()
            }
            GoalStep::HandOver(heirs) => view.leader = heirs.iter().next().unwrap_or(view.leader),
            GoalStep::Settle => view.settled = true,
            _ => view.settled = false,
        }
        let stops_commits = stopping_losses(&[&next]);
        let stops_elections = stopping_losses(&[&now, &next]);
        steps.push(PlannedStep { step, membership: next.clone(), stops_commits, stops_elections });
        now = next;
    }
    if !view.settled {
        let stops = stopping_losses(&[&now]);
        let (stops_commits, stops_elections) = (stops.clone(), stops);
        let step = GoalStep::Settle;
        steps.push(PlannedStep { step, membership: now, stops_commits, stops_elections });
    }
    Ok(Plan { steps })
}

/// Single members, and pairs of members of which neither is enough alone, whose loss
/// leaves one of these memberships without a quorum.
fn stopping_losses(memberships: &[&Membership]) -> Vec<MemberSet> {
    let stops = |lost: &[MemberId]| {
        memberships.iter().any(|membership| !membership.quorum(|id| !lost.contains(&id)))
    };
    let voters: MemberSet =
        memberships.iter().flat_map(|membership| membership.voters().as_slice().to_vec()).collect();
    let ids = voters.as_slice();
    let mut found: Vec<MemberSet> = Vec::new();
    let harmless: Vec<MemberId> = ids.iter().copied().filter(|id| !stops(&[*id])).collect();
    found.extend(ids.iter().filter(|id| stops(&[**id])).map(|id| [*id].into_iter().collect()));
    for (at, first) in harmless.iter().enumerate() {
        for second in &harmless[at + 1..] {
            if stops(&[*first, *second]) {
                found.push([*first, *second].into_iter().collect());
            }
        }
    }
    found
}

impl fmt::Display for GoalStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddLearners(ids) => write!(f, "add learners ({ids})"),
            Self::CatchUp(ids) => write!(f, "wait until ({ids}) caught up"),
            Self::HandOver(ids) => write!(f, "hand over to one of ({ids})"),
            Self::MoveVotes(operations) => {
                write!(f, "move votes")?;
                operations.iter().try_for_each(|operation| write!(f, " {operation}"))
            }
            Self::Leave => write!(f, "leave the joint"),
            Self::Settle => write!(f, "wait until settled"),
            Self::RemoveLearners(ids) => write!(f, "remove learners ({ids})"),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({})", self.voters)?;
        if !self.learners.is_empty() {
            write!(f, " learners ({})", self.learners)?;
        }
        Ok(())
    }
}
