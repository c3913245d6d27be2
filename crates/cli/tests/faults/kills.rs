//! Killed members, and a leader that is suspended.

use crate::cluster::{FaultCluster, test_directory};
use crate::writers::{FaultWriters, assert_present};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_members_restart_with_every_acknowledged_write() {
    let directory = test_directory("kills");
    let mut cluster = FaultCluster::three(&directory).await;
    let writers = FaultWriters::start(4, &cluster.clients());
    writers.wait_for_writes(100).await;

    let leader = cluster.leader().await;
    cluster.kill(leader);
    writers.wait_for_writes(100).await;
    cluster.restart(leader);

    let next = cluster.leader().await;
    let follower = (0..3).find(|one| *one != next && *one != leader).unwrap();
    cluster.kill(follower);
    writers.wait_for_writes(100).await;
    cluster.restart(follower);
    writers.wait_for_writes(100).await;
    cluster.wait_serving(leader).await;
    cluster.wait_serving(follower).await;

    let written = writers.finish().await;
    assert!(written.len() >= 400, "{}", written.len());
    assert_present(&cluster.assert_identical_data().await, &written);
}

/// The requests sent while it is suspended are the first that it receives when it continues,
/// before another member can tell it that it is no longer the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_suspended_serves_no_stale_reads() {
    let directory = test_directory("suspended");
    let cluster = FaultCluster::three(&directory).await;
    cluster.client(0).put_retrying("key", "before").await;
    let old = cluster.leader().await;
    let suspended = cluster.client(old);
    // The connection is open before the member is suspended.
    assert_eq!(suspended.get_retrying("key").await.as_deref(), Some("before"));
    cluster.signal(old, "STOP");
    let others = cluster.others(old);
    cluster.client(others[0]).put_retrying("key", "after").await;
    let new = cluster.leader_among(&others).await;

    let reads: Vec<_> = (0..20)
        .map(|_| {
            let client = suspended.clone();
            tokio::spawn(async move { client.get("key").await })
        })
        .collect();
    let writer = suspended.clone();
    let write = tokio::spawn(async move { writer.put("other", "from the old leader").await });
    // Gives the requests time to reach its socket; if they are later, the test checks less.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    cluster.signal(old, "CONT");
    for read in reads {
        if let Ok(value) = read.await.unwrap() {
            assert_eq!(value.as_deref(), Some("after"));
        }
    }
    let written = write.await.unwrap().is_ok();
    let found = cluster.client(new).get_retrying("other").await;
    assert!(!written || found.is_some(), "acknowledged and lost");
    assert_eq!(suspended.get_retrying("key").await.as_deref(), Some("after"));
    cluster.assert_identical_data().await;
}
