//! The replicated part of leases: TTL, last checkpoint, attached keys. When a lease expires
//! is decided by the leader; see [`LeaseDeadlines`](crate::LeaseDeadlines).

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::command::{LeaseCheckpoint, LeaseGrant};
use crate::error::KvError;

/// etcd's longest lease, in seconds: about 285 years.
pub const LEASE_TTL_MAX: i64 = 9_000_000_000;

/// A lease granted to a client.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Lease {
    /// The time to live in seconds.
    pub ttl: i64,
    /// The remaining seconds of the last checkpoint; 0 means the full TTL.
    pub remaining: i64,
    keys: BTreeSet<Box<[u8]>>,
}

impl Lease {
    /// A lease of an imported state, with valid numbers.
    pub(crate) fn new(ttl: i64, remaining: i64) -> Self {
        let ttl = ttl.max(1);
        Self { ttl, remaining: remaining.clamp(0, ttl), keys: BTreeSet::new() }
    }

    pub(crate) fn without_keys(&self) -> Self {
        Self::new(self.ttl, self.remaining)
    }

    /// The keys attached to the lease, in order. They are deleted with it.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter().map(|key| &key[..])
    }

    pub(crate) fn key_set(&self) -> &BTreeSet<Box<[u8]>> {
        &self.keys
    }

    /// The seconds that a new leader gives the lease: what is known to remain.
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
        let valid = row.is_empty() && ttl > 0 && remaining >= 0;
        valid.then(|| Self { ttl, remaining, keys: BTreeSet::new() })
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
        // 0 means "no lease" in a put, so no key could be attached to it.
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

    /// Records a checkpoint. Returns the lease, if it exists.
    pub(crate) fn checkpoint(&mut self, checkpoint: LeaseCheckpoint) -> Option<&Lease> {
        let lease = self.leases.get_mut(&checkpoint.id)?;
        lease.remaining = checkpoint.remaining.clamp(0, lease.ttl);
        Some(lease)
    }

    /// Moves a key from one lease to another. 0 means none.
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
