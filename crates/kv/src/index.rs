//! Which keys there are, and at which revisions each of them was written.
//!
//! Kept in memory and made again from the rows when a table is opened. Values are in
//! the table; the index knows where.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;

use crate::command::KeyRange;
use crate::revision::Revision;
use crate::small_key::SmallKey;

#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    keys: BTreeMap<SmallKey, History>,
}

/// The revisions of one key that are not compacted away. Between two tombstones lies
/// what etcd calls a generation.
#[derive(Clone, Debug)]
struct History {
    /// In place, because most questions are about it alone.
    newest: Version,
    /// Oldest first.
    older: Vec<Version>,
    /// Of the newest version.
    lease: i64,
}

/// One write of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) at: Revision,
    /// What its row counts towards the quota.
    pub(crate) row_bytes: u32,
    pub(crate) created: i64,
    /// How often the key was put since it was created; 0 for a tombstone.
    pub(crate) version: i64,
}

impl Version {
    fn is_tombstone(&self) -> bool {
        self.version == 0
    }
}

/// The newest version of a key that exists, and its lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    pub(crate) version: Version,
    pub(crate) lease: i64,
}

impl History {
    fn new(newest: Version, lease: i64) -> Self {
        Self { newest, older: Vec::new(), lease }
    }

    fn push(&mut self, version: Version, lease: i64) {
        self.older.push(std::mem::replace(&mut self.newest, version));
        self.lease = lease;
    }

    fn current(&self) -> Option<Current> {
        let Self { newest, lease, .. } = *self;
        (!newest.is_tombstone()).then_some(Current { version: newest, lease })
    }

    /// The newest write at or before a revision, tombstones included.
    fn newest_at(&self, main: i64) -> Option<Version> {
        if self.newest.at.main <= main {
            return Some(self.newest);
        }
        let after = self.older.partition_point(|version| version.at.main <= main);
        after.checked_sub(1).and_then(|place| self.older.get(place)).copied()
    }

    /// How many of the oldest versions are of no use from `compact` on.
    fn superseded(&self, compact: i64) -> usize {
        let Some(seen) = self.newest_at(compact) else { return 0 };
        let before = self.older.partition_point(|version| version.at < seen.at);
        before + usize::from(seen.is_tombstone() && seen.at.main < compact)
    }
}

impl Index {
    /// Notes a write, which is newer than all before it.
    pub(crate) fn add(&mut self, key: &[u8], version: Version, lease: i64) {
        if let Some(history) = self.keys.get_mut(key) {
            history.push(version, lease);
        } else {
            self.keys.insert(key.into(), History::new(version, lease));
        }
    }

