//! From the files of an etcd to a store: its database, and the log behind it.

mod log;

pub(crate) use log::apply_entry;

use std::fmt;
use std::io::{Read, Seek};

use bytes::Bytes;
use quorate_etcd_files::{
    DamagePlace, EtcdAlarm, EtcdDataDir, EtcdDatabase, EtcdFileError, EtcdPermission,
    EtcdPermissionKind, EtcdRow, EtcdUser,
};
use quorate_kv::{
    Alarm, AlarmKind, ImportedState, ImportedUser, KeyRange, KeyValue, Kv, KvImport, KvImportError,
    PasswordHash, Permission, PermissionMode, Revision, Table, TableError,
};

/// What an import found.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct EtcdImport {
    /// The id of the etcd cluster; 0 for a snapshot, which does not have it.
    pub cluster_id: u64,
    /// The last log entry that is part of the data.
    pub applied: u64,
    /// How many entries of the log were applied to the database.
    pub replayed: u64,
    /// What the operator should know.
    pub notes: Vec<String>,
}

/// Why the files of an etcd were not imported.
#[derive(Debug)]
#[non_exhaustive]
pub enum EtcdImportError {
    /// A file cannot be read, is damaged or is not one of etcd.
    File(EtcdFileError),
    /// The data is impossible.
    Data(KvImportError),
    /// An entry of the log has a request that this program does not know.
    Entry { index: u64, problem: String },
}

impl fmt::Display for EtcdImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => write!(f, "{error}"),
            Self::Data(error) => write!(f, "{error}"),
            Self::Entry { index, problem } => write!(f, "log entry {index}: {problem}"),
        }
    }
}

impl std::error::Error for EtcdImportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File(error) => Some(error),
            Self::Data(error) => Some(error),
            Self::Entry { .. } => None,
        }
    }
}

impl From<EtcdFileError> for EtcdImportError {
    fn from(error: EtcdFileError) -> Self {
        Self::File(error)
    }
}

impl From<KvImportError> for EtcdImportError {
    fn from(error: KvImportError) -> Self {
        Self::Data(error)
    }
}

impl From<TableError> for EtcdImportError {
    fn from(error: TableError) -> Self {
        Self::Data(error.into())
    }
}

/// Imports the data directory of a stopped etcd member: its database, and the entries of its log
/// behind it, also those that are not known to be committed. To drop one could lose a write that
/// a client was told is done; to keep one can only complete a write whose client got no reply.
pub(crate) fn import_directory<T: Table>(
    kv: &mut Kv<T>,
    directory: EtcdDataDir,
) -> Result<EtcdImport, EtcdImportError> {
    let EtcdDataDir { mut database, log } = directory;
    let marks = database.marks()?;
    let mut report = import_database(kv, &mut database)?;
    report.cluster_id = log.cluster_id;
    report.applied = log.entries.last().map_or(log.consistent_index, |entry| entry.index);
    report.replayed = log.entries.len() as u64;
    let versions = [&marks.storage_version, &marks.cluster_version];
    let drops_ranges = !versions.into_iter().flatten().any(|version| is_3_7(version));
    for entry in &log.entries {
        apply_entry(kv, entry, drops_ranges)?;
    }
    if log.uncommitted > 0 {
        report.notes.push(format!(
            "the last {} entries of the log are not known to be committed; they are imported, since \
             clients may have been told that they are done",
            log.uncommitted
        ));
    }
    if let Some(place) = log.torn_at {
        report.notes.push(format!("the log ends within a record ({place}), which is left out"));
    }
    Ok(report)
}

