//! The peer URLs of running members are changed: first in the membership, then by a restart.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use quorate_proto::etcdserverpb::MemberUpdateRequest;
use quorate_server::RunningServer;
use quorate_server::config::ClusterState;
use support::{TestMember, start_all};

/// Members that run, with where they listen for peers now.
struct MovingCluster {
    members: [TestMember; 3],
    running: [Option<RunningServer>; 3],
}

impl MovingCluster {
    async fn start() -> Self {
        let members = ["a", "b", "c"].map(TestMember::new);
        let [a, b, c] = &members;
        let running = start_all(&[a, b, c]).await;
        let running = running.into_iter().map(Some).collect::<Vec<_>>();
        Self { running: running.try_into().ok().unwrap(), members }
    }

    fn id(&self, member: usize) -> u64 {
        self.running[member].as_ref().unwrap().node().id().0
    }

    /// Announces a new peer URL. The member still listens at the one before.
    async fn announce(&mut self, member: usize, through: usize) -> TestMember {
        let moved = TestMember::new("moved");
        let peer_urls = vec![moved.peer.to_string()];
        let update = MemberUpdateRequest { id: self.id(member), peer_urls };
        let mut cluster = self.members[through].cluster().await;
        cluster.member_update(update).await.unwrap();
        moved
    }

    async fn stop(&mut self, member: usize) {
        self.running[member].take().unwrap().stop().await;
    }

    async fn start_again(&mut self, member: usize) {
        let all = self.members.iter().collect::<Vec<_>>();
        let server = self.members[member].start(&all, ClusterState::Existing).await;
        self.running[member] = Some(server);
    }

    /// Each of the running members can write: it reaches a quorum, which reaches it.
    async fn serves(&self) {
        for (member, server) in self.members.iter().zip(&self.running) {
            if server.is_some() {
                member.put_until_done("x", "1").await;
            }
        }
    }

    async fn end(self) {
        for server in self.running.into_iter().flatten() {
            server.stop_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_member_in_turn_is_updated_and_restarted() {
    let mut cluster = MovingCluster::start().await;
    for member in 0..3 {
        let moved = cluster.announce(member, (member + 1) % 3).await;
        cluster.serves().await;
        // A quorum needs the member at the URL that is no longer announced.
        let other = (member + 2) % 3;
        cluster.stop(other).await;
        cluster.serves().await;
        // This one has never seen the old URL in use.
        cluster.start_again(other).await;
        cluster.serves().await;
        let third = (member + 1) % 3;
        cluster.stop(third).await;
        cluster.serves().await;
        cluster.start_again(third).await;
        cluster.stop(member).await;
        cluster.members[member].peer = moved.peer.clone();
        cluster.start_again(member).await;
        cluster.serves().await;
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_members_are_updated_first_and_restarted_later() {
    let mut cluster = MovingCluster::start().await;
    let mut moved = Vec::new();
    for member in 0..3 {
        // Twice: the member listens at neither of the two newer URLs.
        cluster.announce(member, (member + 1) % 3).await;
        moved.push(cluster.announce(member, (member + 1) % 3).await);
        cluster.serves().await;
    }
    for (member, moved) in moved.into_iter().enumerate() {
        cluster.stop(member).await;
        cluster.serves().await;
        cluster.members[member].peer = moved.peer.clone();
        cluster.start_again(member).await;
        cluster.serves().await;
    }
    cluster.end().await;
}
