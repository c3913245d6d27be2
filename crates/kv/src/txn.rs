//! Writes: single puts and deletions, and transactions.
//!
//! A transaction first evaluates all its comparisons, nested ones too, against the state
//! before it, then runs. Its reads see its own earlier writes. All its writes share one
//! revision.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::command::{
    Compare, CompareOperator, CompareTarget, DeleteRange, Put, Range, Txn, TxnOperation,
};
use crate::error::KvError;
use crate::incremental::{Compared, ReadLimits};
use crate::index::KeyFinder;
use crate::key_history::{CurrentVersion, KeyVersion, SeenVersion, VersionNumbers};
use crate::machine::{CommandError, Kv};
use crate::packed_keys::KeyRef;
use crate::reply::{
    DeleteRangeOutcome, KeyValue, KvOutcome, PutOutcome, RangeOutcome, TxnOperationReply,
    TxnOutcome,
};
use crate::revision::{
    PutHead, Revision, RowKey, RowParts, key_of_tombstone, row_bytes, row_bytes_of, tombstone_row,
};
use crate::table::{Table, TableError};
use crate::writes::CommandWrites;

/// A transaction with its comparisons evaluated: the operations to run.
struct TxnBranch<'a> {
    succeeded: bool,
    operations: &'a [TxnOperation],
    /// Those of the operations that are transactions, in order.
    nested: Vec<Self>,
}

impl<'a> TxnBranch<'a> {
    /// The operations in order, transactions with their own branches.
    fn steps(&self) -> impl Iterator<Item = TxnStep<'_, 'a>> {
        let mut nested = self.nested.iter();
        self.operations.iter().filter_map(move |operation| match operation {
            TxnOperation::Txn(_) => nested.next().map(TxnStep::Nested),
            operation => Some(TxnStep::Operation(operation)),
        })
    }

    fn each(
        &self,
        check: &mut dyn FnMut(&TxnOperation) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        for step in self.steps() {
            match step {
                TxnStep::Operation(operation) => check(operation)?,
                TxnStep::Nested(branch) => branch.each(check)?,
            }
        }
        Ok(())
    }
}

enum TxnStep<'b, 'a> {
    Operation(&'a TxnOperation),
    Nested(&'b TxnBranch<'a>),
}

impl<T: Table> Kv<T> {
    pub(crate) fn put(
        &mut self,
        put: &Put,
        writes: &mut CommandWrites,
    ) -> Result<PutOutcome, CommandError> {
        self.check_put(put, &mut writes.finder)?;
        Ok(self.write_put(put, writes)?)
    }

    pub(crate) fn txn(
        &mut self,
        txn: &Txn,
        writes: &mut CommandWrites,
    ) -> Result<TxnOutcome, CommandError> {
        let branch = self.evaluate(txn, &mut writes.finder)?;
        self.check_branch(&branch, &mut writes.finder)?;
        self.run_branch(&branch, writes)
    }

    /// The newest readable revision: the revision of this command once it has written.
    fn now(&self, writes: &CommandWrites) -> i64 {
        self.state.revision + i64::from(!writes.is_empty())
    }

