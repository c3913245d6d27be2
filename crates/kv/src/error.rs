//! Why a command or a question was refused, in etcd's words.

use std::fmt;

/// A refusal: nothing was changed. Clients compare the texts, so they are etcd's to
/// the letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KvError {
    /// Give a key.
    EmptyKey,
    /// `ignore_value` and `ignore_lease` want a key that exists.
    KeyNotFound,
    /// Give no value together with `ignore_value`.
    ValueProvided,
    /// Give no lease together with `ignore_lease`.
    LeaseProvided,
    /// Split the transaction.
    TooManyOperations,
    /// Let the transaction write each key once.
    DuplicateKey,
    /// Read at the compact revision or later.
    Compacted,
    /// Read at the current revision or earlier.
    FutureRevision,
    /// Compact, delete or raise the quota, then disarm the alarm.
    NoSpace,
    /// Grant a lease first.
    LeaseNotFound,
    /// Choose another id.
    LeaseExists,
    /// At most [`LEASE_TTL_MAX`](crate::LEASE_TTL_MAX) seconds.
    LeaseTtlTooLarge,
    /// Send less at once.
    RequestTooLarge,
    /// Find the member whose data differ and replace it, then disarm the alarm.
    Corrupt,
    /// Choose an order and a target that there are.
    InvalidSortOption,
    /// The bytes are no command of this version. Upgrade this member.
    UnknownCommand,
}

impl KvError {
    /// What etcd says.
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
        ALL.iter().position(|error| *error == self).map_or(0, |place| place as u8)
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

/// By their number on the wire. New ones go to the end.
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
