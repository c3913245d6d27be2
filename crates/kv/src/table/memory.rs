//! A table in memory.
//!
//! Rows lie in blocks that are shared with views (copy on write): a view costs one pointer
//! per block, and a write copies at most one shared block. With a [`RowFile`], the oldest blocks are
//! moved to it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::row_block::{BLOCK_BYTES_MAX, BLOCK_ROWS_MAX, RowBlock};
use super::{MakeTable, RowFile, RowReader, RowRef, RowVisitor, Table, TableError};
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
struct Blocks {
    by_key: BTreeMap<RowKey, Arc<RowBlock>>,
    /// Where closed blocks of revisions are moved to.
    file: Option<RowFile>,
}

/// A block with at most this many rows ...
const BLOCK_ROWS_FEW: usize = BLOCK_ROWS_MAX / 4;
/// ... and bytes is merged with a neighbour, if the result has room to grow before it is split.
const BLOCK_BYTES_FEW: usize = BLOCK_BYTES_MAX / 4;

impl MemoryTable {
    /// A table that moves its oldest rows to this file.
    pub fn with_file(file: RowFile) -> Self {
        let rows = Blocks { by_key: BTreeMap::new(), file: Some(file) };
        Self { staged: rows.clone(), rows }
    }
}

impl Blocks {
    /// No rows, with the same file.
    fn empty(&self) -> Self {
        Self { by_key: BTreeMap::new(), file: self.file.clone() }
    }

    fn get(&self, key: RowKey) -> Result<Option<Bytes>, TableError> {
        let Some((first, block)) = self.by_key.range(..=key).next_back() else { return Ok(None) };
        // Most revisions have one row: then the position follows from the revision.
        block.get(key, ((key.0 - first.0) >> 32) as usize)
    }

    fn is_in_file(&self, key: RowKey) -> bool {
        let is_used = file_of(self.file.as_ref(), key).is_some_and(RowFile::is_used);
        let block = || self.by_key.range(..=key).next_back();
        is_used && block().is_some_and(|(_, block)| block.is_in_file())
    }

    fn put(&mut self, key: RowKey, row: RowParts<'_>) -> Result<(), TableError> {
        let file = file_of(self.file.as_ref(), key);
        // Most writes come after all others: no search.
        let last = self.by_key.last_entry().filter(|last| last.get().last_key() < Some(key));
        if let Some(mut last) = last
            && last.key().is_of_same_kind(key)
        {
            if last.get().has_room(row.bytes()) {
                return put_row(Arc::make_mut(last.get_mut()), file, key, row);
            }
            // Appending leaves full blocks behind; splitting would leave half-full ones.
            let full = Arc::make_mut(last.get_mut());
            full.close(file, None)?;
            let mut next = full.next(row.bytes());
            put_row(&mut next, file, key, row)?;
            self.by_key.insert(key, Arc::new(next));
            return Ok(());
        }
        match self.by_key.range_mut(..=key).next_back() {
            Some((first, block)) if first.is_of_same_kind(key) => {
                let block = Arc::make_mut(block);
                let (has_room, age) = (block.has_room(row.bytes()), block.age());
                put_row(block, file, key, row)?;
                if !has_room
                    && block.len() > 1
                    && let Some((first, upper)) = block.split(file, age)?
                {
                    self.by_key.insert(first, Arc::new(upper));
                } else if age.is_some() {
                    // Blocks before the last one do not stay in memory.
                    block.close(file, age)?;
                }
            }
            _ => self.put_first(key, row)?,
        }
        Ok(())
    }

