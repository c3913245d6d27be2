//! etcd's service Maintenance: the state of this member, alarms, hashes, snapshots, and
//! leadership transfers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate::{ClusterVersion, DowngradeRefusal, MemberId, NodeStatus, RequestRefused};
use quorate_kv::{
    Alarm, AlarmKind, Command, HashOutcome, KvCommandReply, KvOutcome, Query, SUPPORTED_VERSIONS,
    TableError,
};
use quorate_proto::etcdserverpb::alarm_request::AlarmAction;
use quorate_proto::etcdserverpb::downgrade_request::DowngradeAction;
use quorate_proto::etcdserverpb::maintenance_server::Maintenance;
use quorate_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    DowngradeInfo, DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest,
    HashResponse, MoveLeaderRequest, MoveLeaderResponse, SnapshotRequest, SnapshotResponse,
    StatusRequest, StatusResponse,
};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, async_trait};

use crate::access::{ClientAction, ClientIdentity};
use crate::context::{ServiceContext, SharedStore};
use crate::etcd_export::{EtcdExportContext, EtcdSnapshotWriter};
use crate::etcd_release::EtcdRelease;
use crate::metrics::ServiceCounters;
use crate::snapshot_file::{SnapshotFileWriter, SnapshotHeader};
use crate::status::ServiceError;

/// The version of this server.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

type SnapshotStream = ReceiverStream<Result<SnapshotResponse, Status>>;

/// The metadata of a Snapshot request that chooses the format of the file: `quorate`; `etcd`, the
/// default; or `etcd-3.6` for a particular release of etcd.
pub const SNAPSHOT_FORMAT_KEY: &str = "quorate-snapshot-format";

pub(crate) struct MaintenanceService {
    context: ServiceContext,
}

impl MaintenanceService {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context }
    }

    /// Through the log, since all members have the same alarms.
    async fn change_alarm(
        &self,
        client: &ClientIdentity,
        command: Command,
    ) -> Result<AlarmResponse, ServiceError> {
        let reply = self.context.run_for(client, command).await?;
        Ok(self.alarms(reply.revision, reply.result.ok()))
    }

    /// A snapshot in our own format.
    async fn own_snapshot(&self) -> Result<SnapshotStream, Status> {
        let kv = self.context.store.read_when_free().await;
        let chunks = kv.snapshot().map_err(ServiceError::Table)?;
        let file_header = SnapshotHeader {
            cluster_id: self.context.cluster_id,
            revision: kv.revision(),
            applied: kv.applied(),
        };
        let mut left = kv.bytes_in_use();
        drop(kv);
        let header = self.context.header(file_header.revision);
        let version = self.context.limits.etcd_release.storage_version().unwrap_or_default();
        let (began, counters) = (Instant::now(), Arc::clone(&self.context.counters));
        let overview = Arc::clone(&self.context.overview);
        let (responses, stream) = mpsc::channel(RESPONSES_QUEUED_MAX);
        // A task and not a thread, since a client that does not read would hold it.
        tokio::spawn(async move {
            let mut blobs = SnapshotFileWriter::new(file_header, chunks).peekable();
            while let Some(blob) = blobs.next() {
                // An estimate, and 0 only with the last piece.
                left = left.saturating_sub(blob.len() as u64).max(1);
                let remaining_bytes = if blobs.peek().is_some() { left } else { 0 };
                let (header, version) = (Some(header), version.to_owned());
                let response = SnapshotResponse { header, remaining_bytes, blob, version };
                if responses.send(Ok(response)).await.is_err() {
                    return;
                }
            }
            counters.snapshots.observe(began.elapsed());
            overview.backup_made();
        });
        Ok(ReceiverStream::new(stream))
    }

    /// A snapshot in etcd's format, for the tools of this release.
    async fn etcd_snapshot(&self, release: EtcdRelease) -> Result<SnapshotStream, Status> {
        let node = self.context.node.status().await.map_err(ServiceError::Request)?;
        let membership = self.context.node.membership();
        let term = node.raft.term;
        let export = self.context.store.read_when_free().await.export();
        let export = export.map_err(ServiceError::Table)?;
        // It reads all rows.
        let planned = spawn_blocking(move || {
            let context = EtcdExportContext { membership: &membership, term, release };
            EtcdSnapshotWriter::new(export, &context)
        });
        let planned = planned.await.map_err(ServiceError::Task)?;
        let mut writer = planned.map_err(ServiceError::EtcdExport)?;
        let mut remaining_bytes = writer.bytes();
        let version = release.storage_version().unwrap_or_default();
        let (began, counters) = (Instant::now(), Arc::clone(&self.context.counters));
        let overview = Arc::clone(&self.context.overview);
        let (responses, stream) = mpsc::channel(RESPONSES_QUEUED_MAX);
        tokio::spawn(async move {
            loop {
                let response = match writer.next_piece() {
                    Ok(None) => {
                        counters.snapshots.observe(began.elapsed());
                        overview.backup_made();
                        return;
                    }
                    Ok(Some(blob)) => {
                        remaining_bytes = remaining_bytes.saturating_sub(blob.len() as u64);
                        let version = version.to_owned();
                        // As in etcd, without a header.
                        Ok(SnapshotResponse { header: None, remaining_bytes, blob, version })
                    }
                    Err(error) => Err(ServiceError::EtcdExport(error).into()),
                };
                if responses.send(response).await.is_err() {
                    return;
                }
            }
        });
        Ok(ReceiverStream::new(stream))
    }

    async fn defragment_when_free(&self) -> Result<(), ServiceError> {
        let deadline = Instant::now() + DEFRAGMENT_TIMEOUT;
        loop {
            let store = self.context.store.clone();
            let done = spawn_blocking(move || store.write().defragment()).await;
            match done.map_err(ServiceError::Task)? {
                // A snapshot is being read, which does not take long. Commands run meanwhile.
                Err(TableError::Busy) if Instant::now() < deadline => {
                    tokio::time::sleep(DEFRAGMENT_RETRY_INTERVAL).await;
                }
                done => return done.map_err(ServiceError::Table),
            }
        }
    }

    fn alarms(&self, revision: i64, outcome: Option<KvOutcome>) -> AlarmResponse {
        let alarms = match outcome {
            Some(KvOutcome::Alarms(alarms)) => alarms.into_iter().map(alarm_member).collect(),
            _ => Vec::new(),
        };
        AlarmResponse { header: Some(self.context.header(revision)), alarms }
    }
}

