//! The whole state as chunks of bytes, the same for every table.
//!
//! A snapshot shows one moment while commands go on. Each chunk carries its checksum,
//! the last one the checksum of them all: what arrives is the whole state, or it is
//! refused and the old one stays. `docs/formats.md` has the bytes.

use std::fmt;
use std::ops::ControlFlow;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::codec::{put_bytes, take_byte, take_bytes};
use crate::machine::Kv;
use crate::revision::RowKey;
use crate::state::State;
use crate::table::{RowReader, Table, TableError};

/// The chunks of a snapshot, in order. If the table fails while it is read they end
/// early, and nobody will take them for a whole.
pub struct KvSnapshot<V> {
    rows: V,
    meta: Bytes,
    next: Next,
    count: u64,
    /// Over the checksums of all chunks so far.
    checksum: u32,
}

enum Next {
    Head,
    Rows(RowKey),
    Tail,
    Nothing,
}

/// Why a snapshot was not installed.
#[derive(Debug)]
#[non_exhaustive]
pub enum KvSnapshotError {
    /// The bytes are no whole snapshot of this version. The state is what it was.
    Bad,
    /// The table failed, and with it the member.
    Table(TableError),
}

impl fmt::Display for KvSnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad => write!(f, "snapshot is damaged, cut or of an unknown version"),
            Self::Table(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for KvSnapshotError {}

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
    /// The state as it is now.
    pub fn snapshot(&self) -> Result<KvSnapshot<T::View>, TableError> {
        let (rows, meta) = (self.table.view()?, self.state.meta_row());
        Ok(KvSnapshot { rows, meta, next: Next::Head, count: 0, checksum: 0 })
    }

    /// Replaces the state by one that was captured, on whatever table. A bad snapshot
    /// changes nothing.
    pub fn install(
        &mut self,
        chunks: &mut dyn Iterator<Item = Bytes>,
    ) -> Result<(), KvSnapshotError> {
        let mut installation = Installation::default();
        for chunk in chunks {
            if self.take_chunk(&mut installation, chunk)? {
                return self.finish_install(installation);
            }
        }
        self.drop_install()?;
        Err(KvSnapshotError::Bad)
    }

    /// Puts the rows of a chunk aside; whether it was the last one. The state is the old
    /// one until the installation is finished.
    pub(crate) fn take_chunk(
        &mut self,
        installation: &mut Installation,
        chunk: Bytes,
    ) -> Result<bool, KvSnapshotError> {
        match installation.arriving.open(chunk) {
            Some(Opened::Rows(rows)) => {
                for (key, row) in rows {
                    self.table.stage(key, row)?;
                }
                Ok(false)
            }
            Some(Opened::Whole) => Ok(true),
            None => {
                self.drop_install()?;
                Err(KvSnapshotError::Bad)
            }
        }
    }

    pub(crate) fn finish_install(
        &mut self,
        installation: Installation,
    ) -> Result<(), KvSnapshotError> {
        self.table.replace_by_staged()?;
        self.state = installation.arriving.state;
        Ok(())
    }

    pub(crate) fn drop_install(&mut self) -> Result<(), TableError> {
        self.table.drop_staged()
    }
}

/// A snapshot of which some chunks have arrived.
#[derive(Default)]
pub(crate) struct Installation {
    arriving: Arriving,
}

impl<V: RowReader> Iterator for KvSnapshot<V> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES + 64);
        chunk.put_u32_le(0);
        match self.next {
            Next::Head => {
                chunk.put_u8(HEAD);
                chunk.put_slice(MAGIC);
                chunk.put_u8(FORMAT);
                chunk.put_slice(&self.meta);
                self.next = Next::Rows(RowKey::META.next());
            }
            Next::Rows(from) => self.put_rows(from, &mut chunk).ok()?,
            Next::Tail => {
                chunk.put_u8(TAIL);
                chunk.put_u64_le(self.count);
                chunk.put_u32_le(self.checksum);
                self.next = Next::Nothing;
            }
            Next::Nothing => return None,
        }
        let checksum = crc32c::crc32c(chunk.get(4..)?);
        chunk.get_mut(..4)?.copy_from_slice(&checksum.to_le_bytes());
        self.checksum = crc32c::crc32c_append(self.checksum, &checksum.to_le_bytes());
        Some(chunk.freeze())
    }
}

impl<V: RowReader> KvSnapshot<V> {
    fn put_rows(&mut self, from: RowKey, chunk: &mut BytesMut) -> Result<(), TableError> {
        chunk.put_u8(ROWS);
        let mut next = Next::Tail;
        self.rows.scan(from, RowKey::END, &mut |key, row| {
            if chunk.len() >= CHUNK_BYTES {
                next = Next::Rows(key);
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

/// A snapshot on its way in: everything is checked before anything counts.
#[derive(Default)]
struct Arriving {
    state: State,
    last: Option<RowKey>,
    count: u64,
    checksum: u32,
}

enum Opened {
    Rows(Vec<(RowKey, Bytes)>),
    Whole,
}

impl Arriving {
    fn open(&mut self, mut chunk: Bytes) -> Option<Opened> {
        let checksum = chunk.try_get_u32_le().ok()?;
        if crc32c::crc32c(&chunk) != checksum {
            return None;
        }
        let before = self.checksum;
        self.checksum = crc32c::crc32c_append(before, &checksum.to_le_bytes());
        match (take_byte(&mut chunk)?, self.last) {
            (HEAD, None) => {
                let known = chunk.starts_with(MAGIC) && chunk.get(MAGIC.len()) == Some(&FORMAT);
                known.then(|| chunk.advance(MAGIC.len() + 1))?;
                // The row keeps no hold of the chunk that it came in.
                let row = Bytes::copy_from_slice(&chunk);
                self.take_in(RowKey::META, row.clone())?;
                Some(Opened::Rows(vec![(RowKey::META, row)]))
            }
            (ROWS, Some(_)) => self.open_rows(chunk).map(Opened::Rows),
            (TAIL, Some(_)) => {
                let count = chunk.try_get_u64_le().ok()?;
                let all = chunk.try_get_u32_le().ok()?;
                let whole = count == self.count && all == before && chunk.is_empty();
                whole.then_some(Opened::Whole)
            }
            _ => None,
        }
    }

    fn open_rows(&mut self, mut chunk: Bytes) -> Option<Vec<(RowKey, Bytes)>> {
        let mut rows = Vec::new();
        while !chunk.is_empty() {
            let key = RowKey(chunk.try_get_u128_le().ok()?);
            let row = Bytes::copy_from_slice(&take_bytes(&mut chunk)?);
            self.take_in(key, row.clone())?;
            self.count += 1;
            rows.push((key, row));
        }
        Some(rows)
    }

    fn take_in(&mut self, key: RowKey, row: Bytes) -> Option<()> {
        let in_order = self.last.is_none_or(|last| last < key);
        self.last = Some(key);
        in_order.then_some(())?;
        self.state.take_in(key, row)
    }
}
