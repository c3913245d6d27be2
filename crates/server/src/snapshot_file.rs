//! The file format of `snapshot save`: the whole store, independent of the kind of table.
//!
//! This module writes and reads it; `recover` starts members from it. `docs/formats.md`
//! describes the bytes. The last 32 bytes are the SHA-256 of all others, whose number is a
//! multiple of 512: etcd's tools check that.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_etcd_files::EtcdDatabase;
pub use quorate_etcd_files::{EtcdFileError, EtcdStatus};
use sha2::{Digest, Sha256};

/// The header of a snapshot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    pub cluster_id: u64,
    /// The newest revision in the file.
    pub revision: i64,
    /// The index of the last log entry that the file contains.
    pub applied: u64,
}

const MAGIC: &[u8; 16] = b"quorate snapshot";
const FORMAT: u32 = 1;
const HEAD_BYTES: usize = 16 + 4 + 8 + 8 + 8;
const BLOCK_BYTES: u64 = 512;
const DIGEST_BYTES: u64 = 32;
/// Chunks are about 64 KiB; a single row may be as large as a request.
const CHUNK_BYTES_MAX: u32 = 1 << 30;

/// Produces the file piece by piece.
pub(crate) struct SnapshotFileWriter<C> {
    header: SnapshotHeader,
    chunks: C,
    digest: Sha256,
    written: u64,
    next: NextPiece,
}

enum NextPiece {
    Head,
    Chunk,
    Digest,
    End,
}

impl<C: Iterator<Item = Bytes>> SnapshotFileWriter<C> {
    pub(crate) fn new(header: SnapshotHeader, chunks: C) -> Self {
        Self { header, chunks, digest: Sha256::new(), written: 0, next: NextPiece::Head }
    }

    fn head(&self) -> Bytes {
        let mut head = BytesMut::with_capacity(HEAD_BYTES);
        head.put_slice(MAGIC);
        head.put_u32_le(FORMAT);
        head.put_u64_le(self.header.cluster_id);
        head.put_i64_le(self.header.revision);
        head.put_u64_le(self.header.applied);
        head.freeze()
    }

    /// A chunk length of 0, which means that no chunk follows, and zeros up to the end of the
    /// block.
    fn tail(&self) -> Bytes {
        let end = self.written + 4;
        Bytes::from(vec![0; 4 + (end.next_multiple_of(BLOCK_BYTES) - end) as usize])
    }
}

impl<C: Iterator<Item = Bytes>> Iterator for SnapshotFileWriter<C> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let piece = match self.next {
            NextPiece::Head => {
                self.next = NextPiece::Chunk;
                self.head()
            }
            NextPiece::Chunk => match self.chunks.next() {
                Some(chunk) => {
                    let mut piece = BytesMut::with_capacity(4 + chunk.len());
                    piece.put_u32_le(chunk.len() as u32);
                    piece.put_slice(&chunk);
                    piece.freeze()
                }
                None => {
                    self.next = NextPiece::Digest;
                    self.tail()
                }
            },
            NextPiece::Digest => {
                self.next = NextPiece::End;
                return Some(Bytes::copy_from_slice(&self.digest.finalize_reset()));
            }
            NextPiece::End => return None,
        };
        self.written += piece.len() as u64;
        self.digest.update(&piece);
        Some(piece)
    }
}

/// A file whose header was read. [`SnapshotFile::open`] also compares the checksum.
#[derive(Debug)]
pub struct SnapshotFile<F> {
    file: F,
    pub header: SnapshotHeader,
    /// The size of the file.
    pub bytes: u64,
}

/// Why a file is refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotFileError {
    /// The file cannot be read.
    Io(io::Error),
    /// The file is not a snapshot of Quorate, or has an unknown version. Check where it comes
    /// from.
    UnknownFormat,
    /// The file was truncated or altered. Use another one.
    Damaged,
}

impl fmt::Display for SnapshotFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::UnknownFormat => {
                write!(f, "not a snapshot of this program or of etcd, or one of a later version")
            }
            Self::Damaged => {
                write!(f, "snapshot is truncated or damaged: its checksum does not match")
            }
        }
    }
}

impl std::error::Error for SnapshotFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::UnknownFormat | Self::Damaged => None,
        }
    }
}

impl From<io::Error> for SnapshotFileError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Damaged,
            _ => Self::Io(error),
        }
    }
}

/// Whether a file starts as those of this program do. If not, it may be one of etcd.
pub fn is_own_format(file: &mut (impl Read + Seek)) -> io::Result<bool> {
    file.seek(SeekFrom::Start(0))?;
    let mut start = Vec::new();
    file.take(MAGIC.len() as u64).read_to_end(&mut start)?;
    Ok(start == MAGIC)
}

/// The numbers of `etcdutl snapshot status` for a snapshot or database of etcd. Its checksum is
/// compared if it has one.
pub fn etcd_status(file: impl Read + Seek) -> Result<EtcdStatus, EtcdFileError> {
    EtcdDatabase::open_with_any_checksum(file)?.status()
}

impl<F: Read + Seek> SnapshotFile<F> {
    /// Reads the whole file and compares the checksum.
    pub fn open(file: F) -> Result<Self, SnapshotFileError> {
        let Self { mut file, header, bytes } = Self::open_unchecked(file)?;
        if bytes % BLOCK_BYTES != DIGEST_BYTES {
            return Err(SnapshotFileError::Damaged);
        }
        file.seek(SeekFrom::Start(0))?;
        let mut digest = Sha256::new();
        io::copy(&mut (&mut file).take(bytes - DIGEST_BYTES), &mut digest)?;
        let mut expected = [0; DIGEST_BYTES as usize];
        file.read_exact(&mut expected)?;
        if digest.finalize()[..] != expected {
            return Err(SnapshotFileError::Damaged);
        }
        Ok(Self { file, header, bytes })
    }

