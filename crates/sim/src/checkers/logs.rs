//! I2, logs that share an entry share all before it; I3, a leader's log only grows.

use quorate_core::status::RoleKind;

use super::{MemberView, Violation, ensure};

/// I2, for two members: payloads count, not only terms.
pub fn logs_match(a: &MemberView, b: &MemberView) -> Result<(), Violation> {
    let first = a.log.base.index.max(b.log.base.index) + 1;
    let last = a.log.last().index.min(b.log.last().index);
    let mut shared = false;
    for index in (first..=last).rev() {
        let (Some(ours), Some(theirs)) = (a.log.entry(index), b.log.entry(index)) else { continue };
        shared |= ours.id == theirs.id;
        ensure(!shared || ours == theirs, "I2", || {
            let (a, b) = (a.id, b.id);
            format!("{a} holds {ours:?} and {b} holds {theirs:?}, at or below an entry of both")
        })?;
    }
    Ok(())
}

/// I3, for one member that leads the same term before and after.
pub fn leader_only_appends(before: &MemberView, after: &MemberView) -> Result<(), Violation> {
    let leads = |view: &MemberView| view.role == RoleKind::Leader;
    if !leads(before) || !leads(after) || before.term != after.term {
        return Ok(());
    }
    let kept = |entry: &&quorate_core::Entry| {
        entry.id.index <= after.log.base.index || after.log.entry(entry.id.index) == Some(*entry)
    };
    match before.log.entries.iter().find(|entry| !kept(entry)) {
        None => Ok(()),
        Some(lost) => Err(Violation::new(
            "I3",
            format!("{} leads term {} and loses {lost:?}", after.id, after.term),
        )),
    }
}
