//! The input of the state machine: commands, which go through the log, and queries,
//! which change nothing.
//!
//! The types are etcd's requests, and every field means what it means in etcd. The byte
//! format is in [`encode`](crate::encode). Validation that does not need the state is in
//! [`check`](crate::check) and runs before a command is proposed.

use bytes::Bytes;

use crate::alarm::Alarm;
use crate::auth::{AuthCommand, Issuer};

/// A change that every member applies.
///
/// Exhaustive on purpose: an encoder, an alarm rule or a cost estimate that misses a new
/// command must not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Changes nothing; the reply carries the current revision.
    Noop,
    /// Writes one key.
    Put(Put),
    /// Deletes all keys of a range.
    DeleteRange(DeleteRange),
    /// Compares keys, then runs one of two lists of operations.
    Txn(Txn),
    /// Drops revisions below a given one.
    Compact(Compact),
    /// Creates a lease.
    LeaseGrant(LeaseGrant),
    /// Deletes the lease with this id and all keys attached to it.
    LeaseRevoke(i64),
    /// Records the remaining time of leases, so that a new leader does not restart them
    /// with their full TTL.
    LeaseCheckpoint(Vec<LeaseCheckpoint>),
    /// Activates an alarm.
    AlarmActivate(Alarm),
    /// Deactivates an alarm.
    AlarmDisarm(Alarm),
    /// Sets the limit on stored bytes.
    SetQuota(Quota),
    /// Changes users, roles, or whether requests are checked.
    Auth(AuthCommand),
    /// A command, and on whose behalf it runs. A command without an issuer is that of a client
    /// that is not known.
    Issued(Box<IssuedCommand>),
    /// A made-up command of the next version, for tests of upgrades: puts the value reversed.
    #[cfg(feature = "next-version-for-tests")]
    #[doc(hidden)]
    PutReversed(Put),
}

impl Command {
    /// The name of the operation, as etcd's metrics have it.
    pub fn operation(&self) -> &'static str {
        match self {
            Self::Noop => "Noop",
            Self::Put(_) => "Put",
            Self::DeleteRange(_) => "DeleteRange",
            Self::Txn(_) => "Txn",
            Self::Compact(_) => "Compaction",
            Self::LeaseGrant(_) => "LeaseGrant",
            Self::LeaseRevoke(_) => "LeaseRevoke",
            Self::LeaseCheckpoint(_) => "LeaseCheckpoint",
            Self::AlarmActivate(_) | Self::AlarmDisarm(_) => "Alarm",
            Self::SetQuota(_) => "SetQuota",
            Self::Auth(_) => "Auth",
            Self::Issued(issued) => issued.command.operation(),
            #[cfg(feature = "next-version-for-tests")]
            Self::PutReversed(_) => "Put",
        }
    }
}

/// A command with its issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCommand {
    /// On whose behalf the command runs.
    pub issuer: CommandIssuer,
    /// The command; not another issued one.
    pub command: Command,
}

/// On whose behalf a command runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandIssuer {
    /// A member itself, for example because a lease has expired.
    Member,
    /// A user.
    User {
        /// The name.
        name: String,
        /// The auth revision at which the server identified the user.
        revision: u64,
    },
}

/// A read of the state. Exhaustive for the same reason as [`Command`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Only the current revision.
    Revision,
    /// The keys of a range.
    Range(Range),
    /// A read-only transaction. Writes in it are skipped.
    Txn(Txn),
    /// The lease with this id, and its keys.
    Lease(i64),
    /// The ids of all leases.
    Leases,
    /// All active alarms.
    Alarms,
    /// The hash of all rows up to a revision; 0 means the current revision.
    HashKv(i64),
}

/// One key or a range of keys, in etcd's notation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct KeyRange {
    /// The first key.
    pub key: Bytes,
    /// Empty: only `key`. `"\0"`: all keys from `key` on. Otherwise the exclusive end.
    pub range_end: Bytes,
}

/// Writes one key.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Put {
    /// The key to write.
    pub key: Bytes,
    /// Its new value.
    pub value: Bytes,
    /// The lease to attach the key to; 0 for none.
    pub lease: i64,
    /// Return the previous key and value.
    pub prev_kv: bool,
    /// Keep the current value. The key must exist.
    pub ignore_value: bool,
    /// Keep the current lease. The key must exist.
    pub ignore_lease: bool,
}

/// Deletes all keys of a range.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeleteRange {
    /// The keys to delete.
    pub keys: KeyRange,
    /// Return the deleted keys and values.
    pub prev_kv: bool,
}

