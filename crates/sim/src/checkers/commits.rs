//! I10, what a leader commits is on the disks of a quorum; I13, what is called settled
//! is known to be committed by the disks of a quorum.

use std::sync::Arc;

use quorate_core::config::Activation;
use quorate_core::{EntryId, MemberId, Membership};

use super::{Durable, Violation, ensure, has_quorum};

/// A leader's commit index has moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raised {
    pub by: MemberId,
    pub entry: EntryId,
    /// What counted before, and what counts after: it may have counted by either.
    pub memberships: [Arc<Membership>; 2],
}

/// I10. The disks of members that are down count as well.
pub fn commit_is_on_quorum<'a>(
    raised: &Raised,
    disk: impl Fn(MemberId) -> Option<&'a Durable>,
) -> Result<(), Violation> {
    let holds = |id| disk(id).is_some_and(|disk| disk.log.holds(raised.entry));
    let agreed = raised.memberships.iter().any(|membership| has_quorum(membership, holds));
    ensure(agreed, "I10", || {
        format!("{} commits {}, which is not on the disks of a quorum", raised.by, raised.entry)
    })
}

/// I13, where memberships count when they are applied. Otherwise committed is settled.
pub fn settled_is_known<'a>(
    by: MemberId,
    entry: EntryId,
    membership: &Membership,
    disk: impl Fn(MemberId) -> Option<&'a Durable>,
) -> Result<(), Violation> {
    let activation = membership.activation();
    let knows = |id| disk(id).is_some_and(|disk| disk.knows_committed(entry.index, activation));
    ensure(activation == Activation::OnAppend || has_quorum(membership, knows), "I13", || {
        format!("{by} reports {entry} as settled, no quorum of disks knows it")
    })
}
