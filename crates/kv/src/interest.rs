//! Who watches a key, found without asking everybody.
//!
//! Most watch one key or all keys with a prefix; those are found by the key and by its
//! prefixes. Whoever watches a range of another kind is asked about every write.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::command::KeyRange;
use crate::watch::WatcherId;

#[derive(Default)]
pub(crate) struct Interest {
    by_key: BTreeMap<Bytes, BTreeSet<WatcherId>>,
    by_prefix: BTreeMap<Bytes, BTreeSet<WatcherId>>,
    /// How many of the prefixes are this long.
    prefix_lengths: BTreeMap<usize, usize>,
    of_ranges: BTreeSet<WatcherId>,
}

impl Interest {
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

    /// Everybody who watches this key, and some who do not.
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

/// Whether it was the last one under this key.
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
    fn nobody_who_watches_a_key_is_left_out() {
        let ranges = all_ranges();
        let mut interest = Interest::default();
        let named = || (0..).map(WatcherId).zip(&ranges);
        named().for_each(|(id, keys)| interest.add(keys, id));
        for key in BYTES.iter().chain(&[&b"abc"[..], b"\xff\0"]) {
            let found: BTreeSet<_> = interest.may_watch(key).collect();
            assert_eq!(found.len(), interest.may_watch(key).count(), "each once");
            let wanted = named().filter(|(_, keys)| keys.contains(key)).map(|(id, _)| id);
            assert!(wanted.clone().all(|id| found.contains(&id)), "{key:?}");
            let asked_in_vain = found.len() - wanted.count();
            assert!(asked_in_vain <= interest.of_ranges.len());
        }
        named().for_each(|(id, keys)| interest.remove(keys, id));
        assert!(interest.by_key.is_empty() && interest.by_prefix.is_empty());
        assert!(interest.prefix_lengths.is_empty() && interest.of_ranges.is_empty());
    }

    #[test]
    fn a_write_does_not_ask_those_who_watch_other_prefixes() {
        let mut interest = Interest::default();
        for number in 0..1_000 {
            interest.add(&KeyRange::prefix(format!("/{number}/")), WatcherId(number));
        }
        assert_eq!(interest.may_watch(b"/7/key").collect::<Vec<_>>(), [WatcherId(7)]);
        assert_eq!(interest.may_watch(b"/other").count(), 0);
    }
}
