//! A network for each test: members in namespaces of their own, which two bridges connect. One
//! is for peers, and is what gets cut; clients use the other, and reach everybody always.

use std::process::Command;

use crate::common::cluster::Site;

pub(crate) struct Network {
    /// Told apart from those of other tests, also of other processes.
    number: u8,
    members: usize,
}

const PEERS: char = 'p';
const CLIENTS: char = 'c';

impl Network {
    /// None where that is not permitted. What was made goes when it is dropped, also if it is
    /// only a part.
    pub(crate) fn new(number: u8, members: usize) -> Option<Self> {
        let network = Self { number, members };
        let mut made = true;
        for kind in [PEERS, CLIENTS] {
            let bridge = network.bridge(kind);
            made &= ip(&["link", "add", &bridge, "type", "bridge"]);
            made &= ip(&["link", "set", &bridge, "up"]);
        }
        let own = format!("{}/24", network.address(CLIENTS, 253));
        made &= ip(&["address", "add", &own, "dev", &network.bridge(CLIENTS)]);
        for member in 0..members {
            made = made && network.add_member(member);
        }
        made.then_some(network)
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

    pub(crate) fn sites(&self) -> Vec<Site> {
        let site = |member| Site {
            peer: format!("{}:2380", self.address(PEERS, member)),
            client: format!("{}:2379", self.address(CLIENTS, member)),
            namespace: Some(self.namespace(member)),
        };
        (0..self.members).map(site).collect()
    }

    /// Nothing gets from this member to its peers, nor from them to it.
    pub(crate) fn cut(&self, member: usize) {
        assert!(ip(&["link", "set", &self.outer(PEERS, member), "down"]));
    }

    pub(crate) fn mend(&self, member: usize) {
        assert!(ip(&["link", "set", &self.outer(PEERS, member), "up"]));
    }

    /// What this member sends to that one gets lost; what that one sends arrives.
    pub(crate) fn mute(&self, member: usize, towards: usize) {
        // An address that no card has: everybody drops it in silence.
        let to = self.address(PEERS, towards);
        let nobody = ["lladdr", "02:00:00:00:00:99", "nud", "permanent"];
        self.neighbour(member, &[&["replace", &to], &nobody[..]].concat());
    }

    pub(crate) fn unmute(&self, member: usize, towards: usize) {
        self.neighbour(member, &["delete", &self.address(PEERS, towards)]);
    }

    fn neighbour(&self, member: usize, what: &[&str]) {
        let (namespace, inner) = (self.namespace(member), self.inner(PEERS, member));
        let begin = ["-n", &namespace, "neighbour"];
        assert!(ip(&[&begin[..], what, &["dev", &inner]].concat()));
    }

    fn address(&self, kind: char, member: usize) -> String {
        let subnet = 60 + 2 * self.number + u8::from(kind == CLIENTS);
        format!("10.213.{subnet}.{}", member + 1)
    }

    /// Names of links are short.
    fn prefix(&self) -> String {
        format!("f{}{}", std::process::id() % 100_000, self.number)
    }

    fn bridge(&self, kind: char) -> String {
        format!("{}{kind}b", self.prefix())
    }

    fn namespace(&self, member: usize) -> String {
        format!("{}-{member}", self.prefix())
    }

    fn inner(&self, kind: char, member: usize) -> String {
        format!("{}{kind}i{member}", self.prefix())
    }

    fn outer(&self, kind: char, member: usize) -> String {
        format!("{}{kind}o{member}", self.prefix())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
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

fn ip(arguments: &[&str]) -> bool {
    let output = Command::new("ip").args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}
