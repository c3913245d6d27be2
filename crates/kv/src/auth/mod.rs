//! Users, roles and permissions: replicated state, as etcd's auth store.
//!
//! Every change raises the *auth revision*. A command of a user carries the revision at which
//! the server identified the user; commands of an older revision are refused, so that a right
//! that was taken away cannot be used by a command that was proposed before.

mod apply;
mod check;
mod encode;
mod machine;
mod permission;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;

pub(crate) use check::AuthCheck;
pub(crate) use encode::{put_auth, put_text, take_auth, take_text};
pub use permission::{KeyUse, Permission, PermissionMode};

use crate::command::KeyRange;
use crate::error::KvError;
use crate::import::ImportedState;
use permission::KeyRanges;

/// The user that may do everything, and the role that makes a user such a one.
pub const ROOT: &str = "root";

/// Users, roles, and whether requests are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthState {
    enabled: bool,
    revision: u64,
    /// The revision at which authentication was disabled last. Tokens from before are invalid.
    disabled_at: u64,
    users: BTreeMap<String, User>,
    roles: BTreeMap<String, AuthRole>,
}

/// A user: how it authenticates, and its roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The number of its row.
    slot: u32,
    password: Option<PasswordHash>,
    /// The auth revision at which the password was set. Tokens from before are invalid.
    password_set_at: u64,
    roles: BTreeSet<String>,
    /// The union of the permissions of all roles; not stored.
    readable: KeyRanges,
    writable: KeyRanges,
}

/// A role: a list of permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthRole {
    /// The number of its row.
    slot: u32,
    /// Sorted by key and end; each range once.
    permissions: Vec<Permission>,
}

/// The hash of a password. It never appears in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(Bytes);

impl PasswordHash {
    /// The hash as the text that the hash function made.
    pub fn new(hash: impl Into<Bytes>) -> Self {
        Self(hash.into())
    }

    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(redacted)")
    }
}

/// A change of users, roles or of whether requests are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthCommand {
    /// Checks requests from now on. The user `root` must exist and have the role `root`.
    Enable,
    /// Checks no requests from now on.
    Disable,
    /// Adds a user. One without a password can only authenticate with a certificate.
    UserAdd {
        /// Its name.
        name: String,
        /// The hash of its password.
        password: Option<PasswordHash>,
    },
    /// Deletes the user with this name.
    UserDelete(String),
    /// Sets the password of a user, unless the user was added without one.
    UserChangePassword {
        /// The name of the user.
        name: String,
        /// The hash of the new password.
        password: PasswordHash,
    },
    /// Grants a role to a user.
    UserGrantRole {
        /// The user.
        user: String,
        /// The role.
        role: String,
    },
    /// Revokes a role from a user.
    UserRevokeRole {
        /// The user.
        user: String,
        /// The role.
        role: String,
    },
    /// Adds a role with this name, without permissions.
    RoleAdd(String),
    /// Deletes the role with this name, and revokes it from all users.
    RoleDelete(String),
    /// Adds a permission to a role, or replaces the one with the same range.
    RoleGrantPermission {
        /// The role.
        role: String,
        /// The permission.
        permission: Permission,
    },
    /// Removes the permission with exactly this range from a role.
    RoleRevokePermission {
        /// The role.
        role: String,
        /// The range.
        keys: KeyRange,
    },
    /// Makes a token known to every member.
    IssueToken(TokenRequest),
}

/// A token that a server issues to a user whose password it has checked.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenRequest {
    /// The user.
    pub user: String,
    /// A digest of the token. The token itself is not in the log.
    pub digest: [u8; 32],
    /// The auth revision at which the password was checked.
    pub checked_at: u64,
    /// When it was issued, in seconds since 1970 on the clock of the server that issued it.
    pub issued_at: u64,
}

impl fmt::Debug for TokenRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("TokenRequest");
        text.field("user", &self.user).field("checked_at", &self.checked_at);
        text.finish_non_exhaustive()
    }
}

