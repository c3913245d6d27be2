//! Reading keys: at which revision, which of them, in which order.

use bytes::Bytes;

use crate::check;
use crate::command::{KeyRange, Range, SortOrder, SortTarget};
use crate::error::KvError;
use crate::index::Version;
use crate::machine::{Kv, Stop};
use crate::reply::{KeyValue, KvOutcome, KvReply, RangeOutcome};
use crate::revision::{RowKey, Write, read_row};
use crate::table::{Table, TableError};

/// A range that is read in pieces: commands may run between them, and it still shows one
/// revision.
#[derive(Debug)]
pub struct IncrementalRange {
    range: Range,
    /// Of the store when the reading began.
    revision: i64,
    /// The revision that is read.
    at: i64,
    /// Where the next piece begins; `None` after the last.
    next: Option<Bytes>,
    found: RangeOutcome,
}

impl IncrementalRange {
    /// How many pairs were read so far.
    pub fn len(&self) -> usize {
        self.found.kvs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.found.kvs.is_empty()
    }

    /// What a question for the range is answered with. Whole once there is no next piece.
    pub fn finish(self) -> KvReply {
        let Self { range, revision, mut found, .. } = self;
        range.finish(&mut found);
        KvReply { revision, result: Ok(KvOutcome::Range(found)) }
    }
}

impl<T: Table> Kv<T> {
    /// Begins to read a range, of the state as it is.
    pub fn start_range(&self, range: Range) -> Result<IncrementalRange, KvError> {
        check::range(&range)?;
        let revision = self.state.revision;
        let at = self.readable_revision(range.revision, revision)?;
        let next = Some(range.keys.key.clone());
        Ok(IncrementalRange { range, revision, at, next, found: RangeOutcome::default() })
    }

    /// Reads on, so many keys; whether there are more. Refused if what is read was compacted
    /// meanwhile.
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
            self.find(range, version, found)?;
        }
        *next = in_range.next().map(|(key, _)| Bytes::copy_from_slice(key));
        Ok(Ok(next.is_some()))
    }

    /// Reads a range. `current` is the revision that is now: inside a transaction that
    /// has written, the one it writes.
    pub(crate) fn read_range(&self, range: &Range, current: i64) -> Result<RangeOutcome, Stop> {
        let at = self.readable_revision(range.revision, current)?;
        let mut found = RangeOutcome::default();
        for (_, version) in self.state.index.range(&range.keys, at) {
            self.find(range, version, &mut found)?;
        }
        range.finish(&mut found);
        Ok(found)
    }

    /// Counts one more, and reads it if it is wanted.
    fn find(
        &self,
        range: &Range,
        version: Version,
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
    fn limit(&self) -> usize {
        if self.limit > 0 { self.limit as usize } else { usize::MAX }
    }

    /// Whatever orders or leaves out must see all keys before the limit counts. One more
    /// than the limit is read, as etcd does: it shows when a sort is asked for without an
    /// order.
    fn reads_max(&self) -> usize {
        if self.count_only {
            0
        } else if self.orders_or_filters() {
            usize::MAX
        } else {
            self.limit().saturating_add(1)
        }
    }

    /// Makes an answer of what was read.
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
