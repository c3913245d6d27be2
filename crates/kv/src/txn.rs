//! Writes: single puts and deletions, and transactions.
//!
//! A transaction first evaluates all its comparisons, nested ones too, against the state
//! before it, then runs. Its reads see its own earlier writes. All its writes share one
//! revision.

use bytes::Bytes;

use crate::command::{
    Compare, CompareOperator, CompareTarget, DeleteRange, Put, Range, Txn, TxnOperation,
};
use crate::error::KvError;
use crate::incremental::Compared;
use crate::index::KeyVersion;
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
    steps: Vec<TxnStep<'a>>,
}

enum TxnStep<'a> {
    Operation(&'a TxnOperation),
    Nested(TxnBranch<'a>),
}

impl TxnBranch<'_> {
    fn each(
        &self,
        check: &mut dyn FnMut(&TxnOperation) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        self.steps.iter().try_for_each(|step| match step {
            TxnStep::Operation(operation) => check(operation),
            TxnStep::Nested(branch) => branch.each(check),
        })
    }
}

impl<T: Table> Kv<T> {
    pub(crate) fn put(
        &mut self,
        put: &Put,
        writes: &mut CommandWrites,
    ) -> Result<PutOutcome, CommandError> {
        self.check_lease(put)?;
        self.check_ignored(put)?;
        Ok(self.write_put(put, writes)?)
    }

    pub(crate) fn txn(
        &mut self,
        txn: &Txn,
        writes: &mut CommandWrites,
    ) -> Result<TxnOutcome, CommandError> {
        let branch = self.evaluate(txn)?;
        self.check_branch(&branch)?;
        self.run_branch(&branch, writes)
    }

    /// The newest readable revision: the revision of this command once it has written.
    fn now(&self, writes: &CommandWrites) -> i64 {
        self.state.revision + i64::from(!writes.is_empty())
    }

    /// Evaluates the comparisons and chooses the branch to run.
    fn evaluate<'a>(&self, txn: &'a Txn) -> Result<TxnBranch<'a>, TableError> {
        let mut succeeded = true;
        for compare in &txn.compare {
            if !self.holds(compare)? {
                succeeded = false;
                break;
            }
        }
        let operations = if succeeded { &txn.success } else { &txn.failure };
        let steps = operations.iter().map(|operation| match operation {
            TxnOperation::Txn(txn) => self.evaluate(txn).map(TxnStep::Nested),
            operation => Ok(TxnStep::Operation(operation)),
        });
        Ok(TxnBranch { succeeded, steps: steps.collect::<Result<_, _>>()? })
    }

    /// Whether a comparison holds for every key of its range. A missing key compares as if
    /// all its numbers were 0, and a comparison of its value fails.
    fn holds(&self, compare: &Compare) -> Result<bool, TableError> {
        let (from, revision) = (&compare.keys.key, self.state.revision);
        let mut work = usize::MAX;
        let compared = self.compare_some(compare, from, false, revision, &mut work)?;
        Ok(matches!(compared, Compared::Holds))
    }

    /// What a comparison needs to know of a key. Most need only what the index holds.
    pub(crate) fn version_for(
        &self,
        compare: &Compare,
        found: KeyVersion,
    ) -> Result<KeyValue, TableError> {
        match compare.target {
            CompareTarget::Value(_) | CompareTarget::Lease(_) => self.read_version(found),
            CompareTarget::Version(_) | CompareTarget::Create(_) | CompareTarget::Mod(_) => {
                let KeyVersion { created, version, .. } = found;
                let (create_revision, mod_revision) = (created, found.at().main);
                Ok(KeyValue { create_revision, mod_revision, version, ..KeyValue::default() })
            }
        }
    }

    /// Checks everything that could fail before the branch writes, in the order of etcd 3.7: that
    /// of the operations.
    fn check_branch(&self, branch: &TxnBranch<'_>) -> Result<(), KvError> {
        branch.each(&mut |operation| match operation {
            TxnOperation::Put(put) => {
                self.check_lease(put)?;
                self.check_ignored(put)
            }
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

    fn check_lease(&self, put: &Put) -> Result<(), KvError> {
        let unknown = put.lease != 0 && self.state.leases.get(put.lease).is_none();
        if unknown { Err(KvError::LeaseNotFound) } else { Ok(()) }
    }

    /// A put that keeps the value or the lease needs an existing key.
    fn check_ignored(&self, put: &Put) -> Result<(), KvError> {
        let needs_key = put.ignore_value || put.ignore_lease;
        let missing = needs_key && self.state.index.current(&put.key).is_none();
        if missing { Err(KvError::KeyNotFound) } else { Ok(()) }
    }

    fn run_branch(
        &mut self,
        branch: &TxnBranch<'_>,
        writes: &mut CommandWrites,
    ) -> Result<TxnOutcome, CommandError> {
        let mut responses = Vec::with_capacity(branch.steps.len());
        for step in &branch.steps {
            (self.progress)();
            let outcome = match step {
                // Its revision was checked with the branch.
                TxnStep::Operation(TxnOperation::Range(_)) if !self.replies_with_reads => {
                    KvOutcome::Range(RangeOutcome::default())
                }
                TxnStep::Operation(TxnOperation::Range(range)) => {
                    KvOutcome::Range(self.read_range(range, self.now(writes))?)
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
            && let Some(current) = self.state.index.current(&put.key)
        {
            previous = Some(self.read_version(current.version)?);
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
        let old = self.state.index.put(key, lease, |current| {
            let created = current.map_or(at.main, |current| current.version.created);
            let version = current.map_or(1, |current| current.version.version + 1);
            head = PutHead::new(key, lease, created, version);
            KeyVersion::put(at, row_bytes, created, version)
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
        let old = self.state.index.put(key, 0, |_| tombstone);
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
        !matches!(self.target, CompareTarget::Value(_)) && self.holds_of(&KeyValue::default())
    }

    pub(crate) fn holds_of(&self, kv: &KeyValue) -> bool {
        let order = match &self.target {
            CompareTarget::Version(version) => kv.version.cmp(version),
            CompareTarget::Create(revision) => kv.create_revision.cmp(revision),
            CompareTarget::Mod(revision) => kv.mod_revision.cmp(revision),
            CompareTarget::Value(value) => kv.value.cmp(value),
            CompareTarget::Lease(lease) => kv.lease.cmp(lease),
        };
        match self.operator {
            CompareOperator::Equal => order.is_eq(),
            CompareOperator::NotEqual => order.is_ne(),
            CompareOperator::Greater => order.is_gt(),
            CompareOperator::Less => order.is_lt(),
        }
    }
}
