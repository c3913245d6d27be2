//! Snapshot files: the metadata of a snapshot and the bytes of the state machine.
//!
//! A snapshot is written under a temporary name, synced, then renamed. So a file with its
//! final name is complete, or damaged. The bytes are written in chunks, whether captured here
//! or received from a peer, and read back in the same chunks. Every checksum continues the
//! previous one, so that lost, duplicated or reordered chunks are detected.
//! `docs/formats.md` describes the layout.

use bytes::Bytes;
use crc32c::crc32c_append;
use quorate_core::{EntryId, SnapshotMeta};

use crate::Disk;
use crate::codec::{Codec, DecodeError, Decoder};
use crate::error::{Corruption, CorruptionKind, DiskFailure, DiskOperation, ReadError};
use crate::names::FileName;

pub(crate) const VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"qrt-snp\n";
/// Magic, version, checksum, cluster, length of the metadata.
const PREFIX_BYTES: usize = 28;
const CHUNK_HEADER_BYTES: u64 = 8;
const FOOTER_BYTES: u64 = 28;

/// The longest chunk in a file. Longer appends are split, so that this
/// limits the memory of a reader.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;

/// A snapshot that is being written, through the store or through another handle of the same
/// disk. Dropping it loses the snapshot and leaves its temporary file until the next start:
/// call [`Self::seal`] or [`Self::discard`].
#[derive(Debug)]
#[must_use = "a snapshot is lost unless it is sealed and published"]
pub struct SnapshotWriter<F> {
    meta: SnapshotMeta,
    name: FileName,
    file: F,
    head_checksum: u32,
    /// The offset of the next chunk.
    end: u64,
    totals: SnapshotTotals,
}

/// Makes durable what a [`SnapshotWriter`] has appended, through another handle of the same disk.
#[derive(Debug)]
pub struct SnapshotSyncer<F> {
    name: FileName,
    file: F,
}

/// A snapshot with durable contents under its temporary name.
#[derive(Debug)]
#[must_use = "a snapshot is lost unless it is published"]
pub struct SealedSnapshot {
    pub(crate) meta: SnapshotMeta,
    pub(crate) name: FileName,
}

/// A snapshot that is being read, through the store or through another handle of the same
/// disk.
#[derive(Debug)]
pub struct SnapshotReader<F> {
    meta: SnapshotMeta,
    file: F,
    /// The offset of the footer.
    end: u64,
    at: u64,
    totals: SnapshotTotals,
    expected: SnapshotTotals,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SnapshotTotals {
    /// The checksum of the head and all chunks so far.
    chain: u32,
    chunks: u64,
    bytes: u64,
}

impl SnapshotTotals {
    fn add(&mut self, header: &[u8], chunk: &[u8]) {
        self.chain = crc32c_append(crc32c_append(self.chain, header), chunk);
        self.chunks += 1;
        self.bytes += chunk.len() as u64;
    }

    fn footer(&self, head_checksum: u32) -> Vec<u8> {
        let mut bytes = 0u32.to_bytes();
        self.chain.encode(&mut bytes);
        self.chunks.encode(&mut bytes);
        self.bytes.encode(&mut bytes);
        crc32c_append(head_checksum, &bytes).encode(&mut bytes);
        bytes
    }
}

impl<F: Clone> SnapshotWriter<F> {
    pub(crate) fn create<D: Disk<File = F>>(
        disk: &mut D,
        name: FileName,
        cluster: u64,
        meta: SnapshotMeta,
    ) -> Result<Self, DiskFailure> {
        let file = disk
            .create(&name.to_string(), 0)
            .map_err(DiskFailure::when(DiskOperation::Create, name))?;
        let (head, head_checksum) = encode_head(cluster, &meta);
        disk.write_at(&file, 0, &head).map_err(DiskFailure::when(DiskOperation::Write, name))?;
        let totals = SnapshotTotals { chain: head_checksum, chunks: 0, bytes: 0 };
        Ok(Self { meta, name, file, head_checksum, end: head.len() as u64, totals })
    }

    /// The entry and the membership of the snapshot.
    pub fn meta(&self) -> &SnapshotMeta {
        &self.meta
    }

    /// The number of bytes appended so far.
    pub fn bytes(&self) -> u64 {
        self.totals.bytes
    }

    /// Appends bytes of the state machine.
    pub fn append<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        bytes: &[u8],
    ) -> Result<(), DiskFailure> {
        for chunk in bytes.chunks(CHUNK_BYTES_MAX) {
            let length = (chunk.len() as u32).to_le_bytes();
            self.totals.add(&length, chunk);
            let mut header = [0; CHUNK_HEADER_BYTES as usize];
            header[..4].copy_from_slice(&length);
            header[4..].copy_from_slice(&self.totals.chain.to_le_bytes());
            let failed = || DiskFailure::when(DiskOperation::Write, self.name);
            disk.write_at(&self.file, self.end, &header).map_err(failed())?;
            let at = self.end + CHUNK_HEADER_BYTES;
            disk.write_at(&self.file, at, chunk).map_err(failed())?;
            self.end = at + chunk.len() as u64;
        }
        Ok(())
    }

