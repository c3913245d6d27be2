//! The in-memory state of the machine, and how it is rebuilt from rows.

use std::ops::ControlFlow;

use bytes::{BufMut, Bytes, BytesMut};

use crate::alarm::{Alarm, AlarmKind, Alarms};
use crate::auth::AuthState;
use crate::codec::{
    put_bytes, put_flags, put_number, put_option, put_signed, take_byte, take_bytes, take_flags,
    take_number, take_option, take_signed,
};
use crate::command::Quota;
use crate::index::{KeyFinder, KeyIndex};
use crate::key_history::{KeyVersion, VersionNumbers};
use crate::lease::{Lease, Leases};
use crate::machine::Kv;
use crate::revision::{
    Revision, RowHead, RowKey, RowKind, RowParts, read_row_head, row_bytes, row_bytes_of,
};
use crate::table::{RowReader, Table, TableError};
use crate::version::{NewerVersion, VERSION_MAX, VERSION_MIN};

#[derive(Clone, Debug)]
pub(crate) struct KvState {
    /// The index of the newest log entry that is part of this state.
    pub(crate) applied: u64,
    /// Which commands may run, and how rows are written.
    pub(crate) cluster_version: u32,
    pub(crate) revision: i64,
    pub(crate) compact_revision: i64,
    /// Compaction in progress: rows of this key and of later keys may still be older than
    /// the compact revision.
    pub(crate) compacting_from: Option<Box<[u8]>>,
    /// Start over at the first key when the compaction in progress ends.
    pub(crate) compacts_again: bool,
    /// The bytes that rows of revisions and leases count towards the quota.
    pub(crate) row_bytes: u64,
    pub(crate) index: KeyIndex,
    pub(crate) leases: Leases,
    pub(crate) alarms: Alarms,
    pub(crate) auth: AuthState,
}

impl Default for KvState {
    /// A store starts at revision 1, as in etcd, so that 0 can mean "the current revision"
    /// in requests.
    fn default() -> Self {
        Self {
            applied: 0,
            cluster_version: VERSION_MIN,
            revision: 1,
            compact_revision: -1,
            compacting_from: None,
            compacts_again: false,
            row_bytes: 0,
            index: KeyIndex::default(),
            leases: Leases::default(),
            alarms: Alarms::default(),
            auth: AuthState::default(),
        }
    }
}

impl KvState {
    pub(crate) fn load(rows: &impl RowReader) -> Result<Self, TableError> {
        let mut state = Self::default();
        let mut bad = None;
        let mut newer = None;
        rows.scan(RowKey::META, RowKey::END, &mut |key, row| match state.load_row(key, &row) {
            Some(()) => match newer_version(state.cluster_version) {
                None => ControlFlow::Continue(()),
                found => {
                    newer = found;
                    ControlFlow::Break(())
                }
            },
            None => {
                bad = Some(key);
                ControlFlow::Break(())
            }
        })?;
        match (newer, bad) {
            (Some(newer), _) => Err(TableError::Newer(newer)),
            (None, Some(key)) => Err(TableError::BadRow(key)),
            (None, None) => Ok(state.loaded()),
        }
    }

    /// Loads one row. Rows must come in key order: the meta row first, leases before the
    /// keys attached to them. `None` if the row is invalid.
    pub(crate) fn load_row(&mut self, key: RowKey, row: &[u8]) -> Option<()> {
        // The state keeps parts of rows, and a row may be a part of something large.
        let copy = || Bytes::copy_from_slice(row);
        match key.kind() {
            RowKind::Meta => self.load_meta(copy()),
            RowKind::Auth => self.auth.load_meta(copy()),
            RowKind::AuthUser(slot) => self.auth.load_user(slot, copy()),
            RowKind::AuthRole(slot) => self.auth.load_role(slot, copy()),
            RowKind::Alarm { member, kind } => {
                self.alarms.activate(Alarm { kind: AlarmKind::from_number(kind)?, member });
                row.is_empty().then_some(())
            }
            RowKind::Lease(id) => {
                self.row_bytes += u64::from(row_bytes(row));
                self.leases.insert(id, Lease::read(copy())?);
                (id != 0).then_some(())
            }
            RowKind::Revision(revision) => self.load_revision(revision, row),
            RowKind::Unknown => None,
        }
    }

