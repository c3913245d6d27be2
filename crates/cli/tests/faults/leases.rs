//! Leases when the leader, which alone tracks their expiry, is killed.

use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, PutRequest,
};
use tonic::Status;

use crate::client::{FaultClient, retry_until_ok, wait_for, with_timeout, within};
use crate::cluster::{FaultCluster, test_directory};

const TTL_SECONDS: u64 = 4;
const TTL: Duration = Duration::from_secs(TTL_SECONDS);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_survives_the_leader_exactly_while_it_is_kept_alive() {
    let directory = test_directory("leases");
    let mut cluster = FaultCluster::three(&directory).await;
    // On a machine that stalls for longer than the TTL, leases expire: then try again.
    while !kept_lease_survives(&mut cluster).await {
        println!("the lease was not renewed in time");
    }
}

/// Whether the lease was renewed in time, so that the check was meaningful.
async fn kept_lease_survives(cluster: &mut FaultCluster) -> bool {
    let leader = cluster.leader().await;
    let survivor = cluster.client(cluster.others(leader)[0]).clone();
    let kept = grant(&survivor, "kept", TTL_SECONDS).await;
    let left = grant(&survivor, "left", TTL_SECONDS).await;
    cluster.kill(leader);
    let (in_time, ()) = tokio::join!(keep_alive(&survivor, kept), wait_expired(&survivor, left));
    cluster.restart(leader);
    cluster.wait_serving(leader).await;
    in_time
}

async fn wait_expired(client: &FaultClient, lease: GrantedLease) {
    let gone = async || client.get("left").await.ok()?.is_none().then_some(());
    wait_for("the lease expires", gone).await;
    // The TTL starts after the request was sent.
    assert!(lease.requested.elapsed() >= TTL, "expired after {:?}", lease.requested.elapsed());
}

pub(crate) struct GrantedLease {
    pub(crate) id: i64,
    pub(crate) requested: Instant,
}

/// A lease of `ttl` seconds with a key of this name.
pub(crate) async fn grant(client: &FaultClient, key: &str, ttl: u64) -> GrantedLease {
    let attempt = async || {
        let requested = Instant::now();
        let request = LeaseGrantRequest { ttl: ttl as i64, id: 0 };
        let mut leases = LeaseClient::new(client.channel.clone());
        let granted = with_timeout(leases.lease_grant(request)).await?;
        assert_eq!(granted.ttl, ttl as i64);
        let (key, value) = (key.to_string().into(), "here".into());
        let put = PutRequest { key, value, lease: granted.id, ..Default::default() };
        with_timeout(client.kv().put(put)).await?;
        Ok(GrantedLease { id: granted.id, requested })
    };
    retry_until_ok("a lease", attempt).await
}

/// Renews the lease for three times its TTL. False if a renewal came too late.
async fn keep_alive(client: &FaultClient, lease: GrantedLease) -> bool {
    let mut renewed = lease.requested;
    while lease.requested.elapsed() < 3 * TTL {
        let requested = Instant::now();
        let reply = renew(client, lease.id).await;
        let in_time = renewed.elapsed() < TTL;
        match reply {
            Ok(reply) if reply.ttl > 0 => renewed = requested,
            Ok(_) if in_time => panic!("expired {:?} after a renewal", renewed.elapsed()),
            Ok(_) => return false,
            // There is no leader at the moment.
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let found = client.get_retrying("kept").await;
    if found.is_none() {
        assert!(renewed.elapsed() >= TTL, "gone {:?} after a renewal", renewed.elapsed());
    }
    found.is_some()
}

pub(crate) async fn renew(client: &FaultClient, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
    let mut leases = LeaseClient::new(client.channel.clone());
    let requests = tokio_stream::once(LeaseKeepAliveRequest { id });
    let mut replies = within(TTL, leases.lease_keep_alive(requests)).await?;
    let message = tokio::time::timeout(TTL, replies.message()).await;
    let message = message.map_err(|_| Status::deadline_exceeded("request timed out"))??;
    message.ok_or_else(|| Status::unavailable("the stream ended"))
}
