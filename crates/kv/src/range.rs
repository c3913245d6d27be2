//! Reading keys: at which revision, which of them, in which order.

use bytes::Bytes;

use crate::command::{Range, SortOrder, SortTarget};
use crate::error::KvError;
use crate::index::Version;
use crate::machine::{Kv, Stop};
use crate::reply::{KeyValue, RangeOutcome};
use crate::revision::{RowKey, Write, read_row};
use crate::table::{Table, TableError};

impl<T: Table> Kv<T> {
    /// Reads a range. `current` is the revision that is now: inside a transaction that
    /// has written, the one it writes.
    pub(crate) fn read_range(&self, range: &Range, current: i64) -> Result<RangeOutcome, Stop> {
        let at = self.readable_revision(range.revision, current)?;
        if range.count_only {
            let count = self.state.index.range(&range.keys, at).count() as i64;
            return Ok(RangeOutcome { count, ..RangeOutcome::default() });
        }
        let limit = if range.limit > 0 { range.limit as usize } else { usize::MAX };
        // Whatever orders or leaves out must see all keys before the limit counts. One
        // more than the limit is read, as etcd does: it shows when a sort is asked for
        // without an order.
        let reads_max =
            if range.orders_or_filters() { usize::MAX } else { limit.saturating_add(1) };
        let mut outcome = RangeOutcome::default();
        for (_, version) in self.state.index.range(&range.keys, at) {
            outcome.count += 1;
            if outcome.kvs.len() < reads_max {
                let kv = self.read_version(version)?;
                if range.admits(&kv) {
                    outcome.kvs.push(kv);
                }
            }
        }
        range.sort(&mut outcome.kvs);
        if outcome.kvs.len() > limit {
            outcome.kvs.truncate(limit);
            outcome.more = true;
        }
        if range.keys_only {
            for kv in &mut outcome.kvs {
                kv.value = Bytes::new();
            }
        }
        Ok(outcome)
    }

    /// 0 and less ask for now.
    pub(crate) fn readable_revision(&self, asked: i64, current: i64) -> Result<i64, KvError> {
        if asked > current {
            return Err(KvError::FutureRevision);
        }
        let at = if asked <= 0 { current } else { asked };
        if at < self.state.compact_revision {
            return Err(KvError::Compacted);
        }
        Ok(at)
    }

    /// The key as it was at a revision that is not compacted.
    pub(crate) fn key_at(&self, key: &[u8], main: i64) -> Result<Option<KeyValue>, TableError> {
        let version = self.state.index.at(key, main);
        version.map(|version| self.read_version(version)).transpose()
    }

    /// The row of a put.
    pub(crate) fn read_version(&self, version: Version) -> Result<KeyValue, TableError> {
        let row_key = RowKey::revision(version.at);
        let row = self.table.get(row_key)?.ok_or(TableError::MissingRow(row_key))?;
        match read_row(version.at, row) {
            Some(Write::Put(kv)) => Ok(kv),
            _ => Err(TableError::BadRow(row_key)),
        }
    }
}

impl Range {
    fn orders_or_filters(&self) -> bool {
        let orders = match self.sort_order {
            SortOrder::None => false,
            SortOrder::Ascend => self.sort_target != SortTarget::Key,
            SortOrder::Descend => true,
        };
        orders
            || self.min_mod_revision != 0
            || self.max_mod_revision != 0
            || self.min_create_revision != 0
            || self.max_create_revision != 0
    }

    fn admits(&self, kv: &KeyValue) -> bool {
        let at_least = |min: i64, found: i64| min == 0 || found >= min;
        let at_most = |max: i64, found: i64| max == 0 || found <= max;
        at_least(self.min_mod_revision, kv.mod_revision)
            && at_most(self.max_mod_revision, kv.mod_revision)
            && at_least(self.min_create_revision, kv.create_revision)
            && at_most(self.max_create_revision, kv.create_revision)
    }

    /// They come in the order of keys; equal ones stay in it.
    fn sort(&self, kvs: &mut [KeyValue]) {
        let by_target = |a: &KeyValue, b: &KeyValue| match self.sort_target {
            SortTarget::Key => a.key.cmp(&b.key),
            SortTarget::Version => a.version.cmp(&b.version),
            SortTarget::Create => a.create_revision.cmp(&b.create_revision),
            SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
            SortTarget::Value => a.value.cmp(&b.value),
        };
        match (self.sort_order, self.sort_target) {
            (SortOrder::None | SortOrder::Ascend, SortTarget::Key) => {}
            (SortOrder::None | SortOrder::Ascend, _) => kvs.sort_by(by_target),
            (SortOrder::Descend, SortTarget::Key) => kvs.reverse(),
            (SortOrder::Descend, _) => kvs.sort_by(|a, b| by_target(b, a)),
        }
    }
}
