//! I2: logs that hold the same entry are equal up to it.
//!
//! Checked entry by entry: the same id implies the same payload and the same previous id.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use quorate_core::{Entry, EntryId, MemberId, Payload, Term};

use super::{Checked, ensure};
use crate::cluster::LogView;

/// All entries logged so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntryRegister {
    entries: HashMap<EntryId, RegisteredEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegisteredEntry {
    payload: u64,
    /// The term of the previous entry.
    previous: Term,
}

impl EntryRegister {
    /// A member logs an entry whose previous entry has term `previous`.
    pub(crate) fn log(&mut self, member: MemberId, entry: &Entry, previous: Term) -> Checked {
        let logged = RegisteredEntry { payload: payload_hash(entry), previous };
        let first = *self.entries.entry(entry.id).or_insert(logged);
        ensure(first == logged, "I2", || {
            format!(
                "{member} holds {entry:?} after term {previous}, another log has a different entry"
            )
        })
    }

    /// The hash of an entry's payload; 0 if the entry was never logged.
    pub(crate) fn payload(&self, id: EntryId) -> u64 {
        self.entries.get(&id).map_or(0, |entry| entry.payload)
    }
}

/// I2 for two whole logs.
pub fn logs_match(a: (MemberId, &LogView), b: (MemberId, &LogView)) -> Checked {
    let mut register = EntryRegister::default();
    for (member, log) in [a, b] {
        let mut previous = log.base.term;
        for entry in &log.entries {
            register.log(member, entry, previous)?;
            previous = entry.id.term;
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
