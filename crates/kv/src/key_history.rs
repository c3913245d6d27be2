//! The versions of one key that are not compacted.
//!
//! The newest version has everything that a write and most comparisons need. Of older ones only the place of
//! the row is kept: the rest is in the row, which a read of an older version reads anyway.

use std::collections::VecDeque;

use crate::revision::{Revision, RowKey};

/// The revisions of one key that are not compacted. etcd calls the revisions between two
/// tombstones a generation.
#[derive(Clone, Debug)]
pub(crate) struct KeyHistory {
    /// Inline, because most reads need only this version.
    newest: KeyVersion,
    /// What most keys do not have.
    rest: Option<Box<RestOfHistory>>,
}

/// 64 bytes, a line of the processor's cache, unless there are many older versions.
#[derive(Clone, Debug)]
struct RestOfHistory {
    older: OlderVersions,
    /// The lease of the newest version; 0 for none.
    lease: i64,
}

/// The row of one write of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionRow {
    // The parts of a `Revision`, which would be padded.
    main: i64,
    sub: u32,
    /// The bytes of the row, and [`TOMBSTONE_BIT`].
    bytes_and_kind: u32,
}

/// No row has so many bytes.
const TOMBSTONE_BIT: u32 = 1 << 31;

impl VersionRow {
    fn new(at: Revision, row_bytes: u32, is_tombstone: bool) -> Self {
        let kind = if is_tombstone { TOMBSTONE_BIT } else { 0 };
        let bytes_and_kind = row_bytes.min(TOMBSTONE_BIT - 1) | kind;
        Self { main: at.main, sub: at.sub, bytes_and_kind }
    }

    pub(crate) fn at(&self) -> Revision {
        Revision { main: self.main, sub: self.sub }
    }

    pub(crate) fn key(&self) -> RowKey {
        RowKey::revision(self.at())
    }

    /// How many bytes the row counts towards the quota.
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes_and_kind & !TOMBSTONE_BIT
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.bytes_and_kind & TOMBSTONE_BIT != 0
    }
}

/// One write of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyVersion {
    pub(crate) row: VersionRow,
    numbers: VersionNumbers,
}

/// What a put counts; 0 for a tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct VersionNumbers {
    /// The revision that created the key.
    pub(crate) created: i64,
    /// The number of puts since the key was created.
    pub(crate) version: i64,
}

impl KeyVersion {
    pub(crate) fn put(at: Revision, row_bytes: u32, numbers: VersionNumbers) -> Self {
        Self { row: VersionRow::new(at, row_bytes, false), numbers }
    }

    pub(crate) fn tombstone(at: Revision, row_bytes: u32) -> Self {
        Self { row: VersionRow::new(at, row_bytes, true), numbers: VersionNumbers::default() }
    }

    pub(crate) fn numbers(&self) -> VersionNumbers {
        self.numbers
    }
}

/// The newest version of a key that exists, and its lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CurrentVersion {
    pub(crate) version: KeyVersion,
    pub(crate) lease: i64,
}

/// A version of a key that a read sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenVersion {
    pub(crate) row: VersionRow,
    /// `None` for an older version: they are in its row.
    pub(crate) numbers: Option<VersionNumbers>,
}

impl KeyHistory {
    pub(crate) fn new(newest: KeyVersion, lease: i64) -> Self {
        let rest = || Box::new(RestOfHistory { older: OlderVersions::default(), lease });
        Self { newest, rest: (lease != 0).then(rest) }
    }

    fn lease(&self) -> i64 {
        self.rest.as_ref().map_or(0, |rest| rest.lease)
    }

    pub(crate) fn newest(&self) -> KeyVersion {
        self.newest
    }

    pub(crate) fn push(&mut self, version: KeyVersion, lease: i64) {
        let older = std::mem::replace(&mut self.newest, version).row;
        match &mut self.rest {
            Some(rest) => {
                rest.older.push(older);
                rest.lease = lease;
            }
            None => {
                self.rest =
                    Some(Box::new(RestOfHistory { older: OlderVersions::of(older), lease }));
            }
        }
    }

