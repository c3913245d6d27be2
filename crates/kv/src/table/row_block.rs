//! A block of rows: their bytes in one piece of memory, and where each row is in it.
//!
//! A row takes its bytes and [`RowPlace`]; an allocation for each row would take more and would
//! round the size up. The bytes of removed and replaced rows stay until they are half of the block,
//! or until it is full.

use bytes::Bytes;

use super::RowRef;
use crate::revision::{RowKey, RowParts};

/// A block takes rows up to this size. A larger row is alone in its block. A power of two wastes
/// least: allocators have a size for it.
pub(super) const BLOCK_BYTES_MAX: usize = 64 << 10;
/// A block takes at most this many rows, however small they are.
pub(super) const BLOCK_ROWS_MAX: usize = 256;
/// Sorted rows.
#[derive(Clone, Debug, Default)]
pub(super) struct RowBlock {
    places: Vec<RowPlace>,
    bytes: BlockBytes,
    /// Bytes of rows that were removed or replaced.
    unused: usize,
}

/// Where the row with a key is in its block.
#[derive(Clone, Copy, Debug)]
struct RowPlace {
    /// The two halves of the key: as one number it would be aligned to 16 bytes.
    key: [u64; 2],
    start: u32,
    length: u32,
}

#[derive(Clone, Debug)]
enum BlockBytes {
    /// Rows are added.
    Growing(Vec<u8>),
    /// The block is full. Readers of large rows share its memory.
    Full(Bytes),
}

impl Default for BlockBytes {
    fn default() -> Self {
        Self::Growing(Vec::new())
    }
}

impl BlockBytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Growing(bytes) => bytes,
            Self::Full(bytes) => bytes,
        }
    }

    fn grow(&mut self) -> &mut Vec<u8> {
        if let Self::Full(bytes) = self {
            *self = Self::Growing(std::mem::take(bytes).into());
        }
        match self {
            Self::Growing(bytes) => bytes,
            Self::Full(_) => unreachable!("it was replaced above"),
        }
    }
}

impl RowPlace {
    fn key(&self) -> RowKey {
        let [high, low] = self.key;
        RowKey(u128::from(high) << 64 | u128::from(low))
    }

    fn bytes(&self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..start + self.length as usize
    }
}

impl RowBlock {
    /// A block that is likely to become as full as this one.
    pub(super) fn next(&self, row_bytes: usize) -> Self {
        let is_alone = row_bytes * 2 > BLOCK_BYTES_MAX;
        let (rows, bytes) = if is_alone { (1, row_bytes) } else { (self.len(), BLOCK_BYTES_MAX) };
        let bytes = BlockBytes::Growing(Vec::with_capacity(bytes));
        Self { places: Vec::with_capacity(rows), bytes, unused: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The bytes of all rows.
    pub(super) fn row_bytes(&self) -> usize {
        self.bytes.as_slice().len() - self.unused
    }

    /// Whether a row of this size can be added. An empty block takes a row of any size.
    pub(super) fn has_room(&self, row_bytes: usize) -> bool {
        let len = self.len();
        len == 0 || len < BLOCK_ROWS_MAX && self.row_bytes() + row_bytes <= BLOCK_BYTES_MAX
    }

    pub(super) fn last_key(&self) -> Option<RowKey> {
        self.places.last().map(RowPlace::key)
    }

    fn at(&self, position: usize) -> Option<(RowKey, RowRef<'_>)> {
        let place = self.places.get(position)?;
        Some((place.key(), self.row(place)))
    }

    fn row(&self, place: &RowPlace) -> RowRef<'_> {
        let row = self.bytes.as_slice().get(place.bytes()).unwrap_or_default();
        match &self.bytes {
            BlockBytes::Growing(_) => RowRef::from(row),
            BlockBytes::Full(bytes) => RowRef::part_of(bytes, row),
        }
    }

    fn position(&self, key: RowKey) -> Result<usize, usize> {
        self.places.binary_search_by_key(&key, RowPlace::key)
    }

    /// The row with this key. `guess` is its position if it is a usual block.
    pub(super) fn get(&self, key: RowKey, guess: usize) -> Option<RowRef<'_>> {
        if let Some((_, row)) = self.at(guess).filter(|(found, _)| *found == key) {
            return Some(row);
        }
        self.position(key).ok().and_then(|position| self.at(position)).map(|(_, row)| row)
    }

