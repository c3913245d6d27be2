//! The part of a log that the invariants need: the term of each entry, and which entries
//! change the membership.

use quorate_core::{Boot, Entries, EntryId, Index, SnapshotMeta, Term};

use crate::cluster::LogView;

/// The terms of a log's entries, and which of them change the membership.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogRecord {
    /// The entry before the first one in the log.
    base: EntryId,
    terms: Vec<Term>,
    /// The entry of the snapshot's membership (zero for the first membership of a cluster),
    /// then the changes after the snapshot.
    changes: Vec<EntryId>,
}

impl LogRecord {
    /// The log that a member starts with.
    pub(crate) fn of_boot(boot: &Boot) -> Self {
        let tail = boot.tail.iter().filter(|entry| entry.change().is_some());
        let below = boot.memberships.iter().map(|(id, _)| *id);
        Self {
            base: boot.base,
            terms: terms_of(boot),
            changes: changes(&boot.snapshot, below.chain(tail.map(|entry| entry.id))),
        }
    }

    pub(crate) fn of_view(log: &LogView, snapshot: &SnapshotMeta) -> Self {
        let changed = log.entries.iter().filter(|entry| entry.change().is_some());
        Self {
            base: log.base,
            terms: log.entries.iter().map(|entry| entry.id.term).collect(),
            changes: changes(snapshot, changed.map(|entry| entry.id)),
        }
    }

    pub(crate) fn base(&self) -> EntryId {
        self.base
    }

    pub(crate) fn last(&self) -> EntryId {
        let index = self.base.index + self.terms.len() as u64;
        EntryId::new(self.terms.last().copied().unwrap_or(self.base.term), index)
    }

    pub(crate) fn id_at(&self, index: Index) -> Option<EntryId> {
        if index == self.base.index {
            return Some(self.base);
        }
        let offset = usize::try_from(index.checked_sub(self.base.index + 1)?).ok()?;
        self.terms.get(offset).map(|term| EntryId::new(*term, index))
    }

    /// Whether the log or the snapshot before it contains this entry.
    pub(crate) fn covers(&self, id: EntryId) -> bool {
        id.index < self.base.index || self.id_at(id.index) == Some(id)
    }

    /// Replaces the log from the first of these entries on.
    pub(crate) fn write(&mut self, entries: &Entries) {
        let Some(first) = entries.first() else { return };
        let keep = first.id.index.saturating_sub(self.base.index + 1);
        self.terms.truncate(keep as usize);
        self.terms.extend(entries.iter().map(|entry| entry.id.term));
        self.changes.retain(|change| change.index < first.id.index);
        let changes = entries.iter().filter(|entry| entry.change().is_some());
        self.changes.extend(changes.map(|entry| entry.id));
    }

    /// A snapshot replaces the entries before it, and all entries if they do not
    /// continue it.
    pub(crate) fn install(&mut self, meta: &SnapshotMeta) {
        let id = meta.id;
        if self.id_at(id.index) == Some(id) && id.index >= self.base.index {
            let covered = (id.index - self.base.index) as usize;
            self.terms.drain(..covered);
        } else {
            self.terms.clear();
        }
        self.base = id;
        self.changes.retain(|change| change.index > id.index && !self.terms.is_empty());
        self.changes.insert(0, meta.membership.since());
    }

    /// The newest change up to this index.
    pub(crate) fn change_at(&self, index: Index) -> EntryId {
        let newest = self.changes.iter().rev().find(|change| change.index <= index);
        newest.copied().unwrap_or_default()
    }

    /// The changes after this index.
    pub(crate) fn changes_after(&self, index: Index) -> &[EntryId] {
        let known = self.changes.iter().take_while(|change| change.index <= index).count();
        &self.changes[known..]
    }

    /// The change before the newest one.
    pub(crate) fn change_before_newest(&self) -> EntryId {
        self.changes.iter().rev().nth(1).copied().unwrap_or_default()
    }
}

/// The entry of the snapshot's membership, and those of these entries that are newer than
/// the snapshot.
fn changes(snapshot: &SnapshotMeta, logged: impl Iterator<Item = EntryId>) -> Vec<EntryId> {
    let newer = logged.filter(|change| change.index > snapshot.id.index);
    std::iter::once(snapshot.membership.since()).chain(newer).collect()
}

fn terms_of(boot: &Boot) -> Vec<Term> {
    let below = boot.tail.first().map_or_else(
        || boot.terms.last().map_or(boot.base.index, |id| id.index),
        |first| first.id.index - 1,
    );
    let mut terms = Vec::new();
    let mut starts = boot.terms.iter().peekable();
    let mut term = boot.base.term;
    for index in boot.base.index + 1..=below {
        while starts.peek().is_some_and(|start| start.index <= index) {
            term = starts.next().map_or(term, |start| start.term);
        }
        terms.push(term);
    }
    terms.extend(boot.tail.iter().map(|entry| entry.id.term));
    terms
}
