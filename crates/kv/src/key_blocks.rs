//! An ordered map from keys to their histories, in blocks that know how many of their keys
//! exist.
//!
//! Counting the keys of a range visits blocks, not keys: a client that counts everything in
//! each of a hundred operations costs little.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;

use crate::index::{CurrentVersion, KeyHistory, KeyVersion};
use crate::packed_keys::{KEYS_RESERVED, KeyRef, PackedKeys};
use crate::small_key::SmallKey;

#[derive(Clone, Debug, Default)]
pub(crate) struct KeyBlocks {
    /// Each under a key that is not above its first one and above all keys of the block before
    /// it. The first block is under the empty key.
    blocks: BTreeMap<SmallKey, KeyBlock>,
    len: usize,
}

/// Sorted keys and their histories, at the same positions.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyBlock {
    keys: PackedKeys,
    histories: Vec<KeyHistory>,
    /// How many of the keys exist at the newest revision.
    live: usize,
    /// No write in this block is newer than this revision.
    newest: i64,
}

const BLOCK_KEYS_MAX: usize = 64;
/// However few keys it has, a block is full with this many bytes of them: an insertion moves them.
const BLOCK_BYTES_MAX: usize = 32 << 10;
/// A block with at most this many keys is merged with the one before it ...
const BLOCK_KEYS_FEW: usize = 16;
/// ... if both together have at most this many.
const BLOCK_KEYS_MERGED_MAX: usize = 32;

/// The keys from one on, up to a bound.
pub(crate) type KeyBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

impl KeyBlock {
    fn position(&self, key: &[u8]) -> Result<usize, usize> {
        self.keys.search(key)
    }

    fn insert(&mut self, position: usize, key: &[u8], history: KeyHistory) {
        self.live += usize::from(history.current().is_some());
        self.newest = self.newest.max(history.newest().at().main);
        self.keys.insert(position, key);
        if self.histories.len() == self.histories.capacity() {
            self.histories.reserve_exact(KEYS_RESERVED);
        }
        self.histories.insert(position, history);
    }

    fn push(
        &mut self,
        position: usize,
        lease: i64,
        make: impl FnOnce(Option<CurrentVersion>) -> KeyVersion,
    ) -> Option<CurrentVersion> {
        let history = self.histories.get_mut(position)?;
        let current = history.current();
        let version = make(current);
        self.newest = self.newest.max(version.at().main);
        self.live += usize::from(!version.is_tombstone());
        self.live -= usize::from(current.is_some());
        history.push(version, lease);
        current
    }

    fn is_full(&self) -> bool {
        let len = self.keys.len();
        len >= BLOCK_KEYS_MAX || len > 1 && self.keys.bytes() >= BLOCK_BYTES_MAX
    }

    fn recount(&mut self) {
        self.live = self.histories.iter().filter(|history| history.current().is_some()).count();
    }

    /// The positions of the keys within these bounds.
    fn positions(&self, bounds: KeyBounds<'_>) -> std::ops::Range<usize> {
        let below = |bound: &[u8]| self.position(bound).unwrap_or_else(|position| position);
        let above = |bound: &[u8]| self.position(bound).map_or_else(|at| at, |at| at + 1);
        let start = match bounds.0 {
            Bound::Included(key) => below(key),
            Bound::Excluded(key) => above(key),
            Bound::Unbounded => 0,
        };
        let end = match bounds.1 {
            Bound::Included(key) => above(key),
            Bound::Excluded(key) => below(key),
            Bound::Unbounded => self.keys.len(),
        };
        start..end.max(start)
    }

    /// The keys within these bounds that exist at a revision.
    pub(crate) fn count(&self, bounds: KeyBounds<'_>, main: i64) -> BlockCount {
        let positions = self.positions(bounds);
        if positions.len() == self.keys.len() {
            return self.count_all(main);
        }
        count_in(self.histories.get(positions).unwrap_or_default(), main)
    }

    /// All keys that exist at a revision.
    pub(crate) fn count_all(&self, main: i64) -> BlockCount {
        if self.newest <= main {
            return BlockCount { keys: self.live, visited: 1 };
        }
        count_in(&self.histories, main)
    }
}

