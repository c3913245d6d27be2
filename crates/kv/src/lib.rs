//! etcd's data model as a deterministic state machine.
//!
//! A [`Kv`] applies [`Command`]s and answers [`Query`]s. The same commands in the same order
//! produce the same state, replies and hashes on every member: the crate uses no clock, no
//! randomness, no hash maps, no Raft and no network. Rows are stored in a [`Table`]:
//! [`MemoryTable`], or [`RedbTable`] in a file of a [`Disk`](quorate_storage::Disk).
//!
//! ```
//! use quorate_kv::{Command, KeyRange, Kv, KvOutcome, MemoryTable, Put, Query, Range};
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
//! Parts of the data model that are not replicated state: [`check`] validates requests before
//! they are proposed; [`WatchHub`] delivers the writes of commands to watchers;
//! [`LeaseDeadlines`] tells a leader when leases expire, given the time; `Lessor` (feature
//! `machine`) does the leader's work on leases.
//!
//! # Durability
//!
//! The log is durable; the state machine follows it. A redb table commits commands in batches
//! without a sync. It is made durable every few batches and by [`Kv::save`]. After a crash it
//! holds the complete state after some earlier command, and the node replays the log from
//! there: [`Kv::resume`] returns the index of that command. A table that is lost or damaged
//! is rebuilt from the snapshot and the log.
//!
//! # Differences from etcd
//!
//! * The quota is part of the replicated state, and a write that exceeds it is refused; etcd
//!   applies the write and replies with the error.
//! * In a transaction, a deletion with an open end ("from this key on") conflicts with puts
//!   of later keys; etcd does not detect this duplicate write.
//! * Puts in nested transactions count towards the quota.
//! * The hash of keys is etcd's; the hash of the whole state is not, since other rows differ.
//!
//! # Feature flags
//!
//! * `machine`: implements [`quorate::Machine`](https://docs.rs/quorate) for [`Kv`], and adds
//!   `SharedKv`, a handle that a server shares with the node. Off by default.
//!
//! # Reading order
//!
//! `command.rs` and `reply.rs` (input and output), `machine.rs` (the match), then the command
//! of interest: `txn.rs`, `range.rs`, `compact.rs`, `lease.rs`, `alarm.rs`, `auth`.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(feature = "machine")]
mod adapter;
mod alarm;
mod auth;
pub mod check;
mod codec;
mod command;
mod compact;
mod deadlines;
mod encode;
mod error;
mod etcd_row;
mod export;
mod hash;
mod import;
mod incremental;
mod index;
mod key_blocks;
mod key_history;
mod key_set;
mod lease;
#[cfg(feature = "machine")]
mod lessor;
mod machine;
mod named_list;
mod packed_keys;
mod range;
mod reply;
mod revision;
#[cfg(feature = "machine")]
mod shared_lock;
mod snapshot;
mod state;
mod table;
mod txn;
mod version;
mod watch;
mod watch_index;
mod writes;

#[cfg(feature = "machine")]
pub use adapter::{AuthVersion, CommandObserver, LeaseGrants, SUPPORTED_VERSIONS, SharedKv};
pub use alarm::{Alarm, AlarmKind};
pub use auth::{
    AuthCommand, AuthRole, AuthState, IssuedToken, Issuer, KeyUse, PasswordHash, Permission,
    PermissionMode, ROOT, TokenGeneration, TokenRequest, User,
};
pub use command::{
    Command, CommandIssuer, Compact, Compare, CompareOperator, CompareTarget, DeleteRange,
    IssuedCommand, KeyRange, LeaseCheckpoint, LeaseGrant, Put, Query, Quota, Range, SortOrder,
    SortTarget, Txn, TxnOperation,
};
pub use deadlines::{LeaseDeadlines, LeaseRenewal};
pub use error::KvError;
pub use export::EtcdExport;
pub use hash::IncrementalHash;
pub use import::{ImportedState, ImportedUser, KvImport, KvImportError};
pub use incremental::{IncrementalRead, ReadLimits, ReadStage};
pub use lease::{LEASE_TTL_MAX, Lease};
#[cfg(feature = "machine")]
pub use lessor::{
    LeaseAnswer, LeaseInquiry, LeaseInquiryStep, LeaseQuery, LeaseWork, Lessor, LessorConfig,
};
pub use machine::{Applied, ApplyError, BatchConfig, Kv, ProgressFn};
pub use reply::{
    DeleteRangeOutcome, HashOutcome, KeyValue, KvCommandReply, KvOutcome, LeaseOutcome, PutOutcome,
    RangeOutcome, TxnOperationReply, TxnOutcome,
};
pub use revision::{Revision, RowKey, RowParts};
#[cfg(feature = "machine")]
pub use shared_lock::{ReadWhenFree, WriteGuard};
pub use snapshot::{KvSnapshot, KvSnapshotError};
pub use table::{
    AnyTable, AnyView, MakeTable, MemoryTable, MemoryView, RedbTable, RedbView, RowFile,
    RowFileReport, RowFileUsage, RowReader, RowRef, Table, TableError,
};
pub use version::{CommandDecodeError, NewerVersion, VERSION_MAX, VERSION_MIN};
pub use watch::{
    PollLimits, WakeFn, WatchBacklog, WatchEvent, WatchEventKind, WatchHub, WatchPoll,
    WatchRequest, WatcherId, split_events,
};

/// The Rust in the README is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct KvReadme;
