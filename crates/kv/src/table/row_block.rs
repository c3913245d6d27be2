//! A block of rows: their bytes in one piece of memory or of a file, and where each row is in it.
//!
//! A row takes its bytes and [`RowPlace`]; an allocation for each row would take more and would
//! round the size up. The bytes of removed and replaced rows stay until they are half of the block,
//! or until it is full.

use std::borrow::Cow;
use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bytes::Bytes;

use super::row_file::{ClosedBytes, ClosedPart, RowFile};
use super::{RowRef, RowVisitor, TRUNCATED, TableError};
use crate::revision::{RowKey, RowParts};

/// A block takes rows up to this size. A larger row is alone in its block. A power of two wastes
/// least: allocators have a size for it.
pub(super) const BLOCK_BYTES_MAX: usize = 64 << 10;
/// A block takes at most this many rows, however small they are.
pub(super) const BLOCK_ROWS_MAX: usize = 256;
/// A scan reads this much of a block in a file at once.
const READ_AHEAD_BYTES: usize = 16 << 10;

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
    /// The same of a table with a [`RowFile`], which they are moved to.
    Movable(Arc<ClosedBytes>),
}

/// A part of a block's bytes, in memory.
struct BlockSlice<'a> {
    /// Where it starts in the block.
    start: usize,
    bytes: SliceBytes<'a>,
}

enum SliceBytes<'a> {
    Growing(&'a [u8]),
    Shared(Cow<'a, Bytes>),
    /// Read from the file for this slice only.
    Read(Bytes),
}

impl Default for BlockBytes {
    fn default() -> Self {
        Self::Growing(Vec::new())
    }
}

impl BlockBytes {
    fn len(&self) -> usize {
        match self {
            Self::Growing(bytes) => bytes.len(),
            Self::Full(bytes) => bytes.len(),
            Self::Movable(bytes) => bytes.len(),
        }
    }

    /// A part that contains this range.
    fn part(&self, range: Range<usize>) -> io::Result<BlockSlice<'_>> {
        Ok(match self {
            Self::Growing(bytes) => BlockSlice { start: 0, bytes: SliceBytes::Growing(bytes) },
            Self::Full(bytes) => {
                BlockSlice { start: 0, bytes: SliceBytes::Shared(Cow::Borrowed(bytes)) }
            }
            Self::Movable(closed) => match closed.read(range)? {
                ClosedPart::Memory(bytes) => {
                    BlockSlice { start: 0, bytes: SliceBytes::Shared(Cow::Owned(bytes)) }
                }
                ClosedPart::File(start, bytes) => {
                    BlockSlice { start, bytes: SliceBytes::Read(bytes) }
                }
            },
        })
    }

    fn all(&self) -> io::Result<BlockSlice<'_>> {
        self.part(0..self.len())
    }

    fn take_growing(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Growing(bytes) => Some(std::mem::take(bytes)),
            Self::Full(_) | Self::Movable(_) => None,
        }
    }

    fn grow(&mut self) -> io::Result<&mut Vec<u8>> {
        let closed = match self {
            Self::Growing(_) => None,
            Self::Full(bytes) => Some(std::mem::take(bytes).into()),
            Self::Movable(closed) => match closed.read(0..closed.len())? {
                ClosedPart::Memory(bytes) | ClosedPart::File(_, bytes) => Some(bytes.into()),
            },
        };
        if let Some(bytes) = closed {
            *self = Self::Growing(bytes);
        }
        match self {
            Self::Growing(bytes) => Ok(bytes),
            Self::Full(_) | Self::Movable(_) => unreachable!("it was replaced above"),
        }
    }
}

impl BlockSlice<'_> {
    fn contains(&self, range: &Range<usize>) -> bool {
        self.start <= range.start && range.end <= self.start + self.as_slice().len()
    }

    fn as_slice(&self) -> &[u8] {
        match &self.bytes {
            SliceBytes::Growing(bytes) => bytes,
            SliceBytes::Shared(bytes) => bytes,
            SliceBytes::Read(bytes) => bytes,
        }
    }

    fn row(&self, place: &RowPlace) -> RowRef<'_> {
        let Range { start, end } = place.bytes();
        let range = start.wrapping_sub(self.start)..end.wrapping_sub(self.start);
        let row = self.as_slice().get(range).unwrap_or_default();
        match &self.bytes {
            SliceBytes::Growing(_) => RowRef::from(row),
            SliceBytes::Shared(bytes) => RowRef::part_of(bytes, row),
            // A reader that keeps the row would keep all that was read.
            SliceBytes::Read(bytes) if row.len() * 2 < bytes.len() => RowRef::from(row),
            SliceBytes::Read(bytes) => RowRef::part_of(bytes, row),
        }
    }
}

