//! The service Maintenance.

use std::io::Cursor;

use quorate_etcd_files::EtcdDatabase;
use quorate_kv::{Kv, MemoryTable};
use quorate_proto::etcdserverpb::{
    CompactionRequest, DefragmentRequest, HashKvRequest, HashRequest, MoveLeaderRequest,
    SnapshotRequest, StatusRequest,
};
use quorate_server::snapshot_file::SnapshotFile;
use quorate_server::{EtcdRelease, SNAPSHOT_FORMAT_KEY, ServiceLimits};
use tonic::Code;
use tonic::metadata::MetadataValue;

use crate::support::{CLUSTER, ServiceMember, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_describes_the_member() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let empty = within("it", member.maintenance().status(StatusRequest {})).await.unwrap();
    assert!(empty.into_inner().db_size_in_use > 0, "as a file without keys");
    let revision = member.put("a", "1").await;
    let status = within("it", member.maintenance().status(StatusRequest {})).await.unwrap();
    let status = status.into_inner();
    let header = status.header.unwrap();
    assert_eq!((header.cluster_id, header.member_id, header.revision), (CLUSTER, 1, revision));
    assert_eq!(
        (&status.version[..], status.leader, status.is_learner),
        (EtcdRelease::V3_7.version(), 1, false)
    );
    assert_eq!(status.storage_version, "3.7.0");
    assert!(status.db_size > 0, "clients divide by it: {status:?}");
    assert!(status.raft_index >= status.raft_applied_index && status.raft_applied_index > 0);
    assert_eq!(status.raft_term, header.raft_term);
    assert!(status.db_size >= status.db_size_in_use && status.db_size_in_use > 0);
    assert_eq!((status.errors.len(), status.db_size_quota), (0, 0));
    within("it", member.maintenance().defragment(DefragmentRequest {})).await.unwrap();
    // A transfer to itself does nothing.
    let here = MoveLeaderRequest { target_id: 1 };
    within("it", member.maintenance().move_leader(here)).await.unwrap();
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hashes_differ_between_states() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let revision = member.put("a", "1").await;
    let hash_kv = async |revision| {
        let reply = member.maintenance().hash_kv(HashKvRequest { revision }).await;
        reply.unwrap().into_inner()
    };
    let hash = async || member.maintenance().hash(HashRequest {}).await.unwrap().into_inner().hash;
    let (first, whole) = (hash_kv(0).await, hash().await);
    assert_eq!((first.hash_revision, first.compact_revision), (revision, -1));
    member.put("a", "2").await;
    let second = hash_kv(0).await;
    assert!(second.hash != first.hash && hash().await != whole);
    assert_eq!(hash_kv(revision).await.hash, first.hash, "of the past");
    let compaction = CompactionRequest { revision: revision + 1, physical: true };
    member.kv().compact(compaction).await.unwrap();
    assert_eq!(hash_kv(0).await.compact_revision, revision + 1);
    let compacted = hash_kv(revision + 1).await;
    assert_eq!((compacted.hash, compacted.compact_revision), (second.hash, -1), "as before");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_has_the_format_that_the_request_asks_for() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    member.put("key", "value").await;
    let snapshot = async |format: &'static str| {
        let mut request = tonic::Request::new(SnapshotRequest {});
        if !format.is_empty() {
            let value = MetadataValue::from_static(format);
            request.metadata_mut().insert(SNAPSHOT_FORMAT_KEY, value);
        }
        let mut stream = member.maintenance().snapshot(request).await?.into_inner();
        let (mut file, mut version, mut last) = (Vec::new(), String::new(), 0);
        while let Some(piece) = stream.message().await? {
            file.extend_from_slice(&piece.blob);
            (version, last) = (piece.version, piece.blob.len());
        }
        Ok::<_, tonic::Status>((file, version, last))
    };
    assert!(snapshot("quorate").await.unwrap().0.starts_with(b"quorate snapshot"));
    let formats = [("", "3.7.0"), ("etcd", "3.7.0"), ("etcd-3.6", "3.6.0"), ("etcd-3.5", "")];
    for (format, version) in formats {
        let (file, said, last) = snapshot(format).await.unwrap();
        assert_eq!((&said[..], last), (version, 32), "the last piece is the checksum: {format}");
        let mut database = EtcdDatabase::open(Cursor::new(file)).unwrap();
        let status = database.status().unwrap();
        assert_eq!(status.total_keys, 1);
        assert_eq!(status.version.as_deref().unwrap_or_default(), version, "{format}");
        let marks = database.marks().unwrap();
        assert!(marks.term > 0 && marks.consistent_index > 0);
    }
    for format in ["other", "etcd-", "etcd-3.4"] {
        let unknown = snapshot(format).await.unwrap_err();
        assert_eq!(unknown.code(), Code::InvalidArgument, "{unknown}");
    }
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_in_our_own_format_can_be_installed() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    let mut revision = 0;
    for number in 0..300 {
        revision = member.put(&format!("key {number}"), &"v".repeat(1_000)).await;
    }
    let mut request = tonic::Request::new(SnapshotRequest {});
    request.metadata_mut().insert(SNAPSHOT_FORMAT_KEY, MetadataValue::from_static("quorate"));
    let stream = within("it", member.maintenance().snapshot(request)).await.unwrap();
    let mut stream = stream.into_inner();
    let (mut file, mut left) = (Vec::new(), Vec::new());
    while let Some(piece) = within("a piece", stream.message()).await.unwrap() {
        file.extend_from_slice(&piece.blob);
        left.push(piece.remaining_bytes);
    }
    assert_eq!(file.len() % 512, 32, "as etcdctl checks");
    assert_eq!(left.iter().filter(|left| **left == 0).count(), 1);
    assert_eq!(left.last(), Some(&0));
    let file = SnapshotFile::open(Cursor::new(file)).unwrap();
    assert_eq!((file.header.cluster_id, file.header.revision), (CLUSTER, revision));
    let mut kv = Kv::open(MemoryTable::default()).unwrap();
    let applied = file.header.applied;
    kv.install(&mut file.chunks().unwrap()).unwrap();
    assert_eq!((kv.revision(), kv.applied(), kv.key_count()), (revision, applied, 300));
    let hash = member.maintenance().hash(HashRequest {}).await.unwrap().into_inner().hash;
    assert_eq!(kv.hash().unwrap(), hash);
    member.stop().await;
}

/// Clients that request a snapshot and do not read it hold no thread.
#[test]
fn stalled_snapshots_do_not_block_other_requests() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let member = ServiceMember::single(ServiceLimits::default()).await;
        let value = "v".repeat(1 << 20);
        for number in 0..12 {
            member.put(&format!("key {number}"), &value).await;
        }
        let mut stalled = Vec::new();
        for _ in 0..4 {
            let mut client = member.other_maintenance();
            let stream = within("it", client.snapshot(SnapshotRequest {})).await;
            stalled.push((client, stream.unwrap()));
        }
        let request = HashKvRequest { revision: 0 };
        within("a hash", member.maintenance().hash_kv(request)).await.unwrap();
        drop(stalled);
        member.stop().await;
    });
}
