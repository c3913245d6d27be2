//! The model that a storage is compared with: a log that keeps everything, and what a member
//! has to find when it starts.

use std::sync::Arc;

use quorate_core::membership::LoggedChange;
use quorate_core::{
    Boot, Change, Config, Entry, EntryId, HardState, Index, MemberId, Membership, Payload, Raft,
    Save, SnapshotMeta, Term,
};

use super::trial::{CaseResult, SuiteViolation, same};

/// The member whose storage it is.
pub(super) const MEMBER: MemberId = MemberId(7);

/// What was saved, since the log began or was replaced.
#[derive(Clone, Debug)]
pub(super) struct StorageModel {
    pub(super) hard_state: HardState,
    /// What the log began with.
    floor: SnapshotMeta,
    /// All entries after it, also those that were trimmed.
    entries: Vec<Entry>,
}

impl StorageModel {
    pub(super) fn new(first: &Boot) -> Self {
        let Boot { hard_state, snapshot, .. } = first.clone();
        Self { hard_state, floor: snapshot, entries: Vec::new() }
    }

    pub(super) fn floor(&self) -> EntryId {
        self.floor.id
    }

    pub(super) fn last(&self) -> EntryId {
        self.entries.last().map_or(self.floor.id, |entry| entry.id)
    }

    pub(super) fn term(&self, index: Index) -> Option<Term> {
        if index == self.floor.id.index {
            return Some(self.floor.id.term);
        }
        self.entry(index).map(|entry| entry.id.term)
    }

    pub(super) fn holds(&self, id: EntryId) -> bool {
        self.term(id.index) == Some(id.term)
    }

    pub(super) fn entry(&self, index: Index) -> Option<&Entry> {
        let nth = index.checked_sub(self.floor.id.index + 1)?;
        self.entries.get(nth as usize)
    }

    pub(super) fn apply(&mut self, save: &Save) {
        self.hard_state = save.hard_state.unwrap_or(self.hard_state);
        if let Some(meta) = &save.install {
            self.floor = meta.clone();
            self.entries.clear();
        }
        if let Some(first) = save.entries.first() {
            self.entries.retain(|entry| entry.id.index < first.id.index);
            self.entries.extend(save.entries.iter().cloned());
        }
    }

    /// What a snapshot of this entry says about the log.
    pub(super) fn meta_at(&self, index: Index) -> SnapshotMeta {
        let term = self.term(index).unwrap_or_default();
        let before = self.entries.iter().filter(|entry| entry.id.index <= index);
        let change = before.filter_map(Entry::change).last();
        let membership = change.map_or(&self.floor.membership, |change| &change.membership);
        SnapshotMeta { id: EntryId::new(term, index), membership: Arc::clone(membership) }
    }

    /// Whether a member may start from this, when this snapshot is the newest one and the
    /// log was trimmed up to there.
    pub(super) fn check_boot(
        &self,
        boot: &Boot,
        snapshot: &SnapshotMeta,
        trimmed: Index,
    ) -> CaseResult {
        same("term, vote and commit", &boot.hard_state, &self.hard_state)?;
        same("the newest snapshot", &boot.snapshot, snapshot)?;
        let base = boot.base;
        let base_max = trimmed.min(snapshot.id.index).max(self.floor.id.index);
        if base.index > base_max || !self.holds(base) {
            let why = format!("the log begins after {base}, expected at most index {base_max}");
            return Err(SuiteViolation(why));
        }
        let tail: Vec<&Entry> = boot.tail.iter().collect();
        let kept = (self.last().index - base.index) as usize;
        let expected: Vec<&Entry> = self.entries.iter().rev().take(tail.len()).rev().collect();
        same("the tail of the log", &tail, &expected)?;
        if tail.len() > kept || (kept > 0 && tail.is_empty()) {
            return Err(SuiteViolation(format!("the tail has {} of {kept} entries", tail.len())));
        }
        self.check_below_tail(boot)?;
        match Raft::new(Config::new(MEMBER), boot.clone()) {
            Ok(_) => Ok(()),
            Err(why) => Err(SuiteViolation(format!("no member can start from it: {why}"))),
        }
    }

    fn check_below_tail(&self, boot: &Boot) -> CaseResult {
        let first = boot.tail.first().map_or(Index::MAX, |entry| entry.id.index);
        let below = |index: Index| boot.base.index < index && index < first;
        let mut terms: Vec<EntryId> = Vec::new();
        for entry in self.entries.iter().filter(|entry| below(entry.id.index)) {
            if terms.last().is_none_or(|start| start.term != entry.id.term) {
                terms.push(entry.id);
            }
        }
        same("the first entries of terms below the tail", &boot.terms, &terms)?;
        let recent = self
            .entries
            .iter()
            .filter(|entry| below(entry.id.index) && entry.id.index > boot.snapshot.id.index);
        let changes = recent.filter_map(|entry| {
            entry.change().map(|change| (entry.id, Arc::clone(&change.membership)))
        });
        same("memberships below the tail", &boot.memberships, &changes.collect())
    }
}

/// A log entry whose contents follow from its address: some are commands, of many sizes,
/// and some are changes.
pub(super) fn entry(id: EntryId) -> Entry {
    let EntryId { term, index } = id;
    if index % 5 == 0 {
        let learner = MemberId(100 * term + index);
        let membership = Arc::new(Membership::new([MEMBER], [learner]));
        let change = Change::add_learner(learner);
        return Entry {
            id,
            payload: Payload::Change(Arc::new(LoggedChange { change, membership })),
        };
    }
    let bytes = (index * 37 + term * 11) % 301;
    Entry::command(term, index, content(id, bytes as usize))
}

/// Bytes that no other entry or snapshot has, and no two parts of which are the same.
pub(super) fn content(id: EntryId, bytes: usize) -> Vec<u8> {
    (0..).flat_map(|nth: u64| format!("{id}#{nth} ").into_bytes()).take(bytes).collect()
}

/// A snapshot that a peer sends.
pub(super) fn meta_of_peer(id: EntryId) -> SnapshotMeta {
    let membership = Membership::new([MEMBER, MemberId(1)], [MemberId(1000 + id.index)]);
    SnapshotMeta { id, membership: Arc::new(membership) }
}
