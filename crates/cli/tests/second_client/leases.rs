//! Leases: grant, keep-alive on a stream, expiry, refusals.

use std::time::Instant;

use etcd_client::{
    LeaseGrantOptions, LeaseTimeToLiveOptions, PutOptions, WatchFilterType, WatchOptions,
};
use tonic::Code;

use crate::{assert_refused, with_cluster};

#[test]
fn leases_live_while_they_are_kept_alive() {
    with_cluster("leases", |mut client, _| async move {
        let id = client.lease_grant(30, Some(LeaseGrantOptions::new().with_id(77))).await.unwrap();
        assert_eq!((id.id(), id.ttl()), (77, 30));
        let again = client.lease_grant(30, Some(LeaseGrantOptions::new().with_id(77))).await;
        let exists = "etcdserver: lease already exists";
        assert_refused(again, Code::FailedPrecondition, exists);
        client.put("k", "1", Some(PutOptions::new().with_lease(77))).await.unwrap();
        let with_keys = LeaseTimeToLiveOptions::new().with_keys();
        let left = client.lease_time_to_live(77, Some(with_keys)).await.unwrap();
        assert_eq!((left.granted_ttl(), left.keys()), (30, &[b"k".to_vec()][..]));
        assert!((1..=30).contains(&left.ttl()), "{}", left.ttl());
        let all = client.leases().await.unwrap();
        assert_eq!(all.leases().iter().map(|lease| lease.id()).collect::<Vec<_>>(), [77]);

        let (mut keeper, mut kept) = client.lease_keep_alive(77).await.unwrap();
        for _ in 0..5 {
            keeper.keep_alive().await.unwrap();
            let kept = kept.message().await.unwrap().unwrap();
            assert_eq!((kept.id(), kept.ttl()), (77, 30));
        }
        client.lease_revoke(77).await.unwrap();
        assert!(client.get("k", None).await.unwrap().kvs().is_empty());
        // On the same stream, a revoked lease has no time left.
        keeper.keep_alive().await.unwrap();
        let revoked = kept.message().await.unwrap().unwrap();
        assert_eq!((revoked.id(), revoked.ttl()), (77, 0));
        let missing = "etcdserver: requested lease not found";
        assert_refused(client.lease_revoke(77).await, Code::NotFound, missing);
        assert_eq!(client.lease_time_to_live(77, None).await.unwrap().ttl(), -1);
        let long = client.lease_grant(9_000_000_001, None).await;
        assert_refused(long, Code::OutOfRange, "etcdserver: too large lease TTL");
    });
}

/// Not before its TTL has passed; watchers receive the deletion.
#[test]
fn a_lease_without_keep_alive_expires() {
    with_cluster("expiry", |mut client, _| async move {
        let granted = Instant::now();
        let lease = client.lease_grant(2, None).await.unwrap();
        let options = PutOptions::new().with_lease(lease.id());
        client.put("k", "1", Some(options)).await.unwrap();
        let deletes = WatchOptions::new().with_filters([WatchFilterType::NoPut]);
        let mut watch = client.watch("k", Some(deletes)).await.unwrap();
        let deleted = loop {
            let response = watch.message().await.unwrap().unwrap();
            if let [event] = response.events() {
                break event.kv().unwrap().key().to_vec();
            }
        };
        assert_eq!(deleted, b"k");
        assert!(granted.elapsed().as_secs() >= lease.ttl() as u64, "{:?}", granted.elapsed());
        assert_eq!(client.lease_time_to_live(lease.id(), None).await.unwrap().ttl(), -1);
    });
}
