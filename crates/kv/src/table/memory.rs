//! A table in memory.
//!
//! Rows lie in blocks that are shared with views (copy on write): a view costs one pointer
//! per block, and a write copies at most one shared block.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::{RowReader, Table, TableError};
use crate::revision::RowKey;

/// A [`Table`] in memory. It loses all rows with the process.
#[derive(Clone, Debug, Default)]
pub struct MemoryTable {
    rows: Blocks,
    staged: Blocks,
}

/// A view of a [`MemoryTable`].
#[derive(Clone, Debug)]
pub struct MemoryView(Blocks);

/// Sorted rows in sorted blocks. The key of a block is not above its first row.
#[derive(Clone, Debug, Default)]
struct Blocks(BTreeMap<RowKey, Arc<Block>>);

type Block = Vec<(RowKey, Bytes)>;

const BLOCK_ROWS_MAX: usize = 128;
/// A block with at most this many rows is merged with a neighbour ...
const BLOCK_ROWS_FEW: usize = 32;
/// ... if both together have at most this many rows, so that the result can grow before it
/// is split.
const BLOCK_ROWS_MERGED_MAX: usize = 64;

impl Blocks {
    fn get(&self, key: RowKey) -> Option<&Bytes> {
        let (first, block) = self.0.range(..=key).next_back()?;
        // Most revisions have one row: then the position follows from the revision.
        let guess = block.get(((key.0 - first.0) >> 32) as usize);
        if let Some((_, row)) = guess.filter(|(found, _)| *found == key) {
            return Some(row);
        }
        let position = block.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        block.get(position).map(|(_, row)| row)
    }

    fn put(&mut self, key: RowKey, row: Bytes) {
        // Most writes come after all others: no search.
        if let Some(mut last) = self.0.last_entry()
            && *last.key() <= key
            && last.get().len() < BLOCK_ROWS_MAX
            && last.get().last().is_none_or(|(last, _)| *last < key)
        {
            Arc::make_mut(last.get_mut()).push((key, row));
            return;
        }
        let Some((_, block)) = self.0.range_mut(..=key).next_back() else {
            self.put_first(key, row);
            return;
        };
        let block = Arc::make_mut(block);
        let appends = block.last().is_none_or(|(last, _)| *last < key);
        if appends && block.len() < BLOCK_ROWS_MAX {
            block.push((key, row));
            return;
        }
        match block.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(position) => block[position].1 = row,
            // Appending leaves full blocks behind; splitting would leave half-full ones.
            Err(position) if position == block.len() => {
                self.0.insert(key, new_block(key, row));
            }
            Err(position) => {
                block.insert(position, (key, row));
                if block.len() > BLOCK_ROWS_MAX {
                    let upper = block.split_off(block.len() / 2);
                    let first = upper[0].0;
                    self.0.insert(first, Arc::new(upper));
                }
            }
        }
    }

    /// Puts a row before all blocks: into the first block, under a new block key.
    fn put_first(&mut self, key: RowKey, row: Bytes) {
        let block = match self.0.pop_first() {
            Some((_, mut block)) if block.len() < BLOCK_ROWS_MAX => {
                Arc::make_mut(&mut block).insert(0, (key, row));
                block
            }
            Some((first, block)) => {
                self.0.insert(first, block);
                new_block(key, row)
            }
            None => new_block(key, row),
        };
        self.0.insert(key, block);
    }

    fn remove(&mut self, key: RowKey) {
        let Some((first, block)) = self.0.range_mut(..=key).next_back() else { return };
        let Ok(position) = block.binary_search_by_key(&key, |(key, _)| *key) else { return };
        let (first, block) = (*first, Arc::make_mut(block));
        block.remove(position);
        if block.is_empty() {
            self.0.remove(&first);
        } else if block.len() <= BLOCK_ROWS_FEW {
            self.merge_with_neighbours(first);
        }
    }

    /// Merges a small block with small neighbours. Without this, compaction could leave one
    /// block for each remaining row.
    fn merge_with_neighbours(&mut self, first: RowKey) {
        let before = self.0.range(..first).next_back().map(|(first, _)| *first);
        let after = self.0.range(first..).nth(1).map(|(first, _)| *first);
        if let Some(after) = after {
            self.merge(first, after);
        }
        if let Some(before) = before {
            self.merge(before, first);
        }
    }

    /// Moves the rows of a block to the end of the block before it, if both are small.
    fn merge(&mut self, first: RowKey, next: RowKey) {
        let rows = |key| self.0.get(&key).map_or(0, |block| block.len());
        if rows(first) + rows(next) > BLOCK_ROWS_MERGED_MAX {
            return;
        }
        let moved = self.0.remove(&next).unwrap_or_default();
        if let Some(block) = self.0.get_mut(&first) {
            let block = Arc::make_mut(block);
            block.shrink_to(BLOCK_ROWS_MERGED_MAX);
            block.extend(moved.iter().cloned());
        }
    }

    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, Bytes) -> ControlFlow<()>,
    ) {
        let first = self.0.range(..=from).next_back().map_or(from, |(first, _)| *first);
        for block in self.0.range(first..).map(|(_, block)| block) {
            let start = block.partition_point(|(key, _)| *key < from);
            for (key, row) in &block[start..] {
                if *key >= to || visit(*key, row.clone()).is_break() {
                    return;
                }
            }
        }
    }
}