#[async_trait]
impl Maintenance for MaintenanceService {
    async fn alarm(
        &self,
        request: Request<AlarmRequest>,
    ) -> Result<Response<AlarmResponse>, Status> {
        let action = match request.get_ref().action() {
            AlarmAction::Get => ClientAction::AlarmRead,
            AlarmAction::Activate | AlarmAction::Deactivate => ClientAction::AlarmChange,
        };
        let client = self.context.admit(&request, &action).await?;
        let request = request.into_inner();
        let kind = match request.alarm() {
            AlarmType::None => None,
            AlarmType::Nospace => Some(AlarmKind::NoSpace),
            AlarmType::Corrupt => Some(AlarmKind::Corrupt),
        };
        let alarm = kind.map(|kind| Alarm { kind, member: request.member_id });
        let response = match (request.action(), alarm) {
            (AlarmAction::Get, _) => {
                self.context.catch_up().await?;
                let reply = self.context.look_up(&Query::Alarms).await?;
                let mut response = self.alarms(reply.revision, reply.result.ok());
                let kind = request.alarm();
                response.alarms.retain(|it| kind == AlarmType::None || it.alarm() == kind);
                response
            }
            (AlarmAction::Activate, Some(alarm)) => {
                self.change_alarm(&client, Command::AlarmActivate(alarm)).await?
            }
            (AlarmAction::Deactivate, Some(alarm)) => {
                self.change_alarm(&client, Command::AlarmDisarm(alarm)).await?
            }
            // No alarm is named: nothing changes.
            (AlarmAction::Activate | AlarmAction::Deactivate, None) => {
                self.alarms(self.context.store.read_when_free().await.revision(), None)
            }
        };
        Ok(Response::new(response))
    }

