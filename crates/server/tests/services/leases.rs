//! The service Lease, with time that passes.

use quorate_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use quorate_server::ServiceLimits;

use crate::support::{ServiceMember, get, text, wait_for, within};

pub(crate) async fn grant(member: &ServiceMember, id: i64, ttl: i64) -> (i64, i64) {
    let reply = member.lease().lease_grant(LeaseGrantRequest { id, ttl }).await;
    let granted = reply.unwrap().into_inner();
    assert!(granted.error.is_empty());
    (granted.id, granted.ttl)
}

pub(crate) async fn time_to_live(member: &ServiceMember, id: i64) -> LeaseTimeToLiveResponse {
    let request = LeaseTimeToLiveRequest { id, keys: true };
    let response = within("it", member.lease().lease_time_to_live(request)).await.unwrap();
    response.into_inner()
}

/// The TTL in the response to each of these, over one stream.
pub(crate) async fn keep_alive(member: &ServiceMember, ids: &[i64]) -> Vec<i64> {
    let requests: Vec<_> = ids.iter().map(|id| LeaseKeepAliveRequest { id: *id }).collect();
    let stream = member.lease().lease_keep_alive(tokio_stream::iter(requests)).await.unwrap();
    let mut stream = stream.into_inner();
    let mut seconds = Vec::new();
    while let Some(response) = within("a renewal", stream.message()).await.unwrap() {
        assert_eq!(response.id, ids[seconds.len()]);
        seconds.push(response.ttl);
    }
    seconds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_granted_listed_and_revoked_with_their_keys() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    assert_eq!(grant(&member, 7, 60).await, (7, 60));
    let (chosen, ttl) = grant(&member, 0, 1).await;
    assert_eq!((chosen > 0, ttl), (true, 2), "no shorter than an election may take");
    member.put_with("a", "1", 7).await;
    member.put_with("b", "1", 7).await;
    assert_eq!(member.range(get("a")).await.kvs[0].lease, 7);

    let response = time_to_live(&member, 7).await;
    assert_eq!(
        (response.id, response.granted_ttl, (1..=60).contains(&response.ttl)),
        (7, 60, true)
    );
    assert_eq!(response.keys.iter().map(text).collect::<Vec<_>>(), ["a", "b"]);
    let unknown = time_to_live(&member, 99).await;
    assert_eq!((unknown.id, unknown.ttl, unknown.granted_ttl), (99, -1, 0));
    let listed = member.lease().lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
    assert!(listed.leases.iter().any(|lease| lease.id == 7));

    let revision = member.range(get("a")).await.header.unwrap().revision;
    let revoked = member.lease().lease_revoke(LeaseRevokeRequest { id: 7 }).await.unwrap();
    assert_eq!(revoked.into_inner().header.unwrap().revision, revision + 1);
    assert_eq!(member.range(get("a")).await.count, 0);
    assert_eq!(time_to_live(&member, 7).await.ttl, -1);
    assert_eq!(keep_alive(&member, &[7]).await, [0], "a missing lease is no error");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_expires_with_its_keys_unless_it_is_kept_alive() {
    let member =
        ServiceMember::single(ServiceLimits { lease_ttl_min: 1, ..ServiceLimits::default() }).await;
    grant(&member, 1, 5).await;
    grant(&member, 2, 600).await;
    member.put_with("short", "x", 1).await;
    member.put_with("long", "x", 2).await;
    assert_eq!(keep_alive(&member, &[2, 2, 99]).await, [600, 600, 0]);
    wait_for("its end", async || member.range(get("short")).await.count == 0).await;
    assert_eq!(time_to_live(&member, 1).await.ttl, -1);
    assert_eq!(member.range(get("long")).await.count, 1);
    assert_eq!(keep_alive(&member, &[1, 2]).await, [0, 600]);
    member.stop().await;
}
