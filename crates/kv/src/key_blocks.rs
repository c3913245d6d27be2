//! An ordered map from keys to their histories, in blocks that know how many of their keys
//! exist.
//!
//! Counting the keys of a range visits blocks, not keys: a client that counts everything in
//! each of a hundred operations costs little.

use std::ops::Bound;

use crate::key_history::{CurrentVersion, KeyHistory, KeyVersion};
use crate::named_list::NamedList;
use crate::packed_keys::{KEYS_RESERVED, KeyRef, PackedKeys, common_prefix};

/// Blocks lie in pages, so that adding a block moves few others. There is always one page, and each has a
/// block.
#[derive(Clone, Debug)]
pub(crate) struct KeyBlocks {
    pages: NamedList<BlockPage>,
    len: usize,
}

type BlockPage = NamedList<KeyBlock>;

/// Where a block is.
#[derive(Clone, Copy, Debug)]
struct BlockPlace {
    page: usize,
    block: usize,
}

/// Where a key is, until keys are added or removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPlace {
    block: BlockPlace,
    position: usize,
}

impl Default for KeyBlocks {
    fn default() -> Self {
        Self { pages: NamedList::new(NamedList::new(KeyBlock::default())), len: 0 }
    }
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

/// How many keys are searched together.
pub(crate) const SEARCHED_AT_ONCE: usize = 16;
const BLOCK_KEYS_MAX: usize = 64;
/// However few keys it has, a block is full with this many bytes of them: an insertion moves them.
const BLOCK_BYTES_MAX: usize = 32 << 10;
/// A block with at most this many keys is merged with the one before it ...
const BLOCK_KEYS_FEW: usize = 16;
/// ... if both together have at most this many.
const BLOCK_KEYS_MERGED_MAX: usize = 32;
const PAGE_BLOCKS_MAX: usize = 64;
/// A page is merged with the one before it, if both together have at most this many blocks.
const PAGE_BLOCKS_MERGED_MAX: usize = PAGE_BLOCKS_MAX / 2;

/// The keys from one on, up to a bound.
pub(crate) type KeyBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

impl KeyBlock {
    fn position(&self, key: &[u8]) -> Result<usize, usize> {
        self.keys.search(key)
    }

