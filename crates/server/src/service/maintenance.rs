//! etcd's service Maintenance: the state of this member, alarms, hashes, snapshots, and
//! leadership transfers.

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

use crate::access::ClientAction;
use crate::context::{ServiceContext, SharedStore};
use crate::snapshot_file::{SnapshotFileWriter, SnapshotHeader};
use crate::status::ServiceError;

/// The version of etcd whose API this server implements. Clients compare it.
pub const ETCD_VERSION: &str = "3.5.30";
/// The version of this server.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) struct MaintenanceService {
    context: ServiceContext,
}

impl MaintenanceService {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context }
    }

    /// Through the log, since all members have the same alarms.
    async fn change_alarm(&self, command: &Command) -> Result<AlarmResponse, ServiceError> {
        let reply = self.context.run(command).await?;
        Ok(self.alarms(reply.revision, reply.result.ok()))
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
        self.context.admit(&request, &action)?;
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
                let reply = self.context.look_up(&Query::Alarms)?;
                let mut response = self.alarms(reply.revision, reply.result.ok());
                let kind = request.alarm();
                response.alarms.retain(|it| kind == AlarmType::None || it.alarm() == kind);
                response
            }
            (AlarmAction::Activate, Some(alarm)) => {
                self.change_alarm(&Command::AlarmActivate(alarm)).await?
            }
            (AlarmAction::Deactivate, Some(alarm)) => {
                self.change_alarm(&Command::AlarmDisarm(alarm)).await?
            }
            // No alarm is named: nothing changes.
            (AlarmAction::Activate | AlarmAction::Deactivate, None) => {
                self.alarms(self.context.store.read().revision(), None)
            }
        };
        Ok(Response::new(response))
    }

    async fn status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        self.context.admit(&request, &ClientAction::Status)?;
        let node = self.context.node.status().await.map_err(ServiceError::Request)?;
        let (log, leader) = (node.raft.log, node.raft.leader);
        let kv = self.context.store.read();
        let total = kv.bytes_total().map_err(ServiceError::Table)?;
        let in_use = kv.bytes_in_use();
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
            version: ETCD_VERSION.into(),
            db_size: total as i64,
            leader: leader.map_or(0, |leader| leader.0),
            raft_index: log.commit,
            raft_term: node.raft.term,
            raft_applied_index: log.applied,
            errors,
            db_size_in_use: in_use as i64,
            is_learner: self.context.is_learner(),
            storage_version: node.storage_version.to_string(),
            db_size_quota: quota.bytes as i64,
            downgrade_info: Some(downgrade_info(node.cluster_version)),
        });
        // etcd's status has no place for a second version.
        response.metadata_mut().insert("quorate-version", MetadataValue::from_static(VERSION));
        Ok(response)
    }

    async fn defragment(
        &self,
        request: Request<DefragmentRequest>,
    ) -> Result<Response<DefragmentResponse>, Status> {
        self.context.admit(&request, &ClientAction::Defragment)?;
        let deadline = Instant::now() + DEFRAGMENT_TIMEOUT;
        loop {
            let store = self.context.store.clone();
            let done = spawn_blocking(move || store.write().defragment()).await;
            match done.map_err(ServiceError::Task)? {
                Ok(()) => return Ok(Response::new(DefragmentResponse { header: None })),
                // A snapshot is being read, which does not take long. Commands run meanwhile.
                Err(TableError::Busy) if Instant::now() < deadline => {
                    tokio::time::sleep(DEFRAGMENT_RETRY_INTERVAL).await;
                }
                Err(error) => return Err(ServiceError::Table(error).into()),
            }
        }
    }

    async fn hash(&self, request: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        self.context.admit(&request, &ClientAction::Hash)?;
        let store = self.context.store.clone();
        let done = spawn_blocking(move || {
            let kv = store.read();
            let (revision, hash) = (kv.revision(), kv.deferred_hash()?);
            drop(kv);
            hash().map(|hash| (hash, revision))
        });
        let done = done.await.map_err(ServiceError::Task)?;
        let (hash, revision) = done.map_err(ServiceError::Table)?;
        let header = Some(self.context.header(revision));
        Ok(Response::new(HashResponse { header, hash }))
    }

    async fn hash_kv(
        &self,
        request: Request<HashKvRequest>,
    ) -> Result<Response<HashKvResponse>, Status> {
        self.context.admit(&request, &ClientAction::Hash)?;
        let revision = request.into_inner().revision;
        let store = self.context.store.clone();
        let done = spawn_blocking(move || hash_kv(&store, revision));
        let reply = done.await.map_err(ServiceError::Task)??;
        let Ok(KvOutcome::Hash(HashOutcome { hash, compact_revision, hash_revision })) =
            reply.result
        else {
            return Err(ServiceError::UnexpectedReply.into());
        };
        let header = Some(self.context.header(reply.revision));
        Ok(Response::new(HashKvResponse { header, hash, compact_revision, hash_revision }))
    }

    type SnapshotStream = ReceiverStream<Result<SnapshotResponse, Status>>;

    async fn snapshot(
        &self,
        request: Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        self.context.admit(&request, &ClientAction::Snapshot)?;
        let kv = self.context.store.read();
        let chunks = kv.snapshot().map_err(ServiceError::Table)?;
        let file_header = SnapshotHeader {
            cluster_id: self.context.cluster_id,
            revision: kv.revision(),
            applied: kv.applied(),
        };
        let mut left = kv.bytes_in_use();
        drop(kv);
        let header = self.context.header(file_header.revision);
        let (responses, stream) = mpsc::channel(RESPONSES_QUEUED_MAX);
        // A task and not a thread, since a client that does not read would hold it.
        tokio::spawn(async move {
            let mut blobs = SnapshotFileWriter::new(file_header, chunks).peekable();
            while let Some(blob) = blobs.next() {
                // An estimate, and 0 only with the last piece.
                left = left.saturating_sub(blob.len() as u64).max(1);
                let remaining_bytes = if blobs.peek().is_some() { left } else { 0 };
                let header = Some(header);
                let response =
                    SnapshotResponse { header, remaining_bytes, blob, version: String::new() };
                if responses.send(Ok(response)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn move_leader(
        &self,
        request: Request<MoveLeaderRequest>,
    ) -> Result<Response<MoveLeaderResponse>, Status> {
        self.context.admit(&request, &ClientAction::MoveLeader)?;
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
        self.context.admit(&request, &ClientAction::Downgrade)?;
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
        let header = Some(self.context.header(self.context.store.read().revision()));
        let version = node.cluster_version().version.to_string();
        Ok(Response::new(DowngradeResponse { header, version }))
    }
}

/// Hashes in pieces, so that commands run between them.
fn hash_kv(store: &SharedStore, revision: i64) -> Result<KvCommandReply, ServiceError> {
    let mut hashing = store.read().start_hash(revision)?;
    loop {
        if !store.read().continue_hash(&mut hashing, ROWS_AT_ONCE)?? {
            return Ok(hashing.finish());
        }
    }
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

const RESPONSES_QUEUED_MAX: usize = 4;
/// Rows that are hashed before commands get a turn.
const ROWS_AT_ONCE: usize = 10_000;
/// How long a defragmentation waits for snapshots to be read.
const DEFRAGMENT_TIMEOUT: Duration = Duration::from_secs(30);
const DEFRAGMENT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
