//! Members are added and removed through etcd's calls while a cluster serves.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use quorate_proto::etcdserverpb::{
    MemberAddRequest, MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest,
};
use quorate_server::config::ClusterState;
use quorate_server::{BootstrapError, RunningServer, ServerError};
use support::{TestMember, names, start_all};
use tonic::{Code, Status};

fn add(member: &TestMember, is_learner: bool) -> MemberAddRequest {
    MemberAddRequest { peer_urls: vec![member.peer.to_string()], is_learner }
}

fn code_and_text(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_is_added_and_another_removed_while_the_cluster_serves() {
    let [a, b, c, d] = ["a", "b", "c", "d"].map(TestMember::new);
    let mut running = start_all(&[&a, &b, &c]).await;
    a.put_until_done("x", "1").await;

    // A member that has not started has no vote, so nothing depends on it.
    let added = b.cluster().await.member_add(add(&d, false)).await.unwrap().into_inner();
    let id = added.member.as_ref().unwrap().id;
    assert_eq!((added.members.len(), added.member.unwrap().is_learner), (4, false));
    b.put_until_done("x", "2").await;
    running.push(d.start(&[&a, &b, &c, &d], ClusterState::Existing).await);
    b.members_until(|members| names(members).contains("d")).await;
    let voter =
        |running: &RunningServer| running.node().membership().is_voter(quorate::MemberId(id));
    while !voter(&running[1]) {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(d.get("x").await.as_deref(), Some("2"));

    let first = running.remove(0);
    let gone = first.node().id().0;
    let removed = b.cluster().await.member_remove(MemberRemoveRequest { id: gone }).await.unwrap();
    assert_eq!(names(&removed.into_inner().members), ["b", "c", "d"].into());
    // The removed member notices that it was removed.
    tokio::time::timeout(support::TEST_TIMEOUT, first.removed()).await.unwrap();
    first.stop_now().await;
    d.put_until_done("x", "3").await;
    assert_eq!(c.get("x").await.as_deref(), Some("3"));

    let again = b.cluster().await.member_remove(MemberRemoveRequest { id: gone }).await;
    assert_eq!(
        code_and_text(&again.unwrap_err()),
        (Code::NotFound, "etcdserver: member not found")
    );
    for server in running {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_never_starts_does_not_block_later_changes() {
    let [a, b, c, d] = ["a", "b", "c", "d"].map(TestMember::new);
    let running = start_all(&[&a]).await;
    let mut cluster = a.cluster().await;
    for member in [&b, &c] {
        cluster.member_add(add(member, false)).await.unwrap();
    }
    let learner = cluster.member_add(add(&d, true)).await.unwrap().into_inner();
    assert_eq!(learner.members.len(), 4);
    let unstarted = learner.members.iter().find(|m| m.peer_urls == [b.peer.to_string()]).unwrap();
    cluster.member_remove(MemberRemoveRequest { id: unstarted.id }).await.unwrap();
    // Members that have not started do not block the single voter.
    a.put_until_done("x", "1").await;
    assert_eq!(a.members().await.unwrap().len(), 3);
    for server in running {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_changes_are_refused_with_etcds_texts() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let running = start_all(&[&a]).await;
    let own = running[0].node().id().0;
    let mut cluster = a.cluster().await;

    let bad = MemberAddRequest { peer_urls: vec!["x".into()], is_learner: false };
    let bad_urls = (Code::InvalidArgument, "etcdserver: given member URLs are invalid");
    assert_eq!(code_and_text(&cluster.member_add(bad).await.unwrap_err()), bad_urls);
    let none = MemberAddRequest::default();
    assert_eq!(code_and_text(&cluster.member_add(none).await.unwrap_err()), bad_urls);
    let url = |number: usize| format!("http://127.0.0.1:{}", 1 + number % 65_535);
    let many: Vec<String> = (0..40_000).map(url).collect();
    let add_many = MemberAddRequest { peer_urls: many.clone(), is_learner: true };
    assert_eq!(code_and_text(&cluster.member_add(add_many).await.unwrap_err()), bad_urls);
    let update_many = MemberUpdateRequest { id: own, peer_urls: many };
    assert_eq!(code_and_text(&cluster.member_update(update_many).await.unwrap_err()), bad_urls);
    let exists = (Code::FailedPrecondition, "etcdserver: Peer URLs already exists");
    assert_eq!(code_and_text(&cluster.member_add(add(&a, true)).await.unwrap_err()), exists);
    // Another spelling of the same URL.
    let peer_urls = vec![format!("HTTP://127.0.0.1:0{}/", a.peer.port())];
    let same = MemberAddRequest { peer_urls, is_learner: true };
    assert_eq!(code_and_text(&cluster.member_add(same).await.unwrap_err()), exists);

    let not_found = (Code::NotFound, "etcdserver: member not found");
    let promote = |id| MemberPromoteRequest { id };
    assert_eq!(code_and_text(&cluster.member_promote(promote(5)).await.unwrap_err()), not_found);
    let update = MemberUpdateRequest { id: 5, peer_urls: vec![b.peer.to_string()] };
    assert_eq!(code_and_text(&cluster.member_update(update).await.unwrap_err()), not_found);
    let voter = (Code::FailedPrecondition, "etcdserver: can only promote a learner member");
    assert_eq!(code_and_text(&cluster.member_promote(promote(own)).await.unwrap_err()), voter);
    let last = cluster.member_remove(MemberRemoveRequest { id: own }).await.unwrap_err();
    let text = "etcdserver: re-configuration failed due to not enough started members";
    assert_eq!(code_and_text(&last), (Code::FailedPrecondition, text));

    let added = cluster.member_add(add(&b, true)).await.unwrap().into_inner();
    let id = added.member.unwrap().id;
    let behind = cluster.member_promote(promote(id)).await.unwrap_err();
    let text = "etcdserver: can only promote a learner member which is in sync with leader";
    assert_eq!(code_and_text(&behind), (Code::FailedPrecondition, text));
    assert!(behind.metadata().get("quorate-reason").is_some());

    // Only learners that have started count against the limit.
    let server = b.start(&[&a, &b], ClusterState::Existing).await;
    a.members_until(|members| names(members).contains("b")).await;
    let full = cluster.member_add(add(&c, true)).await.unwrap_err();
    let text = "etcdserver: too many learner members in cluster";
    assert_eq!(code_and_text(&full), (Code::FailedPrecondition, text));
    let learner = b.members().await.unwrap_err();
    let text = "etcdserver: rpc not supported for learner";
    assert_eq!(code_and_text(&learner), (Code::FailedPrecondition, text));

    while cluster.member_promote(promote(id)).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let moved = MemberUpdateRequest { id, peer_urls: vec![b.peer.to_string(), c.peer.to_string()] };
    let members = cluster.member_update(moved).await.unwrap().into_inner().members;
    assert!(members.iter().any(|m| m.id == id && m.peer_urls.len() == 2));
    server.stop().await;
    for server in running {
        server.stop_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_with_the_wrong_initial_cluster_does_not_start() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let running = start_all(&[&a]).await;
    let refused = |ended: Result<RunningServer, ServerError>| match ended {
        Err(ServerError::Bootstrap(error)) => error,
        other => panic!("{other:?}"),
    };
    let unknown = RunningServer::start(b.config(&[&a, &b], ClusterState::Existing)).await;
    let BootstrapError::UnequalClusters { reason, given, known } = refused(unknown) else {
        panic!()
    };
    assert_eq!(reason, "member count is unequal");
    assert!(given.contains(&b.peer.to_string()) && !known.contains(&b.peer.to_string()));

    // An empty disk under the name of an existing member.
    let mut wiped = b.config(&[&a], ClusterState::Existing);
    wiped.name = a.name.clone();
    wiped.initial_advertise_peer_urls = vec![a.peer.clone()];
    wiped.initial_cluster = vec![(a.name.clone(), a.peer.clone())];
    let error = refused(RunningServer::start(wiped).await);
    assert!(matches!(error, BootstrapError::NoMemberAnswers { .. }), "{error}");

    let mut unnamed = c.config(&[&a, &b], ClusterState::New);
    unnamed.name = "z".into();
    let unnamed = refused(RunningServer::start(unnamed).await);
    assert!(unnamed.to_string().contains("found a,b"), "{unnamed}");
    for server in running {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_through_a_follower_survives_the_death_of_the_leader() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let test_members = [&a, &b, &c];
    let mut running = start_all(&test_members).await;
    a.put_until_done("x", "0").await;
    let leads = |server: &RunningServer| server.node().is_leader();
    let leader = running.iter().position(leads).unwrap();
    let follower = test_members[(leader + 1) % 3];
    let dead = running.remove(leader);
    let ending = tokio::spawn(async move { dead.stop_now().await });
    // Sent before the others notice the death: the request is retried with the next leader.
    follower.put("x", "1").await.unwrap();
    assert_eq!(follower.get("x").await.as_deref(), Some("1"));
    ending.await.unwrap();

    // With data on the disk, the initial cluster is ignored.
    let back = test_members[leader].start(&[test_members[leader]], ClusterState::New).await;
    assert_eq!(test_members[leader].get("x").await.as_deref(), Some("1"));
    for server in running.into_iter().chain([back]) {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_can_remove_itself() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let test_members = [&a, &b, &c];
    let mut running = start_all(&test_members).await;
    let leader = running.iter().position(|server| server.node().is_leader()).unwrap();
    let (member, other) = (test_members[leader], test_members[(leader + 1) % 3]);
    let id = running[leader].node().id().0;
    member.cluster().await.member_remove(MemberRemoveRequest { id }).await.unwrap();
    let gone = running.remove(leader);
    tokio::time::timeout(support::TEST_TIMEOUT, gone.removed()).await.unwrap();
    gone.stop().await;
    other.put_until_done("x", "1").await;
    assert_eq!(other.members().await.unwrap().len(), 2);
    for server in running {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_leaves_no_live_quorum_is_refused_with_the_numbers() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let test_members = [&a, &b, &c];
    let mut running = start_all(&test_members).await;
    let follower = running.iter().position(|server| !server.node().is_leader()).unwrap();
    let dead = running.remove(follower);
    let dead_id = dead.node().id().0;
    dead.stop_now().await;
    let (survivor, id) = {
        let live: Vec<&&TestMember> = test_members
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != follower)
            .map(|(_, p)| p)
            .collect();
        (live[0], running[1].node().id().0)
    };
    let mut cluster = survivor.cluster().await;
    // The leader notices the death after a while.
    let began = tokio::time::Instant::now();
    while running[0].node().view().await.unwrap().caught_up.contains(quorate::MemberId(dead_id)) {
        assert!(began.elapsed() < support::TEST_TIMEOUT);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let refused = cluster.member_remove(MemberRemoveRequest { id }).await.unwrap_err();
    assert_eq!(code_and_text(&refused), (Code::Unavailable, "etcdserver: unhealthy cluster"));
    let reason = refused.metadata().get("quorate-reason").unwrap().to_str().unwrap();
    assert_eq!(reason, "afterwards: 2 voters, quorum 2, live and caught up 1");

    // The dead member may be removed.
    cluster.member_remove(MemberRemoveRequest { id: dead_id }).await.unwrap();
    assert_eq!(survivor.members().await.unwrap().len(), 2);
    for server in running {
        server.stop().await;
    }
}

/// A lone voter knows that its whole log is committed: what it acknowledged is there at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_member_serves_nothing_before_its_log_is_applied() {
    let a = TestMember::new("a");
    let mut config = a.config(&[&a], ClusterState::New);
    // It does not wait for it.
    config.election_timeout = std::time::Duration::from_secs(50);
    let server = RunningServer::start(config.clone()).await.unwrap();
    for number in 0..20 {
        a.put(&format!("key {number}"), "1").await.unwrap();
    }
    let revision = server.store().read().revision();
    server.stop_now().await;
    let server = RunningServer::start(config).await.unwrap();
    assert_eq!(server.store().read().revision(), revision);
    assert!(server.node().is_leader());
    server.stop_now().await;
}
