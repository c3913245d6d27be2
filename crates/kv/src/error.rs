//! Why a command or a query was refused, with etcd's error texts.

use std::fmt;

/// A refusal: nothing was changed. Clients compare the texts, so they are exactly etcd's.
/// Each variant says what the client should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KvError {
    /// The key is empty. Provide one.
    EmptyKey,
    /// `ignore_value` and `ignore_lease` need an existing key.
    KeyNotFound,
    /// Do not provide a value together with `ignore_value`.
    ValueProvided,
    /// Do not provide a lease together with `ignore_lease`.
    LeaseProvided,
    /// The transaction has too many operations. Split it.
    TooManyOperations,
    /// The transaction writes a key twice. Write each key once.
    DuplicateKey,
    /// The revision is compacted. Read at the compact revision or later.
    Compacted,
    /// The revision does not exist yet. Read at the current revision or earlier.
    FutureRevision,
    /// The quota is used up. Compact, delete keys or raise the quota, then disarm the alarm.
    NoSpace,
    /// The lease does not exist. Grant one first.
    LeaseNotFound,
    /// A lease with this id exists. Choose another id.
    LeaseExists,
    /// The TTL exceeds [`LEASE_TTL_MAX`](crate::LEASE_TTL_MAX) seconds.
    LeaseTtlTooLarge,
    /// Send a smaller request.
    RequestTooLarge,
    /// The data of members differ. Replace the member with wrong data, then disarm the alarm.
    Corrupt,
    /// The sort order or the sort target is unknown.
    InvalidSortOption,
    /// The bytes are not a command of this version. Upgrade this member.
    UnknownCommand,
}

impl KvError {
    /// etcd's text of this error.
    pub fn text(self) -> &'static str {
        match self {
            Self::EmptyKey => "etcdserver: key is not provided",
            Self::KeyNotFound => "etcdserver: key not found",
            Self::ValueProvided => "etcdserver: value is provided",
            Self::LeaseProvided => "etcdserver: lease is provided",
            Self::TooManyOperations => "etcdserver: too many operations in txn request",
            Self::DuplicateKey => "etcdserver: duplicate key given in txn request",
            Self::Compacted => "etcdserver: mvcc: required revision has been compacted",
            Self::FutureRevision => "etcdserver: mvcc: required revision is a future revision",
            Self::NoSpace => "etcdserver: mvcc: database space exceeded",
            Self::LeaseNotFound => "etcdserver: requested lease not found",
            Self::LeaseExists => "etcdserver: lease already exists",
            Self::LeaseTtlTooLarge => "etcdserver: too large lease TTL",
            Self::RequestTooLarge => "etcdserver: request is too large",
            Self::Corrupt => "etcdserver: corrupt cluster",
            Self::InvalidSortOption => "etcdserver: invalid sort option",
            Self::UnknownCommand => "etcdserver: not capable",
        }
    }

    pub(crate) fn number(self) -> u8 {
        ALL.iter().position(|error| *error == self).map_or(0, |position| position as u8)
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for KvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for KvError {}

/// By number in the byte format. Append new errors at the end.
const ALL: [KvError; 16] = [
    KvError::UnknownCommand,
    KvError::EmptyKey,
    KvError::KeyNotFound,
    KvError::ValueProvided,
    KvError::LeaseProvided,
    KvError::TooManyOperations,
    KvError::DuplicateKey,
    KvError::Compacted,
    KvError::FutureRevision,
    KvError::NoSpace,
    KvError::LeaseNotFound,
    KvError::LeaseExists,
    KvError::LeaseTtlTooLarge,
    KvError::RequestTooLarge,
    KvError::Corrupt,
    KvError::InvalidSortOption,
];
