//! Memberships: which members vote, and how votes are counted (thesis §4).
//!
//! A [`Membership`] is plain data: no progress, no connections, no time. Its modules:
//! `quorum` (what counts as agreement), `change` (which changes are possible), `goal` (the
//! steps to a goal), `identity` (what identifies a member), `history` (which of several
//! memberships counts now).

mod change;
mod goal;
pub(crate) mod history;
mod identity;
mod parts;
mod quorum;
mod refusal;

use std::fmt;

use bytes::Bytes;

pub use change::{Change, ChangeKind, LoggedChange, Operation, RemovedVoters, Transition};
pub use goal::{
    EndedGoal, Goal, GoalEnd, GoalStep, Plan, PlanContext, PlannedStep, next_step, plan,
};
pub use parts::MembershipParts;
pub use quorum::{Quorum, VoteResult, VoterSlots, quorum_size};
pub use refusal::ChangeRefusal;

use crate::pack::pack_fields;
use crate::{Activation, EntryId, Index, MemberId, MemberSet};

/// The voters and learners of a cluster, and how a joint membership will be left.
///
/// Usually there is one majority. While voters change there are two, the incoming one
/// first, and every decision needs a majority of *each*.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(into = "MembershipParts"))]
pub struct Membership {
    /// The incoming majority, then the outgoing ones.
    majorities: Vec<MemberSet>,
    /// Members that receive the log and do not vote.
    learners: MemberSet,
    /// Voters of an outgoing majority that become learners on leaving.
    learners_next: MemberSet,
    /// The leader leaves the joint automatically once that is possible.
    auto_leave: bool,
    /// The entry of this membership; zero for the first one.
    since: EntryId,
    /// When this cluster's memberships begin to count.
    activation: Activation,
    /// The goal in progress, if any.
    goal: Option<Box<Goal>>,
    /// Goals that ended, the latest last.
    ended: Vec<EndedGoal>,
    /// The recorded incarnation of each voter's disk. Sorted by member.
    incarnations: Vec<(MemberId, u64)>,
    /// The index of the entry that added each member, except the first ones. Sorted by
    /// member.
    joined: Vec<(MemberId, Index)>,
    /// Members that were removed recently, the latest last.
    removed: Vec<MemberId>,
    /// Names, addresses and zones of members. Sorted by member.
    infos: Vec<(MemberId, MemberInfo)>,
}

pack_fields!(Membership { majorities, learners, learners_next, auto_leave, since, activation } unset { goal, ended, incarnations, joined, removed, infos });

/// What a membership records about one member besides its role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct MemberInfo {
    /// Opaque to the core: name, addresses.
    #[cfg_attr(feature = "serde", serde(with = "crate::opaque"))]
    pub info: Bytes,
    /// Its failure zone. Members of one zone may fail together; empty for unknown.
    #[cfg_attr(feature = "serde", serde(with = "crate::opaque"))]
    pub zone: Bytes,
}

impl MemberInfo {
    /// A member that is reached at this address. The core does not interpret it: the TCP
    /// transport of the `quorate` crate expects `host:port`.
    pub fn address(address: impl Into<String>) -> Self {
        Self { info: address.into().into(), ..Self::default() }
    }
}

impl Membership {
    /// A membership with one majority.
    pub fn new(
        voters: impl IntoIterator<Item = MemberId>,
        learners: impl IntoIterator<Item = MemberId>,
    ) -> Self {
        let voters: MemberSet = voters.into_iter().collect();
        let majorities = if voters.is_empty() { Vec::new() } else { vec![voters] };
        Self { majorities, learners: learners.into_iter().collect(), ..Self::default() }
    }

    /// A membership from its parts. Use [`Membership::check`] on untrusted input.
    pub fn from_parts(
        majorities: Vec<MemberSet>,
        learners: MemberSet,
        learners_next: MemberSet,
    ) -> Self {
        Self { majorities, learners, learners_next, ..Self::default() }
    }

    /// This membership, which the leader leaves automatically if it is joint.
    pub fn with_auto_leave(self) -> Self {
        Self { auto_leave: true, ..self }
    }

    /// This membership with another activation rule.
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// The activation rule of the cluster.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// It has nothing but members, which is all that it packs.
    pub(crate) fn is_plain(&self) -> bool {
        self.goal.is_none()
            && self.ended.is_empty()
            && self.incarnations.is_empty()
            && self.joined.is_empty()
            && self.removed.is_empty()
            && self.infos.is_empty()
    }

    pub(crate) fn logged_at(mut self, id: EntryId) -> Self {
        self.since = id;
        self
    }

    /// The entry of this membership, also after a snapshot has replaced that entry; zero
    /// for the first membership of a cluster.
    pub fn since(&self) -> EntryId {
        self.since
    }

    /// The goal in progress, if any.
    pub fn goal(&self) -> Option<&Goal> {
        self.goal.as_deref()
    }

    fn with_goal(&self, goal: Option<Goal>) -> Self {
        Self { goal: goal.map(Box::new), ..self.clone() }
    }

    /// The voters that remain once a joint is left.
    pub fn incoming(&self) -> &MemberSet {
        static NO_MEMBERS: MemberSet = MemberSet::new();
        self.majorities.first().unwrap_or(&NO_MEMBERS)
    }

