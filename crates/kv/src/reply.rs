//! The output of the state machine: the reply to a command or a query.

use bytes::Bytes;

use crate::alarm::{Alarm, AlarmKind};
use crate::codec::{
    ByteCount, ByteReader, ByteSink, ByteSource, put_bytes, put_flags, put_list, put_number,
    put_option, put_signed, take_byte, take_bytes, take_flags, take_list, take_number, take_option,
    take_signed,
};
use crate::command::REQUEST_DEPTH_MAX;
use crate::error::KvError;

/// The reply to one command or query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvCommandReply {
    /// The revision of the store after the command. etcd returns it in response headers.
    pub revision: i64,
    /// What the command did or the query found, or why it was refused.
    pub result: Result<KvOutcome, KvError>,
}

/// What a command did, or what a query found. Exhaustive: it has a byte format, and an
/// encoder that misses a variant must not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvOutcome {
    /// The command has no further result, or it was applied before and not run again.
    Done,
    /// Of a put.
    Put(PutOutcome),
    /// Of a deletion.
    DeleteRange(DeleteRangeOutcome),
    /// Of a range query.
    Range(RangeOutcome),
    /// Of a transaction.
    Txn(TxnOutcome),
    /// Of a lease grant or a lease query.
    Lease(LeaseOutcome),
    /// The ids of all leases, in ascending order.
    Leases(Vec<i64>),
    /// The alarms that changed, or all active alarms.
    Alarms(Vec<Alarm>),
    /// Of a hash query.
    Hash(HashOutcome),
}

/// A key and its value at some revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The revision that created the key, after its last deletion.
    pub create_revision: i64,
    /// The revision of the last write.
    pub mod_revision: i64,
    /// The number of puts since the key was created.
    pub version: i64,
    /// The value.
    pub value: Bytes,
    /// The lease that the key is attached to; 0 for none.
    pub lease: i64,
}

/// The result of a put.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PutOutcome {
    /// The previous key and value, if requested and if the key existed.
    pub previous: Option<KeyValue>,
}

/// The result of a deletion.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeleteRangeOutcome {
    /// The number of deleted keys.
    pub deleted: i64,
    /// The deleted keys and values, if requested.
    pub previous: Vec<KeyValue>,
}

/// The result of a range query.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RangeOutcome {
    /// The keys that passed filters and limit, in the requested order.
    pub kvs: Vec<KeyValue>,
    /// The number of keys in the range, regardless of filters and limit.
    pub count: i64,
    /// Whether the limit left keys out.
    pub more: bool,
}

/// The result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TxnOutcome {
    /// Whether all comparisons held.
    pub succeeded: bool,
    /// One reply for each operation of the branch that ran.
    pub responses: Vec<TxnOperationReply>,
}

/// The result of one operation of a transaction, with the revision for its own header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnOperationReply {
    /// The revision at that point; 0 for a nested transaction, as in etcd.
    pub revision: i64,
    /// What the operation did or found.
    pub outcome: KvOutcome,
}

/// The result of a lease grant or a lease query.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LeaseOutcome {
    /// The lease.
    pub id: i64,
    /// The granted time to live in seconds.
    pub ttl: i64,
    /// The remaining seconds of the last checkpoint; 0 means the full TTL.
    pub remaining: i64,
    /// The keys attached to the lease, in order.
    pub keys: Vec<Bytes>,
}

/// The result of a hash query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HashOutcome {
    /// The hash.
    pub hash: u32,
    /// The compact revision; -1 before the first compaction.
    pub compact_revision: i64,
    /// The last revision that the hash covers.
    pub hash_revision: i64,
}

const FORMAT: u8 = 1;

impl KvCommandReply {
    /// The reply as bytes; `docs/formats.md` describes them.
    pub fn encode(&self) -> Bytes {
        let mut count = ByteCount::default();
        self.encode_into(&mut count);
        // Memory that is larger than its content would need another allocation as `Bytes`.
        let mut out = Vec::with_capacity(count.0);
        self.encode_into(&mut out);
        out.into()
    }

    fn encode_into(&self, out: &mut impl ByteSink) {
        out.put_u8(FORMAT);
        put_signed(out, self.revision);
        match &self.result {
            Ok(outcome) => {
                out.put_u8(1);
                put_outcome(out, outcome);
            }
            Err(error) => {
                out.put_u8(0);
                out.put_u8(error.number());
            }
        }
    }

