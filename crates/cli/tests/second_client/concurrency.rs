//! Locks and elections.

use etcd_client::{Client, LockOptions, ProclaimOptions, ResignOptions};
use tonic::Code;

use crate::{assert_refused, with_cluster};

#[test]
fn locks_and_elections_work() {
    with_cluster("concurrency", |client, _| async move {
        locks(client.clone()).await;
        elections(client).await;
    });
}

async fn locks(mut client: Client) {
    let lease = client.lease_grant(600, None).await.unwrap().id();
    let options = LockOptions::new().with_lease(lease);
    let held = client.lock("lock", Some(options)).await.unwrap();
    assert_eq!(held.key(), format!("lock/{lease:x}").as_bytes());
    let mut other = client.clone();
    let waiting = tokio::spawn(async move { other.lock("lock", None).await });
    // The waiter is in the queue, and waits.
    while client
        .get("lock/", Some(etcd_client::GetOptions::new().with_prefix()))
        .await
        .unwrap()
        .count()
        < 2
    {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    client.unlock(held.key()).await.unwrap();
    let second = waiting.await.unwrap().unwrap();
    assert_ne!(second.key(), held.key());
    client.unlock(second.key()).await.unwrap();
}

async fn elections(mut client: Client) {
    assert_refused(client.leader("election").await, Code::Unknown, "election: no leader");
    let lease = client.lease_grant(600, None).await.unwrap().id();
    let won = client.campaign("election", "one", lease).await.unwrap();
    let key = won.leader().unwrap().clone();
    let mut observed = client.observe("election").await.unwrap();
    let first = observed.message().await.unwrap().unwrap();
    assert_eq!(first.kv().unwrap().value(), b"one");
    let options = ProclaimOptions::new().with_leader(key.clone());
    client.proclaim("two", Some(options)).await.unwrap();
    assert_eq!(observed.message().await.unwrap().unwrap().kv().unwrap().value(), b"two");
    assert_eq!(client.leader("election").await.unwrap().kv().unwrap().value(), b"two");
    client.resign(Some(ResignOptions::new().with_leader(key))).await.unwrap();
    assert_refused(client.leader("election").await, Code::Unknown, "election: no leader");
}
