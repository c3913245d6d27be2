//! Dropping old revisions.
//!
//! From the moment of the command nobody reads below its revision. The rows go
//! afterwards, a bounded number with each command, at the same places of the log on
//! every member: a large compaction holds up nobody.

use crate::command::{Command, Compact};
use crate::error::KvError;
use crate::machine::{Kv, Stop};
use crate::reply::KvOutcome;
use crate::revision::RowKey;
use crate::table::{Table, TableError};

/// Keys and rows that the command itself looks at.
const WORK_AT_ONCE: usize = 1_000;
/// And every command after it, until it is done; those that do nothing else as many as the
/// first one.
const WORK_PER_COMMAND: usize = 100;

impl<T: Table> Kv<T> {
    pub(crate) fn compact(&mut self, compact: Compact) -> Result<KvOutcome, Stop> {
        if compact.revision <= self.state.compact_revision {
            return Err(KvError::Compacted.into());
        }
        if compact.revision > self.state.revision {
            return Err(KvError::FutureRevision.into());
        }
        self.state.compact_revision = compact.revision;
        self.begin_compacting();
        self.compact_some(WORK_AT_ONCE)?;
        Ok(KvOutcome::Done)
    }

    /// Makes the state the first of another cluster, as when a backup is restored: its
    /// log begins anew. Clients may have seen later revisions than the backup has; so
    /// the revision is raised by `bump`, and with `mark_compacted` nothing from before
    /// can be read or watched: who holds on to it is told, instead of misled.
    pub fn reset_for_new_cluster(
        &mut self,
        bump: u64,
        mark_compacted: bool,
    ) -> Result<(), TableError> {
        self.state.applied = 0;
        self.state.revision = self.state.revision.saturating_add_unsigned(bump);
        if mark_compacted {
            self.state.compact_revision = self.state.revision;
            self.begin_compacting();
        }
        self.save()
    }

    /// Whether rows below the compact revision are still there.
    pub fn is_compacting(&self) -> bool {
        self.state.compacting_from.is_some()
    }

    /// One that is not done goes on to the last key before it begins anew: if every
    /// compaction began with the first one, the last ones might never be reached.
    fn begin_compacting(&mut self) {
        match self.state.compacting_from {
            Some(_) => self.state.compacts_again = true,
            None => self.state.compacting_from = Some(Box::default()),
        }
    }

    /// A command that does nothing else does more of it.
    pub(crate) fn go_on_compacting(&mut self, command: &Command) -> Result<(), TableError> {
        let is_free = matches!(command, Command::Noop);
        self.compact_some(if is_free { WORK_AT_ONCE } else { WORK_PER_COMMAND })
    }

    fn compact_some(&mut self, work_max: usize) -> Result<(), TableError> {
        let Some(from) = self.state.compacting_from.take() else { return Ok(()) };
        let compact = self.state.compact_revision;
        let (removed, next) = self.state.index.compact(&from, compact, work_max);
        for version in removed {
            self.remove_row(RowKey::revision(version.at), version.row_bytes)?;
        }
        let again = next.is_none() && std::mem::take(&mut self.state.compacts_again);
        self.state.compacting_from = if again { Some(Box::default()) } else { next };
        Ok(())
    }
}