    /// The reply in these bytes, or `None` if they are not a reply. Keys and values share
    /// the memory of `bytes`.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let mut from = ByteReader::from(bytes);
        let known = take_byte(&mut from)? == FORMAT;
        let revision = take_signed(&mut from)?;
        let result = match take_byte(&mut from)? {
            0 => Err(KvError::from_number(take_byte(&mut from)?)?),
            1 => Ok(take_outcome(&mut from, 0)?),
            _ => return None,
        };
        (known && from.rest().is_empty()).then_some(Self { revision, result })
    }
}

fn put_outcome(out: &mut impl ByteSink, outcome: &KvOutcome) {
    match outcome {
        KvOutcome::Done => out.put_u8(0),
        KvOutcome::Put(put) => {
            out.put_u8(1);
            put_option(out, put.previous.as_ref(), put_kv);
        }
        KvOutcome::DeleteRange(deletion) => {
            out.put_u8(2);
            put_signed(out, deletion.deleted);
            put_list(out, &deletion.previous, put_kv);
        }
        KvOutcome::Range(range) => {
            out.put_u8(3);
            put_list(out, &range.kvs, put_kv);
            put_signed(out, range.count);
            put_flags(out, &[range.more]);
        }
        KvOutcome::Txn(txn) => {
            out.put_u8(4);
            put_flags(out, &[txn.succeeded]);
            put_list(out, &txn.responses, |out, response| {
                put_signed(out, response.revision);
                put_outcome(out, &response.outcome);
            });
        }
        KvOutcome::Lease(lease) => {
            out.put_u8(5);
            put_signed(out, lease.id);
            put_signed(out, lease.ttl);
            put_signed(out, lease.remaining);
            put_list(out, &lease.keys, |out, key| put_bytes(out, key));
        }
        KvOutcome::Leases(ids) => {
            out.put_u8(6);
            put_list(out, ids, |out, id| put_signed(out, *id));
        }
        KvOutcome::Alarms(alarms) => {
            out.put_u8(7);
            put_list(out, alarms, |out, alarm| {
                put_number(out, alarm.member);
                out.put_u8(alarm.kind.number());
            });
        }
        KvOutcome::Hash(hash) => {
            out.put_u8(8);
            put_number(out, u64::from(hash.hash));
            put_signed(out, hash.compact_revision);
            put_signed(out, hash.hash_revision);
        }
    }
}

fn take_outcome(from: &mut impl ByteSource, depth: usize) -> Option<KvOutcome> {
    if depth > REQUEST_DEPTH_MAX {
        return None;
    }
    Some(match take_byte(from)? {
        0 => KvOutcome::Done,
        1 => KvOutcome::Put(PutOutcome { previous: take_option(from, take_kv)? }),
        2 => KvOutcome::DeleteRange(DeleteRangeOutcome {
            deleted: take_signed(from)?,
            previous: take_list(from, take_kv)?,
        }),
        3 => {
            let kvs = take_list(from, take_kv)?;
            let count = take_signed(from)?;
            let [more] = take_flags(from)?;
            KvOutcome::Range(RangeOutcome { kvs, count, more })
        }
        4 => {
            let [succeeded] = take_flags(from)?;
            let responses = take_list(from, |from| {
                let revision = take_signed(from)?;
                Some(TxnOperationReply { revision, outcome: take_outcome(from, depth + 1)? })
            })?;
            KvOutcome::Txn(TxnOutcome { succeeded, responses })
        }
        5 => KvOutcome::Lease(LeaseOutcome {
            id: take_signed(from)?,
            ttl: take_signed(from)?,
            remaining: take_signed(from)?,
            keys: take_list(from, take_bytes)?,
        }),
        6 => KvOutcome::Leases(take_list(from, take_signed)?),
        7 => KvOutcome::Alarms(take_list(from, |from| {
            let member = take_number(from)?;
            Some(Alarm { kind: AlarmKind::from_number(take_byte(from)?)?, member })
        })?),
        8 => KvOutcome::Hash(HashOutcome {
            hash: u32::try_from(take_number(from)?).ok()?,
            compact_revision: take_signed(from)?,
            hash_revision: take_signed(from)?,
        }),
        _ => return None,
    })
}

fn put_kv(out: &mut impl ByteSink, kv: &KeyValue) {
    put_bytes(out, &kv.key);
    put_signed(out, kv.create_revision);
    put_signed(out, kv.mod_revision);
    put_signed(out, kv.version);
    put_bytes(out, &kv.value);
    put_signed(out, kv.lease);
}

fn take_kv(from: &mut impl ByteSource) -> Option<KeyValue> {
    Some(KeyValue {
        key: take_bytes(from)?,
        create_revision: take_signed(from)?,
        mod_revision: take_signed(from)?,
        version: take_signed(from)?,
        value: take_bytes(from)?,
        lease: take_signed(from)?,
    })
}
