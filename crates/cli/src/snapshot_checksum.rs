//! The checksum at the end of a snapshot file: the SHA-256 of all bytes before it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::CliError;

pub(crate) const CHECKSUM_BYTES: usize = 32;

/// Checks whether a stream of bytes ends with its own checksum.
pub(crate) struct ChecksumReader {
    hash: Sha256,
    /// The last bytes so far: the checksum, if the stream ends here.
    tail: Vec<u8>,
    total: u64,
}

impl ChecksumReader {
    pub(crate) fn new() -> Self {
        Self { hash: Sha256::new(), tail: Vec::new(), total: 0 }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        self.tail.extend_from_slice(bytes);
        let content = self.tail.len().saturating_sub(CHECKSUM_BYTES);
        self.hash.update(&self.tail[..content]);
        self.tail.drain(..content);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The checksum, if it matches.
    pub(crate) fn finish(self) -> Result<[u8; CHECKSUM_BYTES], ChecksumError> {
        let computed: [u8; CHECKSUM_BYTES] = self.hash.finalize().into();
        match <[u8; CHECKSUM_BYTES]>::try_from(self.tail.as_slice()) {
            Err(_) => Err(ChecksumError::TooShort(self.total)),
            Ok(stored) if stored == computed => Ok(computed),
            Ok(_) => Err(ChecksumError::Mismatch(self.total)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumError {
    TooShort(u64),
    Mismatch(u64),
}

impl ChecksumError {
    pub(crate) fn text(self) -> String {
        match self {
            Self::TooShort(bytes) => {
                format!(
                    "{bytes} bytes are too few for a snapshot, which ends with a SHA-256 checksum"
                )
            }
            Self::Mismatch(bytes) => format!(
                "the last 32 of its {bytes} bytes are not the SHA-256 checksum of the others: \
                 the file is damaged, truncated or not a snapshot"
            ),
        }
    }
}

/// Checks a whole file. Returns its size without the checksum, and the checksum.
pub(crate) fn check_file(path: &Path) -> Result<(u64, [u8; CHECKSUM_BYTES]), CliError> {
    let unreadable =
        |error: io::Error| CliError::with_cause(&format!("cannot read {}", path.display()), &error);
    let mut file = File::open(path).map_err(unreadable)?;
    let mut reader = ChecksumReader::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer).map_err(unreadable)?;
        if read == 0 {
            break;
        }
        reader.update(&buffer[..read]);
    }
    let total = reader.total();
    let checksum = reader
        .finish()
        .map_err(|error| CliError::failed(format!("{}: {}", path.display(), error.text())))?;
    Ok((total - CHECKSUM_BYTES as u64, checksum))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(bytes: &[u8], chunk: usize) -> Result<[u8; CHECKSUM_BYTES], ChecksumError> {
        let mut reader = ChecksumReader::new();
        bytes.chunks(chunk).for_each(|chunk| reader.update(chunk));
        reader.finish()
    }

    #[test]
    fn the_checksum_is_found_for_every_chunk_size() {
        let mut bytes = vec![7; 1000];
        bytes.extend_from_slice(&Sha256::digest(vec![7; 1000]));
        for chunk in [1, 31, 32, 33, 1000, 4096] {
            assert!(run(&bytes, chunk).is_ok(), "chunks of {chunk}");
        }
        bytes[3] ^= 1;
        assert_eq!(run(&bytes, 100), Err(ChecksumError::Mismatch(1032)));
        assert_eq!(run(&bytes[..1031], 100), Err(ChecksumError::Mismatch(1031)));
        assert_eq!(run(&bytes[..31], 100), Err(ChecksumError::TooShort(31)));
    }
}
