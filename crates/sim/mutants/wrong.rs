//! Wrong versions of rules that take more than a line. The generator copies this file into the
//! mutated core; the entries beside it call these functions.

use std::sync::Arc;

use crate::membership::{Membership, MembershipParts};
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
    let guests: Vec<Index> = membership.learners().iter().map(|id| matched(leader, id)).collect();
    with_guests(membership, leader, &guests)
}

/// What a quorum holds when a leader without a vote counts itself.
pub(crate) fn quorum_with_leader(raft: &Raft, leader: &Leader) -> Index {
    let membership = raft.membership();
    if membership.is_voter(raft.config.id) {
        return leader.quorum_matched(membership);
    }
    with_guests(membership, leader, &[raft.log.saved()])
}

fn matched(leader: &Leader, id: MemberId) -> Index {
    leader.peer(id).map_or(0, |peer| peer.progress.matched)
}

/// The quorum of each majority when guests count as voters and the majority does not grow.
fn with_guests(membership: &Membership, leader: &Leader, guests: &[Index]) -> Index {
    let one = |voters: &MemberSet| {
        let own = voters.iter().map(|id| matched(leader, id));
        let mut values: Vec<Index> = own.chain(guests.iter().copied()).collect();
        values.sort_unstable_by(|a, b| b.cmp(a));
        values[voters.len() / 2]
    };
    membership.majorities().iter().map(one).min().unwrap_or(Index::MAX)
}
