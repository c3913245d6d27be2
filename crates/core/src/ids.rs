//! Identifiers of members, entries, requests and saves.

use std::fmt;

/// A position in the log, counted from 1. Index 0 is before the first entry.
pub type Index = u64;

/// The number of an election. Term 0 is before the first election.
pub type Term = u64;

/// No correct index or term reaches this; a message with a larger number is malformed. The
/// distance to `u64::MAX` lets the rules add small numbers without overflow checks.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// No request number reaches this: a forwarded request with a larger one is malformed.
pub(crate) const REQUEST_MAX: u64 = 1 << 63;

/// A member of the cluster. An id is never used twice. Zero is not a valid id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemberId(pub u64);

impl From<u64> for MemberId {
    fn from(id: u64) -> Self {
        Self(id)
    }
}

/// Sixteen lower-case hexadecimal digits, as etcd prints member ids.
impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Identifies an entry. Two logs that contain the same id contain the same entry and the
/// same entries before it. Ordered by term, then index: the order in which elections
/// compare logs (thesis §3.6.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EntryId {
    /// The term in which a leader created the entry.
    pub term: Term,
    /// The position in the log.
    pub index: Index,
}

impl EntryId {
    /// The id before the first entry of an empty log.
    pub const ZERO: Self = Self { term: 0, index: 0 };

    /// The id of the entry with this term and index.
    pub const fn new(term: Term, index: Index) -> Self {
        Self { term, index }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.index)
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The caller's number for a request; the core only returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RequestId(pub u64);

/// Identifies one durable write. Ids increase by one with every save, so a late completion
/// cannot be mistaken for that of a newer write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SaveId(pub u64);

/// A sorted set of members: iteration has the same order everywhere.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Vec<MemberId>"))]
pub struct MemberSet(Vec<MemberId>);

impl MemberSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Whether this member is in the set.
    #[inline]
    pub fn contains(&self, id: MemberId) -> bool {
        // Faster than a binary search for the size of most clusters.
        const SMALL: usize = 8;
        if self.0.len() <= SMALL { self.0.contains(&id) } else { self.0.binary_search(&id).is_ok() }
    }

    /// Adds a member; true when it was absent.
    pub fn insert(&mut self, id: MemberId) -> bool {
        match self.0.binary_search(&id) {
            Ok(_) => false,
            Err(at) => {
                self.0.insert(at, id);
                true
            }
        }
    }

    /// Removes a member; true when it was present.
    pub fn remove(&mut self, id: MemberId) -> bool {
        match self.0.binary_search(&id) {
            Ok(at) => {
                self.0.remove(at);
                true
            }
            Err(_) => false,
        }
    }

    /// The members in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = MemberId> + '_ {
        self.0.iter().copied()
    }

    /// The members in ascending order, as a slice.
    pub fn as_slice(&self) -> &[MemberId] {
        &self.0
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many members are in one of the two sets but not in both.
    pub fn difference_count(&self, other: &Self) -> usize {
        self.iter().filter(|id| !other.contains(*id)).count()
            + other.iter().filter(|id| !self.contains(*id)).count()
    }
}

impl FromIterator<MemberId> for MemberSet {
    fn from_iter<I: IntoIterator<Item = MemberId>>(ids: I) -> Self {
        let mut ids: Vec<MemberId> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        Self(ids)
    }
}

impl From<Vec<MemberId>> for MemberSet {
    fn from(ids: Vec<MemberId>) -> Self {
        ids.into_iter().collect()
    }
}

impl<const N: usize> From<[u64; N]> for MemberSet {
    fn from(ids: [u64; N]) -> Self {
        ids.into_iter().map(MemberId).collect()
    }
}

/// The ids in order, separated by spaces.
impl fmt::Display for MemberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, id) in self.iter().enumerate() {
            if at > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{id}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for MemberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({self})")
    }
}
