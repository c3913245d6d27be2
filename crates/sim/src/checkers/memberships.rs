//! I6, neighbours overlap; I7, one change pending; I8, what counts stands in the log.

use std::sync::Arc;

use quorate_core::config::Activation;
use quorate_core::status::RoleKind;

use super::{MemberView, Violation, ensure, quorums_meet};

/// I6: any quorum of one membership in a log meets any quorum of the next.
pub fn neighbours_overlap(view: &MemberView) -> Result<(), Violation> {
    let known = view.memberships();
    for pair in known.windows(2) {
        let [(_, old), (id, new)] = pair else { continue };
        // Who has not joined yet knows of nobody.
        ensure(old.is_empty() || quorums_meet(old, new), "I6", || {
            format!("{}'s log goes from {old} to {new} at {id}: quorums that do not meet", view.id)
        })?;
    }
    Ok(())
}

/// I7: of the memberships in a leader's log, all but the newest are committed.
pub fn one_change_pending(view: &MemberView) -> Result<(), Violation> {
    if view.role != RoleKind::Leader {
        return Ok(());
    }
    let known = view.memberships();
    let pending: Vec<_> = known.iter().filter(|(id, _)| id.index > view.commit).collect();
    ensure(pending.len() <= 1, "I7", || {
        let ids: Vec<String> = pending.iter().map(|(id, _)| id.to_string()).collect();
        format!("{} leads with changes {} pending", view.id, ids.join(" and "))
    })
}

/// I8: the membership that a member counts by is the newest one in its log, or the
/// newest one handed to its state machine, and no other.
pub fn memberships_are_derived(view: &MemberView) -> Result<(), Violation> {
    if !view.up {
        return Ok(());
    }
    let known = view.memberships();
    let taken = match view.activation {
        Activation::OnApply => view.applying,
        Activation::OnAppend => view.log.last().index,
    };
    let counts = known.iter().rev().find(|(id, _)| id.index <= taken).or(known.first());
    let Some((_, expected)) = counts else { return Ok(()) };
    ensure(Arc::ptr_eq(expected, &view.membership) || *expected == view.membership, "I8", || {
        format!("{} counts by {}, its log says {expected}", view.id, view.membership)
    })
}
