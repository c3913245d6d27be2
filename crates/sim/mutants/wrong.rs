//! Wrong versions of rules that take more than a line. The generator copies this file into the
//! mutated core; the entries beside it call these functions.

use std::sync::Arc;

use crate::membership::{Membership, MembershipParts};
use crate::progress::Peer;
use crate::role::Leader;
use crate::{Index, MemberId, MemberSet, Raft};

/// The majority that a joint goes to, as if it counted alone.
pub(crate) fn incoming_of(membership: &Membership) -> Membership {
    Membership::new(membership.incoming().iter(), [])
}

/// The majority that a joint comes from, as if it counted alone.
pub(crate) fn outgoing_of(membership: &Membership) -> Membership {
    let old = membership.outgoing().first().unwrap_or(membership.incoming());
    Membership::new(old.iter(), [])
}

/// The same membership with some of its parts changed.
pub(crate) fn edited(
    membership: Arc<Membership>,
    edit: impl FnOnce(&mut MembershipParts),
) -> Arc<Membership> {
    let mut parts = MembershipParts::from(Membership::clone(&membership));
    edit(&mut parts);
    Arc::new(Membership::from(parts))
}

/// What a quorum holds when learners count as if they were voters.
pub(crate) fn quorum_with_learners(raft: &Raft, leader: &Leader) -> Index {
    let membership = raft.membership();
    let extra: Vec<Index> = membership.learners().iter().map(|id| matched(leader, id)).collect();
    with_extra(membership, leader, &extra)
}

/// What a quorum holds when a leader without a vote counts itself.
pub(crate) fn quorum_with_leader(raft: &Raft, leader: &Leader) -> Index {
    let membership = raft.membership();
    if membership.is_voter(raft.config.id) {
        return leader.quorum_matched();
    }
    with_extra(membership, leader, &[raft.log.saved()])
}

/// What a quorum of another membership holds.
pub(crate) fn quorum_by(membership: &Membership, leader: &Leader) -> Index {
    membership.quorum(|id| leader.peer(id).map_or(0, Peer::counted_match))
}

/// Whether the incoming majority alone has replied.
pub(crate) fn incoming_active(membership: &Membership, leader: &Leader) -> bool {
    let active = |id| leader.peer(id).is_some_and(|peer| peer.progress.active);
    incoming_of(membership).quorum(active)
}

/// The voters of all majorities together.
pub(crate) fn all_of(majorities: &[Box<[u32]>]) -> Vec<u32> {
    let mut all: Vec<u32> = majorities.iter().flatten().copied().collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn matched(leader: &Leader, id: MemberId) -> Index {
    leader.peer(id).map_or(0, |peer| peer.progress.matched)
}

/// The quorum of each majority when extra members count as voters and the majority does not grow.
fn with_extra(membership: &Membership, leader: &Leader, extra: &[Index]) -> Index {
    let one = |voters: &MemberSet| {
        let own = voters.iter().map(|id| matched(leader, id));
        let mut values: Vec<Index> = own.chain(extra.iter().copied()).collect();
        values.sort_unstable_by(|a, b| b.cmp(a));
        values[voters.len() / 2]
    };
    membership.majorities().iter().map(one).min().unwrap_or(Index::MAX)
}
