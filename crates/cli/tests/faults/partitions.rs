//! Network partitions, in both directions and in one, with clients on both sides.

use crate::cluster::{FaultCluster, test_directory};
use crate::network::TestNetwork;
use crate::support::{TestDirectory, run, run_failing};
use crate::workload::Workload;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_isolated_leader_serves_no_stale_reads_and_acknowledges_nothing() {
    let Some(network) = TestNetwork::new(0, 3) else {
        println!("skipped: an_isolated_leader: creating network namespaces is not permitted");
        return;
    };
    let directory = test_directory("cut-off");
    let mut cluster = start(&directory, &network).await;
    let workload = Workload::start(5, cluster.clients());
    workload.wait_for_calls(100).await;
    cluster.client(0).put_retrying("word", "before").await;
    let old = cluster.leader().await;
    network.isolate(old);
    assert_deposed(&cluster, old).await;
    workload.wait_for_calls(100).await;

    network.reconnect(old);
    cluster.wait_serving(old).await;
    workload.wait_for_calls(50).await;
    workload.check_history().await;
    assert_eq!(cluster.assert_identical_data().await["word"], "after");
    drop(cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_one_way_failure_does_not_stop_the_majority() {
    let Some(network) = TestNetwork::new(1, 3) else {
        println!("skipped: a_one_way_failure: creating network namespaces is not permitted");
        return;
    };
    let directory = test_directory("one-direction");
    let mut cluster = start(&directory, &network).await;
    let workload = Workload::start(5, cluster.clients());
    cluster.client(0).put_retrying("word", "first").await;

    // One follower receives nothing from the leader; the other one does.
    let leader = cluster.leader().await;
    let deaf = cluster.others(leader)[0];
    network.block(leader, deaf);
    cluster.client(leader).put_retrying("word", "before").await;
    if let Ok(value) = cluster.client(deaf).get("word").await {
        assert_eq!(value.as_deref(), Some("before"));
    }
    workload.wait_for_calls(100).await;
    network.unblock(leader, deaf);
    cluster.wait_serving(deaf).await;

    // No follower receives anything from the leader; the leader receives everything.
    let old = cluster.leader().await;
    cluster.others(old).into_iter().for_each(|other| network.block(old, other));
    assert_deposed(&cluster, old).await;
    workload.wait_for_calls(100).await;
    cluster.others(old).into_iter().for_each(|other| network.unblock(old, other));
    cluster.wait_serving(old).await;
    workload.check_history().await;
    assert_eq!(cluster.assert_identical_data().await["word"], "after");
    drop(cluster);
}

/// The isolated member does not know that the other one was added.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_removed_through_itself_while_another_one_is_isolated() {
    let Some(network) = TestNetwork::new(4, 4) else {
        println!("skipped: a_member_is_removed: creating network namespaces is not permitted");
        return;
    };
    let directory = test_directory("stale-membership");
    let mut cluster = start(&directory, &network).await;
    let leader = cluster.leader().await;
    let isolated = cluster.others(leader)[0];
    network.isolate(isolated);
    let added = cluster.servers[3].clone();
    let (pair, leader_url) = (added.pair(), cluster.servers[leader].client_url.clone());
    run(&["member", "add", &pair, "--endpoints", &leader_url]);
    cluster.join(3, &[0, 1, 2, 3]).await;

    let stale = cluster.servers[isolated].client_url.clone();
    let (code, error) = run_failing(&["member", "remove", &added.name, "--endpoints", &stale]);
    assert_eq!(code, Some(1), "{error}");
    assert!(!error.contains("not found"), "{error}");
    let endpoints = [added.client_url.clone(), stale, leader_url].join(",");
    run(&["member", "remove", &added.name, "--endpoints", &endpoints]);
    let (code, log) = cluster.wait_exit(3);
    assert_eq!(code, Some(3), "{log}");
    network.reconnect(isolated);
    cluster.wait_serving(isolated).await;
    drop(cluster);
}

async fn start(directory: &TestDirectory, network: &TestNetwork) -> FaultCluster {
    FaultCluster::start(network.servers(directory), 3).await
}

/// The others elect a new leader. The old one acknowledges no write that it received since, and
/// serves no read after they have acknowledged a new write.
async fn assert_deposed(cluster: &FaultCluster, old: usize) {
    let others = cluster.others(old);
    let isolated = cluster.client(old).clone();
    let write = tokio::spawn({
        let client = isolated.clone();
        async move { client.put("lost", "value").await }
    });
    cluster.client(others[0]).put_retrying("word", "after").await;
    let new = cluster.leader_among(&others).await;
    let reads: Vec<_> = (0..10)
        .map(|_| {
            let client = isolated.clone();
            tokio::spawn(async move { client.get("word").await })
        })
        .collect();
    for read in reads {
        assert!(read.await.unwrap().is_err(), "a read without confirmation by a quorum");
    }
    assert!(write.await.unwrap().is_err(), "a write that no quorum has");
    assert_eq!(cluster.client(new).get_retrying("lost").await, None);
}