fn count_in(histories: &[KeyHistory], main: i64) -> BlockCount {
    let keys = histories.iter().filter(|history| history.at(main).is_some()).count();
    BlockCount { keys, visited: histories.len().max(1) }
}

/// The result of counting in one block.
pub(crate) struct BlockCount {
    pub(crate) keys: usize,
    /// How much work it was, in keys.
    pub(crate) visited: usize,
}

impl KeyBlocks {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn block_of(&self, key: &[u8]) -> Option<(&SmallKey, &KeyBlock)> {
        match SmallKey::short(key) {
            Some(key) => self.blocks.range(..=key).next_back(),
            None => {
                self.blocks.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()
            }
        }
    }

    fn block_mut(&mut self, key: &[u8]) -> &mut KeyBlock {
        if self.blocks.is_empty() {
            self.blocks.insert(SmallKey::from(&[][..]), KeyBlock::default());
        }
        let found = match SmallKey::short(key) {
            Some(key) => self.blocks.range_mut(..=key).next_back(),
            None => {
                let up_to_key = (Bound::Unbounded, Bound::Included(key));
                self.blocks.range_mut::<[u8], _>(up_to_key).next_back()
            }
        };
        #[expect(clippy::expect_used, reason = "a block is under the empty key: see above")]
        let (_, block) = found.expect("no key is below the empty one");
        block
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&KeyHistory> {
        let (_, block) = self.block_of(key)?;
        block.histories.get(block.position(key).ok()?)
    }

    /// Records a write and returns the version that it replaces.
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        lease: i64,
        make: impl FnOnce(Option<CurrentVersion>) -> KeyVersion,
    ) -> Option<CurrentVersion> {
        let block = self.block_mut(key);
        let position = match block.position(key) {
            Ok(position) => return block.push(position, lease, make),
            Err(position) => position,
        };
        let history = KeyHistory::new(make(None), lease);
        if !block.is_full() {
            block.insert(position, key, history);
        } else if position == block.keys.len() {
            // Appending leaves full blocks behind; splitting would leave half-full ones.
            let mut next = KeyBlock::default();
            next.insert(0, key, history);
            self.blocks.insert(key.into(), next);
        } else {
            // Before the insertion: one key more would double the memory of the block.
            let mut upper = split(block);
            let first =
                upper.keys.get(0).map_or_else(|| key.into(), |first| first.to_vec()[..].into());
            match position.checked_sub(block.keys.len()) {
                Some(above) if above > 0 => upper.insert(above, key, history),
                _ => block.insert(position, key, history),
            }
            self.blocks.insert(first, upper);
        }
        self.len += 1;
        None
    }

    /// The blocks that may have keys from this one on, with their names. The keys of a block are
    /// not below its name, and below the name of the next block.
    pub(crate) fn blocks_from(&self, key: &[u8]) -> impl Iterator<Item = (&[u8], &KeyBlock)> {
        let first = self.block_of(key).map(|(first, _)| Borrow::<[u8]>::borrow(first));
        let bounds = (Bound::Included(first.unwrap_or_default()), Bound::Unbounded);
        self.blocks.range::<[u8], _>(bounds).map(|(name, block)| (name.borrow(), block))
    }

