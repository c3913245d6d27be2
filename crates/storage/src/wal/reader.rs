//! Reads records, and distinguishes a torn write from corruption.

use bytes::Bytes;

use super::mark::SyncMark;
use super::record::{ALIGNMENT, HEADER_BYTES, Record, RecordHeader};
use super::segment::{HEAD_BYTES, Segment};
use crate::Disk;
use crate::error::{Corruption, CorruptionKind, DiskFailure, DiskOperation, ReadError};

/// The size of one read.
const WINDOW_BYTES: u64 = 256 << 10;

/// Reads one segment through a moving window.
pub(crate) struct SegmentReader<'a, D: Disk> {
    disk: &'a mut D,
    segment: &'a Segment<D::File>,
    window: Vec<u8>,
    window_at: u64,
}

/// An intact record.
pub(crate) struct IntactRecord {
    pub(crate) header: RecordHeader,
    body: Bytes,
    offset: u64,
}

impl<'a, D: Disk> SegmentReader<'a, D> {
    pub(crate) fn new(disk: &'a mut D, segment: &'a Segment<D::File>) -> Self {
        Self { disk, segment, window: Vec::new(), window_at: 0 }
    }

    /// The record with this sequence number at this offset, if it is intact.
    pub(crate) fn record(
        &mut self,
        offset: u64,
        sequence: u64,
    ) -> Result<Option<IntactRecord>, DiskFailure> {
        let seed = self.segment.seed;
        let Some(header) = self.header(offset)?.and_then(|bytes| RecordHeader::decode(bytes, seed))
        else {
            return Ok(None);
        };
        if header.sequence != sequence {
            return Ok(None);
        }
        let body_at = offset + HEADER_BYTES as u64;
        let body = self.body(body_at, u64::from(header.body_bytes))?;
        let Some(body) = body.filter(|body| header.matches(body, seed)) else { return Ok(None) };
        Ok(Some(IntactRecord { header, body, offset }))
    }

    /// The body of a record; `None` if the segment ends before. A long one is read into memory of its own,
    /// without a copy.
    fn body(&mut self, offset: u64, count: u64) -> Result<Option<Bytes>, DiskFailure> {
        let is_short = count <= WINDOW_BYTES;
        let ends_before = offset.checked_add(count).is_none_or(|end| end > self.segment.bytes);
        if is_short || ends_before {
            return Ok(self.bytes(offset, count)?.map(Bytes::copy_from_slice));
        }
        let mut body = vec![0; count as usize];
        self.read(offset, &mut body)?;
        Ok(Some(body.into()))
    }

    /// Decides what it means that there is no intact record at this offset. If nothing shows
    /// that the record was durable, the log ends here, as after a crash. Otherwise the log
    /// is corrupt.
    ///
    /// A crash may keep any part of the writes since the last sync, so later records may be
    /// intact. Only the durable sequence number that they hold counts.
    pub(crate) fn check_end(
        &mut self,
        offset: u64,
        sequence: u64,
        mark: SyncMark,
    ) -> Result<(), ReadError> {
        let file = self.segment.name();
        if self.segment.bytes < self.segment.head.bytes {
            let offset = self.segment.bytes;
            return Err(Corruption { file, offset, why: CorruptionKind::Truncated }.into());
        }
        let marked = mark.segment == self.segment.head.number && mark.end > offset;
        if marked || self.is_claimed_durable(offset, sequence)? {
            return Err(Corruption { file, offset, why: CorruptionKind::ChecksumMismatch }.into());
        }
        Ok(())
    }

