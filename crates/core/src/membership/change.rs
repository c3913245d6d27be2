//! Which changes of membership are possible, and what results from them.
//!
//! A change is resolved and checked once, by the leader, when it is proposed; what
//! is logged is the change *with* its result. So a logged change cannot fail, and
//! going back over it is a look at the entry before.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{Membership, MembershipError};
use crate::config::Manners;
use crate::{EntryId, MemberId, MemberSet};

/// A wish to alter the membership.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Change {
    /// Done in order, all or none. No operations: leave the joint.
    pub operations: Vec<Operation>,
    pub transition: Transition,
    /// Opaque to the core; reaches the state machine with the entry.
    pub context: Bytes,
    /// Proposed in the older form, that has exactly one operation and is never joint.
    pub v1: bool,
    /// Where to go, as a list of majorities, instead of operations: any membership
    /// that may follow the present one, the incoming majority first.
    pub majorities: Vec<MemberSet>,
    /// Refused unless the newest membership in the log is the one of this entry.
    pub expected: Option<EntryId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Add as a voter, or make a learner one.
    Voter(MemberId),
    /// Add as a learner, or take a voter's vote away.
    Learner(MemberId),
    Remove(MemberId),
    /// Changes nothing here; carries a context about this member.
    Update(MemberId),
}

/// Whether the way leads through a joint membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Transition {
    /// In one step where that is safe, else through a joint that is left by itself.
    #[default]
    Auto,
    /// Through a joint that is left by itself.
    JointImplicit,
    /// Into a joint that stays until told to leave.
    JointExplicit,
}

/// A change as it stands in the log: with the membership that results from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LoggedChange {
    pub change: Change,
    pub membership: Arc<Membership>,
}

impl LoggedChange {
    pub(crate) fn bytes(&self) -> u64 {
        if self.change.is_leave() && self.change.context.is_empty() {
            return 0; // Leaving a joint is never refused for its size.
        }
        let voters: usize = self.change.majorities.iter().map(MemberSet::len).sum();
        8 * (self.change.operations.len() + voters) as u64 + self.change.context.len() as u64
    }
}

impl Change {
    /// These operations, in the way that is safe with the least ado.
    pub fn new(operations: impl IntoIterator<Item = Operation>) -> Self {
        Self { operations: operations.into_iter().collect(), ..Self::default() }
    }

    /// One operation in the older form.
    pub fn v1(operation: Operation) -> Self {
        Self { operations: vec![operation], v1: true, ..Self::default() }
    }

    /// Out of a joint, to its incoming majority.
    pub fn leave() -> Self {
        Self::default()
    }

    /// To these majorities, in one step: joint, extended (three and more), back to
    /// an outgoing one. Voters that are in none of them become learners.
    pub fn majorities(majorities: impl IntoIterator<Item = MemberSet>) -> Self {
        Self { majorities: majorities.into_iter().collect(), ..Self::default() }
    }

    /// Only if nobody else changed the membership in between.
    pub fn expecting(mut self, newest: EntryId) -> Self {
        self.expected = Some(newest);
        self
    }

    pub fn with_transition(mut self, transition: Transition) -> Self {
        self.transition = transition;
        self
    }

    pub fn with_context(mut self, context: impl Into<Bytes>) -> Self {
        self.context = context.into();
        self
    }

    pub fn is_leave(&self) -> bool {
        self.operations.is_empty() && self.majorities.is_empty()
    }
}

impl Operation {
    pub fn member(self) -> MemberId {
        match self {
            Self::Voter(id) | Self::Learner(id) | Self::Remove(id) | Self::Update(id) => id,
        }
    }
}

impl Membership {
    /// What a change makes of this membership, or why it is not possible.
    pub fn resolve(&self, change: &Change, manners: &Manners) -> Result<Self, ChangeRefusal> {
        if !manners.ignore_member_zero
            && change.operations.iter().any(|operation| operation.member().0 == 0)
        {
            return Err(ChangeRefusal::MemberZero);
        }
        if !change.majorities.is_empty() {
            return self.go_to(&change.majorities);
        }
        if change.v1 {
            if change.operations.len() != 1 || change.transition != Transition::Auto {
                return Err(ChangeRefusal::NotOneOperation);
            }
            return self.simple(&change.operations);
        }
        if change.is_leave() {
            return self.leave();
        }
        if self.is_joint() {
            return Err(ChangeRefusal::AlreadyJoint);
        }
        match change.transition {
            Transition::Auto if manners.auto_counts_operations && change.operations.len() > 1 => {
                self.enter_joint(&change.operations, true)
            }
            Transition::Auto => match self.simple(&change.operations) {
                Err(ChangeRefusal::ManyVoters) => self.enter_joint(&change.operations, true),
                other => other,
            },
            Transition::JointImplicit => self.enter_joint(&change.operations, true),
            Transition::JointExplicit => self.enter_joint(&change.operations, false),
        }
    }

