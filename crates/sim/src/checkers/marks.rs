//! I9: the marks along a log are in order, and what was promised is never taken back.

use super::{MemberView, Violation, ensure};

/// snapshot ≤ applied ≤ applying ≤ commit ≤ last; what is trimmed is in the snapshot;
/// the disk's commit index lies in its log.
pub fn marks_are_in_order(view: &MemberView) -> Result<(), Violation> {
    let (id, last) = (view.id, view.log.last().index);
    let (snapshot, base) = (view.snapshot.id.index, view.log.base.index);
    ensure(base <= snapshot, "I9", || format!("{id} trimmed to {base}, snapshot {snapshot}"))?;
    ensure(!view.up || snapshot <= view.applied || view.installing, "I9", || {
        format!("{id} has snapshot {snapshot}, applied {}", view.applied)
    })?;
    ensure(
        !view.up || view.applied <= view.applying && view.applying <= view.commit,
        "I9",
        || {
            format!(
                "{id} applied {} applying {} commit {}",
                view.applied, view.applying, view.commit
            )
        },
    )?;
    ensure(view.commit <= last, "I9", || format!("{id} commit {} last {last}", view.commit))?;
    let durable = &view.durable;
    ensure(durable.hard_state.commit <= durable.log.last().index, "I9", || {
        let on_disk = durable.log.last().index;
        format!("{id}'s disk has commit {} last {on_disk}", durable.hard_state.commit)
    })
}

/// Terms and what is applied never fall, not even over a restart, and nor does a
/// commit index while the member runs. One vote per term, over restarts (I1).
pub fn marks_never_fall(
    before: &MemberView,
    after: &MemberView,
    restarted: bool,
) -> Result<(), Violation> {
    let id = after.id;
    let (old, new) = (before.durable.hard_state, after.durable.hard_state);
    ensure(old.term <= new.term, "I9", || {
        format!("{id}'s disk goes back from term {} to {}", old.term, new.term)
    })?;
    ensure(old.term < new.term || old.vote.is_none() || old.vote == new.vote, "I1", || {
        format!("in term {} {id}'s disk changes its vote: {:?}, {:?}", old.term, old.vote, new.vote)
    })?;
    ensure(before.durable.applied <= after.durable.applied, "I9", || {
        format!("{id}'s machine goes back to {}", after.durable.applied)
    })?;
    if restarted {
        return ensure(old.term <= after.term, "I9", || {
            format!("{id} forgets term {} on a restart", old.term)
        });
    }
    ensure(before.term <= after.term, "I9", || {
        format!("{id} goes back from term {} to {}", before.term, after.term)
    })?;
    ensure(before.commit <= after.commit && before.applied <= after.applied, "I9", || {
        format!("{id} goes back to commit {} applied {}", after.commit, after.applied)
    })
}
