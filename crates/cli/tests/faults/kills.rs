//! Members that die, and a leader that only seems to.

use crate::members::{Members, place};
use crate::writers::{Writers, assert_kept};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_members_come_back_and_every_acknowledged_write_is_on_all_of_them() {
    let place = place("kills");
    let mut members = Members::three(&place).await;
    let writers = Writers::start(4, &members.clients());
    writers.go_on(100).await;

    let leader = members.leader().await;
    members.kill(leader);
    writers.go_on(100).await;
    members.start_again(leader);

    let next = members.leader().await;
    let follower = (0..3).find(|one| *one != next && *one != leader).unwrap();
    members.kill(follower);
    writers.go_on(100).await;
    members.start_again(follower);
    writers.go_on(100).await;
    members.serves(leader).await;
    members.serves(follower).await;

    let written = writers.finish().await;
    assert!(written.len() >= 400, "{}", written.len());
    assert_kept(&members.agree().await, &written);
}

/// What it is asked while it stands still is the first that it hears when it goes on, before
/// anybody could tell it that it was replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stood_still_past_its_time_answers_nothing_old() {
    let place = place("stands-still");
    let members = Members::three(&place).await;
    members.client(0).put_surely("key", "before").await;
    let old = members.leader().await;
    let stopped = members.client(old);
    // The connection is there: nothing but the answer is missing.
    assert_eq!(stopped.get_surely("key").await.as_deref(), Some("before"));
    members.signal(old, "STOP");
    let others = members.others(old);
    members.client(others[0]).put_surely("key", "after").await;
    let new = members.leader_among(&others).await;

    let reads: Vec<_> = (0..20)
        .map(|_| {
            let client = stopped.clone();
            tokio::spawn(async move { client.get("key").await })
        })
        .collect();
    let writer = stopped.clone();
    let write = tokio::spawn(async move { writer.put("other", "from the old leader").await });
    // Long enough for what was asked to lie in its socket; if not, it only comes later.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    members.signal(old, "CONT");
    for read in reads {
        if let Ok(found) = read.await.unwrap() {
            assert_eq!(found.as_deref(), Some("after"));
        }
    }
    let written = write.await.unwrap().is_ok();
    let found = members.client(new).get_surely("other").await;
    assert!(!written || found.is_some(), "acknowledged and lost");
    assert_eq!(stopped.get_surely("key").await.as_deref(), Some("after"));
    members.agree().await;
}
