//! The newest entries of the log, in memory, as shared slices.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use crate::entry::Slice;
use crate::pack::pack_fields;
use crate::{Entries, Entry, Index};

/// A run of entries without gaps. New proposals are collected in `open` and become one
/// shared block when they are first read: one allocation for a whole batch of proposals.
#[derive(Clone, Debug)]
pub(super) struct Tail {
    /// The index of the oldest entry held, or of the next one.
    first: Index,
    slices: VecDeque<Slice>,
    open: Vec<Entry>,
    open_bytes: u64,
    /// The bytes of all entries held.
    bytes: u64,
}

pack_fields!(Tail { first, slices, bytes } unset { open, open_bytes });

impl Tail {
    pub(super) fn new(first: Index) -> Self {
        Self { first, slices: VecDeque::new(), open: Vec::new(), open_bytes: 0, bytes: 0 }
    }

    pub(super) fn first(&self) -> Index {
        self.first
    }

    /// The index after the newest entry held.
    pub(super) fn next(&self) -> Index {
        self.open_first() + self.open.len() as u64
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    pub(super) fn push(&mut self, entry: Entry) {
        debug_assert_eq!(entry.id.index, self.next());
        let bytes = entry.bytes();
        self.open_bytes += bytes;
        self.bytes += bytes;
        self.open.push(entry);
    }

    #[inline]
    pub(super) fn append(&mut self, entries: Entries) {
        self.seal();
        debug_assert!(entries.first().is_none_or(|first| first.id.index == self.next()));
        self.bytes += entries.bytes();
        entries.move_into(&mut self.slices);
    }

    /// Entries from `from` up to but not including `to`, up to `bytes_max` but at least one
    /// entry.
    #[inline(always)]
    pub(super) fn range(&mut self, from: Index, to: Index, bytes_max: u64) -> Entries {
        if !self.open.is_empty() && to > self.open_first() {
            self.seal();
        }
        // Usually the newest slice is read, and all of it: what was appended last.
        if let Some(newest) = self.slices.back()
            && newest.first_index() == from
            && newest.last_index() < to
            && newest.bytes() <= bytes_max
        {
            return newest.clone().into();
        }
        self.range_of_slices(from, to, bytes_max)
    }

    fn range_of_slices(&self, from: Index, to: Index, bytes_max: u64) -> Entries {
        let mut entries = Entries::new();
        let mut left = bytes_max;
        for slice in self.slices_from(from) {
            let Some(part) = slice.part(from, to) else { break };
            if part.bytes() <= left {
                left -= part.bytes();
                entries.push(part);
                continue;
            }
            let to = fitting(&part, left, entries.is_empty());
            if let Some(part) = part.part(from, to) {
                entries.push(part);
            }
            break;
        }
        entries
    }

    /// Bytes of payload in `from..to`, as far as they are held.
    #[inline]
    pub(super) fn payload_bytes(&self, from: Index, to: Index) -> u64 {
        match self.slices.back() {
            Some(newest) if newest.first_index() == from && newest.last_index() + 1 == to => {
                newest.payload_bytes()
            }
            _ => self.payload_bytes_of_slices(from, to),
        }
    }

    fn payload_bytes_of_slices(&self, from: Index, to: Index) -> u64 {
        let mut bytes = 0;
        for slice in self.slices_from(from).take_while(|slice| slice.first_index() < to) {
            bytes += if from <= slice.first_index() && slice.last_index() < to {
                slice.payload_bytes()
            } else {
                slice.part(from, to).map_or(0, |part| part.payload_bytes())
            };
        }
        let open = self.open.iter().filter(|entry| from <= entry.id.index && entry.id.index < to);
        bytes + open.map(|entry| entry.payload.bytes()).sum::<u64>()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.slices.iter().flat_map(|slice| slice.entries()).chain(&self.open)
    }

    /// Drops the entries from here on.
    pub(super) fn truncate(&mut self, from: Index) {
        if from <= self.first {
            *self = Self::new(from);
            return;
        }
        self.seal();
        while let Some(slice) = self.slices.pop_back() {
            self.bytes -= slice.bytes();
            if let Some(part) = slice.part(0, from) {
                self.bytes += part.bytes();
                self.slices.push_back(part);
                break;
            }
        }
    }

    /// Drops the entries before this one.
    pub(super) fn drop_before(&mut self, index: Index) {
        if index >= self.next() {
            *self = Self::new(index);
            return;
        }
        self.seal();
        while self.first < index {
            let Some(slice) = self.slices.pop_front() else { break };
            self.bytes -= slice.bytes();
            self.first = slice.last_index() + 1;
            if let Some(part) = slice.part(index, Index::MAX) {
                self.first = index;
                self.bytes += part.bytes();
                self.slices.push_front(part);
            }
        }
    }

    /// Drops whole slices from the front until at most `bytes_max` are held, but none with
    /// entries above `limit`.
    pub(super) fn evict(&mut self, bytes_max: u64, limit: Index) {
        while self.bytes > bytes_max {
            match self.slices.front() {
                Some(slice) if slice.last_index() <= limit => {
                    self.bytes -= slice.bytes();
                    self.first = slice.last_index() + 1;
                    self.slices.pop_front();
                }
                _ => break,
            }
        }
    }

    /// Frees what is not used. The slots of a long log are not worth a copy.
    pub(super) fn free_buffers(&mut self) {
        const FEW: usize = 16;
        self.open.shrink_to_fit();
        if self.slices.len() <= FEW {
            self.slices.shrink_to_fit();
        }
    }

    fn open_first(&self) -> Index {
        self.slices.back().map_or(self.first, |slice| slice.last_index() + 1)
    }

    /// Turns the open entries into a shared block.
    fn seal(&mut self) {
        if !self.open.is_empty() {
            let bytes = std::mem::take(&mut self.open_bytes);
            self.slices.extend(Slice::new(self.open.drain(..), bytes));
        }
    }

    /// The slices from the one that contains `from` on.
    fn slices_from(&self, from: Index) -> impl Iterator<Item = &Slice> {
        let before = |slice: &Slice| slice.last_index() < from;
        let count = self.slices.len();
        let at = match self.slices.get(count.wrapping_sub(2)) {
            Some(slice) if before(slice) => count - 1,
            _ => self.slices.partition_point(before),
        };
        self.slices.range(at..)
    }
}

/// The index before which entries of this part still fit into `left` bytes.
fn fitting(part: &Slice, mut left: u64, one_at_least: bool) -> Index {
    for (at, entry) in part.entries().iter().enumerate() {
        if entry.bytes() > left && !(one_at_least && at == 0) {
            return entry.id.index;
        }
        left = left.saturating_sub(entry.bytes());
    }
    part.last_index() + 1
}

impl PartialEq for Tail {
    fn eq(&self, other: &Self) -> bool {
        self.first == other.first && self.next() == other.next() && self.iter().eq(other.iter())
    }
}

impl Eq for Tail {}

impl Hash for Tail {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.first.hash(state);
        self.next().hash(state);
        self.iter().for_each(|entry| entry.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: Index) -> Entry {
        Entry::command(1, index, vec![0; 4])
    }

