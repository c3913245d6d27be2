//! What can be said against a request without knowing the state. The server asks
//! before it proposes; the machine asks again, because a log outlives the server that
//! wrote it.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;

use crate::command::{Command, DeleteRange, KeyRange, LeaseGrant, Put, Range, Txn, TxnOperation};
use crate::covered::Covered;
use crate::error::KvError;
use crate::lease::LEASE_TTL_MAX;

/// etcd's default for requests in one branch of a transaction.
pub const TXN_REQUESTS_MAX: usize = 128;

/// Any command, with the server's limit on transactions.
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
        | Command::SetQuota(_) => Ok(()),
    }
}

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

pub fn range(range: &Range) -> Result<(), KvError> {
    keys(&range.keys)
}

pub fn delete_range(deletion: &DeleteRange) -> Result<(), KvError> {
    keys(&deletion.keys)
}

fn keys(keys: &KeyRange) -> Result<(), KvError> {
    if keys.key.is_empty() { Err(KvError::EmptyKey) } else { Ok(()) }
}

pub fn lease_grant(grant: &LeaseGrant) -> Result<(), KvError> {
    if grant.ttl > LEASE_TTL_MAX { Err(KvError::LeaseTtlTooLarge) } else { Ok(()) }
}

/// Keys, the number of requests, and that no key is written twice on any way through.
pub fn txn(txn: &Txn, requests_max: usize) -> Result<(), KvError> {
    count_requests(txn, requests_max)?;
    // Only now: what follows compares requests with each other.
    writes(&txn.success)?;
    writes(&txn.failure)?;
    Ok(())
}

/// A nested transaction has what its parent's longest list leaves.
fn count_requests(txn: &Txn, requests_max: usize) -> Result<(), KvError> {
    let longest = txn.compare.len().max(txn.success.len()).max(txn.failure.len());
    let Some(left) = requests_max.checked_sub(longest) else {
        return Err(KvError::TooManyOperations);
    };
    for compare in &txn.compare {
        keys(&compare.keys)?;
    }
    for request in txn.success.iter().chain(&txn.failure) {
        match request {
            TxnOperation::Range(request) => range(request)?,
            TxnOperation::Put(request) => put(request)?,
            TxnOperation::DeleteRange(request) => delete_range(request)?,
            TxnOperation::Txn(request) => count_requests(request, left)?,
        }
    }
    Ok(())
}

/// What a list of requests may write.
#[derive(Default)]
struct Writes<'a> {
    puts: BTreeSet<&'a Bytes>,
    deletions: Covered<'a>,
}

impl<'a> Writes<'a> {
    fn put(&mut self, key: &'a Bytes) -> Result<(), KvError> {
        if self.deletions.contains(key) || !self.puts.insert(key) {
            return Err(KvError::DuplicateKey);
        }
        Ok(())
    }
}

/// A key is put at most once, and not in the same list as a deletion that covers it.
/// The two branches of a nested transaction never run both, so they may put the same.
fn writes(requests: &[TxnOperation]) -> Result<Writes<'_>, KvError> {
    let mut all = Writes::default();
    for request in requests {
        if let TxnOperation::DeleteRange(deletion) = request {
            all.deletions.add(&deletion.keys);
        }
    }
    for request in requests {
        let TxnOperation::Txn(txn) = request else { continue };
        let success = writes(&txn.success)?;
        let failure = writes(&txn.failure)?;
        for key in success.puts.union(&failure.puts) {
            all.put(key)?;
        }
        all.deletions.add_all(success.deletions);
        all.deletions.add_all(failure.deletions);
    }
    for request in requests {
        if let TxnOperation::Put(put) = request {
            all.put(&put.key)?;
        }
    }
    Ok(all)
}

type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

impl KeyRange {
    pub fn single(key: impl Into<Bytes>) -> Self {
        Self { key: key.into(), range_end: Bytes::new() }
    }

    /// All keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let key = prefix.into();
        let mut end = key.to_vec();
        while end.pop_if(|last| *last == u8::MAX).is_some() {}
        match end.last_mut() {
            Some(last) => *last += 1,
            // Nothing comes after a prefix of nothing but the last byte.
            None => end.push(0),
        }
        let key = if key.is_empty() { Bytes::from_static(b"\0") } else { key };
        Self { key, range_end: end.into() }
    }

    pub fn all() -> Self {
        Self { key: Bytes::from_static(b"\0"), range_end: Bytes::from_static(b"\0") }
    }

    pub fn is_single(&self) -> bool {
        self.range_end.is_empty()
    }

    pub fn is_unbounded(&self) -> bool {
        self.range_end[..] == [0]
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        if self.is_single() {
            return self.key[..] == *key;
        }
        self.key[..] <= *key && (self.is_unbounded() || *key < self.range_end[..])
    }

    /// `None` if the range holds nothing, because it ends before it begins.
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

    fn judge(success: Vec<TxnOperation>) -> Result<(), KvError> {
        txn(&Txn { success, ..Txn::default() }, TXN_REQUESTS_MAX)
    }

    #[test]
    fn a_key_is_written_once_on_every_way() {
        let twice = Err(KvError::DuplicateKey);
        assert_eq!(judge(vec![put_of("a"), put_of("a")]), twice);
        assert_eq!(judge(vec![put_of("b"), deletion_of("a", "c")]), twice);
        assert_eq!(judge(vec![put_of("c"), deletion_of("a", "c")]), Ok(()));
        assert_eq!(judge(vec![put_of("z"), deletion_of("a", "\0")]), twice);
        assert_eq!(judge(vec![put_of("a"), nested(vec![put_of("a")], vec![])]), twice);
        assert_eq!(judge(vec![nested(vec![put_of("a")], vec![put_of("a")])]), Ok(()));
        let branches = || nested(vec![put_of("a")], vec![put_of("b")]);
        assert_eq!(judge(vec![branches(), branches()]), twice);
        assert_eq!(judge(vec![nested(vec![deletion_of("a", "")], vec![]), put_of("a")]), twice);
        assert_eq!(judge(vec![deletion_of("a", "c"), deletion_of("a", "c")]), Ok(()));
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
    fn prefixes_end_where_nothing_begins_with_them() {
        let end = |prefix: &'static [u8]| KeyRange::prefix(prefix).range_end;
        assert_eq!(end(b"ab"), "ac");
        assert_eq!(end(b"a\xff"), "b");
        assert_eq!(end(b"\xff\xff"), "\0");
        assert_eq!(KeyRange::prefix(&b""[..]), KeyRange::all());
    }
}