    /// Puts a row before all rows of its kind: into their first block, under a new block key.
    fn put_first(&mut self, key: RowKey, row: RowParts<'_>) -> Result<(), TableError> {
        let after = self.by_key.range(key..).next();
        let after = after.filter(|(first, _)| first.is_of_same_kind(key));
        let age = after.and_then(|(_, block)| block.age());
        let joined =
            after.filter(|(_, block)| block.has_room(row.bytes())).map(|(first, _)| *first);
        let is_last = after.is_none() || joined.is_some() && age.is_none();
        let mut block = joined.and_then(|first| self.by_key.remove(&first)).unwrap_or_default();
        let (file, changed) = (file_of(self.file.as_ref(), key), Arc::make_mut(&mut block));
        put_row(changed, file, key, row)?;
        if file.is_some() && !is_last {
            // Blocks before the last one do not stay in memory.
            changed.close(file, age)?;
        }
        self.by_key.insert(key, block);
        Ok(())
    }

    fn remove(&mut self, key: RowKey) -> Result<(), TableError> {
        let Some((first, block)) = self.by_key.range_mut(..=key).next_back() else {
            return Ok(());
        };
        let (first, block) = (*first, Arc::make_mut(block));
        block.remove(key)?;
        if block.len() == 0 {
            self.by_key.remove(&first);
            Ok(())
        } else if is_small(block) {
            self.merge_with_neighbours(first)
        } else {
            Ok(())
        }
    }

    /// Merges a small block with small neighbours. Without this, compaction could leave one
    /// block for each remaining row.
    fn merge_with_neighbours(&mut self, first: RowKey) -> Result<(), TableError> {
        let before = self.by_key.range(..first).next_back().map(|(first, _)| *first);
        let after = self.by_key.range(first..).nth(1).map(|(first, _)| *first);
        if let Some(after) = after {
            self.merge(first, after)?;
        }
        match before {
            Some(before) => self.merge(before, first),
            None => Ok(()),
        }
    }

    /// Moves the rows of a block to the end of the block before it, if both are small.
    fn merge(&mut self, first: RowKey, next: RowKey) -> Result<(), TableError> {
        let is_small = |key| self.by_key.get(&key).is_some_and(|block| is_small(block));
        if !first.is_of_same_kind(next) || !is_small(first) || !is_small(next) {
            return Ok(());
        }
        let moved = self.by_key.remove(&next).unwrap_or_default();
        if let Some(block) = self.by_key.get_mut(&first) {
            let block = Arc::make_mut(block);
            let age = block.age().or(moved.age());
            block.add_all(&moved)?;
            // A view of a full block shares its memory when the next row is removed.
            block.close(file_of(self.file.as_ref(), first), age)?;
        }
        Ok(())
    }

    fn close_last(&mut self) -> Result<(), TableError> {
        let Some(mut last) = self.by_key.last_entry() else { return Ok(()) };
        let file = file_of(self.file.as_ref(), *last.key());
        Arc::make_mut(last.get_mut()).close(file, None)
    }

    fn scan(&self, from: RowKey, to: RowKey, visit: &mut RowVisitor<'_>) -> Result<(), TableError> {
        let first = self.by_key.range(..=from).next_back().map_or(from, |(first, _)| *first);
        for block in self.by_key.range(first..).map(|(_, block)| block) {
            if block.scan(from, to, visit)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// The file for rows of this kind. The others are few, or change often.
fn file_of(file: Option<&RowFile>, key: RowKey) -> Option<&RowFile> {
    file.filter(|_| key.is_of_same_kind(RowKey::REVISIONS))
}

fn put_row(
    block: &mut RowBlock,
    file: Option<&RowFile>,
    key: RowKey,
    row: RowParts<'_>,
) -> Result<(), TableError> {
    block.put(key, row)?;
    // No row follows this one, so readers may share it at once.
    if block.len() == 1 && !block.has_room(1) {
        block.close(file, None)?;
    }
    Ok(())
}

fn is_small(block: &RowBlock) -> bool {
    block.len() <= BLOCK_ROWS_FEW && block.row_bytes() <= BLOCK_BYTES_FEW
}

impl RowReader for MemoryTable {
    fn get(&self, key: RowKey) -> Result<Option<Bytes>, TableError> {
        self.rows.get(key)
    }

    fn is_in_file(&self, key: RowKey) -> bool {
        self.rows.is_in_file(key)
    }

    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        self.rows.scan(from, to, visit)
    }
}

impl RowReader for MemoryView {
    fn get(&self, key: RowKey) -> Result<Option<Bytes>, TableError> {
        self.0.get(key)
    }

    fn is_in_file(&self, key: RowKey) -> bool {
        self.0.is_in_file(key)
    }

    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        self.0.scan(from, to, visit)
    }
}

impl Table for MemoryTable {
    type View = MemoryView;

