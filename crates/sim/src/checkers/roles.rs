//! I11: who may stand for election, and who may lead.

use quorate_core::config::Activation;
use quorate_core::status::RoleKind;

use super::{MemberView, Violation, ensure};

/// A voter of the membership it counts by. Two exceptions: with a membership that
/// counts before it is committed, who refused a vote for its newer log alone may stand
/// and win; and a leader that lost its vote leads on until that is settled.
pub fn role_is_allowed(view: &MemberView) -> Result<(), Violation> {
    if view.role == RoleKind::Follower || view.membership.is_voter(view.id) {
        return Ok(());
    }
    let (id, membership) = (view.id, &view.membership);
    let stands = view.role != RoleKind::Leader;
    match view.activation {
        Activation::OnApply => {
            ensure(!stands, "I11", || format!("{id} stands without a vote in {membership}"))?;
            let since = view
                .memberships()
                .iter()
                .rev()
                .find(|(entry, _)| entry.index <= view.applying)
                .map_or(0, |(entry, _)| entry.index);
            ensure(view.settled < since, "I11", || {
                format!("{id} leads without a vote in {membership}, which is settled")
            })
        }
        Activation::OnAppend => ensure(!stands || view.holds_newer_log, "I11", || {
            format!("{id} stands without a vote in {membership} and has no newer log")
        }),
    }
}
