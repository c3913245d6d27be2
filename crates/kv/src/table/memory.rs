//! A table in memory.
//!
//! Rows lie in blocks that are shared with views (copy on write): a view costs one pointer
//! per block, and a write copies at most one shared block.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::row_block::{BLOCK_BYTES_MAX, BLOCK_ROWS_MAX, RowBlock, RowTooLarge};
use super::{RowReader, RowRef, Table, TableError};
use crate::revision::{RowKey, RowParts};

/// A [`Table`] in memory. It loses all rows with the process.
#[derive(Clone, Debug, Default)]
pub struct MemoryTable {
    rows: Blocks,
    staged: Blocks,
}

/// A view of a [`MemoryTable`].
#[derive(Clone, Debug)]
pub struct MemoryView(Blocks);

/// Sorted rows in sorted blocks. The key of a block is not above its first row, and all rows of a
/// block are of one kind: rows of revisions never change, so their blocks stay full.
#[derive(Clone, Debug, Default)]
struct Blocks(BTreeMap<RowKey, Arc<RowBlock>>);

/// A block with at most this many rows ...
const BLOCK_ROWS_FEW: usize = BLOCK_ROWS_MAX / 4;
/// ... and bytes is merged with a neighbour, if the result has room to grow before it is split.
const BLOCK_BYTES_FEW: usize = BLOCK_BYTES_MAX / 4;

impl Blocks {
    fn get(&self, key: RowKey) -> Option<RowRef<'_>> {
        let (first, block) = self.0.range(..=key).next_back()?;
        // Most revisions have one row: then the position follows from the revision.
        block.get(key, ((key.0 - first.0) >> 32) as usize)
    }

    fn put(&mut self, key: RowKey, row: RowParts<'_>) -> Result<(), TableError> {
        // Most writes come after all others: no search.
        let last = self.0.last_entry().filter(|last| last.get().last_key() < Some(key));
        if let Some(mut last) = last
            && last.key().is_of_same_kind(key)
        {
            if last.get().has_room(row.bytes()) {
                return put_row(Arc::make_mut(last.get_mut()), key, row);
            }
            // Appending leaves full blocks behind; splitting would leave half-full ones.
            let full = Arc::make_mut(last.get_mut());
            full.close();
            let mut next = full.next(row.bytes());
            put_row(&mut next, key, row)?;
            self.0.insert(key, Arc::new(next));
            return Ok(());
        }
        match self.0.range_mut(..=key).next_back() {
            Some((first, block)) if first.is_of_same_kind(key) => {
                let block = Arc::make_mut(block);
                let has_room = block.has_room(row.bytes());
                put_row(block, key, row)?;
                if !has_room
                    && block.len() > 1
                    && let Some((first, upper)) = block.split()
                {
                    self.0.insert(first, Arc::new(upper));
                }
            }
            _ => self.put_first(key, row)?,
        }
        Ok(())
    }

    /// Puts a row before all rows of its kind: into their first block, under a new block key.
    fn put_first(&mut self, key: RowKey, row: RowParts<'_>) -> Result<(), TableError> {
        let after = self.0.range(key..).next();
        let joined = after
            .filter(|(first, block)| first.is_of_same_kind(key) && block.has_room(row.bytes()))
            .map(|(first, _)| *first);
        let mut block = joined.and_then(|first| self.0.remove(&first)).unwrap_or_default();
        put_row(Arc::make_mut(&mut block), key, row)?;
        self.0.insert(key, block);
        Ok(())
    }

    fn remove(&mut self, key: RowKey) {
        let Some((first, block)) = self.0.range_mut(..=key).next_back() else { return };
        let (first, block) = (*first, Arc::make_mut(block));
        block.remove(key);
        if block.len() == 0 {
            self.0.remove(&first);
        } else if is_small(block) {
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
        let is_small = |key| self.0.get(&key).is_some_and(|block| is_small(block));
        if !first.is_of_same_kind(next) || !is_small(first) || !is_small(next) {
            return;
        }
        let moved = self.0.remove(&next).unwrap_or_default();
        if let Some(block) = self.0.get_mut(&first) {
            let block = Arc::make_mut(block);
            block.add_all(&moved);
            // A view of a full block shares its memory when the next row is removed.
            block.close();
        }
    }

    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()>,
    ) {
        let first = self.0.range(..=from).next_back().map_or(from, |(first, _)| *first);
        for block in self.0.range(first..).map(|(_, block)| block) {
            for (key, row) in block.rows_from(from) {
                if key >= to || visit(key, row).is_break() {
                    return;
                }
            }
        }
    }
}

fn put_row(block: &mut RowBlock, key: RowKey, row: RowParts<'_>) -> Result<(), TableError> {
    block.put(key, row).map_err(|RowTooLarge| TableError::BadRow(key))?;
    // No row follows this one, so readers may share it at once.
    if block.len() == 1 && !block.has_room(1) {
        block.close();
    }
    Ok(())
}

fn is_small(block: &RowBlock) -> bool {
    block.len() <= BLOCK_ROWS_FEW && block.row_bytes() <= BLOCK_BYTES_FEW
}

impl RowReader for MemoryTable {
    fn get(&self, key: RowKey) -> Result<Option<Bytes>, TableError> {
        Ok(self.rows.get(key).map(|row| row.to_bytes()))
    }

    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        self.rows.scan(from, to, visit);
        Ok(())
    }
}

