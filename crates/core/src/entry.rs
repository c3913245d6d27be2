//! Entries of the log, and shared runs of them.
//!
//! An entry is created once, on the leader; after that only reference counts change: the
//! log, the save, each peer's append and the apply all hold slices of the same block.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;

use crate::membership::LoggedChange;
use crate::{EntryId, Index, Term};

/// One entry of the replicated log.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Its term and index.
    pub id: EntryId,
    /// Its content.
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
    /// An entry with a command.
    pub fn command(term: Term, index: Index, command: impl Into<Bytes>) -> Self {
        Self { id: EntryId::new(term, index), payload: Payload::Command(command.into()) }
    }

    /// What the entry costs in a message: its payload and its id.
    pub fn bytes(&self) -> u64 {
        self.payload.bytes() + ENTRY_OVERHEAD_BYTES
    }

    /// The membership change in this entry, if it is one.
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
#[derive(Clone)]
pub struct Entries(Slices);

/// Most runs are one slice, which is then stored in place.
#[derive(Clone)]
enum Slices {
    One(Slice),
    /// Any other number; none for no entries.
    Other(Option<Box<SliceList>>),
}

#[derive(Clone)]
struct SliceList(Vec<Slice>);

/// A part of one block. Never empty.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    block: Arc<[Entry]>,
    /// The index of the first entry.
    first: Index,
    bytes: u64,
    from: u32,
    to: u32,
}

impl Entries {
    /// No entries.
    pub const fn new() -> Self {
        Self(Slices::Other(None))
    }

    /// Whether there are no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Slices::Other(None))
    }

    /// The number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Slices::One(slice) => slice.len(),
            Slices::Other(_) => self.slices().iter().map(Slice::len).sum(),
        }
    }

    /// Total cost as [`Entry::bytes`] counts it.
    #[inline]
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Slices::One(slice) => slice.bytes,
            Slices::Other(_) => self.slices().iter().map(Slice::bytes).sum(),
        }
    }

    /// The entry with the lowest index.
    #[inline]
    pub fn first(&self) -> Option<&Entry> {
        self.slices().first().map(Slice::first)
    }

    /// The entry with the highest index.
    #[inline]
    pub fn last(&self) -> Option<&Entry> {
        self.slices().last().map(Slice::last)
    }

    /// The entries in order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.slices().iter().flat_map(|slice| slice.entries().iter())
    }

    /// The entries as contiguous slices, for writers.
    pub fn chunks(&self) -> impl Iterator<Item = &[Entry]> {
        self.slices().iter().map(Slice::entries)
    }

    #[inline]
    pub(crate) fn slices(&self) -> &[Slice] {
        match &self.0 {
            Slices::One(slice) => std::slice::from_ref(slice),
            Slices::Other(None) => &[],
            Slices::Other(Some(list)) => &list.0,
        }
    }

    /// Moves the slices to the end of a queue.
    #[inline]
    pub(crate) fn move_into(self, queue: &mut VecDeque<Slice>) {
        match self.0 {
            Slices::One(slice) => queue.push_back(slice),
            Slices::Other(None) => {}
            Slices::Other(Some(list)) => queue.extend(list.0),
        }
    }

    pub(crate) fn push(&mut self, slice: Slice) {
        match &mut self.0 {
            Slices::Other(None) => self.0 = Slices::One(slice),
            Slices::Other(Some(list)) => list.0.push(slice),
            Slices::One(first) => {
                let list = SliceList(vec![first.clone(), slice]);
                self.0 = Slices::Other(Some(Box::new(list)));
            }
        }
    }
}

impl Default for Entries {
    fn default() -> Self {
        Self::new()
    }
}

impl From<Slice> for Entries {
    #[inline]
    fn from(slice: Slice) -> Self {
        Self(Slices::One(slice))
    }
}

impl Slice {
    pub(crate) fn new(entries: impl Iterator<Item = Entry>, bytes: u64) -> Option<Self> {
        let block: Arc<[Entry]> = entries.collect();
        let first = block.first()?.id.index;
        let to = u32::try_from(block.len()).unwrap_or(u32::MAX);
        Some(Self { block, first, bytes, from: 0, to })
    }

    #[inline]
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.block[self.from as usize..self.to as usize]
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        (self.to - self.from) as usize
    }

    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.bytes - ENTRY_OVERHEAD_BYTES * self.len() as u64
    }

    #[inline]
    pub(crate) fn first(&self) -> &Entry {
        &self.block[self.from as usize]
    }

    #[inline]
    pub(crate) fn last(&self) -> &Entry {
        &self.block[self.to as usize - 1]
    }

    #[inline]
    pub(crate) fn first_index(&self) -> Index {
        self.first
    }

    #[inline]
    pub(crate) fn last_index(&self) -> Index {
        self.first + u64::from(self.to - self.from) - 1
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
        part.first = from;
        part.from = self.from + (from - first) as u32;
        part.to = self.from + (to - first) as u32;
        part.bytes = part.entries().iter().map(Entry::bytes).sum();
        Some(part)
    }
}

impl From<Vec<Entry>> for Entries {
    fn from(entries: Vec<Entry>) -> Self {
        let bytes = entries.iter().map(Entry::bytes).sum();
        Slice::new(entries.into_iter(), bytes).map_or_else(Self::new, Self::from)
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
