//! Behaviour that depends on the role of the member: followers, learners, the leader.

use std::time::Duration;

use quorate::{MemberId, MemberInfo, MemoryNetwork, NodeConfig};
use quorate_proto::etcdserverpb::{
    AlarmRequest, LeaseGrantRequest, MoveLeaderRequest, RangeRequest, SnapshotRequest,
    StatusRequest, TxnRequest, WatchCreateRequest, WatchRequest, watch_request,
};
use quorate_server::ServiceLimits;
use tonic::{Code, Status};

use crate::leases::{grant, keep_alive, time_to_live};
use crate::support::{CLUSTER, ServiceMember, get, put, wait_for, within};

async fn three(network: &MemoryNetwork) -> Vec<ServiceMember> {
    let mut members = Vec::new();
    for id in 1..=3 {
        let config = NodeConfig::first(CLUSTER, id, (1..=3).map(|id| (id, "")));
        members.push(ServiceMember::start(network, config, limits()).await);
    }
    for member in &members {
        within("a leader", member.node.watch_leader().wait_for(Option::is_some)).await.unwrap();
    }
    members
}

fn limits() -> ServiceLimits {
    ServiceLimits { lease_ttl_min: 1, ..ServiceLimits::default() }
}

fn leader(members: &[ServiceMember]) -> &ServiceMember {
    members.iter().find(|member| member.node.is_leader()).unwrap()
}

