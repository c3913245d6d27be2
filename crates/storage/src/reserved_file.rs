//! A file whose space is filled with zeros shortly before it is used.
//!
//! File systems remember which blocks of reserved space were never written. The first write to such
//! a block changes the metadata of the file, and the next sync has to wait for the journal of the
//! file system. A log that grows by small records would pay for that with every sync. So a small
//! write at the end is followed by zeros, for many later writes. They read as what was there
//! before: zeros.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// An open file of a [`FileDisk`](crate::FileDisk).
#[derive(Debug)]
pub struct ReservedFile {
    pub(crate) file: File,
    /// The space that was reserved when it was created.
    reserved: u64,
    /// Nothing at or after this offset was written.
    filled: AtomicU64,
}

impl ReservedFile {
    /// A new file with this much reserved space.
    pub(crate) fn new(file: File, reserved: u64) -> Self {
        Self { file, reserved, filled: AtomicU64::new(0) }
    }

    /// A file that existed. What of it was written is not known, so it is not filled.
    pub(crate) fn existing(file: File) -> Self {
        Self { file, reserved: 0, filled: AtomicU64::new(u64::MAX) }
    }

    pub(crate) fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.stop_filling();
        self.file.set_len(bytes)
    }

    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        let end = offset + bytes.len() as u64;
        if end > self.filled.load(Ordering::Relaxed) {
            self.fill(end, bytes.len());
        }
        Ok(())
    }

    /// Fills what follows a write that ended here, and was the furthest one so far.
    fn fill(&self, end: u64, length: usize) {
        let until = if length < LENGTH_MAX { self.reserved.min(end + FILLED_AHEAD) } else { end };
        self.filled.store(until.max(end), Ordering::Relaxed);
        let mut from = end;
        while from < until {
            let next = (from / PIECE + 1) * PIECE;
            let zeros = &ZEROS[..(next.min(until) - from) as usize];
            // The data is written. A failure of the disk shows with the next write or sync.
            if self.file.write_all_at(zeros, from).is_err() {
                return self.stop_filling();
            }
            from = next;
        }
    }

    fn stop_filling(&self) {
        self.filled.store(u64::MAX, Ordering::Relaxed);
    }
}

const FILLED_AHEAD: u64 = 1 << 20;
/// Longer writes gain little: they would be written twice.
const LENGTH_MAX: usize = 32 << 10;
/// Zeros are written in pieces of this size. Systems cache a large write as one unit, and later look at all of it
/// for each small write into it; small pieces cost a call each (docs/decisions/031-waits-for-memory.md).
const PIECE: u64 = 32 << 10;
static ZEROS: [u8; PIECE as usize] = [0; PIECE as usize];

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVED: usize = (2 << 20) + 777;

    fn reserved() -> ReservedFile {
        let file = tempfile::tempfile().unwrap();
        file.set_len(RESERVED as u64).unwrap();
        ReservedFile::new(file, RESERVED as u64)
    }

    fn content(file: &ReservedFile) -> Vec<u8> {
        let mut content = vec![0; file.file.metadata().unwrap().len() as usize];
        file.file.read_exact_at(&mut content, 0).unwrap();
        content
    }

    /// In any order and of any size.
    #[test]
    fn zeros_never_replace_what_was_written() {
        let mut random = 1u64;
        for _ in 0..30 {
            let file = reserved();
            let mut expected = vec![0; RESERVED];
            for number in 1..20 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(number);
                let length = ((random >> 33) as usize % (600 << 10)).min(1 << (number % 20));
                let offset = (random >> 40) as usize % (RESERVED - length);
                let bytes = vec![number as u8; length];
                file.write_at(offset as u64, &bytes).unwrap();
                expected[offset..offset + length].copy_from_slice(&bytes);
                assert!(content(&file) == expected);
            }
        }
    }

    #[test]
    fn only_reserved_space_is_filled() {
        let file = reserved();
        file.write_at(0, b"head").unwrap();
        assert_eq!(file.filled.load(Ordering::Relaxed), 4 + FILLED_AHEAD);
        file.write_at(RESERVED as u64 - 4, b"tail").unwrap();
        assert_eq!(content(&file).len(), RESERVED);
        let grown = ReservedFile::new(tempfile::tempfile().unwrap(), 0);
        grown.write_at(0, b"chunk").unwrap();
        assert_eq!(content(&grown), b"chunk");
    }

    /// Large writes gain nothing from it, and the length of a file may be less than what was
    /// reserved once it was set.
    #[test]
    fn large_writes_and_files_of_another_length_are_not_filled() {
        let file = reserved();
        file.write_at(0, &vec![1; 1 << 19]).unwrap();
        assert_eq!(file.filled.load(Ordering::Relaxed), 1 << 19);
        file.set_len(1 << 19).unwrap();
        file.write_at(1 << 19, b"more").unwrap();
        assert_eq!(content(&file).len(), (1 << 19) + 4);
        let known = ReservedFile::existing(tempfile::tempfile().unwrap());
        known.write_at(0, b"old").unwrap();
        assert_eq!(content(&known), b"old");
    }
}
