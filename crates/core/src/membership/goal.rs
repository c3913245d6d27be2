//! Goals: the members to end with, and the steps to get there.
//!
//! A goal is part of the membership, so it is in the log and in snapshots, and every leader
//! pursues it. [`next_step`] alone decides what to do next; a leader acts on it, and
//! [`plan`] lists all steps in advance.

use std::fmt;

use super::{ChangeKind, ChangeRefusal, Membership, Operation};
use crate::{EntryId, MemberId, MemberSet};

/// The voters and learners to end with, and those before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Goal {
    /// The entry that set the goal, which identifies it; zero before it is logged.
    pub id: EntryId,
    /// The voters to end with.
    pub voters: MemberSet,
    /// The learners to end with.
    pub learners: MemberSet,
    /// What a cancel returns to.
    pub from_voters: MemberSet,
    /// The learners that a cancel returns to.
    pub from_learners: MemberSet,
    /// Whether this goal undoes a cancelled one.
    pub cancels: bool,
}

/// How a goal ended. Exhaustive because it is stored: every case has a byte on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum GoalEnd {
    /// The goal is reached.
    Reached,
    /// It was cancelled. The way back is another goal, identified by the entry of the
    /// cancel.
    Cancelled,
    /// Another goal replaced it.
    Replaced,
}

/// A goal that has ended. Exhaustive because it is stored: a field more changes the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EndedGoal {
    /// The entry that set the goal.
    pub id: EntryId,
    /// How it ended.
    pub end: GoalEnd,
    /// The entry of the first membership without it.
    pub at: EntryId,
}

/// How many ended goals a membership remembers.
const ENDED_MAX: usize = 8;

impl Goal {
    /// Whether this is a member once the goal is reached.
    pub(super) fn includes(&self, id: MemberId) -> bool {
        self.voters.contains(id) || self.learners.contains(id)
    }

    /// Where a goal starts that replaces this one: where this one started. If it only takes
    /// members away, that is a removal, which a cancel does not undo and which does not wait for
    /// the members that this goal adds.
    fn origin_of_next(&self, voters: &MemberSet, learners: &MemberSet) -> (MemberSet, MemberSet) {
        let includes = |id: MemberId| voters.contains(id) || learners.contains(id);
        let adds = voters.iter().chain(learners.iter()).any(|id| !self.includes(id));
        let kept = |set: &MemberSet| -> MemberSet {
            set.iter().filter(|id| adds || includes(*id) || !self.includes(*id)).collect()
        };
        let voters = kept(&self.from_voters);
        // Without voters there would be nothing to return to.
        let voters = if voters.is_empty() { self.from_voters.clone() } else { voters };
        (voters, kept(&self.from_learners))
    }
}

/// What a leader sees of its peers, as input for planning. Exhaustive because callers of
/// [`plan`] build it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PlanContext {
    /// The member that leads.
    pub leader: MemberId,
    /// Live, and near enough to the end of the log to vote without delaying commits.
    pub caught_up: MemberSet,
    /// Still catching up: worth waiting for.
    pub catching_up: MemberSet,
    /// The membership is settled.
    pub settled: bool,
}

/// One step towards a goal. Exhaustive because a program that shows or checks steps must know
/// all of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum GoalStep {
    /// Add these members as learners.
    AddLearners(MemberSet),
    /// Wait until these have caught up.
    CatchUp(MemberSet),
    /// The leader will lose its vote: one of these takes over first.
    HandOver(MemberSet),
    /// Promote and demote voters, in one step or by entering a joint.
    MoveVotes(Vec<Operation>),
    /// Leave the joint.
    Leave,
    /// Wait until a quorum durably knows the new voters.
    Settle,
    /// Remove these learners.
    RemoveLearners(MemberSet),
}

impl GoalStep {
    /// Whether the step only waits.
    pub fn is_wait(&self) -> bool {
        matches!(self, Self::CatchUp(_) | Self::Settle)
    }
}

