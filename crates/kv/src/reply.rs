//! What the machine says to a command or a question.

use bytes::{BufMut, Bytes, BytesMut};

use crate::alarm::{Alarm, AlarmKind};
use crate::codec::{
    put_bytes, put_flags, put_list, put_number, put_option, put_signed, take_byte, take_bytes,
    take_flags, take_list, take_number, take_option, take_signed,
};
use crate::command::REQUEST_DEPTH_MAX;
use crate::error::KvError;

/// The answer to one command or question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvReply {
    /// The revision of the store after the command: what etcd puts into headers.
    pub revision: i64,
    pub result: Result<KvOutcome, KvError>,
}

/// What a command did, or what a question found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvOutcome {
    /// The command has no more to say; or it ran before, and is not run again.
    Done,
    Put(PutOutcome),
    DeleteRange(DeleteRangeOutcome),
    Range(RangeOutcome),
    Txn(TxnOutcome),
    Lease(LeaseOutcome),
    /// The ids of all leases, in order.
    Leases(Vec<i64>),
    /// The alarms that were changed, or all that are active.
    Alarms(Vec<Alarm>),
    Hash(HashOutcome),
}

/// A key as it was at some revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct KeyValue {
    pub key: Bytes,
    /// The revision that created it, after it was last deleted.
    pub create_revision: i64,
    pub mod_revision: i64,
    /// How often it was put since it was created.
    pub version: i64,
    pub value: Bytes,
    /// 0 for none.
    pub lease: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PutOutcome {
    pub previous: Option<KeyValue>,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeleteRangeOutcome {
    pub deleted: i64,
    pub previous: Vec<KeyValue>,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RangeOutcome {
    pub kvs: Vec<KeyValue>,
    /// All keys in the range, whatever limits and filters left out.
    pub count: i64,
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TxnOutcome {
    pub succeeded: bool,
    /// One for each request of the branch that was taken.
    pub responses: Vec<TxnOperationReply>,
}

/// What one request of a transaction did, with the revision for its own header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnOperationReply {
    /// 0 for a transaction inside another, as in etcd.
    pub revision: i64,
    pub outcome: KvOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LeaseOutcome {
    pub id: i64,
    /// In seconds, as granted.
    pub ttl: i64,
    /// What a checkpoint left of it; 0 for all.
    pub remaining: i64,
    pub keys: Vec<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HashOutcome {
    pub hash: u32,
    /// -1 before the first compaction.
    pub compact_revision: i64,
    /// The revision up to which was hashed.
    pub hash_revision: i64,
}

const FORMAT: u8 = 1;

impl KvReply {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(16);
        out.put_u8(FORMAT);
        put_signed(&mut out, self.revision);
        match &self.result {
            Ok(outcome) => {
                out.put_u8(1);
                put_outcome(&mut out, outcome);
            }
            Err(error) => {
                out.put_u8(0);
                out.put_u8(error.number());
            }
        }
        out.freeze()
    }

    /// `None` if these bytes are no reply. Keys and values share their memory.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let mut from = bytes.clone();
        let known = take_byte(&mut from)? == FORMAT;
        let revision = take_signed(&mut from)?;
        let result = match take_byte(&mut from)? {
            0 => Err(KvError::from_number(take_byte(&mut from)?)?),
            1 => Ok(take_outcome(&mut from, 0)?),
            _ => return None,
        };
        (known && from.is_empty()).then_some(Self { revision, result })
    }
}

fn put_outcome(out: &mut BytesMut, outcome: &KvOutcome) {
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

fn take_outcome(from: &mut Bytes, depth: usize) -> Option<KvOutcome> {
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

fn put_kv(out: &mut BytesMut, kv: &KeyValue) {
    put_bytes(out, &kv.key);
    put_signed(out, kv.create_revision);
    put_signed(out, kv.mod_revision);
    put_signed(out, kv.version);
    put_bytes(out, &kv.value);
    put_signed(out, kv.lease);
}

fn take_kv(from: &mut Bytes) -> Option<KeyValue> {
    Some(KeyValue {
        key: take_bytes(from)?,
        create_revision: take_signed(from)?,
        mod_revision: take_signed(from)?,
        version: take_signed(from)?,
        value: take_bytes(from)?,
        lease: take_signed(from)?,
    })
}
