//! Hashes that members compare to find out whether they hold the same.

use std::ops::ControlFlow;

use bytes::Bytes;

use crate::error::KvError;
use crate::machine::{Kv, Stop};
use crate::reply::{HashOutcome, KvOutcome, KvReply};
use crate::revision::{Kind, RowKey, Write, read_row};
use crate::table::{RowReader, Table, TableError};

/// A hash that is made in pieces: commands may run between them, and it still is that of
/// one revision.
#[derive(Debug)]
pub struct IncrementalHash {
    asked: i64,
    /// Of the store when the hashing began.
    revision: i64,
    next: RowKey,
    so_far: HashOutcome,
}

impl IncrementalHash {
    /// What the question for the hash is answered with. Whole after the last piece.
    pub fn finish(self) -> KvReply {
        KvReply { revision: self.revision, result: Ok(KvOutcome::Hash(self.so_far)) }
    }
}

impl<T: Table> Kv<T> {
    /// Begins with the hash of all revisions up to one (0: the current). What compaction is
    /// to take away does not count, whether it is gone or not: so members whose compactions
    /// are not equally far agree.
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
            asked: revision,
            revision: self.state.revision,
            next: RowKey::REVISIONS,
            so_far: HashOutcome { hash: 0, compact_revision, hash_revision },
        })
    }

    /// Goes on with so many rows; whether there are more. After a compaction it begins
    /// anew.
    pub fn continue_hash(
        &self,
        hashing: &mut IncrementalHash,
        rows_max: usize,
    ) -> Result<Result<bool, KvError>, TableError> {
        if hashing.so_far.compact_revision != self.state.compact_revision {
            match self.start_hash(hashing.asked) {
                Ok(anew) => *hashing = anew,
                Err(why) => return Ok(Err(why)),
            }
        }
        let mut bad = None;
        let mut rows = 0;
        let from = hashing.next;
        let end = RowKey::after_revision(hashing.so_far.hash_revision);
        hashing.next = end;
        self.table.scan(from, end, &mut |key, row| {
            if rows == rows_max {
                hashing.next = key;
                return ControlFlow::Break(());
            }
            rows += 1;
            match self.counts(key, &row) {
                Some(true) => hashing.so_far.hash = add(hashing.so_far.hash, key, &row),
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

    pub(crate) fn hash_kv(&self, revision: i64) -> Result<HashOutcome, Stop> {
        let mut hashing = self.start_hash(revision)?;
        while self.continue_hash(&mut hashing, usize::MAX)?? {}
        Ok(hashing.so_far)
    }

    /// Whether a row of a revision is there to stay.
    fn counts(&self, key: RowKey, row: &Bytes) -> Option<bool> {
        let Kind::Revision(at) = key.kind() else { return None };
        if at.main > self.state.compact_revision {
            return Some(true);
        }
        let key = match read_row(at, row.clone())? {
            Write::Put(kv) => kv.key,
            Write::Tombstone { key } => key,
        };
        Some(self.state.index.outlives(&key, at, self.state.compact_revision))
    }

    /// The hash of everything there is: all rows, and the state beside them. Equal on
    /// members that have applied the same commands.
    pub fn hash(&self) -> Result<u32, TableError> {
        hash_rows(&self.state.meta_row(), &self.table)
    }

    /// The same, of the state as it is now, to be made while commands go on.
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
