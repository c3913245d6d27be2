//! What clients see while everything happens at once: one order explains every answer.

use crate::common::cluster::Cluster;
use crate::common::run;
use crate::members::{Members, place};
use crate::workload::Workload;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_fit_one_order_through_deaths_a_standstill_and_a_replaced_member() {
    let place = place("linearizable");
    let mut members = Members::start(Cluster::new(&place, "m", 4), 4, 3).await;
    let workload = Workload::start(5, members.clients());
    workload.go_on(100).await;

    let dead = members.leader().await;
    members.kill(dead);
    workload.go_on(100).await;
    members.start_again(dead);
    workload.go_on(100).await;

    let still = members.leader().await;
    members.signal(still, "STOP");
    // A new leader answers, while the old one believes that it leads.
    members.leader_among(&members.others(still)).await;
    workload.go_on(100).await;
    members.signal(still, "CONT");
    workload.go_on(100).await;

    let leaver = members.leader().await;
    replace(&mut members, leaver, 3).await;
    workload.set_members(members.clients());
    workload.go_on(100).await;
    let dead = members.leader().await;
    members.kill(dead);
    workload.go_on(100).await;
    members.start_again(dead);
    members.serves(dead).await;
    workload.judge().await;
    members.agree().await;
}

/// By the command that the operating guide names; the leader itself leaves.
async fn replace(members: &mut Members<'_>, leaver: usize, newcomer: usize) {
    let (old, cluster) = (members.cluster.member_name(leaver), &members.cluster);
    let new = format!("{}={}", cluster.member_name(newcomer), cluster.peer(newcomer));
    let staying = members.others(leaver);
    let endpoint = cluster.client(staying[0]);
    run(&["member", "replace", &old, &new, "--no-wait", "--endpoints", &endpoint]);
    members.join(newcomer, &[0, 1, 2, 3]).await;
    let (code, said) = members.ended(leaver);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("permanently removed"), "{said}");
}
