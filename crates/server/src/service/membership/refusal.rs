//! Why a step of a change is blocked, as a message of `quorate.v1`.

use quorate::membership::ChangeRefusal;
use quorate_proto::quorate::v1;
use quorate_proto::quorate::v1::refusal::Reason;
use quorate_proto::quorate::v1::tolerance;

use super::convert::entry;

pub(super) fn refusal(error: &ChangeRefusal) -> v1::Refusal {
    let mut refusal = v1::Refusal { text: error.to_string(), ..v1::Refusal::default() };
    let reason = match error {
        ChangeRefusal::InFlight { index, applied } => {
            (refusal.index, refusal.applied) = (*index, *applied);
            Reason::InFlight
        }
        ChangeRefusal::Stale { newest } => {
            refusal.newest_id = Some(entry(*newest));
            Reason::Stale
        }
        ChangeRefusal::QuorumNotReady { voters, quorum, live } => {
            let small = |count: &usize| u32::try_from(*count).unwrap_or(u32::MAX);
            let (voters, quorum, live) = (small(voters), small(quorum), small(live));
            refusal.count = Some(tolerance::Count { voters, quorum, live });
            Reason::QuorumNotReady
        }
        ChangeRefusal::RemovesVoterDirectly { id } => {
            refusal.member_id = id.0;
            Reason::RemovesVoterDirectly
        }
        ChangeRefusal::IdUsedBefore { id } => {
            refusal.member_id = id.0;
            Reason::IdUsedBefore
        }
        ChangeRefusal::UnknownMember { id } => {
            refusal.member_id = id.0;
            Reason::UnknownMember
        }
        other => without_details(other),
    };
    refusal.reason = reason.into();
    refusal
}

/// Refusals without details.
fn without_details(error: &ChangeRefusal) -> Reason {
    match error {
        ChangeRefusal::NoOwnCommit => Reason::NoOwnCommit,
        ChangeRefusal::ZoneWouldBlock => Reason::ZoneWouldBlock,
        ChangeRefusal::UnsafeTransition => Reason::UnsafeTransition,
        ChangeRefusal::AlreadyJoint => Reason::AlreadyJoint,
        ChangeRefusal::NotJoint => Reason::NotJoint,
        ChangeRefusal::SimpleInJoint => Reason::SimpleInJoint,
        ChangeRefusal::ManyVoters => Reason::ManyVoters,
        ChangeRefusal::NoVotersLeft => Reason::NoVotersLeft,
        ChangeRefusal::NoVotersForJoint => Reason::NoVotersForJoint,
        ChangeRefusal::MemberZero => Reason::MemberZero,
        ChangeRefusal::GoalInProgress => Reason::GoalInProgress,
        ChangeRefusal::AlreadyReached => Reason::AlreadyReached,
        ChangeRefusal::AlreadyCancelled => Reason::AlreadyCancelled,
        ChangeRefusal::NothingToCancel => Reason::NothingToCancel,
        ChangeRefusal::InvalidMembership(_) => Reason::InvalidMembership,
        _ => Reason::Unspecified,
    }
}
