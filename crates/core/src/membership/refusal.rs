//! Why a change of membership is refused, and what to do then.

use std::fmt;

use super::MembershipError;
use crate::{EntryId, MemberId};

/// Why a change of membership is not possible now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
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
    /// Of the voters of a majority, fewer than a quorum are live and caught up: once
    /// made, the change could not be completed. Bring them up, or choose others.
    QuorumNotReady { voters: usize, quorum: usize, live: usize },
    /// One zone could stop the cluster by itself, which none can now. Spread the voters.
    ZoneWouldBlock,
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
    NoVotersForJoint,
    /// Member id 0 names nobody.
    MemberZero,
    /// A goal is being pursued. Cancel it, ask after it is reached, or set another in its
    /// place by naming the membership that has it.
    GoalInProgress,
    /// The members are as wished already.
    AlreadyReached,
    /// It is on its way back already.
    AlreadyCancelled,
    /// No change is under way.
    NothingToCancel,
    /// A member of this id was removed. Ids are never used twice: choose a new one.
    IdUsedBefore { id: MemberId },
    /// Not a member. Add it as a learner first.
    UnknownMember { id: MemberId },
    /// The result contradicts itself.
    InvalidMembership(MembershipError),
}

impl fmt::Display for ChangeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight { index, applied } => {
                write!(f, "a change may be in flight up to {index}, applied to {applied}")
            }
            Self::NoOwnCommit => write!(f, "no entry of this leader's term is committed yet"),
            Self::Stale { newest } => write!(f, "the newest membership is that of {newest}"),
            Self::QuorumNotReady { voters, quorum, live } => {
                write!(
                    f,
                    "of {voters} voters {live} are live and caught up, the quorum is {quorum}"
                )
            }
            Self::ZoneWouldBlock => write!(f, "the loss of one zone would leave no quorum"),
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
            Self::NoVotersForJoint => write!(f, "no voters to make a joint with"),
            Self::MemberZero => write!(f, "member id 0 names nobody"),
            Self::GoalInProgress => write!(f, "a goal is being pursued; cancel it first"),
            Self::AlreadyReached => write!(f, "the members are as wished already"),
            Self::UnknownMember { id } => write!(f, "{id} is not a member; add it as a learner"),
            Self::IdUsedBefore { id } => write!(f, "{id} was removed before; want a new id"),
            Self::AlreadyCancelled => write!(f, "the change is being cancelled already"),
            Self::NothingToCancel => write!(f, "no change is under way"),
            Self::InvalidMembership(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for ChangeRefusal {}
