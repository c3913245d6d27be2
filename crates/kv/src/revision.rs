//! Revisions, and the rows that a table keeps under them.
//!
//! Every write of the store is one row, filed under its revision and never changed
//! again; compaction takes rows away. Leases, alarms and the state of the machine
//! itself are rows of other kinds in the same table.

use bytes::{Buf, BufMut, Bytes};

use crate::reply::KeyValue;

/// When a key was written: all writes of one command share `main`, `sub` counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision {
    pub main: i64,
    pub sub: u32,
}

/// The name of a row: its kind, then a number of that kind. Rows are ordered by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey(pub u128);

impl RowKey {
    /// The state of the machine itself: one row.
    pub(crate) const META: Self = Self::of(0, 0, 0);
    pub(crate) const ALARMS: Self = Self::of(1, 0, 0);
    /// The first row of a revision. These come last, so that writing appends.
    pub(crate) const REVISIONS: Self = Self::of(3, 0, 0);
    pub(crate) const END: Self = Self(u128::MAX);

    const fn of(kind: u8, main: u64, sub: u32) -> Self {
        Self((kind as u128) << 120 | (main as u128) << 32 | sub as u128)
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

    /// Every row of revisions after `main` comes at or after this.
    pub(crate) fn after_revision(main: i64) -> Self {
        Self::of(3, main as u64 + 1, 0)
    }

    /// The key after this one.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    pub(crate) fn kind(self) -> Kind {
        match self.0 >> 120 {
            0 => Kind::Meta,
            1 => Kind::Alarm { member: self.main(), kind: self.0 as u8 },
            2 => Kind::Lease(self.main() as i64),
            3 => Kind::Revision(Revision { main: self.main() as i64, sub: self.0 as u32 }),
            _ => Kind::Unknown,
        }
    }

    fn main(self) -> u64 {
        (self.0 >> 32) as u64
    }
}

/// What a row is about.
pub(crate) enum Kind {
    Meta,
    Alarm { member: u64, kind: u8 },
    Lease(i64),
    Revision(Revision),
    Unknown,
}

/// What one revision did to one key.
pub(crate) enum Write {
    Put(KeyValue),
    /// The key went away; its earlier revisions are still there to read.
    Tombstone {
        key: Bytes,
    },
}

const PUT: u8 = 1;
const TOMBSTONE: u8 = 2;
/// The numbers of a put in front of its key.
const PUT_HEAD_BYTES: usize = 1 + 8 + 8 + 8 + 4;

pub(crate) fn put_row(kv: &KeyValue) -> Bytes {
    // The exact size, so that the row is one allocation.
    let mut row = Vec::with_capacity(PUT_HEAD_BYTES + kv.key.len() + kv.value.len());
    row.put_u8(PUT);
    row.put_i64_le(kv.create_revision);
    row.put_i64_le(kv.version);
    row.put_i64_le(kv.lease);
    row.put_u32_le(kv.key.len() as u32);
    row.put_slice(&kv.key);
    row.put_slice(&kv.value);
    row.into()
}

pub(crate) fn tombstone_row(key: &[u8]) -> Bytes {
    let mut row = Vec::with_capacity(1 + key.len());
    row.put_u8(TOMBSTONE);
    row.put_slice(key);
    row.into()
}

/// Keys and values of what comes back share the row's memory.
pub(crate) fn read_row(revision: Revision, mut row: Bytes) -> Option<Write> {
    match row.try_get_u8().ok()? {
        PUT => {
            let create_revision = row.try_get_i64_le().ok()?;
            let version = row.try_get_i64_le().ok()?;
            let lease = row.try_get_i64_le().ok()?;
            let key_bytes = row.try_get_u32_le().ok()? as usize;
            let key = (key_bytes <= row.len()).then(|| row.split_to(key_bytes))?;
            let mod_revision = revision.main;
            let sane = version > 0 && create_revision <= mod_revision;
            let kv = KeyValue { key, create_revision, mod_revision, version, value: row, lease };
            sane.then_some(Write::Put(kv))
        }
        TOMBSTONE => Some(Write::Tombstone { key: row }),
        _ => None,
    }
}

/// What a row counts towards the quota: the same for every table.
pub(crate) fn row_bytes(row: &Bytes) -> u32 {
    16 + row.len() as u32
}
