//! A key that stores short keys inline: the name of a block of the index.
//!
//! A lookup compares the key with a dozen names. Inline names lie in the nodes of the map
//! itself, so most comparisons need no further memory access.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;

#[derive(Clone)]
pub(crate) enum SmallKey {
    Short { length: u8, bytes: [u8; SHORT_BYTES_MAX] },
    Long(Box<[u8]>),
}

/// The longest inline key. It makes a `SmallKey` 40 bytes.
const SHORT_BYTES_MAX: usize = 38;

impl From<&[u8]> for SmallKey {
    fn from(key: &[u8]) -> Self {
        let mut bytes = [0; SHORT_BYTES_MAX];
        match bytes.get_mut(..key.len()) {
            Some(prefix) => {
                prefix.copy_from_slice(key);
                Self::Short { length: key.len() as u8, bytes }
            }
            None => Self::Long(key.into()),
        }
    }
}

impl Borrow<[u8]> for SmallKey {
    #[inline]
    fn borrow(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(key) => key,
        }
    }
}

impl SmallKey {
    /// The key, if it can be stored inline.
    pub(crate) fn short(key: &[u8]) -> Option<Self> {
        (key.len() <= SHORT_BYTES_MAX).then(|| Self::from(key))
    }
}

/// The order of the bytes. Zeros follow a short key, so that whole words can be compared: most names
/// start alike, and a search compares many.
impl Ord for SmallKey {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let (
            Self::Short { length, bytes },
            Self::Short { length: other_length, bytes: other_bytes },
        ) = (self, other)
        else {
            return Borrow::<[u8]>::borrow(self).cmp(other.borrow());
        };
        for start in WORD_STARTS {
            let (word, other_word) = (word_at(bytes, start), word_at(other_bytes, start));
            if word != other_word {
                return word.cmp(&other_word);
            }
        }
        length.cmp(other_length)
    }
}

/// All bytes are in one of these words; the last one overlaps the word before it.
const WORD_STARTS: [usize; 5] = [0, 8, 16, 24, SHORT_BYTES_MAX - 8];

#[inline]
fn word_at(bytes: &[u8; SHORT_BYTES_MAX], start: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[start..start + 8]);
    u64::from_be_bytes(word)
}

impl PartialOrd for SmallKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SmallKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for SmallKey {}

impl fmt::Debug for SmallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", Borrow::<[u8]>::borrow(self).escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_equals_order_of_bytes() {
        let long = [b'b'; 60];
        let at_the_edge = [b'a'; SHORT_BYTES_MAX];
        let beyond = [b'a'; SHORT_BYTES_MAX + 1];
        let zeros = [0; SHORT_BYTES_MAX];
        let mut last_differs = at_the_edge;
        last_differs[SHORT_BYTES_MAX - 1] = b'b';
        let keys: [&[u8]; 12] = [
            b"",
            b"\0",
            b"\0\0",
            &zeros,
            b"a",
            b"a\0",
            b"a\0\0a",
            &at_the_edge,
            &beyond,
            &last_differs,
            b"b",
            &long,
        ];
        for (position, one) in keys.iter().enumerate() {
            assert_eq!(Borrow::<[u8]>::borrow(&SmallKey::from(*one)), *one);
            for (other_position, other) in keys.iter().enumerate() {
                let order = SmallKey::from(*one).cmp(&SmallKey::from(*other));
                assert_eq!(order, position.cmp(&other_position));
            }
        }
        assert_eq!(size_of::<SmallKey>(), 40);
    }
}
