//! The leader dies while members that follow it are asked: every request comes to its end with
//! the next leader, and none is left to the patience of the client.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

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

/// Requests under way, by name.
#[derive(Default)]
struct Asked {
    under_way: JoinSet<(&'static str, Result<(), Status>)>,
}

impl Asked {
    fn ask<R: 'static>(
        &mut self,
        name: &'static str,
        request: impl Future<Output = Result<Response<R>, Status>> + Send + 'static,
    ) {
        self.under_way.spawn(async move { (name, request.await.map(|_| ())) });
    }

    async fn all_served(mut self) {
        while let Some(ended) = self.under_way.join_next().await {
            let (name, ended) = ended.unwrap();
            assert!(ended.is_ok(), "{name}: {ended:?}");
        }
    }
}

/// A cluster, its leader taken out of it, and the places of who is left.
struct Orphans {
    leader: RunningServer,
    others: Vec<RunningServer>,
    follower: TestMember,
    _places: [TestMember; 2],
}

async fn orphans() -> Orphans {
    let mut places = Vec::from(["a", "b", "c"].map(TestMember::new));
    let mut others = start_all(&places.iter().collect::<Vec<_>>()).await;
    let at = others.iter().position(|server| server.node().is_leader()).unwrap();
    let leader = others.remove(at);
    let first = places.remove(at);
    let follower = places.remove(0);
    Orphans { leader, others, follower, _places: [first, places.remove(0)] }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_leases() {
    let Orphans { leader, others, follower, _places } = orphans().await;
    follower.put_surely("x", "1").await;
    let (kv, lease) = (follower.kv().await, LeaseClient::new(follower.channel().await));
    let granted = |id| LeaseGrantRequest { id, ttl: 1_000 };
    for id in [1, 2, 3] {
        lease.clone().lease_grant(granted(id)).await.unwrap();
    }
    let ending = tokio::spawn(leader.end());
    let mut asked = Asked::default();
    macro_rules! ask {
        ($client:ident, $call:ident, $request:expr) => {{
            let (mut client, request) = ($client.clone(), $request);
            asked.ask(stringify!($call), async move { client.$call(request).await });
        }};
    }
    for number in 0..10 {
        ask!(kv, put, put(&format!("k{number}"), "1"));
    }
    ask!(kv, range, RangeRequest { key: "x".into(), ..RangeRequest::default() });
    ask!(kv, delete_range, DeleteRangeRequest { key: "y".into(), ..DeleteRangeRequest::default() });
    ask!(kv, txn, TxnRequest::default());
    ask!(kv, compact, CompactionRequest { revision: 1, physical: false });
    ask!(lease, lease_grant, granted(4));
    ask!(lease, lease_revoke, LeaseRevokeRequest { id: 1 });
    ask!(lease, lease_leases, LeaseLeasesRequest {});
    ask!(lease, lease_time_to_live, LeaseTimeToLiveRequest { id: 2, keys: true });
    let mut client = lease.clone();
    asked.ask("keep alive", async move {
        let renewals = tokio_stream::iter([LeaseKeepAliveRequest { id: 3 }]);
        let mut renewed = client.lease_keep_alive(renewals).await?.into_inner();
        let answer = renewed.message().await?.unwrap();
        assert_eq!((answer.id, answer.ttl), (3, 1_000));
        Ok(Response::new(()))
    });
    asked.all_served().await;
    ending.await.unwrap();
    for server in others {
        server.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members() {
    let Orphans { leader, others, follower, _places } = orphans().await;
    let new = TestMember::new("new");
    let id = others[0].node().id().0;
    let moved = vec![follower.peer.to_string(), new.client.to_string()];
    let cluster = follower.cluster().await;
    let ending = tokio::spawn(leader.end());
    let mut asked = Asked::default();
    let (mut add, mut update, mut list) = (cluster.clone(), cluster.clone(), cluster);
    let learner = MemberAddRequest { peer_urls: vec![new.peer.to_string()], is_learner: true };
    asked.ask("add", async move { add.member_add(learner).await });
    let described = MemberUpdateRequest { id, peer_urls: moved };
    asked.ask("update", async move { update.member_update(described).await });
    asked.ask(
        "list",
        async move { list.member_list(MemberListRequest { linearizable: true }).await },
    );
    asked.all_served().await;
    ending.await.unwrap();
    let members = follower.members().await.unwrap();
    assert_eq!(members.len(), 4);
    assert!(members.iter().any(|member| member.id == id && member.peer_urls.len() == 2));
    for server in others {
        server.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn goals() {
    let Orphans { leader, others, follower, _places } = orphans().await;
    let new = TestMember::new("new");
    let mut membership = MembershipClient::new(follower.channel().await);
    let by_name = |name: &str| v1::TargetMember { member: Some(Named::Name(name.into())) };
    let newcomer = v1::NewMember {
        name: new.name.clone(),
        peer_urls: vec![new.peer.to_string()],
        ..v1::NewMember::default()
    };
    let newcomer = v1::TargetMember { member: Some(Named::New(newcomer)) };
    let voters = ["a", "b", "c"].map(by_name).into_iter().chain([newcomer]).collect();
    let target = Some(v1::Target { voters, learners: Vec::new() });
    let goal = v1::SetGoalRequest { target, wait: false, expected: None };
    let ending = tokio::spawn(leader.end());
    let set = membership.set_goal(goal).await.unwrap().into_inner();
    let status = membership.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.membership.unwrap().goal.unwrap().id, set.goal_id);
    membership.cancel(v1::CancelRequest { wait: false, expected: None }).await.unwrap();
    ending.await.unwrap();
    for server in others {
        server.end().await;
    }
}
