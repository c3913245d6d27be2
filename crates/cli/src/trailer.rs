//! The end of a snapshot file: the SHA-256 of everything before it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::failure::Failure;

pub(crate) const TRAILER_BYTES: usize = 32;

/// Follows a stream and tells, at its end, whether it ended in its own checksum.
pub(crate) struct Checked {
    hash: Sha256,
    /// The last bytes so far: perhaps the trailer.
    tail: Vec<u8>,
    total: u64,
}

impl Checked {
    pub(crate) fn new() -> Self {
        Self { hash: Sha256::new(), tail: Vec::new(), total: 0 }
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        self.tail.extend_from_slice(bytes);
        let sure = self.tail.len().saturating_sub(TRAILER_BYTES);
        self.hash.update(&self.tail[..sure]);
        self.tail.drain(..sure);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The checksum, when it is right.
    pub(crate) fn finish(self) -> Result<[u8; TRAILER_BYTES], WrongTrailer> {
        let found: [u8; TRAILER_BYTES] = self.hash.finalize().into();
        match <[u8; TRAILER_BYTES]>::try_from(self.tail.as_slice()) {
            Err(_) => Err(WrongTrailer::TooShort(self.total)),
            Ok(said) if said == found => Ok(found),
            Ok(_) => Err(WrongTrailer::Different(self.total)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrongTrailer {
    TooShort(u64),
    Different(u64),
}

impl WrongTrailer {
    pub(crate) fn text(self) -> String {
        match self {
            Self::TooShort(bytes) => {
                format!("{bytes} bytes are too few for a snapshot, which ends in its SHA-256")
            }
            Self::Different(bytes) => format!(
                "the last 32 of its {bytes} bytes are not the SHA-256 of the others: \
                 it is damaged, cut short or no snapshot"
            ),
        }
    }
}

/// Reads a whole file: its size without the trailer, and its checksum.
pub(crate) fn check_file(path: &Path) -> Result<(u64, [u8; TRAILER_BYTES]), Failure> {
    let unreadable =
        |why: io::Error| Failure::because(&format!("cannot read {}", path.display()), &why);
    let mut file = File::open(path).map_err(unreadable)?;
    let mut checked = Checked::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut piece).map_err(unreadable)?;
        if read == 0 {
            break;
        }
        checked.take(&piece[..read]);
    }
    let total = checked.total();
    let sum = checked
        .finish()
        .map_err(|why| Failure::failed(format!("{}: {}", path.display(), why.text())))?;
    Ok((total - TRAILER_BYTES as u64, sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(bytes: &[u8], piece: usize) -> Result<[u8; TRAILER_BYTES], WrongTrailer> {
        let mut checked = Checked::new();
        bytes.chunks(piece).for_each(|piece| checked.take(piece));
        checked.finish()
    }

    #[test]
    fn the_trailer_is_found_however_the_pieces_fall() {
        let mut bytes = vec![7; 1000];
        bytes.extend_from_slice(&Sha256::digest(vec![7; 1000]));
        for piece in [1, 31, 32, 33, 1000, 4096] {
            assert!(run(&bytes, piece).is_ok(), "pieces of {piece}");
        }
        bytes[3] ^= 1;
        assert_eq!(run(&bytes, 100), Err(WrongTrailer::Different(1032)));
        assert_eq!(run(&bytes[..1031], 100), Err(WrongTrailer::Different(1031)));
        assert_eq!(run(&bytes[..31], 100), Err(WrongTrailer::TooShort(31)));
    }
}
