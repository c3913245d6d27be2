//! Leases of keys that are read without their values. etcd leaves them out since 3.7, which reads
//! such keys from its index; sorting by value reads the whole pairs there, with their leases.

use quorate_kv::{
    KvOutcome, Range, RangeOutcome, SortTarget, Txn, TxnOperation, TxnOperationReply, TxnOutcome,
};

use crate::etcd_release::EtcdRelease;

/// Which ranges of a request are read without leases.
pub(super) enum WithoutLeases {
    Nothing,
    Range,
    /// The operations of both branches.
    Txn {
        success: Vec<Self>,
        failure: Vec<Self>,
    },
}

impl WithoutLeases {
    pub(super) fn of_range(range: &Range, release: EtcdRelease) -> Self {
        let is_without = release.omits_leases_of_keys()
            && range.keys_only
            && range.sort_target != SortTarget::Value;
        if is_without { Self::Range } else { Self::Nothing }
    }

    pub(super) fn of_txn(txn: &Txn, release: EtcdRelease) -> Self {
        let is_plain = |operation: &TxnOperation| match operation {
            TxnOperation::Range(range) => !range.keys_only,
            TxnOperation::Txn(_) => false,
            TxnOperation::Put(_) | TxnOperation::DeleteRange(_) => true,
        };
        // Most are.
        if txn.success.iter().chain(&txn.failure).all(is_plain) {
            return Self::Nothing;
        }
        let of = |operations: &[TxnOperation]| -> Vec<Self> {
            let operation = |operation: &TxnOperation| match operation {
                TxnOperation::Range(range) => Self::of_range(range, release),
                TxnOperation::Txn(txn) => Self::of_txn(txn, release),
                _ => Self::Nothing,
            };
            operations.iter().map(operation).collect()
        };
        let (success, failure) = (of(&txn.success), of(&txn.failure));
        let is_nothing = |it: &Self| matches!(it, Self::Nothing);
        if success.iter().chain(&failure).all(is_nothing) {
            return Self::Nothing;
        }
        Self::Txn { success, failure }
    }

    pub(super) fn apply_to_range(&self, found: &mut RangeOutcome) {
        if let Self::Range = self {
            for kv in &mut found.kvs {
                kv.lease = 0;
            }
        }
    }

    pub(super) fn apply_to_txn(&self, done: &mut TxnOutcome) {
        let Self::Txn { success, failure } = self else { return };
        let operations = if done.succeeded { success } else { failure };
        for (operation, TxnOperationReply { outcome, .. }) in
            operations.iter().zip(&mut done.responses)
        {
            match outcome {
                KvOutcome::Range(found) => operation.apply_to_range(found),
                KvOutcome::Txn(done) => operation.apply_to_txn(done),
                _ => {}
            }
        }
    }
}
