//! The rows of etcd's buckets, both ways.

use bytes::Bytes;

use crate::error::EtcdFileError;
use crate::protobuf::{ProtobufFields, put_bytes, put_message, put_number};

/// The buckets of a database, in order. etcd creates all of them.
pub const BUCKETS: &[&str] = &[
    "alarm",
    "auth",
    "authRoles",
    "authUsers",
    "cluster",
    "key",
    "lease",
    "members",
    "members_removed",
    "meta",
];

/// A row of the bucket `key`: one write of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtcdRow<'a> {
    /// The revision.
    pub main: i64,
    /// The number of the write within the revision.
    pub sub: i64,
    /// Whether the key was deleted. Then only the key is set.
    pub is_tombstone: bool,
    /// The key. Empty in the one row that raises the revision of a restored snapshot.
    pub key: &'a [u8],
    /// The revision that created the key.
    pub create_revision: i64,
    /// The revision of this write: the same as `main`.
    pub mod_revision: i64,
    /// The number of writes since the key was created.
    pub version: i64,
    /// The value.
    pub value: &'a [u8],
    /// The lease that the key is attached to; 0 for none.
    pub lease: i64,
}

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtcdLease {
    /// Its id.
    pub id: i64,
    /// The time to live in seconds.
    pub ttl: i64,
    /// The seconds that remained at the last checkpoint; 0 for all of them.
    pub remaining: i64,
}

/// An alarm of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtcdAlarm {
    /// The member.
    pub member: u64,
    /// The number of the alarm in etcd's API.
    pub kind: u64,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUser {
    /// Its name.
    pub name: String,
    /// The bcrypt hash of its password.
    pub password: Bytes,
    /// Its roles.
    pub roles: Vec<String>,
    /// Whether it cannot authenticate with a password.
    pub no_password: bool,
}

/// A role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdRole {
    /// Its name.
    pub name: String,
    /// What it may do.
    pub permissions: Vec<EtcdPermission>,
}

/// A permission of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdPermission {
    /// What it allows.
    pub kind: EtcdPermissionKind,
    /// The first key.
    pub key: Bytes,
    /// The end, as in etcd's API.
    pub range_end: Bytes,
}

/// What a permission allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtcdPermissionKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Both.
    ReadWrite,
}

/// The revision in the key of a row: `main`, `sub`, whether it is a tombstone.
pub(crate) fn decode_revision(key: &[u8]) -> Option<(i64, i64, bool)> {
    let number = |at: usize| {
        let bytes = key.get(at..at + 8)?.try_into().ok()?;
        let number = i64::from_be_bytes(bytes);
        (number >= 0).then_some(number)
    };
    let separated = key.get(8) == Some(&b'_');
    let is_tombstone = match key.len() {
        17 => false,
        18 if key.last() == Some(&b't') => true,
        _ => return None,
    };
    separated.then_some(())?;
    Some((number(0)?, number(9)?, is_tombstone))
}

impl<'a> EtcdRow<'a> {
    pub(crate) fn decode(key: &[u8], value: &'a [u8]) -> Result<Self, EtcdFileError> {
        let problem = |problem: &str| EtcdFileError::row("key", key, problem);
        let (main, sub, is_tombstone) =
            decode_revision(key).ok_or_else(|| problem("the key is not a revision"))?;
        let (mut create_revision, mut mod_revision, mut version, mut lease) = (0, 0, 0, 0);
        let (mut row_key, mut row_value) = (&[][..], &[][..]);
        for field in ProtobufFields::new(value) {
            let field = field.ok_or_else(|| problem("the row cannot be decoded"))?;
            match field.number {
                1 => row_key = field.value.bytes(),
                2 => create_revision = field.value.number() as i64,
                3 => mod_revision = field.value.number() as i64,
                4 => version = field.value.number() as i64,
                5 => row_value = field.value.bytes(),
                6 => lease = field.value.number() as i64,
                _ => return Err(problem("the row has an unknown field")),
            }
        }
        let row = Self {
            main,
            sub,
            is_tombstone,
            key: row_key,
            create_revision,
            mod_revision,
            version,
            value: row_value,
            lease,
        };
        if !value.is_empty() && !is_tombstone {
            row.check_put().map_err(problem)?;
        }
        Ok(row)
    }

