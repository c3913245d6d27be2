//! A member that lost its disk must not vote under its old id: it forgot its promises.

use std::fs;

use crate::client::wait_for;
use crate::cluster::{FaultCluster, test_directory};
use crate::support::messages::{IDENTITY_REJECTED, OTHER_DISK};
use crate::support::run;
use crate::writers::{FaultWriters, assert_present};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_member_is_rejected_until_it_is_removed_and_added_again() {
    let directory = test_directory("wiped");
    let mut cluster = FaultCluster::three(&directory).await;
    let writers = FaultWriters::start(3, &cluster.clients());
    writers.wait_for_writes(50).await;
    let wiped = cluster.leader().await;
    cluster.kill(wiped);
    assert_rejected(&mut cluster, wiped, |cluster| cluster.restart(wiped)).await;
    assert_rejected(&mut cluster, wiped, |cluster| cluster.start_joining(wiped, &[0, 1, 2])).await;
    writers.wait_for_writes(50).await;

    let others = cluster.others(wiped);
    let endpoint = &cluster.servers[others[0]].client_url;
    let server = &cluster.servers[wiped];
    run(&["member", "remove", &server.name, "--endpoints", endpoint]);
    run(&["member", "add", &server.pair(), "--endpoints", endpoint]);
    cluster.join(wiped, &[0, 1, 2]).await;
    writers.wait_for_writes(50).await;
    let written = writers.finish().await;
    assert_present(&cluster.assert_identical_data().await, &written);
}

async fn assert_rejected(
    cluster: &mut FaultCluster,
    wiped: usize,
    start: impl Fn(&mut FaultCluster),
) {
    // If the others do not reply in time when it starts, they reject it later.
    loop {
        fs::remove_dir_all(&cluster.servers[wiped].data_dir).unwrap();
        start(cluster);
        wait_for("the wiped member is rejected", async || {
            (!cluster.is_running(wiped) || cluster.log_text(wiped).contains(IDENTITY_REJECTED))
                .then_some(())
        })
        .await;
        if !cluster.is_running(wiped) {
            break;
        }
        cluster.kill(wiped);
    }
    let (code, log) = cluster.wait_exit(wiped);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains(OTHER_DISK), "{log}");
    assert!(log.contains("remove it and add it"), "{log}");
}

/// No other member is running when it starts. Together with a member that is behind it would be a
/// quorum without the acknowledged write, so its vote must not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_member_that_starts_alone_does_not_count_for_a_quorum() {
    let directory = test_directory("wiped-alone");
    let mut cluster = FaultCluster::three(&directory).await;
    let (behind, wiped) = (0, 1);
    cluster.client(0).put_retrying("key", "before").await;
    cluster.kill(behind);
    // Only the other two have this.
    cluster.client(wiped).put_retrying("key", "after").await;
    cluster.kill(wiped);
    cluster.kill(2);
    fs::remove_dir_all(&cluster.servers[wiped].data_dir).unwrap();

    cluster.restart(wiped);
    let started = async || cluster.log_text(wiped).contains("ready to serve").then_some(());
    wait_for("the wiped member has started", started).await;
    cluster.restart(behind);
    let rejected = async || cluster.log_text(wiped).contains(IDENTITY_REJECTED).then_some(());
    wait_for("the wiped member is rejected", rejected).await;
    let (alone, other) = (cluster.client(behind), cluster.client(wiped));
    let (first, second) = tokio::join!(alone.get("key"), other.get("key"));
    assert!(first.is_err() && second.is_err(), "{first:?} {second:?}");

    cluster.restart(2);
    cluster.client(behind).put_retrying("more", "value").await;
    assert_eq!(cluster.client(behind).get_retrying("key").await.as_deref(), Some("after"));
    assert!(cluster.client(wiped).get("key").await.is_err());
    cluster.kill(wiped);
    cluster.assert_identical_data().await;
}
