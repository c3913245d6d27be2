//! The properties that must hold in every execution: the invariants I1 to I15, the
//! electability of leaders (L1), correct replies to clients, linearizability.
//!
//! Each invariant is written once. `member` has those that a single member can break,
//! [`ClusterHistory`] those of the whole cluster, `entries` that of the logs. The tracker
//! checks them event by event in simulated clusters; the model checker checks them on
//! single steps and whole states. The checkers do not depend on how the members are
//! driven, and do not use the core's quorum counting or election code: an error there
//! must not hide itself.

pub mod electable;
mod entries;
mod history;
pub mod linearizable;
mod log;
mod member;
mod quorums;
pub mod replies;
mod roles;
#[cfg(test)]
mod tests;
mod tracker;
mod view;

use std::any::Any;
use std::fmt;

use quorate_core::{Boot, Envelope, MemberId, Output, Raft, Save};

pub use entries::logs_match;
pub use history::ClusterHistory;
#[cfg(feature = "whole")]
pub(crate) use history::{commit_is_on_quorum, settled_is_known};
pub(crate) use member::DiskRecord;
#[cfg(feature = "whole")]
pub(crate) use member::{MemberRecord, RaisedCommit};
pub use quorums::{has_quorum, quorums_meet};
pub(crate) use tracker::Invariants;
pub use view::MemberView;

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// `I1` to `I15`, `L1`, …, or a word: `assert` for an assertion of the core itself.
    pub rule: &'static str,
    pub what: String,
}

/// The result of checking a rule.
pub type Checked = Result<(), Violation>;

impl Violation {
    pub fn new(rule: &'static str, what: impl Into<String>) -> Self {
        Self { rule, what: crate::short_ids::short_ids(&what.into()) }
    }

    /// A panic of the code under test.
    pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> Self {
        Self::new("assert", panic_text(panic))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} violated: {}", self.rule, self.what)
    }
}

/// The checks to run while a core is driven directly.
pub(crate) trait MemberChecks {
    /// A member was started from its disk.
    fn started(&mut self, raft: &Raft, boot: &Boot) -> Checked;

    /// One output of a core. Messages that wait for a save are passed to
    /// [`MemberChecks::sent`] when they are sent.
    fn output(&mut self, raft: &Raft, output: &Output) -> Checked;

    /// A disk has written a save.
    fn saved(&mut self, id: MemberId, save: &Save) -> Checked;

    /// A message leaves a member.
    fn sent(&mut self, envelope: &Envelope) -> Checked;

    /// A member processed an input, and all its outputs were passed to this checker.
    fn stepped(&mut self, raft: &Raft) -> Checked;
}

pub(crate) fn ensure(holds: bool, rule: &'static str, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { violated(rule, what) }
}

#[cold]
fn violated(rule: &'static str, what: impl FnOnce() -> String) -> Checked {
    Err(Violation::new(rule, what()))
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}
