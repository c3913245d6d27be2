//! Whether the issuer of a command may run it: every sub-operation counts, also those of
//! branches that will not be taken.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::{AuthCommand, AuthState, Issuer, KeyUse};
use crate::command::{Command, DeleteRange, Put, Range, Txn, TxnOperation};
use crate::error::KvError;
use crate::lease::Leases;

/// What a check reads.
pub(crate) struct AuthCheck<'a> {
    pub(crate) auth: &'a AuthState,
    pub(crate) leases: &'a Leases,
    pub(crate) issuer: Issuer<'a>,
    /// Leases whose keys were found to be writable: many puts of one command may name one lease
    /// with many keys.
    pub(crate) writable_leases: RefCell<BTreeSet<i64>>,
}

impl AuthCheck<'_> {
    pub(crate) fn command(&self, command: &Command) -> Result<(), KvError> {
        if !self.auth.is_enabled() || self.issuer == Issuer::Member {
            return Ok(());
        }
        match command {
            // Only members issue these.
            Command::Noop | Command::LeaseCheckpoint(_) | Command::SetQuota(_) => Ok(()),
            Command::Put(put) => self.put(put),
            Command::DeleteRange(deletion) => self.deletion(deletion),
            Command::Txn(txn) => self.txn(txn),
            Command::LeaseGrant(_) => self.auth.check_known(self.issuer),
            Command::LeaseRevoke(id) => {
                self.auth.check_known(self.issuer)?;
                self.lease_keys(*id, KeyUse::Write)
            }
            Command::Compact(_) | Command::AlarmActivate(_) | Command::AlarmDisarm(_) => {
                self.auth.check_root(self.issuer)
            }
            // Its server has checked the password.
            Command::Auth(AuthCommand::IssueToken(_)) => Ok(()),
            Command::Auth(_) => self.auth.check_root(self.issuer),
            Command::Issued(issued) => self.command(&issued.command),
            #[cfg(feature = "next-version-for-tests")]
            Command::PutReversed(put) => self.put(put),
        }
    }

    fn put(&self, put: &Put) -> Result<(), KvError> {
        self.keys(KeyUse::Write, &put.key, &[])?;
        // A user who attaches a key to a lease can delete all keys of the lease by revoking it.
        if put.lease != 0 && !self.writable_leases.borrow().contains(&put.lease) {
            self.lease_keys(put.lease, KeyUse::Write)?;
            self.writable_leases.borrow_mut().insert(put.lease);
        }
        if put.prev_kv {
            self.keys(KeyUse::Read, &put.key, &[])?;
        }
        Ok(())
    }

    fn deletion(&self, deletion: &DeleteRange) -> Result<(), KvError> {
        let keys = &deletion.keys;
        self.keys(KeyUse::Write, &keys.key, &keys.range_end)?;
        if deletion.prev_kv {
            self.keys(KeyUse::Read, &keys.key, &keys.range_end)?;
        }
        Ok(())
    }

    pub(crate) fn range(&self, range: &Range) -> Result<(), KvError> {
        self.keys(KeyUse::Read, &range.keys.key, &range.keys.range_end)
    }

    pub(crate) fn txn(&self, txn: &Txn) -> Result<(), KvError> {
        // A transaction without operations is as harmless as a read of the revision, and yet
        // only users may run it.
        self.auth.check_known(self.issuer)?;
        for compare in &txn.compare {
            self.keys(KeyUse::Read, &compare.keys.key, &compare.keys.range_end)?;
        }
        for operation in txn.success.iter().chain(&txn.failure) {
            match operation {
                TxnOperation::Range(range) => self.range(range)?,
                TxnOperation::Put(put) => self.put(put)?,
                TxnOperation::DeleteRange(deletion) => self.deletion(deletion)?,
                TxnOperation::Txn(txn) => self.txn(txn)?,
            }
        }
        Ok(())
    }

    /// All keys of the lease; none if it does not exist.
    pub(crate) fn lease_keys(&self, id: i64, key_use: KeyUse) -> Result<(), KvError> {
        let Some(lease) = self.leases.get(id) else { return Ok(()) };
        if self.auth.check_root(self.issuer).is_ok() {
            return Ok(());
        }
        self.auth.check_key_set(self.issuer, key_use, lease.key_set())
    }

    /// The ids of all leases, if the issuer may read the keys of all of them. Checks up to
    /// `checks_max` leases beside those in `checked`, and adds them there in order; `None` if
    /// there are more.
    pub(crate) fn readable_leases(
        &self,
        checked: &mut Vec<i64>,
        checks_max: usize,
    ) -> Result<Option<Vec<i64>>, KvError> {
        self.auth.check_known(self.issuer)?;
        if self.auth.check_root(self.issuer).is_ok() {
            return Ok(Some(self.leases.iter().map(|(id, _)| id).collect()));
        }
        let mut known = checked.iter().copied().peekable();
        let mut all = Vec::new();
        let mut is_complete = true;
        let mut checks_left = checks_max;
        for (id, lease) in self.leases.iter() {
            while known.next_if(|known| *known < id).is_some() {}
            if known.peek() != Some(&id) {
                is_complete = checks_left > 0;
                if !is_complete {
                    break;
                }
                checks_left -= 1;
                self.auth.check_key_set(self.issuer, KeyUse::Read, lease.key_set())?;
            }
            all.push(id);
        }
        if is_complete {
            return Ok(Some(all));
        }
        // Leases after the last checked one, which an earlier call may have checked.
        all.extend(known);
        *checked = all;
        Ok(None)
    }

    fn keys(&self, key_use: KeyUse, key: &[u8], range_end: &[u8]) -> Result<(), KvError> {
        self.auth.check_keys(self.issuer, key_use, key, range_end)
    }
}
