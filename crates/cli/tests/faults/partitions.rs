//! Networks that fall apart, in both directions and in one, with clients on both sides.

use crate::common::Place;
use crate::common::cluster::Cluster;
use crate::members::{Members, place};
use crate::network::Network;
use crate::workload::Workload;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_answers_nothing_old_and_acknowledges_nothing() {
    let Some(network) = Network::new(0, 3) else {
        println!("skipped: a_leader_that_is_cut_off: may not make network namespaces");
        return;
    };
    let place = place("cut-off");
    let mut members = members(&place, &network).await;
    let workload = Workload::start(5, members.clients());
    workload.go_on(100).await;
    members.client(0).put_surely("word", "before").await;
    let old = members.leader().await;
    network.cut(old);
    assert_deposed(&members, old).await;
    workload.go_on(100).await;

    network.mend(old);
    members.serves(old).await;
    workload.go_on(50).await;
    workload.judge().await;
    assert_eq!(members.agree().await["word"], "after");
    drop(members);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_only_one_direction_fails_the_majority_goes_on() {
    let Some(network) = Network::new(1, 3) else {
        println!("skipped: where_only_one_direction_fails: may not make network namespaces");
        return;
    };
    let place = place("one-direction");
    let mut members = members(&place, &network).await;
    let workload = Workload::start(5, members.clients());
    members.client(0).put_surely("word", "first").await;

    // One follower hears nothing of its leader; the other one does.
    let leader = members.leader().await;
    let deaf = members.others(leader)[0];
    network.mute(leader, deaf);
    members.client(leader).put_surely("word", "before").await;
    if let Ok(found) = members.client(deaf).get("word").await {
        assert_eq!(found.as_deref(), Some("before"));
    }
    workload.go_on(100).await;
    network.unmute(leader, deaf);
    members.serves(deaf).await;

    // The leader is heard by nobody, and hears everybody.
    let old = members.leader().await;
    members.others(old).into_iter().for_each(|other| network.mute(old, other));
    assert_deposed(&members, old).await;
    workload.go_on(100).await;
    members.others(old).into_iter().for_each(|other| network.unmute(old, other));
    members.serves(old).await;
    workload.judge().await;
    assert_eq!(members.agree().await["word"], "after");
    drop(members);
}

async fn members<'a>(place: &'a Place, network: &Network) -> Members<'a> {
    Members::start(Cluster::on(place, "m", network.sites()), 3, 3).await
}

/// The others go on without the leader that they do not hear. It acknowledges nothing that it
/// was told since; and what it answers once they have acknowledged something new is not old.
async fn assert_deposed(members: &Members<'_>, old: usize) {
    let others = members.others(old);
    let cut_off = members.client(old).clone();
    let write = tokio::spawn({
        let client = cut_off.clone();
        async move { client.put("lost", "and never found").await }
    });
    members.client(others[0]).put_surely("word", "after").await;
    let new = members.leader_among(&others).await;
    let reads: Vec<_> = (0..10)
        .map(|_| {
            let client = cut_off.clone();
            tokio::spawn(async move { client.get("word").await })
        })
        .collect();
    for read in reads {
        assert!(read.await.unwrap().is_err(), "a read that no majority confirmed");
    }
    assert!(write.await.unwrap().is_err(), "a write that no majority has");
    assert_eq!(members.client(new).get_surely("lost").await, None);
}