    /// Memory survives no restart, so the rows never belong to a previous owner.
    fn claim(&mut self, _owner: &[u8]) -> Result<bool, TableError> {
        (self.rows, self.staged) = (self.rows.empty(), self.rows.empty());
        Ok(false)
    }

    fn put(&mut self, key: RowKey, row: Bytes) -> Result<(), TableError> {
        self.rows.put(key, row[..].into())
    }

    fn put_parts(&mut self, key: RowKey, row: RowParts<'_>) -> Result<(), TableError> {
        self.rows.put(key, row)
    }

    fn remove(&mut self, key: RowKey) -> Result<(), TableError> {
        self.rows.remove(key)
    }

    fn commit(&mut self, _durable: bool) -> Result<(), TableError> {
        Ok(())
    }

    fn view(&self) -> Result<MemoryView, TableError> {
        Ok(MemoryView(self.rows.clone()))
    }

    /// They share the file, and the memory that its tables may take.
    fn make_detached(&self) -> Option<MakeTable<Self>> {
        let rows = self.rows.empty();
        Some(Box::new(move || Self { rows: rows.clone(), staged: rows.clone() }))
    }

    fn stage(&mut self, key: RowKey, row: &[u8]) -> Result<(), TableError> {
        self.staged.put(key, row.into())
    }

    fn replace_by_staged(&mut self) -> Result<(), TableError> {
        let staged = self.rows.empty();
        self.rows = std::mem::replace(&mut self.staged, staged);
        Ok(())
    }

    fn drop_staged(&mut self) -> Result<(), TableError> {
        self.staged = self.rows.empty();
        Ok(())
    }

    /// Frees the memory that the last block has for more rows.
    fn defragment(&mut self) -> Result<(), TableError> {
        self.rows.close_last()
    }

    fn disk_bytes(&self) -> Result<Option<u64>, TableError> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::RowMap;

    fn revision(number: u128) -> RowKey {
        RowKey(number << 32)
    }

    /// The rows and bytes that all blocks have memory for.
    fn capacity(table: &MemoryTable) -> (usize, usize) {
        let blocks = table.rows.by_key.values().map(|block| block.capacity());
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
        assert!(table.rows.by_key.len() <= 100, "{}", table.rows.by_key.len());
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
        let in_block = |number| {
            let (mut address, from) = (None, revision(number));
            let visit = &mut |_, row: RowRef<'_>| {
                address = Some(row.as_ptr());
                ControlFlow::Continue(())
            };
            table.scan(from, revision(number + 1), visit).unwrap();
            address.unwrap()
        };
        let read = |key| table.get(revision(key)).unwrap().unwrap();
        assert_eq!(read(2).as_ptr(), in_block(2), "a large row is not copied");
        assert_ne!(read(3).as_ptr(), in_block(3));
        assert_eq!(read(3), vec![3; 300]);
    }

    #[test]
    fn all_rows_of_a_block_are_of_one_kind() {
        let (mut table, mut map) = (MemoryTable::default(), RowMap::default());
        map.change_randomly(&mut table, 1, 10_000);
        for (first, block) in &table.rows.by_key {
            let all = &mut |key: RowKey, _: RowRef<'_>| {
                assert!(key.is_of_same_kind(*first));
                ControlFlow::Continue(())
            };
            assert!(block.scan(RowKey(0), RowKey::END, all).unwrap().is_continue());
        }
    }
}
