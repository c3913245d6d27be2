//! The index: all keys, and the revisions at which each of them was written.
//!
//! Kept in memory and rebuilt from the rows when a table is opened. Values stay in the
//! table; the index holds the revisions under which they are stored.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};

use bytes::Bytes;

use crate::command::KeyRange;
use crate::key_blocks::{AfterVisit, KeyBlocks, KeyPlace, SEARCHED_AT_ONCE};
use crate::key_history::{CurrentVersion, KeyHistory, KeyVersion, SeenVersion, VersionRow};
use crate::packed_keys::KeyRef;
use crate::revision::Revision;

#[derive(Clone, Debug, Default)]
pub(crate) struct KeyIndex {
    keys: KeyBlocks,
}

/// Finds the keys of one command. Most commands name the same key several times: it is searched once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyFinder {
    /// Where the last key was found. It may have moved since.
    last: Option<KeyPlace>,
}

/// Finders of the next commands, by the index of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct PreparedFinders(VecDeque<(u64, KeyFinder)>);

impl PreparedFinders {
    /// The finder of this command. Those of earlier ones are dropped.
    pub(crate) fn take(&mut self, index: u64) -> KeyFinder {
        while let Some((prepared, _)) = self.0.front() {
            match prepared.cmp(&index) {
                Ordering::Less => self.0.pop_front(),
                Ordering::Equal => {
                    return self.0.pop_front().map(|(_, finder)| finder).unwrap_or_default();
                }
                Ordering::Greater => break,
            };
        }
        KeyFinder::default()
    }
}

impl KeyIndex {
    /// Searches the first keys of several commands at once: these searches wait for memory together.
    pub(crate) fn prepare(&self, keys: &[(u64, &[u8])], prepared: &mut PreparedFinders) {
        prepared.0.clear();
        for keys in keys.chunks(SEARCHED_AT_ONCE) {
            let places = self.keys.places_of(keys.iter().map(|(_, key)| *key));
            let finders =
                keys.iter().zip(places).map(|((index, _), last)| (*index, KeyFinder { last }));
            prepared.0.extend(finders);
        }
    }

    /// Records a write and returns the version that it replaces. It must be newer than all
    /// earlier writes of the key.
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        finder: &mut KeyFinder,
        lease: i64,
        make: impl FnOnce(Option<CurrentVersion>) -> KeyVersion,
    ) -> Option<CurrentVersion> {
        match finder.last.filter(|place| self.keys.is_at(*place, key)) {
            Some(place) => self.keys.push(place, lease, make),
            None => self.keys.put(key, lease, make),
        }
    }

    /// The history of a key, and its place for the next search of the same key.
    pub(crate) fn find(&self, key: &[u8], finder: &mut KeyFinder) -> Option<&KeyHistory> {
        if !finder.last.is_some_and(|place| self.keys.is_at(place, key)) {
            finder.last = self.keys.place_of(key);
        }
        self.keys.at(finder.last?)
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
    pub(crate) fn at(&self, key: &[u8], main: i64) -> Option<SeenVersion> {
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
        mut visit: impl FnMut(KeyRef<'_>, SeenVersion) -> ControlFlow<B>,
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
    ) -> (Vec<VersionRow>, Option<Box<[u8]>>) {
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
            let of_older = superseded.min(history.older_len());
            history.remove_oldest(of_older.min(work_left), &mut removed);
            if superseded > work_left {
                next = Some(key.to_vec().into());
                return AfterVisit::Stop;
            }
            if superseded > of_older {
                removed.push(history.newest().row);
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

    use crate::key_history::VersionNumbers;

    fn version(main: i64, version: i64) -> KeyVersion {
        let at = Revision { main, sub: 0 };
        match version {
            0 => KeyVersion::tombstone(at, 1),
            _ => KeyVersion::put(at, 1, VersionNumbers { created: 1, version }),
        }
    }

    /// Put at 2 and 4, deleted at 6, put at 8, deleted at 10.
    fn index() -> KeyIndex {
        let mut index = KeyIndex::default();
        for (main, number) in [(2, 1), (4, 2), (6, 0), (8, 1), (10, 0)] {
            index.put(b"k", &mut KeyFinder::default(), 0, |_| version(main, number));
        }
        index
    }

    fn kept(compact: i64) -> Vec<i64> {
        let mut index = index();
        let (_, next) = index.compact(b"", compact, 100);
        assert_eq!(next, None);
        let Some(history) = index.keys.get(b"k") else { return Vec::new() };
        let mut kept: Vec<_> = (1..12).filter_map(|main| history.newest_at(main)).collect();
        kept.dedup();
        kept.iter().map(|row| row.at().main).collect()
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
            index.put(b"l", &mut KeyFinder::default(), 0, |_| version(11, 1));
            let mut from: Box<[u8]> = Box::default();
            let mut removed = Vec::new();
            loop {
                let (some, next) = index.compact(&from, 11, work_max);
                assert!(some.len() <= work_max);
                removed.extend(some.iter().map(|row| row.at().main));
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
        let seen = |main| index.at(b"k", main).map(|seen| seen.row.at().main);
        let all: Vec<_> = (1..12).map(seen).collect();
        let expected =
            [None, Some(2), Some(2), Some(4), Some(4), None, None, Some(8), Some(8), None, None];
        assert_eq!(all, expected);
        assert!(index.current(b"k").is_none());
    }

    /// A place that is found again after keys were added around it is never that of another key.
    #[test]
    fn a_finder_finds_the_same_key_wherever_it_moves() {
        let mut index = KeyIndex::default();
        let mut finder = KeyFinder::default();
        let mut number: u64 = 1;
        for main in 1..3_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(12345);
            let key = format!("{:04}", number >> 33 & 0x3ff);
            let found = index.find(key.as_bytes(), &mut finder).map(KeyHistory::newest);
            assert_eq!(found, index.keys.get(key.as_bytes()).map(KeyHistory::newest));
            // Another key is searched now and then between finding a key and writing it.
            if number >> 20 & 3 == 0 {
                index.find(b"0500", &mut finder);
            }
            let old = index.put(key.as_bytes(), &mut finder, 0, |_| version(main, 1));
            assert_eq!(old.map(|old| old.version), found);
            let written = index.keys.get(key.as_bytes()).map(|history| history.newest().row.at());
            assert_eq!(written, Some(Revision { main, sub: 0 }));
            if main % 500 == 0 {
                // Removes keys whose newest version is old.
                index.keys.visit_from(b"", |_, history| match history.newest().row.at().main {
                    old if old < main - 400 => AfterVisit::Remove,
                    _ => AfterVisit::Keep,
                });
            }
        }
    }
}