/// A token that was issued: what a server has to remember about it. Tokens are not part of the
/// replicated state, since they expire by the clock of each server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedToken {
    /// What was requested.
    pub request: TokenRequest,
    /// The auth revisions that [`AuthState::token_is_current`] compares.
    pub generation: TokenGeneration,
}

/// Changes when the tokens of a user become invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenGeneration {
    password_set_at: u64,
    disabled_at: u64,
}

/// On whose behalf a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issuer<'a> {
    /// A client that is not known.
    Anonymous,
    /// A member itself, for example because a lease has expired.
    Member,
    /// A user, and the auth revision at which the user was identified.
    User {
        /// The name.
        name: &'a str,
        /// The auth revision.
        revision: u64,
    },
}

impl Issuer<'_> {
    /// The same issuer, whose identity counts as current: for checks that are repeated while a
    /// stream is open.
    #[must_use]
    pub fn at_any_revision(self) -> Self {
        match self {
            Self::User { name, .. } => Self::User { name, revision: u64::MAX },
            other => other,
        }
    }
}

impl Default for AuthState {
    /// As in etcd, the first auth revision is 1.
    fn default() -> Self {
        Self {
            enabled: false,
            revision: 1,
            disabled_at: 0,
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
        }
    }
}

impl AuthState {
    /// The users and roles of another store; `None` if two have the same name.
    pub(crate) fn import(imported: &ImportedState) -> Option<Self> {
        let revision = imported.auth_revision.max(1);
        let mut auth = Self { enabled: imported.auth_enabled, revision, ..Self::default() };
        for (slot, user) in (0..).zip(&imported.users) {
            let user_state = User {
                slot,
                password: user.password.clone(),
                password_set_at: revision,
                roles: user.roles.iter().cloned().collect(),
                readable: KeyRanges::default(),
                writable: KeyRanges::default(),
            };
            let is_new = auth.users.insert(user.name.clone(), user_state).is_none();
            is_new.then_some(())?;
        }
        for (slot, (name, permissions)) in (0..).zip(&imported.roles) {
            let mut permissions = permissions.clone();
            permissions.sort_by(|one, other| {
                let order = |it: &Permission| (it.keys.key.clone(), it.keys.range_end.clone());
                order(one).cmp(&order(other))
            });
            permissions.dedup_by(|one, other| one.keys == other.keys);
            let role = AuthRole { slot, permissions };
            auth.roles.insert(name.clone(), role).is_none().then_some(())?;
        }
        Some(auth)
    }

