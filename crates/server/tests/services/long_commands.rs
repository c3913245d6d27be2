//! Requests that wait for the store while a long command is applied do not occupy threads.

use std::sync::mpsc;
use std::time::Duration;

use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{
    LeaseKeepAliveRequest, RangeRequest, StatusRequest, WatchCreateRequest, WatchRequest,
};
use quorate_server::ServiceLimits;
use tokio::task::JoinSet;

use crate::leases::grant;
use crate::support::{ServiceMember, wait_for};

/// Only what never happens takes longer.
const HELD_MAX: Duration = Duration::from_secs(60);

/// Everything runs on the one thread of this test, which answers calls that need no data as long
/// as none of the others blocks it.
#[tokio::test]
async fn readers_of_the_store_wait_without_blocking_their_thread() {
    let member = ServiceMember::single(ServiceLimits::default()).await;
    member.put("key", "1").await;
    grant(&member, 7, 600).await;
    let store = member.store.clone();
    let (held, is_held) = tokio::sync::oneshot::channel();
    let (release, released) = mpsc::channel();
    let holder = std::thread::spawn(move || {
        let guard = store.write();
        held.send(()).unwrap();
        let was_released = released.recv_timeout(HELD_MAX).is_ok();
        drop(guard);
        was_released
    });
    is_held.await.unwrap();

    let mut waiting = JoinSet::new();
    for _ in 0..20 {
        let (mut kv, mut maintenance) = (member.kv(), member.maintenance());
        let (mut watch, mut lease) = (member.watch(), member.lease());
        waiting.spawn(async move {
            let key = RangeRequest { key: "key".into(), serializable: true, ..Default::default() };
            assert_eq!(kv.range(key).await.unwrap().into_inner().kvs.len(), 1);
        });
        waiting.spawn(async move {
            maintenance.status(StatusRequest::default()).await.unwrap();
        });
        waiting.spawn(async move {
            let create = WatchCreateRequest { key: "key".into(), ..Default::default() };
            let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
            let requests = tokio_stream::once(create);
            let mut stream = watch.watch(requests).await.unwrap().into_inner();
            assert!(stream.message().await.unwrap().unwrap().created);
        });
        waiting.spawn(async move {
            let requests = tokio_stream::once(LeaseKeepAliveRequest { id: 7 });
            let mut stream = lease.lease_keep_alive(requests).await.unwrap().into_inner();
            assert_eq!(stream.message().await.unwrap().unwrap().ttl, 600);
        });
    }
    // They wait, and this thread serves on.
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        member.node.status().await.unwrap();
    }
    assert_eq!(waiting.len(), 80);
    assert!(waiting.try_join_next().is_none(), "the store was read while a command changed it");
    release.send(()).unwrap();
    assert!(holder.join().unwrap(), "the thread was blocked until the lock was free");
    while let Some(done) = waiting.join_next().await {
        done.unwrap();
    }
    wait_for("all watches end with their streams", async || member.watchers() == 0).await;
}
