//! Rows as etcd stores them. Its hashes are computed over these bytes, and its tools read them.

use bytes::{BufMut, Bytes};

use crate::revision::{Revision, RowKey, RowKind, RowWrite, read_row};

/// One write of one key, as a row of etcd's bucket `key`: its key is the revision, its value the
/// message `KeyValue`.
pub(crate) struct EtcdRowBytes {
    /// The revision, and `t` behind that of a tombstone.
    revision: [u8; 18],
    pub(crate) is_tombstone: bool,
    pub(crate) at: Revision,
    pub(crate) key: Bytes,
    /// The fields before the bytes of the value.
    head: Vec<u8>,
    value: Bytes,
    /// The fields behind it.
    tail: Vec<u8>,
}

impl EtcdRowBytes {
    /// `None` if this is not the row of a revision, or a damaged one.
    pub(crate) fn new(row_key: RowKey, row: Bytes) -> Option<Self> {
        let RowKind::Revision(at) = row_key.kind() else { return None };
        let (mut head, mut tail) = (Vec::with_capacity(64), Vec::new());
        let (key, value, is_tombstone) = match read_row(at, row)? {
            RowWrite::Tombstone { key } => {
                put_bytes_head(&mut head, 1, &key);
                head.put_slice(&key);
                (key, Bytes::new(), true)
            }
            RowWrite::Put(kv) => {
                put_bytes_head(&mut head, 1, &kv.key);
                head.put_slice(&kv.key);
                put_number(&mut head, 2, kv.create_revision);
                put_number(&mut head, 3, kv.mod_revision);
                put_number(&mut head, 4, kv.version);
                put_bytes_head(&mut head, 5, &kv.value);
                put_number(&mut tail, 6, kv.lease);
                (kv.key, kv.value, false)
            }
        };
        let revision = revision_bytes(at);
        Some(Self { revision, is_tombstone, at, key, head, value, tail })
    }

    fn revision(&self) -> &[u8] {
        let bytes = if self.is_tombstone { 18 } else { 17 };
        self.revision.get(..bytes).unwrap_or_default()
    }

    /// Adds key and value to a CRC-32C.
    pub(crate) fn add_to(&self, hash: u32) -> u32 {
        let parts = [self.revision(), &self.head, &self.value, &self.tail];
        parts.into_iter().fold(hash, crc32c::crc32c_append)
    }

    /// The key and the value of the row.
    pub(crate) fn into_row(self) -> (Bytes, Bytes) {
        let mut value = Vec::with_capacity(self.head.len() + self.value.len() + self.tail.len());
        value.put_slice(&self.head);
        value.put_slice(&self.value);
        value.put_slice(&self.tail);
        (Bytes::copy_from_slice(self.revision()), value.into())
    }
}

fn revision_bytes(at: Revision) -> [u8; 18] {
    let mut bytes = [0; 18];
    let mut out = &mut bytes[..];
    out.put_i64(at.main);
    out.put_u8(b'_');
    out.put_i64(i64::from(at.sub));
    out.put_u8(b't');
    bytes
}

/// The row behind the one with this key; the first one for no key. `None` if it is not the key
/// of a row.
pub(crate) fn row_after(key: Option<&[u8]>) -> Option<RowKey> {
    let Some(key) = key else { return Some(RowKey::REVISIONS) };
    let main = i64::from_be_bytes(key.get(..8)?.try_into().ok()?);
    let sub = i64::from_be_bytes(key.get(9..17)?.try_into().ok()?);
    let sub = u32::try_from(sub).ok()?;
    Some(RowKey::revision(Revision { main, sub }).next())
}

/// As in proto3, 0 is left out.
fn put_number(out: &mut Vec<u8>, field: u8, number: i64) {
    if number != 0 {
        out.put_u8(field << 3);
        put_varint(out, number as u64);
    }
}

/// The field and the length of bytes, unless there are none.
fn put_bytes_head(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.put_u8(field << 3 | 2);
        put_varint(out, bytes.len() as u64);
    }
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}
