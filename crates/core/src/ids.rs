//! Names of things: members, entries, requests, saves.

use std::fmt;

/// A slot in the log, counted from 1. Index 0 stands before the first entry.
pub type Index = u64;

/// A leader's reign. Term 0 stands before the first election.
pub type Term = u64;

/// No honest index or term comes near this; a message beyond it is malformed.
/// Keeping far from `u64::MAX` lets the rules add small numbers without care.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// One member of the cluster, for ever: an id is never used twice. Zero names nobody.
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

/// The address of an entry. Two logs that hold the same id hold the same entry,
/// and the same entries before it. Ordered by term, then index: that is the order
/// of "whose log is newer" in an election.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EntryId {
    pub term: Term,
    pub index: Index,
}

impl EntryId {
    /// What stands before the first entry of an empty log.
    pub const ZERO: Self = Self { term: 0, index: 0 };

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

/// The caller's ticket for a request; the core only ever hands it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RequestId(pub u64);

/// One durable write. Ids grow by one with every save, so a late completion can
/// never be taken for that of a newer write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SaveId(pub u64);

/// A set of members, kept sorted: iteration has one order everywhere.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Vec<MemberId>"))]
pub struct MemberSet(Vec<MemberId>);

impl MemberSet {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    pub fn contains(&self, id: MemberId) -> bool {
        self.0.binary_search(&id).is_ok()
    }

    /// Adds a member; true when it was not there before.
    pub fn insert(&mut self, id: MemberId) -> bool {
        match self.0.binary_search(&id) {
            Ok(_) => false,
            Err(at) => {
                self.0.insert(at, id);
                true
            }
        }
    }

    /// Takes a member out; true when it was there.
    pub fn remove(&mut self, id: MemberId) -> bool {
        match self.0.binary_search(&id) {
            Ok(at) => {
                self.0.remove(at);
                true
            }
            Err(_) => false,
        }
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = MemberId> + '_ {
        self.0.iter().copied()
    }

    pub fn as_slice(&self) -> &[MemberId] {
        &self.0
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

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