impl RowReader for MemoryView {
    fn get(&self, key: RowKey) -> Result<Option<Bytes>, TableError> {
        Ok(self.0.get(key).map(|row| row.to_bytes()))
    }

    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()>,
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
        self.rows.put(key, row[..].into())
    }

    fn put_parts(&mut self, key: RowKey, row: RowParts<'_>) -> Result<(), TableError> {
        self.rows.put(key, row)
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

    fn stage(&mut self, key: RowKey, row: &[u8]) -> Result<(), TableError> {
        self.staged.put(key, row.into())
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

    fn revision(number: u128) -> RowKey {
        RowKey(number << 32)
    }

    /// The rows and bytes that all blocks have memory for.
    fn capacity(table: &MemoryTable) -> (usize, usize) {
        let blocks = table.rows.0.values().map(|block| block.capacity());
        blocks.fold((0, 0), |(rows, bytes), block| (rows + block.0, bytes + block.1))
    }

    #[test]
    fn rows_that_are_appended_take_little_more_than_their_bytes() {
        let mut table = MemoryTable::default();
        for number in 0..10_000 {
            table.put(revision(number), vec![7; 300].into()).unwrap();
        }
        let (rows, bytes) = capacity(&table);
        assert!(rows < 10_500, "{rows}");
        assert!(bytes < 10_300 * 300, "{bytes}");
    }

    #[test]
    fn small_blocks_are_merged_and_removed_rows_freed() {
        let mut table = MemoryTable::default();
        for number in 0..100_000 {
            table.put(revision(number), vec![7; 300].into()).unwrap();
        }
        for number in (0..100_000).filter(|number| number % 100 != 0) {
            table.remove(revision(number)).unwrap();
        }
        let (rows, bytes) = capacity(&table);
        assert!(rows <= 8 * 1_000, "{rows}");
        assert!(bytes <= 3 * 1_000 * 300, "{bytes}");
        assert!(table.rows.0.len() <= 100, "{}", table.rows.0.len());
        for number in 0..100_000 {
            let exists = table.get(revision(number)).unwrap().is_some();
            assert_eq!(exists, number % 100 == 0, "{number}");
        }
    }

    #[test]
    fn a_row_that_is_replaced_often_takes_little_memory() {
        let mut table = MemoryTable::default();
        for number in 0..1_000 {
            table.put(revision(number), vec![7; 300].into()).unwrap();
        }
        for number in 0..100_000u32 {
            table.put(RowKey::META, number.to_le_bytes().to_vec().into()).unwrap();
            table.put(revision(7), vec![number as u8; 400].into()).unwrap();
        }
        let (_, bytes) = capacity(&table);
        assert!(bytes < 2 * 1_000 * 300, "{bytes}");
        assert_eq!(table.get(revision(7)).unwrap().unwrap(), vec![99_999u32 as u8; 400]);
    }

    #[test]
    fn a_small_row_that_was_read_does_not_keep_its_block() {
        let mut table = MemoryTable::default();
        for number in 0..20 {
            let bytes = if number == 3 { 300 } else { 8_000 };
            table.put(revision(number), vec![number as u8; bytes].into()).unwrap();
        }
        let block = table.rows.0.values().next().unwrap();
        let in_block = |key| block.get(revision(key), 0).unwrap().as_ptr();
        let read = |key| table.get(revision(key)).unwrap().unwrap();
        assert_eq!(read(2).as_ptr(), in_block(2), "a large row is not copied");
        assert_ne!(read(3).as_ptr(), in_block(3));
        assert_eq!(read(3), vec![3; 300]);
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
            let key = random_key(number);
            let bytes = match number >> 8 & 0xfff {
                0 => 70_000,
                large if large < 50 => 5_000,
                small => (small & 0xff) as usize,
            };
            let mut row = step.to_le_bytes().to_vec();
            row.resize(bytes, step as u8);
            let row = Bytes::from(row);
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
        for (first, block) in &table.rows.0 {
            assert!(block.rows_from(RowKey(0)).all(|(key, _)| key.is_of_same_kind(*first)));
        }
        views.push((table.view().unwrap(), map));
        for (view, map) in views {
            let mut found = BTreeMap::new();
            let visit = &mut |key, row: RowRef<'_>| {
                found.insert(key, row.to_bytes());
                ControlFlow::Continue(())
            };
            view.scan(RowKey(0), RowKey::END, visit).unwrap();
            assert_eq!(found, map);
            for key in (0..0x4000).map(|number| random_key(number << 40)) {
                assert_eq!(view.get(key).unwrap().as_ref(), map.get(&key));
            }
            let (from, to) = (random_key(77 << 40), random_key(3_000 << 40));
            let mut from_middle = Vec::new();
            let visit = &mut |key, _: RowRef<'_>| {
                from_middle.push(key);
                ControlFlow::Continue(())
            };
            view.scan(from, to, visit).unwrap();
            let expected: Vec<_> = map.range(from..to).map(|(k, _)| *k).collect();
            assert_eq!(from_middle, expected);
        }
    }

    /// One of 8192 keys of two kinds.
    fn random_key(number: u128) -> RowKey {
        let kind = if number >> 52 & 1 == 0 { 0 } else { 3 << 120 };
        RowKey(kind | number >> 40 & 0xfff)
    }
}
