//! Range queries: which keys, at which revision, in which order.

use std::ops::ControlFlow;

use bytes::Bytes;

use crate::check;
use crate::command::{Range, SortOrder, SortTarget, Txn, TxnOperation};
use crate::error::KvError;
use crate::incremental::ReadLimits;
use crate::index::{KeyFinder, ScanEnd};
use crate::key_history::{SeenVersion, VersionRow};
use crate::machine::{CommandError, Kv};
use crate::reply::{KeyValue, RangeOutcome};
use crate::revision::{RowWrite, read_row};
use crate::table::{Table, TableError};

/// A range that is being read.
#[derive(Debug)]
pub(crate) struct RangeRead {
    pub(crate) range: Range,
    /// The revision that is read.
    pub(crate) at: i64,
    /// The key to continue with; `None` after the last.
    next: Option<Bytes>,
    pub(crate) found: RangeOutcome,
    pub(crate) bytes_read: u64,
    size: RangeSize,
}

/// The size of a range, as far as it is known.
#[derive(Debug)]
struct RangeSize {
    next: Option<Bytes>,
    keys: usize,
    bytes: u64,
}

impl RangeRead {
    pub(crate) fn new(range: Range, at: i64) -> Self {
        let next = Some(range.keys.key.clone());
        let size = RangeSize { next: next.clone(), keys: 0, bytes: 0 };
        Self { range, at, next, found: RangeOutcome::default(), bytes_read: 0, size }
    }

    pub(crate) fn bytes_measured(&self) -> u64 {
        self.size.bytes
    }

    /// What was found, sorted and limited.
    pub(crate) fn take(&mut self) -> RangeOutcome {
        let mut found = std::mem::take(&mut self.found);
        self.range.finish(&mut found);
        found
    }

    /// Adds a key that is not filtered out. The value is kept only if it is needed.
    fn collect(&mut self, mut kv: KeyValue) {
        if !self.range.admits(&kv) {
            return;
        }
        if !self.range.needs_values() {
            kv.value = Bytes::new();
        }
        self.bytes_read += bytes_of(&kv);
        self.found.kvs.push(kv);
    }
}

/// This many keys are looked up at once.
const SINGLE_KEYS_MAX: usize = 128;

/// What a step may read is limited in bytes. A row in a file takes as much time as this many.
const FILE_READ_BYTES: usize = 16 << 10;

/// A scan reads up to this many bytes of rows in one step: about 64 reads of a file, which is read ahead.
pub(crate) const SCAN_BYTES_MAX: usize = 512 << 10;

/// The memory that a key of a response takes besides its key and value.
const KEY_OVERHEAD_BYTES: usize = size_of::<KeyValue>();

fn bytes_of(kv: &KeyValue) -> u64 {
    (kv.key.len() + kv.value.len() + KEY_OVERHEAD_BYTES) as u64
}

impl<T: Table> Kv<T> {
    /// Reads more of a range, up to the limits. Returns whether it is complete.
    pub(crate) fn continue_range(
        &self,
        read: &mut RangeRead,
        work: &mut usize,
        bytes: &mut usize,
    ) -> Result<bool, TableError> {
        let Some(from) = read.next.take() else { return Ok(true) };
        let keys = read.range.keys.clone();
        let reads_max = read.range.reads_max();
        let mut next = Some(from);
        if read.found.kvs.len() < reads_max
            && let Some(from) = next.take()
        {
            let at = read.at;
            let end = self.state.index.scan(&keys, &from, at, work, |key, seen| {
                if read.found.kvs.len() >= reads_max || *bytes == 0 {
                    return ControlFlow::Break(Ok(key.to_bytes()));
                }
                match self.read_version(seen.row) {
                    Ok(kv) => {
                        read.found.count += 1;
                        *bytes =
                            bytes.saturating_sub(kv.value.len() + self.file_read_bytes(seen.row));
                        read.collect(kv);
                        ControlFlow::Continue(())
                    }
                    Err(error) => ControlFlow::Break(Err(error)),
                }
            });
            next = match end {
                ScanEnd::Complete => return Ok(true),
                ScanEnd::Stopped(Err(error)) => return Err(error),
                ScanEnd::Stopped(Ok(next)) | ScanEnd::Next(next) => Some(next),
            };
        }
        // The keys beyond the limit are only counted.
        if read.found.kvs.len() >= reads_max
            && *work > 0
            && let Some(from) = next.take()
        {
            let (count, more) = self.state.index.count(&keys, &from, read.at, work);
            read.found.count += count as i64;
            next = more;
        }
        read.next = next;
        Ok(read.next.is_none())
    }