    pub(crate) fn current(&self) -> Option<CurrentVersion> {
        let current = || CurrentVersion { version: self.newest, lease: self.lease() };
        (!self.newest.row.is_tombstone()).then(current)
    }

    /// The version that a read at a revision sees.
    pub(crate) fn at(&self, main: i64) -> Option<SeenVersion> {
        let seen = if self.newest.row.main <= main {
            SeenVersion { row: self.newest.row, numbers: Some(self.newest.numbers) }
        } else {
            SeenVersion { row: self.newest_at(main)?, numbers: None }
        };
        (!seen.row.is_tombstone()).then_some(seen)
    }

    /// The newest write at or before a revision, tombstones included.
    pub(crate) fn newest_at(&self, main: i64) -> Option<VersionRow> {
        if self.newest.row.main <= main {
            return Some(self.newest.row);
        }
        let older = &self.rest.as_ref()?.older;
        let after = older.count_until(|version| version.main <= main);
        after.checked_sub(1).and_then(|position| older.get(position))
    }

    /// The number of versions but the newest.
    pub(crate) fn older_len(&self) -> usize {
        self.rest.as_ref().map_or(0, |rest| rest.older.len())
    }

    /// How many of the oldest versions cannot be read at revision `compact` or later.
    pub(crate) fn superseded(&self, compact: i64) -> usize {
        let Some(seen) = self.newest_at(compact) else { return 0 };
        let before = |version: &VersionRow| version.at() < seen.at();
        let before = self.rest.as_ref().map_or(0, |rest| rest.older.count_until(before));
        before + usize::from(seen.is_tombstone() && seen.main < compact)
    }

    /// Moves this many of the oldest versions, but not the newest, to `removed`.
    pub(crate) fn remove_oldest(&mut self, count: usize, removed: &mut Vec<VersionRow>) {
        let Some(rest) = self.rest.as_mut().filter(|_| count > 0) else { return };
        rest.older.remove_oldest(count, removed);
        if rest.older.len() == 0 && rest.lease == 0 {
            self.rest = None;
        }
    }
}

/// The rows of older versions, oldest first. A queue: compaction removes the oldest ones in steps.
#[derive(Clone, Debug)]
enum OlderVersions {
    /// The first `len` of them.
    Few { len: u8, rows: [VersionRow; FEW_VERSIONS] },
    /// More than [`FEW_VERSIONS`].
    Many(VecDeque<VersionRow>),
}

const FEW_VERSIONS: usize = 3;
const NO_VERSION: VersionRow = VersionRow { main: 0, sub: 0, bytes_and_kind: 0 };

impl Default for OlderVersions {
    fn default() -> Self {
        Self::Few { len: 0, rows: [NO_VERSION; FEW_VERSIONS] }
    }
}

impl OlderVersions {
    fn of(first: VersionRow) -> Self {
        let mut rows = [NO_VERSION; FEW_VERSIONS];
        rows[0] = first;
        Self::Few { len: 1, rows }
    }

