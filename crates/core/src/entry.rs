//! Entries of the log, and shared runs of them.
//!
//! An entry is created once, on the leader; after that only reference counts change: the
//! log, the save, each peer's append and the apply all hold slices of the same block.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;

use crate::membership::LoggedChange;
use crate::{EntryId, Index, Term};

/// One entry of the replicated log.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    pub id: EntryId,
    pub payload: Payload,
}

/// The content of an entry.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Payload {
    /// A command for the state machine. Empty for the first entry of a leader's term.
    Command(Bytes),
    /// A membership change, with the membership that results from it.
    Change(Arc<LoggedChange>),
}

impl Payload {
    /// The bytes that count against limits on uncommitted data.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Command(command) => command.len() as u64,
            Self::Change(change) => change.bytes(),
        }
    }
}

impl Entry {
    pub fn command(term: Term, index: Index, command: impl Into<Bytes>) -> Self {
        Self { id: EntryId::new(term, index), payload: Payload::Command(command.into()) }
    }

    /// What the entry costs in a message: its payload and its id.
    pub fn bytes(&self) -> u64 {
        self.payload.bytes() + ENTRY_OVERHEAD_BYTES
    }

    pub fn change(&self) -> Option<&Arc<LoggedChange>> {
        match &self.payload {
            Payload::Change(change) => Some(change),
            Payload::Command(_) => None,
        }
    }
}

/// Every entry counts as at least this many bytes, so that a limit in bytes also
/// bounds the number of empty entries.
pub(crate) const ENTRY_OVERHEAD_BYTES: u64 = 16;

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.payload {
            Payload::Command(command) => write!(f, "{} {:?}", self.id, command),
            Payload::Change(change) => write!(f, "{} {}", self.id, change.change),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(command) => write!(f, "{command:?}"),
            Self::Change(change) => write!(f, "{}", change.change),
        }
    }
}

/// Consecutive entries, shared by reference. They consist of slices of larger blocks;
/// equality and hash depend on the entries only, not on the slices.
#[derive(Clone, Default)]
pub struct Entries {
    first: Option<Slice>,
    rest: Vec<Slice>,
}

/// A part of one block. Never empty.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    block: Arc<[Entry]>,
    from: u32,
    to: u32,
    bytes: u64,
}

impl Entries {
    pub const fn new() -> Self {
        Self { first: None, rest: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub fn len(&self) -> usize {
        self.slices().map(Slice::len).sum()
    }

    /// Total cost as [`Entry::bytes`] counts it.
    pub fn bytes(&self) -> u64 {
        self.slices().map(|slice| slice.bytes).sum()
    }

    pub fn first(&self) -> Option<&Entry> {
        self.first.as_ref().map(Slice::first)
    }

    pub fn last(&self) -> Option<&Entry> {
        self.rest.last().or(self.first.as_ref()).map(Slice::last)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.slices().flat_map(|slice| slice.entries().iter())
    }

    /// The entries as contiguous slices, for writers.
    pub fn chunks(&self) -> impl Iterator<Item = &[Entry]> {
        self.slices().map(Slice::entries)
    }

    pub(crate) fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.first.iter().chain(&self.rest)
    }

    pub(crate) fn into_slices(self) -> impl Iterator<Item = Slice> {
        self.first.into_iter().chain(self.rest)
    }

    pub(crate) fn push(&mut self, slice: Slice) {
        if self.first.is_none() {
            self.first = Some(slice);
        } else {
            self.rest.push(slice);
        }
    }
}

impl Slice {
    pub(crate) fn new(entries: impl Iterator<Item = Entry>, bytes: u64) -> Option<Self> {
        let block: Arc<[Entry]> = entries.collect();
        if block.is_empty() {
            return None;
        }
        let to = u32::try_from(block.len()).unwrap_or(u32::MAX);
        Some(Self { block, from: 0, to, bytes })
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.block[self.from as usize..self.to as usize]
    }

    pub(crate) fn len(&self) -> usize {
        (self.to - self.from) as usize
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn payload_bytes(&self) -> u64 {
        self.bytes - ENTRY_OVERHEAD_BYTES * self.len() as u64
    }

    pub(crate) fn first(&self) -> &Entry {
        &self.block[self.from as usize]
    }

    pub(crate) fn last(&self) -> &Entry {
        &self.block[self.to as usize - 1]
    }

    pub(crate) fn first_index(&self) -> Index {
        self.first().id.index
    }

    pub(crate) fn last_index(&self) -> Index {
        self.last().id.index
    }

    /// The part with indexes in `from..to`, or none where they do not overlap.
    pub(crate) fn part(&self, from: Index, to: Index) -> Option<Self> {
        let first = self.first_index();
        if from <= first && to > self.last_index() {
            return Some(self.clone());
        }
        let from = from.max(first);
        let to = to.min(self.last_index() + 1);
        if from >= to {
            return None;
        }
        let mut part = self.clone();
        part.from = self.from + (from - first) as u32;
        part.to = self.from + (to - first) as u32;
        part.bytes = part.entries().iter().map(Entry::bytes).sum();
        Some(part)
    }
}

impl From<Vec<Entry>> for Entries {
    fn from(entries: Vec<Entry>) -> Self {
        let bytes = entries.iter().map(Entry::bytes).sum();
        Self { first: Slice::new(entries.into_iter(), bytes), rest: Vec::new() }
    }
}

impl FromIterator<Entry> for Entries {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        entries.into_iter().collect::<Vec<_>>().into()
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Entries {}

impl Hash for Entries {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.len());
        self.iter().for_each(|entry| entry.hash(state));
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