    /// The bytes that the reads of a transaction have, as [`IncrementalRead::bytes_measured`], if each of
    /// them reads one key at the current revision, and there are not very many. Most transactions do.
    ///
    /// [`IncrementalRead::bytes_measured`]: crate::IncrementalRead::bytes_measured
    pub fn size_of_single_keys(&self, reads: &Txn) -> Option<u64> {
        let size = |operation: &TxnOperation| match operation {
            TxnOperation::Range(range) if range.keys.is_single() && range.revision <= 0 => {
                let key = &range.keys.key;
                let current = self.state.index.current(key);
                let is_returned = range.reads_max() > 0;
                let current = current.filter(|_| is_returned);
                Some(current.map_or(0, |current| range.size_of(key.len(), current.version.row)))
            }
            _ => None,
        };
        let is_plain = reads.compare.is_empty()
            && reads.failure.is_empty()
            && reads.success.len() <= SINGLE_KEYS_MAX;
        is_plain.then(|| reads.success.iter().map(size).sum()).flatten()
    }

    /// Determines more of the size of a range. Returns whether it is complete.
    pub(crate) fn measure_range(&self, read: &mut RangeRead, work: &mut usize) -> bool {
        let reads_max = read.range.reads_max();
        let (range, size) = (&read.range, &mut read.size);
        let Some(from) = size.next.take() else { return true };
        if size.keys >= reads_max {
            return true;
        }
        let end = self.state.index.scan(&range.keys, &from, read.at, work, |key, seen| {
            size.bytes += range.size_of(key.len(), seen.row);
            size.keys += 1;
            if size.keys >= reads_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if let ScanEnd::Next(next) = end {
            size.next = Some(next);
        }
        size.next.is_none()
    }

    /// Reads a range at once. `current` is the newest readable revision: inside a transaction
    /// that has written, the revision it writes.
    pub(crate) fn read_range(
        &self,
        range: &Range,
        current: i64,
        finder: &mut KeyFinder,
    ) -> Result<RangeOutcome, CommandError> {
        let at = self.readable_revision(range.revision, current)?;
        if range.keys.is_single() {
            let history = self.state.index.find(&range.keys.key, finder);
            return Ok(self.read_single(range, history.and_then(|history| history.at(at)))?);
        }
        Ok(self.read_range_at(range.clone(), at)?)
    }

    /// What a range of one key finds, if the read sees this version of it.
    fn read_single(
        &self,
        range: &Range,
        seen: Option<SeenVersion>,
    ) -> Result<RangeOutcome, TableError> {
        let Some(seen) = seen else { return Ok(RangeOutcome::default()) };
        let mut found = RangeOutcome { count: 1, ..RangeOutcome::default() };
        if !range.count_only {
            let mut kv = self.read_version(seen.row)?;
            if range.keys_only {
                kv.value = Bytes::new();
            }
            if range.admits(&kv) {
                found.kvs = vec![kv];
            }
        }
        Ok(found)
    }

    /// Reads a range of one key of the current state, which takes one step. Also returns the bytes of what
    /// was found.
    pub fn read_single_key(
        &self,
        range: &Range,
    ) -> Result<Result<(RangeOutcome, u64), KvError>, TableError> {
        if let Err(refused) = check::range(range) {
            return Ok(Err(refused));
        }
        match self.read_range(range, self.state.revision, &mut KeyFinder::default()) {
            Ok(found) => {
                let bytes = found.kvs.iter().map(bytes_of).sum();
                Ok(Ok((found, bytes)))
            }
            Err(CommandError::Refused(refused)) => Ok(Err(refused)),
            Err(CommandError::Failed(error)) => Err(error),
        }
    }

    pub(crate) fn read_range_at(&self, range: Range, at: i64) -> Result<RangeOutcome, TableError> {
        let mut read = RangeRead::new(range, at);
        loop {
            let ReadLimits { keys_max: mut work, bytes_max: mut bytes } = ReadLimits::default();
            if self.continue_range(&mut read, &mut work, &mut bytes)? {
                return Ok(read.take());
            }
            (self.progress)();
        }
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

    /// What reading this row counts in the bytes of a step, besides its value.
    pub(crate) fn file_read_bytes(&self, row: VersionRow) -> usize {
        if self.table.is_in_file(row.key()) { FILE_READ_BYTES } else { 0 }
    }

    /// The row of a put.
    pub(crate) fn read_version(&self, row: VersionRow) -> Result<KeyValue, TableError> {
        let (at, row_key) = (row.at(), row.key());
        let row = self.table.get(row_key)?.ok_or(TableError::MissingRow(row_key))?;
        match read_row(at, row) {
            Some(RowWrite::Put(kv)) => Ok(kv),
            _ => Err(TableError::BadRow(row_key)),
        }
    }
}

impl Range {
    fn limit(&self) -> usize {
        if self.limit > 0 { self.limit as usize } else { usize::MAX }
    }

    /// The bytes that a key takes in the response.
    fn size_of(&self, key_bytes: usize, row: VersionRow) -> u64 {
        let bytes = if self.needs_values() { row.bytes() as usize } else { key_bytes };
        (bytes + KEY_OVERHEAD_BYTES) as u64
    }

    /// Whether values are returned, or sorted by.
    fn needs_values(&self) -> bool {
        !self.keys_only || self.sort_target == SortTarget::Value
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