    /// In one step: at most one voter comes or goes.
    pub fn simple(&self, operations: &[Operation]) -> Result<Self, ChangeRefusal> {
        if self.is_joint() {
            return Err(ChangeRefusal::SimpleInJoint);
        }
        let next = self.operate(operations)?;
        if self.incoming().difference_count(next.incoming()) > 1 {
            return Err(ChangeRefusal::ManyVoters);
        }
        next.checked()
    }

    /// Into the joint of what results and what was.
    pub fn enter_joint(
        &self,
        operations: &[Operation],
        auto_leave: bool,
    ) -> Result<Self, ChangeRefusal> {
        if self.is_joint() {
            return Err(ChangeRefusal::AlreadyJoint);
        }
        if self.incoming().is_empty() {
            return Err(ChangeRefusal::NoVotersToJoin);
        }
        let mut joint = self.clone();
        joint.majorities.push(self.incoming().clone());
        joint.auto_leave = auto_leave;
        joint.operate(operations)?.checked()
    }

    /// Out of a joint, to the incoming majority alone.
    pub fn leave(&self) -> Result<Self, ChangeRefusal> {
        if !self.is_joint() {
            return Err(ChangeRefusal::NotJoint);
        }
        let mut next = self.clone();
        next.majorities.truncate(1);
        for id in std::mem::take(&mut next.learners_next).iter() {
            next.learners.insert(id);
        }
        next.auto_leave = false;
        next.checked()
    }

    /// To this list of majorities, if every quorum of it meets every quorum of now.
    pub fn go_to(&self, majorities: &[MemberSet]) -> Result<Self, ChangeRefusal> {
        let mut next = self.clone();
        next.majorities = majorities.to_vec();
        next.auto_leave = false;
        next.learners_next = MemberSet::new();
        // Who loses its vote stays as a learner; who leaves with a majority that is
        // on its way out becomes one when that goes.
        for id in self.voters().iter().chain(next.voters().iter()) {
            if !next.is_voter(id) {
                next.learners.insert(id);
            } else if !next.incoming().contains(id) {
                next.learners.remove(id);
                next.learners_next.insert(id);
            } else {
                next.learners.remove(id);
            }
        }
        let next = next.checked()?;
        if self.may_become(&next) { Ok(next) } else { Err(ChangeRefusal::UnsafeTransition) }
    }

    /// Whether every quorum of this membership meets every quorum of `next`: some
    /// majority of the one equals some majority of the other, or differs by one
    /// voter. Majorities are compared with majorities, never with unions of them.
    pub fn may_become(&self, next: &Self) -> bool {
        self.majorities
            .iter()
            .any(|old| next.majorities.iter().any(|new| old.difference_count(new) <= 1))
    }

    /// A voter that would go without having been a learner: by this step, or by the
    /// exit from the joint that it leads into.
    pub fn voter_removed_by(&self, next: &Self) -> Option<MemberId> {
        let gone = self.voters().iter().find(|id| !next.contains(*id));
        let stays = |id| next.incoming().contains(id) || next.learners_next.contains(id);
        gone.or_else(|| next.voters().iter().find(|id| !stays(*id)))
    }

    fn operate(&self, operations: &[Operation]) -> Result<Self, ChangeRefusal> {
        let mut next = self.clone();
        if next.majorities.is_empty() {
            next.majorities.push(MemberSet::new());
        }
        for operation in operations.iter().filter(|operation| operation.member().0 != 0) {
            match *operation {
                Operation::Voter(id) => next.make_voter(id),
                Operation::Learner(id) => next.make_learner(id),
                Operation::Remove(id) => next.remove(id),
                Operation::Update(_) => {}
            }
        }
        if next.incoming().is_empty() {
            return Err(ChangeRefusal::NoVotersLeft);
        }
        Ok(next)
    }