    /// Whether requests are checked.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The auth revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The user with this name.
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name)
    }

    /// The names of all users, in order.
    pub fn users(&self) -> impl ExactSizeIterator<Item = &str> {
        self.users.keys().map(String::as_str)
    }

    /// The role with this name.
    pub fn role(&self, name: &str) -> Option<&AuthRole> {
        self.roles.get(name)
    }

    /// The names of all roles, in order.
    pub fn roles(&self) -> impl ExactSizeIterator<Item = &str> {
        self.roles.keys().map(String::as_str)
    }

    /// What a token of this user has to match; `None` if there is no such user.
    pub fn token_generation(&self, user: &str) -> Option<TokenGeneration> {
        let password_set_at = self.users.get(user)?.password_set_at;
        Some(TokenGeneration { password_set_at, disabled_at: self.disabled_at })
    }

    /// Whether a token of this user is still valid: the user exists, the password is the same,
    /// and authentication was not disabled since.
    pub fn token_is_current(&self, user: &str, generation: TokenGeneration) -> bool {
        self.token_generation(user) == Some(generation)
    }

    /// Whether this user may do everything. The errors are etcd's. Unlike etcd, this refuses an
    /// identity from before the password of the user was set.
    pub fn check_root(&self, issuer: Issuer<'_>) -> Result<(), KvError> {
        match self.known_user(issuer, KvError::UserNotFound)? {
            Some(user) if !user.is_root() => Err(KvError::PermissionDenied),
            _ => Ok(()),
        }
    }

    /// Whether the issuer is known: enough for requests that touch no keys.
    pub fn check_known(&self, issuer: Issuer<'_>) -> Result<(), KvError> {
        self.known_user(issuer, KvError::PermissionDenied).map(|_| ())
    }

    /// The user whose rights have to be checked; `None` if all rights are given.
    fn known_user(&self, issuer: Issuer<'_>, unknown: KvError) -> Result<Option<&User>, KvError> {
        let (name, revision) = match issuer {
            _ if !self.enabled => return Ok(None),
            Issuer::Member => return Ok(None),
            Issuer::Anonymous => return Err(KvError::UserNameEmpty),
            Issuer::User { name: "", .. } => return Err(KvError::UserNameEmpty),
            Issuer::User { name, revision } => (name, revision),
        };
        let user = self.users.get(name).ok_or(unknown)?;
        self.check_age(user, revision)?;
        Ok(Some(user))
    }

    /// Refuses an identity from before the password was set, or authentication was disabled. The
    /// user may be another one with the same name.
    fn check_age(&self, user: &User, revision: u64) -> Result<(), KvError> {
        if revision < user.password_set_at.max(self.disabled_at) {
            return Err(KvError::AuthRevisionOld);
        }
        Ok(())
    }

    /// Whether the issuer may use these keys. The errors are etcd's.
    pub fn check_keys(
        &self,
        issuer: Issuer<'_>,
        key_use: KeyUse,
        key: &[u8],
        range_end: &[u8],
    ) -> Result<(), KvError> {
        self.check_use(issuer, |user| user.ranges(key_use).contain(key, range_end))
    }

    /// Whether the issuer may use all keys of a set. The cost depends on the number of
    /// permissions, and not on that of keys.
    pub(crate) fn check_key_set(
        &self,
        issuer: Issuer<'_>,
        key_use: KeyUse,
        keys: &BTreeSet<Box<[u8]>>,
    ) -> Result<(), KvError> {
        if keys.is_empty() {
            return Ok(());
        }
        self.check_use(issuer, |user| user.ranges(key_use).contain_all(keys))
    }

    fn check_use(
        &self,
        issuer: Issuer<'_>,
        is_allowed: impl FnOnce(&User) -> bool,
    ) -> Result<(), KvError> {
        let (name, revision) = match issuer {
            _ if !self.enabled => return Ok(()),
            Issuer::Member => return Ok(()),
            Issuer::Anonymous => return Err(KvError::UserNameEmpty),
            Issuer::User { name: "", .. } => return Err(KvError::UserNameEmpty),
            Issuer::User { name, revision } => (name, revision),
        };
        if revision < self.revision {
            return Err(KvError::AuthRevisionOld);
        }
        let user = self.users.get(name).ok_or(KvError::PermissionDenied)?;
        if user.is_root() || is_allowed(user) {
            return Ok(());
        }
        Err(KvError::PermissionDenied)
    }
}

impl User {
    /// The hash of the password; `None` for a user without one.
    pub fn password(&self) -> Option<&PasswordHash> {
        self.password.as_ref()
    }

    /// The names of its roles, in order.
    pub fn roles(&self) -> impl ExactSizeIterator<Item = &str> {
        self.roles.iter().map(String::as_str)
    }

    /// Whether it has this role.
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.contains(role)
    }

    /// Whether it may do everything.
    pub fn is_root(&self) -> bool {
        self.has_role(ROOT)
    }

    fn ranges(&self, key_use: KeyUse) -> &KeyRanges {
        match key_use {
            KeyUse::Read => &self.readable,
            KeyUse::Write => &self.writable,
        }
    }
}

impl AuthRole {
    /// The permissions, sorted by key and end.
    pub fn permissions(&self) -> &[Permission] {
        &self.permissions
    }
}

#[cfg(test)]
mod tests;
