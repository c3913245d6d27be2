//! Alarms and the quota: when the machine refuses to write.
//!
//! The quota and the size are part of the state, so that all members refuse the same
//! commands. The size counts rows, not pages: it does not depend on the table.

use std::collections::BTreeSet;

use crate::command::{Command, Quota, Txn, TxnOperation};
use crate::error::KvError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alarm {
    pub kind: AlarmKind,
    pub member: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AlarmKind {
    /// The quota is used up: nothing may be added.
    NoSpace,
    /// Members differ: nothing may be changed.
    Corrupt,
}

impl AlarmKind {
    /// As on etcd's wire, where 0 is none.
    pub fn number(self) -> u8 {
        match self {
            Self::NoSpace => 1,
            Self::Corrupt => 2,
        }
    }

    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::NoSpace),
            2 => Some(Self::Corrupt),
            _ => None,
        }
    }
}

/// The alarms that are active, and what raises one of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alarms {
    active: BTreeSet<Alarm>,
    pub(crate) quota: Quota,
}

impl Alarms {
    /// Whether this is news.
    pub(crate) fn activate(&mut self, alarm: Alarm) -> bool {
        self.active.insert(alarm)
    }

    /// Whether it was active.
    pub(crate) fn disarm(&mut self, alarm: Alarm) -> bool {
        self.active.remove(&alarm)
    }

    pub(crate) fn list(&self) -> Vec<Alarm> {
        self.active.iter().copied().collect()
    }

    fn is_active(&self, kind: AlarmKind) -> bool {
        self.active.iter().any(|alarm| alarm.kind == kind)
    }

    /// What speaks against a command, with this much stored. Reads, and what tends to
    /// alarms and leases, are served whatever happens.
    pub(crate) fn refuse(&self, command: &Command, stored: u64) -> Option<Refused> {
        if self.is_active(AlarmKind::Corrupt) && changes_data(command) {
            return Some(Refused { error: KvError::Corrupt, raise: None });
        }
        let cost = cost(command);
        if cost == 0 {
            return None;
        }
        if self.is_active(AlarmKind::NoSpace) {
            return Some(Refused { error: KvError::NoSpace, raise: None });
        }
        let Quota { bytes, member } = self.quota;
        (bytes > 0 && stored + cost > bytes).then_some(Refused {
            error: KvError::NoSpace,
            raise: Some(Alarm { kind: AlarmKind::NoSpace, member }),
        })
    }
}

/// A command that is not run, and the alarm that is raised for it.
pub(crate) struct Refused {
    pub(crate) error: KvError,
    pub(crate) raise: Option<Alarm>,
}

fn changes_data(command: &Command) -> bool {
    match command {
        Command::Put(_)
        | Command::DeleteRange(_)
        | Command::Txn(_)
        | Command::Compact(_)
        | Command::LeaseGrant(_)
        | Command::LeaseRevoke(_) => true,
        Command::Noop
        | Command::LeaseCheckpoint(_)
        | Command::AlarmActivate(_)
        | Command::AlarmDisarm(_)
        | Command::SetQuota(_) => false,
    }
}

/// etcd's estimates of what a key and a lease need beside their bytes.
const KEY_OVERHEAD_BYTES: u64 = 256;
const LEASE_OVERHEAD_BYTES: u64 = 64;

/// What a command may add. Nothing for what adds nothing but history.
fn cost(command: &Command) -> u64 {
    match command {
        Command::Put(put) => put_cost(put.key.len(), put.value.len()),
        Command::Txn(txn) => txn_cost(txn),
        Command::LeaseGrant(_) => LEASE_OVERHEAD_BYTES,
        _ => 0,
    }
}

fn put_cost(key_bytes: usize, value_bytes: usize) -> u64 {
    KEY_OVERHEAD_BYTES + (key_bytes + value_bytes) as u64
}

/// That of its dearer branch.
fn txn_cost(txn: &Txn) -> u64 {
    let branch = |requests: &[TxnOperation]| -> u64 {
        let cost = |request: &TxnOperation| match request {
            TxnOperation::Put(put) => put_cost(put.key.len(), put.value.len()),
            TxnOperation::Txn(txn) => txn_cost(txn),
            TxnOperation::Range(_) | TxnOperation::DeleteRange(_) => 0,
        };
        requests.iter().map(cost).sum()
    };
    branch(&txn.success).max(branch(&txn.failure))
}
