//! No client delays Raft: the leader keeps its term while its clients' threads are busy, and
//! expensive requests are served in pieces.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::time::Duration;

use quorate_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, RangeRequest, RequestOp, TxnRequest, request_op,
};
use quorate_server::RunningServer;
use quorate_server::config::ClusterState;
use support::{TEST_TIMEOUT, TestMember, put, wait_until};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Three servers, each on its own runtime with one thread for clients.
struct SeparateServers {
    members: Vec<TestMember>,
    servers: Vec<RunningServer>,
    runtimes: Vec<Runtime>,
}

impl SeparateServers {
    fn start() -> Self {
        let members: Vec<TestMember> = ["a", "b", "c"].map(TestMember::new).into();
        let all: Vec<&TestMember> = members.iter().collect();
        let (mut servers, mut runtimes) = (Vec::new(), Vec::new());
        for member in &members {
            let runtime = runtime();
            let mut config = member.config(&all, ClusterState::New);
            config.election_timeout = Duration::from_secs(1);
            config.heartbeat_interval = Duration::from_millis(100);
            servers.push(runtime.block_on(RunningServer::start(config)).unwrap());
            runtimes.push(runtime);
        }
        Self { members, servers, runtimes }
    }

    fn leader(&self, tests: &Runtime) -> usize {
        tests.block_on(self.members[0].put_until_done("first", "1"));
        tests
            .block_on(wait_until("a leader", || self.servers.iter().any(|s| s.node().is_leader())));
        self.servers.iter().position(|server| server.node().is_leader()).unwrap()
    }

    fn stop(self) {
        for (server, runtime) in self.servers.into_iter().zip(self.runtimes) {
            runtime.block_on(server.stop_now());
            runtime.shutdown_background();
        }
    }
}

#[test]
fn busy_client_threads_do_not_depose_the_leader() {
    let tests = runtime();
    let cluster = SeparateServers::start();
    let leader = cluster.leader(&tests);
    let term = cluster.servers[leader].node().term();
    let busy = Duration::from_secs(6);
    cluster.runtimes[leader].spawn(async move { std::thread::sleep(busy) });
    std::thread::sleep(busy);
    for server in &cluster.servers {
        assert_eq!(server.node().term(), term);
    }
    assert!(cluster.servers[leader].node().is_leader());
    cluster.stop();
}

/// All keys, as one operation of a transaction.
fn count_all() -> RequestOp {
    let range = RangeRequest { count_only: true, ..everything() };
    RequestOp { request: Some(request_op::Request::RequestRange(range)) }
}

fn everything() -> RangeRequest {
    RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() }
}

/// Adds keys `k…`, many with each transaction.
async fn add_keys(member: &TestMember, count: usize) {
    let mut kv = member.kv().await;
    let numbers: Vec<usize> = (0..count).collect();
    for some in numbers.chunks(128) {
        let one = |number: &usize| RequestOp {
            request: Some(request_op::Request::RequestPut(put(&format!("k{number:07}"), "value"))),
        };
        let txn = TxnRequest { success: some.iter().map(one).collect(), ..Default::default() };
        kv.txn(txn).await.unwrap();
    }
}

/// Transactions that count all keys in each of their operations, and a deletion of all keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expensive_requests_are_served() {
    let a = TestMember::new("a");
    let server = a.start(&[&a], ClusterState::New).await;
    a.put_until_done("first", "1").await;
    let keys = 10_000;
    add_keys(&a, keys).await;
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let mut kv = a.kv().await;
        clients.spawn(async move {
            for _ in 0..5 {
                let txn = TxnRequest { success: vec![count_all(); 128], ..Default::default() };
                let found = kv.txn(txn).await.unwrap().into_inner();
                assert_eq!(found.responses.len(), 128);
                for response in found.responses {
                    let Some(quorate_proto::etcdserverpb::response_op::Response::ResponseRange(
                        range,
                    )) = response.response
                    else {
                        panic!("not a range");
                    };
                    assert_eq!(range.count, keys as i64);
                }
            }
        });
    }
    let all = clients.join_all();
    tokio::time::timeout(TEST_TIMEOUT, all).await.unwrap();
    let deletion =
        DeleteRangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    let deleted = a.kv().await.delete_range(deletion).await.unwrap().into_inner();
    assert_eq!(deleted.deleted, keys as i64);
    assert_eq!(a.kv().await.range(everything()).await.unwrap().into_inner().count, 0);
    server.stop_now().await;
}

/// A range of the current state is answered, whatever is compacted meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_at_now_is_never_compacted() {
    let a = TestMember::new("a");
    let server = a.start(&[&a], ClusterState::New).await;
    a.put_until_done("first", "1").await;
    let keys = 6_000;
    add_keys(&a, keys).await;
    let mut kv = a.kv().await;
    let compacting = tokio::spawn(async move {
        let mut compacted = 0;
        loop {
            let revision = kv.put(put("other", "1")).await.unwrap().into_inner().header.unwrap();
            let compaction =
                CompactionRequest { revision: revision.revision, ..Default::default() };
            compacted += i64::from(kv.compact(compaction).await.is_ok());
            if compacted >= 300 {
                return;
            }
        }
    });
    let mut kv = a.kv().await.max_decoding_message_size(usize::MAX);
    let mut ranges = 0;
    while !compacting.is_finished() {
        let found = kv.range(everything()).await.unwrap().into_inner();
        assert_eq!(found.count, keys as i64);
        let txn = TxnRequest {
            success: vec![RequestOp {
                request: Some(request_op::Request::RequestRange(everything())),
            }],
            ..Default::default()
        };
        kv.txn(txn).await.unwrap();
        ranges += 1;
    }
    compacting.await.unwrap();
    assert!(ranges > 0);
    server.stop_now().await;
}
