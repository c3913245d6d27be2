//! Who is in the cluster and how they count.
//!
//! A [`Membership`] is plain data: no progress, no addresses, no time. What counts
//! as agreement stands in [`quorum`], which changes are possible in [`change`], the way
//! to a goal in [`goal`], who a member is in [`identity`], and which of several
//! memberships counts now in [`history`].

mod change;
mod goal;
pub(crate) mod history;
mod identity;
mod parts;
mod quorum;
mod refusal;

use std::fmt;

use bytes::Bytes;

pub use change::{Change, ChangeKind, LoggedChange, Operation, Transition};
pub use goal::{
    EndedGoal, Goal, GoalEnd, GoalStep, Plan, PlanContext, PlannedStep, next_step, plan,
};
pub use parts::MembershipParts;
pub use quorum::{Quorum, VoteResult, quorum_size};
pub use refusal::ChangeRefusal;

use crate::{Activation, EntryId, Index, MemberId, MemberSet};

/// Voters, learners, and how a joint membership will be left.
///
/// Usually there is one majority. While voters are being exchanged there are two,
/// the incoming one first, and everything needs a majority of *each*.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(into = "MembershipParts"))]
pub struct Membership {
    /// The incoming majority, then those that are on their way out.
    majorities: Vec<MemberSet>,
    /// Receive the log, count nowhere.
    learners: MemberSet,
    /// Voters of an outgoing majority that become learners on leaving.
    learners_next: MemberSet,
    /// The leader leaves the joint by itself once that is possible.
    auto_leave: bool,
    /// The entry that brought it; zero for the first one.
    since: EntryId,
    /// When this cluster's memberships begin to count.
    activation: Activation,
    /// Where the members are going, if a change is under way.
    goal: Option<Box<Goal>>,
    /// Goals that ended, the latest last.
    ended: Vec<EndedGoal>,
    /// The disk behind each voter, as far as it was seen. Sorted by member.
    incarnations: Vec<(MemberId, u64)>,
    /// The entry that added each member, by its index; not of the first ones. Sorted by
    /// member.
    joined: Vec<(MemberId, Index)>,
    /// Members of late, the latest last.
    removed: Vec<MemberId>,
    /// What is known about members beside how they count. Sorted by member.
    infos: Vec<(MemberId, MemberInfo)>,
}

/// What a membership says about one member, for those who show or reach it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct MemberInfo {
    /// Opaque to the core: name, addresses.
    #[cfg_attr(feature = "serde", serde(with = "crate::opaque"))]
    pub info: Bytes,
    /// Where it stands. Members of one zone may fail together; empty for unknown.
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

    /// All parts as they are. Use [`Membership::check`] on what comes from outside.
    pub fn from_parts(
        majorities: Vec<MemberSet>,
        learners: MemberSet,
        learners_next: MemberSet,
        auto_leave: bool,
    ) -> Self {
        Self { majorities, learners, learners_next, auto_leave, ..Self::default() }
    }

    /// The same for a cluster with another rule about when memberships count.
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    pub fn activation(&self) -> Activation {
        self.activation
    }

    pub(crate) fn brought_by(mut self, id: EntryId) -> Self {
        self.since = id;
        self
    }

    /// The entry that brought it, also after a snapshot has replaced that entry; zero
    /// for the first membership of a cluster.
    pub fn since(&self) -> EntryId {
        self.since
    }

    /// Where the members are going, if a change is under way.
    pub fn goal(&self) -> Option<&Goal> {
        self.goal.as_deref()
    }

    fn with_goal(&self, goal: Option<Goal>) -> Self {
        Self { goal: goal.map(Box::new), ..self.clone() }
    }

    /// The voters that count alone once a joint is left.
    pub fn incoming(&self) -> &MemberSet {
        static NOBODY: MemberSet = MemberSet::new();
        self.majorities.first().unwrap_or(&NOBODY)
    }

    /// The majorities that a joint waits to drop; none when it is not joint.
    pub fn outgoing(&self) -> &[MemberSet] {
        self.majorities.get(1..).unwrap_or(&[])
    }

    pub fn majorities(&self) -> &[MemberSet] {
        &self.majorities
    }

    pub fn learners(&self) -> &MemberSet {
        &self.learners
    }

    pub fn learners_next(&self) -> &MemberSet {
        &self.learners_next
    }

    pub fn auto_leave(&self) -> bool {
        self.auto_leave
    }

    /// More than one majority has to agree.
    pub fn is_joint(&self) -> bool {
        self.majorities.len() > 1
    }

    /// Nobody counts: the membership of a member that has yet to join.
    pub fn is_empty(&self) -> bool {
        self.majorities.is_empty()
    }

    /// One voter decides alone.
    pub fn is_single(&self) -> bool {
        !self.is_joint() && self.incoming().len() == 1
    }

    pub fn is_voter(&self, id: MemberId) -> bool {
        self.majorities.iter().any(|majority| majority.contains(id))
    }

    pub fn is_learner(&self, id: MemberId) -> bool {
        self.learners.contains(id)
    }

    pub fn contains(&self, id: MemberId) -> bool {
        self.is_voter(id) || self.is_learner(id)
    }

    /// Every voter of every majority, once.
    pub fn voters(&self) -> MemberSet {
        self.majorities.iter().flat_map(MemberSet::iter).collect()
    }

    /// Everybody who receives the log.
    pub fn members(&self) -> MemberSet {
        self.majorities.iter().flat_map(MemberSet::iter).chain(self.learners.iter()).collect()
    }

    /// Whether this could ever be the result of a change: what arrives from a peer
    /// or a disk has to pass. The empty membership does not.
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

/// `voters=(1 2)&&(2 3) learners=(4) learners_next=(3) autoleave`, empty parts left out.
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

/// What makes a membership impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum MembershipError {
    /// A majority without voters agrees to everything.
    NoVoters,
    MemberZero,
    VoterAndLearner(MemberId),
    /// Named as a learner to be, but it does not leave a majority.
    NotLeaving(MemberId),
    /// Marked to be left by itself, but not joint.
    NothingToLeave,
}

impl fmt::Display for MembershipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVoters => write!(f, "a majority has no voters"),
            Self::MemberZero => write!(f, "member id 0 names nobody"),
            Self::VoterAndLearner(id) => write!(f, "{id} is both voter and learner"),
            Self::NotLeaving(id) => write!(f, "{id} is to become a learner but stays a voter"),
            Self::NothingToLeave => write!(f, "auto-leave without a joint membership"),
        }
    }
}

impl std::error::Error for MembershipError {}

#[cfg(test)]
mod goal_tests;
#[cfg(test)]
mod tests;
