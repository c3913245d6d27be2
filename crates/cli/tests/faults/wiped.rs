//! A member that lost its disk has lost its promises: it is not the one it was.

use std::fs;

use crate::client::wait_for;
use crate::common::run;
use crate::members::{Members, place};
use crate::writers::{Writers, assert_kept};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_member_is_refused_until_it_is_removed_and_added_anew() {
    let place = place("wiped");
    let mut members = Members::three(&place).await;
    let writers = Writers::start(3, &members.clients());
    writers.go_on(50).await;
    let wiped = members.leader().await;
    members.kill(wiped);
    assert_refused(&mut members, wiped, |members| members.start_again(wiped)).await;
    assert_refused(&mut members, wiped, |members| members.start_joining(wiped, &[0, 1, 2])).await;
    writers.go_on(50).await;

    let others = members.others(wiped);
    let endpoint = members.cluster.client(others[0]);
    let (name, peer) = (members.cluster.member_name(wiped), members.cluster.peer(wiped));
    run(&["member", "remove", &name, "--endpoints", &endpoint]);
    run(&["member", "add", &format!("{name}={peer}"), "--endpoints", &endpoint]);
    members.join(wiped, &[0, 1, 2]).await;
    writers.go_on(50).await;
    let written = writers.finish().await;
    assert_kept(&members.agree().await, &written);
}

async fn assert_refused(members: &mut Members<'_>, wiped: usize, start: impl Fn(&mut Members)) {
    // Where the others are too slow to tell it when it starts, they tell it afterwards.
    loop {
        fs::remove_dir_all(members.cluster.directory(wiped)).unwrap();
        start(members);
        wait_for("it is told", async || {
            (!members.is_running(wiped) || members.said(wiped).contains(DISOWNED)).then_some(())
        })
        .await;
        if !members.is_running(wiped) {
            break;
        }
        members.kill(wiped);
    }
    let (code, said) = members.ended(wiped);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("has already been bootstrapped on another disk"), "{said}");
    assert!(said.contains("remove it and add it anew"), "{said}");
}

/// What a member says that runs on a disk under an id that belongs to another one.
const DISOWNED: &str = "disowned: add this member anew, under a new id";

/// Nobody is there whom it could ask when it starts. With one of the others it would be a
/// majority that may know nothing of what was acknowledged; so it must not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_member_that_starts_alone_makes_no_majority() {
    let place = place("wiped-alone");
    let mut members = Members::three(&place).await;
    let (behind, wiped) = (0, 1);
    members.client(0).put_surely("key", "before").await;
    members.kill(behind);
    // Only the other two have this.
    members.client(wiped).put_surely("key", "after").await;
    members.kill(wiped);
    members.kill(2);
    fs::remove_dir_all(members.cluster.directory(wiped)).unwrap();

    members.start_again(wiped);
    let started = async || members.said(wiped).contains("ready to serve").then_some(());
    wait_for("it has asked in vain", started).await;
    members.start_again(behind);
    let told = async || members.said(wiped).contains(DISOWNED).then_some(());
    wait_for("it is told", told).await;
    let (alone, other) = (members.client(behind), members.client(wiped));
    let (first, second) = tokio::join!(alone.get("key"), other.get("key"));
    assert!(first.is_err() && second.is_err(), "{first:?} {second:?}");

    members.start_again(2);
    members.client(behind).put_surely("more", "to come").await;
    assert_eq!(members.client(behind).get_surely("key").await.as_deref(), Some("after"));
    assert!(members.client(wiped).get("key").await.is_err());
    members.kill(wiped);
    members.agree().await;
}
