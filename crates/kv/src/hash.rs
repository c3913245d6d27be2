//! Hashes that members compare to detect divergence.

use std::ops::ControlFlow;

use bytes::Bytes;

use crate::error::KvError;
use crate::machine::{CommandError, Kv};
use crate::reply::{HashOutcome, KvCommandReply, KvOutcome};
use crate::revision::{RowKey, RowKind, RowWrite, read_row};
use crate::table::{RowReader, Table, TableError};

/// A hash of one revision that is computed in steps. Commands may be applied between the
/// steps.
#[derive(Debug)]
pub struct IncrementalHash {
    /// The revision in the request; 0 for the current one.
    requested: i64,
    /// The revision of the store when the hash was started.
    revision: i64,
    next: RowKey,
    partial: HashOutcome,
}

impl IncrementalHash {
    /// The reply to the hash query. Complete once [`Kv::continue_hash`] returned `false`.
    #[must_use]
    pub fn finish(self) -> KvCommandReply {
        KvCommandReply { revision: self.revision, result: Ok(KvOutcome::Hash(self.partial)) }
    }
}

impl<T: Table> Kv<T> {
    /// Starts the hash of all revisions up to `revision`; 0 means the current one. Rows that
    /// compaction will remove do not count, whether they are removed yet or not. So members
    /// agree whose compactions have progressed differently.
    pub fn start_hash(&self, revision: i64) -> Result<IncrementalHash, KvError> {
        let compact_revision = self.state.compact_revision;
        if revision > 0 && revision < compact_revision {
            return Err(KvError::Compacted);
        }
        if revision > self.state.revision {
            return Err(KvError::FutureRevision);
        }
        let hash_revision = if revision > 0 { revision } else { self.state.revision };
        Ok(IncrementalHash {
            requested: revision,
            revision: self.state.revision,
            next: RowKey::REVISIONS,
            partial: HashOutcome { hash: 0, compact_revision, hash_revision },
        })
    }

    /// Hashes up to `rows_max` more rows and returns whether there are more. Starts over if
    /// the store was compacted in between.
    pub fn continue_hash(
        &self,
        hashing: &mut IncrementalHash,
        rows_max: usize,
    ) -> Result<Result<bool, KvError>, TableError> {
        if hashing.partial.compact_revision != self.state.compact_revision {
            match self.start_hash(hashing.requested) {
                Ok(restarted) => *hashing = restarted,
                Err(why) => return Ok(Err(why)),
            }
        }
        let mut bad = None;
        let mut rows = 0;
        let from = hashing.next;
        let end = RowKey::after_revision(hashing.partial.hash_revision);
        hashing.next = end;
        self.table.scan(from, end, &mut |key, row| {
            if rows == rows_max {
                hashing.next = key;
                return ControlFlow::Break(());
            }
            rows += 1;
            match self.survives_compaction(key, &row) {
                Some(true) => hashing.partial.hash = add(hashing.partial.hash, key, &row),
                Some(false) => {}
                None => {
                    bad = Some(key);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        match bad {
            Some(key) => Err(TableError::BadRow(key)),
            None => Ok(Ok(hashing.next < end)),
        }
    }

    pub(crate) fn hash_kv(&self, revision: i64) -> Result<HashOutcome, CommandError> {
        let mut hashing = self.start_hash(revision)?;
        while self.continue_hash(&mut hashing, usize::MAX)?? {}
        Ok(hashing.partial)
    }

    /// Whether compaction keeps a row of a revision. `None` if the row is invalid.
    fn survives_compaction(&self, key: RowKey, row: &Bytes) -> Option<bool> {
        let RowKind::Revision(at) = key.kind() else { return None };
        if at.main > self.state.compact_revision {
            return Some(true);
        }
        let key = match read_row(at, row.clone())? {
            RowWrite::Put(kv) => kv.key,
            RowWrite::Tombstone { key } => key,
        };
        Some(self.state.index.outlives(&key, at, self.state.compact_revision))
    }

    /// The hash of the whole state: all rows and the meta row. Equal on members that applied
    /// the same commands.
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

fn hash_rows(meta: &Bytes, rows: &impl RowReader) -> Result<u32, TableError> {
    let mut hash = crc32c::crc32c(meta);
    rows.scan(RowKey::ALARMS, RowKey::END, &mut |key, row| {
        hash = add(hash, key, &row);
        ControlFlow::Continue(())
    })?;
    Ok(hash)
}

fn add(hash: u32, key: RowKey, row: &Bytes) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(hash, &key.0.to_le_bytes()), row)
}
