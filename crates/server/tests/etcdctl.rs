//! The stock `etcdctl` against three members, then four, then three.
//! Skipped, by name, where it is not installed.

mod support;

use std::process::{Command, Output};

use quorate_server::Running;
use quorate_server::config::ClusterState;
use support::{Place, start_all};

fn etcdctl(endpoints: &str, line: &str) -> Output {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").arg("--endpoints").arg(endpoints);
    command.arg("--command-timeout=60s").args(line.split_whitespace()).output().unwrap()
}

/// What it printed, if it was content.
async fn ask(place: &Place, line: &str) -> String {
    let (endpoint, line) = (place.client.address(), line.to_owned());
    let output = tokio::task::spawn_blocking(move || {
        let output = etcdctl(&endpoint, &line);
        (line, output)
    });
    let (line, output) = output.await.unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "etcdctl {line}: {error}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

async fn id_of(place: &Place, name: &str) -> String {
    let list = ask(place, "member list").await;
    let line = list.lines().find(|line| line.contains(&format!(", {name}, "))).unwrap();
    line.split(',').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_does_what_it_does_with_etcd() {
    if Command::new("etcdctl").arg("version").output().is_err() {
        eprintln!("skipped: etcdctl is not installed");
        return;
    }
    let [a, b, c, d] = ["a", "b", "c", "d"].map(Place::new);
    let mut running = start_all(&[&a, &b, &c]).await;
    assert_eq!(ask(&a, "put greeting hello").await, "OK");
    assert_eq!(ask(&b, "get greeting").await, "greeting\nhello");
    assert_eq!(ask(&c, "del greeting").await, "1");
    let lease = ask(&a, "lease grant 100").await;
    let lease = lease.split_whitespace().nth(1).unwrap().to_owned();
    assert_eq!(ask(&b, &format!("put --lease={lease} k v")).await, "OK");
    assert!(ask(&c, &format!("lease timetolive {lease} --keys")).await.contains("keys([k])"));
    ask(&a, &format!("lease revoke {lease}")).await;
    assert_eq!(ask(&b, "get k").await, "");
    assert!(ask(&a, "compaction 2").await.contains("compacted revision 2"));
    ask(&a, "defrag").await;
    assert_eq!(ask(&a, "endpoint status").await.matches(", ").count(), 9);
    let health = tokio::task::spawn_blocking({
        let endpoint = a.client.address();
        move || etcdctl(&endpoint, "endpoint health")
    });
    let health = health.await.unwrap();
    let said = [health.stdout, health.stderr].concat();
    assert!(String::from_utf8_lossy(&said).contains("is healthy"));
    let hashes = [ask(&a, "endpoint hashkv").await, ask(&b, "endpoint hashkv").await];
    let hash = |line: &str| line.rsplit(", ").next().unwrap().to_owned();
    assert_eq!(hash(&hashes[0]), hash(&hashes[1]));

    let added = ask(&b, &format!("member add d --learner --peer-urls={}", d.peer)).await;
    assert!(added.contains("ETCD_INITIAL_CLUSTER_STATE=\"existing\""), "{added}");
    running.push(d.start(&[&a, &b, &c, &d], ClusterState::Existing).await);
    b.members_until(|members| members.iter().any(|member| member.name == "d")).await;
    let id = id_of(&b, "d").await;
    let promoted = |output: &Output| output.status.success();
    loop {
        let (endpoint, line) = (b.client.address(), format!("member promote {id}"));
        let output = tokio::task::spawn_blocking(move || etcdctl(&endpoint, &line)).await.unwrap();
        if promoted(&output) {
            break;
        }
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("in sync with leader"), "{error}");
    }

    let leader = running.iter().position(|server| server.node().is_leader()).unwrap();
    let heir = (leader + 1) % running.len();
    let heir_id = format!("{:x}", running[heir].node().id().0);
    let places = [&a, &b, &c, &d];
    ask(places[leader], &format!("move-leader {heir_id}")).await;
    let removed = ask(places[leader], &format!("member remove {heir_id}")).await;
    assert!(removed.contains("removed from cluster"), "{removed}");
    let asked = places[leader];
    running.remove(heir).end().await;
    assert_eq!(ask(asked, "put x y").await, "OK");
    assert_eq!(ask(asked, "member list").await.lines().count(), 3);
    stop(running).await;
}

async fn stop(running: Vec<Running>) {
    for server in running {
        server.stop().await;
    }
}