    fn insert(&mut self, position: usize, key: &[u8], history: KeyHistory) {
        self.live += usize::from(history.current().is_some());
        self.newest = self.newest.max(history.newest().row.at().main);
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
        self.newest = self.newest.max(version.row.at().main);
        self.live += usize::from(!version.row.is_tombstone());
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

    fn block_of(&self, key: &[u8]) -> BlockPlace {
        let page = self.pages.position_of(key);
        let block = self.pages.get(page).map_or(0, |blocks| blocks.position_of(key));
        BlockPlace { page, block }
    }

    fn block(&self, place: BlockPlace) -> Option<&KeyBlock> {
        self.pages.get(place.page)?.get(place.block)
    }

    fn block_mut(&mut self, place: BlockPlace) -> Option<&mut KeyBlock> {
        self.pages.get_mut(place.page)?.get_mut(place.block)
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&KeyHistory> {
        let block = self.block(self.block_of(key))?;
        block.histories.get(block.position(key).ok()?)
    }

    pub(crate) fn place_of(&self, key: &[u8]) -> Option<KeyPlace> {
        let block = self.block_of(key);
        let position = self.block(block)?.position(key).ok()?;
        Some(KeyPlace { block, position })
    }

    /// The places of several keys. A search waits for memory several times, each time for what it has found
    /// before. Here all keys take a step before the next one, so that they wait together: the first
    /// access to a line of memory lets the processor fetch it, and what does not depend on it goes on.
    pub(crate) fn places_of<'a>(
        &self,
        keys: impl Iterator<Item = &'a [u8]>,
    ) -> [Option<KeyPlace>; SEARCHED_AT_ONCE] {
        let mut searched = [(&[][..], None); SEARCHED_AT_ONCE];
        for (place, key) in searched.iter_mut().zip(keys) {
            *place = (key, Some(self.block_of(key)));
        }
        let mut fetched = 0;
        let blocks = || searched.iter().filter_map(|(_, place)| self.block((*place)?));
        for block in blocks() {
            fetched ^= block.newest as usize ^ block.keys.len();
        }
        for block in blocks() {
            fetched ^= block.keys.fetch();
        }
        let places = searched.map(|(key, block)| {
            let position = self.block(block?)?.position(key).ok()?;
            Some(KeyPlace { block: block?, position })
        });
        let histories = || places.iter().filter_map(|place| self.at((*place)?));
        for history in histories() {
            fetched ^= history.newest().row.bytes() as usize;
        }
        for history in histories() {
            fetched ^= history.older_len();
        }
        std::hint::black_box(fetched);
        places
    }

    /// Whether this key is at a place.
    pub(crate) fn is_at(&self, place: KeyPlace, key: &[u8]) -> bool {
        let found = self.block(place.block).and_then(|block| block.keys.get(place.position));
        found.is_some_and(|found| found.is(key))
    }

    pub(crate) fn at(&self, place: KeyPlace) -> Option<&KeyHistory> {
        self.block(place.block)?.histories.get(place.position)
    }

    /// Records a write of the key at this place, and returns the version that it replaces.
    pub(crate) fn push(
        &mut self,
        place: KeyPlace,
        lease: i64,
        make: impl FnOnce(Option<CurrentVersion>) -> KeyVersion,
    ) -> Option<CurrentVersion> {
        self.block_mut(place.block)?.push(place.position, lease, make)
    }

    /// Records a write and returns the version that it replaces.
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        lease: i64,
        make: impl FnOnce(Option<CurrentVersion>) -> KeyVersion,
    ) -> Option<CurrentVersion> {
        let place = self.block_of(key);
        let block = self.block_mut(place)?;
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
            let name = name_between(block, &next);
            self.insert_after(place, &name, next);
        } else {
            // Before the insertion: one key more would double the memory of the block.
            let mut upper = split(block);
            match position.checked_sub(block.keys.len()) {
                Some(above) if above > 0 => upper.insert(above, key, history),
                _ => block.insert(position, key, history),
            }
            let name = name_between(block, &upper);
            self.insert_after(place, &name, upper);
        }
        self.len += 1;
        None
    }

    fn insert_after(&mut self, place: BlockPlace, name: &[u8], block: KeyBlock) {
        let is_last_page = place.page + 1 == self.pages.len();
        let Some(page) = self.pages.get_mut(place.page) else { return };
        page.insert_after(place.block, name, block);
        let len = page.len();
        if len > PAGE_BLOCKS_MAX {
            // As with blocks: appending leaves full pages behind.
            let is_appended = is_last_page && place.block + 2 == len;
            let (name, upper) = page.split_off(if is_appended { len - 1 } else { len / 2 });
            self.pages.insert_after(place.page, &name, upper);
        }
    }

