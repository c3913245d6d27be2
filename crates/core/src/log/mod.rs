//! The log as the core sees it: the terms of the whole log, the entries of its newest part,
//! and its four marks: saved, commit, applying, applied.
//!
//! Terms change rarely, so the core keeps the first entry of each term of the whole log.
//! Whether two entries are equal is decided without the disk; only entries themselves may
//! have to be loaded.

mod tail;

use std::collections::VecDeque;

use tail::Tail;

use crate::pack::pack_fields;
use crate::{Entries, Entry, EntryId, Index, Term};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Log {
    /// The newest entry that was trimmed.
    base: EntryId,
    /// The first entry of every term after `base`. Index and term increase.
    terms: Vec<EntryId>,
    tail: Tail,
    last: EntryId,
    /// Submitted to the disk up to here.
    submitted: Index,
    /// Durable up to here.
    saved: Index,
    pub(crate) commit: Index,
    /// Handed to the state machine up to here.
    pub(crate) applying: Index,
    pub(crate) applied: Index,
    /// The batches that were handed to the state machine and not reported as applied: the
    /// last index and the bytes of each.
    batches: VecDeque<(Index, u64)>,
    /// The bytes of all of them.
    applying_bytes: u64,
    /// The limit on those is reached: nothing more until something is applied.
    apply_full: bool,
}

pack_fields!(Log { base, terms, tail, last, submitted, saved, commit, applying, applied } unset { batches, applying_bytes, apply_full });

/// Requested entries: in memory, or to be loaded from disk first.
pub(crate) enum LogRead {
    InMemory(Entries),
    OnDisk,
}

impl Log {
    /// A saved log: `terms` are the first entries of each term below the tail. The error is
    /// the index at which the log is inconsistent.
    pub(crate) fn new(base: EntryId, terms: Vec<EntryId>, tail: &Entries) -> Result<Self, Index> {
        let first = tail.first().map_or(base.index + 1, |entry| entry.id.index);
        let mut log = Self {
            base,
            terms: Vec::new(),
            tail: Tail::new(first),
            last: base,
            submitted: base.index,
            saved: base.index,
            commit: base.index,
            applying: base.index,
            applied: base.index,
            batches: VecDeque::new(),
            applying_bytes: 0,
            apply_full: false,
        };
        if first <= base.index {
            return Err(first);
        }
        for start in terms {
            let follows = log.terms.last().map_or(start.index == base.index + 1, |known| {
                known.index < start.index && known.term < start.term
            });
            if !follows || start.index >= first || start.term < base.term {
                return Err(start.index);
            }
            log.last = EntryId::new(start.term, first - 1);
            log.terms.push(start);
        }
        if log.last.index + 1 != first {
            return Err(log.last.index + 1);
        }
        for entry in tail.iter() {
            if entry.id.index != log.last.index + 1 || entry.id.term < log.last.term {
                return Err(log.last.index + 1);
            }
            log.note_term(entry.id);
        }
        log.tail.append(tail.clone());
        log.submitted = log.last.index;
        log.saved = log.last.index;
        Ok(log)
    }

    pub(crate) fn base(&self) -> EntryId {
        self.base
    }

    pub(crate) fn last(&self) -> EntryId {
        self.last
    }

    pub(crate) fn saved(&self) -> Index {
        self.saved
    }

    pub(crate) fn tail_first(&self) -> Index {
        self.tail.first()
    }

    /// There are entries that no save contains yet.
    pub(crate) fn has_unsaved(&self) -> bool {
        self.submitted < self.last.index
    }

    /// The term of the entry at this index; none where it is trimmed or missing.
    #[inline]
    pub(crate) fn term(&self, index: Index) -> Option<Term> {
        if index == self.last.index {
            return Some(self.last.term);
        }
        self.term_below_last(index)
    }

