//! The service `quorate.v1.Membership`: goals, plans, cancel, status and watch.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::array;
use std::time::Duration;

use quorate_proto::etcdserverpb::{
    MemberAddRequest, MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest,
};
use quorate_proto::quorate::v1;
use quorate_proto::quorate::v1::membership_client::MembershipClient;
use quorate_proto::quorate::v1::target_member::Member as Named;
use quorate_server::config::ClusterState;
use support::{TestMember, names, start_all};
use tonic::Code;
use tonic::transport::Channel;

async fn client(member: &TestMember) -> MembershipClient<Channel> {
    MembershipClient::new(member.channel().await)
}

fn by_name(name: &str) -> v1::TargetMember {
    v1::TargetMember { member: Some(Named::Name(name.into())) }
}

fn joining(member: &TestMember) -> v1::TargetMember {
    let new = v1::NewMember {
        name: member.name.clone(),
        peer_urls: vec![member.peer.to_string()],
        ..v1::NewMember::default()
    };
    v1::TargetMember { member: Some(Named::New(new)) }
}

fn target(voters: Vec<v1::TargetMember>) -> Option<v1::Target> {
    Some(v1::Target { voters, learners: Vec::new() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_is_replaced_by_one_goal() {
    let [a, b, c, d] = ["a", "b", "c", "d"].map(TestMember::new);
    let mut running = start_all(&[&a, &b, &c]).await;
    let mut membership = client(&b).await;
    let status = membership.status(v1::StatusRequest {}).await.unwrap().into_inner();
    let tolerance = status.tolerance.unwrap();
    assert_eq!((tolerance.failures, tolerance.has_quorum), (1, true));

    let replacement = || target(vec![joining(&d), by_name("b"), by_name("c")]);
    let plan = v1::PlanRequest { target: replacement(), expected: None };
    let plan = membership.plan(plan).await.unwrap().into_inner();
    assert!(plan.steps.len() >= 4, "{plan:?}");
    assert_eq!(plan.newcomers[0].name, "d");

    let goal = v1::SetGoalRequest { target: replacement(), wait: false, expected: None };
    let reply = membership.set_goal(goal).await.unwrap().into_inner();
    assert!(reply.ended.is_none());
    let id = reply.goal_id;
    let mut watch = membership.watch(v1::WatchRequest {}).await.unwrap().into_inner();
    b.members_until(|members| members.len() == 4).await;
    running.push(d.start(&[&a, &b, &c, &d], ClusterState::Existing).await);
    loop {
        use v1::membership_event::Event;
        let reply = watch.message().await.unwrap().unwrap();
        match reply.event.unwrap().event.unwrap() {
            Event::GoalEnded(ended) if ended.id == id => {
                assert_eq!(ended.end(), v1::GoalEnd::Reached);
                break;
            }
            _ => {}
        }
    }
    let members = b.members_until(|members| names(members) == ["b", "c", "d"].into()).await;
    assert!(members.iter().all(|member| !member.is_learner));
    running.remove(0).stop_now().await;
    d.put_until_done("x", "1").await;
    assert_eq!(b.get("x").await.as_deref(), Some("1"));
    for server in running {
        server.stop().await;
    }
}

/// Another operator has added a member that was not started yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_does_not_wait_for_a_member_that_was_never_started() {
    let [a, b, c, missing] = ["a", "b", "c", "d"].map(TestMember::new);
    let running = start_all(&[&a, &b, &c]).await;
    let mut cluster = a.cluster().await;
    let add = MemberAddRequest { peer_urls: vec![missing.peer.to_string()], is_learner: false };
    let added = cluster.member_add(add).await.unwrap().into_inner().member.unwrap().id;
    let members = a.members_until(|members| members.len() == 4).await;
    let removed = members.iter().find(|member| member.name == "c").unwrap().id;

    let remove = MemberRemoveRequest { id: removed };
    let members = cluster.member_remove(remove).await.unwrap().into_inner().members;
    assert_eq!(members.len(), 3);
    assert!(members.iter().any(|member| member.id == added));
    // The goal still leads to the vote of the missing member.
    let status = client(&a).await.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert!(status.membership.unwrap().goal.unwrap().voters.contains(&added));
    for server in running {
        server.stop_now().await;
    }
}

/// A joining member was added with a wrong address, which is corrected while the goal waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_goal_continues_while_a_member_is_updated() {
    let [a, b, wrong] = ["a", "b", "b"].map(TestMember::new);
    let mut running = start_all(&[&a]).await;
    let mut membership = client(&a).await;
    let voters = vec![by_name("a"), joining(&wrong)];
    let goal = v1::SetGoalRequest { target: target(voters), wait: false, expected: None };
    let goal_id = membership.set_goal(goal).await.unwrap().into_inner().goal_id;
    let members = a.members_until(|members| members.len() == 2).await;
    let id = members.iter().find(|m| m.peer_urls == [wrong.peer.to_string()]).unwrap().id;
    let mut watch = membership.watch(v1::WatchRequest {}).await.unwrap().into_inner();

    let update = MemberUpdateRequest { id, peer_urls: vec![b.peer.to_string()] };
    let members = a.cluster().await.member_update(update).await.unwrap().into_inner().members;
    let updated = members.iter().find(|member| member.id == id).unwrap();
    assert_eq!(updated.peer_urls, [b.peer.to_string()]);
    let status = membership.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.membership.unwrap().goal.unwrap().id, goal_id);

    running.push(b.start(&[&a, &b], ClusterState::Existing).await);
    loop {
        use v1::membership_event::Event;
        let reply = watch.message().await.unwrap().unwrap();
        if let Event::GoalEnded(ended) = reply.event.unwrap().event.unwrap() {
            assert_eq!((ended.id, ended.end()), (goal_id, v1::GoalEnd::Reached));
            break;
        }
    }
    for server in running {
        server.stop_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_goal_that_waits_for_a_member_can_be_cancelled() {
    let [a, b] = ["a", "b"].map(TestMember::new);
    let running = start_all(&[&a]).await;
    let mut membership = client(&a).await;
    let unknown_name = v1::TargetMember { member: Some(Named::Name("z".into())) };
    let goal = |voters| v1::SetGoalRequest { target: target(voters), wait: false, expected: None };
    let unknown = membership.set_goal(goal(vec![unknown_name])).await.unwrap_err();
    assert_eq!(unknown.message(), "etcdserver: member not found");

    // A goal that was prepared from another membership is refused, with the present one.
    let status = membership.status(v1::StatusRequest {}).await.unwrap().into_inner();
    let now = status.membership.unwrap().id.unwrap();
    let old = v1::EntryId { index: now.index - 1, ..now };
    let expecting =
        |expected| v1::SetGoalRequest { expected, ..goal(vec![by_name("a"), joining(&b)]) };
    let stale = membership.set_goal(expecting(Some(old))).await.unwrap_err();
    let newest = stale.metadata().get("quorate-newest-membership").unwrap().to_str().unwrap();
    assert_eq!(newest, format!("{}.{}", now.term, now.index));
    let goal_id = membership.set_goal(expecting(Some(now))).await.unwrap().into_inner().goal_id;
    // The leader takes its first step. The goal can be cancelled by its name all the same.
    loop {
        let status = membership.status(v1::StatusRequest {}).await.unwrap().into_inner();
        let record = status.membership.unwrap();
        assert_eq!(record.goal.unwrap().id, goal_id);
        if record.id != goal_id && record.id != Some(now) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let cancel = v1::CancelRequest { wait: true, expected: None };
    let other = v1::CancelRequest { expected: Some(old), ..cancel };
    let other = membership.cancel(other).await.unwrap_err();
    assert!(other.message().contains("the newest membership is"), "{other}");
    let this = v1::CancelRequest { expected: goal_id, ..cancel };
    let cancelled = membership.cancel(this).await.unwrap().into_inner();
    assert_eq!(cancelled.ended.unwrap().end(), v1::GoalEnd::Reached);
    let record = cancelled.membership.unwrap();
    assert_eq!((record.members.len(), record.goal), (1, None));

    // A goal that is the present membership is reached at once.
    let same = membership.set_goal(goal(vec![by_name("a")])).await.unwrap().into_inner();
    assert_eq!(same.ended.unwrap().end(), v1::GoalEnd::Reached);
    let again = membership.cancel(cancel).await.unwrap_err();
    assert!(again.message().contains("no change is in progress"), "{again}");
    for server in running {
        server.stop().await;
    }
}

/// A member that is cut off may lack the newest membership: it cannot say that a member does not
/// exist, that an address is free, or that a member is no learner.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_a_leader_refuses_changes_as_unavailable() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let mut running = start_all(&[&a, &b, &c]).await;
    let cluster = a.cluster().await;
    let mut membership = client(&a).await;
    running.pop().unwrap().stop_now().await;
    running.pop().unwrap().stop_now().await;

    let (unknown, urls) = (12345, vec![b.peer.to_string()]);
    let update = MemberUpdateRequest { id: unknown, peer_urls: urls.clone() };
    let goal = target(vec![by_name("a"), by_name("unknown")]);
    let goal = v1::SetGoalRequest { target: goal, wait: false, expected: None };
    let added = MemberAddRequest { peer_urls: urls, is_learner: false };
    // Each waits for a leader until its timeout, so they run at the same time.
    let [mut remove, mut promote, mut change, mut add] = array::from_fn(|_| cluster.clone());
    let (removed, promoted, updated, added, set) = tokio::join!(
        remove.member_remove(MemberRemoveRequest { id: unknown }),
        promote.member_promote(MemberPromoteRequest { id: unknown }),
        change.member_update(update),
        add.member_add(added),
        membership.set_goal(goal),
    );
    let refused = [
        removed.unwrap_err(),
        promoted.unwrap_err(),
        updated.unwrap_err(),
        added.unwrap_err(),
        set.unwrap_err(),
    ];
    for status in refused {
        let code = status.code();
        assert!(matches!(code, Code::Unavailable | Code::DeadlineExceeded), "{status:?}");
    }
    running.pop().unwrap().stop_now().await;
}

/// As etcd's own calls refuse it.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_with_very_many_urls_is_refused() {
    let a = TestMember::new("a");
    let running = start_all(&[&a]).await;
    let mut membership = client(&a).await;
    let with_urls = |count: usize| {
        let peer_urls = (0..count).map(|number| format!("http://h{number}:1")).collect();
        let new = v1::NewMember { name: "b".into(), peer_urls, ..v1::NewMember::default() };
        target(vec![by_name("a"), v1::TargetMember { member: Some(Named::New(new)) }])
    };
    for count in [65, 40_000] {
        let plan = v1::PlanRequest { target: with_urls(count), expected: None };
        let refused = membership.plan(plan).await.unwrap_err();
        assert_eq!(refused.message(), "etcdserver: given member URLs are invalid");
        let goal = v1::SetGoalRequest { target: with_urls(count), wait: false, expected: None };
        let refused = membership.set_goal(goal).await.unwrap_err();
        assert_eq!(refused.message(), "etcdserver: given member URLs are invalid");
    }
    let plan = v1::PlanRequest { target: with_urls(64), expected: None };
    membership.plan(plan).await.unwrap();
    let status = membership.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.membership.unwrap().members.len(), 1);
    for server in running {
        server.stop_now().await;
    }
}
