//! The cluster of a soak: five members, each in one of seven slots. A slot is a name, an address
//! and a directory; the slots without a member are spare, for members that join.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use quorate_proto::etcdserverpb::MemberListRequest;
use quorate_proto::etcdserverpb::cluster_client::ClusterClient;

use crate::client::{FaultClient, retry_until_ok, wait_for, with_timeout};
use crate::cluster::FaultCluster;
use crate::faulty_disk;
use crate::network::TestNetwork;
use crate::support::{TestDirectory, quorate};

pub(crate) const MEMBERS: usize = 5;
const SLOTS: usize = 7;

pub(crate) struct SoakCluster {
    pub(crate) cluster: FaultCluster,
    pub(crate) network: Arc<TestNetwork>,
    /// The slots of the members.
    pub(crate) members: BTreeSet<usize>,
    /// The slots of members that were added and do not vote yet.
    pub(crate) joining: BTreeSet<usize>,
}

impl SoakCluster {
    /// Starts a new cluster, or the one whose data is in the directory. None where network
    /// namespaces are not permitted or no C compiler is installed.
    pub(crate) async fn start(directory: &TestDirectory, network_number: u8) -> Option<Self> {
        let network = Arc::new(TestNetwork::replace(network_number, SLOTS)?);
        let mut servers = network.servers(directory);
        for server in servers.iter_mut() {
            // Frequent snapshots: members that were away catch up with one. Old rows are in files.
            let flags = "--snapshot-count 500 --snapshot-bytes 4194304 --row-memory-bytes 65536";
            server.extra_flags = flags.split(' ').map(str::to_string).collect();
            server.token = "soak".to_string();
        }
        if !faulty_disk::prepare(&mut servers, &directory.path) {
            return None;
        }
        let with_data: Vec<usize> =
            (0..SLOTS).filter(|slot| servers[*slot].data_dir.exists()).collect();
        if with_data.is_empty() {
            let cluster = FaultCluster::start(servers, MEMBERS).await;
            let members = (0..MEMBERS).collect();
            return Some(Self { cluster, network, members, joining: BTreeSet::new() });
        }
        let cluster = FaultCluster::stopped(servers);
        let (members, joining) = (BTreeSet::new(), BTreeSet::new());
        let mut soak = Self { cluster, network, members, joining };
        soak.resume(&with_data).await;
        Some(soak)
    }

    /// Starts all slots with data, and completes or removes what the interrupted round left.
    async fn resume(&mut self, with_data: &[usize]) {
        for slot in with_data {
            self.cluster.start_joining(*slot, with_data);
        }
        let list = self.stable_list(with_data).await;
        let voters = list.into_iter().filter(|(_, voter)| *voter).map(|(slot, _)| slot);
        self.members = voters.filter(|slot| with_data.contains(slot)).collect();
        let every: BTreeSet<usize> = (0..SLOTS).collect();
        for slot in every.difference(&self.members.clone()) {
            self.try_remove(*slot).await;
            if with_data.contains(slot) {
                self.cluster.kill(*slot);
            }
            self.clear(*slot);
        }
        while self.members.len() > MEMBERS {
            let slot = *self.members.last().unwrap();
            self.remove(slot).await;
            self.cluster.kill(slot);
            self.clear(slot);
        }
        while self.members.len() < MEMBERS {
            let slot = self.spare();
            self.add(slot).await;
        }
        self.wait_all_serve().await;
    }

    /// The clients of all members.
    pub(crate) fn clients(&self) -> Vec<FaultClient> {
        self.members.iter().map(|slot| self.cluster.client(*slot).clone()).collect()
    }

