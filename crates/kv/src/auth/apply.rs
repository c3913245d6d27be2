//! Applies changes of users and roles. Each one that changes something raises the auth revision.

use std::collections::{BTreeMap, BTreeSet};

use super::permission::KeyRanges;
use super::{
    AuthCommand, AuthRole, AuthState, IssuedToken, KeyUse, PasswordHash, Permission, ROOT,
    TokenRequest, User,
};
use crate::command::KeyRange;
use crate::error::KvError;

/// Rows that a change wrote or removed.
#[derive(Default)]
pub(crate) struct ChangedRows {
    /// Users whose rows are new or different.
    pub(crate) users: Vec<String>,
    pub(crate) roles: Vec<String>,
    /// The slots of rows that are gone.
    pub(crate) removed_user: Option<u32>,
    pub(crate) removed_role: Option<u32>,
    /// The row with the revision.
    pub(crate) meta: bool,
}

impl AuthState {
    /// Runs a change. The caller has checked that the issuer may make it.
    pub(crate) fn apply(&mut self, command: &AuthCommand) -> Result<ChangedRows, KvError> {
        match command {
            AuthCommand::Enable => self.enable(),
            AuthCommand::Disable => Ok(self.disable()),
            AuthCommand::UserAdd { name, password } => self.user_add(name, password.as_ref()),
            AuthCommand::UserDelete(name) => self.user_delete(name),
            AuthCommand::UserChangePassword { name, password } => {
                self.user_change_password(name, password)
            }
            AuthCommand::UserGrantRole { user, role } => self.user_grant_role(user, role),
            AuthCommand::UserRevokeRole { user, role } => self.user_revoke_role(user, role),
            AuthCommand::RoleAdd(name) => self.role_add(name),
            AuthCommand::RoleDelete(name) => self.role_delete(name),
            AuthCommand::RoleGrantPermission { role, permission } => {
                self.role_grant_permission(role, permission)
            }
            AuthCommand::RoleRevokePermission { role, keys } => {
                self.role_revoke_permission(role, keys)
            }
            AuthCommand::IssueToken(_) => Ok(ChangedRows::default()),
        }
    }

    /// The token that a server asks for, if the password it checked is still that of the user.
    pub(crate) fn issue_token(&self, request: &TokenRequest) -> Result<IssuedToken, KvError> {
        if !self.is_enabled() {
            return Err(KvError::AuthNotEnabled);
        }
        let user = self.users.get(&request.user).ok_or(KvError::AuthFailed)?;
        if user.password.is_none() {
            return Err(KvError::AuthFailed);
        }
        if request.checked_at != self.revision {
            return Err(KvError::AuthRevisionOld);
        }
        let generation = self.token_generation(&request.user).ok_or(KvError::AuthFailed)?;
        Ok(IssuedToken { request: request.clone(), generation })
    }

    /// As in etcd, this does not raise the revision.
    fn enable(&mut self) -> Result<ChangedRows, KvError> {
        if self.enabled {
            return Ok(ChangedRows::default());
        }
        let root = self.users.get(ROOT).ok_or(KvError::RootUserNotFound)?;
        if !root.is_root() {
            return Err(KvError::RootRoleNotFound);
        }
        self.enabled = true;
        Ok(ChangedRows { meta: true, ..ChangedRows::default() })
    }

    fn disable(&mut self) -> ChangedRows {
        if !self.enabled {
            return ChangedRows::default();
        }
        self.enabled = false;
        let changed = self.changed();
        self.disabled_at = self.revision;
        changed
    }

    fn user_add(
        &mut self,
        name: &str,
        password: Option<&PasswordHash>,
    ) -> Result<ChangedRows, KvError> {
        if name.is_empty() {
            return Err(KvError::UserNameEmpty);
        }
        if self.users.contains_key(name) {
            return Err(KvError::UserExists);
        }
        let slot = free_slot(self.users.values().map(|user| user.slot));
        let changed = self.changed();
        let user = User {
            slot,
            password: password.cloned(),
            password_set_at: self.revision,
            roles: BTreeSet::new(),
            readable: KeyRanges::default(),
            writable: KeyRanges::default(),
        };
        self.users.insert(name.to_owned(), user);
        Ok(ChangedRows { users: vec![name.to_owned()], ..changed })
    }

    fn user_delete(&mut self, name: &str) -> Result<ChangedRows, KvError> {
        if self.enabled && name == ROOT {
            return Err(KvError::InvalidAuthManagement);
        }
        let user = self.users.remove(name).ok_or(KvError::UserNotFound)?;
        Ok(ChangedRows { removed_user: Some(user.slot), ..self.changed() })
    }

    fn user_change_password(
        &mut self,
        name: &str,
        password: &PasswordHash,
    ) -> Result<ChangedRows, KvError> {
        let next = self.revision + 1;
        let user = self.users.get_mut(name).ok_or(KvError::UserNotFound)?;
        if let Some(old) = &mut user.password {
            *old = password.clone();
        }
        user.password_set_at = next;
        Ok(ChangedRows { users: vec![name.to_owned()], ..self.changed() })
    }

