//! Revisions, and the rows that a table stores under them.
//!
//! Every write to a key is one row under its revision. It is never changed, only removed by
//! compaction. Leases, alarms, users, roles and the meta row are rows of other kinds in the same table.

use bytes::{Buf, BufMut, Bytes};

use crate::packed_keys::KeyRef;
use crate::reply::KeyValue;

/// When a key was written. All writes of one command share `main`; `sub` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision {
    /// The revision that clients see.
    pub main: i64,
    /// The position of the write in its command, from 0.
    pub sub: u32,
}

/// The key of a row: its kind, then a number of that kind. Rows are ordered by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey(pub u128);

impl RowKey {
    /// The one row about the machine itself.
    pub(crate) const META: Self = Self::of(0, 0, 0);
    /// The row about authentication. Rows of users and roles follow it.
    pub(crate) const AUTH: Self = Self::of(0, 1, 0);
    /// The first row of a revision. Revisions sort last, so that writes append.
    pub(crate) const REVISIONS: Self = Self::of(3, 0, 0);
    pub(crate) const END: Self = Self(u128::MAX);

    const fn of(kind: u8, main: u64, sub: u32) -> Self {
        Self((kind as u128) << 120 | (main as u128) << 32 | sub as u128)
    }

    pub(crate) fn auth_user(slot: u32) -> Self {
        Self::of(0, 2, slot)
    }

    pub(crate) fn auth_role(slot: u32) -> Self {
        Self::of(0, 3, slot)
    }

    pub(crate) fn alarm(member: u64, kind: u8) -> Self {
        Self::of(1, member, u32::from(kind))
    }

    pub(crate) fn lease(id: i64) -> Self {
        Self::of(2, id as u64, 0)
    }

    pub(crate) fn revision(revision: Revision) -> Self {
        Self::of(3, revision.main as u64, revision.sub)
    }

    /// The first possible row of a revision after `main`.
    pub(crate) fn after_revision(main: i64) -> Self {
        Self::of(3, main as u64 + 1, 0)
    }

    /// The key after this one.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Rows of one kind lie together.
    pub(crate) fn is_of_same_kind(self, other: Self) -> bool {
        (self.0 ^ other.0) >> 120 == 0
    }

    pub(crate) fn kind(self) -> RowKind {
        match self.0 >> 120 {
            0 => match (self.main(), self.0 as u32) {
                (0, 0) => RowKind::Meta,
                (1, 0) => RowKind::Auth,
                (2, slot) => RowKind::AuthUser(slot),
                (3, slot) => RowKind::AuthRole(slot),
                _ => RowKind::Unknown,
            },
            1 => RowKind::Alarm { member: self.main(), kind: self.0 as u8 },
            2 => RowKind::Lease(self.main() as i64),
            3 => RowKind::Revision(Revision { main: self.main() as i64, sub: self.0 as u32 }),
            _ => RowKind::Unknown,
        }
    }

    fn main(self) -> u64 {
        (self.0 >> 32) as u64
    }
}

/// The kind of a row, decoded from its key.
pub(crate) enum RowKind {
    Meta,
    Auth,
    /// A user or a role, by the number of its row.
    AuthUser(u32),
    AuthRole(u32),
    Alarm {
        member: u64,
        kind: u8,
    },
    Lease(i64),
    Revision(Revision),
    Unknown,
}

/// What one revision did to one key.
pub(crate) enum RowWrite {
    Put(KeyValue),
    /// The key was deleted. Its earlier revisions can still be read.
    Tombstone {
        key: Bytes,
    },
}

const PUT: u8 = 1;
const TOMBSTONE: u8 = 2;
/// The size of the numbers before the key of a put.
const PUT_HEAD_BYTES: usize = 1 + 8 + 8 + 8 + 4;

pub(crate) fn put_row(kv: &KeyValue) -> Bytes {
    let KeyValue { key, value, create_revision, version, lease, .. } = kv;
    let head = PutHead::new(key, *lease, *create_revision, *version);
    RowParts::of_put(&head, key, value).to_bytes()
}

/// What is in front of the key of a put.
#[derive(Default)]
pub(crate) struct PutHead([u8; PUT_HEAD_BYTES]);

