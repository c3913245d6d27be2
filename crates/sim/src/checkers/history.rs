//! The invariants of the whole cluster: I1, one leader per term; I4, a leader holds all
//! entries committed before its term; I5, committed entries never change; I10, a leader
//! commits by an entry of its own term that is on the disks of a quorum; I13, a change
//! reported as settled is known to be committed on the disks of a quorum.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorate_core::config::Activation;
use quorate_core::status::RoleKind;
use quorate_core::{EntryId, Index, MemberId, Membership, SnapshotMeta, Term};

use super::entries::payload_hash;
use super::member::{DiskRecord, RaisedCommit};
use super::{Checked, MemberView, ensure, has_quorum};

/// The elections, commits and memberships of a run so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClusterHistory {
    elected: BTreeMap<Term, MemberId>,
    committed: BTreeMap<Index, CommittedEntry>,
    /// The committed memberships, by the index of their entry.
    memberships: BTreeMap<Index, (EntryId, Arc<Membership>)>,
}

/// An entry that a member knew to be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CommittedEntry {
    id: EntryId,
    /// The hash of its payload.
    payload: u64,
    /// The term of the first member that knew it to be committed.
    in_term: Term,
}

impl ClusterHistory {
    /// Adds all that a member knows, and checks it against the history so far.
    pub fn note(&mut self, view: &MemberView) -> Checked {
        let leads = view.role == RoleKind::Leader;
        if leads {
            self.elected(view.id, view.term)?;
        }
        self.note_snapshot(view.id, &view.snapshot)?;
        for entry in view.log.entries.iter().take_while(|entry| entry.id.index <= view.commit) {
            self.committed(view.id, view.term, entry.id, payload_hash(entry))?;
            if let Some(change) = entry.change() {
                self.note_membership(entry.id, &change.membership);
            }
        }
        if leads {
            let base = view.log.base.index;
            self.leader_is_complete(view.id, view.term, |id| {
                id.index <= base || view.log.id_at(id.index) == Some(id)
            })?;
        }
        Ok(())
    }

    /// The committed memberships, oldest first.
    pub fn memberships(&self) -> impl DoubleEndedIterator<Item = &(EntryId, Arc<Membership>)> {
        self.memberships.values()
    }

    /// The highest term with a leader.
    pub fn newest_term(&self) -> Term {
        self.elected.keys().next_back().copied().unwrap_or(0)
    }

    pub(crate) fn elections(&self) -> u64 {
        self.elected.len() as u64
    }

    /// The highest index that is known to be committed.
    pub(crate) fn commit(&self) -> Index {
        self.committed.keys().next_back().copied().unwrap_or(0)
    }

    /// I1: a member leads a term.
    pub(crate) fn elected(&mut self, id: MemberId, term: Term) -> Checked {
        let winner = *self.elected.entry(term).or_insert(id);
        ensure(winner == id, "I1", || format!("{} and {} both lead term {term}", winner, id))
    }

    /// I4: a leader of this term holds all entries that were committed in earlier terms.
    pub(crate) fn leader_is_complete(
        &self,
        id: MemberId,
        term: Term,
        holds: impl Fn(EntryId) -> bool,
    ) -> Checked {
        let mut earlier = self.committed.values().filter(|known| known.in_term < term);
        match earlier.find(|known| !holds(known.id)) {
            None => Ok(()),
            Some(known) => super::violated("I4", || {
                let in_term = known.in_term;
                format!("{id} leads term {term} without {}, committed in term {in_term}", known.id)
            }),
        }
    }

    /// I5: a member in this term considers this entry committed. True if it is the first
    /// member to do so.
    pub(crate) fn committed(
        &mut self,
        id: MemberId,
        in_term: Term,
        entry: EntryId,
        payload: u64,
    ) -> Result<bool, super::Violation> {
        let Some(known) = self.committed.get(&entry.index) else {
            self.committed.insert(entry.index, CommittedEntry { id: entry, payload, in_term });
            return Ok(true);
        };
        ensure((known.id, known.payload) == (entry, payload), "I5", || {
            format!("{id} considers {entry} committed, but {} was committed before", known.id)
        })?;
        Ok(false)
    }

