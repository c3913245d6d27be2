//! Finds the watchers of a key without checking all watchers.
//!
//! Most watchers watch one key or one prefix; these are found by the key and its prefixes.
//! Watchers of any other range are checked on every write.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::command::KeyRange;
use crate::watch::WatcherId;

#[derive(Default)]
pub(crate) struct WatchIndex {
    by_key: BTreeMap<Bytes, BTreeSet<WatcherId>>,
    by_prefix: BTreeMap<Bytes, BTreeSet<WatcherId>>,
    /// The number of watched prefixes of each length.
    prefix_lengths: BTreeMap<usize, usize>,
    of_ranges: BTreeSet<WatcherId>,
}

impl WatchIndex {
    pub(crate) fn add(&mut self, keys: &KeyRange, id: WatcherId) {
        if keys.is_single() {
            self.by_key.entry(keys.key.clone()).or_default().insert(id);
        } else if is_prefix(keys) {
            let watchers = self.by_prefix.entry(keys.key.clone()).or_default();
            if watchers.is_empty() {
                *self.prefix_lengths.entry(keys.key.len()).or_default() += 1;
            }
            watchers.insert(id);
        } else {
            self.of_ranges.insert(id);
        }
    }

    pub(crate) fn remove(&mut self, keys: &KeyRange, id: WatcherId) {
        if keys.is_single() {
            remove(&mut self.by_key, &keys.key, id);
        } else if is_prefix(keys) {
            if remove(&mut self.by_prefix, &keys.key, id)
                && let Some(count) = self.prefix_lengths.get_mut(&keys.key.len())
            {
                *count -= 1;
                if *count == 0 {
                    self.prefix_lengths.remove(&keys.key.len());
                }
            }
        } else {
            self.of_ranges.remove(&id);
        }
    }

    /// All watchers of this key, and possibly some that do not watch it.
    pub(crate) fn may_watch<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = WatcherId> + 'a {
        let of_key = self.by_key.get(key).into_iter().flatten();
        let prefixes = self.prefix_lengths.keys().map_while(|length| key.get(..*length));
        let of_prefixes = prefixes.filter_map(|prefix| self.by_prefix.get(prefix)).flatten();
        of_key.chain(of_prefixes).chain(&self.of_ranges).copied()
    }
}

fn is_prefix(keys: &KeyRange) -> bool {
    keys.range_end == KeyRange::prefix(keys.key.clone()).range_end
}

/// Returns whether it was the last watcher of this key.
fn remove(from: &mut BTreeMap<Bytes, BTreeSet<WatcherId>>, key: &Bytes, id: WatcherId) -> bool {
    let Some(watchers) = from.get_mut(key) else { return false };
    watchers.remove(&id);
    let last = watchers.is_empty();
    if last {
        from.remove(key);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [&[u8]; 9] = [b"", b"\0", b"a", b"a\0", b"aa", b"ab", b"b", b"\xff", b"\xff\xff"];

    fn all_ranges() -> Vec<KeyRange> {
        let pairs = BYTES[1..].iter().flat_map(|key| BYTES.iter().map(move |end| (*key, *end)));
        pairs.map(|(key, end)| KeyRange { key: key.into(), range_end: end.into() }).collect()
    }

    #[test]
    fn every_watcher_of_a_key_is_found() {
        let ranges = all_ranges();
        let mut index = WatchIndex::default();
        let watchers = || (0..).map(WatcherId).zip(&ranges);
        watchers().for_each(|(id, keys)| index.add(keys, id));
        for key in BYTES.iter().chain(&[&b"abc"[..], b"\xff\0"]) {
            let found: BTreeSet<_> = index.may_watch(key).collect();
            assert_eq!(found.len(), index.may_watch(key).count(), "each once");
            let expected = watchers().filter(|(_, keys)| keys.contains(key)).map(|(id, _)| id);
            assert!(expected.clone().all(|id| found.contains(&id)), "{key:?}");
            let false_positives = found.len() - expected.count();
            assert!(false_positives <= index.of_ranges.len());
        }
        watchers().for_each(|(id, keys)| index.remove(keys, id));
        assert!(index.by_key.is_empty() && index.by_prefix.is_empty());
        assert!(index.prefix_lengths.is_empty() && index.of_ranges.is_empty());
    }

    #[test]
    fn watchers_of_other_prefixes_are_not_checked() {
        let mut index = WatchIndex::default();
        for number in 0..1_000 {
            index.add(&KeyRange::prefix(format!("/{number}/")), WatcherId(number));
        }
        assert_eq!(index.may_watch(b"/7/key").collect::<Vec<_>>(), [WatcherId(7)]);
        assert_eq!(index.may_watch(b"/other").count(), 0);
    }
}