    fn user_grant_role(&mut self, name: &str, role: &str) -> Result<ChangedRows, KvError> {
        let user = self.users.get_mut(name).ok_or(KvError::UserNotFound)?;
        // The role `root` need not exist.
        if role != ROOT && !self.roles.contains_key(role) {
            return Err(KvError::RoleNotFound);
        }
        if !user.roles.insert(role.to_owned()) {
            return Ok(ChangedRows::default());
        }
        user.update_ranges(&self.roles);
        Ok(ChangedRows { users: vec![name.to_owned()], ..self.changed() })
    }

    fn user_revoke_role(&mut self, name: &str, role: &str) -> Result<ChangedRows, KvError> {
        if self.enabled && name == ROOT && role == ROOT {
            return Err(KvError::InvalidAuthManagement);
        }
        let user = self.users.get_mut(name).ok_or(KvError::UserNotFound)?;
        if !user.roles.remove(role) {
            return Err(KvError::RoleNotGranted);
        }
        user.update_ranges(&self.roles);
        Ok(ChangedRows { users: vec![name.to_owned()], ..self.changed() })
    }

    fn role_add(&mut self, name: &str) -> Result<ChangedRows, KvError> {
        if name.is_empty() {
            return Err(KvError::RoleNameEmpty);
        }
        if self.roles.contains_key(name) {
            return Err(KvError::RoleExists);
        }
        let slot = free_slot(self.roles.values().map(|role| role.slot));
        self.roles.insert(name.to_owned(), AuthRole { slot, permissions: Vec::new() });
        Ok(ChangedRows { roles: vec![name.to_owned()], ..self.changed() })
    }

    fn role_delete(&mut self, name: &str) -> Result<ChangedRows, KvError> {
        if self.enabled && name == ROOT {
            return Err(KvError::InvalidAuthManagement);
        }
        let role = self.roles.remove(name).ok_or(KvError::RoleNotFound)?;
        let mut users = Vec::new();
        for (user_name, user) in &mut self.users {
            if user.roles.remove(name) {
                user.update_ranges(&self.roles);
                users.push(user_name.clone());
            }
        }
        Ok(ChangedRows { removed_role: Some(role.slot), users, ..self.changed() })
    }

    fn role_grant_permission(
        &mut self,
        name: &str,
        permission: &Permission,
    ) -> Result<ChangedRows, KvError> {
        if !permission.is_valid() {
            return Err(KvError::InvalidAuthManagement);
        }
        let role = self.roles.get_mut(name).ok_or(KvError::RoleNotFound)?;
        match position_of(&role.permissions, &permission.keys) {
            Ok(position) => {
                if let Some(known) = role.permissions.get_mut(position) {
                    known.mode = permission.mode;
                }
            }
            Err(position) => role.permissions.insert(position, permission.clone()),
        }
        Ok(self.role_changed(name))
    }

    fn role_revoke_permission(
        &mut self,
        name: &str,
        keys: &KeyRange,
    ) -> Result<ChangedRows, KvError> {
        let role = self.roles.get_mut(name).ok_or(KvError::RoleNotFound)?;
        let position = position_of(&role.permissions, keys);
        let position = position.map_err(|_| KvError::PermissionNotGranted)?;
        role.permissions.remove(position);
        Ok(self.role_changed(name))
    }

    fn role_changed(&mut self, name: &str) -> ChangedRows {
        for user in self.users.values_mut().filter(|user| user.has_role(name)) {
            user.update_ranges(&self.roles);
        }
        ChangedRows { roles: vec![name.to_owned()], ..self.changed() }
    }

    fn changed(&mut self) -> ChangedRows {
        self.revision += 1;
        ChangedRows { meta: true, ..ChangedRows::default() }
    }

    /// Computes the ranges of all users, after the rows were loaded.
    pub(crate) fn update_all_ranges(&mut self) {
        for user in self.users.values_mut() {
            user.update_ranges(&self.roles);
        }
    }
}

impl User {
    fn update_ranges(&mut self, roles: &BTreeMap<String, AuthRole>) {
        let granted = |key_use: KeyUse| {
            let roles = self.roles.iter().filter_map(|role| roles.get(role));
            let permissions = roles.flat_map(|role| &role.permissions);
            let allowed = permissions.filter(move |permission| permission.mode.allows(key_use));
            KeyRanges::union(allowed.map(|permission| &permission.keys))
        };
        (self.readable, self.writable) = (granted(KeyUse::Read), granted(KeyUse::Write));
    }
}

fn position_of(permissions: &[Permission], keys: &KeyRange) -> Result<usize, usize> {
    let order = |other: &KeyRange| (other.key.clone(), other.range_end.clone());
    let wanted = order(keys);
    permissions.binary_search_by(|permission| order(&permission.keys).cmp(&wanted))
}

/// The lowest number that no row has.
fn free_slot(used: impl Iterator<Item = u32>) -> u32 {
    let used: BTreeSet<u32> = used.collect();
    let free = (0..).zip(&used).find(|(free, used)| free != *used);
    free.map_or(used.len() as u32, |(free, _)| free)
}
