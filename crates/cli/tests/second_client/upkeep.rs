//! Maintenance: status, hashes, snapshots, alarms, leadership.

use etcd_client::{AlarmAction, AlarmType, Client, PutOptions};
use sha2::{Digest, Sha256};
use tonic::Code;

use crate::{assert_refused, with_cluster};

#[test]
fn maintenance_calls_work() {
    with_cluster("upkeep", |mut client, endpoints| async move {
        for number in 0..50 {
            client.put(format!("k{number}"), "v", None).await.unwrap();
        }
        let revision = client.get("k0", None).await.unwrap().header().unwrap().revision();
        let mut hashes = Vec::new();
        for endpoint in &endpoints {
            let mut one = Client::connect([endpoint], None).await.unwrap();
            one.get("k0", None).await.unwrap();
            let shown = one.status().await.unwrap();
            assert!(shown.version().starts_with("3.") && shown.leader() != 0);
            assert!(shown.db_size() > 0 && shown.raft_used_db_size() > 0);
            assert!(shown.raft_index() >= shown.raft_applied_index() && shown.raft_term() > 0);
            assert!(shown.errors().is_empty() && !shown.is_learner());
            one.defragment().await.unwrap();
            hashes.push((
                one.hash_kv(revision).await.unwrap().hash(),
                one.hash().await.unwrap().hash(),
            ));
        }
        assert_eq!(hashes[0].0, hashes[1].0);
        assert_eq!(hashes[0].0, hashes[2].0);

        snapshot(&mut client).await;
        alarms(&mut client).await;
        move_leader(&endpoints).await;
    });
}

/// Complete according to its checksum; `remaining_bytes` goes down to zero.
async fn snapshot(client: &mut Client) {
    let mut stream = client.snapshot().await.unwrap();
    let (mut bytes, mut left) = (Vec::new(), u64::MAX);
    while let Some(part) = stream.message().await.unwrap() {
        assert!(part.remaining_bytes() <= left);
        left = part.remaining_bytes();
        bytes.extend_from_slice(part.blob());
    }
    assert_eq!(left, 0);
    let (content, checksum) = bytes.split_at(bytes.len() - 32);
    assert_eq!(Sha256::digest(content)[..], *checksum);
}

async fn alarms(client: &mut Client) {
    let (get, on, off) = (AlarmAction::Get, AlarmAction::Activate, AlarmAction::Deactivate);
    assert!(client.alarm(get, AlarmType::None, None).await.unwrap().alarms().is_empty());
    client.alarm(on, AlarmType::Nospace, None).await.unwrap();
    let listed = client.alarm(get, AlarmType::None, None).await.unwrap();
    assert_eq!(listed.alarms()[0].alarm(), AlarmType::Nospace);
    let text = "etcdserver: mvcc: database space exceeded";
    assert_refused(client.put("k", "1", None).await, Code::ResourceExhausted, text);
    assert_eq!(client.get("k0", None).await.unwrap().count(), 1);
    assert_eq!(client.delete("k0", None).await.unwrap().deleted(), 1);
    client.alarm(off, AlarmType::Nospace, None).await.unwrap();
    assert!(client.alarm(get, AlarmType::None, None).await.unwrap().alarms().is_empty());
    client.put("k", "1", Some(PutOptions::new())).await.unwrap();
}

async fn move_leader(endpoints: &[String]) {
    let mut clients = Vec::new();
    for endpoint in endpoints {
        clients.push(Client::connect([endpoint], None).await.unwrap());
    }
    let mut ids = Vec::new();
    for client in &mut clients {
        ids.push(client.status().await.unwrap().header().unwrap().member_id());
    }
    let leader_id = clients[0].status().await.unwrap().leader();
    let leader = ids.iter().position(|id| *id == leader_id).unwrap();
    let (successor, other) = (ids[(leader + 1) % 3], (leader + 2) % 3);
    let not_leader = "etcdserver: not leader";
    assert_refused(
        clients[other].move_leader(successor).await,
        Code::FailedPrecondition,
        not_leader,
    );
    let unknown = "etcdserver: bad leader transferee";
    assert_refused(clients[leader].move_leader(77).await, Code::FailedPrecondition, unknown);
    clients[leader].move_leader(successor).await.unwrap();
    assert_eq!(clients[leader].status().await.unwrap().leader(), successor);
}
