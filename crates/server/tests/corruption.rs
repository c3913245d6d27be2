//! A member whose data differs from the leader's is noticed: writes are refused until the alarm is
//! disarmed, and the member does not start again.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::time::{Duration, Instant};

use quorate_kv::{Command, Put};
use quorate_proto::etcdserverpb::alarm_request::AlarmAction;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::{AlarmMember, AlarmRequest, AlarmType, CompactionRequest};
use quorate_server::config::{ClusterState, CorruptionChecks};
use quorate_server::{RunningServer, ServerError};
use support::{TestMember, wait_for, wait_until};
use tonic::Code;

const OFTEN: Duration = Duration::from_millis(200);

async fn start(members: &[&TestMember], checks: CorruptionChecks) -> Vec<RunningServer> {
    let mut running = Vec::new();
    for member in members {
        let mut config = member.config(members, ClusterState::New);
        config.corruption_checks = checks;
        running.push(RunningServer::start(config).await.unwrap());
    }
    wait_until("one leads", || running.iter().any(|server| server.node().is_leader())).await;
    members[0].put_until_done("x", "1").await;
    running
}

/// Makes a follower run another command than the others at its next index.
async fn corrupt(members: &[&TestMember], running: &[RunningServer]) -> usize {
    let leader = running.iter().position(|server| server.node().is_leader()).unwrap();
    let (victim, store) = ((leader + 1) % 3, running[(leader + 1) % 3].store());
    // Entries of the start must not come in between: URLs, the quota, the cluster version.
    members[0].members_until(|all| all.iter().all(|one| !one.client_urls.is_empty())).await;
    wait_until("the quota is set", || {
        running.iter().all(|one| one.store().read().quota().bytes > 0)
    })
    .await;
    wait_until_quiet(running).await;
    // The store does not see entries of the membership: its index is that of the log only after a
    // command.
    members[leader].put_until_done("x", "2").await;
    wait_until_quiet(running).await;
    let mut kv = store.write();
    let index = kv.applied() + 1;
    let put = Put { key: "x".into(), value: "wrong".into(), ..Put::default() };
    let _ = kv.apply(index, &Command::Put(put)).unwrap();
    drop(kv);
    members[leader].put_until_done("x", "right").await;
    victim
}

/// Waits until no member has applied a command for some time.
async fn wait_until_quiet(running: &[RunningServer]) {
    let (mut applied, mut since) = (0, Instant::now());
    wait_until("nothing is on its way", || {
        let now: Vec<u64> = running.iter().map(|one| one.store().read().applied()).collect();
        if now.iter().any(|one| *one != applied) {
            (applied, since) = (now[0], Instant::now());
        }
        since.elapsed() > Duration::from_secs(1)
    })
    .await;
}

async fn alarms(member: &TestMember) -> Vec<AlarmMember> {
    let mut maintenance = MaintenanceClient::new(member.channel().await);
    let request = AlarmRequest { action: AlarmAction::Get as i32, ..AlarmRequest::default() };
    maintenance.alarm(request).await.map_or(Vec::new(), |reply| reply.into_inner().alarms)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_differs_raises_the_alarm() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let members = [&a, &b, &c];
    let checks = CorruptionChecks { interval: OFTEN, ..CorruptionChecks::default() };
    let mut running = start(&members, checks).await;
    let victim = corrupt(&members, &running).await;
    let id = running[victim].node().id().0;
    let other = members[(victim + 1) % 3];
    wait_for("the alarm", async || {
        let expected = AlarmMember { member_id: id, alarm: AlarmType::Corrupt as i32 };
        alarms(other).await == [expected]
    })
    .await;
    let refused = other.put("x", "2").await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::DataLoss, "etcdserver: corrupt cluster")
    );

    running.remove(victim).stop_now().await;
    let disarm = AlarmRequest {
        action: AlarmAction::Deactivate as i32,
        member_id: id,
        alarm: AlarmType::Corrupt as i32,
    };
    let mut maintenance = MaintenanceClient::new(other.channel().await);
    maintenance.alarm(disarm).await.unwrap();
    other.put_until_done("x", "2").await;
    for server in running {
        server.stop_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_difference_is_found_after_a_compaction() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let members = [&a, &b, &c];
    let checks = CorruptionChecks {
        compact_hash: true,
        compact_hash_interval: OFTEN,
        ..CorruptionChecks::default()
    };
    let running = start(&members, checks).await;
    let victim = corrupt(&members, &running).await;
    let other = members[(victim + 1) % 3];
    // Without a compaction nothing is compared.
    tokio::time::sleep(3 * OFTEN).await;
    assert_eq!(alarms(other).await, []);
    let revision = running[(victim + 1) % 3].store().read().revision();
    other.kv().await.compact(CompactionRequest { revision, physical: false }).await.unwrap();
    wait_for("the alarm", async || alarms(other).await.len() == 1).await;
    for server in running {
        server.stop_now().await;
    }
}

/// With a table on disk the difference outlives a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_differs_does_not_start() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let members = [&a, &b, &c];
    let config = |member: &TestMember| {
        let mut config = member.config(&members, ClusterState::New);
        config.table = quorate_server::config::TableKind::Redb;
        config.corruption_checks.initial = true;
        config
    };
    let mut running = Vec::new();
    for member in members {
        running.push(RunningServer::start(config(member)).await.unwrap());
    }
    wait_until("one leads", || running.iter().any(|server| server.node().is_leader())).await;
    a.put_until_done("x", "1").await;
    let victim = corrupt(&members, &running).await;
    running.remove(victim).stop().await;
    // It starts where it finds no leader in time, or leads itself.
    wait_for("the difference is found", async || {
        match RunningServer::start(config(members[victim])).await {
            Err(ServerError::Corrupt(mismatch)) => {
                assert_ne!(mismatch.own, mismatch.leader);
                true
            }
            Err(other) => panic!("{other:?}"),
            Ok(server) => {
                server.stop_now().await;
                false
            }
        }
    })
    .await;
    for server in running {
        server.stop_now().await;
    }
}
