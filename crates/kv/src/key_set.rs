//! A set of keys, given as ranges. Overlapping ranges are merged.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::command::KeyRange;

#[derive(Default)]
pub(crate) struct KeySet<'a> {
    /// By their first key. No two of them overlap.
    ranges: BTreeMap<&'a [u8], RangeEnd<'a>>,
}

/// The end of a range, ordered by keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RangeEnd<'a> {
    Before(&'a [u8]),
    After(&'a [u8]),
    Never,
}

impl<'a> KeySet<'a> {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.ranges.range(..=key).next_back().is_some_and(|(_, end)| end.is_past(key))
    }

    pub(crate) fn add(&mut self, keys: &'a KeyRange) {
        let end = match &keys.range_end {
            _ if keys.is_single() => RangeEnd::After(&keys.key),
            _ if keys.is_unbounded() => RangeEnd::Never,
            end => RangeEnd::Before(end),
        };
        if end.is_past(&keys.key) {
            self.add_range(&keys.key, end);
        }
    }

    pub(crate) fn add_all(&mut self, other: Self) {
        for (first, end) in other.ranges {
            self.add_range(first, end);
        }
    }

    fn add_range(&mut self, mut first: &'a [u8], mut end: RangeEnd<'a>) {
        if let Some((earlier, earlier_end)) = self.ranges.range(..=first).next_back()
            && earlier_end.is_past(first)
        {
            (first, end) = (earlier, end.max(*earlier_end));
        }
        while let Some((later, later_end)) = self.ranges.range(first..).next()
            && end.is_past(later)
        {
            end = end.max(*later_end);
            let later = *later;
            self.ranges.remove(later);
        }
        self.ranges.insert(first, end);
    }
}

impl RangeEnd<'_> {
    /// Whether this end lies after the key.
    fn is_past(&self, key: &[u8]) -> bool {
        match self {
            Self::Before(end) => key < *end,
            Self::After(end) => key <= *end,
            Self::Never => true,
        }
    }
}

impl Ord for RangeEnd<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let order = |end: &Self| match *end {
            Self::Before(key) => (false, key, false),
            Self::After(key) => (false, key, true),
            Self::Never => (true, &[][..], false),
        };
        order(self).cmp(&order(other))
    }
}

impl PartialOrd for RangeEnd<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares all triples of ranges over a few keys with checking each range.
    #[test]
    fn contains_exactly_the_keys_of_its_ranges() {
        let bytes: [&'static [u8]; 6] = [b"", b"\0", b"a", b"a\0", b"b", b"c"];
        let ranges: Vec<KeyRange> = bytes[1..]
            .iter()
            .flat_map(|key| bytes.iter().map(move |end| (*key, *end)))
            .map(|(key, end)| KeyRange { key: key.into(), range_end: end.into() })
            .collect();
        for first in &ranges {
            for second in &ranges {
                for third in &ranges {
                    let mut set = KeySet::default();
                    let all = [first, second, third];
                    all.iter().for_each(|keys| set.add(keys));
                    for key in bytes.iter().chain(&[&b"bb"[..], b"d"]) {
                        let expected = all.iter().any(|keys| keys.contains(key));
                        assert_eq!(set.contains(key), expected, "{all:?} {key:?}");
                    }
                }
            }
        }
    }
}
