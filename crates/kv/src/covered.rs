//! Which keys a set of ranges covers, whatever their number: ranges that meet become one.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::command::KeyRange;

#[derive(Default)]
pub(crate) struct Covered<'a> {
    /// By their first key. None meets another.
    ranges: BTreeMap<&'a [u8], End<'a>>,
}

/// Where a range ends, in the order of keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End<'a> {
    Before(&'a [u8]),
    After(&'a [u8]),
    Never,
}

impl<'a> Covered<'a> {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.ranges.range(..=key).next_back().is_some_and(|(_, end)| end.is_past(key))
    }

    pub(crate) fn add(&mut self, keys: &'a KeyRange) {
        let end = match &keys.range_end {
            _ if keys.is_single() => End::After(&keys.key),
            _ if keys.is_unbounded() => End::Never,
            end => End::Before(end),
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

    fn add_range(&mut self, mut first: &'a [u8], mut end: End<'a>) {
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

impl End<'_> {
    /// Whether a key comes before this end.
    fn is_past(&self, key: &[u8]) -> bool {
        match self {
            Self::Before(end) => key < *end,
            Self::After(end) => key <= *end,
            Self::Never => true,
        }
    }
}

impl Ord for End<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let place = |end: &Self| match *end {
            Self::Before(key) => (false, key, false),
            Self::After(key) => (false, key, true),
            Self::Never => (true, &[][..], false),
        };
        place(self).cmp(&place(other))
    }
}

impl PartialOrd for End<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All pairs and triples of ranges over a few keys, against asking each range.
    #[test]
    fn what_is_covered_is_what_one_of_the_ranges_contains() {
        let bytes: [&'static [u8]; 6] = [b"", b"\0", b"a", b"a\0", b"b", b"c"];
        let ranges: Vec<KeyRange> = bytes[1..]
            .iter()
            .flat_map(|key| bytes.iter().map(move |end| (*key, *end)))
            .map(|(key, end)| KeyRange { key: key.into(), range_end: end.into() })
            .collect();
        for first in &ranges {
            for second in &ranges {
                for third in &ranges {
                    let mut covered = Covered::default();
                    let all = [first, second, third];
                    all.iter().for_each(|keys| covered.add(keys));
                    for key in bytes.iter().chain(&[&b"bb"[..], b"d"]) {
                        let expected = all.iter().any(|keys| keys.contains(key));
                        assert_eq!(covered.contains(key), expected, "{all:?} {key:?}");
                    }
                }
            }
        }
    }
}
