//! Hashes that members compare to detect divergence.
//!
//! The hash of keys is the one that etcd computes from the same revisions: a CRC-32C of its rows
//! up to a revision, without those that a compaction removes. So it does not depend on how far
//! the rows of a compaction are removed, and can be compared with an etcd that has the same data.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::KeyRange;
use crate::error::KvError;
use crate::etcd_row::EtcdRowBytes;
use crate::index::ScanEnd;
use crate::machine::{CommandError, Kv};
use crate::range::SCAN_BYTES_MAX;
use crate::reply::{HashOutcome, KvCommandReply, KvOutcome};
use crate::revision::{Revision, RowKey};
use crate::table::{RowReader, Table, TableError};

/// A hash of one revision that is computed in steps. Commands may be applied between the
/// steps.
#[derive(Debug)]
pub struct IncrementalHash<V> {
    /// The revision in the request; 0 for the current one.
    requested: i64,
    /// The revision of the store when the hash was started.
    revision: i64,
    /// The compact revision of the store then.
    compacted: i64,
    progress: HashProgress<V>,
}

/// How much one step hashes: the same on all members, wherever their rows are. It may exceed the bytes by
/// one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashLimits {
    pub(crate) rows_max: usize,
    pub(crate) bytes_max: usize,
}

#[derive(Debug)]
struct HashProgress<V> {
    /// The rows at the moment of a compaction; `None` for the current ones.
    captured: Option<Arc<V>>,
    next: RowKey,
    /// Whether any key exists at the revision. If not, etcd hashes all rows that the last
    /// compaction has left.
    has_keys: bool,
    partial: HashOutcome,
}

// Not derived, since that would require clonable rows.
impl<V> Clone for HashProgress<V> {
    fn clone(&self) -> Self {
        let Self { captured, next, has_keys, partial } = self;
        Self { captured: captured.clone(), next: *next, has_keys: *has_keys, partial: *partial }
    }
}

impl<V> HashProgress<V> {
    fn end(&self) -> RowKey {
        RowKey::after_revision(self.partial.hash_revision)
    }

    fn is_complete(&self) -> bool {
        self.next >= self.end()
    }
}

/// The hashes of the last compactions, each as it was before its rows were removed. As in etcd,
/// they are not part of the state: a member that was restarted does not have them.
#[derive(Debug)]
pub(crate) struct CompactionHashes<V> {
    complete: VecDeque<HashOutcome>,
    /// The hash of the newest compaction, until it is complete.
    running: Option<HashProgress<V>>,
}

impl<V> Default for CompactionHashes<V> {
    fn default() -> Self {
        Self { complete: VecDeque::new(), running: None }
    }
}

impl<V> CompactionHashes<V> {
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

impl<V> IncrementalHash<V> {
    /// The reply to the hash query. Complete once [`Kv::continue_hash`] returned `false`.
    #[must_use]
    pub fn finish(self) -> KvCommandReply {
        let outcome = KvOutcome::Hash(self.progress.partial);
        KvCommandReply { revision: self.revision, result: Ok(outcome) }
    }
}

impl<T: Table> Kv<T> {
    /// Starts the hash of all revisions up to `revision`; 0 means the current one. The hash of
    /// a revision at which the store was compacted is the one from before, if this member was
    /// running then.
    pub fn start_hash(&self, revision: i64) -> Result<IncrementalHash<T::View>, KvError> {
        let compacted = self.state.compact_revision;
        let started = |progress| IncrementalHash {
            requested: revision,
            revision: self.state.revision,
            compacted,
            progress,
        };
        if revision > 0
            && let Some(progress) = self.hash_of_compaction(revision)
        {
            return Ok(started(progress));
        }
        if revision > 0 && revision < compacted {
            return Err(KvError::Compacted);
        }
        if revision > self.state.revision {
            return Err(KvError::FutureRevision);
        }
        let hash_revision = if revision > 0 { revision } else { self.state.revision };
        let has_keys = compacted < 0 || self.has_keys_at(hash_revision);
        let (captured, next) = (None, RowKey::REVISIONS);
        let partial = new_hash(compacted, hash_revision);
        Ok(started(HashProgress { captured, next, has_keys, partial }))
    }

