//! Differential test: sends the same random requests to etcd and to this server. The responses
//! must be equal, except for ids and terms. Skipped with a message where etcd is not installed.
//! `SEED=7 REQUESTS=20000` in the environment select other requests, `SEED=7 HISTORIES=1000` other
//! histories of users, roles and requests, and `ETCD=/path/to/etcd` another etcd than the one in the
//! path.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod auth_histories;
mod auth_steps;
mod cases;
mod compare;
mod etcd;
mod gateway;
#[path = "../gateway/http_client.rs"]
mod http_client;
mod random_requests;
#[path = "../support/mod.rs"]
mod support;

use compare::Both;
use etcd::Etcd;
use quorate_server::config::ClusterState;
use quorate_server::{EtcdRelease, RunningServer};
use random_requests::RandomRequests;
use support::TestMember;

/// The number of requests for each seed.
const REQUESTS: usize = 1_500;
const SEEDS: [u64; 2] = [1, 2];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_and_quorate_give_equal_responses() {
    let seeds = std::env::var("SEED").ok().map(|seed| vec![seed.parse().unwrap()]);
    for seed in seeds.unwrap_or(SEEDS.to_vec()) {
        let member = TestMember::new("ours");
        let Some(etcd) = Etcd::start() else {
            eprintln!("skipped: etcd is not installed");
            return;
        };
        let running = start_like(&etcd, &member).await;
        let mut both = Both::new(etcd.channel().await, member.channel().await);
        both.old_etcd = etcd.version().await < (3, 5);
        let mut random = RandomRequests::new(seed);
        both.begin_watching(&mut random).await;
        let requests = std::env::var("REQUESTS").map_or(REQUESTS, |n| n.parse().unwrap());
        for number in 0..requests {
            let request = random.request(both.revision, both.compacted);
            both.send(&format!("seed {seed}, request {number}"), request).await;
        }
        both.end_watching(&format!("seed {seed}")).await;
        running.stop().await;
    }
}

/// Starts a member that says it is the release of this etcd.
async fn start_like(etcd: &Etcd, member: &TestMember) -> RunningServer {
    let (major, minor) = etcd.version().await;
    let release = EtcdRelease::parse(&format!("{major}.{minor}"));
    let oldest = EtcdRelease::ALL[0];
    let mut config = member.config(&[member], ClusterState::New);
    config.etcd_release =
        release.unwrap_or(if minor < 5 { oldest } else { EtcdRelease::default() });
    RunningServer::start(config).await.unwrap()
}

/// The fixed cases are those of etcd 3.7; an older one has other answers to some of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_different_answers_are_equal() {
    let Some(etcd) = Etcd::start() else {
        eprintln!("skipped: etcd is not installed");
        return;
    };
    if etcd.version().await < (3, 7) {
        eprintln!("skipped: etcd is older than 3.7; name a newer one with ETCD=/path/to/etcd");
        return;
    }
    let member = TestMember::new("ours");
    let running = start_like(&etcd, &member).await;
    let theirs = cases::answers(etcd.channel().await, etcd.address()).await;
    let ours = cases::answers(member.channel().await, running.client_addresses()[0]).await;
    let different: Vec<_> =
        ours.iter().zip(&theirs).filter(|(ours, theirs)| ours != theirs).collect();
    assert_eq!(ours.len(), theirs.len());
    assert!(different.is_empty(), "ours, then etcd's: {different:#?}");
    running.stop().await;
}