impl RowPlace {
    fn key(&self) -> RowKey {
        let [high, low] = self.key;
        RowKey(u128::from(high) << 64 | u128::from(low))
    }

    fn bytes(&self) -> Range<usize> {
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
        self.bytes.len() - self.unused
    }

    /// Whether a row of this size can be added. An empty block takes a row of any size.
    pub(super) fn has_room(&self, row_bytes: usize) -> bool {
        let len = self.len();
        len == 0 || len < BLOCK_ROWS_MAX && self.row_bytes() + row_bytes <= BLOCK_BYTES_MAX
    }

    pub(super) fn last_key(&self) -> Option<RowKey> {
        self.places.last().map(RowPlace::key)
    }

    fn position(&self, key: RowKey) -> Result<usize, usize> {
        self.places.binary_search_by_key(&key, RowPlace::key)
    }

    /// The row with this key. `guess` is its position if it is a usual block.
    pub(super) fn get(&self, key: RowKey, guess: usize) -> Result<Option<Bytes>, TableError> {
        let guessed = self.places.get(guess).filter(|place| place.key() == key);
        let searched = || self.position(key).ok().and_then(|position| self.places.get(position));
        let Some(place) = guessed.or_else(searched) else { return Ok(None) };
        let part = self.bytes.part(place.bytes()).map_err(|error| read_error(key, error))?;
        Ok(Some(part.row(place).to_bytes()))
    }