    fn check_put(&self) -> Result<(), &'static str> {
        if self.mod_revision != self.main {
            return Err("the row is one of another revision");
        }
        if self.version < 1 || self.create_revision < 1 || self.create_revision > self.main {
            return Err("the row has an impossible version or create revision");
        }
        Ok(())
    }

    /// Whether this is the row that `snapshot restore --bump-revision` adds: a revision that
    /// wrote nothing.
    pub fn is_bump(&self) -> bool {
        !self.is_tombstone && self.key.is_empty() && self.version == 0
    }
}

impl EtcdLease {
    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Self, EtcdFileError> {
        let problem = |problem: &str| EtcdFileError::row("lease", key, problem);
        let mut lease = Self { id: 0, ttl: 0, remaining: 0 };
        for field in ProtobufFields::new(value) {
            let field = field.ok_or_else(|| problem("the row cannot be decoded"))?;
            match field.number {
                1 => lease.id = field.value.number() as i64,
                2 => lease.ttl = field.value.number() as i64,
                3 => lease.remaining = field.value.number() as i64,
                _ => return Err(problem("the row has an unknown field")),
            }
        }
        if lease.id == 0 || key != lease.id.to_be_bytes() {
            return Err(problem("the row is one of another lease"));
        }
        Ok(lease)
    }
}

impl EtcdAlarm {
    pub(crate) fn decode(key: &[u8]) -> Result<Self, EtcdFileError> {
        let problem = || EtcdFileError::row("alarm", key, "the key is not an alarm");
        let mut alarm = Self { member: 0, kind: 0 };
        for field in ProtobufFields::new(key) {
            let field = field.ok_or_else(problem)?;
            match field.number {
                1 => alarm.member = field.value.number(),
                2 => alarm.kind = field.value.number(),
                _ => return Err(problem()),
            }
        }
        Ok(alarm)
    }
}

impl EtcdUser {
    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Self, EtcdFileError> {
        let problem = |problem: &str| EtcdFileError::row("authUsers", key, problem);
        let (mut password, mut roles, mut no_password) = (Bytes::new(), Vec::new(), false);
        let mut name = &[][..];
        for field in ProtobufFields::new(value) {
            let field = field.ok_or_else(|| problem("the row cannot be decoded"))?;
            let bytes = field.value.bytes();
            match field.number {
                1 => name = bytes,
                2 => password = Bytes::copy_from_slice(bytes),
                3 => roles.push(text(bytes).ok_or_else(|| problem("a role is not a text"))?),
                4 => {
                    let flag = |option: Option<crate::ProtobufField<'_>>| {
                        option.is_some_and(|it| it.number == 1 && it.value.number() != 0)
                    };
                    no_password = ProtobufFields::new(bytes).any(flag);
                }
                _ => return Err(problem("the row has an unknown field")),
            }
        }
        if name != key {
            return Err(problem("the row is one of another user"));
        }
        let name = text(name).ok_or_else(|| problem("the name is not a text"))?;
        Ok(Self { name, password, roles, no_password })
    }
}

impl EtcdRole {
    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Self, EtcdFileError> {
        let problem = |problem: &str| EtcdFileError::row("authRoles", key, problem);
        let (mut name, mut permissions) = (&[][..], Vec::new());
        for field in ProtobufFields::new(value) {
            let field = field.ok_or_else(|| problem("the row cannot be decoded"))?;
            match field.number {
                1 => name = field.value.bytes(),
                2 => {
                    let permission = EtcdPermission::decode(field.value.bytes());
                    permissions.push(permission.ok_or_else(|| problem("a bad permission"))?);
                }
                _ => return Err(problem("the row has an unknown field")),
            }
        }
        if name != key {
            return Err(problem("the row is one of another role"));
        }
        let name = text(name).ok_or_else(|| problem("the name is not a text"))?;
        Ok(Self { name, permissions })
    }
}