    /// Call it when all rows are loaded.
    pub(crate) fn loaded(mut self) -> Self {
        self.auth.update_all_ranges();
        self
    }

    fn load_revision(&mut self, at: Revision, row: &[u8]) -> Option<()> {
        let row_bytes = row_bytes(row);
        self.row_bytes += u64::from(row_bytes);
        if !(0..=self.revision).contains(&at.main) {
            return None;
        }
        let (key, lease, newest) = match read_row_head(at, row)? {
            RowHead::Put { key, lease, created, version } => {
                let numbers = VersionNumbers { created, version };
                (key, lease, KeyVersion::put(at, row_bytes, numbers))
            }
            RowHead::Tombstone { key } => (key, 0, KeyVersion::tombstone(at, row_bytes)),
        };
        let before = self.index.put(key, &mut KeyFinder::default(), lease, |_| newest);
        self.leases.attach(key, before.map_or(0, |before| before.lease), lease);
        Some(())
    }

    /// The meta row: the part of the state that no other row holds.
    pub(crate) fn meta_row(&self) -> Bytes {
        let mut row = BytesMut::with_capacity(64);
        row.put_u8(self.cluster_version as u8);
        put_number(&mut row, self.applied);
        put_signed(&mut row, self.revision);
        put_signed(&mut row, self.compact_revision);
        put_option(&mut row, self.compacting_from.as_ref(), |row, key| put_bytes(row, key));
        put_flags(&mut row, &[self.compacts_again]);
        put_number(&mut row, self.alarms.quota.bytes);
        put_number(&mut row, self.alarms.quota.member);
        row.freeze()
    }

    fn load_meta(&mut self, mut row: Bytes) -> Option<()> {
        self.cluster_version = u32::from(take_byte(&mut row)?);
        // The rest is that of a later version: the caller refuses it.
        if newer_version(self.cluster_version).is_some() {
            return Some(());
        }
        self.applied = take_number(&mut row)?;
        self.revision = take_signed(&mut row)?;
        self.compact_revision = take_signed(&mut row)?;
        self.compacting_from = take_option(&mut row, take_bytes)?.map(|key| key[..].into());
        [self.compacts_again] = take_flags(&mut row)?;
        let bytes = take_number(&mut row)?;
        let member = take_number(&mut row)?;
        self.alarms.quota = Quota { bytes, member };
        let sane = self.revision >= 1 && (-1..=self.revision).contains(&self.compact_revision);
        let known = self.cluster_version >= VERSION_MIN;
        (known && sane && row.is_empty()).then_some(())
    }
}

/// Some when this crate does not support the version.
pub(crate) fn newer_version(version: u32) -> Option<NewerVersion> {
    (version > VERSION_MAX).then_some(NewerVersion { needs: version })
}

impl<T: Table> Kv<T> {
    /// Puts a new row and counts its bytes.
    pub(crate) fn add_row(&mut self, key: RowKey, row: Bytes) -> Result<(), TableError> {
        self.state.row_bytes += u64::from(row_bytes(&row));
        self.table.put(key, row)
    }

    /// The same for a row that is needed in the table only.
    pub(crate) fn add_row_parts(
        &mut self,
        key: RowKey,
        row: RowParts<'_>,
    ) -> Result<(), TableError> {
        self.state.row_bytes += u64::from(row_bytes_of(row.bytes()));
        self.table.put_parts(key, row)
    }

    /// Removes a row that counted `row_bytes`.
    pub(crate) fn remove_row(&mut self, key: RowKey, row_bytes: u32) -> Result<(), TableError> {
        self.state.row_bytes -= u64::from(row_bytes);
        self.table.remove(key)
    }
}
