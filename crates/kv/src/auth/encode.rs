//! Changes of users and roles as bytes, and the rows that hold them. `docs/formats.md` describes
//! both.

use bytes::{Bytes, BytesMut};

use super::permission::KeyRanges;
use super::{
    AuthCommand, AuthRole, AuthState, PasswordHash, Permission, PermissionMode, TokenRequest, User,
};
use crate::codec::{
    ByteSink, ByteSource, put_bytes, put_flags, put_list, put_number, put_option, take_byte,
    take_bytes, take_flags, take_list, take_number, take_option,
};
use crate::command::KeyRange;

pub(crate) fn put_auth(out: &mut impl ByteSink, command: &AuthCommand) {
    match command {
        AuthCommand::Enable => out.put_u8(0),
        AuthCommand::Disable => out.put_u8(1),
        AuthCommand::UserAdd { name, password } => {
            out.put_u8(2);
            put_text(out, name);
            put_option(out, password.as_ref(), put_password);
        }
        AuthCommand::UserDelete(name) => {
            out.put_u8(3);
            put_text(out, name);
        }
        AuthCommand::UserChangePassword { name, password } => {
            out.put_u8(4);
            put_text(out, name);
            put_password(out, password);
        }
        AuthCommand::UserGrantRole { user, role } => {
            out.put_u8(5);
            put_text(out, user);
            put_text(out, role);
        }
        AuthCommand::UserRevokeRole { user, role } => {
            out.put_u8(6);
            put_text(out, user);
            put_text(out, role);
        }
        AuthCommand::RoleAdd(name) => {
            out.put_u8(7);
            put_text(out, name);
        }
        AuthCommand::RoleDelete(name) => {
            out.put_u8(8);
            put_text(out, name);
        }
        AuthCommand::RoleGrantPermission { role, permission } => {
            out.put_u8(9);
            put_text(out, role);
            put_permission(out, permission);
        }
        AuthCommand::RoleRevokePermission { role, keys } => {
            out.put_u8(10);
            put_text(out, role);
            put_keys(out, keys);
        }
        AuthCommand::IssueToken(request) => {
            out.put_u8(11);
            put_text(out, &request.user);
            out.put_slice(&request.digest);
            put_number(out, request.checked_at);
            put_number(out, request.issued_at);
        }
    }
}

pub(crate) fn take_auth(from: &mut impl ByteSource) -> Option<AuthCommand> {
    Some(match take_byte(from)? {
        0 => AuthCommand::Enable,
        1 => AuthCommand::Disable,
        2 => AuthCommand::UserAdd {
            name: take_text(from)?,
            password: take_option(from, take_password)?,
        },
        3 => AuthCommand::UserDelete(take_text(from)?),
        4 => AuthCommand::UserChangePassword {
            name: take_text(from)?,
            password: take_password(from)?,
        },
        5 => AuthCommand::UserGrantRole { user: take_text(from)?, role: take_text(from)? },
        6 => AuthCommand::UserRevokeRole { user: take_text(from)?, role: take_text(from)? },
        7 => AuthCommand::RoleAdd(take_text(from)?),
        8 => AuthCommand::RoleDelete(take_text(from)?),
        9 => AuthCommand::RoleGrantPermission {
            role: take_text(from)?,
            permission: take_permission(from)?,
        },
        10 => AuthCommand::RoleRevokePermission { role: take_text(from)?, keys: take_keys(from)? },
        11 => {
            let user = take_text(from)?;
            let digest = *from.rest().first_chunk()?;
            from.skip(digest.len());
            let (checked_at, issued_at) = (take_number(from)?, take_number(from)?);
            AuthCommand::IssueToken(TokenRequest { user, digest, checked_at, issued_at })
        }
        _ => return None,
    })
}

pub(crate) fn put_text(out: &mut impl ByteSink, text: &str) {
    put_bytes(out, text.as_bytes());
}

pub(crate) fn take_text(from: &mut impl ByteSource) -> Option<String> {
    String::from_utf8(take_bytes(from)?.to_vec()).ok()
}