/// Reads the keys of a range, at one revision.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Range {
    /// The keys to read.
    pub keys: KeyRange,
    /// Return at most this many keys; 0 for no limit.
    pub limit: i64,
    /// Read at this revision; 0 for the current one.
    pub revision: i64,
    /// The sort direction.
    pub sort_order: SortOrder,
    /// The field to sort by.
    pub sort_target: SortTarget,
    /// Leave out the values.
    pub keys_only: bool,
    /// Return only the number of keys.
    pub count_only: bool,
    /// Leave out keys with a smaller `mod_revision`; 0 disables the filter.
    pub min_mod_revision: i64,
    /// Leave out keys with a larger `mod_revision`; 0 disables the filter.
    pub max_mod_revision: i64,
    /// Leave out keys with a smaller `create_revision`; 0 disables the filter.
    pub min_create_revision: i64,
    /// Leave out keys with a larger `create_revision`; 0 disables the filter.
    pub max_create_revision: i64,
}

/// The sort direction of a [`Range`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SortOrder {
    /// No order requested. As in etcd, a target other than the key then sorts ascending.
    #[default]
    None,
    /// Smallest first.
    Ascend,
    /// Largest first.
    Descend,
}

/// The field that a [`Range`] sorts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SortTarget {
    /// [`KeyValue::key`](crate::KeyValue::key)
    #[default]
    Key,
    /// [`KeyValue::version`](crate::KeyValue::version)
    Version,
    /// [`KeyValue::create_revision`](crate::KeyValue::create_revision)
    Create,
    /// [`KeyValue::mod_revision`](crate::KeyValue::mod_revision)
    Mod,
    /// [`KeyValue::value`](crate::KeyValue::value)
    Value,
}

/// Runs `success` if all comparisons hold, otherwise `failure`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Txn {
    /// The conditions. All of them must hold; an empty list holds.
    pub compare: Vec<Compare>,
    /// What runs if all conditions hold.
    pub success: Vec<TxnOperation>,
    /// What runs otherwise.
    pub failure: Vec<TxnOperation>,
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnOperation {
    /// Reads a range; sees earlier writes of the same transaction.
    Range(Range),
    /// Writes one key.
    Put(Put),
    /// Deletes all keys of a range.
    DeleteRange(DeleteRange),
    /// A nested transaction.
    Txn(Txn),
}

/// A condition on one key, or on every key of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The keys that must satisfy the condition.
    pub keys: KeyRange,
    /// How the field of the key is compared with the given value.
    pub operator: CompareOperator,
    /// Which field is compared, and the value to compare it with.
    pub target: CompareTarget,
}

/// The operator of a [`Compare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOperator {
    /// The field equals the value.
    Equal,
    /// The field is greater than the value.
    Greater,
    /// The field is less than the value.
    Less,
    /// The field differs from the value.
    NotEqual,
}

/// The field that a [`Compare`] reads, with the value to compare it with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompareTarget {
    /// [`KeyValue::version`](crate::KeyValue::version)
    Version(i64),
    /// [`KeyValue::create_revision`](crate::KeyValue::create_revision)
    Create(i64),
    /// [`KeyValue::mod_revision`](crate::KeyValue::mod_revision)
    Mod(i64),
    /// [`KeyValue::value`](crate::KeyValue::value)
    Value(Bytes),
    /// [`KeyValue::lease`](crate::KeyValue::lease)
    Lease(i64),
}

/// Drops revisions below a given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Compact {
    /// The oldest revision that can be read afterwards.
    pub revision: i64,
}

/// Creates a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LeaseGrant {
    /// The id, chosen by the proposer because the state machine has no randomness. 0 is
    /// not a valid id.
    pub id: i64,
    /// The time to live in seconds.
    pub ttl: i64,
}

/// Records the remaining time of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LeaseCheckpoint {
    /// The lease.
    pub id: i64,
    /// The remaining seconds; 0 resets the lease to its full TTL.
    pub remaining: i64,
}

/// The limit on stored bytes. Part of the replicated state, because all members must
/// refuse the same commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quota {
    /// The limit; 0 for none.
    pub bytes: u64,
    /// The member that set the quota. The `NoSpace` alarm is raised under its id.
    pub member: u64,
}

/// The nesting limit of transactions: deeper than the limit on operations lets a client
/// nest them, and shallow enough for any stack.
pub(crate) const REQUEST_DEPTH_MAX: usize = 128;

impl Command {
    /// The same command on behalf of this issuer.
    #[must_use]
    pub fn issued_by(self, issuer: CommandIssuer) -> Self {
        Self::Issued(Box::new(IssuedCommand { issuer, command: self }))
    }

    /// The issuer, and the command itself.
    pub(crate) fn split_issuer(&self) -> (Issuer<'_>, &Self) {
        let Self::Issued(issued) = self else { return (Issuer::Anonymous, self) };
        let issuer = match &issued.issuer {
            CommandIssuer::Member => Issuer::Member,
            CommandIssuer::User { name, revision } => Issuer::User { name, revision: *revision },
        };
        (issuer, &issued.command)
    }
}

impl Txn {
    /// Whether no operation in any branch can write.
    pub fn is_read_only(&self) -> bool {
        self.success.iter().chain(&self.failure).all(|operation| match operation {
            TxnOperation::Range(_) => true,
            TxnOperation::Put(_) | TxnOperation::DeleteRange(_) => false,
            TxnOperation::Txn(txn) => txn.is_read_only(),
        })
    }
}
