//! What must hold of a cluster, whatever happens to it: the invariants I1 to I13 and
//! the electability of leaders (L1).
//!
//! Each is a pure function over [`MemberView`]s, or over a view and what was seen
//! before ([`History`]). Who explores or simulates builds the views and asks; nothing
//! here knows how the members were driven. None of this uses the core's own counting
//! of quorums or its election code: a mistake there must not hide itself.

pub mod answers;
mod commits;
pub mod electable;
mod history;
pub mod linearizable;
mod logs;
mod marks;
mod memberships;
mod promises;
mod quorums;
mod roles;
#[cfg(test)]
mod tests;
mod view;

use std::fmt;

pub use commits::{Raised, commit_is_on_quorum, settled_is_known};
pub use history::History;
pub use logs::{leader_only_appends, logs_match};
pub use marks::{marks_are_in_order, marks_never_fall};
pub use memberships::{memberships_are_derived, neighbours_overlap, one_change_pending};
pub use promises::{candidacy_is_durable, promise_is_durable};
pub use quorums::{has_quorum, quorums_meet};
pub use roles::role_is_allowed;
pub use view::{Durable, LogView, MemberView};

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// `I1` to `I13`, `L1`, …, or a word: `assert` for an assertion of the core itself.
    pub rule: &'static str,
    pub what: String,
}

impl Violation {
    pub fn new(rule: &'static str, what: impl Into<String>) -> Self {
        Self { rule, what: crate::short_ids::short_ids(&what.into()) }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} violated: {}", self.rule, self.what)
    }
}

/// Everything that can be asked of one member alone.
pub fn check_member(view: &MemberView) -> Result<(), Violation> {
    marks_are_in_order(view)?;
    neighbours_overlap(view)?;
    one_change_pending(view)?;
    memberships_are_derived(view)?;
    role_is_allowed(view)
}

/// Everything that can be asked of one member before and after something happened to
/// it. `restarted`: it was started anew in between.
pub fn check_step(
    before: &MemberView,
    after: &MemberView,
    restarted: bool,
) -> Result<(), Violation> {
    marks_never_fall(before, after, restarted)?;
    if restarted { Ok(()) } else { leader_only_appends(before, after) }
}

fn ensure(holds: bool, rule: &'static str, what: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::new(rule, what())) }
}
