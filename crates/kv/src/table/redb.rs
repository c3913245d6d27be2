//! A table on redb, in one file of a [`Disk`].
//!
//! Changes are buffered in memory and written to redb in batches; reads look at both. A
//! commit that is not durable needs no sync: after a crash redb has the state of the last
//! durable commit, and the log replays the rest.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use quorate_storage::Disk;
use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageBackend,
    TableDefinition, WriteTransaction,
};

use super::redb_disk::{CommitProgress, RedbDisk};
use super::{RowReader, RowRef, Table, TableError};
use crate::machine::ProgressFn;
use crate::revision::RowKey;

const ROWS: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("rows");
/// Rows of a snapshot that is being installed.
const STAGED: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("staged");
/// The owner of the rows: one row.
const OWNER: TableDefinition<'_, (), &[u8]> = TableDefinition::new("owner");
/// Staged rows are written in transactions of about this size.
const STAGED_BYTES_MAX: usize = 1 << 20;

/// A [`Table`] on redb, in one file of a [`Disk`].
pub struct RedbTable {
    database: Database,
    file: Box<dyn StorageBackend>,
    progress: CommitProgress,
    /// Changes since the last commit; `None` removes the row.
    pending: Pending,
    /// The rows of the last commit.
    committed: Committed,
    staged: Vec<(RowKey, Bytes)>,
    staged_bytes: usize,
}

/// A view of a [`RedbTable`].
pub struct RedbView {
    pending: Pending,
    committed: Committed,
}

type Pending = BTreeMap<RowKey, Option<Bytes>>;
/// `None` only while redb compacts its file, which allows no readers.
type Committed = Option<ReadOnlyTable<u128, &'static [u8]>>;

impl RedbTable {
    /// Opens the table in the file `name`, or creates an empty one. redb caches up to
    /// `cache_bytes` of it in memory.
    pub fn open<D>(disk: D, name: &str, cache_bytes: usize) -> Result<Self, TableError>
    where
        D: Disk + Send + 'static,
        D::File: Send + Sync + 'static,
    {
        let (file, is_new) = RedbDisk::open(disk, name).map_err(TableError::Disk)?;
        // redb may panic on a file that it did not write.
        let opened = catch_unwind(AssertUnwindSafe(|| open_database(&file, is_new, cache_bytes)));
        let database = opened.map_err(|_| TableError::NotADatabase)??;
        let transaction = begin_durable(&database)?;
        transaction.open_table(ROWS)?;
        // Left over from an installation that was interrupted.
        transaction.delete_table(STAGED)?;
        transaction.commit()?;
        if is_new {
            file.publish(name).map_err(TableError::Disk)?;
        }
        let committed = Some(read(&database)?);
        let progress = file.progress();
        let (file, pending, staged) = (Box::new(file), Pending::new(), Vec::new());
        Ok(Self { database, file, progress, pending, committed, staged, staged_bytes: 0 })
    }

    fn write_staged(&mut self) -> Result<(), TableError> {
        let transaction = begin(&self.database)?;
        let mut table = transaction.open_table(STAGED)?;
        for (key, row) in self.staged.drain(..) {
            table.insert(key.0, &row[..])?;
        }
        drop(table);
        transaction.commit()?;
        self.staged_bytes = 0;
        Ok(())
    }
}

fn open_database<D>(
    file: &RedbDisk<D>,
    is_new: bool,
    cache_bytes: usize,
) -> Result<Database, TableError>
where
    D: Disk + Send + 'static,
    D::File: Send + Sync + 'static,
{
    let mut builder = Database::builder();
    let mut database = builder.set_cache_size(cache_bytes).create_with_backend(file.clone())?;
    if !is_new {
        // redb does not verify checksums on reads. All rows are read at startup in any case,
        // so verify every page here: no damaged row is ever served.
        database.check_integrity()?;
    }
    Ok(database)
}

/// A transaction that a crash may undo.
fn begin(database: &Database) -> Result<WriteTransaction, TableError> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::None)?;
    Ok(transaction)
}

fn begin_durable(database: &Database) -> Result<WriteTransaction, TableError> {
    let mut transaction = database.begin_write()?;
    // Cheap at this rate, and avoids a long repair after a crash.
    transaction.set_quick_repair(true);
    Ok(transaction)
}

fn read(database: &Database) -> Result<ReadOnlyTable<u128, &'static [u8]>, TableError> {
    Ok(database.begin_read()?.open_table(ROWS)?)
}

impl Table for RedbTable {
    type View = RedbView;

    fn claim(&mut self, owner: &[u8]) -> Result<bool, TableError> {
        let transaction = begin_durable(&self.database)?;
        let mut owners = transaction.open_table(OWNER)?;
        let is_owner = owners.get(())?.is_some_and(|current| current.value() == owner);
        if is_owner {
            return Ok(true);
        }
        owners.insert((), owner)?;
        drop(owners);
        // Owner and rows change in one transaction, so that rows never get a wrong owner.
        transaction.delete_table(ROWS)?;
        transaction.open_table(ROWS)?;
        transaction.commit()?;
        self.pending.clear();
        self.committed = Some(read(&self.database)?);
        Ok(false)
    }

