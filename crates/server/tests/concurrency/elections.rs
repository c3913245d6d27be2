//! Elections.

use quorate_proto::v3electionpb::election_client::ElectionClient;
use quorate_proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ResignRequest,
};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::support::{TEST_TIMEOUT, TestMember, start_all};
use crate::{assert_waits, grant, revoke, single, wait_for_key};

async fn client(member: &TestMember) -> ElectionClient<Channel> {
    ElectionClient::new(member.channel().await)
}

async fn begin_campaign(
    member: &TestMember,
    lease: i64,
    value: &str,
) -> JoinHandle<Result<CampaignResponse, Status>> {
    let mut client = client(member).await;
    let value = value.to_owned().into();
    tokio::spawn(async move {
        let request = CampaignRequest { name: "name".into(), lease, value };
        client.campaign(request).await.map(tonic::Response::into_inner)
    })
}

async fn win(member: &TestMember, lease: i64, value: &str) -> LeaderKey {
    let won = begin_campaign(member, lease, value).await.await.unwrap().unwrap();
    won.leader.unwrap()
}

async fn leader(member: &TestMember) -> Result<LeaderResponse, Status> {
    let request = LeaderRequest { name: "name".into() };
    client(member).await.leader(request).await.map(tonic::Response::into_inner)
}

async fn resign(member: &TestMember, leader: &LeaderKey) {
    client(member).await.resign(ResignRequest { leader: Some(leader.clone()) }).await.unwrap();
}

async fn next(stream: &mut Streaming<LeaderResponse>) -> String {
    let next = tokio::time::timeout(TEST_TIMEOUT, stream.message()).await.unwrap();
    let kv = next.unwrap().unwrap().kv.unwrap();
    format!("{}={}", String::from_utf8_lossy(&kv.key), String::from_utf8_lossy(&kv.value))
}

#[tokio::test(flavor = "multi_thread")]
async fn candidates_lead_in_order_at_any_member() {
    let members = ["a", "b", "c"].map(TestMember::new);
    let [a, b, c] = &members;
    let servers = start_all(&[a, b, c]).await;
    for id in 1..=2 {
        grant(a, id).await;
    }
    let request = LeaderRequest { name: "name".into() };
    let mut observed = client(c).await.observe(request).await.unwrap().into_inner();
    let none = leader(a).await.unwrap_err();
    assert_eq!((none.code(), none.message()), (Code::Unknown, "election: no leader"));

    let first = win(a, 1, "one").await;
    assert_eq!((&first.name[..], &first.key[..], first.lease), (&b"name"[..], &b"name/1"[..], 1));
    assert_eq!(next(&mut observed).await, "name/1=one");
    let second = begin_campaign(b, 2, "two").await;
    wait_for_key(a, "name/2", true).await;
    assert_waits(a, &second).await;
    let proclaim = ProclaimRequest { leader: Some(first.clone()), value: "one again".into() };
    client(c).await.proclaim(proclaim.clone()).await.unwrap();
    assert_eq!(next(&mut observed).await, "name/1=one again");
    assert_eq!(leader(b).await.unwrap().kv.unwrap().value, "one again");
    // The same lease campaigns again: it leads, with its new value.
    assert_eq!(win(b, 1, "one at last").await, first);
    assert_eq!(next(&mut observed).await, "name/1=one at last");

    resign(c, &first).await;
    assert_eq!(second.await.unwrap().unwrap().leader.unwrap().key, "name/2");
    assert_eq!(next(&mut observed).await, "name/2=two");
    let late = client(a).await.proclaim(proclaim).await.unwrap_err();
    assert_eq!((late.code(), late.message()), (Code::Unknown, "election: not leader"));
    resign(a, &first).await;
    assert_eq!(leader(a).await.unwrap().kv.unwrap().value, "two");
    for server in servers {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_without_its_lease_does_not_lead() {
    let (member, server) = single().await;
    for id in 1..=2 {
        grant(&member, id).await;
    }
    let first = win(&member, 1, "one").await;
    let waiting = begin_campaign(&member, 2, "two").await;
    wait_for_key(&member, "name/2", true).await;
    revoke(&member, 2).await;
    resign(&member, &first).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unknown, "election: not leader"));
    let missing = client(&member).await.resign(ResignRequest { leader: None }).await.unwrap_err();
    assert_eq!(missing.message(), "\"leader\" field must be provided");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_candidate_leaves_no_key_and_observers_end_with_the_server() {
    let (member, server) = single().await;
    for id in 1..=2 {
        grant(&member, id).await;
    }
    win(&member, 1, "one").await;
    let waiting = begin_campaign(&member, 2, "two").await;
    wait_for_key(&member, "name/2", true).await;
    waiting.abort();
    wait_for_key(&member, "name/2", false).await;
    let request = LeaderRequest { name: "name".into() };
    let mut observed = client(&member).await.observe(request).await.unwrap().into_inner();
    assert_eq!(next(&mut observed).await, "name/1=one");
    let stopping = tokio::spawn(server.stop());
    let end = tokio::time::timeout(TEST_TIMEOUT, observed.message()).await.unwrap();
    assert_eq!(end.unwrap_err().message(), "etcdserver: server stopped");
    stopping.await.unwrap();
}