    async fn status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        self.context.admit(&request, &ClientAction::Status).await?;
        let node = self.context.node.status().await.map_err(ServiceError::Request)?;
        let (log, leader) = (node.raft.log, node.raft.leader);
        let release = self.context.limits.etcd_release;
        let kv = self.context.store.read_when_free().await;
        // Clients divide by these. An etcd without any key has a file too.
        let total = kv.bytes_total().map_err(ServiceError::Table)?.max(DB_SIZE_MIN);
        let in_use = match kv.bytes_in_use() {
            0 => DB_SIZE_MIN,
            bytes => bytes,
        };
        let (revision, quota, alarms) = (kv.revision(), kv.quota(), kv.alarms());
        drop(kv);
        let mut errors: Vec<String> = Vec::new();
        if leader.is_none() {
            errors.push(ServiceError::NoLeader.code_and_text().1);
        }
        errors.extend(lost_logs(&node));
        errors.extend(alarms.into_iter().map(alarm_text));
        let mut response = Response::new(StatusResponse {
            header: Some(self.context.header(revision)),
            version: release.version().into(),
            db_size: total as i64,
            leader: leader.map_or(0, |leader| leader.0),
            raft_index: log.commit,
            raft_term: node.raft.term,
            raft_applied_index: log.applied,
            errors,
            db_size_in_use: in_use as i64,
            is_learner: self.context.is_learner(),
            storage_version: release.storage_version().unwrap_or_default().into(),
            db_size_quota: quota.bytes as i64,
            downgrade_info: Some(downgrade_info(node.cluster_version)),
        });
        // etcd's status has no place for versions of our own.
        let own = response.metadata_mut();
        own.insert("quorate-version", MetadataValue::from_static(VERSION));
        own.insert("quorate-storage-version", MetadataValue::from(node.storage_version));
        Ok(response)
    }

    async fn defragment(
        &self,
        request: Request<DefragmentRequest>,
    ) -> Result<Response<DefragmentResponse>, Status> {
        self.context.admit(&request, &ClientAction::Defragment).await?;
        let (began, counters) = (Instant::now(), &self.context.counters);
        ServiceCounters::increment(&counters.defragmenting);
        let done = self.defragment_when_free().await;
        ServiceCounters::decrement(&counters.defragmenting);
        done?;
        counters.defragmentations.observe(began.elapsed());
        Ok(Response::new(DefragmentResponse { header: None }))
    }

    async fn hash(&self, request: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        self.context.admit(&request, &ClientAction::Hash).await?;
        let (began, store) = (Instant::now(), self.context.store.clone());
        let done = spawn_blocking(move || {
            let kv = store.read();
            let (revision, hash) = (kv.revision(), kv.deferred_hash()?);
            drop(kv);
            hash().map(|hash| (hash, revision))
        });
        let done = done.await.map_err(ServiceError::Task)?;
        let (hash, revision) = done.map_err(ServiceError::Table)?;
        self.context.counters.hashes.observe(began.elapsed());
        let header = Some(self.context.header(revision));
        Ok(Response::new(HashResponse { header, hash }))
    }

    async fn hash_kv(
        &self,
        request: Request<HashKvRequest>,
    ) -> Result<Response<HashKvResponse>, Status> {
        self.context.admit(&request, &ClientAction::Hash).await?;
        let revision = request.into_inner().revision;
        let (began, store) = (Instant::now(), self.context.store.clone());
        let done = spawn_blocking(move || hash_kv(&store, revision));
        let reply = done.await.map_err(ServiceError::Task)??;
        self.context.counters.revision_hashes.observe(began.elapsed());
        let Ok(KvOutcome::Hash(HashOutcome { hash, compact_revision, hash_revision })) =
            reply.result
        else {
            return Err(ServiceError::UnexpectedReply.into());
        };
        let header = Some(self.context.header(reply.revision));
        Ok(Response::new(HashKvResponse { header, hash, compact_revision, hash_revision }))
    }

    type SnapshotStream = SnapshotStream;

    async fn snapshot(
        &self,
        request: Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        self.context.admit(&request, &ClientAction::Snapshot).await?;
        let format = request.metadata().get(SNAPSHOT_FORMAT_KEY);
        let snapshot = match format.map(|format| format.as_bytes()) {
            Some(b"quorate") => self.own_snapshot().await,
            // A client of etcd expects etcd's.
            None | Some(b"etcd") => self.etcd_snapshot(self.context.limits.etcd_release).await,
            Some(other) => match etcd_release(other) {
                Some(release) => self.etcd_snapshot(release).await,
                None => Err(ServiceError::BadSnapshotFormat.into()),
            },
        };
        snapshot.map(Response::new)
    }

    async fn move_leader(
        &self,
        request: Request<MoveLeaderRequest>,
    ) -> Result<Response<MoveLeaderResponse>, Status> {
        self.context.admit(&request, &ClientAction::MoveLeader).await?;
        let node = &self.context.node;
        let to = MemberId(request.into_inner().target_id);
        if !node.is_leader() {
            return Err(ServiceError::NotLeader.into());
        }
        if !node.membership().is_voter(to) {
            return Err(ServiceError::BadLeaderTransferee.into());
        }
        if to != node.id() {
            node.transfer(to).await.map_err(ServiceError::Request)?;
        }
        Ok(Response::new(MoveLeaderResponse { header: None }))
    }

    async fn downgrade(
        &self,
        request: Request<DowngradeRequest>,
    ) -> Result<Response<DowngradeResponse>, Status> {
        self.context.admit(&request, &ClientAction::Downgrade).await?;
        let node = &self.context.node;
        if !node.is_leader() {
            return Err(ServiceError::NotLeader.into());
        }
        let action = request.get_ref().action();
        let version = request.into_inner().version;
        let target = version.parse::<u32>();
        match (action, target) {
            (DowngradeAction::Cancel, _) => {
                node.cancel_downgrade().await.map_err(ServiceError::Request)?;
            }
            (DowngradeAction::Enable, Ok(target)) => {
                node.downgrade(target).await.map_err(ServiceError::Request)?;
            }
            (DowngradeAction::Validate, Ok(target)) => {
                let current = node.cluster_version().version;
                if target >= current || !SUPPORTED_VERSIONS.contains(target) {
                    let refusal = DowngradeRefusal::NotLower { target, current };
                    let refused = RequestRefused::Downgrade(refusal);
                    return Err(ServiceError::Request(refused.into()).into());
                }
            }
            (DowngradeAction::Enable | DowngradeAction::Validate, Err(_)) => {
                return Err(ServiceError::BadDowngradeVersion { version }.into());
            }
        }
        let header =
            Some(self.context.header(self.context.store.read_when_free().await.revision()));
        let version = node.cluster_version().version.to_string();
        Ok(Response::new(DowngradeResponse { header, version }))
    }
}

