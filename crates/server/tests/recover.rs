//! New clusters from backups, and from the disk of one surviving member.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::io::Cursor;

use quorate_proto::etcdserverpb::SnapshotRequest;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_server::config::ClusterState;
use quorate_server::recover::{RecoverError, RestoreOptions, force_new_cluster, restore};
use quorate_server::{RunningServer, SNAPSHOT_FORMAT_KEY};
use support::{TestMember, start_all};
use tonic::Request;
use tonic::metadata::MetadataValue;

/// A backup in our own format, as `quorate snapshot save` requests it, or in etcd's, as `etcdctl`
/// does.
async fn backup(member: &TestMember, format: Option<&'static str>) -> Vec<u8> {
    let mut maintenance = MaintenanceClient::new(member.channel().await);
    let mut request = Request::new(SnapshotRequest {});
    if let Some(format) = format {
        request.metadata_mut().insert(SNAPSHOT_FORMAT_KEY, MetadataValue::from_static(format));
    }
    let mut stream = maintenance.snapshot(request).await.unwrap().into_inner();
    let mut bytes = Vec::new();
    while let Some(part) = stream.message().await.unwrap() {
        bytes.extend_from_slice(&part.blob);
    }
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_restored_as_a_new_cluster() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let old = start_all(&[&a]).await;
    for number in 0..20 {
        a.put_until_done(&format!("k{number}"), "old").await;
    }
    let file = backup(&a, Some("quorate")).await;
    let etcd_file = backup(&a, None).await;
    for server in old {
        server.stop().await;
    }

    let test_members = [&b, &c];
    for member in test_members {
        let config = member.config(&test_members, ClusterState::New);
        let restored = restore(&config, Cursor::new(&file), RestoreOptions::default()).unwrap();
        assert_eq!((restored.header.revision, restored.revision), (21, 21));
        let again = restore(&config, Cursor::new(&file), RestoreOptions::default()).unwrap_err();
        assert!(matches!(again, RecoverError::Create(_)), "{again}");
    }
    let config = a.config(&[&a], ClusterState::New);
    let restore_damaged = |mut file: Vec<u8>| {
        file[1000] ^= 1;
        restore(&config, Cursor::new(file), RestoreOptions::default()).unwrap_err()
    };
    let refused = restore_damaged(file);
    assert!(matches!(refused, RecoverError::File(_)), "{refused}");
    let refused = restore_damaged(etcd_file);
    assert!(matches!(refused, RecoverError::Etcd(_)), "{refused}");

    let new = start_all(&test_members).await;
    assert_eq!(b.get("k7").await.as_deref(), Some("old"));
    c.put_until_done("k7", "new").await;
    assert_eq!(b.get("k7").await.as_deref(), Some("new"));
    for server in new {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_member_of_three_continues_alone() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let test_members = [&a, &b, &c];
    let running = start_all(&test_members).await;
    a.put_until_done("x", "1").await;
    let cluster = running[0].cluster_id();
    assert_eq!(a.get("x").await.as_deref(), Some("1"));
    for server in running {
        server.stop().await;
    }

    let mut config = a.config(&test_members, ClusterState::New);
    config.force_new_cluster = true;
    let alone = RunningServer::start(config.clone()).await.unwrap();
    assert_ne!(alone.cluster_id(), cluster, "messages of the others must be rejected");
    assert_eq!(a.get("x").await.as_deref(), Some("1"));
    a.put_until_done("x", "2").await;
    assert_eq!(a.members().await.unwrap().len(), 1);
    // One of the lost members comes back, and finds no leader.
    let lost = b.start(&test_members, ClusterState::New).await;
    a.put_until_done("x", "3").await;
    assert_eq!(lost.node().leader(), None);
    lost.stop_now().await;
    alone.stop().await;
    assert_eq!(force_new_cluster(&config).unwrap(), None, "it is the only member already");

    // As if a crash had interrupted the recovery before the second rename.
    let new = config.data_dir.join("member-new-1f");
    std::fs::rename(config.data_dir.join("member"), &new).unwrap();
    config.force_new_cluster = false;
    let alone = RunningServer::start(config).await.unwrap();
    assert_eq!(a.get("x").await.as_deref(), Some("3"));
    assert!(!new.exists());
    alone.stop().await;

    let d = TestMember::new("d");
    let nothing = force_new_cluster(&d.config(&[&d], ClusterState::New)).unwrap_err();
    assert!(matches!(nothing, RecoverError::Empty), "{nothing}");
}