    fn term_below_last(&self, index: Index) -> Option<Term> {
        if index > self.last.index || index < self.base.index {
            return None;
        }
        if index == self.base.index {
            return Some(self.base.term);
        }
        let begun = self.terms.partition_point(|start| start.index <= index);
        self.terms.get(begun.wrapping_sub(1)).map(|start| start.term)
    }

    /// This entry is in the log, or is the last trimmed one.
    pub(crate) fn holds(&self, id: EntryId) -> bool {
        self.term(id.index) == Some(id.term)
    }

    /// The newest entry not after `index` whose term is not above `term`; with term 0 where
    /// its term is unknown. If another log has `term` at `index` and differs there, the two
    /// cannot match between that entry and `index`.
    pub(crate) fn newest_not_above(&self, index: Index, term: Term) -> EntryId {
        if index > self.last.index || index < self.base.index {
            return EntryId::new(0, index);
        }
        let mut index = index;
        for start in self.terms.iter().rev() {
            if start.index > index {
                continue;
            }
            if start.term <= term {
                return EntryId::new(start.term, index);
            }
            index = start.index - 1;
        }
        if self.base.term <= term {
            self.base
        } else {
            EntryId::new(0, index.min(self.base.index).saturating_sub(1))
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, entry: Entry) {
        self.note_term(entry.id);
        self.tail.push(entry);
    }

    /// Appends entries that follow the last one.
    #[inline]
    pub(crate) fn append(&mut self, entries: Entries) {
        let Some(last) = entries.last() else { return };
        if last.id.term == self.last.term && !self.terms.is_empty() {
            self.last = last.id; // Terms never decrease, so all are equal.
        } else {
            entries.iter().for_each(|entry| self.note_term(entry.id));
        }
        self.tail.append(entries);
    }

    /// Truncates a conflicting tail.
    pub(crate) fn truncate(&mut self, from: Index) {
        assert!(
            from > self.commit,
            "a committed entry is never truncated: {from} <= {}",
            self.commit
        );
        let Some(term) = self.term(from - 1) else {
            unreachable!("the truncated part is in the log");
        };
        self.terms.truncate(self.terms.partition_point(|start| start.index < from));
        self.tail.truncate(from);
        self.last = EntryId::new(term, from - 1);
        self.submitted = self.submitted.min(from - 1);
        self.saved = self.saved.min(from - 1);
    }

    /// Drops everything up to here; a snapshot covers it.
    pub(crate) fn trim(&mut self, to: Index) {
        let Some(term) = self.term(to) else { return };
        self.base = EntryId::new(term, to);
        let begun = self.terms.partition_point(|start| start.index <= to);
        self.terms.drain(..begun.saturating_sub(1));
        if let Some(start) = self.terms.first_mut() {
            start.index = start.index.max(to + 1);
            if start.index > self.last.index {
                self.terms.clear();
            } else if self.terms.get(1).is_some_and(|next| next.index <= to + 1) {
                self.terms.remove(0);
            }
        }
        if self.tail.first() <= to {
            self.tail.drop_before(to + 1);
        }
    }

    /// A snapshot replaces the whole log.
    pub(crate) fn restore(&mut self, id: EntryId) {
        self.base = id;
        self.last = id;
        self.terms.clear();
        self.tail = Tail::new(id.index + 1);
        self.submitted = id.index;
        self.saved = id.index;
        self.commit = id.index;
        self.applying = id.index;
        self.batches.clear();
        self.applying_bytes = 0;
        self.apply_full = false;
    }

    /// The entries that no save contains yet.
    pub(crate) fn take_unsaved(&mut self) -> Entries {
        if !self.has_unsaved() {
            return Entries::new();
        }
        let entries = self.tail.range(self.submitted + 1, self.last.index + 1, u64::MAX);
        self.submitted = self.last.index;
        entries
    }

    /// The disk holds the log up to here.
    pub(crate) fn saved_to(&mut self, index: Index) {
        debug_assert!(index <= self.submitted);
        self.saved = self.saved.max(index);
    }

    /// Entries from here on, for a message.
    #[inline]
    pub(crate) fn from(&mut self, index: Index, bytes_max: u64) -> LogRead {
        if index > self.last.index {
            return LogRead::InMemory(Entries::new());
        }
        if index < self.tail.first() {
            return LogRead::OnDisk;
        }
        LogRead::InMemory(self.tail.range(index, self.last.index + 1, bytes_max))
    }

    /// How far entries may be handed to the state machine.
    pub(crate) fn may_apply_to(&self, unsaved_too: bool) -> Index {
        if unsaved_too { self.commit } else { self.commit.min(self.saved) }
    }

    /// There are committed entries to hand to the state machine.
    pub(crate) fn has_to_apply(&self, to: Index) -> bool {
        self.applying < to && !self.apply_full
    }

    /// The next entry for the state machine is no longer in memory.
    pub(crate) fn must_load_to_apply(&self) -> bool {
        self.applying + 1 < self.tail.first()
    }

    /// The next entries for the state machine, not beyond `to` and up to `bytes_max` in
    /// progress, but at least one.
    pub(crate) fn take_to_apply(&mut self, to: Index, bytes_max: u64) -> Entries {
        let left = bytes_max.saturating_sub(self.applying_bytes);
        let entries = self.tail.range(self.applying + 1, to + 1, left);
        self.note_handed_out(&entries, bytes_max);
        self.apply_full |= self.applying < to;
        entries
    }

    /// Loaded entries for the state machine: the next ones, not beyond `to`.
    pub(crate) fn take_loaded(&mut self, loaded: &Entries, to: Index, bytes_max: u64) -> Entries {
        let mut entries = Entries::new();
        for slice in loaded.slices() {
            if let Some(part) = slice.part(self.applying + 1, to + 1) {
                entries.push(part);
            }
        }
        self.note_handed_out(&entries, bytes_max);
        entries
    }

    #[inline]
    fn note_handed_out(&mut self, entries: &Entries, bytes_max: u64) {
        if let Some(last) = entries.last() {
            let bytes = entries.bytes();
            self.applying = last.id.index;
            self.batches.push_back((last.id.index, bytes));
            self.applying_bytes += bytes;
            self.apply_full = self.applying_bytes >= bytes_max;
        }
    }

    pub(crate) fn applied_to(&mut self, index: Index) {
        self.applied = index;
        self.applying = self.applying.max(index);
        self.apply_full = false;
        while let Some((last, bytes)) = self.batches.front()
            && *last <= index
        {
            self.applying_bytes -= bytes;
            self.batches.pop_front();
        }
    }

    pub(crate) fn free_buffers(&mut self) {
        self.batches.shrink_to_fit();
        self.terms.shrink_to_fit();
        self.tail.free_buffers();
    }

    /// Bytes of payload in the entries after `from` up to `to`.
    pub(crate) fn payload_bytes(&self, from: Index, to: Index) -> u64 {
        self.tail.payload_bytes(from + 1, to + 1)
    }

    /// Drops saved and handed-out entries from memory until at most this many bytes are
    /// left.
    pub(crate) fn evict(&mut self, bytes_max: u64) {
        if self.tail.bytes() > bytes_max {
            self.tail.evict(bytes_max, self.saved.min(self.applying));
        }
    }

    /// The entries in memory.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Entry> {
        self.tail.iter()
    }

    pub(crate) fn terms(&self) -> &[EntryId] {
        &self.terms
    }

    pub(crate) fn submitted(&self) -> Index {
        self.submitted
    }

    pub(crate) fn tail_next(&self) -> Index {
        self.tail.next()
    }

    #[inline]
    fn note_term(&mut self, id: EntryId) {
        if self.terms.is_empty() || id.term != self.last.term {
            self.terms.push(id);
        }
        self.last = id;
    }
}

#[cfg(test)]
mod tests;
