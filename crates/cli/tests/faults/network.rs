//! A network for one test: each member is in its own namespace, connected by two bridges. The
//! bridge for peers can be partitioned; the bridge for clients always works.

use std::process::Command;

use crate::support::TestDirectory;
use crate::support::cluster::TestCluster;
use crate::support::server::TestServer;

pub(crate) struct TestNetwork {
    /// Distinguishes its addresses from those of the networks of other tests.
    number: u8,
    /// Begins the names of its links, which must be short.
    prefix: String,
    members: usize,
}

const PEERS: char = 'p';
const CLIENTS: char = 'c';

impl TestNetwork {
    /// None where that is not permitted. Drop removes it, even if it is incomplete.
    pub(crate) fn new(number: u8, members: usize) -> Option<Self> {
        // Contains the process id: tests may run in parallel.
        let prefix = format!("f{}{number}", std::process::id() % 100_000);
        Self { number, prefix, members }.create()
    }

    /// Replaces the network of an earlier process that was killed: its servers are killed too.
    pub(crate) fn replace(number: u8, members: usize) -> Option<Self> {
        let network = Self { number, prefix: format!("soak{number}"), members };
        for member in 0..members {
            let namespace = network.namespace(member);
            let Ok(list) = Command::new("ip").args(["netns", "pids", &namespace]).output() else {
                return None;
            };
            for process in String::from_utf8_lossy(&list.stdout).split_whitespace() {
                let _ = Command::new("kill").args(["-KILL", process]).output();
            }
        }
        network.remove();
        network.create()
    }

    fn create(self) -> Option<Self> {
        let network = self;
        let mut complete = true;
        for kind in [PEERS, CLIENTS] {
            let bridge = network.bridge(kind);
            complete &= ip(&["link", "add", &bridge, "type", "bridge"]);
            complete &= ip(&["link", "set", &bridge, "up"]);
        }
        let own = format!("{}/24", network.address(CLIENTS, 253));
        complete &= ip(&["address", "add", &own, "dev", &network.bridge(CLIENTS)]);
        for member in 0..network.members {
            complete = complete && network.add_member(member);
        }
        complete.then_some(network)
    }

    fn add_member(&self, member: usize) -> bool {
        let namespace = self.namespace(member);
        ip(&["netns", "add", &namespace])
            && ip(&["-n", &namespace, "link", "set", "lo", "up"])
            && [PEERS, CLIENTS].into_iter().all(|kind| self.connect(kind, member))
    }

    fn connect(&self, kind: char, member: usize) -> bool {
        let (namespace, bridge) = (self.namespace(member), self.bridge(kind));
        let (inner, outer) = (self.inner(kind, member), self.outer(kind, member));
        let address = format!("{}/24", self.address(kind, member));
        ip(&["link", "add", &outer, "type", "veth", "peer", "name", &inner])
            && ip(&["link", "set", &inner, "netns", &namespace])
            && ip(&["link", "set", &outer, "master", &bridge])
            && ip(&["link", "set", &outer, "up"])
            && ip(&["-n", &namespace, "address", "add", &address, "dev", &inner])
            && ip(&["-n", &namespace, "link", "set", &inner, "up"])
    }

    /// One server in each namespace.
    pub(crate) fn servers(&self, directory: &TestDirectory) -> TestCluster {
        let server = |member| {
            let peer = format!("{}:2380", self.address(PEERS, member));
            let client = format!("{}:2379", self.address(CLIENTS, member));
            let server = TestServer::new(directory, &format!("m{member}"), &peer, &client);
            TestServer { namespace: Some(self.namespace(member)), ..server }
        };
        TestCluster::of((0..self.members).map(server).collect())
    }

    /// Isolates this member from its peers.
    pub(crate) fn isolate(&self, member: usize) {
        assert!(ip(&["link", "set", &self.outer(PEERS, member), "down"]));
    }

    pub(crate) fn reconnect(&self, member: usize) {
        assert!(ip(&["link", "set", &self.outer(PEERS, member), "up"]));
    }

    /// Drops packets from `member` to `receiver`, but not in the other direction.
    pub(crate) fn block(&self, member: usize, receiver: usize) {
        // No interface has this hardware address, so all packets to it are dropped.
        let to = self.address(PEERS, receiver);
        let no_interface = ["lladdr", "02:00:00:00:00:99", "nud", "permanent"];
        self.neighbour(member, &[&["replace", &to], &no_interface[..]].concat());
    }

    pub(crate) fn unblock(&self, member: usize, receiver: usize) {
        self.neighbour(member, &["delete", &self.address(PEERS, receiver)]);
    }

    /// As [`TestNetwork::unblock`], for packets that may not be blocked.
    pub(crate) fn try_unblock(&self, member: usize, receiver: usize) {
        self.try_neighbour(member, &["delete", &self.address(PEERS, receiver)]);
    }

    fn neighbour(&self, member: usize, arguments: &[&str]) {
        assert!(self.try_neighbour(member, arguments), "ip neighbour {arguments:?}");
    }

    fn try_neighbour(&self, member: usize, arguments: &[&str]) -> bool {
        let (namespace, inner) = (self.namespace(member), self.inner(PEERS, member));
        let begin = ["-n", &namespace, "neighbour"];
        ip(&[&begin[..], arguments, &["dev", &inner]].concat())
    }

    fn address(&self, kind: char, member: usize) -> String {
        let subnet = 60 + 2 * self.number + u8::from(kind == CLIENTS);
        format!("10.213.{subnet}.{}", member + 1)
    }

    fn bridge(&self, kind: char) -> String {
        format!("{}{kind}b", self.prefix)
    }

    fn namespace(&self, member: usize) -> String {
        format!("{}-{member}", self.prefix)
    }

    fn inner(&self, kind: char, member: usize) -> String {
        format!("{}{kind}i{member}", self.prefix)
    }

    fn outer(&self, kind: char, member: usize) -> String {
        format!("{}{kind}o{member}", self.prefix)
    }
}

impl TestNetwork {
    fn remove(&self) {
        for member in 0..self.members {
            ip(&["netns", "delete", &self.namespace(member)]);
        }
        for kind in [PEERS, CLIENTS] {
            for member in 0..self.members {
                ip(&["link", "delete", &self.outer(kind, member)]);
            }
            ip(&["link", "delete", &self.bridge(kind)]);
        }
    }
}

impl Drop for TestNetwork {
    fn drop(&mut self) {
        self.remove();
    }
}

fn ip(arguments: &[&str]) -> bool {
    let output = Command::new("ip").args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}