    /// Notes a write, and says what it follows.
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        lease: i64,
        make: impl FnOnce(Option<Current>) -> Version,
    ) -> Option<Current> {
        if let Some(history) = self.keys.get_mut(key) {
            let current = history.current();
            history.push(make(current), lease);
            return current;
        }
        self.keys.insert(key.into(), History::new(make(None), lease));
        None
    }

    pub(crate) fn current(&self, key: &[u8]) -> Option<Current> {
        self.keys.get(key)?.current()
    }

    /// The version of a key that is seen at a revision.
    pub(crate) fn at(&self, key: &[u8], main: i64) -> Option<Version> {
        self.keys.get(key)?.newest_at(main).filter(|version| !version.is_tombstone())
    }

    /// All keys of a range as they are seen at a revision, in order.
    pub(crate) fn range<'a>(
        &'a self,
        keys: &'a KeyRange,
        main: i64,
    ) -> impl Iterator<Item = (&'a [u8], Version)> {
        // Finding both ends of a range costs twice as much as finding one key.
        let one = if keys.is_single() { self.keys.get_key_value(&keys.key[..]) } else { None };
        let bounds = if keys.is_single() { None } else { keys.bounds() };
        let several = bounds.map(|bounds| self.keys.range::<[u8], _>(bounds));
        one.into_iter().chain(several.into_iter().flatten()).filter_map(move |(key, history)| {
            let version = history.newest_at(main).filter(|version| !version.is_tombstone())?;
            Some((key.borrow(), version))
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether compaction at `compact` leaves the write of a key that was made at `at`:
    /// the one that is read there, or a later one.
    pub(crate) fn outlives(&self, key: &[u8], at: Revision, compact: i64) -> bool {
        let seen = || self.keys.get(key).and_then(|history| history.newest_at(compact));
        at.main > compact || seen().is_some_and(|seen| seen.at == at && !seen.is_tombstone())
    }

    /// Forgets versions that nobody can read at `compact` or later, of the keys from
    /// `from` on, until `work_max` keys and versions were looked at. Answers the
    /// versions, and the key to go on with.
    ///
    /// A tombstone at the very revision stays: a watch may begin there.
    pub(crate) fn compact(
        &mut self,
        from: &[u8],
        compact: i64,
        work_max: usize,
    ) -> (Vec<Version>, Option<Box<[u8]>>) {
        let mut removed = Vec::new();
        let mut empty = Vec::new();
        let mut next = None;
        let range = (Bound::Included(from), Bound::Unbounded);
        for (keys_seen, (key, history)) in self.keys.range_mut::<[u8], _>(range).enumerate() {
            let Some(left) = work_max.checked_sub(keys_seen + removed.len()).filter(|n| *n > 0)
            else {
                next = Some(Borrow::<[u8]>::borrow(key).into());
                break;
            };
            let superseded = history.superseded(compact);
            let of_older = superseded.min(history.older.len());
            removed.extend(history.older.drain(..of_older.min(left)));
            if superseded > left {
                next = Some(Borrow::<[u8]>::borrow(key).into());
                break;
            }
            if superseded > of_older {
                removed.push(history.newest);
                empty.push(key.clone());
            }
        }
        for key in empty {
            self.keys.remove(&key);
        }
        (removed, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(main: i64, version: i64) -> Version {
        Version { at: Revision { main, sub: 0 }, row_bytes: 1, created: 1, version }
    }

    /// Put at 2 and 4, deleted at 6, put at 8, deleted at 10.
    fn index() -> Index {
        let mut index = Index::default();
        for (main, number) in [(2, 1), (4, 2), (6, 0), (8, 1), (10, 0)] {
            index.add(b"k", version(main, number), 0);
        }
        index
    }

    fn kept(compact: i64) -> Vec<i64> {
        let mut index = index();
        let (_, next) = index.compact(b"", compact, 100);
        assert_eq!(next, None);
        let history = index.keys.remove(&b"k"[..]);
        let versions = history.into_iter().flat_map(|mut history| {
            history.older.push(history.newest);
            history.older
        });
        versions.map(|version| version.at.main).collect()
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
    fn compaction_in_steps_comes_to_the_same() {
        for work_max in 1..6 {
            let mut index = index();
            index.add(b"l", version(11, 1), 0);
            let mut from: Box<[u8]> = Box::default();
            let mut removed = Vec::new();
            loop {
                let (some, next) = index.compact(&from, 11, work_max);
                assert!(some.len() <= work_max);
                removed.extend(some.iter().map(|version| version.at.main));
                let Some(next) = next else { break };
                from = next;
            }
            assert_eq!(removed, [2, 4, 6, 8, 10]);
            assert_eq!(index.len(), 1);
        }
    }

    #[test]
    fn what_is_seen_at_each_revision() {
        let index = index();
        let seen = |main| index.at(b"k", main).map(|version| version.at.main);
        let all: Vec<_> = (1..12).map(seen).collect();
        let expected =
            [None, Some(2), Some(2), Some(4), Some(4), None, None, Some(8), Some(8), None, None];
        assert_eq!(all, expected);
        assert!(index.current(b"k").is_none());
    }
}
