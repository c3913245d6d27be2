//! What must hold of a cluster in every execution: the invariants I1 to I13, the
//! electability of leaders (L1), the replies to clients, linearizability.
//!
//! Each invariant is written once. [`member`](self) has those that one member can break
//! alone, [`History`] those of the whole cluster, `entries` that of the logs. The tracker
//! feeds them event by event, for simulated clusters; the model checker feeds them with
//! single steps and whole states. Nothing here knows how the members are driven, and
//! nothing uses the core's own counting of quorums or its election code: a mistake there
//! must not hide itself.

pub mod answers;
pub mod electable;
mod entries;
mod history;
pub mod linearizable;
mod log;
mod member;
mod quorums;
#[cfg(test)]
mod tests;
mod tracker;
mod view;

use std::fmt;

use quorate_core::MemberId;

pub use entries::logs_match;
pub use history::History;
pub(crate) use history::{commit_is_on_quorum, settled_is_known};
pub(crate) use member::{DiskRecord, MemberRecord, RaisedCommit};
pub use quorums::{has_quorum, quorums_meet};
pub(crate) use tracker::Invariants;
pub use view::{Durable, LogView, MemberView};

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// `I1` to `I13`, `L1`, …, or a word: `assert` for an assertion of the core itself.
    pub rule: &'static str,
    pub what: String,
}

/// Whether a rule holds.
pub type Checked = Result<(), Violation>;

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

fn ensure(holds: bool, rule: &'static str, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { violated(rule, what) }
}

#[cold]
fn violated(rule: &'static str, what: impl FnOnce() -> String) -> Checked {
    Err(Violation::new(rule, what()))
}

/// A member as stories and violations name it: `m1`.
pub(crate) fn name(id: MemberId) -> String {
    format!("m{}", id.0)
}