    /// Makes durable what was appended so far.
    pub fn sync<D: Disk<File = F>>(&self, disk: &mut D) -> Result<(), DiskFailure> {
        self.syncer().sync(disk)
    }

    /// Syncs the file beside this writer.
    pub fn syncer(&self) -> SnapshotSyncer<F> {
        SnapshotSyncer { name: self.name, file: self.file.clone() }
    }

    /// Completes the file and makes its contents durable.
    pub fn seal<D: Disk<File = F>>(self, disk: &mut D) -> Result<SealedSnapshot, DiskFailure> {
        let footer = self.totals.footer(self.head_checksum);
        disk.write_at(&self.file, self.end, &footer)
            .map_err(DiskFailure::when(DiskOperation::Write, self.name))?;
        self.sync(disk)?;
        Ok(SealedSnapshot { meta: self.meta, name: self.name })
    }

    /// Removes the file.
    pub fn discard<D: Disk<File = F>>(self, disk: &mut D) -> Result<(), DiskFailure> {
        disk.remove(&self.name.to_string())
            .map_err(DiskFailure::when(DiskOperation::Remove, self.name))
    }
}

impl<F> SnapshotSyncer<F> {
    /// Makes durable what was appended before this call. A failure must not be ignored: the disk may
    /// not report it again.
    pub fn sync<D: Disk<File = F>>(&self, disk: &mut D) -> Result<(), DiskFailure> {
        disk.sync(&self.file).map_err(DiskFailure::when(DiskOperation::Sync, self.name))
    }
}

impl SealedSnapshot {
    /// Durably renames the file to its final name. An open store must be told with
    /// [`Store::adopt_snapshot`](crate::Store::adopt_snapshot).
    pub fn publish<D: Disk>(self, disk: &mut D) -> Result<EntryId, DiskFailure> {
        let to = FileName::Snapshot(self.meta.id);
        disk.rename(&self.name.to_string(), &to.to_string())
            .map_err(DiskFailure::when(DiskOperation::Rename, self.name))?;
        disk.sync_dir().map_err(DiskFailure::when(DiskOperation::Sync, FileName::Directory))?;
        Ok(self.meta.id)
    }
}

impl<F: Clone> SnapshotReader<F> {
    /// Opens a published snapshot and verifies head and footer. Chunks are verified when they
    /// are read.
    pub(crate) fn open<D: Disk<File = F>>(
        disk: &mut D,
        id: EntryId,
        cluster: u64,
    ) -> Result<Self, OpenSnapshotError> {
        let name = FileName::Snapshot(id);
        let corrupt = |offset, why| Corruption { file: name, offset, why };
        let failed = |operation| DiskFailure::when(operation, name);
        let file = disk.open(&name.to_string()).map_err(failed(DiskOperation::Open))?;
        let len = disk.len(&file).map_err(failed(DiskOperation::Read))?;
        let mut prefix = [0; PREFIX_BYTES];
        if len < PREFIX_BYTES as u64 + FOOTER_BYTES {
            return Err(corrupt(len, CorruptionKind::Truncated).into());
        }
        disk.read_at(&file, 0, &mut prefix).map_err(failed(DiskOperation::Read))?;
        let prefix = SnapshotPrefix::decode(&prefix).map_err(|why| corrupt(0, why))?;
        if prefix.version != VERSION {
            return Err(OpenSnapshotError::UnsupportedVersion(prefix.version));
        }
        let end = len - FOOTER_BYTES;
        let head_end = PREFIX_BYTES as u64 + u64::from(prefix.meta_bytes);
        if head_end > end {
            return Err(corrupt(len, CorruptionKind::Truncated).into());
        }
        let mut head = vec![0; head_end as usize];
        disk.read_at(&file, 0, &mut head).map_err(failed(DiskOperation::Read))?;
        if head_checksum(&head) != prefix.checksum {
            return Err(corrupt(0, CorruptionKind::ChecksumMismatch).into());
        }
        let meta = Bytes::copy_from_slice(&head[PREFIX_BYTES..]);
        let meta = SnapshotMeta::from_bytes(meta)
            .map_err(|why| corrupt(PREFIX_BYTES as u64, CorruptionKind::Undecodable(why)))?;
        if meta.id != id || prefix.cluster != cluster {
            return Err(corrupt(0, CorruptionKind::Misplaced).into());
        }
        let mut footer = [0; FOOTER_BYTES as usize];
        disk.read_at(&file, end, &mut footer).map_err(failed(DiskOperation::Read))?;
        let expected = decode_footer(&footer, prefix.checksum)
            .ok_or_else(|| corrupt(end, CorruptionKind::ChecksumMismatch))?;
        let totals = SnapshotTotals { chain: prefix.checksum, chunks: 0, bytes: 0 };
        Ok(Self { meta, file, end, at: head_end, totals, expected })
    }

