//! Permissions on keys, and the union of the ranges that a user may read or write.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::{BufMut, Bytes, BytesMut};

use crate::command::KeyRange;

/// What a role may do with the keys of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// Whether it allows reads, writes or both.
    pub mode: PermissionMode,
    /// The keys. A permission on a single key has an empty `range_end`, one on all keys from a
    /// key on has `"\0"`.
    pub keys: KeyRange,
}

/// What a [`Permission`] allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PermissionMode {
    /// Reads and watches.
    Read,
    /// Puts and deletions.
    Write,
    /// Both.
    ReadWrite,
}

/// How a request uses keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyUse {
    /// It reads them.
    Read,
    /// It writes them.
    Write,
}

impl PermissionMode {
    /// Whether this use is allowed.
    pub fn allows(self, key_use: KeyUse) -> bool {
        match key_use {
            KeyUse::Read => matches!(self, Self::Read | Self::ReadWrite),
            KeyUse::Write => matches!(self, Self::Write | Self::ReadWrite),
        }
    }
}

impl Permission {
    /// Whether the range is one that a permission may have: a key, and an end behind it.
    pub fn is_valid(&self) -> bool {
        let KeyRange { key, range_end } = &self.keys;
        !key.is_empty() && (range_end.is_empty() || is_open(range_end) || key < range_end)
    }
}

/// Whether this end means "all keys from the first one on".
fn is_open(range_end: &[u8]) -> bool {
    range_end == [0]
}

/// A set of keys, as sorted ranges that neither overlap nor touch.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct KeyRanges {
    ranges: Vec<HalfOpenRange>,
}

/// From `begin` up to, but not including, `end`. No end is the end of all keys.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HalfOpenRange {
    begin: Bytes,
    end: Option<Bytes>,
}

impl KeyRanges {
    /// The union of these ranges, which must be valid.
    pub(crate) fn union<'a>(ranges: impl Iterator<Item = &'a KeyRange>) -> Self {
        let mut all: Vec<HalfOpenRange> = ranges.map(HalfOpenRange::of).collect();
        all.sort_by(|one, other| one.begin.cmp(&other.begin));
        let mut union: Vec<HalfOpenRange> = Vec::with_capacity(all.len());
        for next in all {
            match union.last_mut() {
                Some(last) if last.reaches(&next.begin) => {
                    if !ends_by(next.end.as_ref(), last.end.as_ref()) {
                        last.end = next.end;
                    }
                }
                _ => union.push(next),
            }
        }
        Self { ranges: union }
    }

    /// Whether every key of this range is in the set. An empty range is in it if its first key
    /// is and its end is not before the range that contains the key, as in etcd.
    pub(crate) fn contain(&self, key: &[u8], range_end: &[u8]) -> bool {
        let Some(range) = self.range_of(key) else { return false };
        if range_end.is_empty() {
            return true;
        }
        if is_open(range_end) {
            return range.end.is_none();
        }
        let ends_within = range.end.as_ref().is_none_or(|end| *range_end <= end[..]);
        ends_within && range.begin[..] < *range_end
    }

    /// Whether all of these keys are in the set. Takes a look-up for each range that has some of
    /// them, however many they are.
    pub(crate) fn contain_all(&self, keys: &BTreeSet<Box<[u8]>>) -> bool {
        let mut next = keys.first();
        while let Some(key) = next {
            let Some(range) = self.range_of(key) else { return false };
            let Some(end) = &range.end else { return true };
            let after = (Bound::Included(&end[..]), Bound::Unbounded);
            next = keys.range::<[u8], _>(after).next();
        }
        true
    }

    /// The range that contains this key.
    fn range_of(&self, key: &[u8]) -> Option<&HalfOpenRange> {
        let after = self.ranges.partition_point(|range| range.begin[..] <= *key);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        range.end.as_ref().is_none_or(|end| *key < end[..]).then_some(range)
    }
}

impl HalfOpenRange {
    fn of(keys: &KeyRange) -> Self {
        let begin = keys.key.clone();
        let end = match &keys.range_end[..] {
            [] => Some(next_key(&begin)),
            end if is_open(end) => None,
            _ => Some(keys.range_end.clone()),
        };
        Self { begin, end }
    }

