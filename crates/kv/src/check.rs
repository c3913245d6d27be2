//! Validation of requests that does not need the state. The server validates before it
//! proposes. The machine validates again, because a log entry may come from another server
//! version.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;

use crate::command::{Command, DeleteRange, KeyRange, LeaseGrant, Put, Range, Txn, TxnOperation};
use crate::error::KvError;
use crate::key_set::KeySet;
use crate::lease::LEASE_TTL_MAX;

/// etcd's default limit on the operations in one branch of a transaction.
pub const TXN_REQUESTS_MAX: usize = 128;

/// Validates any command. `requests_max` is the server's limit on transactions.
pub fn command(command: &Command, requests_max: usize) -> Result<(), KvError> {
    match command {
        Command::Put(request) => put(request),
        Command::DeleteRange(request) => delete_range(request),
        Command::Txn(request) => txn(request, requests_max),
        Command::LeaseGrant(request) => lease_grant(request),
        Command::Noop
        | Command::Compact(_)
        | Command::LeaseRevoke(_)
        | Command::LeaseCheckpoint(_)
        | Command::AlarmActivate(_)
        | Command::AlarmDisarm(_)
        | Command::SetQuota(_)
        | Command::Auth(_) => Ok(()),
        Command::Issued(issued) => self::command(&issued.command, requests_max),
        #[cfg(feature = "next-version-for-tests")]
        Command::PutReversed(request) => put(request),
    }
}

/// Validates a put.
pub fn put(put: &Put) -> Result<(), KvError> {
    if put.key.is_empty() {
        return Err(KvError::EmptyKey);
    }
    if put.ignore_value && !put.value.is_empty() {
        return Err(KvError::ValueProvided);
    }
    if put.ignore_lease && put.lease != 0 {
        return Err(KvError::LeaseProvided);
    }
    Ok(())
}

/// Validates a range query.
pub fn range(range: &Range) -> Result<(), KvError> {
    keys(&range.keys)
}

/// Validates a deletion.
pub fn delete_range(deletion: &DeleteRange) -> Result<(), KvError> {
    keys(&deletion.keys)
}

fn keys(keys: &KeyRange) -> Result<(), KvError> {
    if keys.key.is_empty() { Err(KvError::EmptyKey) } else { Ok(()) }
}

/// Validates a lease grant.
pub fn lease_grant(grant: &LeaseGrant) -> Result<(), KvError> {
    if grant.ttl > LEASE_TTL_MAX { Err(KvError::LeaseTtlTooLarge) } else { Ok(()) }
}

/// Validates a transaction: its keys, the number of operations, and that no path through it
/// writes a key twice.
pub fn txn(txn: &Txn, requests_max: usize) -> Result<(), KvError> {
    count_requests(txn, requests_max)?;
    // After the count, because this compares operations with each other.
    for operations in [&txn.success, &txn.failure] {
        if !writes_at_most_once(operations) {
            writes(operations)?;
        }
    }
    Ok(())
}

/// Whether it is obvious that a list of operations writes no key twice. Most have one write.
fn writes_at_most_once(operations: &[TxnOperation]) -> bool {
    let mut writes = operations.iter().filter(|op| !matches!(op, TxnOperation::Range(_)));
    let is_nested = |op: &TxnOperation| matches!(op, TxnOperation::Txn(_));
    writes.next().is_none_or(|first| !is_nested(first)) && writes.next().is_none()
}

/// A nested transaction may use what the longest list of its parent leaves of the limit.
fn count_requests(txn: &Txn, requests_max: usize) -> Result<(), KvError> {
    let longest = txn.compare.len().max(txn.success.len()).max(txn.failure.len());
    let Some(left) = requests_max.checked_sub(longest) else {
        return Err(KvError::TooManyOperations);
    };
    for compare in &txn.compare {
        keys(&compare.keys)?;
    }
    for operation in txn.success.iter().chain(&txn.failure) {
        match operation {
            TxnOperation::Range(request) => range(request)?,
            TxnOperation::Put(request) => put(request)?,
            TxnOperation::DeleteRange(request) => delete_range(request)?,
            TxnOperation::Txn(request) => count_requests(request, left)?,
        }
    }
    Ok(())
}

/// What a list of operations may write.
#[derive(Default)]
struct Writes<'a> {
    puts: BTreeSet<&'a Bytes>,
    deletions: KeySet<'a>,
}

impl<'a> Writes<'a> {
    fn put(&mut self, key: &'a Bytes) -> Result<(), KvError> {
        if self.deletions.contains(key) || !self.puts.insert(key) {
            return Err(KvError::DuplicateKey);
        }
        Ok(())
    }
}