    /// The entry and the membership of the snapshot.
    pub fn meta(&self) -> &SnapshotMeta {
        &self.meta
    }

    /// The number of bytes of the state machine.
    pub fn bytes(&self) -> u64 {
        self.expected.bytes
    }

    /// The next chunk, verified; `None` after the last one.
    pub fn next_chunk<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
    ) -> Result<Option<Bytes>, ReadError> {
        let name = FileName::Snapshot(self.meta.id);
        let (at, end) = (self.at, self.end);
        let corrupt = |why| ReadError::Corrupt(Corruption { file: name, offset: at, why });
        if at == end {
            let complete = self.totals == self.expected;
            return if complete { Ok(None) } else { Err(corrupt(CorruptionKind::Inconsistent)) };
        }
        let left = end - at;
        let mut header = [0; CHUNK_HEADER_BYTES as usize];
        if left < CHUNK_HEADER_BYTES {
            return Err(corrupt(CorruptionKind::Truncated));
        }
        disk.read_at(&self.file, at, &mut header)
            .map_err(DiskFailure::when(DiskOperation::Read, name))?;
        let (length, checksum) = header.split_at(4);
        let count = length.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        if count == 0 || count > CHUNK_BYTES_MAX as u64 || count > left - CHUNK_HEADER_BYTES {
            return Err(corrupt(CorruptionKind::ChecksumMismatch));
        }
        let mut chunk = vec![0; count as usize];
        disk.read_at(&self.file, at + CHUNK_HEADER_BYTES, &mut chunk)
            .map_err(DiskFailure::when(DiskOperation::Read, name))?;
        self.totals.add(length, &chunk);
        if self.totals.chain.to_le_bytes() != checksum {
            return Err(corrupt(CorruptionKind::ChecksumMismatch));
        }
        self.at = at + CHUNK_HEADER_BYTES + count;
        Ok(Some(chunk.into()))
    }
}

/// Why a snapshot cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenSnapshotError {
    Unreadable(ReadError),
    UnsupportedVersion(u32),
}

impl<T: Into<ReadError>> From<T> for OpenSnapshotError {
    fn from(why: T) -> Self {
        Self::Unreadable(why.into())
    }
}

struct SnapshotPrefix {
    version: u32,
    checksum: u32,
    cluster: u64,
    meta_bytes: u32,
}

impl SnapshotPrefix {
    fn decode(bytes: &[u8; PREFIX_BYTES]) -> Result<Self, CorruptionKind> {
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return Err(CorruptionKind::BadMagic);
        };
        let mut from = Decoder::new(Bytes::copy_from_slice(rest));
        let mut fields = || -> Result<Self, DecodeError> {
            Ok(Self {
                version: u32::decode(&mut from)?,
                checksum: u32::decode(&mut from)?,
                cluster: u64::decode(&mut from)?,
                meta_bytes: u32::decode(&mut from)?,
            })
        };
        fields().map_err(CorruptionKind::Undecodable)
    }
}

fn encode_head(cluster: u64, meta: &SnapshotMeta) -> (Vec<u8>, u32) {
    let meta = meta.to_bytes();
    let mut head = MAGIC.to_vec();
    VERSION.encode(&mut head);
    0u32.encode(&mut head);
    cluster.encode(&mut head);
    (meta.len() as u32).encode(&mut head);
    head.extend_from_slice(&meta);
    let checksum = head_checksum(&head);
    head[12..16].copy_from_slice(&checksum.to_le_bytes());
    (head, checksum)
}

/// Over everything but the position of the checksum itself.
fn head_checksum(head: &[u8]) -> u32 {
    crc32c_append(crc32c_append(0, &head[..12]), &head[16..])
}

fn decode_footer(
    bytes: &[u8; FOOTER_BYTES as usize],
    head_checksum: u32,
) -> Option<SnapshotTotals> {
    let mut from = Decoder::new(Bytes::copy_from_slice(bytes));
    let mut fields = || -> Result<(u32, SnapshotTotals), DecodeError> {
        let end = u32::decode(&mut from)?;
        let chain = u32::decode(&mut from)?;
        let (chunks, bytes) = Codec::decode(&mut from)?;
        Ok((end, SnapshotTotals { chain, chunks, bytes }))
    };
    let (_, totals) = fields().ok()?;
    (totals.footer(head_checksum) == bytes).then_some(totals)
}