    /// The majorities that are dropped when a joint is left; none when it is not joint.
    pub fn outgoing(&self) -> &[MemberSet] {
        self.majorities.get(1..).unwrap_or(&[])
    }

    /// The incoming majority, then the outgoing ones.
    pub fn majorities(&self) -> &[MemberSet] {
        &self.majorities
    }

    /// The members that receive the log and do not vote.
    pub fn learners(&self) -> &MemberSet {
        &self.learners
    }

    /// The voters of an outgoing majority that become learners when the joint is left.
    pub fn learners_next(&self) -> &MemberSet {
        &self.learners_next
    }

    /// Whether the leader leaves the joint automatically.
    pub fn auto_leave(&self) -> bool {
        self.auto_leave
    }

    /// Whether more than one majority has to agree.
    pub fn is_joint(&self) -> bool {
        self.majorities.len() > 1
    }

    /// Whether there are no voters: the membership of a member that has not joined yet.
    pub fn is_empty(&self) -> bool {
        self.majorities.is_empty()
    }

    /// Whether a single voter decides alone.
    pub fn is_single(&self) -> bool {
        !self.is_joint() && self.incoming().len() == 1
    }

    /// Whether this member votes in any majority.
    pub fn is_voter(&self, id: MemberId) -> bool {
        self.majorities.iter().any(|majority| majority.contains(id))
    }

    /// Whether this member is a learner.
    pub fn is_learner(&self, id: MemberId) -> bool {
        self.learners.contains(id)
    }

    /// Whether this is a voter or a learner.
    pub fn contains(&self, id: MemberId) -> bool {
        self.is_voter(id) || self.is_learner(id)
    }

    /// All voters of all majorities.
    pub fn voters(&self) -> MemberSet {
        self.majorities.iter().flat_map(MemberSet::iter).collect()
    }

    /// All members that receive the log.
    pub fn members(&self) -> MemberSet {
        self.majorities.iter().flat_map(MemberSet::iter).chain(self.learners.iter()).collect()
    }

    /// Whether this membership is valid: everything that arrives from a peer or a disk must
    /// pass. The empty membership does not.
    pub fn check(&self) -> Result<(), MembershipError> {
        if self.incoming().is_empty() || self.majorities.iter().any(MemberSet::is_empty) {
            return Err(MembershipError::NoVoters);
        }
        if self.contains(MemberId(0)) || self.learners_next.contains(MemberId(0)) {
            return Err(MembershipError::MemberZero);
        }
        if let Some(id) = self.learners.iter().find(|id| self.is_voter(*id)) {
            return Err(MembershipError::VoterAndLearner(id));
        }
        let leaves = |id| self.outgoing().iter().any(|majority| majority.contains(id));
        let stays = |id| self.incoming().contains(id);
        if let Some(id) = self.learners_next.iter().find(|id| !leaves(*id) || stays(*id)) {
            return Err(MembershipError::NotLeaving(id));
        }
        if self.auto_leave && !self.is_joint() {
            return Err(MembershipError::NothingToLeave);
        }
        if self.goal().is_some_and(|goal| goal.voters.is_empty() || goal.from_voters.is_empty()) {
            return Err(MembershipError::NoVoters);
        }
        Ok(())
    }
}

/// `voters=(…)&&(…) learners=(…) learners_next=(…) autoleave`, without the empty parts.
impl fmt::Display for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "voters=")?;
        if self.is_empty() {
            write!(f, "()")?;
        }
        for (at, majority) in self.majorities.iter().enumerate() {
            write!(f, "{}({majority})", if at > 0 { "&&" } else { "" })?;
        }
        if !self.learners.is_empty() {
            write!(f, " learners=({})", self.learners)?;
        }
        if !self.learners_next.is_empty() {
            write!(f, " learners_next=({})", self.learners_next)?;
        }
        if self.auto_leave {
            write!(f, " autoleave")?;
        }
        if let Some(goal) = self.goal() {
            write!(f, " goal={goal}")?;
        }
        for (at, (id, incarnation)) in self.incarnations.iter().enumerate() {
            write!(f, "{}{id}:{incarnation}", if at > 0 { " " } else { " disks=(" })?;
        }
        if !self.incarnations.is_empty() {
            write!(f, ")")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a membership is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum MembershipError {
    /// A majority without voters would agree to everything.
    NoVoters,
    /// Member id 0 is listed.
    MemberZero,
    /// A member is listed both as a voter and as a learner.
    VoterAndLearner(MemberId),
    /// Listed in `learners_next`, but not leaving a majority.
    NotLeaving(MemberId),
    /// Marked for leaving automatically, but not joint.
    NothingToLeave,
}

impl fmt::Display for MembershipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVoters => write!(f, "a majority has no voters"),
            Self::MemberZero => write!(f, "member id 0 is not valid"),
            Self::VoterAndLearner(id) => write!(f, "{id} is both voter and learner"),
            Self::NotLeaving(id) => write!(f, "{id} is listed as a next learner but stays a voter"),
            Self::NothingToLeave => {
                write!(f, "auto-leave is set on a membership that is not joint")
            }
        }
    }
}

impl std::error::Error for MembershipError {}

#[cfg(test)]
mod goal_tests;
#[cfg(test)]
mod tests;
