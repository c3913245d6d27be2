//! Members with programs of different versions in one cluster: a command of the newer version runs
//! only when all members know it, and a program that is too old or too new stops and says so.

#![cfg(feature = "runtime")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use quorate::{
    ClusterVersion, DirectoryStorage, DowngradeRefusal, Index, Machine, MachineError, Node,
    NodeConfig, NodeError, RequestError, RequestRefused, SnapshotChunks, StopReason,
    UnsupportedVersion, VersionRange,
};
use support::{CLUSTER, TICK, in_time, listen, until_done, wait_for};

/// The programs of the tests: each knows commands up to its version.
const OLD: VersionRange = VersionRange::new(1, 1);
const NEW: VersionRange = VersionRange::new(1, 2);
/// Dropped the support of version 1.
const NEWEST: VersionRange = VersionRange::new(2, 3);

/// Keeps all commands. The first byte of a command is the version that it needs.
struct Journal {
    program: VersionRange,
    version: u32,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Machine for Journal {
    fn apply(&mut self, _index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        let Some((needs, line)) = command.split_first() else { return Ok("empty".into()) };
        let needs = u32::from(*needs);
        if needs > self.version {
            return Ok("too early".into());
        }
        if needs > self.program.max {
            return Err(UnsupportedVersion { needs, supported: self.program }.into());
        }
        self.lines.lock().unwrap().push(String::from_utf8_lossy(line).into_owned());
        Ok("done".into())
    }

    fn query(&self, _query: &Bytes) -> Result<Bytes, MachineError> {
        Ok(self.lines.lock().unwrap().join("\n").into())
    }

    fn on_cluster_version(&mut self, _index: Index, version: u32) {
        self.version = version;
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        let lines = self.lines.lock().unwrap().clone();
        Ok(Box::new(lines.into_iter().map(|line| Ok(line.into()))))
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        let line = |chunk: Bytes| String::from_utf8_lossy(&chunk).into_owned();
        *self.lines.lock().unwrap() = chunks.map(line).collect();
        Ok(())
    }
}

struct Members {
    directory: tempfile::TempDir,
    addresses: BTreeMap<u64, String>,
    nodes: BTreeMap<u64, Node>,
    lines: BTreeMap<u64, Arc<Mutex<Vec<String>>>>,
}

impl Members {
    async fn start(programs: &[VersionRange]) -> Self {
        let mut transports = Vec::new();
        let mut addresses = BTreeMap::new();
        for id in 1..=programs.len() as u64 {
            let transport = listen(0).await;
            addresses.insert(id, transport.local_address().to_string());
            transports.push(transport);
        }
        let directory = tempfile::tempdir().unwrap();
        let (nodes, lines) = (BTreeMap::new(), BTreeMap::new());
        let mut members = Self { directory, addresses, nodes, lines };
        for ((id, transport), program) in (1..).zip(transports).zip(programs) {
            members.run(id, transport, *program).await.unwrap();
        }
        members
    }

    async fn run(
        &mut self,
        id: u64,
        transport: quorate::TcpTransport,
        program: VersionRange,
    ) -> Result<(), NodeError> {
        let mut config = NodeConfig::first(CLUSTER, id, self.addresses.clone()).with_tick(TICK);
        config.versions = program;
        let lines = Arc::default();
        let machine = Journal { program, version: 1, lines: Arc::clone(&lines) };
        let storage = DirectoryStorage::new(self.path(id)).unwrap();
        let node = Node::start(config, storage, machine, transport).await?;
        self.nodes.insert(id, node);
        self.lines.insert(id, lines);
        Ok(())
    }

    fn path(&self, id: u64) -> PathBuf {
        self.directory.path().join(id.to_string())
    }

    /// Exchanges the program of a member: stops it, and starts it on the same disk.
    async fn exchange(&mut self, id: u64, program: VersionRange) -> Result<(), NodeError> {
        if let Some(node) = self.nodes.remove(&id) {
            in_time("a stop", node.stop()).await;
        }
        let address: SocketAddr = self.addresses[&id].parse().unwrap();
        let transport = listen(address.port()).await;
        self.run(id, transport, program).await
    }

    async fn leader(&self) -> Node {
        wait_for("a leader", async || self.nodes.values().find(|node| node.is_leader()).cloned())
            .await
    }

    async fn write(&self, needs: u8, line: &str) -> Bytes {
        let command = [&[needs], line.as_bytes()].concat();
        let leader = self.leader().await;
        until_done("a command", async || leader.propose(command.clone()).await).await.bytes
    }

    async fn wait_version(&self, version: u32, downgrading: bool) {
        let wanted = ClusterVersion { version, downgrading };
        wait_for("the cluster version", async || {
            self.nodes.values().all(|node| node.cluster_version() == wanted).then_some(())
        })
        .await;
    }

