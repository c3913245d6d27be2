//! The data of one moment in etcd's form, for its tools.

use std::ops::ControlFlow;

use bytes::Bytes;

use crate::alarm::Alarm;
use crate::auth::AuthState;
use crate::etcd_row::{EtcdRowBytes, row_after};
use crate::lease::Lease;
use crate::machine::Kv;
use crate::revision::RowKey;
use crate::table::{RowReader, Table, TableError};

/// Everything that etcd's database would have, at the time it was created. Later commands do not
/// affect it.
#[derive(Debug)]
pub struct EtcdExport<V> {
    /// The revision of the newest write.
    pub revision: i64,
    /// The oldest revision that can be read; -1 before the first compaction.
    pub compact_revision: i64,
    /// Whether rows may exist that the last compaction removes.
    pub is_compacting: bool,
    /// The index of the newest applied command.
    pub applied: u64,
    /// All leases by id, without their keys.
    pub leases: Vec<(i64, Lease)>,
    /// The active alarms.
    pub alarms: Vec<Alarm>,
    /// Users and roles.
    pub auth: AuthState,
    rows: V,
}

impl<T: Table> Kv<T> {
    /// The data of this moment in etcd's form.
    pub fn export(&self) -> Result<EtcdExport<T::View>, TableError> {
        let lease = |(id, lease): (i64, &Lease)| (id, lease.without_keys());
        Ok(EtcdExport {
            revision: self.state.revision,
            compact_revision: self.state.compact_revision,
            is_compacting: self.has_compacted_rows(),
            applied: self.state.applied,
            leases: self.leases().map(lease).collect(),
            alarms: self.alarms(),
            auth: self.auth().clone(),
            rows: self.table.view()?,
        })
    }
}

impl<V: RowReader> EtcdExport<V> {
    /// Keys and values of the next rows of etcd's bucket `key`, about `bytes_max` bytes. `after`
    /// is the key of the last row of the call before. No rows are left if none are returned.
    pub fn rows(
        &self,
        after: Option<&[u8]>,
        bytes_max: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, TableError> {
        let Some(from) = row_after(after) else { return Ok(Vec::new()) };
        let (mut rows, mut bytes, mut bad) = (Vec::new(), 0, None);
        self.rows.scan(from, RowKey::END, &mut |key, row| {
            if bytes >= bytes_max {
                return ControlFlow::Break(());
            }
            bytes += row.len() + 64;
            match EtcdRowBytes::new(key, row.to_bytes()) {
                Some(row) => rows.push(row.into_row()),
                None => bad = Some(key),
            }
            if bad.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        bad.map_or(Ok(rows), |key| Err(TableError::BadRow(key)))
    }
}
