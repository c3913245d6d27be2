//! Leases as every member knows them: who holds how long, and which keys go with it.
//! When one ends is decided by whoever leads; see [`deadlines`](crate::LeaseDeadlines).

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::command::{LeaseCheckpoint, LeaseGrant};
use crate::error::KvError;

/// etcd's longest lease, in seconds: some 285 years.
pub const LEASE_TTL_MAX: i64 = 9_000_000_000;

/// What was granted to a client.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Lease {
    /// In seconds.
    pub ttl: i64,
    /// What the last checkpoint left of it, in seconds; 0 for all.
    pub remaining: i64,
    keys: BTreeSet<Box<[u8]>>,
}

impl Lease {
    /// The keys that go when the lease goes, in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter().map(|key| &key[..])
    }

    /// The seconds that a new leader gives it: what is known to be left.
    pub fn seconds_left(&self) -> i64 {
        if self.remaining > 0 { self.remaining } else { self.ttl }
    }

    pub(crate) fn row(&self) -> Bytes {
        let mut row = BytesMut::with_capacity(16);
        row.put_i64_le(self.ttl);
        row.put_i64_le(self.remaining);
        row.freeze()
    }

    pub(crate) fn read(mut row: Bytes) -> Option<Self> {
        let ttl = row.try_get_i64_le().ok()?;
        let remaining = row.try_get_i64_le().ok()?;
        let sane = row.is_empty() && ttl > 0 && remaining >= 0;
        sane.then(|| Self { ttl, remaining, keys: BTreeSet::new() })
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Leases {
    leases: BTreeMap<i64, Lease>,
}

impl Leases {
    pub(crate) fn get(&self, id: i64) -> Option<&Lease> {
        self.leases.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.leases.iter().map(|(id, lease)| (*id, lease))
    }

    pub(crate) fn insert(&mut self, id: i64, lease: Lease) {
        self.leases.insert(id, lease);
    }

    pub(crate) fn grant(&mut self, grant: &LeaseGrant) -> Result<&Lease, KvError> {
        // A lease of this id could be held by no key.
        if grant.id == 0 {
            return Err(KvError::LeaseNotFound);
        }
        if self.leases.contains_key(&grant.id) {
            return Err(KvError::LeaseExists);
        }
        let lease = Lease { ttl: grant.ttl.max(1), ..Lease::default() };
        Ok(self.leases.entry(grant.id).or_insert(lease))
    }

    pub(crate) fn revoke(&mut self, id: i64) -> Result<Lease, KvError> {
        self.leases.remove(&id).ok_or(KvError::LeaseNotFound)
    }

    /// The lease as it is now, if there is one.
    pub(crate) fn checkpoint(&mut self, checkpoint: LeaseCheckpoint) -> Option<&Lease> {
        let lease = self.leases.get_mut(&checkpoint.id)?;
        lease.remaining = checkpoint.remaining.clamp(0, lease.ttl);
        Some(lease)
    }

    /// A key is put under another lease. 0 stands for none.
    pub(crate) fn attach(&mut self, key: &[u8], old: i64, new: i64) {
        if old == new {
            return;
        }
        if let Some(lease) = self.leases.get_mut(&old) {
            lease.keys.remove(key);
        }
        if let Some(lease) = self.leases.get_mut(&new) {
            lease.keys.insert(key.into());
        }
    }
}
