//! Alarms and the quota: when the machine refuses writes.
//!
//! The quota and the stored size are part of the state, so that all members refuse the same
//! commands. The size counts rows, not pages, so it does not depend on the table.

use std::collections::BTreeSet;

use crate::command::{Command, Quota, Txn, TxnOperation};
use crate::error::KvError;

/// An alarm of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alarm {
    /// What it is about.
    pub kind: AlarmKind,
    /// The member that raised it.
    pub member: u64,
}

/// The kinds of alarms. Exhaustive: it has a byte format and decides what is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AlarmKind {
    /// The quota is used up: commands that add data are refused.
    NoSpace,
    /// The data of members differ: commands that change data are refused.
    Corrupt,
}

impl AlarmKind {
    /// The number in etcd's protocol, where 0 means none.
    pub fn number(self) -> u8 {
        match self {
            Self::NoSpace => 1,
            Self::Corrupt => 2,
        }
    }

    /// The kind with this number in etcd's protocol.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::NoSpace),
            2 => Some(Self::Corrupt),
            _ => None,
        }
    }
}

/// The active alarms and the quota.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alarms {
    active: BTreeSet<Alarm>,
    pub(crate) quota: Quota,
}

impl Alarms {
    /// Returns whether the alarm was inactive.
    pub(crate) fn activate(&mut self, alarm: Alarm) -> bool {
        self.active.insert(alarm)
    }

    /// Returns whether the alarm was active.
    pub(crate) fn disarm(&mut self, alarm: Alarm) -> bool {
        self.active.remove(&alarm)
    }

    pub(crate) fn list(&self) -> Vec<Alarm> {
        self.active.iter().copied().collect()
    }

    fn is_active(&self, kind: AlarmKind) -> bool {
        self.active.iter().any(|alarm| alarm.kind == kind)
    }

    /// Why a command must be refused, with this many bytes stored. Commands that add no
    /// data are always accepted unless the members' data differ.
    pub(crate) fn refuse(&self, command: &Command, stored: u64) -> Option<AlarmRefusal> {
        if self.is_active(AlarmKind::Corrupt) && changes_data(command) {
            return Some(AlarmRefusal { error: KvError::Corrupt, raise: None });
        }
        let cost = cost(command);
        if cost == 0 {
            return None;
        }
        if self.is_active(AlarmKind::NoSpace) {
            return Some(AlarmRefusal { error: KvError::NoSpace, raise: None });
        }
        let Quota { bytes, member } = self.quota;
        (bytes > 0 && stored + cost > bytes).then_some(AlarmRefusal {
            error: KvError::NoSpace,
            raise: Some(Alarm { kind: AlarmKind::NoSpace, member }),
        })
    }
}

/// A refused command, and the alarm to raise for it.
pub(crate) struct AlarmRefusal {
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
        | Command::SetQuota(_)
        | Command::Auth(_) => false,
        Command::Issued(issued) => changes_data(&issued.command),
        #[cfg(feature = "next-version-for-tests")]
        Command::PutReversed(_) => true,
    }
}

/// etcd's estimates of the overhead of a key and a lease.
const KEY_OVERHEAD_BYTES: u64 = 256;
const LEASE_OVERHEAD_BYTES: u64 = 64;

/// The bytes that a command may add. 0 for commands that add only history.
fn cost(command: &Command) -> u64 {
    match command {
        Command::Put(put) => put_cost(put.key.len(), put.value.len()),
        Command::Txn(txn) => txn_cost(txn),
        Command::LeaseGrant(_) => LEASE_OVERHEAD_BYTES,
        Command::Issued(issued) => cost(&issued.command),
        _ => 0,
    }
}

fn put_cost(key_bytes: usize, value_bytes: usize) -> u64 {
    KEY_OVERHEAD_BYTES + (key_bytes + value_bytes) as u64
}

/// The cost of the more expensive branch.
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