    /// Visits the rows with `from <= key < to`. Breaks if there is a row at or after `to`, or if
    /// `visit` does.
    pub(super) fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut RowVisitor<'_>,
    ) -> Result<ControlFlow<()>, TableError> {
        let first = self.places.partition_point(|place| place.key() < from);
        let mut part: Option<BlockSlice<'_>> = None;
        for place in self.places.iter().skip(first) {
            let key = place.key();
            if key >= to {
                return Ok(ControlFlow::Break(()));
            }
            let read = match part.take().filter(|part| part.contains(&place.bytes())) {
                Some(part) => part,
                None => self.read_ahead(place).map_err(|error| read_error(key, error))?,
            };
            let read = part.insert(read);
            if visit(key, read.row(place)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// This row, and some of those that follow it.
    fn read_ahead(&self, place: &RowPlace) -> io::Result<BlockSlice<'_>> {
        let Range { start, end } = place.bytes();
        self.bytes.part(start..end.max(start + READ_AHEAD_BYTES).min(self.bytes.len()))
    }

    /// Adds a row or replaces the one with this key.
    pub(super) fn put(&mut self, key: RowKey, row: RowParts<'_>) -> Result<(), TableError> {
        let position = match self.last_key() {
            Some(last) if last >= key => self.position(key),
            _ => Err(self.len()),
        };
        let bytes = self.bytes.grow().map_err(|error| read_error(key, error))?;
        // No log entry has a row of 4 GiB.
        let start = u32::try_from(bytes.len()).map_err(|_| TableError::BadRow(key))?;
        let length = u32::try_from(row.bytes()).map_err(|_| TableError::BadRow(key))?;
        row.append_to(bytes);
        let place = RowPlace { key: [(key.0 >> 64) as u64, key.0 as u64], start, length };
        match position {
            Ok(position) => {
                let replaced = self.places.get_mut(position);
                let replaced = replaced.map(|old| std::mem::replace(old, place));
                self.count_unused(replaced)?;
            }
            Err(position) => self.places.insert(position, place),
        }
        Ok(())
    }

    /// Removes a row, if it exists.
    pub(super) fn remove(&mut self, key: RowKey) -> Result<(), TableError> {
        let Ok(position) = self.position(key) else { return Ok(()) };
        let removed = self.places.remove(position);
        self.count_unused(Some(removed))
    }

    fn count_unused(&mut self, place: Option<RowPlace>) -> Result<(), TableError> {
        self.unused += place.map_or(0, |place| place.length as usize);
        let bytes = self.bytes.len();
        let is_due = match self.is_in_file() {
            // Space in the file costs less than to read the rows and to write them again.
            true => self.unused * 4 > bytes * 3,
            false => self.unused * 2 > bytes,
        };
        if is_due { self.rewrite() } else { Ok(()) }
    }

    /// Takes memory for the existing rows only.
    fn rewrite(&mut self) -> Result<(), TableError> {
        let mut rewritten = Self::default();
        if !self.places.is_empty() {
            let all = self.bytes.all().map_err(|error| read_error(self.first_key(), error))?;
            rewritten.add_rows(&self.places, &all)?;
        }
        let bytes = rewritten.bytes.take_growing().unwrap_or_default();
        rewritten.bytes = match &self.bytes {
            BlockBytes::Growing(_) => BlockBytes::Growing(bytes),
            BlockBytes::Full(_) => BlockBytes::Full(shrunk(bytes).into()),
            BlockBytes::Movable(old) => BlockBytes::Movable(old.rewritten(shrunk(bytes).into())),
        };
        *self = rewritten;
        Ok(())
    }

    /// Adds the rows of another block, all of which come after the rows of this one.
    pub(super) fn add_all(&mut self, other: &Self) -> Result<(), TableError> {
        let all = other.bytes.all().map_err(|error| read_error(other.first_key(), error))?;
        self.add_rows(&other.places, &all)
    }

    fn add_rows(&mut self, places: &[RowPlace], from: &BlockSlice<'_>) -> Result<(), TableError> {
        let first = self.first_key();
        let bytes = self.bytes.grow().map_err(|error| read_error(first, error))?;
        self.places.reserve_exact(places.len());
        bytes.reserve_exact(places.iter().map(|place| place.length as usize).sum());
        for place in places {
            // Only small blocks are merged, so no place is near its limit.
            self.places.push(RowPlace { start: bytes.len() as u32, ..*place });
            bytes.extend_from_slice(&from.row(place));
        }
        Ok(())
    }

    /// Moves the upper half of the rows into a new block.
    pub(super) fn split(
        &mut self,
        file: Option<&RowFile>,
        age: Option<u64>,
    ) -> Result<Option<(RowKey, Self)>, TableError> {
        let (below, above) = self.places.split_at(self.len() / 2);
        let Some(first) = above.first().map(RowPlace::key) else { return Ok(None) };
        let all = self.bytes.all().map_err(|error| read_error(first, error))?;
        let (mut lower, mut upper) = (Self::default(), Self::default());
        lower.add_rows(below, &all)?;
        upper.add_rows(above, &all)?;
        lower.close(file, age)?;
        upper.close(file, age)?;
        *self = lower;
        Ok(Some((first, upper)))
    }

    /// No row is expected to be added: frees memory that was reserved for more. With a file, the
    /// bytes are moved there when the rows of that age are.
    pub(super) fn close(
        &mut self,
        file: Option<&RowFile>,
        age: Option<u64>,
    ) -> Result<(), TableError> {
        if self.unused > 0 && matches!(self.bytes, BlockBytes::Growing(_)) {
            self.rewrite()?;
        }
        self.places.shrink_to_fit();
        if let Some(bytes) = self.bytes.take_growing() {
            let bytes = shrunk(bytes).into();
            self.bytes = match file {
                Some(file) => BlockBytes::Movable(file.add(bytes, age)),
                None => BlockBytes::Full(bytes),
            };
        }
        Ok(())
    }

    pub(super) fn is_in_file(&self) -> bool {
        matches!(&self.bytes, BlockBytes::Movable(closed) if closed.is_in_file())
    }

    /// The age of the rows, if they may be moved to a file.
    pub(super) fn age(&self) -> Option<u64> {
        match &self.bytes {
            BlockBytes::Movable(closed) => Some(closed.age()),
            BlockBytes::Growing(_) | BlockBytes::Full(_) => None,
        }
    }

    fn first_key(&self) -> RowKey {
        self.places.first().map_or(RowKey(0), RowPlace::key)
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> (usize, usize) {
        let bytes = match &self.bytes {
            BlockBytes::Growing(bytes) => bytes.capacity(),
            BlockBytes::Full(bytes) => bytes.len(),
            BlockBytes::Movable(closed) if closed.is_in_file() => 0,
            BlockBytes::Movable(closed) => closed.len(),
        };
        (self.places.capacity(), bytes)
    }
}

fn read_error(key: RowKey, error: io::Error) -> TableError {
    match TRUNCATED.contains(&error.kind()) {
        true => TableError::BadRow(key),
        false => TableError::Disk(error),
    }
}

/// A copy is worth an eighth of the memory.
fn shrunk(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.capacity() - bytes.len() > bytes.len() / 8 {
        bytes.shrink_to_fit();
    }
    bytes
}
