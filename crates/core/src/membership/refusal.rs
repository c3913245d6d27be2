//! Why a membership change is refused, and what to do then.

use std::fmt;

use super::MembershipError;
use crate::{EntryId, MemberId};

/// Why a membership change is not possible now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ChangeRefusal {
    /// An earlier change, or the inherited log, is not applied yet. Retry after it is.
    InFlight {
        /// The index.
        index: u64,
        /// The applied index.
        applied: u64,
    },
    /// This leader has not committed an entry of its own term yet, so it may not know the
    /// newest membership. Retry shortly.
    NoOwnCommit,
    /// The newest membership is not the expected one. Look at it and retry.
    Stale {
        /// The newest one.
        newest: EntryId,
    },
    /// Fewer than a quorum of a majority's voters are live and caught up: the change could
    /// not be completed. Start them, or choose others.
    QuorumNotReady {
        /// The voters.
        voters: usize,
        /// How many of them form a quorum.
        quorum: usize,
        /// How many of them are live and caught up.
        live: usize,
    },
    /// The loss of one zone would then block the cluster, which no zone can now. Spread the
    /// voters.
    ZoneWouldBlock,
    /// A voter would be removed directly. Demote it first, or set a goal.
    RemovesVoterDirectly {
        /// The member.
        id: MemberId,
    },
    /// Some quorum of the present majorities and some quorum of the requested ones might
    /// not overlap: no majority of the one equals, or differs by one voter from, a majority
    /// of the other. Go through a joint of both.
    UnsafeTransition,
    /// Leave the joint first.
    AlreadyJoint,
    /// There is no joint to leave.
    NotJoint,
    /// A change in one step is not possible in a joint. Leave it first.
    SimpleInJoint,
    /// More than one voter changes. Use a joint change.
    ManyVoters,
    /// No voters would be left.
    NoVotersLeft,
    /// There are no voters that could agree to a joint.
    NoVotersForJoint,
    /// Zero is not a member id.
    MemberZero,
    /// A goal is in progress. Cancel it, retry after it has ended, or replace it with a
    /// change that names the expected membership.
    GoalInProgress,
    /// The members are already as requested.
    AlreadyReached,
    /// The change is being cancelled already.
    AlreadyCancelled,
    /// No change is in progress.
    NothingToCancel,
    /// A member with this id was removed. Ids are never used twice: choose a new one.
    IdUsedBefore {
        /// The member.
        id: MemberId,
    },
    /// Not a member. Add it as a learner first.
    UnknownMember {
        /// The member.
        id: MemberId,
    },
    /// The result contradicts itself.
    InvalidMembership(MembershipError),
}

impl fmt::Display for ChangeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight { index, applied } => {
                write!(f, "a change may be in progress up to {index}, applied up to {applied}")
            }
            Self::NoOwnCommit => write!(f, "no entry of this leader's term is committed yet"),
            Self::Stale { newest } => write!(f, "the newest membership is that of entry {newest}"),
            Self::QuorumNotReady { voters, quorum, live } => {
                write!(
                    f,
                    "{live} of {voters} voters are live and caught up, the quorum is {quorum}"
                )
            }
            Self::ZoneWouldBlock => write!(f, "the loss of one zone would leave no quorum"),
            Self::RemovesVoterDirectly { id } => {
                write!(f, "{id} is a voter; make it a learner before removing it")
            }
            Self::UnsafeTransition => {
                write!(f, "no present and requested majority differ by at most one voter")
            }
            Self::AlreadyJoint => write!(f, "the membership is already joint; leave it first"),
            Self::NotJoint => write!(f, "the membership is not joint; nothing to leave"),
            Self::SimpleInJoint => {
                write!(f, "a joint membership cannot change in one step; leave it first")
            }
            Self::ManyVoters => write!(f, "more than one voter changes; use a joint change"),
            Self::NoVotersLeft => write!(f, "no voters would be left"),
            Self::NoVotersForJoint => write!(f, "there are no voters for a joint"),
            Self::MemberZero => write!(f, "member id 0 is not valid"),
            Self::GoalInProgress => write!(f, "a goal is in progress; cancel it first"),
            Self::AlreadyReached => write!(f, "the members are already as requested"),
            Self::UnknownMember { id } => {
                write!(f, "{id} is not a member; add it as a learner first")
            }
            Self::IdUsedBefore { id } => write!(f, "{id} was removed before; choose a new id"),
            Self::AlreadyCancelled => write!(f, "the change is already being cancelled"),
            Self::NothingToCancel => write!(f, "no change is in progress"),
            Self::InvalidMembership(error) => write!(f, "invalid membership: {error}"),
        }
    }
}

impl std::error::Error for ChangeRefusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::InvalidMembership(error) => Some(error),
            _ => None,
        }
    }
}
