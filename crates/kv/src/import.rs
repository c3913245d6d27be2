//! A state that is built from the data of another store, such as etcd's, instead of a snapshot.

use std::fmt;

use bytes::Bytes;

use crate::alarm::Alarm;
use crate::auth::{AuthState, PasswordHash, Permission};
use crate::hash::CompactionHashes;
use crate::lease::Lease;
use crate::machine::Kv;
use crate::reply::KeyValue;
use crate::revision::{Revision, RowKey, put_row, tombstone_row};
use crate::state::KvState;
use crate::table::{Table, TableError};

/// Everything but the keys.
#[derive(Clone, Debug, Default)]
pub struct ImportedState {
    /// The oldest revision that can be read; `None` before the first compaction.
    pub compact_revision: Option<i64>,
    /// Whether rows may follow that the compaction removes.
    pub is_compacting: bool,
    /// Id, TTL and remaining seconds of all leases; 0 remaining seconds mean all of them.
    pub leases: Vec<(i64, i64, i64)>,
    /// The active alarms.
    pub alarms: Vec<Alarm>,
    /// Whether requests are checked.
    pub auth_enabled: bool,
    /// The auth revision; at least 1.
    pub auth_revision: u64,
    /// All users.
    pub users: Vec<ImportedUser>,
    /// The names of all roles, with their permissions.
    pub roles: Vec<(String, Vec<Permission>)>,
}

/// A user.
#[derive(Clone, Debug)]
pub struct ImportedUser {
    /// Its name.
    pub name: String,
    /// The hash of its password; `None` for a user without one.
    pub password: Option<PasswordHash>,
    /// Its roles.
    pub roles: Vec<String>,
}

/// An import in progress. The old state stays until [`KvImport::finish`].
#[must_use = "nothing is imported until it is finished"]
pub struct KvImport<'a, T: Table> {
    kv: &'a mut Kv<T>,
    state: KvState,
    last: RowKey,
}

/// Why an import ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum KvImportError {
    /// A row is invalid, or not after the one before it.
    BadRow {
        /// What it is about.
        row: String,
    },
    /// The table failed.
    Table(TableError),
}

impl fmt::Display for KvImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadRow { row } => write!(f, "{row} is invalid or not in order"),
            Self::Table(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for KvImportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::BadRow { .. } => None,
            Self::Table(error) => Some(error),
        }
    }
}

impl From<TableError> for KvImportError {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

impl<T: Table> Kv<T> {
    /// Starts to replace the state by an imported one.
    pub fn begin_import(
        &mut self,
        imported: ImportedState,
    ) -> Result<KvImport<'_, T>, KvImportError> {
        // Rows of an import that was given up.
        self.table.drop_staged()?;
        let mut state = KvState { cluster_version: self.cluster_version(), ..KvState::default() };
        state.compact_revision = imported.compact_revision.unwrap_or(-1);
        state.revision = state.revision.max(state.compact_revision);
        state.compacting_from = imported.is_compacting.then(Box::default);
        let mut import = KvImport { kv: self, state, last: RowKey::META };
        import.add_auth(&imported)?;
        let mut alarms = imported.alarms;
        alarms.sort_by_key(|alarm| RowKey::alarm(alarm.member, alarm.kind.number()));
        for alarm in alarms {
            let key = RowKey::alarm(alarm.member, alarm.kind.number());
            import.add(key, Bytes::new(), || format!("an alarm of member {:x}", alarm.member))?;
        }
        let mut leases = imported.leases;
        leases.sort_by_key(|(id, ..)| RowKey::lease(*id));
        for (id, ttl, remaining) in leases {
            let row = Lease::new(ttl, remaining).row();
            import.add(RowKey::lease(id), row, || format!("lease {id:x}"))?;
        }
        Ok(import)
    }
}

impl<T: Table> KvImport<'_, T> {
    fn add_auth(&mut self, imported: &ImportedState) -> Result<(), KvImportError> {
        let auth = AuthState::import(imported);
        let auth = auth.ok_or_else(|| bad("the list of users and roles"))?;
        if auth == AuthState::default() {
            return Ok(());
        }
        self.add(RowKey::AUTH, auth.meta_row(), || "the auth revision".to_owned())?;
        let users = auth.users().filter_map(|name| Some((name, auth.user_row(name)?)));
        for (name, (slot, row)) in users {
            self.add(RowKey::auth_user(slot), row, || format!("user {name:?}"))?;
        }
        let roles = auth.roles().filter_map(|name| Some((name, auth.role_row(name)?)));
        for (name, (slot, row)) in roles {
            self.add(RowKey::auth_role(slot), row, || format!("role {name:?}"))?;
        }
        Ok(())
    }

    /// Adds a write of a key. Writes come in the order of their revisions.
    pub fn put(&mut self, at: Revision, kv: &KeyValue) -> Result<(), KvImportError> {
        self.add_revision(at, put_row(kv))
    }

    /// Adds a deletion of a key.
    pub fn delete(&mut self, at: Revision, key: &[u8]) -> Result<(), KvImportError> {
        self.add_revision(at, tombstone_row(key.into()))
    }

    /// Raises the revision, where it wrote nothing that is still there.
    pub fn raise_revision(&mut self, main: i64) {
        self.state.revision = self.state.revision.max(main);
    }

    fn add_revision(&mut self, at: Revision, row: Bytes) -> Result<(), KvImportError> {
        self.raise_revision(at.main);
        self.add(RowKey::revision(at), row, || format!("revision {}.{}", at.main, at.sub))
    }

    fn add(
        &mut self,
        key: RowKey,
        row: Bytes,
        what: impl Fn() -> String,
    ) -> Result<(), KvImportError> {
        if key <= self.last || self.state.load_row(key, &row).is_none() {
            return Err(bad(&what()));
        }
        self.last = key;
        Ok(self.kv.table.stage(key, &row)?)
    }

    /// Replaces the state.
    pub fn finish(self) -> Result<(), TableError> {
        self.kv.table.stage(RowKey::META, &self.state.meta_row())?;
        self.kv.table.replace_by_staged()?;
        self.kv.state = self.state.loaded();
        self.kv.compaction_hashes = CompactionHashes::default();
        Ok(())
    }
}

fn bad(row: &str) -> KvImportError {
    KvImportError::BadRow { row: row.to_owned() }
}
