//! A cluster grows from three members to five and shrinks back with `etcdctl`, while clients
//! write through all members.

use std::collections::BTreeMap;
use std::fs;

use quorate_proto::etcdserverpb::RangeRequest;
use quorate_proto::etcdserverpb::kv_client::KvClient;

use crate::etcdctl::{etcdctl, installed, run, succeed, without_logs};
use crate::support::cluster::TestCluster;
use crate::support::server::TestServer;
use crate::support::{TestDirectory, TestProcess, quorate, wait_until};
use crate::transcripts::serves_etcdctl;
use crate::writers::Writers;

#[test]
fn a_cluster_grows_to_five_members_and_shrinks_to_three() {
    if !installed("etcdctl") {
        return;
    }
    let directory = TestDirectory::new("growth");
    let cluster = TestCluster::new::<3>(&directory, "m");
    let processes = cluster.start();
    let servers = cluster.iter().cloned();
    let members = servers.zip(processes).map(|one| (one.0.name.clone(), one)).collect();
    let mut fleet = Fleet { directory: &directory, initial: &cluster, members };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let written = runtime.block_on(grow_and_shrink(&mut fleet));
    assert_eq!(fleet.members.len(), 3);
    runtime.block_on(assert_all_present(&fleet, &written));
}

type Written = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns all acknowledged writes.
async fn grow_and_shrink(fleet: &mut Fleet<'_>) -> Written {
    let mut writers = Writers::new();
    fleet.members.values().for_each(|(server, _)| writers.start(&server.client_url));
    writers.written_more(20).await;

    // As etcd's documentation recommends: as a learner first, then promoted ...
    let joining = fleet.add("m3", "--learner");
    fleet.promote("m3");
    writers.start(fleet.wait_serving(joining));
    writers.written_more(20).await;
    // ... or as a voter directly, which it becomes when it has caught up.
    let joining = fleet.add("m4", "");
    writers.start(fleet.wait_serving(joining));
    writers.written_more(20).await;
    assert_eq!(fleet.voters(), 5);

    let leader = fleet.leader();
    let follower = fleet.members.keys().find(|name| **name != leader).unwrap().clone();
    fleet.remove(&follower, &writers);
    writers.written_more(20).await;
    fleet.start_removed(&follower);
    writers.written_more(20).await;
    let leader = fleet.leader();
    fleet.remove(&leader, &writers);
    writers.written_more(20).await;
    assert_eq!(fleet.voters(), 3);
    fleet.update_one();
    writers.written_more(20).await;

    let mut written = Written::new();
    for (endpoint, log) in writers.stop().await {
        let (count, failures, longest) = (log.written.len(), &log.failures, log.longest);
        println!("{endpoint}: {count} written, longest {longest:?}, failed {failures:?}");
        let stayed = fleet.members.values().any(|(server, _)| server.client_url == endpoint);
        assert!(!stayed || failures.is_empty(), "{endpoint}: {failures:?}");
        written.extend(log.written);
    }
    written
}

