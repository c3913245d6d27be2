//! The write-ahead log: one record for each save, in segments of equal size.
//!
//! Owns the order of writes and syncs, so that recovery yields a prefix of the saves that
//! includes every synced one. It does not know about snapshot files and never retries: its
//! caller stops at the first failure.

pub(crate) mod index;
pub(crate) mod mark;
pub(crate) mod reader;
pub(crate) mod record;
pub(crate) mod segment;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use quorate_core::{Entries, Entry, EntryId, HardState, Index, Save};

use crate::error::{CorruptionKind, DiskFailure, DiskOperation, ReadError};
use crate::names::FileName;
use crate::{Disk, StoreIdentity};
use index::{LogIndex, RecordPosition};
use mark::{SyncMark, SyncMarkFile};
use reader::SegmentReader;
use record::RecordContents;
use segment::{HEAD_BYTES, Segment, SegmentHead, SegmentStart};

/// The log on disk and the position of its end.
#[derive(Clone, Debug)]
pub(crate) struct Wal<F> {
    pub(crate) identity: StoreIdentity,
    pub(crate) boots: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) hard_state: HardState,
    pub(crate) log: LogIndex,
    /// By number. Records are appended to the last one.
    pub(crate) segments: BTreeMap<u64, Segment<F>>,
    /// The offset of the next record.
    pub(crate) end: u64,
    pub(crate) next_sequence: u64,
    /// All records up to this sequence number are durable.
    pub(crate) synced: u64,
    pub(crate) marks: SyncMarkFile<F>,
    /// A trimmed segment that can be reused.
    pub(crate) spare: Option<F>,
    pub(crate) buffer: Vec<u8>,
    /// What the last load has not returned of the record that it read last.
    pub(crate) unread: Option<UnreadEntries>,
}

/// Consecutive entries of a record. A lagging peer gets a large record in several loads, which would
/// otherwise read and check all of it each time.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreadEntries {
    entries: VecDeque<Entry>,
    /// The bytes of the whole record: the entries share its memory.
    record_bytes: u64,
}

/// A larger record is not kept in memory between two loads.
const UNREAD_BYTES_MAX: u64 = 16 << 20;

impl UnreadEntries {
    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn next(&self) -> Option<Index> {
        self.entries.front().map(|entry| entry.id.index)
    }

    fn if_kept(self) -> Option<Self> {
        (self.record_bytes <= UNREAD_BYTES_MAX).then_some(self)
    }
}

/// The entries of one load so far.
struct LoadedEntries {
    range: Range<Index>,
    bytes_max: u64,
    entries: Vec<Entry>,
    bytes: u64,
}

impl LoadedEntries {
    /// The next entry that is missing.
    fn next(&self) -> Index {
        self.range.start + self.entries.len() as u64
    }

    fn is_complete(&self) -> bool {
        let is_full = self.bytes >= self.bytes_max && !self.entries.is_empty();
        is_full || self.next() >= self.range.end
    }

    /// Takes entries until it is complete. Returns the rest.
    fn take(&mut self, mut unread: UnreadEntries) -> UnreadEntries {
        while !self.is_complete() {
            let Some(entry) = unread.entries.pop_front() else { break };
            debug_assert_eq!(entry.id.index, self.next(), "entries are consecutive");
            self.bytes += entry.bytes();
            self.entries.push(entry);
        }
        unread
    }
}

/// Why a save was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendError {
    Failed(DiskFailure),
    /// The entries do not continue the log. Nothing was written.
    NotContiguous,
    /// Larger than a record can be. Nothing was written.
    TooLarge,
}

impl From<DiskFailure> for AppendError {
    fn from(why: DiskFailure) -> Self {
        Self::Failed(why)
    }
}

/// Why a segment cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenSegmentError {
    Unreadable(ReadError),
    UnsupportedVersion(u32),
}

impl<T: Into<ReadError>> From<T> for OpenSegmentError {
    fn from(why: T) -> Self {
        Self::Unreadable(why.into())
    }
}