    /// All keys within these bounds, in order.
    pub(crate) fn range<'a>(
        &'a self,
        bounds: KeyBounds<'a>,
    ) -> impl Iterator<Item = (KeyRef<'a>, &'a KeyHistory)> {
        let first = match bounds.0 {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        let mut ended = false;
        self.blocks_from(first)
            .map_while(move |(_, block)| {
                if ended {
                    return None;
                }
                let positions = block.positions(bounds);
                // An empty block is not the end: keys may follow.
                ended = positions.end < block.keys.len();
                let keys = block.keys.iter_from(positions.start);
                let histories = block.histories.get(positions).unwrap_or_default();
                Some(keys.zip(histories))
            })
            .flatten()
    }

    /// Adds a version to each key within these bounds that exists. `make` is called in order.
    pub(crate) fn push_each(
        &mut self,
        bounds: KeyBounds<'_>,
        mut make: impl FnMut(KeyRef<'_>, CurrentVersion) -> KeyVersion,
    ) {
        let first = match bounds.0 {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        let Some((first, _)) = self.block_of(first) else { return };
        let first = first.clone();
        for (_, block) in self.blocks.range_mut(first..) {
            let positions = block.positions(bounds);
            let ended = positions.end < block.keys.len();
            for position in positions {
                let Some(history) = block.histories.get_mut(position) else { continue };
                let Some(current) = history.current() else { continue };
                let Some(key) = block.keys.get(position) else { continue };
                let version = make(key, current);
                block.newest = block.newest.max(version.at().main);
                block.live -= usize::from(version.is_tombstone());
                history.push(version, 0);
            }
            if ended {
                break;
            }
        }
    }

    /// Visits the keys from this one on, in order, until `visit` says to stop. It may remove
    /// versions from a history, and removes the key by returning [`AfterVisit::Remove`].
    pub(crate) fn visit_from(
        &mut self,
        from: &[u8],
        mut visit: impl FnMut(KeyRef<'_>, &mut KeyHistory) -> AfterVisit,
    ) {
        let Some((first, _)) = self.block_of(from) else { return };
        let first = first.clone();
        let mut small = Vec::new();
        let mut stopped = false;
        for (name, block) in self.blocks.range_mut(first..) {
            let mut position = block.position(from).unwrap_or_else(|position| position);
            while let Some(history) = block.histories.get_mut(position) {
                let Some(key) = block.keys.get(position) else { break };
                match visit(key, history) {
                    AfterVisit::Keep => position += 1,
                    AfterVisit::Remove => {
                        block.keys.remove(position);
                        let removed = block.histories.remove(position);
                        block.live -= usize::from(removed.current().is_some());
                        self.len -= 1;
                    }
                    AfterVisit::Stop => {
                        stopped = true;
                        break;
                    }
                }
            }
            if block.keys.len() <= BLOCK_KEYS_FEW {
                small.push(name.clone());
            }
            if stopped {
                break;
            }
        }
        for name in small {
            self.merge(&name);
        }
    }

    /// Moves the keys of a small block to the end of the block before it.
    fn merge(&mut self, name: &SmallKey) {
        let before = (Bound::Unbounded, Bound::Excluded(name));
        let before = self.blocks.range::<SmallKey, _>(before).next_back();
        let (Some((_, before)), Some(block)) = (before, self.blocks.get(name)) else { return };
        let (len, bytes) = (block.keys.len(), block.keys.bytes());
        let is_too_large = before.keys.len() + len > BLOCK_KEYS_MERGED_MAX
            || before.keys.bytes() + bytes > BLOCK_BYTES_MAX;
        if is_too_large && len > 0 {
            return;
        }
        let Some(moved) = self.blocks.remove(name) else { return };
        let before = self.block_mut(name.borrow());
        before.live += moved.live;
        before.newest = before.newest.max(moved.newest);
        before.keys.append(&moved.keys);
        before.histories.reserve_exact(moved.histories.len());
        before.histories.extend(moved.histories);
    }
}

/// What [`KeyBlocks::visit_from`] does after it has visited a key.
pub(crate) enum AfterVisit {
    Keep,
    Remove,
    Stop,
}

fn split(block: &mut KeyBlock) -> KeyBlock {
    let middle = block.keys.len() / 2;
    let mut upper = KeyBlock {
        keys: block.keys.split_off(middle),
        histories: block.histories.split_off(middle),
        live: 0,
        newest: block.newest,
    };
    block.histories.shrink_to(middle + KEYS_RESERVED);
    block.recount();
    upper.recount();
    upper
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::Revision;

    fn version(main: i64, version: i64) -> KeyVersion {
        KeyVersion::put(Revision { main, sub: 0 }, 1, 1, version)
    }

    #[test]
    fn a_block_takes_no_memory_for_keys_that_it_never_has() {
        let mut blocks = KeyBlocks::default();
        for number in 0_u32..10_000 {
            let key = number.wrapping_mul(2_654_435_761).to_be_bytes();
            blocks.put(&key, 0, |_| version(1, 1));
        }
        assert_eq!(blocks.range((Bound::Unbounded, Bound::Unbounded)).count(), 10_000);
        for block in blocks.blocks.values() {
            let reserved = block.keys.len() + KEYS_RESERVED;
            assert!(block.keys.capacity().0 <= reserved);
            assert!(block.histories.capacity() <= reserved);
        }
    }

    #[test]
    fn long_keys_make_small_blocks() {
        let mut blocks = KeyBlocks::default();
        let key = |number: u32| format!("{number:04}{}", "x".repeat(4_096)).into_bytes();
        for number in 0_u32..200 {
            blocks.put(&key(number.wrapping_mul(77) % 200), 0, |_| version(1, 1));
        }
        for block in blocks.blocks.values() {
            assert!(block.keys.bytes() <= BLOCK_BYTES_MAX + 4_100, "{}", block.keys.bytes());
        }
        assert!((0..200).all(|number| blocks.get(&key(number)).is_some()));
    }

    /// Compares with a plain map, in an order that covers every way to add and remove keys.
    #[test]
    fn behaves_as_a_map_and_counts_at_every_revision() {
        let mut blocks = KeyBlocks::default();
        // The revisions of each key, and whether each is a tombstone.
        let mut map: BTreeMap<Vec<u8>, Vec<(i64, bool)>> = BTreeMap::new();
        let mut number: u128 = 1;
        for main in 1..6_000i64 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(12345);
            let key = format!("{:04}", number >> 40 & 0x3ff).into_bytes();
            let tombstone = number >> 20 & 3 == 0;
            blocks.put(&key, 0, |_| version(main, i64::from(!tombstone)));
            map.entry(key).or_default().push((main, tombstone));
            if main % 1_000 == 0 {
                let from = b"0300";
                let mut left = 200;
                blocks.visit_from(from, |key, history| {
                    if left == 0 {
                        return AfterVisit::Stop;
                    }
                    left -= 1;
                    if history.current().is_some() {
                        return AfterVisit::Keep;
                    }
                    map.remove(&key.to_vec());
                    AfterVisit::Remove
                });
            }
        }
        assert_eq!(blocks.len(), map.len());
        let all = (Bound::Unbounded, Bound::Unbounded);
        assert!(blocks.range(all).map(|(key, _)| key.to_vec()).eq(map.keys().cloned()));
        let exists = |writes: &[(i64, bool)], main: i64| {
            writes.iter().rev().find(|(at, _)| *at <= main).is_some_and(|(_, gone)| !gone)
        };
        for (start, end) in [("", "9"), ("0100", "0101"), ("0255", "0800"), ("05", "04")] {
            let bounds = (Bound::Included(start.as_bytes()), Bound::Excluded(end.as_bytes()));
            for main in [6_000, 5_999, 5_000, 77] {
                let counts =
                    blocks.blocks_from(start.as_bytes()).map(|(_, b)| b.count(bounds, main));
                let keys: usize = counts.map(|count| count.keys).sum();
                let in_range = |key: &[u8]| start.as_bytes() <= key && key < end.as_bytes();
                let expected = map.iter().filter(|(key, _)| in_range(key));
                let expected = expected.filter(|(_, writes)| exists(writes, main)).count();
                assert_eq!(keys, expected, "{start}..{end} at {main}");
            }
        }
        for (key, writes) in &map {
            let current = blocks.get(key).and_then(KeyHistory::current);
            assert_eq!(current.is_some(), exists(writes, i64::MAX), "{key:?}");
        }
    }

    #[test]
    fn counting_visits_blocks_and_compaction_merges_them() {
        let mut blocks = KeyBlocks::default();
        for number in 0..64_000 {
            blocks.put(format!("{number:08}").as_bytes(), 0, |_| version(number + 1, 1));
        }
        let all = (Bound::Unbounded, Bound::Unbounded);
        let count = |blocks: &KeyBlocks| {
            blocks
                .blocks_from(b"")
                .map(|(_, block)| block.count(all, i64::MAX))
                .fold((0, 0), |(keys, visited), count| (keys + count.keys, visited + count.visited))
        };
        assert_eq!(count(&blocks), (64_000, 1_000));
        let mut number = 0;
        blocks.visit_from(b"", |_, _| {
            number += 1;
            if number % 64 == 0 { AfterVisit::Keep } else { AfterVisit::Remove }
        });
        let (keys, visited) = count(&blocks);
        assert_eq!(keys, 1_000);
        assert!(visited <= 100, "{visited} blocks for 1000 keys");
        blocks.push_each(all, |_, _| version(70_000, 0));
        assert_eq!(count(&blocks).0, 0);
    }
}
