//! The leader dies while its followers handle requests: every request completes with the next
//! leader, before the timeout of its client.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::future::Future;

use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest,
    LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, MemberAddRequest,
    MemberListRequest, MemberUpdateRequest, RangeRequest, TxnRequest,
};
use quorate_proto::quorate::v1;
use quorate_proto::quorate::v1::membership_client::MembershipClient;
use quorate_proto::quorate::v1::target_member::Member as Named;
use quorate_server::RunningServer;
use support::{TestMember, put, start_all};
use tokio::task::JoinSet;
use tonic::{Response, Status};

/// Requests in progress, by name.
#[derive(Default)]
struct PendingRequests {
    in_progress: JoinSet<(&'static str, Result<(), Status>)>,
}

impl PendingRequests {
    fn send<R: 'static>(
        &mut self,
        name: &'static str,
        request: impl Future<Output = Result<Response<R>, Status>> + Send + 'static,
    ) {
        self.in_progress.spawn(async move { (name, request.await.map(|_| ())) });
    }

    async fn all_succeed(mut self) {
        while let Some(done) = self.in_progress.join_next().await {
            let (name, result) = done.unwrap();
            assert!(result.is_ok(), "{name}: {result:?}");
        }
    }
}

/// A cluster of three, split into its leader and the others.
struct SplitCluster {
    leader: RunningServer,
    others: Vec<RunningServer>,
    follower: TestMember,
    _others: [TestMember; 2],
}

async fn split_cluster() -> SplitCluster {
    let mut test_members = Vec::from(["a", "b", "c"].map(TestMember::new));
    let mut others = start_all(&test_members.iter().collect::<Vec<_>>()).await;
    let number = others.iter().position(|server| server.node().is_leader()).unwrap();
    let leader = others.remove(number);
    let first = test_members.remove(number);
    let follower = test_members.remove(0);
    SplitCluster { leader, others, follower, _others: [first, test_members.remove(0)] }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_about_keys_and_leases_complete() {
    let SplitCluster { leader, others, follower, _others } = split_cluster().await;
    follower.put_until_done("x", "1").await;
    let (kv, lease) = (follower.kv().await, LeaseClient::new(follower.channel().await));
    let granted = |id| LeaseGrantRequest { id, ttl: 1_000 };
    for id in [1, 2, 3] {
        lease.clone().lease_grant(granted(id)).await.unwrap();
    }
    let ending = tokio::spawn(leader.stop_now());
    let mut pending = PendingRequests::default();
    macro_rules! send {
        ($client:ident, $call:ident, $request:expr) => {{
            let (mut client, request) = ($client.clone(), $request);
            pending.send(stringify!($call), async move { client.$call(request).await });
        }};
    }
    for number in 0..10 {
        send!(kv, put, put(&format!("k{number}"), "1"));
    }
    send!(kv, range, RangeRequest { key: "x".into(), ..RangeRequest::default() });
    send!(
        kv,
        delete_range,
        DeleteRangeRequest { key: "y".into(), ..DeleteRangeRequest::default() }
    );
    send!(kv, txn, TxnRequest::default());
    send!(kv, compact, CompactionRequest { revision: 1, physical: false });
    send!(lease, lease_grant, granted(4));
    send!(lease, lease_revoke, LeaseRevokeRequest { id: 1 });
    send!(lease, lease_leases, LeaseLeasesRequest {});
    send!(lease, lease_time_to_live, LeaseTimeToLiveRequest { id: 2, keys: true });
    let mut client = lease.clone();
    pending.send("keep alive", async move {
        let renewals = tokio_stream::iter([LeaseKeepAliveRequest { id: 3 }]);
        let mut renewed = client.lease_keep_alive(renewals).await?.into_inner();
        let answer = renewed.message().await?.unwrap();
        assert_eq!((answer.id, answer.ttl), (3, 1_000));
        Ok(Response::new(()))
    });
    pending.all_succeed().await;
    ending.await.unwrap();
    for server in others {
        server.stop_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn membership_changes_complete() {
    let SplitCluster { leader, others, follower, _others } = split_cluster().await;
    let new = TestMember::new("new");
    let id = others[0].node().id().0;
    let moved = vec![follower.peer.to_string(), new.client.to_string()];
    let cluster = follower.cluster().await;
    let ending = tokio::spawn(leader.stop_now());
    let mut pending = PendingRequests::default();
    let (mut add, mut update, mut list) = (cluster.clone(), cluster.clone(), cluster);
    let learner = MemberAddRequest { peer_urls: vec![new.peer.to_string()], is_learner: true };
    pending.send("add", async move { add.member_add(learner).await });
    let described = MemberUpdateRequest { id, peer_urls: moved };
    pending.send("update", async move { update.member_update(described).await });
    pending.send("list", async move {
        list.member_list(MemberListRequest { linearizable: true }).await
    });
    pending.all_succeed().await;
    ending.await.unwrap();
    let members = follower.members().await.unwrap();
    assert_eq!(members.len(), 4);
    assert!(members.iter().any(|member| member.id == id && member.peer_urls.len() == 2));
    for server in others {
        server.stop_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn goals_are_set() {
    let SplitCluster { leader, others, follower, _others } = split_cluster().await;
    let new = TestMember::new("new");
    let mut membership = MembershipClient::new(follower.channel().await);
    let by_name = |name: &str| v1::TargetMember { member: Some(Named::Name(name.into())) };
    let joining = v1::NewMember {
        name: new.name.clone(),
        peer_urls: vec![new.peer.to_string()],
        ..v1::NewMember::default()
    };
    let joining = v1::TargetMember { member: Some(Named::New(joining)) };
    let voters = ["a", "b", "c"].map(by_name).into_iter().chain([joining]).collect();
    let target = Some(v1::Target { voters, learners: Vec::new() });
    let goal = v1::SetGoalRequest { target, wait: false, expected: None };
    let ending = tokio::spawn(leader.stop_now());
    let set = membership.set_goal(goal).await.unwrap().into_inner();
    let status = membership.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.membership.unwrap().goal.unwrap().id, set.goal_id);
    membership.cancel(v1::CancelRequest { wait: false, expected: None }).await.unwrap();
    ending.await.unwrap();
    for server in others {
        server.stop_now().await;
    }
}