    async fn wait_equal(&self, expected: &[&str]) {
        wait_for("the same commands everywhere", async || {
            self.lines.values().all(|lines| *lines.lock().unwrap() == expected).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_version_rises_when_the_last_member_is_upgraded() {
    let mut members = Members::start(&[OLD, OLD, OLD]).await;
    assert_eq!(members.write(1, "one").await, "done");
    members.exchange(1, NEW).await.unwrap();
    members.exchange(2, NEW).await.unwrap();
    // A newer program proposes too early: no member runs it, also not those that know it.
    assert_eq!(members.write(2, "early").await, "too early");
    members.wait_version(1, false).await;
    members.exchange(3, NEW).await.unwrap();
    members.wait_version(2, false).await;
    assert_eq!(members.write(2, "two").await, "done");
    members.wait_equal(&["one", "two"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_program_stops_at_a_newer_version_and_a_new_one_continues() {
    let mut members = Members::start(&[NEW, NEW, NEW]).await;
    members.wait_version(2, false).await;
    assert_eq!(members.write(2, "one").await, "done");
    // The log has the change of the version: the program stops when it gets there, or does not
    // start if a snapshot covers the change already.
    let text = match members.exchange(3, OLD).await {
        Ok(()) => {
            let node = members.nodes.remove(&3).unwrap();
            let reason = in_time("a stop", node.wait_stopped()).await;
            let unsupported = matches!(
                &reason,
                StopReason::UnsupportedVersion(UnsupportedVersion { needs: 2, .. })
            );
            assert!(unsupported, "{reason}");
            reason.to_string()
        }
        Err(refused) => {
            assert!(matches!(refused, NodeError::UnsupportedVersion(_)), "{refused}");
            refused.to_string()
        }
    };
    assert!(text.contains("cluster version 2 is needed"), "{text}");
    // Nor does it start from a snapshot of that version.
    members.exchange(3, NEW).await.unwrap();
    members.wait_version(2, false).await;
    members.wait_equal(&["one"]).await;
    until_done("a snapshot", async || members.nodes[&3].snapshot().await).await;
    let refused = members.exchange(3, OLD).await.unwrap_err();
    assert!(matches!(refused, NodeError::UnsupportedVersion(_)), "{refused}");
    assert_eq!(members.write(2, "two").await, "done");
    members.exchange(3, NEW).await.unwrap();
    members.wait_equal(&["one", "two"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_lowers_the_version_until_all_programs_are_exchanged() {
    let mut members = Members::start(&[NEW, NEW, NEW]).await;
    members.wait_version(2, false).await;
    assert_eq!(members.write(2, "one").await, "done");
    let leader = members.leader().await;
    let follower = members.nodes.values().find(|node| node.id() != leader.id()).unwrap();
    let refused = follower.downgrade(1).await.unwrap_err();
    assert!(matches!(refused, RequestError::Refused(RequestRefused::ByLeader(_))), "{refused}");
    let refused = leader.downgrade(2).await.unwrap_err();
    let not_lower = DowngradeRefusal::NotLower { target: 2, current: 2 };
    assert_eq!(refused, RequestRefused::Downgrade(not_lower).into());
    in_time("a downgrade", leader.downgrade(1)).await.unwrap();
    members.wait_version(1, true).await;
    // Every program still knows the command, and no member runs it.
    assert_eq!(members.write(2, "late").await, "too early");
    for id in 1..=3 {
        wait_for("a disk that the old program can read", async || {
            let status = members.nodes[&id].status().await.ok()?;
            (status.storage_version == 1).then_some(())
        })
        .await;
        members.exchange(id, OLD).await.unwrap();
        assert_eq!(members.write(1, &format!("old {id}")).await, "done");
    }
    members.wait_equal(&["one", "old 1", "old 2", "old 3"]).await;
    // With the last newer program the downgrade is complete: the version may rise again.
    members.wait_version(1, false).await;
    for id in 1..=3 {
        members.exchange(id, NEW).await.unwrap();
    }
    members.wait_version(2, false).await;
    assert_eq!(members.write(2, "two").await, "done");
    members.wait_equal(&["one", "old 1", "old 2", "old 3", "two"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_downgrade_raises_the_version_again() {
    let members = Members::start(&[NEW]).await;
    members.wait_version(2, false).await;
    let leader = members.leader().await;
    let refused = leader.cancel_downgrade().await.unwrap_err();
    let refusal = RequestRefused::Downgrade(DowngradeRefusal::NotInProgress);
    assert_eq!(refused, refusal.into());
    in_time("a downgrade", leader.downgrade(1)).await.unwrap();
    members.wait_version(1, true).await;
    in_time("a cancellation", leader.cancel_downgrade()).await.unwrap();
    members.wait_version(2, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_dropped_the_version_stops_and_a_range_is_checked() {
    let mut members = Members::start(&[OLD]).await;
    assert_eq!(members.write(1, "one").await, "done");
    until_done("a snapshot", async || members.nodes[&1].snapshot().await).await;
    let refused = members.exchange(1, NEWEST).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("version 1 is needed") && text.contains("an older program"), "{text}");
    let refused = members.exchange(1, VersionRange::new(0, 2)).await.unwrap_err();
    assert!(matches!(refused, NodeError::EmptyVersions(_)), "{refused}");
    members.exchange(1, NEW).await.unwrap();
    members.wait_version(2, false).await;
    until_done("a snapshot", async || members.nodes[&1].snapshot().await).await;
    members.exchange(1, NEWEST).await.unwrap();
    members.wait_version(3, false).await;
    members.wait_equal(&["one"]).await;
}