/// Every member has all writes in its own data.
async fn assert_all_present(fleet: &Fleet<'_>, written: &Written) {
    for (server, _) in fleet.members.values() {
        let mut kv = KvClient::new(server.channel().await).max_decoding_message_size(1 << 30);
        let request = |serializable| RangeRequest {
            key: "w".into(),
            range_end: "x".into(),
            serializable,
            ..Default::default()
        };
        // After a linearizable read, the member itself has everything.
        kv.range(request(false)).await.unwrap();
        let found = kv.range(request(true)).await.unwrap().into_inner();
        let found: Written =
            found.kvs.into_iter().map(|kv| (kv.key.to_vec(), kv.value.to_vec())).collect();
        let lost: Vec<_> =
            written.iter().filter(|(key, value)| found.get(*key) != Some(value)).collect();
        assert!(lost.is_empty(), "{} has lost {} writes", server.name, lost.len());
    }
    let hashes = succeed(&fleet.endpoints(), "endpoint hashkv");
    let hashes: Vec<_> = hashes.lines().map(|line| line.rsplit(", ").next().unwrap()).collect();
    assert!(hashes.len() == 3 && hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

/// The running members by name.
struct Fleet<'a> {
    directory: &'a TestDirectory,
    /// The first three.
    initial: &'a TestCluster,
    members: BTreeMap<String, (TestServer, TestProcess)>,
}

impl Fleet<'_> {
    fn endpoints(&self) -> String {
        let all = self.members.values().map(|(server, _)| server.client_address());
        all.collect::<Vec<_>>().join(",")
    }

    /// The columns of `etcdctl member list`, by name.
    fn listed(&self) -> BTreeMap<String, Vec<String>> {
        let list = succeed(&self.endpoints(), "member list");
        let lines =
            list.lines().map(|line| line.split(", ").map(str::to_owned).collect::<Vec<_>>());
        lines.map(|columns| (columns[2].clone(), columns)).collect()
    }

    fn id(&self, name: &str) -> String {
        self.listed()[name][0].clone()
    }

    fn voters(&self) -> usize {
        self.listed().values().filter(|columns| columns[5] == "false").count()
    }

    fn leader(&self) -> String {
        let status = |server: &TestServer| succeed(&server.client_address(), "endpoint status");
        let is_leader = |server: &TestServer| status(server).split(", ").nth(4) == Some("true");
        let find = || self.members.iter().find(|(_, (server, _))| is_leader(server));
        wait_until(|| find().is_some(), "a member is the leader");
        find().unwrap().0.clone()
    }

    /// Adds a member, and starts it with the variables that `etcdctl` prints.
    fn add(&self, name: &str, flag: &str) -> (TestServer, TestProcess) {
        let [server] = TestServer::all(self.directory, [name]);
        let url = &server.peer_url;
        let added =
            succeed(&self.endpoints(), &format!("member add {name} {flag} --peer-urls={url}"));
        let settings = added.lines().filter_map(|line| line.strip_prefix("ETCD_")?.split_once('='));
        let mut command = quorate();
        command.arg("server");
        for (setting, value) in settings {
            command.env(format!("ETCD_{setting}"), value.trim_matches('"'));
        }
        command.arg("--data-dir").arg(&server.data_dir).args(server.listen_flags());
        let process = TestProcess::start(&mut command, &server.log);
        let started = || self.listed().get(name).is_some_and(|columns| columns[1] == "started");
        wait_until(started, "the new member has started");
        (server, process)
    }

    /// Waits until the joining member serves clients, which learners refuse. Returns its URL.
    fn wait_serving(&mut self, joining: (TestServer, TestProcess)) -> &str {
        let (endpoint, name) = (joining.0.client_address(), joining.0.name.clone());
        wait_until(|| serves_etcdctl(&endpoint), "the new member is a voter and serves clients");
        &self.members.entry(name).or_insert(joining).0.client_url
    }

    /// Repeats the call until the learner is in sync, as operators of etcd do.
    fn promote(&self, name: &str) {
        let id = self.id(name);
        let promoted = || {
            let mut command = etcdctl(&self.endpoints());
            command.args(["member", "promote", &id]);
            let output = run(command, "");
            let error = without_logs(&String::from_utf8_lossy(&output.stderr));
            let early = error.contains("can only promote a learner member which is in sync");
            assert!(output.status.success() || early, "{error}");
            output.status.success()
        };
        wait_until(promoted, "the learner has caught up");
    }

    /// Removes a member, whose process then exits.
    fn remove(&mut self, name: &str, writers: &Writers) {
        let id = self.id(name);
        let (server, mut process) = self.members.remove(name).unwrap();
        writers.may_fail(&server.client_url);
        let text = succeed(&self.endpoints(), &format!("member remove {id}"));
        assert!(text.contains("removed from cluster"), "{text}");
        assert!(!self.listed().contains_key(name));
        process.wait_exit(name);
    }

    /// A removed member that starts again logs that and exits; the others are not affected.
    fn start_removed(&self, name: &str) {
        let number: usize = name.trim_start_matches('m').parse().unwrap();
        self.initial.spawn(number).wait_exit(name);
        let log = fs::read_to_string(&self.initial[number].log).unwrap();
        assert!(log.contains("the member has been permanently removed from the cluster"), "{log}");
        assert!(!self.listed().contains_key(name));
    }

    /// Updates a member with its present peer URL.
    fn update_one(&self) {
        let leader = self.leader();
        let name = self.members.keys().find(|name| **name != leader).unwrap();
        let columns = &self.listed()[name];
        let text = succeed(
            &self.endpoints(),
            &format!("member update {} --peer-urls={}", columns[0], columns[3]),
        );
        assert!(text.contains("updated in cluster"), "{text}");
        assert_eq!(self.listed()[name][3], columns[3]);
    }
}
