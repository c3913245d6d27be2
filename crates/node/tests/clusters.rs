//! Whole members in one process, over loopback TCP and real files.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue panics")]

mod support;

use std::time::Duration;

use quorate::membership::MembershipEvent;
use quorate::{
    MemoryKv, MemoryNetwork, MemoryStorage, Node, NodeConfig, NodeError, RequestError,
    RequestRefused, StopReason,
};
use quorate_core::MemberId;
use quorate_core::membership::GoalEnd;
use support::{CLUSTER, Clients, Cluster, flip_byte, get, in_time, put, until_done, wait_for};
use tokio::time::timeout;

fn ids<const N: usize>(ids: [u64; N]) -> [MemberId; N] {
    ids.map(MemberId)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_of_three_five_and_seven_serve_on_every_member() {
    for members in [3, 5, 7] {
        let cluster = Cluster::start(members).await;
        for (id, node) in &cluster.nodes {
            let key = format!("by {id}");
            until_done("a write", async || node.propose(put(&key, "x")).await).await;
        }
        for node in cluster.nodes.values() {
            for id in 1..=members {
                assert_eq!(get(node, &format!("by {id}")).await.as_deref(), Some("x"));
            }
        }
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_member_has_its_data() {
    let mut cluster = Cluster::start(3).await;
    for number in 0..50 {
        let command = put("counter", &number.to_string());
        until_done("a write", async || cluster.any().propose(command.clone()).await).await;
    }
    for id in 1..=3 {
        cluster.end(id).await;
    }
    for id in 1..=3 {
        cluster.restart(id).await.unwrap();
    }
    assert_eq!(get(cluster.any(), "counter").await.as_deref(), Some("49"));
    let status = cluster.any().status().await.unwrap();
    assert_eq!(status.boots, 2);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_transferred_to_the_requested_member() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let other = cluster.nodes.values().find(|node| node.id() != leader.id()).unwrap().clone();
    // Requested on a third member.
    let third = cluster.nodes.values().find(|n| ![leader.id(), other.id()].contains(&n.id()));
    until_done("a transfer", async || third.unwrap().transfer(other.id()).await).await;
    wait_for("the other leads", async || other.is_leader().then_some(())).await;
    let stranger = other.transfer(MemberId(9)).await;
    assert!(
        matches!(stranger, Err(RequestError::Refused(RequestRefused::ByLeader(_)))),
        "{stranger:?}"
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_the_leader_transfers_leadership_first() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    until_done("a write", async || leader.propose(put("a", "1")).await).await;
    assert!(matches!(in_time("a stop", leader.stop()).await, StopReason::Stopped));
    let others = || cluster.nodes.values().filter(|node| node.id() != leader.id());
    // Leadership was transferred: another member leads, without an election timeout.
    wait_for("another leads", async || others().find(|node| node.is_leader()).map(|_| ())).await;
    assert_eq!(get(others().next().unwrap(), "a").await.as_deref(), Some("1"));
    let late = leader.propose(put("a", "2")).await;
    assert_eq!(late, Err(RequestError::Refused(RequestRefused::Stopped)));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_goal_replaces_every_member_under_load_and_nothing_fails() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    until_done("a write", async || leader.propose(put("ready", "1")).await).await;
    let clients = Clients::start(6, cluster.nodes.values().cloned().collect());
    for old in 1..=3u64 {
        let new = old + 3;
        cluster.join(new).await;
        let speaker = cluster.nodes[&(old + 1)].clone();
        let voters = ids([old + 1, old + 2, new]);
        let plan = until_done("a plan", async || speaker.plan(voters, []).await).await;
        assert!(!plan.steps.is_empty());
        // Its clients move to other members first.
        let stay = cluster.nodes.iter().filter(|(id, _)| **id != old);
        clients.set_services(stay.map(|(_, node)| node.clone()).collect());
        let ended = in_time("the goal", speaker.set_goal(voters, [], [])).await.unwrap();
        assert_eq!(ended.end, GoalEnd::Reached);
        cluster.end(old).await;
    }
    clients.wait_for_writes(200).await;
    let results = clients.check_results().await;
    assert_eq!(results.failures, [] as [&str; 0]);
    assert!(results.done > 350, "{} done", results.done);
    let membership = cluster.any().membership();
    assert_eq!(membership.voters(), ids([4, 5, 6]).into_iter().collect());
    assert!(membership.learners().is_empty());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_far_behind_gets_a_snapshot() {
    let mut cluster = Cluster::start_with(3, |config| {
        config.options.snapshot_entries = Some(50);
        config.raft.trim_keep_entries = 10;
        config.raft.tail_bytes_max = 4096;
    })
    .await;
    let leader = cluster.leader().await;
    let away = cluster.nodes.values().find(|node| node.id() != leader.id()).unwrap().id().0;
    cluster.end(away).await;
    for number in 0..500 {
        let command = put(&format!("key {}", number % 20), &number.to_string());
        until_done("a write", async || leader.propose(command.clone()).await).await;
    }
    let taken = until_done("a snapshot", async || leader.snapshot().await).await;
    leader.trim(taken);
    let node = cluster.restart(away).await.unwrap();
    wait_for("the snapshot", async || (leader.metrics().snapshots_sent > 0).then_some(())).await;
    assert_eq!(get(&node, "key 19").await.as_deref(), Some("499"));
    // And it is there after another restart.
    cluster.end(away).await;
    let node = cluster.restart(away).await.unwrap();
    assert_eq!(get(&node, "key 0").await.as_deref(), Some("480"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_directory_under_the_old_id_is_refused() {
    let mut cluster = Cluster::start(3).await;
    until_done("a write", async || cluster.any().propose(put("a", "1")).await).await;
    wait_for("all disks are named", async || {
        let membership = cluster.any().membership();
        (1..=3).all(|id| membership.incarnation(MemberId(id)).is_some()).then_some(())
    })
    .await;
    let leader = cluster.leader().await;
    let wiped = cluster.nodes.values().find(|node| node.id() != leader.id()).unwrap().id();
    cluster.end(wiped.0).await;
    std::fs::remove_dir_all(cluster.path(wiped.0)).unwrap();
    let node = cluster.restart(wiped.0).await.unwrap();
    let known =
        wait_for("it is told", async || node.status().await.unwrap().identity_rejected).await;
    assert!(known.1.incarnation.is_some());
    // All members reject it, and count that.
    wait_for("it is rejected", async || {
        let turned =
            cluster.nodes.values().map(|node| node.metrics().transport["rejected_other_disk"]);
        (turned.sum::<u64>() > 0).then_some(())
    })
    .await;
    // It does not count: both others are needed, and enough.
    until_done("a write", async || leader.propose(put("a", "2")).await).await;
    let next = cluster.nodes.values().find(|n| ![leader.id(), wiped].contains(&n.id())).unwrap();
    let next = next.id().0;
    cluster.end(next).await;
    let alone = timeout(support::TICK * 60, leader.propose(put("a", "3"))).await;
    assert!(!matches!(alone, Ok(Ok(_))), "committed by one and a wiped disk");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_log_is_refused_with_its_position() {
    let mut cluster = Cluster::start(3).await;
    for number in 0..100 {
        let command = put("key", &number.to_string());
        until_done("a write", async || cluster.any().propose(command.clone()).await).await;
    }
    cluster.end(2).await;
    let mut files: Vec<_> = std::fs::read_dir(cluster.path(2)).unwrap().collect();
    files.sort_by_key(|file| file.as_ref().unwrap().file_name());
    let mut names = files.iter().map(|file| file.as_ref().unwrap().path());
    let log = names.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("wal-0"));
    flip_byte(&log.expect("a segment of the log"), 6_000);
    let refused = cluster.restart(2).await.unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, NodeError::Storage(_)), "{text}");
    assert!(text.contains("wal-0") && text.contains("byte"), "{text}");
    // The other members continue.
    until_done("a write", async || cluster.any().propose(put("key", "on")).await).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_another_cluster_or_in_use_is_refused() {
    let cluster = Cluster::start(1).await;
    let storage = || quorate::DirectoryStorage::new(cluster.path(1)).unwrap();
    let start = async |config: NodeConfig| {
        let transport = support::listen(0).await;
        Node::start(config, storage(), MemoryKv::default(), transport).await
    };
    let same = NodeConfig::first(CLUSTER, 1, [(1, "127.0.0.1:1")]);
    let text = start(same.clone()).await.unwrap_err().to_string();
    assert!(text.contains("another process"), "{text}");
    let node = cluster.any();
    node.stop_now().await;
    let mut other = same;
    other.cluster = 99;
    let text = start(other).await.unwrap_err().to_string();
    assert!(text.contains("cluster"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_reports_committed_effective_and_settled_memberships() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    until_done("a write", async || leader.propose(put("a", "1")).await).await;
    let mut watch = leader.watch_membership();
    assert!(matches!(watch.next().await, Some(MembershipEvent::Current { .. })));
    let joined = cluster.join(4).await;
    in_time("caught up", leader.wait_caught_up(MemberId(4))).await.unwrap();
    let (mut committed, mut counts, mut settled) = (None, None, None);
    while settled.is_none() {
        match in_time("news", watch.next()).await.unwrap() {
            MembershipEvent::Committed { id, membership } if membership.contains(MemberId(4)) => {
                committed = committed.or(Some(id));
            }
            MembershipEvent::InEffect { id, membership } if membership.contains(MemberId(4)) => {
                counts = counts.or(Some(id));
            }
            MembershipEvent::Settled { id, membership } if membership.contains(MemberId(4)) => {
                settled = Some(id);
            }
            _ => {}
        }
    }
    assert!(committed.is_some() && committed == counts && settled >= committed);
    // The joining member learns of it, too.
    in_time("settled there", joined.wait_settled(settled.unwrap())).await.unwrap();
    assert_eq!(get(&joined, "a").await.as_deref(), Some("1"));
    cluster.stop().await;
}

/// Callers that wait at the same time share requests. Each must still see what was acknowledged
/// before it called, and callers that give up must not hold up the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn barriers_of_many_callers_cover_what_each_has_seen() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await.clone();
    let follower = cluster.nodes.values().find(|node| node.id() != leader.id()).unwrap().clone();
    let mut callers = Vec::new();
    for number in 0..200 {
        callers.push(tokio::spawn(write_and_wait(number, leader.clone(), follower.clone())));
    }
    for caller in callers {
        in_time("a caller", caller).await.unwrap();
    }
    cluster.stop().await;
    assert!(follower.barrier().await.is_err());
}

/// A caller whose runtime is not driven any more, such as that of a thread which ran one `block_on`, does not
/// hold up the callers that shared its request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_does_not_depend_on_the_runtimes_of_its_callers() {
    // Without the other members there is no leader: the request waits until its deadline.
    let config = NodeConfig::first(7, 1, (1..=3).map(|id| (id, "")));
    let config = config.with_tick(Duration::from_millis(10));
    let transport = MemoryNetwork::new().transport();
    let node = Node::start(config, MemoryStorage::new(), MemoryKv::default(), transport);
    let node = node.await.unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let first = node.clone();
    let given_up = tokio::task::spawn_blocking(move || {
        let barrier = async { timeout(Duration::from_millis(200), first.barrier()).await };
        assert!(runtime.block_on(barrier).is_err());
        runtime
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let second = tokio::spawn({
        let node = node.clone();
        async move { node.barrier().await }
    });
    let runtime = given_up.await.unwrap();
    let ended = in_time("the other caller", second).await.unwrap();
    assert_eq!(ended, Err(RequestError::Refused(RequestRefused::NoLeader)));
    runtime.shutdown_background();
    node.stop_now().await;
}

/// Writes on one member, and waits for it on the other.
async fn write_and_wait(number: u64, leader: Node, follower: Node) {
    let key = format!("key {number}");
    for _ in 0..5 {
        // Refused without a leader: the machine may be busy.
        let written = loop {
            match leader.propose(put(&key, "x")).await {
                Ok(written) => break written,
                Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        };
        if number.is_multiple_of(4) {
            // Gives up, perhaps while others wait for the same request.
            let soon = Duration::from_micros(10 * number);
            let _ = timeout(soon, follower.barrier()).await;
            continue;
        }
        let seen = loop {
            match follower.barrier().await {
                Ok(seen) => break seen,
                Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        };
        assert!(seen >= written.index, "{seen} < {}", written.index);
    }
}

const RETRY_INTERVAL: Duration = Duration::from_millis(50);