    /// Evaluates the comparisons and chooses the branch to run.
    fn evaluate<'a>(
        &self,
        txn: &'a Txn,
        finder: &mut KeyFinder,
    ) -> Result<TxnBranch<'a>, TableError> {
        let mut succeeded = true;
        for compare in &txn.compare {
            (self.progress)();
            if !self.holds(compare, finder)? {
                succeeded = false;
                break;
            }
        }
        let operations = if succeeded { &txn.success } else { &txn.failure };
        let mut nested = Vec::new();
        for operation in operations {
            if let TxnOperation::Txn(txn) = operation {
                nested.push(self.evaluate(txn, finder)?);
            }
        }
        Ok(TxnBranch { succeeded, operations, nested })
    }

    /// Whether a comparison holds for every key of its range. A missing key compares as if
    /// all its numbers were 0, and a comparison of its value fails.
    fn holds(&self, compare: &Compare, finder: &mut KeyFinder) -> Result<bool, TableError> {
        let (from, revision) = (&compare.keys.key, self.state.revision);
        if compare.keys.is_single() {
            let history = self.state.index.find(from, finder);
            return match history.and_then(|history| history.at(revision)) {
                Some(seen) => self.holds_of_seen(compare, seen),
                None => Ok(compare.holds_of_missing()),
            };
        }
        let (mut next, mut found) = (from.clone(), false);
        loop {
            let mut left = ReadLimits::default();
            match self.compare_some(compare, &next, found, revision, &mut left)? {
                Compared::Holds => return Ok(true),
                Compared::Fails => return Ok(false),
                Compared::More { next: key, found: any } => (next, found) = (key, any),
            }
            (self.progress)();
        }
    }

    /// Whether a comparison holds for this version of a key. Most need only what the index has.
    pub(crate) fn holds_of_seen(
        &self,
        compare: &Compare,
        seen: SeenVersion,
    ) -> Result<bool, TableError> {
        let order = match compare.order_in_index(seen) {
            Some(order) => order,
            None => compare.order_of(&self.read_version(seen.row)?),
        };
        Ok(compare.operator.admits(order))
    }

    /// Checks everything that could fail before the branch writes, in the order of etcd 3.7: that
    /// of the operations.
    fn check_branch(&self, branch: &TxnBranch<'_>, finder: &mut KeyFinder) -> Result<(), KvError> {
        branch.each(&mut |operation| match operation {
            TxnOperation::Put(put) => self.check_put(put, finder),
            TxnOperation::Range(range) => self.check_revision(range.revision, self.state.revision),
            _ => Ok(()),
        })
    }

    /// Inside a transaction only 0 means the current revision; a negative one is refused
    /// once the store was compacted.
    pub(crate) fn check_revision(&self, revision: i64, current: i64) -> Result<(), KvError> {
        if revision != 0 && revision < self.state.compact_revision {
            return Err(KvError::Compacted);
        }
        self.readable_revision(revision, current).map(|_| ())
    }

    /// Its lease must exist, and so must the key of a put that keeps the value or the lease.
    fn check_put(&self, put: &Put, finder: &mut KeyFinder) -> Result<(), KvError> {
        if put.lease != 0 && self.state.leases.get(put.lease).is_none() {
            return Err(KvError::LeaseNotFound);
        }
        let needs_key = put.ignore_value || put.ignore_lease;
        if needs_key && self.current(&put.key, finder).is_none() {
            return Err(KvError::KeyNotFound);
        }
        Ok(())
    }

    fn current(&self, key: &[u8], finder: &mut KeyFinder) -> Option<CurrentVersion> {
        self.state.index.find(key, finder)?.current()
    }

    fn run_branch(
        &mut self,
        branch: &TxnBranch<'_>,
        writes: &mut CommandWrites,
    ) -> Result<TxnOutcome, CommandError> {
        let mut responses = Vec::with_capacity(branch.operations.len());
        for step in branch.steps() {
            (self.progress)();
            let outcome = match step {
                // Its revision was checked with the branch.
                TxnStep::Operation(TxnOperation::Range(_)) if !self.replies_with_reads => {
                    KvOutcome::Range(RangeOutcome::default())
                }
                TxnStep::Operation(TxnOperation::Range(range)) => {
                    let now = self.now(writes);
                    KvOutcome::Range(self.read_range(range, now, &mut writes.finder)?)
                }
                TxnStep::Operation(TxnOperation::Put(put)) => {
                    KvOutcome::Put(self.write_put(put, writes)?)
                }
                TxnStep::Operation(TxnOperation::DeleteRange(deletion)) => {
                    KvOutcome::DeleteRange(self.delete_range(deletion, writes)?)
                }
                TxnStep::Operation(TxnOperation::Txn(_)) => continue,
                TxnStep::Nested(branch) => KvOutcome::Txn(self.run_branch(branch, writes)?),
            };
            responses.push(operation_reply(outcome, self.now(writes)));
        }
        Ok(TxnOutcome { succeeded: branch.succeeded, responses })
    }

    fn write_put(
        &mut self,
        put: &Put,
        writes: &mut CommandWrites,
    ) -> Result<PutOutcome, TableError> {
        let mut previous = None;
        let returns_previous = put.prev_kv && self.replies_with_reads;
        if (returns_previous || put.ignore_value || put.ignore_lease)
            && let Some(current) = self.current(&put.key, &mut writes.finder)
        {
            previous = Some(self.read_version(current.version.row)?);
        }
        let kept = previous.as_ref();
        let kept_value = kept.filter(|_| put.ignore_value).map(|kv| &kv.value);
        let kept_lease = kept.filter(|_| put.ignore_lease).map(|kv| kv.lease);
        let value = kept_value.unwrap_or(&put.value);
        self.put_key(&put.key, value, kept_lease.unwrap_or(put.lease), writes)?;
        Ok(PutOutcome { previous: previous.filter(|_| returns_previous) })
    }

    fn put_key(
        &mut self,
        key: &[u8],
        value: &[u8],
        lease: i64,
        writes: &mut CommandWrites,
    ) -> Result<(), TableError> {
        let at = writes.next();
        let mut head = PutHead::default();
        let row_bytes = row_bytes_of(RowParts::of_put(&head, key, value).bytes());
        let old = self.state.index.put(key, &mut writes.finder, lease, |current| {
            let before = current.map(|current| current.version.numbers());
            let created = before.map_or(at.main, |before| before.created);
            let version = before.map_or(1, |before| before.version + 1);
            head = PutHead::new(key, lease, created, version);
            KeyVersion::put(at, row_bytes, VersionNumbers { created, version })
        });
        let (row, put_bytes) = (RowParts::of_put(&head, key, value), key.len() + value.len());
        if writes.collects_events() {
            let row = row.to_bytes();
            writes.add(Some(&row), put_bytes);
            self.add_row(RowKey::revision(at), row)?;
        } else {
            writes.add(None, put_bytes);
            self.add_row_parts(RowKey::revision(at), row)?;
        }
        self.state.leases.attach(key, old.map_or(0, |old| old.lease), lease);
        Ok(())
    }

    pub(crate) fn delete_range(
        &mut self,
        deletion: &DeleteRange,
        writes: &mut CommandWrites,
    ) -> Result<DeleteRangeOutcome, TableError> {
        let mut outcome = DeleteRangeOutcome::default();
        if deletion.prev_kv && self.replies_with_reads {
            let range = Range { keys: deletion.keys.clone(), ..Range::default() };
            outcome.previous = self.read_range_at(range, self.now(writes))?.kvs;
        }
        // One pass over the index, however many keys there are.
        let Revision { main, mut sub } = writes.next();
        let mut deleted = Vec::new();
        let progress = &self.progress;
        self.state.index.delete_range(&deletion.keys, |key, current| {
            progress();
            let at = Revision { main, sub };
            sub += 1;
            let row = tombstone_row(key);
            let row_bytes = row_bytes(&row);
            deleted.push(DeletedKey { lease: current.lease, row });
            KeyVersion::tombstone(at, row_bytes)
        });
        outcome.deleted = deleted.len() as i64;
        for key in deleted {
            self.write_deleted(key, writes)?;
        }
        Ok(outcome)
    }

    /// Deletes an existing key.
    pub(crate) fn delete_key(
        &mut self,
        key: &Bytes,
        writes: &mut CommandWrites,
    ) -> Result<(), TableError> {
        let at = writes.next();
        let row = tombstone_row(KeyRef::from(&key[..]));
        let tombstone = KeyVersion::tombstone(at, row_bytes(&row));
        let old = self.state.index.put(key, &mut writes.finder, 0, |_| tombstone);
        let lease = old.map_or(0, |old| old.lease);
        self.write_deleted(DeletedKey { lease, row }, writes)
    }

    /// Writes the tombstone of a key that was deleted in the index.
    fn write_deleted(
        &mut self,
        deleted: DeletedKey,
        writes: &mut CommandWrites,
    ) -> Result<(), TableError> {
        (self.progress)();
        let DeletedKey { lease, row } = deleted;
        let at = writes.next();
        writes.add(Some(&row), 0);
        let key = key_of_tombstone(&row);
        self.add_row(RowKey::revision(at), row)?;
        self.state.leases.attach(&key, lease, 0);
        Ok(())
    }
}

