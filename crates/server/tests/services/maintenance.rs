//! The service Maintenance.

use std::io::Cursor;

use quorate_kv::{Kv, MemoryTable};
use quorate_proto::etcdserverpb::{
    CompactionRequest, DefragmentRequest, HashKvRequest, HashRequest, MoveLeaderRequest,
    SnapshotRequest, StatusRequest,
};
use quorate_server::snapshot_file::SnapshotFile;
use quorate_server::{ETCD_VERSION, ServiceLimits};

use crate::support::{CLUSTER, Member, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_says_how_it_is() {
    let member = Member::alone(ServiceLimits::default()).await;
    let revision = member.put("a", "1").await;
    let status = within("it", member.maintenance().status(StatusRequest {})).await.unwrap();
    let status = status.into_inner();
    let header = status.header.unwrap();
    assert_eq!((header.cluster_id, header.member_id, header.revision), (CLUSTER, 1, revision));
    assert_eq!((&status.version[..], status.leader, status.is_learner), (ETCD_VERSION, 1, false));
    assert!(status.raft_index >= status.raft_applied_index && status.raft_applied_index > 0);
    assert_eq!(status.raft_term, header.raft_term);
    assert!(status.db_size >= status.db_size_in_use && status.db_size_in_use > 0);
    assert_eq!((status.errors.len(), status.db_size_quota), (0, 0));
    within("it", member.maintenance().defragment(DefragmentRequest {})).await.unwrap();
    // To itself: nothing to do.
    let here = MoveLeaderRequest { target_id: 1 };
    within("it", member.maintenance().move_leader(here)).await.unwrap();
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hashes_tell_states_apart() {
    let member = Member::alone(ServiceLimits::default()).await;
    let revision = member.put("a", "1").await;
    let hash_kv = async |revision| {
        let asked = member.maintenance().hash_kv(HashKvRequest { revision }).await;
        asked.unwrap().into_inner()
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
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_comes_back() {
    let member = Member::alone(ServiceLimits::default()).await;
    let mut revision = 0;
    for number in 0..300 {
        revision = member.put(&format!("key {number}"), &"v".repeat(1_000)).await;
    }
    let stream = within("it", member.maintenance().snapshot(SnapshotRequest {})).await.unwrap();
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

/// Clients that ask for a snapshot and do not read it cost no thread.
#[test]
fn stalled_snapshots_hold_up_nobody() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let member = Member::alone(ServiceLimits::default()).await;
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
        let asked = HashKvRequest { revision: 0 };
        within("a hash", member.maintenance().hash_kv(asked)).await.unwrap();
        drop(stalled);
        member.stop().await;
    });
}
