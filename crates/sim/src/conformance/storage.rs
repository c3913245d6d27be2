//! What a member of a trace has on its disk: the saved log.

use quorate_core::{Entries, Entry, EntryId, Index, SnapshotMeta};

use super::notation;

#[derive(Default)]
pub(super) struct TraceStorage {
    /// What stands before the first entry: zero, a snapshot or a trimmed entry.
    base: EntryId,
    entries: Vec<Entry>,
}

impl TraceStorage {
    pub(super) fn new(base: EntryId) -> Self {
        Self { base, entries: Vec::new() }
    }

    fn first_index(&self) -> Index {
        self.base.index + 1
    }

    fn last_index(&self) -> Index {
        self.base.index + self.entries.len() as u64
    }

    /// Saves entries over whatever stood from their first index on.
    pub(super) fn append(&mut self, entries: &Entries) -> Result<(), String> {
        for entry in entries.iter() {
            let index = entry.id.index;
            if index <= self.base.index {
                continue; // Trimmed since it was handed out.
            }
            if index > self.last_index() + 1 {
                let last = self.last_index();
                return Err(format!("asked to save entry {} after index {last}", entry.id));
            }
            self.entries.truncate((index - self.first_index()) as usize);
            self.entries.push(entry.clone());
        }
        Ok(())
    }

    pub(super) fn install(&mut self, snapshot: &SnapshotMeta) {
        *self = Self::new(snapshot.id);
    }

    /// Drops the entries up to and including `index`.
    pub(super) fn trim(&mut self, index: Index) -> Result<(), TrimError> {
        if index <= self.base.index {
            return Err(TrimError::Trimmed);
        }
        if index > self.last_index() {
            return Err(TrimError::BeyondLog { last: self.last_index() });
        }
        let count = (index - self.base.index) as usize;
        if let Some(last) = self.entries.drain(..count).next_back() {
            self.base = last.id;
        }
        Ok(())
    }

    pub(super) fn lines(&self) -> Vec<String> {
        if self.entries.is_empty() {
            let (first, last) = (self.first_index(), self.last_index());
            return vec![format!("log is empty: first index={first}, last index={last}")];
        }
        self.entries.iter().map(notation::entry).collect()
    }
}

/// Why the log cannot be trimmed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrimError {
    Trimmed,
    BeyondLog { last: Index },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saving_replaces_and_trimming_drops() {
        let mut storage = TraceStorage::new(EntryId::new(1, 10));
        assert_eq!(storage.lines(), ["log is empty: first index=11, last index=10"]);
        let entries = |term, indexes: std::ops::Range<u64>| -> Entries {
            indexes.map(|index| Entry::command(term, index, "")).collect()
        };
        storage.append(&entries(1, 11..14)).unwrap();
        storage.append(&entries(2, 12..13)).unwrap();
        assert_eq!(storage.lines(), ["1/11 EntryNormal \"\"", "2/12 EntryNormal \"\""]);
        assert!(storage.append(&entries(2, 14..15)).is_err());
        assert_eq!(storage.trim(13), Err(TrimError::BeyondLog { last: 12 }));
        storage.trim(11).unwrap();
        assert_eq!(storage.trim(11), Err(TrimError::Trimmed));
        assert_eq!(storage.lines(), ["2/12 EntryNormal \"\""]);
    }
}