fn follower(members: &[ServiceMember]) -> &ServiceMember {
    members.iter().find(|member| !member.node.is_leader()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_member_renews_leases_and_no_lease_expires_early_after_a_leader_change() {
    let members = three(&MemoryNetwork::new()).await;
    for (id, member) in (1..).zip(&members) {
        assert_eq!(grant(member, id, 600).await, (id, 600));
    }
    for member in &members {
        assert_eq!(keep_alive(member, &[1, 2, 3, 99]).await, [600, 600, 600, 0]);
        assert!(time_to_live(member, 2).await.ttl > 500);
    }
    let (old, next) = (leader(&members), follower(&members));
    let to_leader = MoveLeaderRequest { target_id: old.node.id().0 };
    let reply = within("it", next.maintenance().move_leader(to_leader)).await;
    refused(reply, Code::FailedPrecondition, "etcdserver: not leader");
    let to_follower = MoveLeaderRequest { target_id: next.node.id().0 };
    within("it", old.maintenance().move_leader(to_follower)).await.unwrap();
    wait_for("another leader", async || next.node.is_leader()).await;
    for member in &members {
        assert_eq!(keep_alive(member, &[1, 3]).await, [600, 600]);
        assert!(time_to_live(member, 2).await.ttl > 500);
    }
    // Granted by one, ended by another.
    grant(old, 9, 5).await;
    old.put_with("short", "x", 9).await;
    wait_for("its end", async || old.range(get("short")).await.count == 0).await;
    for member in members {
        member.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_requests_time_out_and_data_stays_intact() {
    let mut members = three(&MemoryNetwork::new()).await;
    members[0].put("a", "1").await;
    wait_for("the data", async || {
        let request = RangeRequest { serializable: true, ..get("a") };
        members[0].range(request).await.count == 1
    })
    .await;
    for member in members.drain(1..) {
        member.stop().await;
    }
    let left = &members[0];
    // The client's deadline passes first.
    let mut with_deadline = tonic::Request::new(put("a", "2"));
    with_deadline.set_timeout(Duration::from_millis(300));
    let ended = within("a deadline", left.kv().put(with_deadline)).await.unwrap_err();
    let gone = [Code::Cancelled, Code::DeadlineExceeded, Code::Unavailable];
    assert!(gone.contains(&ended.code()), "{ended:?}");
    // The server's timeout passes.
    for ended in [
        within("the end of a put", left.kv().put(put("a", "3"))).await.map(|_| ()),
        within("the end of a read", left.kv().range(get("a"))).await.map(|_| ()),
    ] {
        let ended = ended.unwrap_err();
        let texts = ["etcdserver: request timed out", "etcdserver: no leader"];
        assert_eq!(ended.code(), Code::Unavailable);
        assert!(texts.contains(&ended.message()), "{ended:?}");
    }
    let old = RangeRequest { serializable: true, ..get("a") };
    assert_eq!(left.range(old).await.count, 1);
    let status = within("it", left.maintenance().status(StatusRequest {})).await.unwrap();
    let status = status.into_inner();
    assert_eq!((status.leader, &status.errors[..]), (0, &["etcdserver: no leader".to_owned()][..]));
    // A client that requires a leader gets an error at once.
    let mut requires_leader = tonic::Request::new(get("a"));
    requires_leader.metadata_mut().insert("hasleader", "true".parse().unwrap());
    let ended = within("it", left.kv().range(requires_leader)).await;
    refused(ended, Code::Unavailable, "etcdserver: no leader");
    members.remove(0).stop().await;
}

fn refused<T>(reply: Result<T, Status>, code: Code, text: &str) {
    let Err(status) = reply else { panic!("done, want: {text}") };
    assert_eq!((status.code(), status.message()), (code, text));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_serves_what_etcds_learners_serve_and_reads_if_configured() {
    let network = MemoryNetwork::new();
    let members = three(&network).await;
    let revision = members[0].put("a", "1").await;
    for (id, learner_reads) in [(4, false), (5, true)] {
        let info = MemberInfo::default();
        let added = members[0].node.add_learner(MemberId(id), info).await.unwrap();
        let config = NodeConfig::join(CLUSTER, id, added.index);
        let limits = ServiceLimits { learner_reads, ..limits() };
        let learner = ServiceMember::start(&network, config, limits).await;
        wait_for("the data", async || {
            let request = RangeRequest { serializable: true, ..get("a") };
            learner.range(request).await.header.unwrap().revision >= revision
        })
        .await;
        check_learner(&learner, learner_reads).await;
        learner.stop().await;
    }
    for member in members {
        member.stop().await;
    }
}

const NOT_FOR_LEARNERS: &str = "etcdserver: rpc not supported for learner";

async fn check_learner(learner: &ServiceMember, reads: bool) {
    let status = within("it", learner.maintenance().status(StatusRequest {})).await.unwrap();
    assert!(status.into_inner().is_learner);
    within("it", learner.maintenance().snapshot(SnapshotRequest {})).await.unwrap();
    let never = Code::FailedPrecondition;
    refused(learner.kv().put(put("a", "2")).await, never, NOT_FOR_LEARNERS);
    refused(learner.kv().txn(TxnRequest::default()).await, never, NOT_FOR_LEARNERS);
    let reply = learner.lease().lease_grant(LeaseGrantRequest { id: 0, ttl: 60 }).await;
    refused(reply, never, NOT_FOR_LEARNERS);
    let reply = learner.maintenance().alarm(AlarmRequest::default()).await;
    refused(reply, never, NOT_FOR_LEARNERS);
    let create = WatchCreateRequest { key: "a".into(), start_revision: 2, ..Default::default() };
    let union = Some(watch_request::RequestUnion::CreateRequest(create));
    let requests = tokio_stream::iter([WatchRequest { request_union: union }]);
    let watching = within("a watch", learner.watch().watch(requests)).await;
    let found = within("a read", learner.kv().range(get("a"))).await;
    if !reads {
        refused(watching, never, NOT_FOR_LEARNERS);
        refused(found, never, NOT_FOR_LEARNERS);
        return;
    }
    assert_eq!(found.unwrap().into_inner().count, 1);
    let mut stream = watching.unwrap().into_inner();
    assert!(within("it", stream.message()).await.unwrap().unwrap().created);
    assert_eq!(within("it", stream.message()).await.unwrap().unwrap().events.len(), 1);
}
