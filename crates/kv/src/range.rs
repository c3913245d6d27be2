//! Range queries: which keys, at which revision, in which order.

use bytes::Bytes;

use crate::check;
use crate::command::{KeyRange, Range, SortOrder, SortTarget};
use crate::error::KvError;
use crate::index::KeyVersion;
use crate::machine::{CommandError, Kv};
use crate::reply::{KeyValue, KvCommandReply, KvOutcome, RangeOutcome};
use crate::revision::{RowKey, RowWrite, read_row};
use crate::table::{Table, TableError};

/// A range of one revision that is read in steps. Commands may be applied between the steps.
#[derive(Debug)]
pub struct IncrementalRange {
    range: Range,
    /// The revision of the store when reading started.
    revision: i64,
    /// The revision that is read.
    at: i64,
    /// The first key of the next step; `None` after the last.
    next: Option<Bytes>,
    found: RangeOutcome,
}

impl IncrementalRange {
    /// The number of keys and values read so far.
    pub fn len(&self) -> usize {
        self.found.kvs.len()
    }

    /// Whether no keys were read so far.
    pub fn is_empty(&self) -> bool {
        self.found.kvs.is_empty()
    }

    /// The reply to the range query. Complete once [`Kv::continue_range`] returned `false`.
    #[must_use]
    pub fn finish(self) -> KvCommandReply {
        let Self { range, revision, mut found, .. } = self;
        range.finish(&mut found);
        KvCommandReply { revision, result: Ok(KvOutcome::Range(found)) }
    }
}

impl<T: Table> Kv<T> {
    /// Starts reading a range of the current state.
    pub fn start_range(&self, range: Range) -> Result<IncrementalRange, KvError> {
        check::range(&range)?;
        let revision = self.state.revision;
        let at = self.readable_revision(range.revision, revision)?;
        let next = Some(range.keys.key.clone());
        Ok(IncrementalRange { range, revision, at, next, found: RangeOutcome::default() })
    }

    /// Reads up to `keys_max` more keys and returns whether there are more. Refused with
    /// [`KvError::Compacted`] if the revision was compacted in between.
    pub fn continue_range(
        &self,
        reading: &mut IncrementalRange,
        keys_max: usize,
    ) -> Result<Result<bool, KvError>, TableError> {
        let Some(key) = reading.next.take() else { return Ok(Ok(false)) };
        if reading.at < self.state.compact_revision {
            return Ok(Err(KvError::Compacted));
        }
        let IncrementalRange { range, at, next, found, .. } = reading;
        let keys = KeyRange { key, range_end: range.keys.range_end.clone() };
        let mut in_range = self.state.index.range(&keys, *at);
        for (_, version) in in_range.by_ref().take(keys_max) {
            self.collect(range, version, found)?;
        }
        *next = in_range.next().map(|(key, _)| Bytes::copy_from_slice(key));
        Ok(Ok(next.is_some()))
    }

    /// Reads a range. `current` is the newest readable revision: inside a transaction that
    /// has written, the revision it writes.
    pub(crate) fn read_range(
        &self,
        range: &Range,
        current: i64,
    ) -> Result<RangeOutcome, CommandError> {
        let at = self.readable_revision(range.revision, current)?;
        let mut found = RangeOutcome::default();
        for (_, version) in self.state.index.range(&range.keys, at) {
            self.collect(range, version, &mut found)?;
        }
        range.finish(&mut found);
        Ok(found)
    }

    /// Counts one key, and reads it unless the limit is reached.
    fn collect(
        &self,
        range: &Range,
        version: KeyVersion,
        found: &mut RangeOutcome,
    ) -> Result<(), TableError> {
        found.count += 1;
        if found.kvs.len() < range.reads_max() {
            let kv = self.read_version(version)?;
            if range.admits(&kv) {
                found.kvs.push(kv);
            }
        }
        Ok(())
    }

    /// The revision to read at; 0 and less mean the current one.
    pub(crate) fn readable_revision(&self, requested: i64, current: i64) -> Result<i64, KvError> {
        if requested > current {
            return Err(KvError::FutureRevision);
        }
        let at = if requested <= 0 { current } else { requested };
        if at < self.state.compact_revision {
            return Err(KvError::Compacted);
        }
        Ok(at)
    }

    /// The key at a revision that is not compacted.
    pub(crate) fn key_at(&self, key: &[u8], main: i64) -> Result<Option<KeyValue>, TableError> {
        let version = self.state.index.at(key, main);
        version.map(|version| self.read_version(version)).transpose()
    }

    /// The row of a put.
    pub(crate) fn read_version(&self, version: KeyVersion) -> Result<KeyValue, TableError> {
        let row_key = RowKey::revision(version.at);
        let row = self.table.get(row_key)?.ok_or(TableError::MissingRow(row_key))?;
        match read_row(version.at, row) {
            Some(RowWrite::Put(kv)) => Ok(kv),
            _ => Err(TableError::BadRow(row_key)),
        }
    }
}

impl Range {
    fn limit(&self) -> usize {
        if self.limit > 0 { self.limit as usize } else { usize::MAX }
    }

    /// How many keys to read. Sorting and filtering need all keys before the limit applies.
    /// Otherwise one more than the limit is read, as in etcd: the extra key is visible when a
    /// sort target is given without an order.
    fn reads_max(&self) -> usize {
        if self.count_only {
            0
        } else if self.orders_or_filters() {
            usize::MAX
        } else {
            self.limit().saturating_add(1)
        }
    }

    /// Sorts and limits what was read.
    fn finish(&self, found: &mut RangeOutcome) {
        self.sort(&mut found.kvs);
        if found.kvs.len() > self.limit() {
            found.kvs.truncate(self.limit());
            found.more = true;
        }
        if self.keys_only {
            for kv in &mut found.kvs {
                kv.value = Bytes::new();
            }
        }
    }

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

    /// The input is in key order, and the sort is stable.
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
