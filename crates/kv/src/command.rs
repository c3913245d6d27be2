//! What can be asked of the machine: commands, which go through the log, and
//! questions, which change nothing.
//!
//! The types are etcd's requests with etcd's meaning of every field; how they are
//! written as bytes is in [`encode`](crate::encode). Whatever does not need the state
//! to be judged is judged in [`check`](crate::check), before it is proposed.

use bytes::Bytes;

use crate::alarm::Alarm;

/// Something for every member to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Does nothing, and says at which revision.
    Noop,
    Put(Put),
    DeleteRange(DeleteRange),
    Txn(Txn),
    Compact(Compact),
    LeaseGrant(LeaseGrant),
    /// Deletes the lease and its keys.
    LeaseRevoke(i64),
    /// Notes what is left of leases, so that a new leader need not begin anew.
    LeaseCheckpoint(Vec<LeaseCheckpoint>),
    AlarmActivate(Alarm),
    AlarmDisarm(Alarm),
    SetQuota(Quota),
}

/// Something to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Only the revision.
    Revision,
    Range(Range),
    /// A transaction without writes; one with writes is answered as if it had none.
    Txn(Txn),
    /// One lease with its keys.
    Lease(i64),
    Leases,
    Alarms,
    /// The hash of everything up to a revision; 0 for the current one.
    HashKv(i64),
}

/// One key, or a range of keys, as etcd writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct KeyRange {
    pub key: Bytes,
    /// Empty: just `key`. `"\0"`: all keys from `key` on. Otherwise the first key that
    /// is no longer meant.
    pub range_end: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Put {
    pub key: Bytes,
    pub value: Bytes,
    /// 0 for none.
    pub lease: i64,
    /// Answer with what was there before.
    pub prev_kv: bool,
    /// Keep the value and only write the rest.
    pub ignore_value: bool,
    /// Keep the lease and only write the rest.
    pub ignore_lease: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeleteRange {
    pub keys: KeyRange,
    pub prev_kv: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Range {
    pub keys: KeyRange,
    /// 0 for no limit.
    pub limit: i64,
    /// 0 for the current one.
    pub revision: i64,
    pub sort_order: SortOrder,
    pub sort_target: SortTarget,
    pub keys_only: bool,
    pub count_only: bool,
    /// These four leave out keys, and are not used if 0.
    pub min_mod_revision: i64,
    pub max_mod_revision: i64,
    pub min_create_revision: i64,
    pub max_create_revision: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SortOrder {
    #[default]
    None,
    Ascend,
    Descend,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SortTarget {
    #[default]
    Key,
    Version,
    Create,
    Mod,
    Value,
}

/// If all comparisons hold, `success` is done, otherwise `failure`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Txn {
    pub compare: Vec<Compare>,
    pub success: Vec<TxnOperation>,
    pub failure: Vec<TxnOperation>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnOperation {
    Range(Range),
    Put(Put),
    DeleteRange(DeleteRange),
    Txn(Txn),
}

/// What must hold of a key, or of every key in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    pub keys: KeyRange,
    pub operator: CompareOperator,
    pub target: CompareTarget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOperator {
    Equal,
    Greater,
    Less,
    NotEqual,
}

/// What of the key is compared, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompareTarget {
    Version(i64),
    Create(i64),
    Mod(i64),
    Value(Bytes),
    Lease(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Compact {
    pub revision: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LeaseGrant {
    /// Drawn by whoever proposes the command; 0 is no lease.
    pub id: i64,
    /// In seconds.
    pub ttl: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LeaseCheckpoint {
    pub id: i64,
    /// In seconds; 0 to begin anew with the full time.
    pub remaining: i64,
}

/// How large the data may grow. Part of the state, because all members must refuse the
/// same commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quota {
    /// 0 for no limit.
    pub bytes: u64,
    /// In whose name the alarm is raised: the member that set the quota.
    pub member: u64,
}

/// How deep transactions may be nested: deeper than what the limit on their requests
/// lets a client ask for, and shallow enough for any stack.
pub(crate) const REQUEST_DEPTH_MAX: usize = 128;

impl Txn {
    /// Whether no request of it, in any branch, can write.
    pub fn is_read_only(&self) -> bool {
        self.success.iter().chain(&self.failure).all(|request| match request {
            TxnOperation::Range(_) => true,
            TxnOperation::Put(_) | TxnOperation::DeleteRange(_) => false,
            TxnOperation::Txn(txn) => txn.is_read_only(),
        })
    }
}
