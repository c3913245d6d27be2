//! etcd's service Maintenance: how this member is, alarms, hashes, snapshots to keep,
//! handing over leadership.

use std::time::{Duration, Instant};

use quorate::MemberId;
use quorate_kv::{Alarm, AlarmKind, Command, HashOutcome, KvOutcome, KvReply, Query, TableError};
use quorate_proto::etcdserverpb::alarm_request::AlarmAction;
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
use tonic::{Request, Response, Status, async_trait};

use crate::context::{Context, Needs, Store};
use crate::errors::{bad_leader_transferee, failed, no_leader, not_leader, refused, table};
use crate::snapshot_file::{SnapshotHeader, Writer};

/// The version of etcd whose API this is. Clients compare it.
pub const ETCD_VERSION: &str = "3.5.30";

pub(crate) struct MaintenanceService {
    context: Context,
}

impl MaintenanceService {
    pub(crate) fn new(context: Context) -> Self {
        Self { context }
    }

    /// Through the log, as all members have the same alarms.
    async fn change_alarm(&self, command: &Command) -> Result<AlarmResponse, Status> {
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
        self.context.admit(&request, Needs::Voter)?;
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
                let wanted = request.alarm();
                response.alarms.retain(|it| wanted == AlarmType::None || it.alarm() == wanted);
                response
            }
            (AlarmAction::Activate, Some(alarm)) => {
                self.change_alarm(&Command::AlarmActivate(alarm)).await?
            }
            (AlarmAction::Deactivate, Some(alarm)) => {
                self.change_alarm(&Command::AlarmDisarm(alarm)).await?
            }
            // No alarm is named: nothing is changed.
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
        self.context.admit(&request, Needs::Member)?;
        let node = self.context.node.status().await.map_err(|why| failed(&why))?;
        let (log, leader) = (node.raft.log, node.raft.leader);
        let kv = self.context.store.read();
        let (total, in_use) = (kv.bytes_total().map_err(|why| table(&why))?, kv.bytes_in_use());
        let (revision, quota, alarms) = (kv.revision(), kv.quota(), kv.alarms());
        drop(kv);
        let mut errors: Vec<String> = Vec::new();
        if leader.is_none() {
            errors.push(no_leader().message().into());
        }
        errors.extend(alarms.into_iter().map(alarm_text));
        Ok(Response::new(StatusResponse {
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
            storage_version: String::new(),
            db_size_quota: quota.bytes as i64,
            downgrade_info: Some(DowngradeInfo::default()),
        }))
    }

    async fn defragment(
        &self,
        request: Request<DefragmentRequest>,
    ) -> Result<Response<DefragmentResponse>, Status> {
        self.context.admit(&request, Needs::Voter)?;
        let began = Instant::now();
        loop {
            let store = self.context.store.clone();
            let done = spawn_blocking(move || store.write().defragment()).await;
            match done.map_err(|why| Status::internal(why.to_string()))? {
                Ok(()) => return Ok(Response::new(DefragmentResponse { header: None })),
                // A snapshot is being read. It does not take long, and commands go on.
                Err(TableError::Busy) if began.elapsed() < DEFRAGMENT_PATIENCE => {
                    tokio::time::sleep(DEFRAGMENT_AGAIN).await;
                }
                Err(why) => return Err(table(&why)),
            }
        }
    }

    async fn hash(&self, request: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        self.context.admit(&request, Needs::Voter)?;
        let store = self.context.store.clone();
        let done = spawn_blocking(move || {
            let kv = store.read();
            let (revision, hash) = (kv.revision(), kv.deferred_hash()?);
            drop(kv);
            hash().map(|hash| (hash, revision))
        });
        let done = done.await.map_err(|why| Status::internal(why.to_string()))?;
        let (hash, revision) = done.map_err(|why| table(&why))?;
        let header = Some(self.context.header(revision));
        Ok(Response::new(HashResponse { header, hash }))
    }

    async fn hash_kv(
        &self,
        request: Request<HashKvRequest>,
    ) -> Result<Response<HashKvResponse>, Status> {
        self.context.admit(&request, Needs::Voter)?;
        let revision = request.into_inner().revision;
        let store = self.context.store.clone();
        let done = spawn_blocking(move || hash_kv(&store, revision));
        let reply = done.await.map_err(|why| Status::internal(why.to_string()))??;
        let Ok(KvOutcome::Hash(HashOutcome { hash, compact_revision, hash_revision })) =
            reply.result
        else {
            return Err(Status::internal("etcdserver: reply of another kind"));
        };
        let header = Some(self.context.header(reply.revision));
        Ok(Response::new(HashKvResponse { header, hash, compact_revision, hash_revision }))
    }

    type SnapshotStream = ReceiverStream<Result<SnapshotResponse, Status>>;

    async fn snapshot(
        &self,
        request: Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        self.context.admit(&request, Needs::Member)?;
        let kv = self.context.store.read();
        let chunks = kv.snapshot().map_err(|why| table(&why))?;
        let file_header = SnapshotHeader {
            cluster_id: self.context.cluster_id,
            revision: kv.revision(),
            applied: kv.applied(),
        };
        let mut left = kv.bytes_in_use();
        drop(kv);
        let header = self.context.header(file_header.revision);
        let (responses, stream) = mpsc::channel(RESPONSES_WAITING_MAX);
        // No thread waits for a client that does not read: there are only so many.
        tokio::spawn(async move {
            let mut blobs = Writer::new(file_header, chunks).peekable();
            while let Some(blob) = blobs.next() {
                // An estimate, and nothing only at the end.
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
        self.context.admit(&request, Needs::Voter)?;
        let node = &self.context.node;
        let to = MemberId(request.into_inner().target_id);
        if !node.is_leader() {
            return Err(not_leader());
        }
        if !node.membership().is_voter(to) {
            return Err(bad_leader_transferee());
        }
        if to != node.id() {
            node.transfer(to).await.map_err(|why| failed(&why))?;
        }
        Ok(Response::new(MoveLeaderResponse { header: None }))
    }

    async fn downgrade(
        &self,
        _: Request<DowngradeRequest>,
    ) -> Result<Response<DowngradeResponse>, Status> {
        Err(Status::unimplemented("etcdserver: there is no older version to downgrade to"))
    }
}

/// In pieces, so that commands run between them.
fn hash_kv(store: &Store, revision: i64) -> Result<KvReply, Status> {
    let mut hashing = store.read().start_hash(revision).map_err(refused)?;
    loop {
        let piece = store.read().continue_hash(&mut hashing, ROWS_AT_ONCE);
        if !piece.map_err(|why| table(&why))?.map_err(refused)? {
            return Ok(hashing.finish());
        }
    }
}

fn alarm_member(alarm: Alarm) -> AlarmMember {
    let kind = match alarm.kind {
        AlarmKind::NoSpace => AlarmType::Nospace,
        AlarmKind::Corrupt => AlarmType::Corrupt,
    };
    AlarmMember { member_id: alarm.member, alarm: kind as i32 }
}

/// As etcd prints it, down to the space at the end.
fn alarm_text(alarm: Alarm) -> String {
    let alarm = alarm_member(alarm);
    format!("memberID:{} alarm:{} ", alarm.member_id, alarm.alarm().as_str_name())
}

const RESPONSES_WAITING_MAX: usize = 4;
/// Rows that are hashed before commands have their turn.
const ROWS_AT_ONCE: usize = 10_000;
/// How long it waits until nobody reads a snapshot.
const DEFRAGMENT_PATIENCE: Duration = Duration::from_secs(30);
const DEFRAGMENT_AGAIN: Duration = Duration::from_millis(100);
