//! A disk whose syncs do not return, while the process of its member runs on.

use crate::cluster::{FaultCluster, test_directory};
use crate::faulty_disk::{self, DiskFault};
use crate::support::TestDirectory;
use crate::support::cluster::TestCluster;
use crate::support::server::{TestServer, succeed};
use crate::writers::{FaultWriters, assert_present};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_hangs_is_replaced_and_can_be_removed() {
    let directory = test_directory("hung-disk");
    let Some(mut cluster) = start(&directory).await else {
        println!("skipped: a_leader_whose_disk_hangs: no C compiler");
        return;
    };
    let old = cluster.leader().await;
    let others = cluster.others(old);
    let clients = others.iter().map(|other| cluster.client(*other).clone()).collect::<Vec<_>>();
    let writers = FaultWriters::start(2, &clients);
    writers.wait_for_writes(20).await;

    // The old leader runs and answers. Writes through the others continue under another one.
    faulty_disk::set_disk(&cluster.servers[old], DiskFault::Hung);
    let new = cluster.leader_among(&others).await;
    assert_ne!(new, old);
    writers.wait_for_writes(20).await;
    assert!(cluster.is_running(old), "{}", cluster.log_text(old));
    assert!(cluster.log_text(old).contains("stands still"), "{}", cluster.log_text(old));

    // A command that is given its endpoint first uses another one.
    let all: Vec<usize> = [&[old][..], &others].concat();
    succeed(&cluster.servers.select(&all), &["member", "list"]);

    // It can be removed although it acknowledges nothing.
    let name = cluster.servers[old].name.clone();
    let (_, text) = succeed(&cluster.servers.select(&others), &["member", "remove", &name]);
    assert!(text.contains("is removed"), "{text}");
    writers.wait_for_writes(20).await;
    let written = writers.finish().await;
    cluster.kill(old);
    assert_present(&cluster.assert_identical_data().await, &written);
    drop(cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_hung_for_a_while_follows_again() {
    let directory = test_directory("hung-disk-returns");
    let Some(mut cluster) = start(&directory).await else {
        println!("skipped: a_leader_whose_disk_hung_for_a_while: no C compiler");
        return;
    };
    let old = cluster.leader().await;
    let others = cluster.others(old);
    faulty_disk::set_disk(&cluster.servers[old], DiskFault::Hung);
    // A write makes the leader use its disk.
    cluster.client(others[0]).put_retrying("word", "during").await;
    cluster.leader_among(&others).await;
    faulty_disk::clear_disk(&cluster.servers[old]);
    cluster.wait_serving(old).await;
    assert_eq!(cluster.client(old).get_retrying("word").await.as_deref(), Some("during"));
    assert_eq!(cluster.assert_identical_data().await["word"], "during");
    drop(cluster);
}

/// None without a C compiler.
async fn start(directory: &TestDirectory) -> Option<FaultCluster> {
    let mut servers = TestServer::all(directory, ["m0", "m1", "m2"]);
    if !faulty_disk::prepare(&mut servers, &directory.path) {
        return None;
    }
    Some(FaultCluster::start(TestCluster::of(servers.into()), 3).await)
}