    /// Reads only the header. The checksum at the end may be missing. Each chunk has its own
    /// checksum, which is compared when the chunk is installed.
    pub fn open_unchecked(mut file: F) -> Result<Self, SnapshotFileError> {
        let bytes = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        let mut head = [0; HEAD_BYTES];
        if bytes >= HEAD_BYTES as u64 {
            file.read_exact(&mut head)?;
        }
        let header = read_head(&head).ok_or(SnapshotFileError::UnknownFormat)?;
        Ok(Self { file, header, bytes })
    }

    /// The chunks for [`Kv::install`](quorate_kv::Kv::install). If reading fails they end early,
    /// and `install` refuses them.
    pub fn chunks(mut self) -> Result<impl Iterator<Item = Bytes>, SnapshotFileError> {
        self.file.seek(SeekFrom::Start(HEAD_BYTES as u64))?;
        let mut file = io::BufReader::new(self.file);
        Ok(std::iter::from_fn(move || read_chunk(&mut file)))
    }
}

fn read_head(mut head: &[u8]) -> Option<SnapshotHeader> {
    let magic = head.split_off(..MAGIC.len())?;
    let format = head.try_get_u32_le().ok()?;
    let cluster_id = head.try_get_u64_le().ok()?;
    let revision = head.try_get_i64_le().ok()?;
    let applied = head.try_get_u64_le().ok()?;
    (magic == MAGIC && format == FORMAT).then_some(SnapshotHeader { cluster_id, revision, applied })
}

fn read_chunk(file: &mut impl Read) -> Option<Bytes> {
    let mut length = [0; 4];
    file.read_exact(&mut length).ok()?;
    let length = u32::from_le_bytes(length);
    if length == 0 || length > CHUNK_BYTES_MAX {
        return None;
    }
    let mut chunk = Vec::new();
    let read = file.take(u64::from(length)).read_to_end(&mut chunk).ok()?;
    (read == length as usize).then(|| chunk.into())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use quorate_kv::{Command, Kv, MemoryTable, Put};

    use super::*;

    const HEADER: SnapshotHeader = SnapshotHeader { cluster_id: 7, revision: 301, applied: 300 };

    fn store() -> Kv<MemoryTable> {
        let mut kv = Kv::open(MemoryTable::default()).unwrap();
        for index in 1..=300 {
            let key = format!("key {index}").into();
            let put = Put { key, value: vec![index as u8; 1_000].into(), ..Put::default() };
            let _ = kv.apply(index, &Command::Put(put)).unwrap();
        }
        kv
    }

    fn file_of(kv: &Kv<MemoryTable>) -> Vec<u8> {
        SnapshotFileWriter::new(HEADER, kv.snapshot().unwrap()).flatten().collect()
    }

    #[test]
    fn a_written_file_can_be_read() {
        let kv = store();
        let bytes = file_of(&kv);
        assert_eq!(bytes.len() % 512, 32, "etcdctl checks this");
        let file = SnapshotFile::open(Cursor::new(&bytes)).unwrap();
        assert_eq!(file.header, HEADER);
        assert_eq!(file.bytes, bytes.len() as u64);
        let mut other = Kv::open(MemoryTable::default()).unwrap();
        other.install(&mut file.chunks().unwrap()).unwrap();
        assert_eq!(other.hash().unwrap(), kv.hash().unwrap());
    }

    #[test]
    fn a_file_without_its_checksum_can_be_read_unchecked() {
        let kv = store();
        let mut bytes = file_of(&kv);
        bytes.truncate(bytes.len() - 32);
        assert!(SnapshotFile::open(Cursor::new(&bytes)).is_err());
        let install = |bytes: &[u8]| {
            let file = SnapshotFile::open_unchecked(Cursor::new(bytes)).unwrap();
            let mut other = Kv::open(MemoryTable::default()).unwrap();
            other.install(&mut file.chunks().unwrap()).map(|()| other.hash().unwrap())
        };
        assert_eq!(install(&bytes).unwrap(), kv.hash().unwrap());
        // The checksum of each chunk is still compared.
        bytes[1_000] ^= 1;
        assert!(install(&bytes).is_err());
    }

    #[test]
    fn truncated_altered_and_unknown_files_are_refused() {
        let bytes = file_of(&store());
        let open = |bytes: &[u8]| SnapshotFile::open(Cursor::new(bytes.to_vec())).err();
        for position in [60, bytes.len() / 2, bytes.len() - 40, bytes.len() - 1] {
            let mut altered = bytes.clone();
            altered[position] ^= 1;
            assert!(matches!(open(&altered), Some(SnapshotFileError::Damaged)), "at {position}");
        }
        for length in [45, 512, 544, bytes.len() - 512, bytes.len() - 1] {
            let truncated = open(&bytes[..length]);
            assert!(matches!(truncated, Some(SnapshotFileError::Damaged)), "truncated to {length}");
        }
        assert!(matches!(open(b"bolt"), Some(SnapshotFileError::UnknownFormat)));
        assert!(matches!(open(&[0; 4_128]), Some(SnapshotFileError::UnknownFormat)));
    }
}
