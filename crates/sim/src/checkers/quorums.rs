//! Counts majorities member by member. The core uses a different algorithm, so that the
//! two cannot share an error.

use quorate_core::{MemberId, MemberSet, Membership};

/// Whether more than half of every majority says yes. Without voters there is no quorum.
pub fn has_quorum(membership: &Membership, yes: impl Fn(MemberId) -> bool) -> bool {
    let enough = |majority: &MemberSet| {
        let count = majority.iter().filter(|id| yes(*id)).count();
        count * 2 > majority.len()
    };
    !membership.majorities().is_empty() && membership.majorities().iter().all(enough)
}

/// Whether any quorum of one membership shares a member with any quorum of the other. Tries
/// all subsets: there must be none that has a quorum of one while its complement has a
/// quorum of the other.
pub fn quorums_meet(one: &Membership, other: &Membership) -> bool {
    let all: MemberSet = one.voters().iter().chain(other.voters().iter()).collect();
    let members = all.as_slice();
    assert!(members.len() <= 20, "too many voters to try all subsets");
    let is_in = |chosen: u32, id: MemberId| {
        members
            .iter()
            .position(|member| *member == id)
            .is_some_and(|index| chosen >> index & 1 == 1)
    };
    (0..1_u32 << members.len()).all(|chosen| {
        !(has_quorum(one, |id| is_in(chosen, id)) && has_quorum(other, |id| !is_in(chosen, id)))
    })
}