impl<F: Clone> Wal<F> {
    /// Writes one save as one record: after a crash all of it is there or nothing. It is not
    /// durable before the next sync.
    pub(crate) fn append<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        save: &Save,
    ) -> Result<(), AppendError> {
        let install = save.install.as_ref().map(|meta| meta.id);
        if save.hard_state.is_none() && install.is_none() && save.entries.is_empty() {
            return Ok(());
        }
        let last = install.unwrap_or(self.log.last());
        let prev = match save.entries.first() {
            None => last,
            Some(first) => self.prev_of(first, install).ok_or(AppendError::NotContiguous)?,
        };
        if !is_contiguous(prev, &save.entries) {
            return Err(AppendError::NotContiguous);
        }
        let (hard_state, entries) = (save.hard_state, &save.entries);
        let contents = RecordContents { hard_state, install, prev, entries };
        self.append_record(disk, &contents)
    }

    /// The id of the previous entry: in the log, or of the snapshot to install.
    fn prev_of(&self, first: &Entry, install: Option<EntryId>) -> Option<EntryId> {
        let index = first.id.index.checked_sub(1)?;
        match install {
            Some(id) => (id.index == index).then_some(id),
            None => Some(EntryId::new(self.log.term(index)?, index)),
        }
    }

    fn append_record<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        contents: &RecordContents<'_>,
    ) -> Result<(), AppendError> {
        self.encode(contents)?;
        let mut bytes = self.buffer.len() as u64;
        if self.end + bytes > self.active().bytes {
            self.roll(disk, HEAD_BYTES + bytes)?;
            // The checksums depend on the segment.
            self.encode(contents)?;
            bytes = self.buffer.len() as u64;
        }
        let segment = self.active();
        let name = segment.name();
        let position = RecordPosition {
            segment: segment.head.number,
            offset: self.end,
            sequence: self.next_sequence,
        };
        disk.write_at(&segment.file, self.end, &self.buffer)
            .map_err(DiskFailure::when(DiskOperation::Write, name))?;
        self.end += bytes;
        self.next_sequence += 1;
        self.hard_state = contents.hard_state.unwrap_or(self.hard_state);
        if contents.install.is_some() || contents.prev.index < self.log.last().index {
            // The log no longer has these entries.
            self.unread = None;
        }
        if let Some(id) = contents.install {
            self.log.restore(id);
        }
        if !contents.entries.is_empty() {
            let ids = contents.entries.chunks().flatten().map(|entry| entry.id);
            let appended = self.log.append(contents.prev, ids, position, bytes);
            assert!(appended.is_ok(), "the entries were checked to continue the log");
        }
        Ok(())
    }

    fn encode(&mut self, contents: &RecordContents<'_>) -> Result<(), AppendError> {
        let seed = self.active().seed;
        // Do not keep the memory of a rare large save.
        let last = self.buffer.len();
        self.buffer.clear();
        self.buffer.shrink_to(last.max(1 << 20));
        if contents.encode(seed, self.next_sequence, self.synced, &mut self.buffer) {
            Ok(())
        } else {
            Err(AppendError::TooLarge)
        }
    }

    /// Makes all saves so far durable.
    pub(crate) fn sync<D: Disk<File = F>>(&mut self, disk: &mut D) -> Result<(), DiskFailure> {
        let last = self.next_sequence - 1;
        if self.synced == last {
            return Ok(());
        }
        let segment = self.active();
        let name = segment.name();
        disk.sync(&segment.file).map_err(DiskFailure::when(DiskOperation::Sync, name))?;
        let mark = SyncMark { segment: segment.head.number, end: self.end, sequence: last };
        self.synced = last;
        self.marks.write(disk, mark)
    }

    /// Starts a new segment of at least this size.
    pub(crate) fn roll<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        bytes_min: u64,
    ) -> Result<(), DiskFailure> {
        // The new head describes the end of the previous segment, which must be durable first.
        self.sync(disk)?;
        let previous = self.active().head;
        let head = SegmentHead {
            identity: self.identity,
            number: previous.number + 1,
            boots: self.boots,
            bytes: self.segment_bytes.max(bytes_min),
            first_sequence: self.next_sequence,
            previous: previous.number,
            previous_end: self.end,
            start: self.start(),
        };
        let spare = if head.bytes == self.segment_bytes { self.spare.take() } else { None };
        let segment = head.create(disk, spare)?;
        self.activate(segment);
        Ok(())
    }

    /// The state that the head of a new segment records.
    pub(crate) fn start(&self) -> SegmentStart {
        SegmentStart { hard_state: self.hard_state, floor: self.log.floor(), last: self.log.last() }
    }

    pub(crate) fn activate(&mut self, segment: Segment<F>) {
        self.end = HEAD_BYTES;
        self.segments.insert(segment.head.number, segment);
    }

    pub(crate) fn active(&self) -> &Segment<F> {
        let Some((_, segment)) = self.segments.last_key_value() else {
            unreachable!("a log always has an active segment");
        };
        segment
    }

    /// The entries of this range, up to `bytes_max`, but at least one if it exists.
    pub(crate) fn load<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        range: Range<Index>,
        bytes_max: u64,
    ) -> Result<Vec<Entry>, ReadError> {
        let continues = |unread: &UnreadEntries| unread.next() == Some(range.start);
        let unread = self.unread.take().filter(continues).unwrap_or_default();
        if range.start <= self.log.base().index {
            return Ok(Vec::new());
        }
        let mut loading = LoadedEntries { range, bytes_max, entries: Vec::new(), bytes: 0 };
        let unread = loading.take(unread);
        if !unread.is_empty() {
            self.unread = unread.if_kept();
            return Ok(loading.entries);
        }
        for span in self.log.spans_from(loading.next()) {
            let Some(segment) = self.segments.get(&span.position.segment) else {
                unreachable!("the index has no entries of dropped segments");
            };
            let mut reader = SegmentReader::new(disk, segment);
            let RecordPosition { mut offset, mut sequence, .. } = span.position;
            while loading.next() <= span.last && !loading.is_complete() {
                let Some(intact) = reader.record(offset, sequence)? else {
                    return Err(reader.corrupt(offset, CorruptionKind::ChecksumMismatch).into());
                };
                (offset, sequence) = (intact.end(), sequence + 1);
                let record_bytes = intact.header.record_bytes();
                let record = intact.decode(&reader)?;
                let mut appended = record.entries.map_or(Vec::new(), |appended| appended.entries);
                let wanted = loading.next()..=span.last;
                appended.retain(|entry| wanted.contains(&entry.id.index));
                let unread = UnreadEntries { entries: appended.into(), record_bytes };
                let unread = loading.take(unread);
                if !unread.is_empty() {
                    self.unread = unread.if_kept();
                    return Ok(loading.entries);
                }
            }
        }
        Ok(loading.entries)
    }

    /// Drops the segments without an entry after this index. What replaces them must be
    /// durable before.
    pub(crate) fn drop_up_to<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        index: Index,
    ) -> Result<(), DiskFailure> {
        self.unread = None;
        let active = self.active().head.number;
        let first_kept = self.log.segment_of_next(index).unwrap_or(active).min(active);
        let kept = self.segments.split_off(&first_kept);
        let dropped = std::mem::replace(&mut self.segments, kept);
        if dropped.is_empty() {
            return Ok(());
        }
        self.log.drop_before(first_kept);
        for segment in dropped.into_values() {
            let name = segment.name();
            if self.spare.is_none() && segment.bytes == self.segment_bytes {
                disk.rename(&name.to_string(), &FileName::SpareSegment.to_string())
                    .map_err(DiskFailure::when(DiskOperation::Rename, name))?;
                self.spare = Some(segment.file);
            } else {
                // The disk frees its space elsewhere, unless the last handle is closed here.
                drop(segment.file);
                disk.remove(&name.to_string())
                    .map_err(DiskFailure::when(DiskOperation::Remove, name))?;
            }
        }
        // A spare must not be overwritten while a crash could restore its old name.
        disk.sync_dir().map_err(DiskFailure::when(DiskOperation::Sync, FileName::Directory))
    }
}

/// Whether the indexes are consecutive after `prev` and the terms do not decrease.
fn is_contiguous(prev: EntryId, entries: &Entries) -> bool {
    let mut before = prev;
    entries.chunks().flatten().all(|entry| {
        let follows = entry.id.index == before.index + 1 && entry.id.term >= before.term;
        before = entry.id;
        follows
    })
}

#[cfg(test)]
mod tests;