    /// I5: a member applies this entry.
    pub(crate) fn applied(&self, id: MemberId, entry: EntryId) -> Checked {
        let known = self.committed.get(&entry.index);
        ensure(known.is_some_and(|known| known.id == entry), "I5", || {
            format!("{} applies {entry}, which is not committed", id)
        })
    }

    /// I5: a member has this snapshot.
    pub(crate) fn note_snapshot(&mut self, id: MemberId, snapshot: &SnapshotMeta) -> Checked {
        let (at, membership) = (snapshot.id, &snapshot.membership);
        if at == EntryId::ZERO {
            return Ok(());
        }
        if let Some(known) = self.committed.get(&at.index) {
            ensure(known.id == at, "I5", || {
                format!("{} has a snapshot at {at}, but {} is committed", id, known.id)
            })?;
        }
        // The first membership has no entry. It counts once, however many snapshots hold it.
        let is_first = membership.since() == EntryId::ZERO;
        if !is_first {
            self.note_membership(membership.since(), membership);
        } else if self.memberships.is_empty() {
            self.note_membership(at, membership);
        }
        Ok(())
    }

    pub(crate) fn note_membership(&mut self, since: EntryId, membership: &Arc<Membership>) {
        let known = || (since, Arc::clone(membership));
        self.memberships.entry(since.index).or_insert_with(known);
    }

    /// I10: a leader commits by an entry of its own term. An older entry may be on a quorum
    /// and still be replaced; that is too rare in random runs, so the rule is checked itself.
    pub(crate) fn commit_is_of_own_term(&self, raised: &RaisedCommit) -> Checked {
        let RaisedCommit { by, term, entry, .. } = raised;
        let counted = raised.led_before && entry.index > self.commit();
        ensure(!counted || entry.term == *term, "I10", || {
            format!("{} leads term {term} and commits {entry} by counting replies", *by)
        })
    }
}

/// I10: a committed entry is on the disks of a quorum, including members that are down. The
/// quorum is of the active membership, or of the one that was active before this step.
pub(crate) fn commit_is_on_quorum<'a>(
    raised: &RaisedCommit,
    disk: impl Fn(MemberId) -> Option<&'a DiskRecord>,
) -> Checked {
    let holds = |id| disk(id).is_some_and(|disk| disk.log.covers(raised.entry));
    let agreed = raised.memberships.iter().any(|membership| has_quorum(membership, holds));
    ensure(agreed, "I10", || {
        let (by, [_, membership]) = (raised.by, &raised.memberships);
        let on = those_that(membership, holds);
        format!(
            "{by} commits {}, which is not on the disks of a quorum of {membership}, only on {on}",
            raised.entry
        )
    })
}

/// I13, with activation on apply: a quorum knows that the entry is committed, also after a
/// restart (T5). With activation on append, a committed change is settled.
pub(crate) fn settled_is_known<'a>(
    by: MemberId,
    entry: EntryId,
    membership: &Membership,
    disk: impl Fn(MemberId) -> Option<&'a DiskRecord>,
) -> Checked {
    let knows = |id| disk(id).is_some_and(|disk| disk.knows_committed(entry.index));
    let on_append = membership.activation() == Activation::OnAppend;
    ensure(on_append || has_quorum(membership, knows), "I13", || {
        let known = those_that(membership, knows);
        format!(
            "{by} reports {entry} as settled, but no quorum of disks knows that it is committed, \
             only {known}",
        )
    })
}

/// The members of which this is true, for messages.
fn those_that(membership: &Membership, is_true: impl Fn(MemberId) -> bool) -> String {
    let members = membership.members();
    let names: Vec<String> =
        members.iter().filter(|id| is_true(*id)).map(|id| id.to_string()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}