    /// The rows from this key on.
    pub(super) fn rows_from(&self, from: RowKey) -> impl Iterator<Item = (RowKey, RowRef<'_>)> {
        let start = self.places.partition_point(|place| place.key() < from);
        let places = self.places.get(start..).unwrap_or_default();
        places.iter().map(|place| (place.key(), self.row(place)))
    }

    /// Adds a row or replaces the one with this key.
    pub(super) fn put(&mut self, key: RowKey, row: RowParts<'_>) -> Result<(), RowTooLarge> {
        let position = match self.last_key() {
            Some(last) if last >= key => self.position(key),
            _ => Err(self.len()),
        };
        let bytes = self.bytes.grow();
        let start = u32::try_from(bytes.len()).map_err(|_| RowTooLarge)?;
        let length = u32::try_from(row.bytes()).map_err(|_| RowTooLarge)?;
        row.append_to(bytes);
        let place = RowPlace { key: [(key.0 >> 64) as u64, key.0 as u64], start, length };
        match position {
            Ok(position) => {
                let replaced = self.places.get_mut(position);
                let replaced = replaced.map(|old| std::mem::replace(old, place));
                self.count_unused(replaced);
            }
            Err(position) => self.places.insert(position, place),
        }
        Ok(())
    }

    /// Removes a row and returns whether it existed.
    pub(super) fn remove(&mut self, key: RowKey) -> bool {
        let Ok(position) = self.position(key) else { return false };
        let removed = self.places.remove(position);
        self.count_unused(Some(removed));
        true
    }

    fn count_unused(&mut self, place: Option<RowPlace>) {
        self.unused += place.map_or(0, |place| place.length as usize);
        if self.unused * 2 > self.bytes.as_slice().len() {
            self.rewrite();
        }
    }

    /// Takes memory for the existing rows only.
    fn rewrite(&mut self) {
        let mut rewritten = Self::default();
        rewritten.add_rows(&self.places, self.bytes.as_slice());
        if matches!(self.bytes, BlockBytes::Full(_)) {
            rewritten.close();
        }
        *self = rewritten;
    }

    /// Adds the rows of another block, all of which come after the rows of this one.
    pub(super) fn add_all(&mut self, other: &Self) {
        self.add_rows(&other.places, other.bytes.as_slice());
    }

    fn add_rows(&mut self, places: &[RowPlace], from: &[u8]) {
        let bytes = self.bytes.grow();
        self.places.reserve_exact(places.len());
        bytes.reserve_exact(places.iter().map(|place| place.length as usize).sum());
        for place in places {
            // Only small blocks are merged, so no place is near its limit.
            self.places.push(RowPlace { start: bytes.len() as u32, ..*place });
            bytes.extend_from_slice(from.get(place.bytes()).unwrap_or_default());
        }
    }

    /// Moves the upper half of the rows into a new block.
    pub(super) fn split(&mut self) -> Option<(RowKey, Self)> {
        let (below, above) = self.places.split_at(self.len() / 2);
        let first = above.first()?.key();
        let (mut lower, mut upper) = (Self::default(), Self::default());
        lower.add_rows(below, self.bytes.as_slice());
        upper.add_rows(above, self.bytes.as_slice());
        lower.close();
        upper.close();
        *self = lower;
        Some((first, upper))
    }

    /// No row is expected to be added: frees memory that was reserved for more.
    pub(super) fn close(&mut self) {
        if self.unused > 0 {
            self.rewrite();
        }
        self.places.shrink_to_fit();
        let bytes = std::mem::take(self.bytes.grow());
        self.bytes = BlockBytes::Full(shrunk(bytes).into());
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> (usize, usize) {
        let bytes = match &self.bytes {
            BlockBytes::Growing(bytes) => bytes.capacity(),
            BlockBytes::Full(bytes) => bytes.len(),
        };
        (self.places.capacity(), bytes)
    }
}

/// A copy is worth an eighth of the memory.
fn shrunk(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.capacity() - bytes.len() > bytes.len() / 8 {
        bytes.shrink_to_fit();
    }
    bytes
}

/// A row of more than 4 GiB, which no log entry can have.
#[derive(Debug)]
pub(super) struct RowTooLarge;
