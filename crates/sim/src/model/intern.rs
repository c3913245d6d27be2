//! Values that are kept once and known by a number, and a quick hash for numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

/// Gives equal values the same number, counted from 0.
#[derive(Clone, Debug)]
pub(super) struct Interner<T> {
    numbers: HashMap<Arc<T>, u32>,
    values: Vec<Arc<T>>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), values: Vec::new() }
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// The number of this value, and whether it is new.
    pub(super) fn number(&mut self, value: T) -> (u32, bool) {
        if let Some(number) = self.numbers.get(&value) {
            return (*number, false);
        }
        let Ok(number) = u32::try_from(self.values.len()) else { panic!("too many values") };
        let value = Arc::new(value);
        self.numbers.insert(Arc::clone(&value), number);
        self.values.push(value);
        (number, true)
    }

    pub(super) fn value(&self, number: u32) -> &Arc<T> {
        &self.values[number as usize]
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }
}

/// A table from pairs of numbers.
pub(super) type Pairs<V> = HashMap<u64, V, BuildHasherDefault<Mixer>>;

pub(super) fn pair(a: u32, b: u32) -> u64 {
    u64::from(a) << 32 | u64::from(b)
}

/// Hashes one number by one multiplication and a fold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0, number);
    }
}

/// Folds a number into a hash.
pub(super) fn mix(hash: u64, number: u64) -> u64 {
    let product = u128::from(hash ^ number ^ 0x9e37_79b9_7f4a_7c15)
        * u128::from(0xd6e8_feb8_6659_fd93_u64 ^ hash.rotate_left(31));
    (product as u64) ^ ((product >> 64) as u64)
}

/// A fingerprint of words, for telling states apart.
pub(super) fn fingerprint(words: impl Iterator<Item = u32>) -> u64 {
    let hash = words.fold(0x2545_f491_4f6c_dd1d, |hash, word| mix(hash, u64::from(word)));
    mix(hash, 0x51_7cc1_b727_220a)
}
