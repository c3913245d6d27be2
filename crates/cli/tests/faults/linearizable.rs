//! Linearizability of client operations under kills, a suspended leader and a replacement.

use crate::cluster::{FaultCluster, test_directory};
use crate::support::cluster::TestCluster;
use crate::support::run;
use crate::workload::Workload;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_stay_linearizable_under_faults_and_a_replacement() {
    let directory = test_directory("linearizable");
    let mut cluster = FaultCluster::start(TestCluster::new::<4>(&directory, "m"), 3).await;
    let workload = Workload::start(5, cluster.clients());
    workload.wait_for_calls(100).await;

    let killed = cluster.leader().await;
    cluster.kill(killed);
    workload.wait_for_calls(100).await;
    cluster.restart(killed);
    workload.wait_for_calls(100).await;

    let suspended = cluster.leader().await;
    cluster.signal(suspended, "STOP");
    // There is a new leader, while the old one still considers itself the leader.
    cluster.leader_among(&cluster.others(suspended)).await;
    workload.wait_for_calls(100).await;
    cluster.signal(suspended, "CONT");
    workload.wait_for_calls(100).await;

    let leaving = cluster.leader().await;
    replace(&mut cluster, leaving, 3).await;
    workload.set_clients(cluster.clients());
    workload.wait_for_calls(100).await;
    let killed = cluster.leader().await;
    cluster.kill(killed);
    workload.wait_for_calls(100).await;
    cluster.restart(killed);
    cluster.wait_serving(killed).await;
    workload.check_history().await;
    cluster.assert_identical_data().await;
}

/// With the command of the operating guide; the leader itself is replaced.
async fn replace(cluster: &mut FaultCluster, leaving: usize, joining: usize) {
    let staying = cluster.others(leaving)[0];
    let [leaving_name, endpoint] =
        [&cluster.servers[leaving].name, &cluster.servers[staying].client_url];
    let new = cluster.servers[joining].pair();
    run(&["member", "replace", leaving_name, &new, "--no-wait", "--endpoints", endpoint]);
    cluster.join(joining, &[0, 1, 2, 3]).await;
    let (code, log) = cluster.wait_exit(leaving);
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("permanently removed"), "{log}");
}
