//! A cluster whose members are killed, suspended and restarted.

use std::collections::BTreeMap;
use std::fs;

use crate::client::{FaultClient, retry_until_ok, wait_for};
use crate::support::cluster::TestCluster;
use crate::support::{TestDirectory, TestProcess};

pub(crate) struct FaultCluster {
    pub(crate) servers: TestCluster,
    /// The numbers of the initial members.
    initial: Vec<usize>,
    processes: BTreeMap<usize, TestProcess>,
    clients: Vec<FaultClient>,
}

pub(crate) fn test_directory(name: &str) -> TestDirectory {
    TestDirectory::new(&format!("faults-{name}"))
}

impl FaultCluster {
    /// Starts a cluster of the first `initial` servers. Returns when each of them serves
    /// requests.
    pub(crate) async fn start(servers: TestCluster, initial: usize) -> Self {
        let mut cluster = Self::stopped(servers);
        let initial: Vec<usize> = (0..initial).collect();
        cluster.initial.clone_from(&initial);
        initial.iter().for_each(|number| cluster.restart(*number));
        for number in initial {
            cluster.wait_serving(number).await;
        }
        cluster
    }

    /// A cluster of which no member runs yet.
    pub(crate) fn stopped(servers: TestCluster) -> Self {
        let clients = servers.iter().map(|server| FaultClient::new(&server.client_url)).collect();
        Self { servers, initial: Vec::new(), processes: BTreeMap::new(), clients }
    }

    pub(crate) async fn three(directory: &TestDirectory) -> Self {
        Self::start(TestCluster::new::<3>(directory, "m"), 3).await
    }

    pub(crate) fn client(&self, number: usize) -> &FaultClient {
        &self.clients[number]
    }

    /// The clients of all running members.
    pub(crate) fn clients(&self) -> Vec<FaultClient> {
        self.running().into_iter().map(|number| self.clients[number].clone()).collect()
    }

    pub(crate) fn running(&self) -> Vec<usize> {
        self.processes.keys().copied().collect()
    }

    /// The running members except this one.
    pub(crate) fn others(&self, number: usize) -> Vec<usize> {
        self.running().into_iter().filter(|other| *other != number).collect()
    }

    /// Starts an initial member with the flags of its first start.
    pub(crate) fn restart(&mut self, number: usize) {
        let initial = self.servers.select(&self.initial);
        let process = self.servers[number].start_new(&initial);
        self.processes.insert(number, process);
    }

    /// Starts a member that joins these, itself included.
    pub(crate) fn start_joining(&mut self, number: usize, members: &[usize]) {
        let process = self.servers[number].start_joining(&self.servers.select(members));
        self.processes.insert(number, process);
    }

    /// Starts a joining member and waits until it serves requests. It exits when it starts
    /// before the others know that it was added; then it is started again.
    pub(crate) async fn join(&mut self, number: usize, members: &[usize]) {
        self.start_joining(number, members);
        let client = self.clients[number].clone();
        let serves = async || {
            if !self.is_running(number) {
                println!("joins again: {}", self.log_text(number));
                self.start_joining(number, members);
            }
            client.revision().await
        };
        retry_until_ok(&format!("member {number} serves requests"), serves).await;
    }

    /// Waits until the member serves a linearizable read, for which it must have caught up.
    pub(crate) async fn wait_serving(&mut self, number: usize) {
        let client = self.clients[number].clone();
        let serves = async || {
            if !self.is_running(number) {
                let log = self.log_text(number);
                assert!(log.contains("cannot listen on"), "member {number} exited: {log}");
                // An outgoing connection of another process used its port in the meantime.
                self.restart(number);
            }
            client.revision().await
        };
        retry_until_ok(&format!("member {number} serves requests"), serves).await;
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&mut self, number: usize) {
        drop(self.processes.remove(&number).unwrap());
    }

    pub(crate) fn signal(&self, number: usize, signal: &str) {
        self.processes[&number].signal(signal);
    }

    pub(crate) fn process_id(&self, number: usize) -> u32 {
        self.processes[&number].0.id()
    }

    pub(crate) fn is_running(&mut self, number: usize) -> bool {
        self.processes.get_mut(&number).unwrap().is_running()
    }

    /// Waits until the process exits by itself. Returns its exit code and its log.
    pub(crate) fn wait_exit(&mut self, number: usize) -> (Option<i32>, String) {
        let mut process = self.processes.remove(&number).unwrap();
        let code = process.wait_exit(&format!("member {number}"));
        (code, self.log_text(number))
    }

    pub(crate) fn log_text(&self, number: usize) -> String {
        fs::read_to_string(&self.servers[number].log).unwrap()
    }

    pub(crate) async fn leader(&self) -> usize {
        self.leader_among(&self.running()).await
    }

    /// The member that reports itself as the leader of the newest term that any of these knows.
    pub(crate) async fn leader_among(&self, numbers: &[usize]) -> usize {
        wait_for("a member is the leader", async || {
            let mut newest = 0;
            let mut leader = None;
            for number in numbers {
                let Ok(status) = self.clients[*number].status().await else { continue };
                let own = status.header.unwrap_or_default().member_id;
                if status.raft_term > newest {
                    (newest, leader) = (status.raft_term, None);
                }
                if status.leader == own && status.raft_term == newest {
                    leader = Some(*number);
                }
            }
            leader
        })
        .await
    }

    /// Waits until all running members have all writes, and checks that their data is the same.
    pub(crate) async fn assert_identical_data(&self) -> BTreeMap<String, String> {
        let any = &self.clients[self.running()[0]];
        let revision = retry_until_ok("a revision", async || any.revision().await).await;
        let mut copies: Vec<(u32, BTreeMap<String, String>)> = Vec::new();
        for number in self.running() {
            let client = &self.clients[number];
            let complete = async || client.data_at(revision).await;
            let data = retry_until_ok(&format!("all writes at member {number}"), complete).await;
            let hash = retry_until_ok("a hash", async || client.hash(revision).await).await;
            copies.push((hash, data));
        }
        let (hash, data) = copies.swap_remove(0);
        for (other_hash, other_data) in copies {
            assert_eq!(other_data, data);
            assert_eq!(other_hash, hash);
        }
        data
    }
}