/// The next step towards the membership's goal; none without a goal.
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
        // A learner that was added for this goal and is no longer part of it is removed
        // without waiting for the others: its address may be needed for another member.
        // Shown by scenarios/goal_continues_without_member_that_never_starts.txt.
        let began = |id| goal.from_voters.contains(id) || goal.from_learners.contains(id);
        let dropped = |id: &MemberId| !goal.includes(*id) && !began(*id);
        let dropped: MemberSet = membership.learners().iter().filter(dropped).collect();
        if matches!(step, GoalStep::CatchUp(_)) && view.settled && !dropped.is_empty() {
            return Some(GoalStep::RemoveLearners(dropped));
        }
        return Some(step);
    }
    if !view.settled {
        return Some(GoalStep::Settle);
    }
    let leaving_learners: MemberSet =
        membership.learners().iter().filter(|id| !goal.includes(*id)).collect();
    (!leaving_learners.is_empty()).then_some(GoalStep::RemoveLearners(leaving_learners))
}

fn toward_voters(membership: &Membership, goal: &Goal, view: &PlanContext) -> GoalStep {
    let voters = membership.incoming();
    let joining = || goal.voters.iter().filter(|id| !voters.contains(*id));
    let ready: MemberSet = joining().filter(|id| view.caught_up.contains(*id)).collect();
    let lagging: MemberSet = joining().filter(|id| !view.caught_up.contains(*id)).collect();
    let expected = lagging.iter().any(|id| view.catching_up.contains(id));
    let waits = expected || ready.is_empty() && !lagging.is_empty();
    let (dropped, leaving): (Vec<_>, Vec<_>) =
        leaving(voters, goal, view).into_iter().partition(|id| !goal.from_voters.contains(*id));
    let none_left = dropped.len() == voters.len();
    if waits && (dropped.is_empty() || none_left) {
        return GoalStep::CatchUp(lagging);
    }
    let ready = if waits { MemberSet::new() } else { ready };
    // A member that never starts must not keep the others from their votes. Until it does,
    // each new voter replaces a leaving one, so that the cluster does not shrink.
    // Shown by scenarios/goal_continues_without_member_that_never_starts.txt.
    let seats = if lagging.is_empty() { leaving.len() } else { ready.len().min(leaving.len()) };
    // A voter that is removed by a request of its own is replaced by none of them.
    // Shown by scenarios/goal_removal_does_not_wait_for_joining_members.txt.
    let demoted = [dropped, leaving[..seats].to_vec()].concat();
    let stays = |id| goal.voters.contains(id) || voters.contains(id) && !demoted.contains(&id);
    let successors = goal.voters.iter().filter(|id| voters.contains(*id));
    let successors: MemberSet = successors.filter(|id| view.caught_up.contains(*id)).collect();
    if !stays(view.leader) && !successors.is_empty() {
        return GoalStep::HandOver(successors);
    }
    let promotions = ready.iter().map(Operation::Voter);
    let demotions = voters.iter().filter(|id| demoted.contains(id)).map(Operation::Learner);
    GoalStep::MoveVotes(promotions.chain(demotions).collect())
}

/// The voters to demote: first those that are not caught up, last the leader.
fn leaving(voters: &MemberSet, goal: &Goal, view: &PlanContext) -> Vec<MemberId> {
    let mut leaving: Vec<MemberId> =
        voters.iter().filter(|id| !goal.voters.contains(*id)).collect();
    leaving.sort_by_key(|id| (*id == view.leader, view.caught_up.contains(*id), *id));
    leaving
}

impl Membership {
    /// This membership with a goal, or why that is not possible.
    pub fn set_goal(
        &self,
        voters: &MemberSet,
        learners: &MemberSet,
    ) -> Result<Self, ChangeRefusal> {
        // A cancel may be replaced by another goal: the member that it waits for may be
        // dead.
        if self.goal().is_some_and(|goal| !goal.cancels) {
            return Err(ChangeRefusal::GoalInProgress);
        }
        self.with_new_goal(voters, learners)
    }