    fn hash_of_compaction(&self, revision: i64) -> Option<HashProgress<T::View>> {
        let CompactionHashes { complete, running } = &self.compaction_hashes;
        if let Some(partial) = complete.iter().find(|hash| hash.hash_revision == revision) {
            let next = RowKey::after_revision(revision);
            let partial = *partial;
            return Some(HashProgress { captured: None, next, has_keys: true, partial });
        }
        running.as_ref().filter(|hash| hash.partial.hash_revision == revision).cloned()
    }

    fn has_keys_at(&self, revision: i64) -> bool {
        let mut work = usize::MAX;
        let all = KeyRange::all();
        let found = self
            .state
            .index
            .scan(&all, &all.key, revision, &mut work, |_, _| ControlFlow::Break(()));
        matches!(found, ScanEnd::Stopped(()))
    }

    /// Hashes up to `rows_max` more rows, or 512 KiB of them, and returns whether there are more. Starts
    /// over if the store was compacted in between.
    pub fn continue_hash(
        &self,
        hashing: &mut IncrementalHash<T::View>,
        rows_max: usize,
    ) -> Result<Result<bool, KvError>, TableError> {
        let is_outdated = hashing.compacted != self.state.compact_revision;
        if is_outdated && !hashing.progress.is_complete() {
            match self.start_hash(hashing.requested) {
                Ok(restarted) => *hashing = restarted,
                Err(why) => return Ok(Err(why)),
            }
        }
        let limits = HashLimits { rows_max, bytes_max: SCAN_BYTES_MAX };
        // Only commands report progress: this does not show that they go on.
        self.hash_some(&mut hashing.progress, limits, &|| {})?;
        Ok(Ok(!hashing.progress.is_complete()))
    }

    fn hash_some(
        &self,
        progress: &mut HashProgress<T::View>,
        limits: HashLimits,
        on_row: &dyn Fn(),
    ) -> Result<(), TableError> {
        match progress.captured.clone() {
            Some(rows) => self.hash_rows_of(&*rows, progress, limits, on_row),
            None => self.hash_rows_of(&self.table, progress, limits, on_row),
        }
    }

    fn hash_rows_of(
        &self,
        rows: &impl RowReader,
        progress: &mut HashProgress<T::View>,
        limits: HashLimits,
        on_row: &dyn Fn(),
    ) -> Result<(), TableError> {
        let mut bad = None;
        let (mut count, mut bytes) = (0, 0);
        let (from, end) = (progress.next, progress.end());
        if progress.is_complete() {
            return Ok(());
        }
        progress.next = end;
        rows.scan(from, end, &mut |key, row| {
            if count >= limits.rows_max || bytes >= limits.bytes_max {
                progress.next = key;
                return ControlFlow::Break(());
            }
            (count, bytes) = (count + 1, bytes + row.len());
            on_row();
            let Some(row) = EtcdRowBytes::new(key, row.to_bytes()) else {
                bad = Some(key);
                return ControlFlow::Break(());
            };
            if self.counts(progress, &row) {
                progress.partial.hash = row.add_to(progress.partial.hash);
            }
            ControlFlow::Continue(())
        })?;
        bad.map_or(Ok(()), |key| Err(TableError::BadRow(key)))
    }

    /// Whether a row is part of the hash, by etcd's rules.
    fn counts(&self, progress: &HashProgress<T::View>, row: &EtcdRowBytes) -> bool {
        let HashOutcome { compact_revision, hash_revision, .. } = progress.partial;
        if row.at.main > compact_revision {
            return true;
        }
        // etcd removes a tombstone at the compacted revision or not, depending on its version.
        if row.is_tombstone {
            return false;
        }
        let index = &self.state.index;
        match (progress.has_keys, &progress.captured) {
            (true, _) => index.outlives(&row.key, row.at, hash_revision),
            (false, None) => index.outlives(&row.key, row.at, compact_revision),
            // Only rows that the compaction before has left are captured.
            (false, Some(_)) => true,
        }
    }

