//! Compaction: dropping old revisions.
//!
//! Once the command is applied, no read below its revision succeeds. The rows are removed
//! later, a bounded number with each following command, at the same log positions on every
//! member. So a large compaction never blocks other commands for long.

use crate::command::{Command, Compact};
use crate::error::KvError;
use crate::hash::HashLimits;
use crate::machine::{CommandError, Kv};
use crate::reply::KvOutcome;
use crate::table::{Table, TableError};

/// Keys and rows that the compaction command itself visits, and each later
/// [`Command::Noop`].
const WORK_AT_ONCE: usize = 1_000;
/// Keys and rows that every other command visits, until the compaction is complete.
const WORK_PER_COMMAND: usize = 100;
/// What the compaction command itself hashes, and each later [`Command::Noop`]. The rows are read from the table.
const HASHED_AT_ONCE: HashLimits = HashLimits { rows_max: 1_000, bytes_max: 1 << 20 };
/// What every other command hashes, until the hash of the compaction is complete.
const HASHED_PER_COMMAND: HashLimits = HashLimits { rows_max: 20, bytes_max: 256 << 10 };

impl<T: Table> Kv<T> {
    pub(crate) fn compact(&mut self, compact: Compact) -> Result<KvOutcome, CommandError> {
        if compact.revision <= self.state.compact_revision {
            return Err(KvError::Compacted.into());
        }
        if compact.revision > self.state.revision {
            return Err(KvError::FutureRevision.into());
        }
        self.start_compaction_hash(compact.revision)?;
        self.state.compact_revision = compact.revision;
        self.start_compaction();
        self.compact_some(WORK_AT_ONCE)?;
        self.continue_compaction_hash(HASHED_AT_ONCE)?;
        Ok(KvOutcome::Done)
    }

    /// Turns the state into the initial state of a new cluster, as when a backup is
    /// restored: the log starts over at index 0. Clients may have seen later revisions than
    /// the backup has. So the revision is raised by `bump`, and with `mark_compacted` all
    /// earlier revisions count as compacted: a client that still uses them gets an error
    /// instead of wrong data.
    pub fn reset_for_new_cluster(
        &mut self,
        bump: u64,
        mark_compacted: bool,
    ) -> Result<(), TableError> {
        self.state.applied = 0;
        self.state.revision = self.state.revision.saturating_add_unsigned(bump);
        if mark_compacted {
            self.state.compact_revision = self.state.revision;
            self.start_compaction();
        }
        self.save()
    }

    /// Whether compaction is in progress: rows below the compact revision may still exist, or
    /// are still hashed.
    pub fn is_compacting(&self) -> bool {
        self.has_compacted_rows() || self.compaction_hashes.is_running()
    }

    /// Whether rows below the compact revision may still exist.
    pub(crate) fn has_compacted_rows(&self) -> bool {
        self.state.compacting_from.is_some()
    }

    /// A compaction in progress continues to the last key before it starts over. Without
    /// this, frequent compactions would all restart at the first key and never reach the
    /// last ones.
    fn start_compaction(&mut self) {
        match self.state.compacting_from {
            Some(_) => self.state.compacts_again = true,
            None => self.state.compacting_from = Some(Box::default()),
        }
    }

    /// Removes more rows, as part of each command.
    pub(crate) fn continue_compaction(&mut self, command: &Command) -> Result<(), TableError> {
        let is_noop = matches!(command, Command::Noop);
        self.continue_compaction_hash(if is_noop { HASHED_AT_ONCE } else { HASHED_PER_COMMAND })?;
        self.compact_some(if is_noop { WORK_AT_ONCE } else { WORK_PER_COMMAND })
    }

    fn compact_some(&mut self, work_max: usize) -> Result<(), TableError> {
        let Some(from) = self.state.compacting_from.take() else { return Ok(()) };
        let compact = self.state.compact_revision;
        let (removed, next) = self.state.index.compact(&from, compact, work_max);
        for row in removed {
            self.remove_row(row.key(), row.bytes())?;
            // Rows of the same block may be read from a file, to be written again without this one.
            (self.progress)();
        }
        let again = next.is_none() && std::mem::take(&mut self.state.compacts_again);
        self.state.compacting_from = if again { Some(Box::default()) } else { next };
        Ok(())
    }
}
