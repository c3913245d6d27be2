//! What one member has durably: hard state, log, snapshot, and how far its state
//! machine is.

use std::sync::Arc;

use quorate_core::{
    Boot, Entries, Entry, EntryId, HardState, Index, Load, Membership, Save, SnapshotMeta,
};

#[derive(Clone)]
pub(crate) struct Disk {
    pub(crate) hard_state: HardState,
    pub(crate) snapshot: SnapshotMeta,
    pub(crate) base: EntryId,
    pub(crate) entries: Vec<Entry>,
    pub(crate) applied: Index,
}

impl Disk {
    pub(crate) fn new(boot: &Boot) -> Self {
        Self {
            hard_state: boot.hard_state,
            snapshot: boot.snapshot.clone(),
            base: boot.base,
            entries: boot.tail.iter().cloned().collect(),
            applied: boot.applied,
        }
    }

    pub(crate) fn entry(&self, index: Index) -> Option<&Entry> {
        let at = index.checked_sub(self.base.index + 1)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    pub(crate) fn last(&self) -> EntryId {
        self.entries.last().map_or(self.base, |entry| entry.id)
    }

    pub(crate) fn save(&mut self, save: &Save) {
        if let Some(meta) = &save.install {
            self.snapshot = meta.clone();
            self.base = meta.id;
            self.entries.clear();
            self.applied = meta.id.index;
        }
        if let Some(first) = save.entries.first() {
            let keep = first.id.index - self.base.index - 1;
            assert!(keep <= self.entries.len() as u64, "a save leaves a gap");
            self.entries.truncate(keep as usize);
            self.entries.extend(save.entries.iter().cloned());
        }
        if let Some(hard_state) = save.hard_state {
            assert!(hard_state.term >= self.hard_state.term, "the saved term fell");
            self.hard_state = hard_state;
        }
    }

    pub(crate) fn trim(&mut self, index: Index) {
        assert!(index <= self.snapshot.id.index, "trimmed beyond the snapshot");
        if index > self.base.index
            && let Some(entry) = self.entry(index)
        {
            let id = entry.id;
            self.entries.drain(..(index - self.base.index) as usize);
            self.base = id;
        }
    }

    pub(crate) fn load(&self, load: &Load) -> Entries {
        let mut bytes = 0;
        let mut found = Vec::new();
        for index in load.range.clone() {
            let Some(entry) = self.entry(index) else { break };
            bytes += entry.bytes();
            if bytes > load.bytes_max && !found.is_empty() {
                break;
            }
            found.push(entry.clone());
        }
        found.into()
    }

    /// What a start finds. Only part of the log is given as the tail, so that the
    /// rest has to be loaded.
    pub(crate) fn boot(&self) -> Boot {
        let held = self.entries.len() / 2;
        let below = &self.entries[..held];
        let mut terms: Vec<EntryId> = Vec::new();
        for entry in below {
            if terms.last().is_none_or(|start| start.term != entry.id.term) {
                terms.push(entry.id);
            }
        }
        let memberships: Vec<(EntryId, Arc<Membership>)> = below
            .iter()
            .filter_map(|entry| entry.change().map(|change| (entry.id, change.membership.clone())))
            .filter(|(id, _)| id.index > self.snapshot.id.index)
            .collect();
        Boot {
            hard_state: HardState {
                commit: self.hard_state.commit.min(self.last().index),
                ..self.hard_state
            },
            snapshot: self.snapshot.clone(),
            base: self.base,
            terms,
            memberships,
            tail: self.entries[held..].iter().cloned().collect(),
            applied: self.applied,
        }
    }
}
