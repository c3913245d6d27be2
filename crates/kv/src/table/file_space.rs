//! Which parts of a file are unused.

use std::collections::{BTreeMap, BTreeSet};

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) length: u64,
}

/// Allocates the smallest unused extent that is large enough, or at the end of the file.
#[derive(Debug, Default)]
pub(super) struct FileSpace {
    end: u64,
    /// The length of each unused extent by its start. No two touch each other or the end.
    by_start: BTreeMap<u64, u64>,
    /// The same by length.
    by_length: BTreeSet<(u64, u64)>,
}

/// Only whole pages of the file can be returned to the file system.
const PAGE_BYTES: u64 = 4 << 10;

impl FileSpace {
    /// Whether an extent for this many bytes is only at the end of the file.
    pub(super) fn needs_growth(&self, bytes: u64) -> bool {
        self.smallest_unused(in_pages(bytes)).is_none()
    }

    fn smallest_unused(&self, length: u64) -> Option<(u64, u64)> {
        self.by_length.range((length, 0)..).next().copied()
    }

    /// An extent for this many bytes, in whole pages.
    pub(super) fn allocate(&mut self, bytes: u64) -> Extent {
        let length = in_pages(bytes);
        let Some((unused_length, start)) = self.smallest_unused(length) else {
            let start = self.end;
            self.end += length;
            return Extent { start, length };
        };
        self.remove(start, unused_length);
        if unused_length > length {
            self.insert(start + length, unused_length - length);
        }
        Extent { start, length }
    }

    /// Returns the new end of the file if it is shorter now.
    pub(super) fn free(&mut self, extent: Extent) -> Option<u64> {
        let Extent { mut start, mut length } = extent;
        if let Some((&before, &before_length)) = self.by_start.range(..start).next_back()
            && before + before_length == start
        {
            self.remove(before, before_length);
            (start, length) = (before, before_length + length);
        }
        if let Some(&after_length) = self.by_start.get(&(start + length)) {
            self.remove(start + length, after_length);
            length += after_length;
        }
        if start + length == self.end {
            self.end = start;
            return Some(start);
        }
        self.insert(start, length);
        None
    }

    fn insert(&mut self, start: u64, length: u64) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

fn in_pages(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(PAGE_BYTES)
}

/// In order, those that touch each other as one.
pub(super) fn joined(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.sort_unstable_by_key(|extent| extent.start);
    extents.dedup_by(|next, before| {
        let touches = before.start + before.length == next.start;
        if touches {
            before.length += next.length;
        }
        touches
    });
    extents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_that_touch_are_joined() {
        let extents = |list: &[(u64, u64)]| -> Vec<Extent> {
            list.iter().map(|&(start, length)| Extent { start, length }).collect()
        };
        let freed = extents(&[(20, 5), (0, 4), (30, 1), (8, 2), (4, 4), (25, 4)]);
        assert_eq!(joined(freed), extents(&[(0, 10), (20, 9), (30, 1)]));
        assert_eq!(joined(Vec::new()), []);
    }

    /// Compares with a list of used pages.
    #[test]
    fn used_extents_do_not_overlap_and_unused_space_is_used_again() {
        let mut space = FileSpace::default();
        let mut used: Vec<Extent> = Vec::new();
        let mut number = 1u64;
        for _ in 0..5_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(12_345);
            if number >> 60 & 1 == 0 || used.is_empty() {
                let bytes = number >> 40 & 0xffff;
                let (end, grows) = (space.end, space.needs_growth(bytes));
                let extent = space.allocate(bytes);
                assert_eq!(grows, space.end > end);
                assert!(extent.length >= bytes && extent.start + extent.length <= space.end);
                let overlaps = |other: &&Extent| {
                    extent.start < other.start + other.length
                        && other.start < extent.start + extent.length
                };
                assert_eq!(used.iter().find(overlaps), None);
                used.push(extent);
                if used.len() < 100 {
                    continue;
                }
            }
            let freed = used.swap_remove((number >> 33) as usize % used.len());
            let end = space.free(freed);
            assert!(end.is_none_or(|end| end == space.end));
            let unused: u64 = space.by_start.values().sum();
            assert_eq!(space.end, unused + used.iter().map(|one| one.length).sum::<u64>());
            assert_eq!(space.by_start.len(), space.by_length.len());
        }
        assert!(space.end < (3 * 100 * 64) << 10, "{}", space.end);
        for extent in used {
            let _ = space.free(extent);
        }
        assert_eq!((space.end, space.by_start.len()), (0, 0));
    }
}
