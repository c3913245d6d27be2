//! I2: logs that hold the same entry are equal up to it.
//!
//! Checked entry by entry: the same id means the same payload and the same id before it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use quorate_core::{Entry, EntryId, MemberId, Payload, Term};

use super::{Checked, ensure};
use crate::cluster::LogView;

/// Every entry that was ever logged.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntryRegister {
    entries: HashMap<EntryId, RegisteredEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegisteredEntry {
    payload: u64,
    /// The term of the entry before it.
    before: Term,
}

impl EntryRegister {
    /// A member logs an entry after one of term `before`.
    pub(crate) fn log(&mut self, member: MemberId, entry: &Entry, before: Term) -> Checked {
        let logged = RegisteredEntry { payload: payload_hash(entry), before };
        let first = *self.entries.entry(entry.id).or_insert(logged);
        ensure(first == logged, "I2", || {
            format!("{member} holds {entry:?} after term {before}, another log has a different one")
        })
    }

    /// The hash of an entry's payload; 0 of an entry that was never logged.
    pub(crate) fn payload(&self, id: EntryId) -> u64 {
        self.entries.get(&id).map_or(0, |entry| entry.payload)
    }
}

/// I2 for two whole logs.
pub fn logs_match(a: (MemberId, &LogView), b: (MemberId, &LogView)) -> Checked {
    let mut register = EntryRegister::default();
    for (member, log) in [a, b] {
        let mut before = log.base.term;
        for entry in &log.entries {
            register.log(member, entry, before)?;
            before = entry.id.term;
        }
    }
    Ok(())
}

pub(crate) fn payload_hash(entry: &Entry) -> u64 {
    let mut hasher = DefaultHasher::new();
    match &entry.payload {
        Payload::Command(command) => command.hash(&mut hasher),
        Payload::Change(change) => change.hash(&mut hasher),
    }
    hasher.finish()
}
