//! Sets and maps of stream ids.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The last streams that the server has reset.
#[derive(Debug, Default)]
pub(crate) struct RecentIds {
    ids: Vec<u32>,
    next: usize,
}

impl RecentIds {
    pub(crate) fn insert(&mut self, id: u32) {
        match self.ids.get_mut(self.next) {
            Some(oldest) => *oldest = id,
            None => self.ids.push(id),
        }
        self.next = (self.next + 1) % RESETS_REMEMBERED;
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }
}

/// Hashes stream ids, which the client chooses, with a random factor.
#[derive(Clone, Debug)]
pub(crate) struct StreamIdHash(u64);

impl StreamIdHash {
    pub(crate) fn new() -> Self {
        Self(RandomState::new().build_hasher().finish() | 1)
    }
}

impl BuildHasher for StreamIdHash {
    type Hasher = StreamIdHasher;

    fn build_hasher(&self) -> StreamIdHasher {
        StreamIdHasher { factor: self.0, hash: 0 }
    }
}

pub(crate) struct StreamIdHasher {
    factor: u64,
    hash: u64,
}

impl Hasher for StreamIdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte) ^ self.hash as u32);
        }
    }

    fn write_u32(&mut self, id: u32) {
        let product = u128::from(self.factor) * u128::from(id ^ (self.factor >> 32) as u32);
        self.hash = (product >> 32) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

const RESETS_REMEMBERED: usize = 64;
