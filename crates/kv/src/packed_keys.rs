//! A sorted list of keys that stores once what all of them start with.
//!
//! Keys of one block of the index, and names of its blocks, lie next to each other in the order of all keys, so
//! they usually share a long prefix: a directory, a namespace, most digits of a number.

use std::cmp::Ordering;
use std::fmt;

use bytes::Bytes;

#[derive(Clone, Default)]
pub(crate) struct PackedKeys {
    /// What all keys start with. It may be shorter than it could be.
    prefix: Box<[u8]>,
    /// The rest of each key, in order.
    suffixes: Vec<u8>,
    /// The first bytes of each suffix: a search compares numbers that lie next to each other.
    heads: Vec<u32>,
    /// Where each suffix ends; it starts at the end of the one before.
    ends: Vec<u32>,
}

const HEAD_BYTES: usize = size_of::<u32>();

/// The first bytes of a suffix in the order of the bytes. Suffixes with different heads are ordered
/// as their heads are.
fn head_of(suffix: &[u8]) -> u32 {
    let mut head = [0; HEAD_BYTES];
    let length = suffix.len().min(head.len());
    head[..length].copy_from_slice(&suffix[..length]);
    u32::from_be_bytes(head)
}

/// A key in two parts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyRef<'a> {
    prefix: &'a [u8],
    suffix: &'a [u8],
}

impl KeyRef<'_> {
    pub(crate) fn len(self) -> usize {
        self.prefix.len() + self.suffix.len()
    }

    /// Whether it is this key.
    pub(crate) fn is(self, key: &[u8]) -> bool {
        key.strip_prefix(self.prefix).is_some_and(|rest| rest == self.suffix)
    }

    /// The order of this key and another one.
    pub(crate) fn cmp_key(self, key: &[u8]) -> Ordering {
        let (start, rest) = key.split_at(key.len().min(self.prefix.len()));
        self.prefix.cmp(start).then_with(|| self.suffix.cmp(rest))
    }

    pub(crate) fn add_to(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix);
        out.extend_from_slice(self.suffix);
    }

    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.len());
        self.add_to(&mut key);
        key
    }

    pub(crate) fn to_bytes(self) -> Bytes {
        self.to_vec().into()
    }
}

impl<'a> From<&'a [u8]> for KeyRef<'a> {
    fn from(key: &'a [u8]) -> Self {
        Self { prefix: &[], suffix: key }
    }
}

impl fmt::Debug for PackedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.iter_from(0).map(|key| key.to_vec().escape_ascii().to_string());
        f.debug_list().entries(keys).finish()
    }
}

/// How many numbers a line of the processor's cache has.
const NUMBERS_OF_LINE: usize = 16;

/// How many keys memory is reserved for at once. Doubling would leave a quarter unused.
pub(crate) const KEYS_RESERVED: usize = 16;

/// Memory of removed keys that a list keeps, in addition to as much as it uses.
const SUFFIX_BYTES_SPARE: usize = 1 << 10;

impl PackedKeys {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of all keys, as they are stored.
    pub(crate) fn bytes(&self) -> usize {
        self.prefix.len() + self.suffixes.len()
    }

    fn start(&self, position: usize) -> usize {
        let before = position.checked_sub(1).and_then(|before| self.ends.get(before));
        before.map_or(0, |end| *end as usize)
    }

    fn suffix(&self, position: usize) -> &[u8] {
        let end = self.ends.get(position).map_or(0, |end| *end as usize);
        self.suffixes.get(self.start(position)..end).unwrap_or_default()
    }