    /// The blocks that may have keys from this one on, with their names. The keys of a block are
    /// not below its name, and below the name of the next block. The name of the first one is empty.
    pub(crate) fn blocks_from(&self, key: &[u8]) -> impl Iterator<Item = (KeyRef<'_>, &KeyBlock)> {
        let first = self.block_of(key);
        let pages = self.pages.iter_from(first.page).enumerate();
        pages.flat_map(move |(number, (page_name, page))| {
            let blocks = page.iter_from(if number == 0 { first.block } else { 0 });
            blocks.map(move |(name, block)| (name.or(page_name).unwrap_or_default(), block))
        })
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
        let first = self.block_of(first);
        let pages = self.pages.iter_mut_from(first.page).enumerate();
        let blocks = pages.flat_map(|(number, page)| {
            page.iter_mut_from(if number == 0 { first.block } else { 0 })
        });
        for block in blocks {
            let positions = block.positions(bounds);
            let ended = positions.end < block.keys.len();
            for position in positions {
                let Some(history) = block.histories.get_mut(position) else { continue };
                let Some(current) = history.current() else { continue };
                let Some(key) = block.keys.get(position) else { continue };
                let version = make(key, current);
                block.newest = block.newest.max(version.row.at().main);
                block.live -= usize::from(version.row.is_tombstone());
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
        let first = self.block_of(from);
        let mut next = Some(first);
        let mut small = Vec::new();
        let mut stopped = false;
        while let Some(place) = next.filter(|_| !stopped) {
            next = self.place_after(place);
            let block = self.pages.get_mut(place.page).and_then(|page| page.get_mut(place.block));
            let Some(block) = block else { break };
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
                small.push(place);
            }
        }
        // Backwards: removing a block moves those after it.
        let last = small.last().map_or(first.page, |last| last.page);
        for place in small.into_iter().rev() {
            self.merge(place);
        }
        // The page after them may fit to one that has become small.
        for page in (first.page..=(last + 1).min(self.pages.len() - 1)).rev() {
            self.merge_page(page);
        }
    }

    fn place_after(&self, place: BlockPlace) -> Option<BlockPlace> {
        let BlockPlace { page, block } = place;
        if block + 1 < self.pages.get(page)?.len() {
            return Some(BlockPlace { page, block: block + 1 });
        }
        (page + 1 < self.pages.len()).then_some(BlockPlace { page: page + 1, block: 0 })
    }

    fn place_before(&self, place: BlockPlace) -> Option<BlockPlace> {
        let BlockPlace { page, block } = place;
        if let Some(block) = block.checked_sub(1) {
            return Some(BlockPlace { page, block });
        }
        let page = page.checked_sub(1)?;
        Some(BlockPlace { page, block: self.pages.get(page)?.len() - 1 })
    }

    /// Moves the keys of a small block to the end of the block before it.
    fn merge(&mut self, place: BlockPlace) {
        let Some(place_before) = self.place_before(place) else { return };
        let (Some(before), Some(block)) = (self.block(place_before), self.block(place)) else {
            return;
        };
        let (len, bytes) = (block.keys.len(), block.keys.bytes());
        let is_too_large = before.keys.len() + len > BLOCK_KEYS_MERGED_MAX
            || before.keys.bytes() + bytes > BLOCK_BYTES_MAX;
        if is_too_large && len > 0 {
            return;
        }
        let Some(moved) = self.remove(place) else { return };
        let Some(before) = self.block_mut(place_before) else { return };
        before.live += moved.live;
        before.newest = before.newest.max(moved.newest);
        before.keys.append(&moved.keys);
        before.histories.reserve_exact(moved.histories.len());
        before.histories.extend(moved.histories);
    }

    /// Removes a block whose keys are moved to the one before it. That one then holds all keys up to the
    /// name of the next block, also if the next one is on another page.
    fn remove(&mut self, place: BlockPlace) -> Option<KeyBlock> {
        let page = self.pages.get_mut(place.page)?;
        let (block, first) = page.remove(place.block);
        if page.len() == 0 {
            self.pages.remove(place.page);
        } else if let Some(first) = first {
            self.pages.rename(place.page, &first);
        }
        Some(block)
    }

    /// Moves the blocks of a page to the one before it, if both are small.
    fn merge_page(&mut self, page: usize) {
        let Some(before) = page.checked_sub(1) else { return };
        let blocks = |page| self.pages.get(page).map_or(0, NamedList::len);
        if blocks(before) + blocks(page) > PAGE_BLOCKS_MERGED_MAX {
            return;
        }
        let name = self.pages.name(page).map(KeyRef::to_vec).unwrap_or_default();
        let (moved, _) = self.pages.remove(page);
        if let Some(before) = self.pages.get_mut(before) {
            before.append(&name, moved);
        }
    }
}

/// What [`KeyBlocks::visit_from`] does after it has visited a key.
pub(crate) enum AfterVisit {
    Keep,
    Remove,
    Stop,
}

/// The name of a block whose keys are above those of the block before it: as much of its first key as tells
/// them apart.
fn name_between(before: &KeyBlock, block: &KeyBlock) -> Vec<u8> {
    let last = before.keys.len().checked_sub(1).and_then(|last| before.keys.get(last));
    let last = last.map(KeyRef::to_vec).unwrap_or_default();
    let mut name = block.keys.get(0).map(KeyRef::to_vec).unwrap_or_default();
    name.truncate(common_prefix(&last, &name) + 1);
    name
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
    use std::collections::BTreeMap;

    use super::*;
    use crate::key_history::VersionNumbers;
    use crate::revision::Revision;

    fn version(main: i64, version: i64) -> KeyVersion {
        let at = Revision { main, sub: 0 };
        match version {
            0 => KeyVersion::tombstone(at, 1),
            _ => KeyVersion::put(at, 1, VersionNumbers { created: 1, version }),
        }
    }

    #[test]
    fn a_block_takes_no_memory_for_keys_that_it_never_has() {
        let mut blocks = KeyBlocks::default();
        for number in 0_u32..10_000 {
            let key = number.wrapping_mul(2_654_435_761).to_be_bytes();
            blocks.put(&key, 0, |_| version(1, 1));
        }
        assert_eq!(blocks.range((Bound::Unbounded, Bound::Unbounded)).count(), 10_000);
        for (_, block) in blocks.blocks_from(b"") {
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
        for (_, block) in blocks.blocks_from(b"") {
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
        // Enough keys for several pages.
        for main in 1..60_000i64 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(12345);
            let key = format!("{:05}", number >> 40 & 0x3fff).into_bytes();
            let tombstone = number >> 20 & 3 == 0;
            blocks.put(&key, 0, |_| version(main, i64::from(!tombstone)));
            map.entry(key).or_default().push((main, tombstone));
            // Some visits remove single keys, others whole pages, also the first one.
            let (from, mut left, removes_all) = match main {
                _ if main % 10_000 == 0 => (&b"03000"[..], 2_000, false),
                27_000 => (&b"02000"[..], 5_000, true),
                37_000 => (&b""[..], 3_000, true),
                _ => continue,
            };
            blocks.visit_from(from, |key, history| {
                if left == 0 {
                    return AfterVisit::Stop;
                }
                left -= 1;
                if history.current().is_some() && !removes_all {
                    return AfterVisit::Keep;
                }
                map.remove(&key.to_vec());
                AfterVisit::Remove
            });
            assert!(map.keys().all(|key| blocks.get(key).is_some()), "after {main}");
        }
        assert!(blocks.pages.len() > 3, "{} pages", blocks.pages.len());
        assert_eq!(blocks.len(), map.len());
        let all = (Bound::Unbounded, Bound::Unbounded);
        assert!(blocks.range(all).map(|(key, _)| key.to_vec()).eq(map.keys().cloned()));
        let exists = |writes: &[(i64, bool)], main: i64| {
            writes.iter().rev().find(|(at, _)| *at <= main).is_some_and(|(_, gone)| !gone)
        };
        for (start, end) in [("", "9"), ("00100", "00101"), ("00255", "08000"), ("05", "04")] {
            let bounds = (Bound::Included(start.as_bytes()), Bound::Excluded(end.as_bytes()));
            for main in [60_000, 59_999, 50_000, 77] {
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
        // Together they are found where each is found alone, and absent ones are not.
        let keys: Vec<_> = (0..0x4000).map(|number| format!("{number:05}").into_bytes()).collect();
        let (odd, full) = keys.split_at(SEARCHED_AT_ONCE - 1);
        for keys in std::iter::once(odd).chain(full.chunks(SEARCHED_AT_ONCE)) {
            let places = blocks.places_of(keys.iter().map(Vec::as_slice));
            for (key, place) in keys.iter().zip(places) {
                assert_eq!(place.is_some(), map.contains_key(key));
                assert!(place.is_none_or(|place| blocks.is_at(place, key)));
            }
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
