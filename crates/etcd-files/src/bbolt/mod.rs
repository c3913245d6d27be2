//! bbolt's file format: a tree of pages, written copy on write, with two alternating meta pages.

mod reader;
mod writer;

pub use reader::{BboltBucket, BboltFile};
pub use writer::{BboltRow, BboltSource, BboltWriteError, BboltWriter};

const PAGE_HEADER_BYTES: usize = 16;
const ELEMENT_BYTES: usize = 16;
const BUCKET_HEADER_BYTES: usize = 16;
/// The part of a meta page that its checksum covers.
const META_BYTES: usize = 56;
const MAGIC: u32 = 0xed0c_daed;
const VERSION: u32 = 2;

const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const META: u16 = 4;
/// The flag of a leaf element whose value is a bucket.
const IS_BUCKET: u32 = 1;
/// The page number that means that the file has no list of free pages.
const NO_FREELIST: u64 = u64::MAX;

/// FNV-1a with 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}
