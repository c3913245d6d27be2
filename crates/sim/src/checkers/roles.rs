//! I11: which members may campaign and lead.

use quorate_core::Raft;
use quorate_core::config::Activation;
use quorate_core::status::RoleKind;

use super::{Checked, ensure};

/// I11: a voter of the active membership may campaign and lead. Two exceptions: with
/// activation on append, a member that refused a vote because it alone has a newer log may
/// campaign and win; and a leader that is no longer a voter leads until that is settled, or
/// longer if it is configured not to step down. A member that joined later must hold the
/// entry that added it.
pub(super) fn role_is_allowed(raft: &Raft) -> Checked {
    joiner_is_unknown_before_its_entry(raft)?;
    let (id, role) = (raft.config().id, raft.role());
    if role == RoleKind::Follower {
        return Ok(());
    }
    let (log, membership) = (raft.log_status(), raft.membership());
    let on_append = raft.config().activation == Activation::OnAppend;
    let leads = role == RoleKind::Leader;
    let allowed = membership.is_voter(id)
        || may_act_without_vote(leads, on_append, || {
            let settled = raft.config().step_down_on_removal
                && raft.status().settled >= membership.since().index;
            (raft.holds_newer_log(), settled)
        });
    let reached = if on_append { log.last.index } else { log.commit };
    ensure(allowed && (leads || reached >= raft.config().joined_at), "I11", || {
        let action = if leads { "leads" } else { "campaigns" };
        format!("{} {action} under {membership} with {log:?}", id)
    })
}

/// On apply, a membership from before the entry that added a member does not name its identity.
/// So a member with an incarnation could not campaign there even if it did not wait for that
/// entry: docs/mutants.md, campaign-before-join-is-committed.
fn joiner_is_unknown_before_its_entry(raft: &Raft) -> Checked {
    let (config, membership) = (raft.config(), raft.membership());
    let waits = config.activation == Activation::OnApply
        && config.incarnation != 0
        && raft.log_status().commit < config.joined_at;
    let named = || membership.contains(config.id);
    let unknown = !waits || !named() || membership.joined_at(config.id) != config.joined_at;
    ensure(unknown, "I11", || format!("{} is named by {membership} before it was added", config.id))
}

/// The exceptions of I11. `facts`: whether it holds a newer log than a member that asked
/// for its vote, and whether the membership without it is settled.
fn may_act_without_vote(
    leads: bool,
    on_append: bool,
    facts: impl FnOnce() -> (bool, bool),
) -> bool {
    match (leads, on_append) {
        (true, true) => true,
        (true, false) => !facts().1,
        (false, true) => facts().0,
        (false, false) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i11_members_without_a_vote() {
        let may = |leads, on_append, newer_log, settled| {
            may_act_without_vote(leads, on_append, || (newer_log, settled))
        };
        assert!(!may(false, false, true, false));
        assert!(!may(false, true, false, false) && may(false, true, true, false));
        assert!(may(true, false, false, false) && !may(true, false, false, true));
    }
}