    fn as_slices(&self) -> (&[VersionRow], &[VersionRow]) {
        match self {
            Self::Few { len, rows } => (rows.get(..usize::from(*len)).unwrap_or_default(), &[]),
            Self::Many(rows) => rows.as_slices(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Few { len, .. } => usize::from(*len),
            Self::Many(rows) => rows.len(),
        }
    }

    fn get(&self, position: usize) -> Option<VersionRow> {
        match self {
            Self::Few { len, rows } => rows.get(..usize::from(*len))?.get(position).copied(),
            Self::Many(rows) => rows.get(position).copied(),
        }
    }

    /// How many of the first versions satisfy a condition that no version after them does.
    fn count_until(&self, is_before: impl Fn(&VersionRow) -> bool) -> usize {
        let (first, second) = self.as_slices();
        match second.first() {
            Some(row) if is_before(row) => first.len() + second.partition_point(is_before),
            _ => first.partition_point(is_before),
        }
    }

    fn push(&mut self, row: VersionRow) {
        match self {
            Self::Few { len, rows } => match rows.get_mut(usize::from(*len)) {
                Some(free) => {
                    *free = row;
                    *len += 1;
                }
                None => {
                    let mut many = VecDeque::with_capacity(2 * FEW_VERSIONS);
                    many.extend(*rows);
                    many.push_back(row);
                    *self = Self::Many(many);
                }
            },
            Self::Many(rows) => rows.push_back(row),
        }
    }

    fn remove_oldest(&mut self, count: usize, removed: &mut Vec<VersionRow>) {
        let count = count.min(self.len());
        match self {
            Self::Few { len, rows } => {
                removed.extend(rows.iter().take(count));
                rows.rotate_left(count);
                *len -= count as u8;
            }
            Self::Many(rows) => {
                removed.extend(rows.drain(..count));
                let left = rows.len();
                if left <= FEW_VERSIONS {
                    let mut few = Self::default();
                    rows.iter().for_each(|row| few.push(*row));
                    *self = few;
                } else if rows.capacity() > 4 * left {
                    // Not with every step: it copies what is left.
                    rows.shrink_to(left + left / 4);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(main: i64) -> VersionRow {
        VersionRow::new(Revision { main, sub: main as u32 % 3 }, 300 + main as u32, main % 5 == 0)
    }

    #[test]
    fn the_rest_of_a_history_fits_a_line_of_the_cache() {
        assert_eq!(size_of::<RestOfHistory>(), 64);
        assert_eq!(size_of::<KeyHistory>(), 40);
    }

    #[test]
    fn a_row_keeps_its_revision_its_bytes_and_its_kind() {
        for (bytes, is_tombstone) in [(0, false), (17, true), (u32::MAX >> 1, false)] {
            let at = Revision { main: i64::MAX, sub: u32::MAX };
            let row = VersionRow::new(at, bytes, is_tombstone);
            assert_eq!((row.at(), row.bytes()), (at, bytes));
            assert_eq!(row.is_tombstone(), is_tombstone);
        }
        // More than there can be, and still no tombstone.
        assert!(!VersionRow::new(Revision::default(), u32::MAX, false).is_tombstone());
    }

    /// Compares with a plain list, in an order that covers every way to add and remove versions.
    #[test]
    fn older_versions_behave_as_a_list() {
        let mut older = OlderVersions::default();
        let mut list: Vec<VersionRow> = Vec::new();
        let mut number: u64 = 1;
        let mut grows = true;
        for main in 1..20_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(12345);
            let random = (number >> 33) as usize;
            // It grows to many and shrinks to none again and again.
            grows = if list.is_empty() { true } else { grows && list.len() < random % 90 };
            if grows || random.is_multiple_of(4) {
                older.push(row(main));
                list.push(row(main));
            } else {
                let count = random % 5;
                let mut removed = Vec::new();
                older.remove_oldest(count, &mut removed);
                let expected: Vec<_> = list.drain(..count.min(list.len())).collect();
                assert_eq!(removed, expected);
            }
            let (first, second) = older.as_slices();
            assert_eq!([first, second].concat(), list);
            assert_eq!(older.len(), list.len());
            assert_eq!(matches!(older, OlderVersions::Few { .. }), list.len() <= FEW_VERSIONS);
            let position = random % (list.len() + 1);
            assert_eq!(older.get(position), list.get(position).copied());
            let until = list.get(position).map_or(i64::MAX, |row| row.main);
            let found = older.count_until(|row| row.main < until);
            assert_eq!(found, list.partition_point(|row| row.main < until));
        }
    }

    #[test]
    fn memory_of_removed_versions_is_freed() {
        let mut older = OlderVersions::default();
        (0..10_000).for_each(|main| older.push(row(main)));
        older.remove_oldest(9_900, &mut Vec::new());
        let OlderVersions::Many(rows) = &older else { panic!("{older:?}") };
        assert!(rows.capacity() < 400, "{}", rows.capacity());
    }
}
