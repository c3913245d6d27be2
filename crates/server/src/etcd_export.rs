//! A store as a snapshot of etcd: a bbolt database, and its SHA-256.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use quorate::Membership;
use quorate_etcd_files::{
    BUCKETS, BboltRow, BboltSource, BboltWriteError, BboltWriter, EtcdAlarm, EtcdLease,
    EtcdPermission, EtcdPermissionKind, EtcdRole, EtcdUser, alarm_row, auth_rows, compact_mark,
    lease_row, role_row, user_row,
};
use quorate_kv::{
    AuthState, EtcdExport, KeyRange, Permission, PermissionMode, RowReader, TableError,
};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::etcd_release::EtcdRelease;
use crate::member_details::MemberDetails;

/// What the database says beside the data. etcd's `snapshot restore` replaces it.
pub(crate) struct EtcdExportContext<'a> {
    pub(crate) membership: &'a Membership,
    pub(crate) term: u64,
    /// Whose versions are written. A later release of etcd reads the file and raises them; since
    /// 3.6 an earlier one refuses to start with it.
    pub(crate) release: EtcdRelease,
}

/// The file in pieces.
pub(crate) struct EtcdSnapshotWriter<V> {
    writer: BboltWriter<ExportedBuckets<V>>,
    digest: Option<Sha256>,
}

impl<V: RowReader> EtcdSnapshotWriter<V> {
    /// Reads all rows once.
    pub(crate) fn new(
        export: EtcdExport<V>,
        context: &EtcdExportContext<'_>,
    ) -> Result<Self, BboltWriteError<TableError>> {
        let writer = BboltWriter::new(ExportedBuckets::new(export, context))?;
        Ok(Self { writer, digest: Some(Sha256::new()) })
    }

    /// The size of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.writer.bytes() + 32
    }

    /// The next piece; the last one is the checksum, `None` follows.
    pub(crate) fn next_piece(&mut self) -> Result<Option<Bytes>, BboltWriteError<TableError>> {
        let Some(digest) = &mut self.digest else { return Ok(None) };
        let mut piece = BytesMut::new();
        while piece.len() < PIECE_BYTES {
            let Some(pages) = self.writer.next_piece()? else { break };
            piece.extend_from_slice(&pages);
        }
        if !piece.is_empty() {
            digest.update(&piece);
            return Ok(Some(piece.freeze()));
        }
        let checksum = self.digest.take().map(Sha256::finalize);
        Ok(checksum.map(|checksum| Bytes::copy_from_slice(&checksum)))
    }
}

/// etcd's buckets: the keys are read from the store, the others are small.
struct ExportedBuckets<V> {
    export: EtcdExport<V>,
    small: BTreeMap<&'static str, Vec<BboltRow>>,
}

impl<V> ExportedBuckets<V> {
    fn new(export: EtcdExport<V>, context: &EtcdExportContext<'_>) -> Self {
        let mut small = BTreeMap::new();
        let alarm = |alarm: &quorate_kv::Alarm| {
            alarm_row(&EtcdAlarm { member: alarm.member, kind: alarm.kind.number().into() })
        };
        small.insert("alarm", export.alarms.iter().map(alarm).collect());
        let auth = &export.auth;
        small.insert("auth", auth_rows(auth.is_enabled(), auth.revision()));
        small.insert("authUsers", auth.users().map(|name| user_row(&user(auth, name))).collect());
        small.insert("authRoles", auth.roles().map(|name| role_row(&role(auth, name))).collect());
        let lease = |(id, lease): &(i64, quorate_kv::Lease)| {
            lease_row(&EtcdLease { id: *id, ttl: lease.ttl, remaining: lease.remaining })
        };
        small.insert("lease", export.leases.iter().map(lease).collect());
        small.insert("members", members(context.membership));
        let version = context.release.cluster_version().into();
        small.insert("cluster", vec![(Bytes::from_static(b"clusterVersion"), version)]);
        small.insert("meta", meta_rows(&export, context));
        for rows in small.values_mut() {
            rows.sort();
        }
        Self { export, small }
    }
}

