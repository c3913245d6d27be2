//! The whole state as chunks of bytes, in the same format for every table.
//!
//! A snapshot captures one moment while commands continue. Each chunk carries its checksum,
//! and the last one a checksum of all chunks: an incomplete or damaged snapshot is refused,
//! and the old state stays. `docs/formats.md` describes the bytes.

use std::fmt;
use std::ops::ControlFlow;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::codec::{put_bytes, take_byte, take_bytes};
use crate::hash::CompactionHashes;
use crate::machine::Kv;
use crate::revision::RowKey;
use crate::state::{KvState, newer_version};
use crate::table::{RowReader, Table, TableError};
use crate::version::NewerVersion;

/// The chunks of a snapshot, in order. If the table fails while it is read, the chunks end
/// early, and an installer refuses them as incomplete.
#[must_use = "a snapshot does nothing until its chunks are read"]
pub struct KvSnapshot<V> {
    rows: V,
    meta: Bytes,
    next: NextChunk,
    count: u64,
    /// A checksum of the checksums of all chunks so far.
    checksum: u32,
    failure: Option<TableError>,
}

enum NextChunk {
    Head,
    Rows(RowKey),
    Tail,
    End,
}

/// Why a snapshot was not installed.
#[derive(Debug)]
#[non_exhaustive]
pub enum KvSnapshotError {
    /// The bytes are not a complete snapshot of this version. The state is unchanged. Fetch
    /// the snapshot again.
    Bad,
    /// It was captured at a later cluster version than this crate supports. The state is
    /// unchanged. Start a newer program.
    Newer(NewerVersion),
    /// The table failed. Stop the member.
    Table(TableError),
}

impl fmt::Display for KvSnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad => write!(f, "snapshot is damaged, incomplete or of an unknown format"),
            Self::Newer(newer) => write!(f, "snapshot: {newer}"),
            Self::Table(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for KvSnapshotError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bad => None,
            Self::Newer(newer) => Some(newer),
            Self::Table(error) => Some(error),
        }
    }
}

impl From<TableError> for KvSnapshotError {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

const MAGIC: &[u8] = b"qrt-kv\n";
const FORMAT: u8 = 1;
const HEAD: u8 = 0;
const ROWS: u8 = 1;
const TAIL: u8 = 2;
const CHUNK_BYTES: usize = 64 << 10;

impl<T: Table> Kv<T> {
    /// A snapshot of the current state.
    pub fn snapshot(&self) -> Result<KvSnapshot<T::View>, TableError> {
        let (rows, meta) = (self.table.view()?, self.state.meta_row());
        Ok(KvSnapshot { rows, meta, next: NextChunk::Head, count: 0, checksum: 0, failure: None })
    }

    /// Replaces the state by a snapshot, which may come from another kind of table. A bad
    /// snapshot changes nothing.
    pub fn install(
        &mut self,
        chunks: &mut dyn Iterator<Item = Bytes>,
    ) -> Result<(), KvSnapshotError> {
        let mut decoder = SnapshotDecoder::default();
        for chunk in chunks {
            if self.stage_chunk(&mut decoder, chunk)? {
                return self.finish_install(decoder);
            }
        }
        self.abort_install()?;
        Err(KvSnapshotError::Bad)
    }

    /// Stages the rows of a chunk and returns whether it was the last one. The old state
    /// stays until [`Self::finish_install`].
    pub(crate) fn stage_chunk(
        &mut self,
        decoder: &mut SnapshotDecoder,
        chunk: Bytes,
    ) -> Result<bool, KvSnapshotError> {
        match decoder.decode(chunk) {
            Some(DecodedChunk::Rows(rows)) => {
                for (key, row) in rows {
                    self.table.stage(key, &row)?;
                }
                Ok(false)
            }
            Some(DecodedChunk::End) => Ok(true),
            None => {
                self.abort_install()?;
                let newer = newer_version(decoder.state.cluster_version);
                Err(newer.map_or(KvSnapshotError::Bad, KvSnapshotError::Newer))
            }
        }
    }

    pub(crate) fn finish_install(
        &mut self,
        decoder: SnapshotDecoder,
    ) -> Result<(), KvSnapshotError> {
        self.table.replace_by_staged()?;
        self.state = decoder.state.loaded();
        self.compaction_hashes = CompactionHashes::default();
        Ok(())
    }

    /// Takes over the rows and the state of another machine, and returns its own.
    #[cfg(feature = "machine")]
    pub(crate) fn replace_by(&mut self, other: Self) -> (T, KvState) {
        self.compaction_hashes = CompactionHashes::default();
        let table = std::mem::replace(&mut self.table, other.table);
        (table, std::mem::replace(&mut self.state, other.state))
    }

    pub(crate) fn abort_install(&mut self) -> Result<(), TableError> {
        self.table.drop_staged()
    }
}

impl<V: RowReader> Iterator for KvSnapshot<V> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES + 64);
        chunk.put_u32_le(0);
        match self.next {
            NextChunk::Head => {
                chunk.put_u8(HEAD);
                chunk.put_slice(MAGIC);
                chunk.put_u8(FORMAT);
                chunk.put_slice(&self.meta);
                self.next = NextChunk::Rows(RowKey::META.next());
            }
            NextChunk::Rows(from) => {
                if let Err(error) = self.put_rows(from, &mut chunk) {
                    self.failure = Some(error);
                    self.next = NextChunk::End;
                    return None;
                }
            }
            NextChunk::Tail => {
                chunk.put_u8(TAIL);
                chunk.put_u64_le(self.count);
                chunk.put_u32_le(self.checksum);
                self.next = NextChunk::End;
            }
            NextChunk::End => return None,
        }
        let checksum = crc32c::crc32c(chunk.get(4..)?);
        chunk.get_mut(..4)?.copy_from_slice(&checksum.to_le_bytes());
        self.checksum = crc32c::crc32c_append(self.checksum, &checksum.to_le_bytes());
        Some(chunk.freeze())
    }
}