fn put_password(out: &mut impl ByteSink, password: &PasswordHash) {
    put_bytes(out, password.as_bytes());
}

fn take_password(from: &mut impl ByteSource) -> Option<PasswordHash> {
    // Copied, so that the hash does not keep the whole entry in memory.
    Some(PasswordHash::new(Bytes::copy_from_slice(&take_bytes(from)?)))
}

fn put_keys(out: &mut impl ByteSink, keys: &KeyRange) {
    put_bytes(out, &keys.key);
    put_bytes(out, &keys.range_end);
}

fn take_keys(from: &mut impl ByteSource) -> Option<KeyRange> {
    let mut take = || Some(Bytes::copy_from_slice(&take_bytes(from)?));
    Some(KeyRange { key: take()?, range_end: take()? })
}

fn put_permission(out: &mut impl ByteSink, permission: &Permission) {
    out.put_u8(match permission.mode {
        PermissionMode::Read => 0,
        PermissionMode::Write => 1,
        PermissionMode::ReadWrite => 2,
    });
    put_keys(out, &permission.keys);
}

fn take_permission(from: &mut impl ByteSource) -> Option<Permission> {
    let mode = match take_byte(from)? {
        0 => PermissionMode::Read,
        1 => PermissionMode::Write,
        2 => PermissionMode::ReadWrite,
        _ => return None,
    };
    Some(Permission { mode, keys: take_keys(from)? })
}

impl AuthState {
    pub(crate) fn meta_row(&self) -> Bytes {
        let mut row = BytesMut::new();
        put_flags(&mut row, &[self.enabled]);
        put_number(&mut row, self.revision);
        put_number(&mut row, self.disabled_at);
        row.freeze()
    }

    pub(crate) fn load_meta(&mut self, mut row: Bytes) -> Option<()> {
        [self.enabled] = take_flags(&mut row)?;
        self.revision = take_number(&mut row)?;
        self.disabled_at = take_number(&mut row)?;
        (row.is_empty() && self.revision >= 1 && self.disabled_at <= self.revision).then_some(())
    }

    /// The slot and the row of this user.
    pub(crate) fn user_row(&self, name: &str) -> Option<(u32, Bytes)> {
        let user = self.users.get(name)?;
        let mut row = BytesMut::new();
        put_text(&mut row, name);
        put_option(&mut row, user.password.as_ref(), put_password);
        put_number(&mut row, user.password_set_at);
        let roles: Vec<&String> = user.roles.iter().collect();
        put_list(&mut row, &roles, |row, role| put_text(row, role));
        Some((user.slot, row.freeze()))
    }

    /// The ranges of the user are computed when all rows are loaded.
    pub(crate) fn load_user(&mut self, slot: u32, mut row: Bytes) -> Option<()> {
        let name = take_text(&mut row)?;
        let user = User {
            slot,
            password: take_option(&mut row, take_password)?,
            password_set_at: take_number(&mut row)?,
            roles: take_list(&mut row, take_text)?.into_iter().collect(),
            readable: KeyRanges::default(),
            writable: KeyRanges::default(),
        };
        let is_new = self.users.insert(name, user).is_none();
        (is_new && row.is_empty()).then_some(())
    }

    /// The slot and the row of this role.
    pub(crate) fn role_row(&self, name: &str) -> Option<(u32, Bytes)> {
        let role = self.roles.get(name)?;
        let mut row = BytesMut::new();
        put_text(&mut row, name);
        put_list(&mut row, &role.permissions, put_permission);
        Some((role.slot, row.freeze()))
    }

    pub(crate) fn load_role(&mut self, slot: u32, mut row: Bytes) -> Option<()> {
        let name = take_text(&mut row)?;
        let permissions = take_list(&mut row, take_permission)?;
        let valid = permissions.iter().all(Permission::is_valid);
        let is_new = self.roles.insert(name, AuthRole { slot, permissions }).is_none();
        (is_new && valid && row.is_empty()).then_some(())
    }
}