    /// Whether a later record shows that the record with this sequence number was durable.
    fn is_claimed_durable(&mut self, from: u64, sequence: u64) -> Result<bool, DiskFailure> {
        let (seed, end) = (self.segment.seed, self.segment.bytes);
        let records_max = end / HEADER_BYTES as u64;
        let proves = |bytes: &[u8; HEADER_BYTES]| {
            // Cheap check first: nearly all offsets fail it, so few checksums are computed.
            let ahead = RecordHeader::sequence_in(bytes).wrapping_sub(sequence);
            ahead <= records_max
                && RecordHeader::decode(bytes, seed).is_some_and(|header| header.synced >= sequence)
        };
        let mut offset = from.next_multiple_of(ALIGNMENT);
        while offset + HEADER_BYTES as u64 <= end {
            let count = (end - offset).min(WINDOW_BYTES);
            let Some(mut bytes) = self.bytes(offset, count)? else { break };
            while let Some(header) = bytes.first_chunk() {
                if proves(header) {
                    return Ok(true);
                }
                bytes = &bytes[ALIGNMENT as usize..];
                offset += ALIGNMENT;
            }
        }
        Ok(false)
    }

    fn header(&mut self, offset: u64) -> Result<Option<&[u8; HEADER_BYTES]>, DiskFailure> {
        let bytes = self.bytes(offset, HEADER_BYTES as u64)?;
        Ok(bytes.and_then(|bytes| bytes.first_chunk()))
    }

    /// A part of the segment; `None` if the segment ends before.
    fn bytes(&mut self, offset: u64, count: u64) -> Result<Option<&[u8]>, DiskFailure> {
        let Some(end) = offset.checked_add(count).filter(|end| *end <= self.segment.bytes) else {
            return Ok(None);
        };
        let window_end = self.window_at + self.window.len() as u64;
        if offset < self.window_at || end > window_end {
            let length = count.max(WINDOW_BYTES).min(self.segment.bytes - offset);
            if self.window.len() as u64 != length {
                self.window = vec![0; length as usize];
            }
            self.window_at = offset;
            let mut window = std::mem::take(&mut self.window);
            let read = self.read(offset, &mut window);
            self.window = window;
            read?;
        }
        let start = (offset - self.window_at) as usize;
        Ok(self.window.get(start..start + count as usize))
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DiskFailure> {
        let read = self.disk.read_at(&self.segment.file, offset, into);
        read.map_err(DiskFailure::when(DiskOperation::Read, self.segment.name()))
    }

    pub(crate) fn corrupt(&self, offset: u64, why: CorruptionKind) -> Corruption {
        Corruption { file: self.segment.name(), offset, why }
    }
}

impl IntactRecord {
    /// The offset of the next record.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.header.record_bytes()
    }

    pub(crate) fn decode<D: Disk>(
        self,
        reader: &SegmentReader<'_, D>,
    ) -> Result<Record, Corruption> {
        let offset = self.offset;
        self.header
            .decode_body(self.body)
            .map_err(|why| reader.corrupt(offset, CorruptionKind::Undecodable(why)))
    }
}

/// Opens a segment and reads its head.
pub(crate) fn open<D: Disk>(
    disk: &mut D,
    number: u64,
) -> Result<Segment<D::File>, super::OpenSegmentError> {
    use super::segment::{SegmentHead, SegmentHeadError};
    use crate::names::FileName;

    let name = FileName::Segment(number);
    let corrupt = |why| ReadError::Corrupt(Corruption { file: name, offset: 0, why });
    let file =
        disk.open(&name.to_string()).map_err(DiskFailure::when(DiskOperation::Open, name))?;
    let bytes = disk.len(&file).map_err(DiskFailure::when(DiskOperation::Read, name))?;
    let mut head = vec![0; bytes.min(HEAD_BYTES) as usize];
    disk.read_at(&file, 0, &mut head).map_err(DiskFailure::when(DiskOperation::Read, name))?;
    if head.is_empty() {
        return Err(corrupt(CorruptionKind::Truncated).into());
    }
    let (head, seed) = SegmentHead::decode(&head).map_err(|why| match why {
        SegmentHeadError::Damaged(why) => corrupt(why).into(),
        SegmentHeadError::UnsupportedVersion(found) => {
            super::OpenSegmentError::UnsupportedVersion(found)
        }
    })?;
    if head.number != number {
        return Err(corrupt(CorruptionKind::Misplaced).into());
    }
    Ok(Segment { head, seed, file, bytes })
}
