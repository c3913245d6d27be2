//! What the machine knows without asking its table, and how it is made from rows.

use std::ops::ControlFlow;

use bytes::{BufMut, Bytes, BytesMut};

use crate::alarm::{Alarm, AlarmKind, Alarms};
use crate::codec::{
    put_bytes, put_flags, put_number, put_option, put_signed, take_byte, take_bytes, take_flags,
    take_number, take_option, take_signed,
};
use crate::command::Quota;
use crate::index::{Index, Version};
use crate::lease::{Lease, Leases};
use crate::machine::Kv;
use crate::revision::{Kind, Revision, RowKey, Write, read_row, row_bytes};
use crate::table::{RowReader, Table, TableError};

#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The newest command that is part of this.
    pub(crate) applied: u64,
    pub(crate) revision: i64,
    pub(crate) compact_revision: i64,
    /// Rows of keys from here on may still lie below the compact revision.
    pub(crate) compacting_from: Option<Box<[u8]>>,
    /// And afterwards those of keys before.
    pub(crate) compacts_again: bool,
    /// What rows of revisions and leases count towards the quota.
    pub(crate) row_bytes: u64,
    pub(crate) index: Index,
    pub(crate) leases: Leases,
    pub(crate) alarms: Alarms,
}

impl Default for State {
    /// A store begins at revision 1, as if something had been written: so 0 can stand
    /// for "the current one" in requests.
    fn default() -> Self {
        Self {
            applied: 0,
            revision: 1,
            compact_revision: -1,
            compacting_from: None,
            compacts_again: false,
            row_bytes: 0,
            index: Index::default(),
            leases: Leases::default(),
            alarms: Alarms::default(),
        }
    }
}

const FORMAT: u8 = 1;

impl State {
    pub(crate) fn load(rows: &impl RowReader) -> Result<Self, TableError> {
        let mut state = Self::default();
        let mut bad = None;
        rows.scan(RowKey::META, RowKey::END, &mut |key, row| match state.take_in(key, row) {
            Some(()) => ControlFlow::Continue(()),
            None => {
                bad = Some(key);
                ControlFlow::Break(())
            }
        })?;
        match bad {
            Some(key) => Err(TableError::BadRow(key)),
            None => Ok(state),
        }
    }

    /// Takes in a row. They come in the order of their keys: the row about the machine
    /// first, leases before what holds on to them. `None` if it is no row of ours.
    pub(crate) fn take_in(&mut self, key: RowKey, row: Bytes) -> Option<()> {
        match key.kind() {
            Kind::Meta => self.take_meta(row),
            Kind::Alarm { member, kind } => {
                self.alarms.activate(Alarm { kind: AlarmKind::from_number(kind)?, member });
                row.is_empty().then_some(())
            }
            Kind::Lease(id) => {
                self.row_bytes += u64::from(row_bytes(&row));
                self.leases.insert(id, Lease::read(row)?);
                (id != 0).then_some(())
            }
            Kind::Revision(revision) => self.take_revision(revision, row),
            Kind::Unknown => None,
        }
    }

    fn take_revision(&mut self, at: Revision, row: Bytes) -> Option<()> {
        let row_bytes = row_bytes(&row);
        self.row_bytes += u64::from(row_bytes);
        if at.main > self.revision {
            return None;
        }
        match read_row(at, row)? {
            Write::Put(kv) => {
                let (created, version) = (kv.create_revision, kv.version);
                let newest = Version { at, row_bytes, created, version };
                let before = self.index.put(&kv.key, kv.lease, |_| newest);
                self.leases.attach(&kv.key, before.map_or(0, |before| before.lease), kv.lease);
            }
            Write::Tombstone { key } => {
                let newest = Version { at, row_bytes, created: 0, version: 0 };
                let before = self.index.put(&key, 0, |_| newest);
                self.leases.attach(&key, before.map_or(0, |before| before.lease), 0);
            }
        }
        Some(())
    }

    /// What no other row says.
    pub(crate) fn meta_row(&self) -> Bytes {
        let mut row = BytesMut::with_capacity(64);
        row.put_u8(FORMAT);
        put_number(&mut row, self.applied);
        put_signed(&mut row, self.revision);
        put_signed(&mut row, self.compact_revision);
        put_option(&mut row, self.compacting_from.as_ref(), |row, key| put_bytes(row, key));
        put_flags(&mut row, &[self.compacts_again]);
        put_number(&mut row, self.alarms.quota.bytes);
        put_number(&mut row, self.alarms.quota.member);
        row.freeze()
    }

    fn take_meta(&mut self, mut row: Bytes) -> Option<()> {
        let known = take_byte(&mut row)? == FORMAT;
        self.applied = take_number(&mut row)?;
        self.revision = take_signed(&mut row)?;
        self.compact_revision = take_signed(&mut row)?;
        self.compacting_from = take_option(&mut row, take_bytes)?.map(|key| key[..].into());
        [self.compacts_again] = take_flags(&mut row)?;
        let bytes = take_number(&mut row)?;
        let member = take_number(&mut row)?;
        self.alarms.quota = Quota { bytes, member };
        let sane = self.revision >= 1 && (-1..=self.revision).contains(&self.compact_revision);
        (known && sane && row.is_empty()).then_some(())
    }
}

impl<T: Table> Kv<T> {
    /// Puts a row that was not there before, and counts it.
    pub(crate) fn add_row(&mut self, key: RowKey, row: Bytes) -> Result<(), TableError> {
        self.state.row_bytes += u64::from(row_bytes(&row));
        self.table.put(key, row)
    }

    /// Takes away a row that counted this much.
    pub(crate) fn remove_row(&mut self, key: RowKey, row_bytes: u32) -> Result<(), TableError> {
        self.state.row_bytes -= u64::from(row_bytes);
        self.table.remove(key)
    }
}
