//! A table of either kind, chosen when the process starts.

use std::ops::ControlFlow;

use bytes::Bytes;

use super::{
    MakeTable, MemoryTable, MemoryView, RedbTable, RedbView, RowReader, RowRef, Table, TableError,
};
use crate::machine::ProgressFn;
use crate::revision::{RowKey, RowParts};

/// A table in memory or on redb.
#[non_exhaustive]
pub enum AnyTable {
    /// In memory.
    Memory(MemoryTable),
    /// On redb, in a file.
    Redb(Box<RedbTable>),
}

/// A view of an [`AnyTable`].
#[non_exhaustive]
pub enum AnyView {
    /// Of a table in memory.
    Memory(MemoryView),
    /// Of a table on redb.
    Redb(Box<RedbView>),
}

impl Default for AnyTable {
    fn default() -> Self {
        Self::Memory(MemoryTable::default())
    }
}

impl From<MemoryTable> for AnyTable {
    fn from(table: MemoryTable) -> Self {
        Self::Memory(table)
    }
}

impl From<RedbTable> for AnyTable {
    fn from(table: RedbTable) -> Self {
        Self::Redb(Box::new(table))
    }
}

/// Forwards a call to either kind.
macro_rules! either {
    ($any:expr, $table:ident => $call:expr) => {
        match $any {
            Self::Memory($table) => $call,
            Self::Redb($table) => $call,
        }
    };
}

impl RowReader for AnyTable {
    fn get(&self, key: RowKey) -> Result<Option<Bytes>, TableError> {
        either!(self, table => table.get(key))
    }

    fn is_in_file(&self, key: RowKey) -> bool {
        either!(self, table => table.is_in_file(key))
    }

    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        either!(self, table => table.scan(from, to, visit))
    }
}

impl RowReader for AnyView {
    fn get(&self, key: RowKey) -> Result<Option<Bytes>, TableError> {
        either!(self, view => view.get(key))
    }

    fn is_in_file(&self, key: RowKey) -> bool {
        either!(self, view => view.is_in_file(key))
    }

    fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        visit: &mut dyn FnMut(RowKey, RowRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        either!(self, view => view.scan(from, to, visit))
    }
}

impl Table for AnyTable {
    type View = AnyView;

    fn claim(&mut self, owner: &[u8]) -> Result<bool, TableError> {
        either!(self, table => table.claim(owner))
    }

    fn put(&mut self, key: RowKey, row: Bytes) -> Result<(), TableError> {
        either!(self, table => table.put(key, row))
    }

    fn put_parts(&mut self, key: RowKey, row: RowParts<'_>) -> Result<(), TableError> {
        either!(self, table => table.put_parts(key, row))
    }

    fn remove(&mut self, key: RowKey) -> Result<(), TableError> {
        either!(self, table => table.remove(key))
    }

    fn report_progress_to(&mut self, progress: ProgressFn) {
        either!(self, table => table.report_progress_to(progress));
    }

    fn commit(&mut self, durable: bool) -> Result<(), TableError> {
        either!(self, table => table.commit(durable))
    }

    fn view(&self) -> Result<AnyView, TableError> {
        match self {
            Self::Memory(table) => table.view().map(AnyView::Memory),
            Self::Redb(table) => table.view().map(|view| AnyView::Redb(Box::new(view))),
        }
    }

    fn make_detached(&self) -> Option<MakeTable<Self>> {
        match self {
            Self::Memory(table) => {
                let make = table.make_detached()?;
                Some(Box::new(move || Self::Memory(make())))
            }
            Self::Redb(_) => None,
        }
    }

    fn stage(&mut self, key: RowKey, row: &[u8]) -> Result<(), TableError> {
        either!(self, table => table.stage(key, row))
    }

    fn replace_by_staged(&mut self) -> Result<(), TableError> {
        either!(self, table => table.replace_by_staged())
    }

    fn drop_staged(&mut self) -> Result<(), TableError> {
        either!(self, table => table.drop_staged())
    }

    fn defragment(&mut self) -> Result<(), TableError> {
        either!(self, table => table.defragment())
    }

    fn disk_bytes(&self) -> Result<Option<u64>, TableError> {
        either!(self, table => table.disk_bytes())
    }
}
