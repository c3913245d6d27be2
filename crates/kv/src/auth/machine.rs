//! Authentication as a part of the machine: checks against its state, and the rows of changes.

use std::cell::RefCell;

use super::{AuthCheck, AuthCommand, AuthState, Issuer, KeyUse};
use crate::command::{Command, Query};
use crate::error::KvError;
use crate::machine::{CommandError, Kv};
use crate::reply::KvOutcome;
use crate::revision::RowKey;
use crate::table::Table;

impl<T: Table> Kv<T> {
    /// Users, roles, and whether requests are checked.
    pub fn auth(&self) -> &AuthState {
        &self.state.auth
    }

    pub(crate) fn auth_check<'a>(&'a self, issuer: Issuer<'a>) -> AuthCheck<'a> {
        AuthCheck {
            auth: &self.state.auth,
            leases: &self.state.leases,
            issuer,
            writable_leases: RefCell::default(),
        }
    }

    /// Whether the issuer of this command may run it in the current state. Check this before
    /// proposing; only the reply of the applied command is authoritative.
    pub fn check_command(&self, command: &Command) -> Result<(), KvError> {
        let (issuer, command) = command.split_issuer();
        self.auth_check(issuer).command(command)
    }

    /// Whether the issuer may read what the query reads.
    pub fn check_query(&self, issuer: Issuer<'_>, query: &Query) -> Result<(), KvError> {
        let check = self.auth_check(issuer);
        match query {
            Query::Range(range) => check.range(range),
            Query::Txn(txn) => check.txn(txn),
            Query::Lease(id) => check.lease_keys(*id, KeyUse::Read),
            Query::Leases => check.readable_leases(&mut Vec::new(), usize::MAX).map(|_| ()),
            Query::Revision | Query::Alarms => self.state.auth.check_known(issuer),
            Query::HashKv(_) => self.state.auth.check_root(issuer),
        }
    }

    /// The ids of all leases, in order, if the issuer may read all keys of all of them. To release the
    /// lock in between, this checks at most `checks_max` leases beside those in `checked`, adds
    /// them, and returns `None` if there are more: call it again then. Start with an empty list,
    /// also when users or roles have changed.
    pub fn readable_leases(
        &self,
        issuer: Issuer<'_>,
        checked: &mut Vec<i64>,
        checks_max: usize,
    ) -> Result<Option<Vec<i64>>, KvError> {
        self.auth_check(issuer).readable_leases(checked, checks_max)
    }

    /// Whether the issuer may renew this lease: as for revoking it.
    pub fn check_renewal(&self, issuer: Issuer<'_>, lease: i64) -> Result<(), KvError> {
        self.state.auth.check_known(issuer)?;
        self.auth_check(issuer).lease_keys(lease, KeyUse::Write)
    }

    pub(crate) fn change_auth(&mut self, command: &AuthCommand) -> Result<KvOutcome, CommandError> {
        let changed = self.state.auth.apply(command)?;
        let auth = &self.state.auth;
        for (slot, row) in changed.users.iter().filter_map(|name| auth.user_row(name)) {
            self.table.put(RowKey::auth_user(slot), row)?;
        }
        for (slot, row) in changed.roles.iter().filter_map(|name| auth.role_row(name)) {
            self.table.put(RowKey::auth_role(slot), row)?;
        }
        if let Some(slot) = changed.removed_user {
            self.table.remove(RowKey::auth_user(slot))?;
        }
        if let Some(slot) = changed.removed_role {
            self.table.remove(RowKey::auth_role(slot))?;
        }
        if changed.meta {
            self.table.put(RowKey::AUTH, auth.meta_row())?;
        }
        Ok(KvOutcome::Done)
    }
}