    fn put(&mut self, key: RowKey, row: Bytes) -> Result<(), TableError> {
        self.pending.insert(key, Some(row));
        Ok(())
    }

    fn remove(&mut self, key: RowKey) -> Result<(), TableError> {
        self.pending.insert(key, None);
        Ok(())
    }

    fn report_progress_to(&mut self, progress: ProgressFn) {
        self.progress.report_to(progress);
    }

    fn commit(&mut self, durable: bool) -> Result<(), TableError> {
        let transaction =
            if durable { begin_durable(&self.database)? } else { begin(&self.database)? };
        let mut table = transaction.open_table(ROWS)?;
        for (key, row) in &self.pending {
            self.progress.advance();
            match row {
                Some(row) => drop(table.insert(key.0, &row[..])?),
                None => drop(table.remove(key.0)?),
            }
        }
        drop(table);
        transaction.commit()?;
        self.pending.clear();
        self.committed = Some(read(&self.database)?);
        Ok(())
    }

    fn view(&self) -> Result<RedbView, TableError> {
        Ok(RedbView { pending: self.pending.clone(), committed: Some(read(&self.database)?) })
    }

    fn stage(&mut self, key: RowKey, row: &[u8]) -> Result<(), TableError> {
        self.staged_bytes += row.len();
        self.staged.push((key, Bytes::copy_from_slice(row)));
        if self.staged_bytes >= STAGED_BYTES_MAX {
            self.write_staged()?;
        }
        Ok(())
    }

    fn replace_by_staged(&mut self) -> Result<(), TableError> {
        self.write_staged()?;
        let transaction = begin_durable(&self.database)?;
        transaction.delete_table(ROWS)?;
        transaction.rename_table(STAGED, ROWS)?;
        transaction.commit()?;
        self.pending.clear();
        self.committed = Some(read(&self.database)?);
        Ok(())
    }

    fn drop_staged(&mut self) -> Result<(), TableError> {
        self.staged.clear();
        self.staged_bytes = 0;
        let transaction = begin(&self.database)?;
        transaction.delete_table(STAGED)?;
        transaction.commit()?;
        Ok(())
    }

    fn defragment(&mut self) -> Result<(), TableError> {
        self.commit(true)?;
        self.committed = None;
        let compacted = self.database.compact();
        self.committed = Some(read(&self.database)?);
        match compacted {
            Ok(_) => Ok(()),
            Err(redb::CompactionError::TransactionInProgress) => Err(TableError::Busy),
            Err(error) => Err(error.into()),
        }
    }

    fn disk_bytes(&self) -> Result<Option<u64>, TableError> {
        self.file.len().map(Some).map_err(TableError::Disk)
    }
}

impl RowReader for RedbTable {
    fn get(&self, key: RowKey) -> Result<Option<Bytes>, TableError> {
        get(&self.pending, self.committed.as_ref(), key)
    }

    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        scan(&self.pending, self.committed.as_ref(), from, to, visit)
    }
}

impl RowReader for RedbView {
    fn get(&self, key: RowKey) -> Result<Option<Bytes>, TableError> {
        get(&self.pending, self.committed.as_ref(), key)
    }

    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        scan(&self.pending, self.committed.as_ref(), from, to, visit)
    }
}

type CommittedRef<'a> = Option<&'a ReadOnlyTable<u128, &'static [u8]>>;

fn get(
    pending: &Pending,
    committed: CommittedRef<'_>,
    key: RowKey,
) -> Result<Option<Bytes>, TableError> {
    if let Some(row) = pending.get(&key) {
        return Ok(row.clone());
    }
    let Some(table) = committed else { return Err(TableError::Busy) };
    let row = ReadableTable::get(table, key.0)?;
    Ok(row.map(|row| Bytes::copy_from_slice(row.value())))
}

/// Merges pending and committed rows in order; a pending row hides a committed one.
fn scan(
    pending: &Pending,
    committed: CommittedRef<'_>,
    from: RowKey,
    to: RowKey,
    visit: &mut dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()>,
) -> Result<(), TableError> {
    if from >= to {
        return Ok(());
    }
    let Some(table) = committed else { return Err(TableError::Busy) };
    let mut newer = pending.range(from..to).peekable();
    for found in ReadableTable::range(table, from.0..to.0)? {
        let (key, row) = found?;
        let key = RowKey(key.value());
        if visit_before(&mut newer, key, visit).is_break() {
            return Ok(());
        }
        let row = match newer.next_if(|(newer, _)| **newer == key) {
            Some((_, pending)) => pending.as_ref().map(RowRef::whole),
            None => Some(RowRef::from(row.value())),
        };
        if let Some(row) = row
            && visit(key, row).is_break()
        {
            return Ok(());
        }
    }
    // The remaining pending rows come after all committed ones.
    let _ = visit_before(&mut newer, to, visit);
    Ok(())
}

fn visit_before<'a>(
    rows: &mut Peekable<impl Iterator<Item = (&'a RowKey, &'a Option<Bytes>)>>,
    end: RowKey,
    visit: &mut dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    while let Some((key, row)) = rows.next_if(|(key, _)| **key < end) {
        if let Some(row) = row {
            visit(*key, RowRef::whole(row))?;
        }
    }
    ControlFlow::Continue(())
}