impl EtcdPermission {
    fn decode(message: &[u8]) -> Option<Self> {
        let kind = EtcdPermissionKind::Read;
        let mut permission = Self { kind, key: Bytes::new(), range_end: Bytes::new() };
        for field in ProtobufFields::new(message) {
            let field = field?;
            let bytes = || Bytes::copy_from_slice(field.value.bytes());
            match (field.number, field.value.number()) {
                (1, 0) => permission.kind = EtcdPermissionKind::Read,
                (1, 1) => permission.kind = EtcdPermissionKind::Write,
                (1, 2) => permission.kind = EtcdPermissionKind::ReadWrite,
                (2, _) => permission.key = bytes(),
                (3, _) => permission.range_end = bytes(),
                _ => return None,
            }
        }
        Some(permission)
    }

    fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            EtcdPermissionKind::Read => 0,
            EtcdPermissionKind::Write => 1,
            EtcdPermissionKind::ReadWrite => 2,
        };
        let mut message = Vec::new();
        put_number(&mut message, 1, kind);
        put_bytes(&mut message, 2, &self.key);
        put_bytes(&mut message, 3, &self.range_end);
        message
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

/// The row of a lease.
pub fn lease_row(lease: &EtcdLease) -> (Bytes, Bytes) {
    let mut message = Vec::new();
    put_number(&mut message, 1, lease.id as u64);
    put_number(&mut message, 2, lease.ttl as u64);
    put_number(&mut message, 3, lease.remaining as u64);
    (Bytes::copy_from_slice(&lease.id.to_be_bytes()), message.into())
}

/// The row of an alarm: all of it is in the key.
pub fn alarm_row(alarm: &EtcdAlarm) -> (Bytes, Bytes) {
    let mut message = Vec::new();
    put_number(&mut message, 1, alarm.member);
    put_number(&mut message, 2, alarm.kind);
    (message.into(), Bytes::new())
}

/// The rows of the bucket `auth`.
pub fn auth_rows(enabled: bool, revision: u64) -> Vec<(Bytes, Bytes)> {
    vec![
        (Bytes::from_static(AUTH_ENABLED), vec![u8::from(enabled)].into()),
        (Bytes::from_static(AUTH_REVISION), Bytes::copy_from_slice(&revision.to_be_bytes())),
    ]
}

/// The row of a user.
pub fn user_row(user: &EtcdUser) -> (Bytes, Bytes) {
    let mut message = Vec::new();
    put_bytes(&mut message, 1, user.name.as_bytes());
    put_bytes(&mut message, 2, &user.password);
    user.roles.iter().for_each(|role| put_message(&mut message, 3, role.as_bytes()));
    let mut options = Vec::new();
    put_number(&mut options, 1, u64::from(user.no_password));
    put_message(&mut message, 4, &options);
    (Bytes::copy_from_slice(user.name.as_bytes()), message.into())
}

/// The row of a role.
pub fn role_row(role: &EtcdRole) -> (Bytes, Bytes) {
    let mut message = Vec::new();
    put_bytes(&mut message, 1, role.name.as_bytes());
    role.permissions.iter().for_each(|it| put_message(&mut message, 2, &it.encode()));
    (Bytes::copy_from_slice(role.name.as_bytes()), message.into())
}

/// The value of a compaction mark: a revision as in the keys of rows.
pub fn compact_mark(revision: i64) -> Bytes {
    let mut mark = revision.to_be_bytes().to_vec();
    mark.push(b'_');
    mark.extend_from_slice(&[0; 8]);
    mark.into()
}

pub(crate) const AUTH_ENABLED: &[u8] = b"authEnabled";
pub(crate) const AUTH_REVISION: &[u8] = b"authRevision";