    /// This membership with a goal that replaces its present one, if any.
    pub(super) fn with_new_goal(
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
        let (from_voters, from_learners) = match self.goal().filter(|goal| !goal.cancels) {
            Some(goal) => goal.origin_of_next(voters, learners),
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

    /// This membership with its change cancelled; out of a joint at once, so that it needs
    /// only the majority that it came from, where that is enough.
    /// Shown by scenarios/onappend_joint_not_left_for_dead_majority.txt.
    pub fn cancel_goal(&self) -> Result<Self, ChangeRefusal> {
        let goal = match (self.goal(), self.outgoing().first()) {
            // A retried cancel does not cancel the cancel.
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
            // A joint that was entered explicitly returns to its outgoing majority.
            (None, Some(old)) if self.outgoing().len() == 1 => Goal {
                id: EntryId::ZERO,
                voters: old.clone(),
                // No member is removed.
                learners: self.members().iter().filter(|id| !old.contains(*id)).collect(),
                from_voters: self.incoming().clone(),
                from_learners: self.learners().clone(),
                cancels: true,
            },
            // With several outgoing majorities the origin is not known: use a list of
            // majorities.
            (None, _) => return Err(ChangeRefusal::NothingToCancel),
        };
        let turned = self.with_goal(Some(goal));
        let back = match self.outgoing().first() {
            Some(old) => turned.change_majorities(std::slice::from_ref(old))?,
            None => turned,
        };
        Ok(back.without_reached_goal())
    }

    /// Whether the goal includes this member. Its info is kept from when the goal was set
    /// until it is added.
    /// Shown by scenarios/goal_keeps_info_of_joining_member.txt.
    pub(super) fn goal_includes(&self, id: MemberId) -> bool {
        self.goal().is_some_and(|goal| goal.includes(id))
    }

    /// The goals that ended recently, the latest last.
    pub fn ended_goals(&self) -> &[EndedGoal] {
        &self.ended
    }

    /// Records that a goal ended; only the latest are kept.
    pub fn with_ended_goal(mut self, ended: EndedGoal) -> Self {
        self.ended.push(ended);
        let excess = self.ended.len().saturating_sub(ENDED_MAX);
        self.ended.drain(..excess);
        self
    }

    /// This membership as the successor of `before`, logged as the entry `since`: a new
    /// goal gets its id, and the end of an old one is recorded.
    pub(super) fn with_goal_history(
        mut self,
        before: &Self,
        since: EntryId,
        by: &ChangeKind,
    ) -> Self {
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
            // Nothing to do: the goal ends at once.
            let end = GoalEnd::Reached;
            self = self.with_ended_goal(EndedGoal { id: since, end, at: since });
        }
        if let Some(goal) = self.goal.as_mut().filter(|_| is_new) {
            goal.id = since;
        }
        self
    }

    /// The membership after a step. Waiting and handing over change nothing.
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

    /// Drops the goal if it is reached.
    pub(super) fn without_reached_goal(self) -> Self {
        let reached = self.goal().is_some_and(|goal| {
            !self.is_joint() && *self.incoming() == goal.voters && *self.learners() == goal.learners
        });
        if reached { self.with_goal(None) } else { self }
    }
}

/// All steps towards a goal, in advance.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Plan {
    /// The steps in order.
    pub steps: Vec<PlannedStep>,
}

/// One step of a plan, and what the cluster tolerates after it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PlannedStep {
    /// The step.
    pub step: GoalStep,
    /// The membership after the step.
    pub membership: Membership,
    /// The smallest losses, of one or two members, after which nothing can be committed.
    pub stops_commits: Vec<MemberSet>,
    /// The smallest losses, of one or two members, after which no leader can be elected
    /// before the step is settled: until then the majorities before it count as well.
    pub stops_elections: Vec<MemberSet>,
}

/// Lists the steps from this membership to these voters and learners, given the present
/// state of the peers. It uses the same function as the leader; a step that waits is listed
/// and then assumed to be done.
pub fn plan(
    membership: &Membership,
    view: &PlanContext,
    voters: &MemberSet,
    learners: &MemberSet,
) -> Result<Plan, ChangeRefusal> {
    let mut now = membership.set_goal(voters, learners)?;
    // The plan waits for all joining members.
    let mut view = PlanContext { catching_up: voters.clone(), ..view.clone() };
    let mut steps = Vec::new();
    while let Some(step) = next_step(&now, &view) {
        let next = now.take_step(&step)?;
        match &step {
            GoalStep::CatchUp(ids) => {
                view.caught_up = view.caught_up.iter().chain(ids.iter()).collect()
            }
            GoalStep::HandOver(successors) => {
                view.leader = successors.iter().next().unwrap_or(view.leader)
            }
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

/// Single members, and pairs of members of which neither suffices alone, whose loss leaves
/// one of these memberships without a quorum.
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
            Self::CatchUp(ids) => write!(f, "wait until ({ids}) have caught up"),
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