    pub(crate) fn get(&self, position: usize) -> Option<KeyRef<'_>> {
        let exists = position < self.len();
        exists.then(|| KeyRef { prefix: &self.prefix, suffix: self.suffix(position) })
    }

    pub(crate) fn iter_from(&self, position: usize) -> impl Iterator<Item = KeyRef<'_>> {
        (position..).map_while(|position| self.get(position))
    }

    /// Accesses the memory that a search needs, without waiting for any of it. The result only keeps the compiler
    /// from leaving the accesses out.
    pub(crate) fn fetch(&self) -> usize {
        let numbers =
            |list: &[u32]| list.iter().step_by(NUMBERS_OF_LINE).fold(0, |sum, one| sum ^ one);
        let prefix = self.prefix.first().copied().unwrap_or_default();
        (numbers(&self.heads) ^ numbers(&self.ends)) as usize ^ usize::from(prefix)
    }

    /// The position of a key, or where it would be.
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let Some(rest) = key.strip_prefix(&*self.prefix) else {
            return Err(if key < &*self.prefix { 0 } else { self.len() });
        };
        let head = head_of(rest);
        let mut low = count_below(&self.heads, head);
        // Few have the same head.
        let same = self.heads.get(low..).unwrap_or_default();
        if same.first() != Some(&head) {
            return Err(low);
        }
        let mut high = low + same.partition_point(|other| *other == head);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.cmp_of_same_head(middle, rest) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Compares a suffix with what remains of a key, if both have the same head. Short ones need no access
    /// to the suffixes, which are likely not in the processor's cache.
    #[inline]
    fn cmp_of_same_head(&self, position: usize, rest: &[u8]) -> Ordering {
        let end = self.ends.get(position).map_or(0, |end| *end as usize);
        let len = end - self.start(position);
        if len.max(rest.len()) <= HEAD_BYTES {
            // Zeros follow in the head of the shorter one: it comes first.
            return len.cmp(&rest.len());
        }
        self.suffix(position).cmp(rest)
    }

    /// Inserts a key at the position that [`Self::search`] returned for it.
    pub(crate) fn insert(&mut self, position: usize, key: &[u8]) {
        if self.len() == 0 {
            self.prefix = key.into();
        }
        let common = common_prefix(&self.prefix, key);
        if common < self.prefix.len() {
            self.set_prefix_len(common);
        }
        let rest = key.get(common..).unwrap_or_default();
        let start = self.start(position);
        reserve(&mut self.suffixes, rest.len());
        self.suffixes.extend_from_slice(rest);
        if let Some(moved) = self.suffixes.get_mut(start..) {
            moved.rotate_right(rest.len());
        }
        if self.len() == self.ends.capacity() {
            self.heads.reserve_exact(KEYS_RESERVED);
            self.ends.reserve_exact(KEYS_RESERVED);
        }
        self.heads.insert(position, head_of(rest));
        self.ends.insert(position, start as u32);
        self.move_ends(position, rest.len() as i64);
    }

    pub(crate) fn remove(&mut self, position: usize) {
        let suffix = self.start(position)..self.start(position + 1);
        let removed = suffix.len() as i64;
        self.suffixes.drain(suffix);
        self.heads.remove(position);
        self.ends.remove(position);
        self.move_ends(position, -removed);
        if self.len() == 0 {
            *self = Self::default();
        } else if self.suffixes.capacity() > 2 * self.suffixes.len() + SUFFIX_BYTES_SPARE {
            self.suffixes.shrink_to_fit();
        }
    }

    /// Moves the ends from this position on.
    fn move_ends(&mut self, position: usize, by: i64) {
        for end in self.ends.get_mut(position..).unwrap_or_default() {
            *end = (i64::from(*end) + by) as u32;
        }
    }

    /// Stores all keys again, with a prefix of this length.
    fn set_prefix_len(&mut self, len: usize) {
        let mut first = self.get(0).map(KeyRef::to_vec).unwrap_or_default();
        first.truncate(len);
        let mut packed = Self { prefix: first.into(), ..Self::default() };
        packed.add_all(self, 0);
        *self = packed;
    }

    /// Adds keys of another list from a position on. All of them start with the own prefix.
    fn add_all(&mut self, other: &Self, from: usize) {
        let own = self.prefix.len();
        let bytes = |key: KeyRef<'_>| key.len().saturating_sub(own);
        self.suffixes.reserve_exact(other.iter_from(from).map(bytes).sum());
        self.heads.reserve_exact(other.len() - from);
        self.ends.reserve_exact(other.len() - from);
        for key in other.iter_from(from) {
            let in_prefix = key.prefix.get(own..).unwrap_or_default();
            let in_suffix = key.suffix.get(own.saturating_sub(key.prefix.len())..);
            let start = self.suffixes.len();
            self.suffixes.extend_from_slice(in_prefix);
            self.suffixes.extend_from_slice(in_suffix.unwrap_or_default());
            self.heads.push(head_of(self.suffixes.get(start..).unwrap_or_default()));
            self.ends.push(self.suffixes.len() as u32);
        }
    }

    /// Moves the keys from a position on into a new list. Both get the longest possible prefix.
    pub(crate) fn split_off(&mut self, position: usize) -> Self {
        let prefix = self.shared_prefix(position, self.len());
        let mut upper = Self { prefix, ..Self::default() };
        upper.add_all(self, position);
        self.suffixes.truncate(self.start(position));
        self.heads.truncate(position);
        self.ends.truncate(position);
        self.set_prefix_len(self.shared_prefix(0, position).len());
        upper
    }

    /// What the keys from one position up to another start with.
    fn shared_prefix(&self, from: usize, to: usize) -> Box<[u8]> {
        let key = |position| self.get(position).map(KeyRef::to_vec).unwrap_or_default();
        let (mut first, last) = (key(from), key(to.saturating_sub(1)));
        first.truncate(common_prefix(&first, &last));
        first.into()
    }

    /// Moves all keys of another list, which come after the own ones, to the end.
    pub(crate) fn append(&mut self, other: &Self) {
        let Some(first) = other.get(0).map(KeyRef::to_vec) else { return };
        if self.len() == 0 {
            *self = other.clone();
            return;
        }
        let common = common_prefix(&self.prefix, &first).min(other.prefix.len());
        self.set_prefix_len(common);
        self.add_all(other, 0);
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> (usize, usize) {
        (self.ends.capacity(), self.prefix.len() + self.suffixes.capacity())
    }
}

