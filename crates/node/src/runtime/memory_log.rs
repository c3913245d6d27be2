//! A log in memory, for [`MemoryStorage`](crate::MemoryStorage). Check with
//! `is_continued_by` before a write.

use std::ops::Range;

use quorate_core::{Boot, Entries, Entry, EntryId, HardState, Index, Save, SnapshotMeta, Term};

/// Term and vote, and consecutive entries.
#[derive(Clone, Default)]
pub(crate) struct MemoryLog {
    hard_state: HardState,
    /// The entry before the first one.
    base: EntryId,
    entries: Vec<Entry>,
}

impl MemoryLog {
    /// An empty log after this entry.
    pub(crate) fn after(base: EntryId, hard_state: HardState) -> Self {
        Self { hard_state, base, entries: Vec::new() }
    }

    pub(crate) fn last(&self) -> EntryId {
        self.entries.last().map_or(self.base, |entry| entry.id)
    }

    fn term(&self, index: Index) -> Option<Term> {
        match index.checked_sub(self.base.index)? {
            0 => Some(self.base.term),
            nth => self.entries.get(nth as usize - 1).map(|entry| entry.id.term),
        }
    }

    pub(crate) fn holds(&self, id: EntryId) -> bool {
        self.term(id.index) == Some(id.term)
    }

    /// Whether the entries of a save are consecutive and continue the log.
    pub(crate) fn is_continued_by(&self, save: &Save) -> bool {
        let Some(first) = save.entries.first() else { return true };
        let Some(index) = first.id.index.checked_sub(1) else { return false };
        let before = match &save.install {
            Some(meta) => (meta.id.index == index).then_some(meta.id.term),
            None => self.term(index),
        };
        let Some(term) = before else { return false };
        let mut before = EntryId::new(term, index);
        save.entries.iter().all(|entry| {
            let follows = entry.id.index == before.index + 1 && entry.id.term >= before.term;
            before = entry.id;
            follows
        })
    }

    pub(crate) fn apply(&mut self, save: &Save) {
        self.hard_state = save.hard_state.unwrap_or(self.hard_state);
        if let Some(meta) = &save.install {
            self.base = meta.id;
            self.entries.clear();
        }
        if let Some(first) = save.entries.first() {
            self.entries.truncate((first.id.index - self.base.index) as usize - 1);
            self.entries.extend(save.entries.iter().cloned());
        }
    }

    pub(crate) fn load(&self, range: Range<Index>, bytes_max: u64) -> Entries {
        let Some(skipped) = range.start.checked_sub(self.base.index + 1) else {
            return Entries::new();
        };
        let mut bytes = 0;
        let within = |entry: &&Entry| {
            let fits = entry.id.index < range.end && (bytes == 0 || bytes < bytes_max);
            bytes += entry.bytes();
            fits
        };
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        self.entries.iter().skip(skipped).take_while(within).cloned().collect()
    }

    pub(crate) fn trim(&mut self, index: Index) {
        if let Some(term) = self.term(index) {
            self.entries.drain(..(index - self.base.index) as usize);
            self.base = EntryId::new(term, index);
        }
    }

    pub(crate) fn boot(&self, snapshot: SnapshotMeta) -> Boot {
        Boot {
            hard_state: self.hard_state,
            base: self.base,
            tail: self.entries.clone().into(),
            applied: snapshot.id.index,
            snapshot,
            ..Boot::default()
        }
    }
}
