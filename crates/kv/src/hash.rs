//! Hashes that members compare to find out whether they hold the same.

use std::ops::ControlFlow;

use bytes::Bytes;

use crate::error::KvError;
use crate::machine::{Kv, Stop};
use crate::reply::HashOutcome;
use crate::revision::{Kind, RowKey, Write, read_row};
use crate::table::{Table, TableError};

impl<T: Table> Kv<T> {
    /// The hash of all revisions up to one (0: the current). What compaction is to take
    /// away does not count, whether it is gone or not: so members whose compactions
    /// are not equally far agree.
    pub(crate) fn hash_kv(&self, revision: i64) -> Result<HashOutcome, Stop> {
        let compact_revision = self.state.compact_revision;
        if revision > 0 && revision < compact_revision {
            return Err(KvError::Compacted.into());
        }
        if revision > self.state.revision {
            return Err(KvError::FutureRevision.into());
        }
        let hash_revision = if revision > 0 { revision } else { self.state.revision };
        let end = RowKey::after_revision(hash_revision);
        let mut hash = 0;
        let mut bad = None;
        self.table.scan(RowKey::REVISIONS, end, &mut |key, row| match self.counts(key, &row) {
            Some(counts) => {
                if counts {
                    hash = add(hash, key, &row);
                }
                ControlFlow::Continue(())
            }
            None => {
                bad = Some(key);
                ControlFlow::Break(())
            }
        })?;
        match bad {
            Some(key) => Err(TableError::BadRow(key).into()),
            None => Ok(HashOutcome { hash, compact_revision, hash_revision }),
        }
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
        let mut hash = crc32c::crc32c(&self.state.meta_row());
        self.table.scan(RowKey::ALARMS, RowKey::END, &mut |key, row| {
            hash = add(hash, key, &row);
            ControlFlow::Continue(())
        })?;
        Ok(hash)
    }
}

fn add(hash: u32, key: RowKey, row: &Bytes) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(hash, &key.0.to_le_bytes()), row)
}
