//! The same requests, drawn from a fixed seed, to one member of etcd and one of ours: what
//! they answer must be the same, but for ids and terms. Skipped, by name, where etcd is not
//! installed. With `SEED=7 REQUESTS=20000` in the environment it draws those instead.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod compare;
mod etcd;
mod random_requests;
#[path = "../support/mod.rs"]
mod support;

use compare::Both;
use etcd::Etcd;
use quorate_server::config::ClusterState;
use random_requests::Draw;
use support::TestMember;

/// How many requests are drawn for each seed.
const REQUESTS: usize = 1_500;
const SEEDS: [u64; 2] = [1, 2];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_and_quorate_answer_alike() {
    let seeds = std::env::var("SEED").ok().map(|seed| vec![seed.parse().unwrap()]);
    for seed in seeds.unwrap_or(SEEDS.to_vec()) {
        let place = TestMember::new("ours");
        let Some(etcd) = Etcd::start() else {
            eprintln!("skipped: etcd is not installed");
            return;
        };
        let running = place.start(&[&place], ClusterState::New).await;
        let mut both = Both::new(etcd.channel().await, place.channel().await);
        let mut random_requests = Draw::new(seed);
        both.begin_watching(&mut random_requests).await;
        let requests = std::env::var("REQUESTS").map_or(REQUESTS, |n| n.parse().unwrap());
        for number in 0..requests {
            let request = random_requests.request(both.revision, both.compacted);
            both.ask(&format!("seed {seed}, request {number}"), request).await;
        }
        both.end_watching(&format!("seed {seed}")).await;
        running.stop().await;
    }
}