/// A key is put at most once, and not in the same list as a deletion that covers it. Only
/// one branch of a nested transaction runs, so both branches may put the same key.
fn writes(operations: &[TxnOperation]) -> Result<Writes<'_>, KvError> {
    let mut all = Writes::default();
    for operation in operations {
        if let TxnOperation::DeleteRange(deletion) = operation {
            all.deletions.add(&deletion.keys);
        }
    }
    for operation in operations {
        let TxnOperation::Txn(txn) = operation else { continue };
        let success = writes(&txn.success)?;
        let failure = writes(&txn.failure)?;
        for key in success.puts.union(&failure.puts) {
            all.put(key)?;
        }
        all.deletions.add_all(success.deletions);
        all.deletions.add_all(failure.deletions);
    }
    for operation in operations {
        if let TxnOperation::Put(put) = operation {
            all.put(&put.key)?;
        }
    }
    Ok(all)
}

type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

impl KeyRange {
    /// Only this key.
    pub fn single(key: impl Into<Bytes>) -> Self {
        Self { key: key.into(), range_end: Bytes::new() }
    }

    /// All keys that start with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let key = prefix.into();
        let mut end = key.to_vec();
        while end.pop_if(|last| *last == u8::MAX).is_some() {}
        match end.last_mut() {
            Some(last) => *last += 1,
            // No key follows a prefix that consists of 0xff bytes only.
            None => end.push(0),
        }
        let key = if key.is_empty() { Bytes::from_static(b"\0") } else { key };
        Self { key, range_end: end.into() }
    }

    /// All keys.
    pub fn all() -> Self {
        Self { key: Bytes::from_static(b"\0"), range_end: Bytes::from_static(b"\0") }
    }

    /// Whether this is only one key.
    pub fn is_single(&self) -> bool {
        self.range_end.is_empty()
    }

    /// Whether this is all keys from `key` on.
    pub fn is_unbounded(&self) -> bool {
        self.range_end[..] == [0]
    }

    /// Whether a key is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        if self.is_single() {
            return self.key[..] == *key;
        }
        self.key[..] <= *key && (self.is_unbounded() || *key < self.range_end[..])
    }

    /// `None` if the range is empty because it ends before it starts.
    pub(crate) fn bounds(&self) -> Option<Bounds<'_>> {
        let start = Bound::Included(&self.key[..]);
        if self.is_single() {
            return Some((start, Bound::Included(&self.key[..])));
        }
        if self.is_unbounded() {
            return Some((start, Bound::Unbounded));
        }
        (self.key < self.range_end).then_some((start, Bound::Excluded(&self.range_end[..])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put_of(key: &'static str) -> TxnOperation {
        TxnOperation::Put(Put { key: key.into(), ..Put::default() })
    }

    fn deletion_of(key: &'static str, range_end: &'static str) -> TxnOperation {
        let keys = KeyRange { key: key.into(), range_end: range_end.into() };
        TxnOperation::DeleteRange(DeleteRange { keys, prev_kv: false })
    }

    fn nested(success: Vec<TxnOperation>, failure: Vec<TxnOperation>) -> TxnOperation {
        TxnOperation::Txn(Txn { compare: Vec::new(), success, failure })
    }

    fn check_success(success: Vec<TxnOperation>) -> Result<(), KvError> {
        txn(&Txn { success, ..Txn::default() }, TXN_REQUESTS_MAX)
    }

    #[test]
    fn no_path_writes_a_key_twice() {
        let duplicate = Err(KvError::DuplicateKey);
        assert_eq!(check_success(vec![put_of("a"), put_of("a")]), duplicate);
        assert_eq!(check_success(vec![put_of("b"), deletion_of("a", "c")]), duplicate);
        assert_eq!(check_success(vec![put_of("c"), deletion_of("a", "c")]), Ok(()));
        assert_eq!(check_success(vec![put_of("z"), deletion_of("a", "\0")]), duplicate);
        assert_eq!(check_success(vec![put_of("a"), nested(vec![put_of("a")], vec![])]), duplicate);
        assert_eq!(check_success(vec![nested(vec![put_of("a")], vec![put_of("a")])]), Ok(()));
        let branches = || nested(vec![put_of("a")], vec![put_of("b")]);
        assert_eq!(check_success(vec![branches(), branches()]), duplicate);
        assert_eq!(
            check_success(vec![nested(vec![deletion_of("a", "")], vec![]), put_of("a")]),
            duplicate
        );
        assert_eq!(check_success(vec![deletion_of("a", "c"), deletion_of("a", "c")]), Ok(()));
    }

    #[test]
    fn nested_transactions_share_the_limit() {
        let puts = |keys: &[&'static str]| keys.iter().map(|key| put_of(key)).collect::<Vec<_>>();
        let outer = Txn { success: vec![nested(puts(&["a", "b"]), vec![])], ..Txn::default() };
        assert_eq!(txn(&outer, 3), Ok(()));
        assert_eq!(txn(&outer, 2), Err(KvError::TooManyOperations));
        assert_eq!(txn(&outer, 0), Err(KvError::TooManyOperations));
    }

    #[test]
    fn prefix_range_ends_after_the_last_key_with_the_prefix() {
        let end = |prefix: &'static [u8]| KeyRange::prefix(prefix).range_end;
        assert_eq!(end(b"ab"), "ac");
        assert_eq!(end(b"a\xff"), "b");
        assert_eq!(end(b"\xff\xff"), "\0");
        assert_eq!(KeyRange::prefix(&b""[..]), KeyRange::all());
    }
}