    fn make_voter(&mut self, id: MemberId) {
        self.learners.remove(id);
        self.learners_next.remove(id);
        self.majorities[0].insert(id);
    }

    fn make_learner(&mut self, id: MemberId) {
        self.majorities[0].remove(id);
        // A voter of the outgoing majority still votes there: it becomes a learner
        // when the joint is left, since nobody may be both at a time.
        if self.leaves(id) {
            self.learners_next.insert(id);
        } else {
            self.learners.insert(id);
        }
    }

    fn remove(&mut self, id: MemberId) {
        self.majorities[0].remove(id);
        self.learners.remove(id);
        self.learners_next.remove(id);
    }

    fn leaves(&self, id: MemberId) -> bool {
        self.outgoing().iter().any(|majority| majority.contains(id))
    }

    fn checked(self) -> Result<Self, ChangeRefusal> {
        match self.check() {
            Ok(()) => Ok(self),
            Err(why) => Err(ChangeRefusal::Impossible(why)),
        }
    }
}

/// Why a change of membership is not possible now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChangeRefusal {
    /// An earlier change, or what this leader inherited, is not applied yet. Ask
    /// after it is.
    InFlight { index: u64, applied: u64 },
    /// This leader has not committed an entry of its own term yet, so it may not
    /// know the newest membership. Ask a moment later.
    NoOwnCommit,
    /// Another membership than the expected one is the newest. Look, and ask again.
    Stale { newest: EntryId },
    /// A voter would be removed at once. Make it a learner first, or set a goal.
    RemovesVoterDirectly { id: MemberId },
    /// Some quorum of the present majorities and some quorum of the wanted ones need
    /// not meet: no majority of the one equals, or differs by one voter from, a
    /// majority of the other. Go through a joint of both.
    UnsafeTransition,
    /// Leave the joint first.
    AlreadyJoint,
    /// There is no joint to leave.
    NotJoint,
    /// A change in one step is not possible inside a joint. Leave it first.
    SimpleInJoint,
    /// More than one voter comes or goes. Ask for a joint change.
    ManyVoters,
    /// Nobody could decide anything afterwards.
    NoVotersLeft,
    /// There are no voters that could agree to a joint.
    NoVotersToJoin,
    /// Member id 0 names nobody.
    MemberZero,
    /// The older form has exactly one operation and no choice of transition.
    NotOneOperation,
    /// The result contradicts itself.
    Impossible(MembershipError),
}

impl fmt::Display for ChangeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight { index, applied } => {
                write!(f, "a change may be in flight up to {index}, applied to {applied}")
            }
            Self::NoOwnCommit => write!(f, "no entry of this leader's term is committed yet"),
            Self::Stale { newest } => write!(f, "the newest membership is that of {newest}"),
            Self::RemovesVoterDirectly { id } => {
                write!(f, "{id} is a voter; make it a learner before removing it")
            }
            Self::UnsafeTransition => {
                write!(f, "no majority of now and then differ by one voter at most")
            }
            Self::AlreadyJoint => write!(f, "the membership is joint already; leave it first"),
            Self::NotJoint => write!(f, "the membership is not joint; nothing to leave"),
            Self::SimpleInJoint => write!(f, "no change in one step while joint"),
            Self::ManyVoters => write!(f, "more than one voter changes; want a joint change"),
            Self::NoVotersLeft => write!(f, "no voters would be left"),
            Self::NoVotersToJoin => write!(f, "no voters to make a joint with"),
            Self::MemberZero => write!(f, "member id 0 names nobody"),
            Self::NotOneOperation => {
                write!(f, "a change in the older form has one operation and no transition")
            }
            Self::Impossible(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for ChangeRefusal {}

/// `v1 l2 r3 u4`, and `leave` for none.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_leave() {
            return f.write_str("leave");
        }
        for (at, majority) in self.majorities.iter().enumerate() {
            write!(f, "{}({majority})", if at > 0 { "&&" } else { "" })?;
        }
        for (at, operation) in self.operations.iter().enumerate() {
            if at > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{operation}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self {
            Self::Voter(_) => 'v',
            Self::Learner(_) => 'l',
            Self::Remove(_) => 'r',
            Self::Update(_) => 'u',
        };
        write!(f, "{letter}{}", self.member().0)
    }
}
