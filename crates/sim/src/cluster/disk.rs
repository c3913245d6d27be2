//! A member's disk as a value: what is left when the process has ended.

use quorate_core::{
    Boot, Entries, Entry, EntryId, HardState, Index, Membership, Save, SnapshotMeta, Term,
};

/// Log, hard state, snapshot, and how far the state machine has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DiskState {
    pub hard_state: HardState,
    pub snapshot: SnapshotMeta,
    pub log: LogView,
    /// The state machine keeps its own count, as durable as its data.
    pub applied: Index,
}

/// A log, or what is left of it after `base`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogView {
    /// The entry before the first one held.
    pub base: EntryId,
    pub entries: Vec<Entry>,
}

impl LogView {
    pub fn last(&self) -> EntryId {
        self.entries.last().map_or(self.base, |entry| entry.id)
    }

    pub fn entry(&self, index: Index) -> Option<&Entry> {
        let offset = index.checked_sub(self.base.index + 1)?;
        self.entries.get(usize::try_from(offset).ok()?)
    }

    pub fn id_at(&self, index: Index) -> Option<EntryId> {
        if index == self.base.index {
            return Some(self.base);
        }
        self.entry(index).map(|entry| entry.id)
    }
}

impl DiskState {
    /// The disk that a member with all of its log in memory starts from.
    pub fn of_boot(boot: &Boot) -> Self {
        Self {
            hard_state: boot.hard_state,
            snapshot: boot.snapshot.clone(),
            log: LogView { base: boot.base, entries: boot.tail.iter().cloned().collect() },
            applied: boot.applied,
        }
    }

    /// The first start of a cluster: the membership stands at 1.1, in a snapshot.
    pub(crate) fn first(membership: Membership, term: Term) -> Self {
        let hard_state = HardState { term, commit: 1, ..HardState::default() };
        Self { hard_state, ..Self::of_boot(&Boot::first(membership)) }
    }

    /// What a restarting member reads. Only the newest `tail` entries are handed
    /// over, but at least one, where such a limit is given.
    pub(crate) fn boot(&self, tail: Option<usize>) -> Boot {
        let entries = &self.log.entries;
        let kept = tail.unwrap_or(entries.len()).max(1).min(entries.len());
        let (old, newest) = entries.split_at(entries.len() - kept);
        let mut terms: Vec<EntryId> = Vec::new();
        for entry in old {
            if terms.last().is_none_or(|last| last.term < entry.id.term) {
                terms.push(entry.id);
            }
        }
        let changes = old.iter().filter(|entry| entry.id.index > self.snapshot.id.index);
        let memberships = changes
            .filter_map(|entry| Some((entry.id, entry.change()?.membership.clone())))
            .collect();
        Boot {
            hard_state: self.hard_state,
            snapshot: self.snapshot.clone(),
            base: self.log.base,
            terms,
            memberships,
            tail: newest.iter().cloned().collect(),
            applied: self.applied,
        }
    }

    /// Writes a save: snapshot, then entries, then hard state.
    pub(crate) fn write(&mut self, save: &Save) {
        if let Some(meta) = &save.install {
            self.install(meta);
        }
        if let Some(first) = save.entries.first() {
            self.cut_from(first.id.index);
            self.log.entries.extend(save.entries.iter().cloned());
        }
        if let Some(hard_state) = save.hard_state {
            self.hard_state = hard_state;
        }
    }

    fn install(&mut self, meta: &SnapshotMeta) {
        self.snapshot = meta.clone();
        self.log = LogView { base: meta.id, entries: Vec::new() };
        self.applied = self.applied.max(meta.id.index);
    }

    fn cut_from(&mut self, index: Index) {
        self.log.entries.retain(|entry| entry.id.index < index);
    }

    /// The entries that a write of these would replace by others.
    pub(crate) fn replaced_by(&self, entries: &Entries) -> Vec<Entry> {
        let Some(first) = entries.first() else { return Vec::new() };
        let stays = |old: &Entry| entries.iter().any(|new| new.id == old.id);
        let from = |old: &&Entry| old.id.index >= first.id.index;
        self.log.entries.iter().filter(from).filter(|old| !stays(old)).cloned().collect()
    }

    pub(crate) fn trim(&mut self, to: Index) {
        let log = &mut self.log;
        if let Some(id) = log.id_at(to).filter(|id| id.index > log.base.index) {
            log.entries.retain(|entry| entry.id.index > to);
            log.base = id;
        }
    }

    /// Entries from `range`, one at least, up to about `bytes_max`.
    pub(crate) fn read(&self, from: Index, to: Index, bytes_max: u64) -> Entries {
        let mut bytes = 0;
        let entries = (from..to).map_while(|index| self.log.entry(index));
        let fits = entries.take_while(|entry| {
            let fits = bytes == 0 || bytes + entry.bytes() <= bytes_max;
            bytes += entry.bytes();
            fits
        });
        fits.cloned().collect()
    }
}