/// Imports a snapshot or the database of a member.
pub(crate) fn import_database<T: Table, F: Read + Seek>(
    kv: &mut Kv<T>,
    database: &mut EtcdDatabase<F>,
) -> Result<EtcdImport, EtcdImportError> {
    let marks = database.marks()?;
    let mut notes = Vec::new();
    let compacted = marks.scheduled_compaction.max(marks.finished_compaction);
    check_revision(compacted, || DamagePlace::Bucket("meta".to_owned()))?;
    let alarms = database.alarms()?;
    let roles = database.roles()?.into_iter();
    let roles = roles.map(|role| {
        let valid = |permission| valid_permission(permission, &role.name, &mut notes);
        (role.name.clone(), role.permissions.into_iter().filter_map(valid).collect())
    });
    let state = ImportedState {
        compact_revision: (compacted > 0).then_some(compacted),
        is_compacting: marks.scheduled_compaction > marks.finished_compaction,
        roles: roles.collect(),
        leases: database.leases()?.iter().map(|it| (it.id, it.ttl, it.remaining)).collect(),
        alarms: alarms.iter().filter(|it| it.kind != 0).map(alarm).collect::<Result<_, _>>()?,
        auth_enabled: marks.auth_enabled,
        auth_revision: marks.auth_revision,
        users: database.users()?.into_iter().map(user).collect(),
    };
    let mut import = kv.begin_import(state)?;
    database.rows(|row| add_row(&mut import, &row))?;
    import.finish()?;
    let applied = marks.consistent_index;
    Ok(EtcdImport { applied, notes, ..EtcdImport::default() })
}

fn add_row<T: Table>(
    import: &mut KvImport<'_, T>,
    row: &EtcdRow<'_>,
) -> Result<(), EtcdImportError> {
    let place =
        || DamagePlace::Row { bucket: "key".to_owned(), key: row.main.to_be_bytes().into() };
    check_revision(row.main, place)?;
    // Only `snapshot restore --bump-revision` writes such a row.
    if row.is_bump() {
        import.raise_revision(row.main);
        return Ok(());
    }
    let Ok(sub) = u32::try_from(row.sub) else {
        let problem = "too many writes in one revision".to_owned();
        return Err(EtcdFileError::Damaged { place: place(), problem }.into());
    };
    let at = Revision { main: row.main, sub };
    if row.is_tombstone {
        return Ok(import.delete(at, row.key)?);
    }
    let kv = KeyValue {
        key: Bytes::copy_from_slice(row.key),
        create_revision: row.create_revision,
        mod_revision: row.mod_revision,
        version: row.version,
        value: Bytes::copy_from_slice(row.value),
        lease: row.lease,
    };
    Ok(import.put(at, &kv)?)
}

/// Far above what a cluster can have written, and far below where revisions end.
fn check_revision(main: i64, place: impl Fn() -> DamagePlace) -> Result<(), EtcdFileError> {
    if main <= REVISION_MAX {
        return Ok(());
    }
    Err(EtcdFileError::Damaged {
        place: place(),
        problem: format!("revision {main} is impossible"),
    })
}

fn alarm(alarm: &EtcdAlarm) -> Result<Alarm, EtcdImportError> {
    let kind = u8::try_from(alarm.kind).ok().and_then(AlarmKind::from_number);
    let unknown = || EtcdFileError::Damaged {
        place: DamagePlace::Bucket("alarm".to_owned()),
        problem: format!("alarm {} is unknown", alarm.kind),
    };
    Ok(Alarm { kind: kind.ok_or_else(unknown)?, member: alarm.member })
}

fn user(user: EtcdUser) -> ImportedUser {
    let password = (!user.no_password).then(|| PasswordHash::new(user.password));
    ImportedUser { name: user.name, password, roles: user.roles }
}

/// Older versions of etcd accept permissions that allow nothing.
fn valid_permission(
    permission: EtcdPermission,
    role: &str,
    notes: &mut Vec<String>,
) -> Option<Permission> {
    let mode = match permission.kind {
        EtcdPermissionKind::Read => PermissionMode::Read,
        EtcdPermissionKind::Write => PermissionMode::Write,
        EtcdPermissionKind::ReadWrite => PermissionMode::ReadWrite,
    };
    let EtcdPermission { mut key, range_end, .. } = permission;
    // No key is empty, so this is the same range.
    if key.is_empty() && !range_end.is_empty() {
        key = Bytes::from_static(b"\0");
    }
    let permission = Permission { mode, keys: KeyRange { key, range_end } };
    if permission.is_valid() {
        return Some(permission);
    }
    notes.push(format!("a permission of role {role:?} covers no key and is left out"));
    None
}

/// Whether a version is 3.7 or later.
fn is_3_7(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or_default());
    (numbers.next(), numbers.next()) >= (Some(3), Some(7))
}

const REVISION_MAX: i64 = 1 << 61;
