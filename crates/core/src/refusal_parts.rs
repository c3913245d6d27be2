//! Refusals as numbers, for the wire: a case and its values.
//!
//! A case keeps its number forever; a new one gets a new number. Both directions are
//! defined here, next to the enums, so that the compiler notices a case without a number.

use crate::membership::{ChangeRefusal, MembershipError};
use crate::{EntryId, MemberId, Refusal};

/// First number of the cases of [`ChangeRefusal`].
const CHANGE: u8 = 32;
/// First number of the cases of [`MembershipError`].
const INVALID: u8 = 96;

impl Refusal {
    /// The case and its numbers.
    pub fn to_parts(&self) -> (u8, Vec<u64>) {
        match *self {
            Self::NotLeader { leader: None } => (0, vec![]),
            Self::NotLeader { leader: Some(id) } => (1, vec![id.0]),
            Self::Transferring { to } => (2, vec![to.0]),
            Self::LeaderRemoved => (3, vec![]),
            Self::TooMuchUncommitted { waiting, limit } => (4, vec![waiting, limit]),
            Self::TooManyReads { limit } => (5, vec![limit as u64]),
            Self::TargetNotVoter { to } => (6, vec![to.0]),
            Self::TargetStalled { to } => (7, vec![to.0]),
            Self::Change(reason) => reason.to_parts(),
        }
    }

    /// The refusal with these parts, if there is one.
    pub fn from_parts(case: u8, numbers: &[u64]) -> Option<Self> {
        Some(match (case, numbers) {
            (0, []) => Self::NotLeader { leader: None },
            (1, &[id]) => Self::NotLeader { leader: Some(MemberId(id)) },
            (2, &[to]) => Self::Transferring { to: MemberId(to) },
            (3, []) => Self::LeaderRemoved,
            (4, &[waiting, limit]) => Self::TooMuchUncommitted { waiting, limit },
            (5, &[limit]) => Self::TooManyReads { limit: limit.try_into().ok()? },
            (6, &[to]) => Self::TargetNotVoter { to: MemberId(to) },
            (7, &[to]) => Self::TargetStalled { to: MemberId(to) },
            (CHANGE.., _) => Self::Change(ChangeRefusal::from_parts(case, numbers)?),
            _ => return None,
        })
    }
}

impl ChangeRefusal {
    fn to_parts(self) -> (u8, Vec<u64>) {
        let (case, numbers) = match self {
            Self::InFlight { index, applied } => (0, vec![index, applied]),
            Self::NoOwnCommit => (1, vec![]),
            Self::Stale { newest } => (2, vec![newest.term, newest.index]),
            Self::QuorumNotReady { voters, quorum, live } => {
                (3, vec![voters as u64, quorum as u64, live as u64])
            }
            Self::ZoneWouldBlock => (4, vec![]),
            Self::RemovesVoterDirectly { id } => (5, vec![id.0]),
            Self::UnsafeTransition => (6, vec![]),
            Self::AlreadyJoint => (7, vec![]),
            Self::NotJoint => (8, vec![]),
            Self::SimpleInJoint => (9, vec![]),
            Self::ManyVoters => (10, vec![]),
            Self::NoVotersLeft => (11, vec![]),
            Self::NoVotersForJoint => (12, vec![]),
            Self::MemberZero => (13, vec![]),
            Self::GoalInProgress => (14, vec![]),
            Self::AlreadyReached => (15, vec![]),
            Self::AlreadyCancelled => (16, vec![]),
            Self::NothingToCancel => (17, vec![]),
            Self::IdUsedBefore { id } => (18, vec![id.0]),
            Self::UnknownMember { id } => (19, vec![id.0]),
            Self::InvalidMembership(error) => return error.to_parts(),
        };
        (CHANGE + case, numbers)
    }

    fn from_parts(case: u8, numbers: &[u64]) -> Option<Self> {
        if case >= INVALID {
            return MembershipError::from_parts(case, numbers).map(Self::InvalidMembership);
        }
        Some(match (case.checked_sub(CHANGE)?, numbers) {
            (0, &[index, applied]) => Self::InFlight { index, applied },
            (1, []) => Self::NoOwnCommit,
            (2, &[term, index]) => Self::Stale { newest: EntryId::new(term, index) },
            (3, &[voters, quorum, live]) => Self::QuorumNotReady {
                voters: voters.try_into().ok()?,
                quorum: quorum.try_into().ok()?,
                live: live.try_into().ok()?,
            },
            (4, []) => Self::ZoneWouldBlock,
            (5, &[id]) => Self::RemovesVoterDirectly { id: MemberId(id) },
            (6, []) => Self::UnsafeTransition,
            (7, []) => Self::AlreadyJoint,
            (8, []) => Self::NotJoint,
            (9, []) => Self::SimpleInJoint,
            (10, []) => Self::ManyVoters,
            (11, []) => Self::NoVotersLeft,
            (12, []) => Self::NoVotersForJoint,
            (13, []) => Self::MemberZero,
            (14, []) => Self::GoalInProgress,
            (15, []) => Self::AlreadyReached,
            (16, []) => Self::AlreadyCancelled,
            (17, []) => Self::NothingToCancel,
            (18, &[id]) => Self::IdUsedBefore { id: MemberId(id) },
            (19, &[id]) => Self::UnknownMember { id: MemberId(id) },
            _ => return None,
        })
    }
}

impl MembershipError {
    fn to_parts(self) -> (u8, Vec<u64>) {
        let (case, numbers) = match self {
            Self::NoVoters => (0, vec![]),
            Self::MemberZero => (1, vec![]),
            Self::VoterAndLearner(id) => (2, vec![id.0]),
            Self::NotLeaving(id) => (3, vec![id.0]),
            Self::NothingToLeave => (4, vec![]),
        };
        (INVALID + case, numbers)
    }

    fn from_parts(case: u8, numbers: &[u64]) -> Option<Self> {
        Some(match (case.checked_sub(INVALID)?, numbers) {
            (0, []) => Self::NoVoters,
            (1, []) => Self::MemberZero,
            (2, &[id]) => Self::VoterAndLearner(MemberId(id)),
            (3, &[id]) => Self::NotLeaving(MemberId(id)),
            (4, []) => Self::NothingToLeave,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The compiler checks that `to_parts` covers every case; the count checks that
    /// `from_parts` does.
    #[test]
    fn every_refusal_round_trips_through_its_parts() {
        let mut found = 0;
        for case in 0..=u8::MAX {
            for count in 0..=4 {
                let numbers: Vec<u64> = (0..count).map(|nth| 1000 + nth).collect();
                if let Some(refusal) = Refusal::from_parts(case, &numbers) {
                    assert_eq!(refusal.to_parts(), (case, numbers), "{refusal:?}");
                    found += 1;
                }
            }
        }
        assert_eq!(found, 8 + 20 + 5);
    }
}
