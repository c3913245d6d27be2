//! Counts majorities member by member. The core counts in another way: the two must not
//! share a mistake.

use quorate_core::{MemberId, MemberSet, Membership};

/// More than half of every majority says yes. Without voters there is no quorum.
pub fn has_quorum(membership: &Membership, yes: impl Fn(MemberId) -> bool) -> bool {
    let enough = |majority: &MemberSet| {
        let count = majority.iter().filter(|id| yes(*id)).count();
        count * 2 > majority.len()
    };
    !membership.majorities().is_empty() && membership.majorities().iter().all(enough)
}

/// Any quorum of the one and any quorum of the other share a member, by trying all.
/// The complement of a set that meets every quorum is the largest one that misses it.
pub fn quorums_meet(one: &Membership, other: &Membership) -> bool {
    let all: MemberSet = one.voters().iter().chain(other.voters().iter()).collect();
    let members = all.as_slice();
    assert!(members.len() <= 20, "tries all subsets: too many voters for that");
    let is_in = |chosen: u32, id: MemberId| {
        members.iter().position(|member| *member == id).is_some_and(|at| chosen >> at & 1 == 1)
    };
    (0..1_u32 << members.len()).all(|chosen| {
        !(has_quorum(one, |id| is_in(chosen, id)) && has_quorum(other, |id| !is_in(chosen, id)))
    })
}
