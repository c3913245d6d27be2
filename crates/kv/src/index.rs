//! The index: all keys, and the revisions at which each of them was written.
//!
//! Kept in memory and rebuilt from the rows when a table is opened. Values stay in the
//! table; the index holds the revisions under which they are stored.

use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};

use bytes::Bytes;

use crate::command::KeyRange;
use crate::key_blocks::{AfterVisit, KeyBlocks};
use crate::packed_keys::KeyRef;
use crate::revision::Revision;

#[derive(Clone, Debug, Default)]
pub(crate) struct KeyIndex {
    keys: KeyBlocks,
}

/// The revisions of one key that are not compacted. etcd calls the revisions between two
/// tombstones a generation.
#[derive(Clone, Debug)]
pub(crate) struct KeyHistory {
    /// Inline, because most reads need only this version.
    newest: KeyVersion,
    /// What most keys do not have.
    rest: Option<Box<RestOfHistory>>,
}

#[derive(Clone, Debug, Default)]
struct RestOfHistory {
    /// Oldest first. A queue: compaction removes the oldest ones in steps.
    older: VecDeque<KeyVersion>,
    /// The lease of the newest version; 0 for none.
    lease: i64,
}

static NO_VERSIONS: VecDeque<KeyVersion> = VecDeque::new();

/// One write of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyVersion {
    // The parts of a `Revision`, which would be padded.
    main: i64,
    sub: u32,
    /// How many bytes its row counts towards the quota.
    pub(crate) row_bytes: u32,
    pub(crate) created: i64,
    /// The number of puts since the key was created; 0 for a tombstone.
    pub(crate) version: i64,
}

impl KeyVersion {
    pub(crate) fn put(at: Revision, row_bytes: u32, created: i64, version: i64) -> Self {
        Self { main: at.main, sub: at.sub, row_bytes, created, version }
    }

    pub(crate) fn tombstone(at: Revision, row_bytes: u32) -> Self {
        Self::put(at, row_bytes, 0, 0)
    }

    pub(crate) fn at(&self) -> Revision {
        Revision { main: self.main, sub: self.sub }
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.version == 0
    }
}

/// The newest version of a key that exists, and its lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CurrentVersion {
    pub(crate) version: KeyVersion,
    pub(crate) lease: i64,
}

impl KeyHistory {
    pub(crate) fn new(newest: KeyVersion, lease: i64) -> Self {
        let rest = || Box::new(RestOfHistory { lease, ..Default::default() });
        Self { newest, rest: (lease != 0).then(rest) }
    }

    fn older(&self) -> &VecDeque<KeyVersion> {
        self.rest.as_ref().map_or(&NO_VERSIONS, |rest| &rest.older)
    }

    fn lease(&self) -> i64 {
        self.rest.as_ref().map_or(0, |rest| rest.lease)
    }

    /// Moves this many of the oldest versions, but not the newest, to `removed`.
    fn remove_oldest(&mut self, count: usize, removed: &mut Vec<KeyVersion>) {
        let Some(rest) = self.rest.as_mut().filter(|_| count > 0) else { return };
        removed.extend(rest.older.drain(..count.min(rest.older.len())));
        // Not with every step: it copies what is left.
        let left = rest.older.len();
        if rest.older.capacity() > 4 * left {
            rest.older.shrink_to(left + left / 4);
        }
        if left == 0 && rest.lease == 0 {
            self.rest = None;
        }
    }

    pub(crate) fn newest(&self) -> KeyVersion {
        self.newest
    }

    pub(crate) fn push(&mut self, version: KeyVersion, lease: i64) {
        let older = std::mem::replace(&mut self.newest, version);
        let rest = self.rest.get_or_insert_default();
        if rest.older.is_empty() {
            // The first allocation would otherwise have room for four.
            rest.older.reserve_exact(1);
        }
        rest.older.push_back(older);
        rest.lease = lease;
    }

    pub(crate) fn current(&self) -> Option<CurrentVersion> {
        let Self { newest, .. } = *self;
        let current = || CurrentVersion { version: newest, lease: self.lease() };
        (!newest.is_tombstone()).then(current)
    }

    /// The version that a read at a revision sees.
    pub(crate) fn at(&self, main: i64) -> Option<KeyVersion> {
        self.newest_at(main).filter(|version| !version.is_tombstone())
    }

    /// The newest write at or before a revision, tombstones included.
    fn newest_at(&self, main: i64) -> Option<KeyVersion> {
        if self.newest.main <= main {
            return Some(self.newest);
        }
        let older = self.older();
        let after = older.partition_point(|version| version.main <= main);
        after.checked_sub(1).and_then(|position| older.get(position)).copied()
    }