/// A key that was deleted in the index.
struct DeletedKey {
    /// The lease that it was attached to.
    lease: i64,
    /// Its tombstone.
    row: Bytes,
}

fn operation_reply(outcome: KvOutcome, now: i64) -> TxnOperationReply {
    let revision = if matches!(outcome, KvOutcome::Txn(_)) { 0 } else { now };
    TxnOperationReply { revision, outcome }
}

impl Compare {
    /// Whether it holds for a key that does not exist: all its numbers count as 0, and it has
    /// no value.
    pub(crate) fn holds_of_missing(&self) -> bool {
        let order = match &self.target {
            CompareTarget::Value(_) => return false,
            CompareTarget::Version(number)
            | CompareTarget::Create(number)
            | CompareTarget::Mod(number)
            | CompareTarget::Lease(number) => 0.cmp(number),
        };
        self.operator.admits(order)
    }

    /// The order of the field of this version and the given value, if the index has that field.
    pub(crate) fn order_in_index(&self, seen: SeenVersion) -> Option<Ordering> {
        match (&self.target, seen.numbers) {
            (CompareTarget::Mod(revision), _) => Some(seen.row.at().main.cmp(revision)),
            (CompareTarget::Version(version), Some(numbers)) => Some(numbers.version.cmp(version)),
            (CompareTarget::Create(revision), Some(numbers)) => Some(numbers.created.cmp(revision)),
            _ => None,
        }
    }

    /// The order of the field of this key and the given value.
    fn order_of(&self, kv: &KeyValue) -> Ordering {
        match &self.target {
            CompareTarget::Version(version) => kv.version.cmp(version),
            CompareTarget::Create(revision) => kv.create_revision.cmp(revision),
            CompareTarget::Mod(revision) => kv.mod_revision.cmp(revision),
            CompareTarget::Value(value) => kv.value.cmp(value),
            CompareTarget::Lease(lease) => kv.lease.cmp(lease),
        }
    }
}

impl CompareOperator {
    /// Whether it holds for a field and a value in this order.
    fn admits(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Greater => order.is_gt(),
            Self::Less => order.is_lt(),
        }
    }
}