    /// Whether no key lies between this range and `begin`.
    fn reaches(&self, begin: &Bytes) -> bool {
        self.end.as_ref().is_none_or(|end| begin <= end)
    }
}

/// Whether a range that ends at `one` ends no later than one that ends at `other`.
fn ends_by(one: Option<&Bytes>, other: Option<&Bytes>) -> bool {
    match (one, other) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(one), Some(other)) => one <= other,
    }
}

/// The smallest key after this one.
fn next_key(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(key: &'static str, range_end: &'static str) -> KeyRange {
        KeyRange { key: key.into(), range_end: range_end.into() }
    }

    fn set(ranges: &[KeyRange]) -> KeyRanges {
        KeyRanges::union(ranges.iter())
    }

    #[test]
    fn touching_ranges_are_one() {
        let both = set(&[keys("b", "c"), keys("a", "b"), keys("x", "")]);
        assert_eq!(both.ranges.len(), 2);
        assert!(both.contain(b"a", b"c") && both.contain(b"x", b""));
        assert!(!both.contain(b"a", b"d") && !both.contain(b"a", b"\0"));
        assert!(!both.contain(b"x", b"y") && !both.contain(b"", b""));
        let apart = set(&[keys("a", "b"), keys("c", "d")]);
        assert!(!apart.contain(b"a", b"d"));
        // The key "a" and all keys after it.
        let touching = set(&[keys("a", ""), keys("a\0", "\0")]);
        assert!(touching.contain(b"a", b"\0") && !touching.contain(b"\0", b"\0"));
    }

    #[test]
    fn the_range_of_a_permission_is_checked() {
        let valid =
            |key, end| Permission { mode: PermissionMode::Read, keys: keys(key, end) }.is_valid();
        assert!(valid("a", "") && valid("a", "b") && valid("a", "\0") && valid("\0", "\0"));
        assert!(!valid("", "") && !valid("", "b") && !valid("b", "a") && !valid("a", "a"));
    }

    /// Against a plain list of permissions: a range is allowed when each of its keys is.
    #[test]
    fn random_ranges_agree_with_a_model() {
        let all: Vec<Vec<u8>> = (0..4u8)
            .flat_map(|one| {
                let pairs = (0..4u8).map(move |two| vec![b'a' + one, b'a' + two]);
                std::iter::once(vec![b'a' + one]).chain(pairs)
            })
            .collect();
        let mut seed = 7u64;
        let mut next = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        let in_range = |key: &[u8], range: &KeyRange| {
            let end = &range.range_end[..];
            match end {
                [] => *key == range.key[..],
                [0] => *key >= range.key[..],
                _ => *key >= range.key[..] && *key < *end,
            }
        };
        for _ in 0..3_000 {
            let mut random_range = || {
                let key = Bytes::from(all[next(all.len())].clone());
                let end = match next(4) {
                    0 => Bytes::new(),
                    1 => Bytes::from_static(b"\0"),
                    _ => Bytes::from(all[next(all.len())].clone()),
                };
                KeyRange { key, range_end: end }
            };
            let mut granted: Vec<KeyRange> = Vec::new();
            while granted.len() < 4 {
                let permission = Permission { mode: PermissionMode::Read, keys: random_range() };
                if permission.is_valid() {
                    granted.push(permission.keys);
                }
            }
            let asked = random_range();
            let is_empty = !asked.range_end.is_empty()
                && asked.range_end[..] != [0]
                && asked.range_end <= asked.key;
            if is_empty {
                continue;
            }
            // All sample keys, and the gaps between them that only other keys fill.
            let mut samples = all.clone();
            samples.extend(all.iter().map(|key| [&key[..], &[0]].concat()));
            samples.push(vec![0xff; 3]);
            let expected = samples
                .iter()
                .filter(|key| in_range(key, &asked))
                .all(|key| granted.iter().any(|range| in_range(key, range)));
            let granted_set = set(&granted);
            let found = granted_set.contain(&asked.key, &asked.range_end);
            assert_eq!(found, expected, "{asked:?} of {granted:?}");
            // The same for keys that were picked one by one.
            let picked: BTreeSet<Box<[u8]>> = samples
                .iter()
                .filter(|key| in_range(key, &asked))
                .map(|key| key[..].into())
                .collect();
            assert_eq!(granted_set.contain_all(&picked), expected, "{picked:?} of {granted:?}");
        }
    }
}
