//! Leases when the leader, who alone counts their time, dies.

use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, PutRequest,
};
use tonic::Status;

use crate::client::{Client, answered, answered_within, surely, wait_for};
use crate::members::{Members, place};

const SECONDS: u64 = 4;
const LIFE: Duration = Duration::from_secs(SECONDS);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_outlives_the_leader_as_long_as_it_is_kept_alive_and_no_longer() {
    let place = place("leases");
    let mut members = Members::three(&place).await;
    // On a machine that stands still for as long as a lease lasts, leases end: again, then.
    while !lives_as_it_should(&mut members).await {
        println!("nobody kept the lease alive in time");
    }
}

/// Whether the lease was kept alive in time, and so had to live.
async fn lives_as_it_should(members: &mut Members<'_>) -> bool {
    let leader = members.leader().await;
    let survivor = members.client(members.others(leader)[0]).clone();
    let kept = grant(&survivor, "kept").await;
    let left = grant(&survivor, "left").await;
    members.kill(leader);
    let (in_time, ()) = tokio::join!(keep_alive(&survivor, kept), ends_in_time(&survivor, left));
    members.start_again(leader);
    members.serves(leader).await;
    in_time
}

async fn ends_in_time(client: &Client, lease: Granted) {
    let gone = async || client.get("left").await.ok()?.is_none().then_some(());
    wait_for("the lease ends", gone).await;
    // It was granted after it was asked for.
    assert!(lease.asked.elapsed() >= LIFE, "ended after {:?}", lease.asked.elapsed());
}

struct Granted {
    id: i64,
    asked: Instant,
}

/// A lease with a key of this name.
async fn grant(client: &Client, key: &str) -> Granted {
    let attempt = async || {
        let asked = Instant::now();
        let request = LeaseGrantRequest { ttl: SECONDS as i64, id: 0 };
        let mut leases = LeaseClient::new(client.channel.clone());
        let granted = answered(leases.lease_grant(request)).await?;
        assert_eq!(granted.ttl, SECONDS as i64);
        let (key, value) = (key.to_string().into(), "here".into());
        let put = PutRequest { key, value, lease: granted.id, ..Default::default() };
        answered(client.kv().put(put)).await?;
        Ok(Granted { id: granted.id, asked })
    };
    surely("a lease", attempt).await
}

/// For three times as long as it lasts by itself; false if its owner slept too long.
async fn keep_alive(client: &Client, lease: Granted) -> bool {
    let mut renewed = lease.asked;
    while lease.asked.elapsed() < 3 * LIFE {
        let asked = Instant::now();
        let told = renew(client, lease.id).await;
        let in_time = renewed.elapsed() < LIFE;
        match told {
            Ok(reply) if reply.ttl > 0 => renewed = asked,
            Ok(_) if in_time => panic!("ended {:?} after it was renewed", renewed.elapsed()),
            Ok(_) => return false,
            // Nobody leads for a moment.
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let found = client.get_surely("kept").await;
    if found.is_none() {
        assert!(renewed.elapsed() >= LIFE, "gone {:?} after a renewal", renewed.elapsed());
    }
    found.is_some()
}

async fn renew(client: &Client, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
    let mut leases = LeaseClient::new(client.channel.clone());
    let requests = tokio_stream::once(LeaseKeepAliveRequest { id });
    let mut replies = answered_within(LIFE, leases.lease_keep_alive(requests)).await?;
    let message = tokio::time::timeout(LIFE, replies.message()).await;
    let message = message.map_err(|_| Status::deadline_exceeded("no answer"))??;
    message.ok_or_else(|| Status::unavailable("the stream ended"))
}