/// Hashes in pieces, so that commands run between them.
pub(crate) fn hash_kv(store: &SharedStore, revision: i64) -> Result<KvCommandReply, ServiceError> {
    let mut hashing = store.read().start_hash(revision)?;
    loop {
        if !store.read().continue_hash(&mut hashing, ROWS_AT_ONCE)?? {
            return Ok(hashing.finish());
        }
    }
}

/// The release in the name of a format, such as `etcd-3.6`.
fn etcd_release(format: &[u8]) -> Option<EtcdRelease> {
    EtcdRelease::parse(std::str::from_utf8(format).ok()?.strip_prefix("etcd-")?)
}

fn downgrade_info(cluster: ClusterVersion) -> DowngradeInfo {
    let target = if cluster.downgrading { cluster.version.to_string() } else { String::new() };
    DowngradeInfo { enabled: cluster.downgrading, target_version: target }
}

fn alarm_member(alarm: Alarm) -> AlarmMember {
    let kind = match alarm.kind {
        AlarmKind::NoSpace => AlarmType::Nospace,
        AlarmKind::Corrupt => AlarmType::Corrupt,
    };
    AlarmMember { member_id: alarm.member, alarm: kind as i32 }
}

/// Members whose disks were rolled back or restored: this one, and those that its leader knows.
fn lost_logs(node: &NodeStatus) -> Vec<String> {
    let raft = &node.raft;
    let own = raft.lost.map(|confirmed| {
        format!(
            "quorate: the log lacks what this member confirmed (up to {confirmed}), so that it \
             does not vote; remove it and add it again under a new id"
        )
    });
    let peers = raft.peers.iter().filter_map(|peer| {
        let (id, confirmed) = (peer.id, peer.lost?);
        Some(format!(
            "quorate: the log of member {id} lacks what it confirmed (up to {confirmed}); \
             remove it and add it again under a new id"
        ))
    });
    own.into_iter().chain(peers).collect()
}

/// Exactly as etcd prints it, with the space at the end and the id in decimal.
fn alarm_text(alarm: Alarm) -> String {
    let alarm = alarm_member(alarm);
    format!("memberID:{} alarm:{} ", alarm.member_id, alarm.alarm().as_str_name())
}

/// The size that is reported for an empty store: that of one page.
const DB_SIZE_MIN: u64 = 4096;
const RESPONSES_QUEUED_MAX: usize = 4;
/// Rows that are hashed before commands get a turn. If they are large, it is fewer.
const ROWS_AT_ONCE: usize = 1_000;
/// How long a defragmentation waits for snapshots to be read.
const DEFRAGMENT_TIMEOUT: Duration = Duration::from_secs(30);
const DEFRAGMENT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
