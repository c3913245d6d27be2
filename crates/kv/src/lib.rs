//! etcd's data model as a deterministic state machine.
//!
//! A [`Kv`] runs [`Command`]s and answers [`Query`]s. The same commands in the same
//! order make the same state, replies and hashes on every member: there is no clock, no
//! chance, no order of hashing in here, no Raft and no socket. Rows lie in a [`Table`]:
//! [`MemoryTable`], or [`RedbTable`] in a file of a [`Disk`](quorate_storage::Disk).
//!
//! ```
//! use quorate_kv::{Command, KeyRange, Kv, MemoryTable, KvOutcome, Put, Query, Range};
//!
//! let mut kv = Kv::open(MemoryTable::default())?;
//! let put = Put { key: "greeting".into(), value: "hello".into(), ..Put::default() };
//! let applied = kv.apply(1, &Command::Put(put))?;
//! assert_eq!(applied.reply.revision, 2);
//!
//! let range = Range { keys: KeyRange::prefix("greet"), ..Range::default() };
//! let reply = kv.query(&Query::Range(range))?;
//! let Ok(KvOutcome::Range(found)) = reply.result else { unreachable!() };
//! assert_eq!(found.kvs[0].value, "hello");
//! # Ok::<(), quorate_kv::TableError>(())
//! ```
//!
//! What belongs to the data model and needs no state stands beside it: [`check`] judges
//! requests before they are proposed; [`WatchHub`] tells watchers what commands wrote;
//! [`LeaseDeadlines`] tells a leader when leases end, given the time.
//!
//! # What is durable
//!
//! The log is; the machine follows. A redb table takes commands in batches, without a
//! sync, and is made durable every so many batches and by [`Kv::save`]. After a crash it
//! holds the state after some earlier command, whole, and the node goes on from there:
//! [`Kv::resume`] says which command it was, and whose rows they are. A table that is lost
//! or damaged is made anew of the snapshot and the log.
//!
//! # Where it differs from etcd
//!
//! * The quota is part of the replicated state, and a write beyond it is refused; etcd
//!   writes it and answers with the error.
//! * In a transaction, a deletion "from this key on" counts as one that covers later
//!   keys when duplicate writes are looked for; etcd overlooks it.
//! * Puts in nested transactions count towards the quota.
//! * Hashes are compared among members of a cluster; they are not etcd's.
//!
//! # Reading order
//!
//! `command.rs` and `reply.rs` (what goes in and out), `machine.rs` (the match), then
//! the command of interest: `txn.rs`, `range.rs`, `compact.rs`, `lease.rs`, `alarm.rs`.

#[cfg(feature = "machine")]
mod adapter;
mod alarm;
pub mod check;
mod codec;
mod command;
mod compact;
mod covered;
mod deadlines;
mod encode;
mod error;
mod hash;
mod index;
mod interest;
mod lease;
mod machine;
mod range;
mod reply;
mod revision;
mod small_key;
mod snapshot;
mod state;
mod table;
mod txn;
mod watch;

#[cfg(feature = "machine")]
pub use adapter::{LeaseGrants, SharedKv};
pub use alarm::{Alarm, AlarmKind};
pub use command::{
    Command, Compact, Compare, CompareOperator, CompareTarget, DeleteRange, KeyRange,
    LeaseCheckpoint, LeaseGrant, Put, Query, Quota, Range, SortOrder, SortTarget, Txn,
    TxnOperation,
};
pub use deadlines::{LeaseDeadlines, LeaseRenewal};
pub use error::KvError;
pub use hash::IncrementalHash;
pub use lease::{LEASE_TTL_MAX, Lease};
pub use machine::{Applied, BatchConfig, Kv};
pub use range::IncrementalRange;
pub use reply::{
    DeleteRangeOutcome, HashOutcome, KeyValue, KvOutcome, KvReply, LeaseOutcome, PutOutcome,
    RangeOutcome, TxnOperationReply, TxnOutcome,
};
pub use revision::{Revision, RowKey};
pub use snapshot::{KvSnapshot, KvSnapshotError};
pub use table::{
    AnyTable, AnyView, MemoryTable, MemoryView, RedbTable, RedbView, RowReader, Table, TableError,
};
pub use watch::{
    PollLimits, WakeFn, WatchEvent, WatchEventKind, WatchHub, WatchPoll, WatchRequest, WatcherId,
    split_events,
};
