//! What was seen so far: I1, one leader per term; I4, a leader holds what was committed
//! before its term; I5, what is committed never changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorate_core::status::RoleKind;
use quorate_core::{Entry, EntryId, Index, MemberId, Membership, Term};

use super::{MemberView, Violation, ensure};

/// Grows with every view that is shown to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    elected: BTreeMap<Term, MemberId>,
    committed: BTreeMap<Index, Committed>,
    /// The committed memberships, by the entry that brought each.
    memberships: BTreeMap<Index, (EntryId, Arc<Membership>)>,
}

/// An entry that somebody knew to be committed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Committed {
    entry: Entry,
    /// The term of who knew it first.
    in_term: Term,
}

impl History {
    /// Takes in what a member knows, and checks it against everything known before.
    pub fn note(&mut self, view: &MemberView) -> Result<(), Violation> {
        self.note_leader(view)?;
        self.note_snapshot(view)?;
        self.note_commits(view)?;
        self.leader_is_complete(view)
    }

    /// The newest committed memberships, the latest last.
    pub fn memberships(&self) -> impl DoubleEndedIterator<Item = &(EntryId, Arc<Membership>)> {
        self.memberships.values()
    }

    /// The highest term somebody won.
    pub fn newest_term(&self) -> Term {
        self.elected.keys().next_back().copied().unwrap_or(0)
    }

    /// Forgets entries that no log holds any more.
    pub fn forget_before(&mut self, index: Index) {
        self.committed = self.committed.split_off(&index);
    }

    fn note_leader(&mut self, view: &MemberView) -> Result<(), Violation> {
        if view.role != RoleKind::Leader {
            return Ok(());
        }
        let winner = *self.elected.entry(view.term).or_insert(view.id);
        ensure(winner == view.id, "I1", || {
            format!("{winner} and {} both lead term {}", view.id, view.term)
        })
    }

    fn note_snapshot(&mut self, view: &MemberView) -> Result<(), Violation> {
        let (id, membership) = (view.snapshot.id, &view.snapshot.membership);
        if id == EntryId::ZERO {
            return Ok(());
        }
        if let Some(known) = self.committed.get(&id.index) {
            ensure(known.entry.id == id, "I5", || {
                format!("{} has a snapshot at {id}, committed is {:?}", view.id, known.entry)
            })?;
        }
        let since = if membership.since() == EntryId::ZERO { id } else { membership.since() };
        self.memberships.entry(since.index).or_insert_with(|| (since, Arc::clone(membership)));
        Ok(())
    }

    fn note_commits(&mut self, view: &MemberView) -> Result<(), Violation> {
        for entry in view.log.entries.iter().take_while(|entry| entry.id.index <= view.commit) {
            let index = entry.id.index;
            if let Some(known) = self.committed.get(&index) {
                ensure(known.entry == *entry, "I5", || {
                    let (id, known) = (view.id, &known.entry);
                    format!("{id} takes {entry:?} for committed, before it was {known:?}")
                })?;
                continue;
            }
            let committed = Committed { entry: entry.clone(), in_term: view.term };
            self.committed.insert(index, committed);
            if let Some(change) = entry.change() {
                self.memberships.insert(index, (entry.id, Arc::clone(&change.membership)));
            }
        }
        Ok(())
    }

    fn leader_is_complete(&self, view: &MemberView) -> Result<(), Violation> {
        if view.role != RoleKind::Leader {
            return Ok(());
        }
        let held = |index: Index, entry: &Entry| {
            index <= view.log.base.index || view.log.entry(index) == Some(entry)
        };
        let before = self.committed.iter().filter(|(_, known)| known.in_term < view.term);
        for (index, known) in before {
            ensure(held(*index, &known.entry), "I4", || {
                let (id, term, entry) = (view.id, view.term, &known.entry);
                format!(
                    "{id} leads term {term} without {entry:?}, committed in term {}",
                    known.in_term
                )
            })?;
        }
        Ok(())
    }
}