    fn filled(first: Index, last: Index) -> Tail {
        let mut tail = Tail::new(first);
        for index in first..=last {
            tail.push(entry(index));
            if index % 3 == 0 {
                tail.seal();
            }
        }
        tail
    }

    fn indexes(entries: &Entries) -> Vec<Index> {
        entries.iter().map(|entry| entry.id.index).collect()
    }

    #[test]
    fn range_stops_at_both_ends_and_at_the_limit() {
        let mut tail = filled(5, 20);
        assert_eq!(indexes(&tail.range(7, 12, u64::MAX)), vec![7, 8, 9, 10, 11]);
        let one = entry(5).bytes();
        assert_eq!(indexes(&tail.range(7, 12, one * 3)), vec![7, 8, 9]);
        assert_eq!(indexes(&tail.range(7, 12, 1)), vec![7]);
        assert_eq!(indexes(&tail.range(20, 21, u64::MAX)), vec![20]);
        assert!(tail.range(21, 30, u64::MAX).is_empty());
    }

    #[test]
    fn truncating_keeps_the_byte_count() {
        for first in 1..8 {
            for cut in 1..24 {
                let mut tail = filled(first, 20);
                tail.truncate(cut);
                let sum: u64 = tail.iter().map(Entry::bytes).sum();
                assert_eq!(tail.bytes(), sum);
                assert_eq!(tail.next(), cut.min(21));
                let mut tail = filled(first, 20);
                tail.drop_before(cut.max(first));
                let sum: u64 = tail.iter().map(Entry::bytes).sum();
                assert_eq!(tail.bytes(), sum);
                assert_eq!(tail.first(), cut.max(first));
                assert_eq!(tail.next(), 21.max(cut));
            }
        }
    }

    #[test]
    fn slicing_does_not_show_in_equality() {
        let mut whole = Tail::new(1);
        whole.append((1..=9).map(entry).collect());
        assert_eq!(whole, filled(1, 9));
        assert_ne!(whole, filled(1, 8));
    }

    #[test]
    fn eviction_stops_at_the_limit() {
        let mut tail = filled(1, 12);
        tail.evict(0, 7);
        assert_eq!(tail.first(), 7);
        tail.evict(0, 12);
        assert_eq!((tail.first(), tail.bytes()), (13, 0));
    }
}