impl<V: RowReader> KvSnapshot<V> {
    /// Why the chunks ended early: a row could not be read.
    pub fn take_failure(&mut self) -> Option<TableError> {
        self.failure.take()
    }

    fn put_rows(&mut self, from: RowKey, chunk: &mut BytesMut) -> Result<(), TableError> {
        chunk.put_u8(ROWS);
        let mut next = NextChunk::Tail;
        self.rows.scan(from, RowKey::END, &mut |key, row| {
            if chunk.len() >= CHUNK_BYTES {
                next = NextChunk::Rows(key);
                return ControlFlow::Break(());
            }
            chunk.put_u128_le(key.0);
            put_bytes(chunk, &row);
            self.count += 1;
            ControlFlow::Continue(())
        })?;
        self.next = next;
        Ok(())
    }
}

/// Decodes and checks the chunks of a snapshot. Nothing is installed before the last check.
#[derive(Default)]
pub(crate) struct SnapshotDecoder {
    state: KvState,
    last: Option<RowKey>,
    count: u64,
    checksum: u32,
}

enum DecodedChunk {
    /// They share the memory of the chunk.
    Rows(Vec<(RowKey, Bytes)>),
    End,
}

impl SnapshotDecoder {
    /// Whether these are the chunks of a complete snapshot. Keeps the index of the keys in
    /// memory while it runs, not the values.
    #[cfg(feature = "machine")]
    pub(crate) fn check(chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), KvSnapshotError> {
        let mut decoder = Self::default();
        for chunk in chunks {
            match decoder.decode(chunk) {
                Some(DecodedChunk::Rows(_)) => {}
                Some(DecodedChunk::End) => return Ok(()),
                None => return Err(KvSnapshotError::Bad),
            }
        }
        Err(KvSnapshotError::Bad)
    }

    fn decode(&mut self, mut chunk: Bytes) -> Option<DecodedChunk> {
        let checksum = chunk.try_get_u32_le().ok()?;
        if crc32c::crc32c(&chunk) != checksum {
            return None;
        }
        let before = self.checksum;
        self.checksum = crc32c::crc32c_append(before, &checksum.to_le_bytes());
        match (take_byte(&mut chunk)?, self.last) {
            (HEAD, None) => {
                let is_known = chunk.starts_with(MAGIC) && chunk.get(MAGIC.len()) == Some(&FORMAT);
                is_known.then(|| chunk.advance(MAGIC.len() + 1))?;
                self.load_row(RowKey::META, &chunk)?;
                Some(DecodedChunk::Rows(vec![(RowKey::META, chunk)]))
            }
            (ROWS, Some(_)) => self.decode_rows(chunk).map(DecodedChunk::Rows),
            (TAIL, Some(_)) => {
                let count = chunk.try_get_u64_le().ok()?;
                let all = chunk.try_get_u32_le().ok()?;
                let complete = count == self.count && all == before && chunk.is_empty();
                complete.then_some(DecodedChunk::End)
            }
            _ => None,
        }
    }

    fn decode_rows(&mut self, mut chunk: Bytes) -> Option<Vec<(RowKey, Bytes)>> {
        let mut rows = Vec::new();
        while !chunk.is_empty() {
            let key = RowKey(chunk.try_get_u128_le().ok()?);
            let row = take_bytes(&mut chunk)?;
            self.load_row(key, &row)?;
            self.count += 1;
            rows.push((key, row));
        }
        Some(rows)
    }

    fn load_row(&mut self, key: RowKey, row: &Bytes) -> Option<()> {
        let in_order = self.last.is_none_or(|last| last < key);
        self.last = Some(key);
        in_order.then_some(())?;
        self.state.load_row(key, row)?;
        newer_version(self.state.cluster_version).is_none().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::RowRef;

    /// A table whose second half cannot be read.
    struct DamagedRows;

    impl RowReader for DamagedRows {
        fn get(&self, _: RowKey) -> Result<Option<Bytes>, TableError> {
            Ok(None)
        }

        fn scan(
            &self,
            from: RowKey,
            _: RowKey,
            visit: &mut dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()>,
        ) -> Result<(), TableError> {
            let _ = visit(from, RowRef::from(&b"row"[..]));
            Err(TableError::Disk(std::io::Error::other("input/output error")))
        }
    }

    #[test]
    fn a_row_that_cannot_be_read_is_reported() {
        let (meta, next) = (Bytes::new(), NextChunk::Head);
        let mut snapshot =
            KvSnapshot { rows: DamagedRows, meta, next, count: 0, checksum: 0, failure: None };
        assert!(snapshot.next().is_some() && snapshot.take_failure().is_none());
        assert!(snapshot.next().is_none());
        let failure = snapshot.take_failure().map(|error| error.to_string());
        assert_eq!(failure.as_deref(), Some("table file: input/output error"));
        assert!(snapshot.next().is_none(), "no chunk follows that would make it look complete");
    }
}