/// How many of the sorted numbers are below this one. The last part of the search counts them all, in
/// the order of the memory and without branches: the processor waits once for all of it, where a binary search waits for
/// each number that it looks at.
fn count_below(sorted: &[u32], number: u32) -> usize {
    let (mut start, mut rest) = (0, sorted);
    while rest.len() > COUNTED_MAX {
        let (lower, upper) = rest.split_at(rest.len() / 2);
        let is_above = upper.first().is_some_and(|first| *first < number);
        start += if is_above { lower.len() } else { 0 };
        rest = if is_above { upper } else { lower };
    }
    start + rest.iter().map(|other| u32::from(*other < number)).sum::<u32>() as usize
}

/// Four lines of a processor's cache.
const COUNTED_MAX: usize = 64;

pub(crate) fn common_prefix(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Reserves a quarter more than is used. Doubling would leave more unused.
fn reserve(bytes: &mut Vec<u8>, more: usize) {
    if bytes.capacity() - bytes.len() < more {
        bytes.reserve_exact(more.max(bytes.len() / 4));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys_of(packed: &PackedKeys) -> Vec<Vec<u8>> {
        packed.iter_from(0).map(KeyRef::to_vec).collect()
    }

    /// Compares with a plain list: insertions at every place, removals, splits and merges, with
    /// keys that share long, short and no prefixes, or start with zeros.
    #[test]
    fn behaves_as_a_sorted_list() {
        let mut number: u128 = 1;
        for round in 0..200 {
            let mut packed = PackedKeys::default();
            let mut list: Vec<Vec<u8>> = Vec::new();
            for _ in 0..60 {
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(12345);
                let name = number >> 40 & 0x3f;
                let key = match round % 5 {
                    0 => format!("/registry/pods/default/{name:03}"),
                    1 => format!("{name:b}"),
                    2 => "a".repeat(name as usize % 20),
                    3 => "\0".repeat(name as usize % 9) + &"a".repeat(name as usize >> 5),
                    _ => format!("/{}/{name}", name % 3),
                }
                .into_bytes();
                let expected = list.binary_search(&key);
                assert_eq!(packed.search(&key), expected);
                match expected {
                    Ok(position) if number >> 30 & 1 == 0 => {
                        packed.remove(position);
                        list.remove(position);
                    }
                    Ok(_) => {}
                    Err(position) => {
                        packed.insert(position, &key);
                        list.insert(position, key);
                    }
                }
                assert_eq!(keys_of(&packed), list);
            }
            for middle in 0..=list.len() {
                let mut lower = packed.clone();
                let upper = lower.split_off(middle);
                assert_eq!(keys_of(&lower), list[..middle]);
                assert_eq!(keys_of(&upper), list[middle..]);
                for key in &list {
                    assert_eq!(lower.search(key), list[..middle].binary_search(key));
                    assert_eq!(upper.search(key), list[middle..].binary_search(key));
                }
                lower.append(&upper);
                assert_eq!(keys_of(&lower), list);
            }
        }
    }

    #[test]
    fn a_long_key_that_is_removed_frees_its_memory() {
        let mut packed = PackedKeys::default();
        packed.insert(0, &[b'a'; 1_000_000]);
        packed.insert(1, b"b");
        packed.remove(0);
        assert!(packed.capacity().1 < 2_000, "{:?}", packed.capacity());
        packed.remove(0);
        assert_eq!(packed.capacity(), (0, 0));
    }

    #[test]
    fn a_common_prefix_is_stored_once() {
        let mut packed = PackedKeys::default();
        for number in 0..64 {
            let key = format!("/registry/pods/kube-system/coredns-{number:04}");
            packed.insert(number, key.as_bytes());
        }
        let (keys, bytes) = packed.capacity();
        assert!(keys < 64 + KEYS_RESERVED && bytes < 64 * 4, "{keys} keys, {bytes} bytes");
    }
}