impl<V: RowReader> BboltSource for ExportedBuckets<V> {
    type Error = TableError;

    fn buckets(&self) -> &[&'static str] {
        BUCKETS
    }

    fn rows(&self, bucket: &str, after: Option<&[u8]>) -> Result<Vec<BboltRow>, TableError> {
        if bucket == "key" {
            return self.export.rows(after, ROWS_BYTES);
        }
        // All of them at once.
        Ok(match after {
            None => self.small.get(bucket).cloned().unwrap_or_default(),
            Some(_) => Vec::new(),
        })
    }
}

fn meta_rows<V>(export: &EtcdExport<V>, context: &EtcdExportContext<'_>) -> Vec<BboltRow> {
    let number = |number: u64| Bytes::copy_from_slice(&number.to_be_bytes());
    let membership = context.membership;
    let ids = membership.members().as_slice().to_vec();
    let (voters, learners): (Vec<_>, Vec<_>) =
        ids.into_iter().partition(|id| membership.is_voter(*id));
    let voters: Vec<_> = voters.iter().map(|id| id.0).collect();
    let learners: Vec<_> = learners.iter().map(|id| id.0).collect();
    let mut state = json!({ "voters": voters, "auto_leave": false });
    if !learners.is_empty() {
        state["learners"] = json!(learners);
    }
    let mut rows = vec![
        (Bytes::from_static(b"confState"), state.to_string().into()),
        (Bytes::from_static(b"consistent_index"), number(export.applied)),
        (Bytes::from_static(b"term"), number(context.term)),
    ];
    if let Some(version) = context.release.storage_version() {
        rows.push((Bytes::from_static(b"storageVersion"), version.into()));
    }
    if export.compact_revision > 0 {
        let mark = compact_mark(export.compact_revision);
        rows.push((Bytes::from_static(b"scheduledCompactRev"), mark.clone()));
        // Otherwise etcd repeats the compaction when it starts.
        if !export.is_compacting {
            rows.push((Bytes::from_static(b"finishedCompactRev"), mark));
        }
    }
    rows
}

fn members(membership: &Membership) -> Vec<BboltRow> {
    let member = |id: &quorate::MemberId| {
        let MemberDetails { name, peer_urls, client_urls, .. } = MemberDetails::of(membership, *id);
        let mut value = json!({ "id": id.0, "peerURLs": peer_urls, "name": name });
        if !client_urls.is_empty() {
            value["clientURLs"] = json!(client_urls);
        }
        if !membership.is_voter(*id) {
            value["isLearner"] = json!(true);
        }
        (format!("{:x}", id.0).into(), value.to_string().into())
    };
    membership.members().as_slice().iter().map(member).collect()
}

fn user(auth: &AuthState, name: &str) -> EtcdUser {
    let user = auth.user(name);
    let password = user.and_then(|user| user.password());
    EtcdUser {
        name: name.to_owned(),
        password: password.map(|it| Bytes::copy_from_slice(it.as_bytes())).unwrap_or_default(),
        roles: user.map(|user| user.roles().map(str::to_owned).collect()).unwrap_or_default(),
        no_password: password.is_none(),
    }
}

fn role(auth: &AuthState, name: &str) -> EtcdRole {
    let permission = |permission: &Permission| {
        let KeyRange { key, range_end } = permission.keys.clone();
        let kind = match permission.mode {
            PermissionMode::Read => EtcdPermissionKind::Read,
            PermissionMode::Write => EtcdPermissionKind::Write,
            PermissionMode::ReadWrite => EtcdPermissionKind::ReadWrite,
        };
        EtcdPermission { kind, key, range_end }
    };
    let permissions = auth.role(name).map(|role| role.permissions().iter().map(permission));
    EtcdRole {
        name: name.to_owned(),
        permissions: permissions.map(Iterator::collect).unwrap_or_default(),
    }
}

/// Rows that are read at once.
const ROWS_BYTES: usize = 256 << 10;
/// A message of the Snapshot call has about this much.
const PIECE_BYTES: usize = 64 << 10;