fn new_block(key: RowKey, row: Bytes) -> Arc<Block> {
    let mut block = Vec::with_capacity(BLOCK_ROWS_MAX);
    block.push((key, row));
    Arc::new(block)
}

impl RowReader for MemoryTable {
    fn get(&self, key: RowKey) -> Result<Option<Bytes>, TableError> {
        Ok(self.rows.get(key).cloned())
    }

    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, Bytes) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        self.rows.scan(from, to, visit);
        Ok(())
    }
}

impl RowReader for MemoryView {
    fn get(&self, key: RowKey) -> Result<Option<Bytes>, TableError> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, Bytes) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        self.0.scan(from, to, visit);
        Ok(())
    }
}

impl Table for MemoryTable {
    type View = MemoryView;

    /// Memory survives no restart, so the rows never belong to a previous owner.
    fn claim(&mut self, _owner: &[u8]) -> Result<bool, TableError> {
        *self = Self::default();
        Ok(false)
    }

    fn put(&mut self, key: RowKey, row: Bytes) -> Result<(), TableError> {
        self.rows.put(key, row);
        Ok(())
    }

    fn remove(&mut self, key: RowKey) -> Result<(), TableError> {
        self.rows.remove(key);
        Ok(())
    }

    fn commit(&mut self, _durable: bool) -> Result<(), TableError> {
        Ok(())
    }

    fn view(&self) -> Result<MemoryView, TableError> {
        Ok(MemoryView(self.rows.clone()))
    }

    fn make_detached(&self) -> Option<fn() -> Self> {
        Some(Self::default)
    }

    fn stage(&mut self, key: RowKey, row: Bytes) -> Result<(), TableError> {
        self.staged.put(key, row);
        Ok(())
    }

    fn replace_by_staged(&mut self) -> Result<(), TableError> {
        self.rows = std::mem::take(&mut self.staged);
        Ok(())
    }

    fn drop_staged(&mut self) -> Result<(), TableError> {
        self.staged = Blocks::default();
        Ok(())
    }

    fn defragment(&mut self) -> Result<(), TableError> {
        Ok(())
    }

    fn disk_bytes(&self) -> Result<Option<u64>, TableError> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_blocks_are_merged() {
        let mut table = MemoryTable::default();
        let revision = |number: u128| RowKey(number << 32);
        for number in 0..100_000 {
            table.put(revision(number), Bytes::new()).unwrap();
        }
        for number in (0..100_000).filter(|number| number % 100 != 0) {
            table.remove(revision(number)).unwrap();
        }
        let capacity: usize = table.rows.0.values().map(|block| block.capacity()).sum();
        assert!(capacity <= 8 * 1_000, "capacity for {capacity} rows is kept for 1000");
        for number in 0..100_000 {
            let exists = table.get(revision(number)).unwrap().is_some();
            assert_eq!(exists, number % 100 == 0, "{number}");
        }
    }

    /// Compares with a plain map: enough rows for many blocks, in an order that covers
    /// every way to put and remove one.
    #[test]
    fn behaves_as_a_map_and_views_do_not_change() {
        let mut table = MemoryTable::default();
        let mut map = BTreeMap::new();
        let mut views = Vec::new();
        let mut number: u128 = 1;
        for step in 0..20_000u64 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(12345);
            let key = RowKey(number >> 40 & 0x1fff);
            let row = Bytes::copy_from_slice(&step.to_le_bytes());
            if number >> 20 & 3 == 0 {
                table.remove(key).unwrap();
                map.remove(&key);
            } else {
                table.put(key, row.clone()).unwrap();
                map.insert(key, row);
            }
            if step % 4_000 == 0 {
                views.push((table.view().unwrap(), map.clone()));
            }
        }
        views.push((table.view().unwrap(), map));
        for (view, map) in views {
            let mut found = BTreeMap::new();
            let visit = &mut |key, row| {
                found.insert(key, row);
                ControlFlow::Continue(())
            };
            view.scan(RowKey(0), RowKey::END, visit).unwrap();
            assert_eq!(found, map);
            for key in (0..0x2000).map(RowKey) {
                assert_eq!(view.get(key).unwrap().as_ref(), map.get(&key));
            }
            let mut from_middle = Vec::new();
            let visit = &mut |key, _| {
                from_middle.push(key);
                ControlFlow::Continue(())
            };
            view.scan(RowKey(77), RowKey(3_000), visit).unwrap();
            let expected: Vec<_> = map.range(RowKey(77)..RowKey(3_000)).map(|(k, _)| *k).collect();
            assert_eq!(from_middle, expected);
        }
    }
}