    /// How many of the oldest versions cannot be read at revision `compact` or later.
    fn superseded(&self, compact: i64) -> usize {
        let Some(seen) = self.newest_at(compact) else { return 0 };
        let before = self.older().partition_point(|version| version.at() < seen.at());
        before + usize::from(seen.is_tombstone() && seen.main < compact)
    }
}

impl KeyIndex {
    /// Records a write and returns the version that it replaces. It must be newer than all
    /// earlier writes of the key.
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        lease: i64,
        make: impl FnOnce(Option<CurrentVersion>) -> KeyVersion,
    ) -> Option<CurrentVersion> {
        self.keys.put(key, lease, make)
    }

    /// Records a deletion of each key of a range that exists, in order. `make` returns the
    /// tombstone.
    pub(crate) fn delete_range(
        &mut self,
        keys: &KeyRange,
        make: impl FnMut(KeyRef<'_>, CurrentVersion) -> KeyVersion,
    ) {
        if let Some(bounds) = keys.bounds() {
            self.keys.push_each(bounds, make);
        }
    }

    pub(crate) fn current(&self, key: &[u8]) -> Option<CurrentVersion> {
        self.keys.get(key)?.current()
    }

    /// The version of a key that a read at revision `main` sees.
    pub(crate) fn at(&self, key: &[u8], main: i64) -> Option<KeyVersion> {
        self.keys.get(key)?.at(main)
    }

    /// Visits the keys of a range that a read at revision `main` sees, in order, from the key
    /// `from` on. Stops when `visit` breaks or `work` is used up: each key takes one, deleted
    /// ones too. Returns the key to continue with; `None` at the end of the range.
    pub(crate) fn scan<B>(
        &self,
        keys: &KeyRange,
        from: &[u8],
        main: i64,
        work: &mut usize,
        mut visit: impl FnMut(KeyRef<'_>, KeyVersion) -> ControlFlow<B>,
    ) -> ScanEnd<B> {
        // A range lookup searches both ends and costs twice as much as a single key.
        if keys.is_single() {
            *work = work.saturating_sub(1);
            if let Some(version) = self.at(&keys.key, main)
                && let ControlFlow::Break(stopped) = visit(KeyRef::from(&keys.key[..]), version)
            {
                return ScanEnd::Stopped(stopped);
            }
            return ScanEnd::Complete;
        }
        let Some((_, end)) = keys.bounds() else { return ScanEnd::Complete };
        for (key, history) in self.keys.range((Bound::Included(from), end)) {
            if *work == 0 {
                return ScanEnd::Next(key.to_bytes());
            }
            *work -= 1;
            if let Some(version) = history.at(main)
                && let ControlFlow::Break(stopped) = visit(key, version)
            {
                return ScanEnd::Stopped(stopped);
            }
        }
        ScanEnd::Complete
    }

    /// Counts the keys of a range that a read at revision `main` sees, from the key `from` on.
    /// Stops when `work` is used up, and returns the key to continue with.
    pub(crate) fn count(
        &self,
        keys: &KeyRange,
        from: &[u8],
        main: i64,
        work: &mut usize,
    ) -> (usize, Option<Bytes>) {
        if keys.is_single() {
            *work = work.saturating_sub(1);
            return (usize::from(self.at(&keys.key, main).is_some()), None);
        }
        let Some((_, end)) = keys.bounds() else { return (0, None) };
        let bounds = (Bound::Included(from), end);
        let mut found = 0;
        let mut blocks = self.keys.blocks_from(from).peekable();
        let mut is_first = true;
        while let Some((name, block)) = blocks.next() {
            if is_past(end, name) {
                break;
            }
            if *work == 0 {
                let is_after = name.cmp_key(from).is_gt();
                let next = if is_after { name.to_bytes() } else { Bytes::copy_from_slice(from) };
                return (found, Some(next));
            }
            // The keys of a block are below the name of the next one. A block between others is
            // counted without looking at its keys.
            let has_next = blocks.peek().is_some_and(|(next, _)| !is_past(end, *next));
            let count = if has_next && !is_first {
                block.count_all(main)
            } else {
                block.count(bounds, main)
            };
            is_first = false;
            found += count.keys;
            *work = work.saturating_sub(count.visited);
        }
        (found, None)
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether compaction at `compact` keeps the write of `key` at revision `at`: the
    /// version that a read at `compact` sees, and all later ones, are kept.
    pub(crate) fn outlives(&self, key: &[u8], at: Revision, compact: i64) -> bool {
        let seen = || self.keys.get(key).and_then(|history| history.newest_at(compact));
        at.main > compact || seen().is_some_and(|seen| seen.at() == at && !seen.is_tombstone())
    }

    /// Drops versions that no read at `compact` or later can see. Starts at the key `from`
    /// and stops after visiting `work_max` keys and versions. Returns the dropped versions
    /// and the key to continue with.
    ///
    /// A tombstone at revision `compact` itself is kept: a watch may start there.
    pub(crate) fn compact(
        &mut self,
        from: &[u8],
        compact: i64,
        work_max: usize,
    ) -> (Vec<KeyVersion>, Option<Box<[u8]>>) {
        let mut removed = Vec::new();
        let mut keys_seen = 0;
        let mut next = None;
        self.keys.visit_from(from, |key, history| {
            let work_left = work_max.saturating_sub(keys_seen + removed.len());
            if work_left == 0 {
                next = Some(key.to_vec().into());
                return AfterVisit::Stop;
            }
            keys_seen += 1;
            let superseded = history.superseded(compact);
            let of_older = superseded.min(history.older().len());
            history.remove_oldest(of_older.min(work_left), &mut removed);
            if superseded > work_left {
                next = Some(key.to_vec().into());
                return AfterVisit::Stop;
            }
            if superseded > of_older {
                removed.push(history.newest);
                return AfterVisit::Remove;
            }
            AfterVisit::Keep
        });
        (removed, next)
    }
}

/// How a scan ended.
pub(crate) enum ScanEnd<B> {
    /// All keys of the range were visited.
    Complete,
    /// The work was used up; continue with this key.
    Next(Bytes),
    /// The visitor stopped it.
    Stopped(B),
}

fn is_past(end: Bound<&[u8]>, key: KeyRef<'_>) -> bool {
    match end {
        Bound::Included(end) => key.cmp_key(end).is_gt(),
        Bound::Excluded(end) => key.cmp_key(end).is_ge(),
        Bound::Unbounded => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(main: i64, version: i64) -> KeyVersion {
        KeyVersion::put(Revision { main, sub: 0 }, 1, 1, version)
    }

    /// Put at 2 and 4, deleted at 6, put at 8, deleted at 10.
    fn index() -> KeyIndex {
        let mut index = KeyIndex::default();
        for (main, number) in [(2, 1), (4, 2), (6, 0), (8, 1), (10, 0)] {
            index.put(b"k", 0, |_| version(main, number));
        }
        index
    }

    fn kept(compact: i64) -> Vec<i64> {
        let mut index = index();
        let (_, next) = index.compact(b"", compact, 100);
        assert_eq!(next, None);
        let Some(history) = index.keys.get(b"k") else { return Vec::new() };
        let versions = history.older().iter().chain([&history.newest]);
        versions.map(|version| version.main).collect()
    }

    #[test]
    fn compaction_keeps_what_is_read_and_a_tombstone_at_its_revision() {
        assert_eq!(kept(1), [2, 4, 6, 8, 10]);
        assert_eq!(kept(2), [2, 4, 6, 8, 10]);
        assert_eq!(kept(5), [4, 6, 8, 10]);
        assert_eq!(kept(6), [6, 8, 10]);
        assert_eq!(kept(7), [8, 10]);
        assert_eq!(kept(9), [8, 10]);
        assert_eq!(kept(10), [10]);
        assert_eq!(kept(11), [0i64; 0]);
    }

    #[test]
    fn compaction_in_steps_equals_compaction_at_once() {
        for work_max in 1..6 {
            let mut index = index();
            index.put(b"l", 0, |_| version(11, 1));
            let mut from: Box<[u8]> = Box::default();
            let mut removed = Vec::new();
            loop {
                let (some, next) = index.compact(&from, 11, work_max);
                assert!(some.len() <= work_max);
                removed.extend(some.iter().map(|version| version.main));
                let Some(next) = next else { break };
                from = next;
            }
            assert_eq!(removed, [2, 4, 6, 8, 10]);
            assert_eq!(index.len(), 1);
        }
    }

    #[test]
    fn each_revision_shows_its_newest_version() {
        let index = index();
        let seen = |main| index.at(b"k", main).map(|version| version.main);
        let all: Vec<_> = (1..12).map(seen).collect();
        let expected =
            [None, Some(2), Some(2), Some(4), Some(4), None, None, Some(8), Some(8), None, None];
        assert_eq!(all, expected);
        assert!(index.current(b"k").is_none());
    }
}