    /// The list of members, once it does not change any more: a goal of the interrupted round may
    /// be reached first.
    async fn stable_list(&self, ask: &[usize]) -> BTreeMap<usize, bool> {
        let mut last = wait_for("a list of members", async || self.list(ask).await).await;
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let next = wait_for("a list of members", async || self.list(ask).await).await;
            if next == last {
                return next;
            }
            last = next;
        }
    }

    /// A slot without a member and without a process.
    pub(crate) fn spare(&self) -> usize {
        let mut taken: BTreeSet<usize> = self.cluster.running().into_iter().collect();
        taken.extend(&self.members);
        taken.extend(&self.joining);
        let is_spare = |slot: &usize| !taken.contains(slot);
        (0..SLOTS).find(is_spare).unwrap()
    }

    pub(crate) async fn wait_all_serve(&mut self) {
        for slot in self.members.clone() {
            self.cluster.wait_serving(slot).await;
        }
    }

    /// Starts a member that has its data.
    pub(crate) fn restart(&mut self, slot: usize) {
        self.check_log(slot);
        let members: Vec<usize> = self.members.iter().copied().collect();
        self.cluster.start_joining(slot, &members);
    }

    /// A panic is a bug, whatever happened to the process.
    pub(crate) fn check_log(&self, slot: usize) {
        let log = &self.cluster.servers[slot].log;
        let log = fs::read(log).map(|log| String::from_utf8_lossy(&log).into_owned());
        let log = log.unwrap_or_default();
        assert!(!log.contains("panicked at"), "member {slot} panicked:\n{log}");
    }

    /// Deletes the data of a slot.
    pub(crate) fn clear(&self, slot: usize) {
        let _ = fs::remove_dir_all(&self.cluster.servers[slot].data_dir);
    }

    /// Adds the member of this slot, and starts it with an empty disk.
    pub(crate) async fn add(&mut self, slot: usize) {
        let pair = self.cluster.servers[slot].pair();
        self.run(&["member", "add", &pair]).await;
        self.join(slot).await;
    }

    /// Starts the member of this slot, which was added, and waits until it is a voter.
    pub(crate) async fn join(&mut self, slot: usize) {
        let from: Vec<usize> = self.members.iter().copied().collect();
        // Another member may be joining at the same time.
        let list = wait_for("a list of members", async || self.list(&from).await).await;
        let all: BTreeSet<usize> = list.into_keys().chain([slot]).collect();
        self.cluster.join(slot, &all.into_iter().collect::<Vec<_>>()).await;
        let votes = async || {
            let list = self.list(&from).await?;
            list.get(&slot).is_some_and(|voter| *voter).then_some(())
        };
        wait_for(&format!("member {slot} is a voter"), votes).await;
        self.members.insert(slot);
        self.joining.remove(&slot);
    }

    /// Removes the member of this slot. Its process, if it runs, exits by itself.
    pub(crate) async fn remove(&mut self, slot: usize) {
        let name = self.cluster.servers[slot].name.clone();
        let remove = async || match self.command(&["member", "remove", &name]).await {
            // The reply to an earlier attempt was lost.
            Err(text) if text.contains("not found") => Ok(()),
            result => result.map_err(tonic::Status::unknown),
        };
        retry_until_ok(&format!("the removal of member {slot}"), remove).await;
        self.members.remove(&slot);
    }

    async fn try_remove(&self, slot: usize) {
        let name = self.cluster.servers[slot].name.clone();
        let _ = self.command(&["member", "remove", &name]).await;
    }

    /// Which slots have a member, and whether it votes.
    pub(crate) async fn list(&self, ask: &[usize]) -> Option<BTreeMap<usize, bool>> {
        for slot in ask {
            let mut client = ClusterClient::new(self.cluster.client(*slot).channel.clone());
            let request = MemberListRequest { linearizable: true };
            let Ok(reply) = with_timeout(client.member_list(request)).await else { continue };
            let slot_of = |url: &String| {
                self.cluster.servers.iter().position(|server| server.peer_url == *url)
            };
            let member = |member: &quorate_proto::etcdserverpb::Member| {
                Some((member.peer_urls.first().and_then(slot_of)?, !member.is_learner))
            };
            return Some(reply.members.iter().filter_map(member).collect());
        }
        None
    }

    /// Runs a command until it succeeds: it is refused while another change is in progress, and
    /// ends with an error when the leader changes.
    pub(crate) async fn run(&self, arguments: &[&str]) {
        let attempt = async || self.command(arguments).await.map_err(tonic::Status::unknown);
        retry_until_ok(&arguments.join(" "), attempt).await;
    }

    pub(crate) async fn command(&self, arguments: &[&str]) -> Result<(), String> {
        let urls = self.members.iter().map(|slot| self.cluster.servers[*slot].client_url.clone());
        let urls = urls.collect::<Vec<_>>().join(",");
        let mut command = tokio::process::Command::from(quorate());
        command.args(arguments).args(["--endpoints", &urls]).stdin(Stdio::null());
        let output = command.kill_on_drop(true).output();
        let output = tokio::time::timeout(COMMAND_TIMEOUT, output).await;
        let output = output.map_err(|_| format!("{arguments:?} does not end"))?;
        let output = output.map_err(|error| error.to_string())?;
        let text = || crate::support::output_text(&output);
        if output.status.success() { Ok(()) } else { Err(text()) }
    }

    /// The memory of the largest member's process, in bytes.
    pub(crate) fn largest_memory(&self) -> u64 {
        let memory = |slot: &usize| {
            let file = format!("/proc/{}/status", self.cluster.process_id(*slot));
            let status = fs::read_to_string(file).unwrap_or_default();
            let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        self.members.iter().filter_map(memory).max().unwrap_or(0) << 10
    }

    /// The size of the largest member's data directory, in bytes.
    pub(crate) fn largest_disk(&self) -> u64 {
        let size = |slot: &usize| directory_bytes(&self.cluster.servers[*slot].data_dir);
        self.members.iter().map(size).max().unwrap_or(0)
    }
}

fn directory_bytes(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => directory_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