impl PutHead {
    pub(crate) fn new(key: &[u8], lease: i64, created: i64, version: i64) -> Self {
        let mut head = [0; PUT_HEAD_BYTES];
        head[0] = PUT;
        head[1..9].copy_from_slice(&created.to_le_bytes());
        head[9..17].copy_from_slice(&version.to_le_bytes());
        head[17..25].copy_from_slice(&lease.to_le_bytes());
        head[25..].copy_from_slice(&(key.len() as u32).to_le_bytes());
        Self(head)
    }
}

/// A row that is not in one piece yet.
#[derive(Clone, Copy, Debug)]
pub struct RowParts<'a>([&'a [u8]; 3]);

impl<'a> RowParts<'a> {
    pub(crate) fn of_put(head: &'a PutHead, key: &'a [u8], value: &'a [u8]) -> Self {
        Self([&head.0, key, value])
    }

    /// The bytes of all parts.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }

    /// Appends the row.
    pub fn append_to(self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|part| out.extend_from_slice(part));
    }

    /// The row in one piece.
    #[must_use]
    pub fn to_bytes(self) -> Bytes {
        // The exact size, so that the row is one allocation.
        let mut row = Vec::with_capacity(self.bytes());
        self.append_to(&mut row);
        row.into()
    }
}

impl<'a> From<&'a [u8]> for RowParts<'a> {
    fn from(row: &'a [u8]) -> Self {
        Self([row, &[], &[]])
    }
}

pub(crate) fn tombstone_row(key: KeyRef<'_>) -> Bytes {
    let mut row = Vec::with_capacity(1 + key.len());
    row.put_u8(TOMBSTONE);
    key.add_to(&mut row);
    row.into()
}

/// What a row says of its key, without its value.
pub(crate) enum RowHead<'a> {
    Put {
        key: &'a [u8],
        created: i64,
        version: i64,
        lease: i64,
    },
    /// The key was deleted.
    Tombstone {
        key: &'a [u8],
    },
}

/// Reads the part before the value. `None` if the row is invalid.
pub(crate) fn read_row_head(revision: Revision, mut row: &[u8]) -> Option<RowHead<'_>> {
    match row.try_get_u8().ok()? {
        PUT => {
            let created = row.try_get_i64_le().ok()?;
            let version = row.try_get_i64_le().ok()?;
            let lease = row.try_get_i64_le().ok()?;
            let key_bytes = row.try_get_u32_le().ok()? as usize;
            let key = row.get(..key_bytes)?;
            // Each version of a key has a revision of its own.
            let is_valid = (1..=revision.main).contains(&version) && created <= revision.main;
            is_valid.then_some(RowHead::Put { key, created, version, lease })
        }
        TOMBSTONE => Some(RowHead::Tombstone { key: row }),
        _ => None,
    }
}

/// Reads a row. Key and value share its memory. `None` if it is invalid.
pub(crate) fn read_row(revision: Revision, mut row: Bytes) -> Option<RowWrite> {
    match read_row_head(revision, &row)? {
        RowHead::Put { key, created: create_revision, version, lease } => {
            let (key_bytes, mod_revision) = (key.len(), revision.main);
            row.advance(PUT_HEAD_BYTES);
            let key = row.split_to(key_bytes);
            let kv = KeyValue { key, create_revision, mod_revision, version, value: row, lease };
            Some(RowWrite::Put(kv))
        }
        RowHead::Tombstone { .. } => {
            row.advance(1);
            Some(RowWrite::Tombstone { key: row })
        }
    }
}

/// The key of a tombstone's row. They share their memory.
pub(crate) fn key_of_tombstone(row: &Bytes) -> Bytes {
    row.slice(1.min(row.len())..)
}

/// The bytes that a row counts towards the quota, the same for every table.
pub(crate) fn row_bytes(row: &[u8]) -> u32 {
    row_bytes_of(row.len())
}

/// The same for a row of this length.
pub(crate) fn row_bytes_of(length: usize) -> u32 {
    16 + length as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_read(at: Revision, created: i64, version: i64) -> bool {
        let head = PutHead::new(b"key", 0, created, version);
        let row = RowParts::of_put(&head, b"key", b"value").to_bytes();
        read_row_head(at, &row).is_some()
    }

    #[test]
    fn impossible_versions_are_refused() {
        let at = Revision { main: 7, sub: 0 };
        for (created, version, is_valid) in
            [(3, 5, true), (3, 7, true), (3, 0, false), (3, 8, false), (3, i64::MAX, false)]
        {
            assert_eq!(is_read(at, created, version), is_valid, "version {version}");
        }
        assert!(!is_read(at, 8, 1), "created later");
    }
}