    /// Starts the hash of a compaction, before any row is removed.
    pub(crate) fn start_compaction_hash(&mut self, revision: i64) -> Result<(), TableError> {
        let partial = new_hash(self.state.compact_revision, revision);
        // As in etcd, a tombstone at the compacted revision counts as a key here.
        let has_keys = self.has_keys_at(revision) || self.has_tombstone_at(revision)?;
        if !has_keys && self.state.compacting_from.is_some() {
            self.compaction_hashes.running = None;
            return Ok(());
        }
        let (captured, next) = (Some(Arc::new(self.table.view()?)), RowKey::REVISIONS);
        self.compaction_hashes.running = Some(HashProgress { captured, next, has_keys, partial });
        Ok(())
    }

    fn has_tombstone_at(&self, revision: i64) -> Result<bool, TableError> {
        let from = RowKey::revision(Revision { main: revision, sub: 0 });
        let mut found = false;
        self.table.scan(from, RowKey::after_revision(revision), &mut |key, row| {
            (self.progress)();
            found |= EtcdRowBytes::new(key, row.to_bytes()).is_some_and(|row| row.is_tombstone);
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(found)
    }

    /// Hashes more rows, as part of each command.
    pub(crate) fn continue_compaction_hash(
        &mut self,
        limits: HashLimits,
    ) -> Result<(), TableError> {
        let Some(mut running) = self.compaction_hashes.running.take() else { return Ok(()) };
        self.hash_some(&mut running, limits, &*self.progress)?;
        let hashes = &mut self.compaction_hashes;
        if running.is_complete() {
            hashes.complete.push_back(running.partial);
            if hashes.complete.len() > COMPACTION_HASHES_MAX {
                hashes.complete.pop_front();
            }
        } else {
            hashes.running = Some(running);
        }
        Ok(())
    }

    /// The hashes of the last compactions of this member, oldest first: what members compare
    /// that were compacted at the same revisions.
    pub fn compaction_hashes(&self) -> impl ExactSizeIterator<Item = HashOutcome> {
        self.compaction_hashes.complete.iter().copied()
    }

    pub(crate) fn hash_kv(&self, revision: i64) -> Result<HashOutcome, CommandError> {
        let mut hashing = self.start_hash(revision)?;
        while self.continue_hash(&mut hashing, usize::MAX)?? {}
        Ok(hashing.progress.partial)
    }

    /// The hash of the whole state: all rows and the meta row. Equal on members that applied
    /// the same commands. Unlike the hash of keys it is not etcd's.
    pub fn hash(&self) -> Result<u32, TableError> {
        hash_rows(&self.state.meta_row(), &self.table)
    }

    /// A closure that computes [`Kv::hash`] of the current state. It reads a view of the
    /// table, so commands can be applied while it runs.
    pub fn deferred_hash(
        &self,
    ) -> Result<impl FnOnce() -> Result<u32, TableError> + use<T>, TableError> {
        let (meta, view) = (self.state.meta_row(), self.table.view()?);
        Ok(move || hash_rows(&meta, &view))
    }
}

/// The hash of no rows: etcd starts with the name of their bucket.
fn new_hash(compact_revision: i64, hash_revision: i64) -> HashOutcome {
    HashOutcome { hash: crc32c::crc32c(b"key"), compact_revision, hash_revision }
}

fn hash_rows(meta: &Bytes, rows: &impl RowReader) -> Result<u32, TableError> {
    let mut hash = crc32c::crc32c(meta);
    rows.scan(RowKey::META.next(), RowKey::END, &mut |key, row| {
        hash = crc32c::crc32c_append(crc32c::crc32c_append(hash, &key.0.to_le_bytes()), &row);
        ControlFlow::Continue(())
    })?;
    Ok(hash)
}

/// As many as etcd keeps.
const COMPACTION_HASHES_MAX: usize = 10;
