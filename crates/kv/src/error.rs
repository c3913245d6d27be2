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
    /// Add the user `root` before enabling authentication.
    RootUserNotFound,
    /// Grant the role `root` to the user `root` before enabling authentication.
    RootRoleNotFound,
    /// A user with this name exists. Choose another name.
    UserExists,
    /// The request has no user: authenticate first. Or a user without a name was to be added.
    UserNameEmpty,
    /// There is no user with this name.
    UserNotFound,
    /// A role with this name exists. Choose another name.
    RoleExists,
    /// There is no role with this name.
    RoleNotFound,
    /// The name of the role is empty. Provide one.
    RoleNameEmpty,
    /// The user is unknown or the password is wrong.
    AuthFailed,
    /// The request to grant a permission has none.
    PermissionNotGiven,
    /// The user may not do this. Grant a role with the permission to the user.
    PermissionDenied,
    /// The user does not have the role.
    RoleNotGranted,
    /// The role does not have the permission with exactly this range.
    PermissionNotGranted,
    /// Enable authentication first.
    AuthNotEnabled,
    /// The token is unknown or has expired. Authenticate again.
    InvalidAuthToken,
    /// The change would make the cluster unmanageable, or the range of a permission is invalid.
    InvalidAuthManagement,
    /// Users or roles have changed since the user was identified. Authenticate again, and retry.
    AuthRevisionOld,
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
            Self::RootUserNotFound => "etcdserver: root user does not exist",
            Self::RootRoleNotFound => "etcdserver: root user does not have root role",
            Self::UserExists => "etcdserver: user name already exists",
            Self::UserNameEmpty => "etcdserver: user name is empty",
            Self::UserNotFound => "etcdserver: user name not found",
            Self::RoleExists => "etcdserver: role name already exists",
            Self::RoleNotFound => "etcdserver: role name not found",
            Self::RoleNameEmpty => "etcdserver: role name is empty",
            Self::AuthFailed => "etcdserver: authentication failed, invalid user ID or password",
            Self::PermissionNotGiven => "etcdserver: permission not given",
            Self::PermissionDenied => "etcdserver: permission denied",
            Self::RoleNotGranted => "etcdserver: role is not granted to the user",
            Self::PermissionNotGranted => "etcdserver: permission is not granted to the role",
            Self::AuthNotEnabled => "etcdserver: authentication is not enabled",
            Self::InvalidAuthToken => "etcdserver: invalid auth token",
            Self::InvalidAuthManagement => "etcdserver: invalid auth management",
            Self::AuthRevisionOld => "etcdserver: revision of auth store is old",
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
const ALL: [KvError; 33] = [
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
    KvError::RootUserNotFound,
    KvError::RootRoleNotFound,
    KvError::UserExists,
    KvError::UserNameEmpty,
    KvError::UserNotFound,
    KvError::RoleExists,
    KvError::RoleNotFound,
    KvError::RoleNameEmpty,
    KvError::AuthFailed,
    KvError::PermissionNotGiven,
    KvError::PermissionDenied,
    KvError::RoleNotGranted,
    KvError::PermissionNotGranted,
    KvError::AuthNotEnabled,
    KvError::InvalidAuthToken,
    KvError::InvalidAuthManagement,
    KvError::AuthRevisionOld,
];
