//! Three members become five, and three again, as an operator of etcd would do it, while
//! clients write through all of them.

use std::collections::BTreeMap;
use std::fs;

use quorate_proto::etcdserverpb::RangeRequest;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use tonic::transport::Endpoint;

use crate::common::cluster::Cluster;
use crate::common::{Place, Running, free_ports, quorate, wait_until};
use crate::etcdctl::{ask, etcdctl, installed, run, without_logs};
use crate::transcripts::address;
use crate::writers::Writers;

#[test]
fn three_members_become_five_and_three_again() {
    if !installed("etcdctl") {
        return;
    }
    let place = Place::new("growth");
    fs::create_dir_all(&place.path).unwrap();
    let cluster = Cluster::new(&place, "m", 3);
    let running = cluster.start();
    let mut fleet = Fleet { place: &place, cluster: &cluster, members: BTreeMap::new() };
    for (number, running) in running.into_iter().enumerate() {
        fleet.members.insert(format!("m{number}"), (cluster.client(number), running));
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let written = runtime.block_on(grow_and_shrink(&mut fleet));
    assert_eq!(fleet.members.len(), 3);
    runtime.block_on(find_again(&fleet, &written));
}

type Written = BTreeMap<Vec<u8>, Vec<u8>>;

/// Everything that was acknowledged.
async fn grow_and_shrink(fleet: &mut Fleet<'_>) -> Written {
    let mut writers = Writers::new();
    fleet.members.values().for_each(|(client, _)| writers.start(client));
    writers.written_more(20).await;

    // As etcd's documents tell: as a learner first, then with a vote ...
    let joiner = fleet.add("m3", "--learner");
    fleet.promote("m3");
    fleet.welcome("m3", joiner);
    writers.start(fleet.client("m3"));
    writers.written_more(20).await;
    // ... or with a vote at once, which it gets when it has caught up.
    let joiner = fleet.add("m4", "");
    fleet.welcome("m4", joiner);
    writers.start(fleet.client("m4"));
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
    for (endpoint, seen) in writers.stop().await {
        let (count, failures, longest) = (seen.written.len(), &seen.failures, seen.longest);
        println!("{endpoint}: {count} written, longest {longest:?}, failed {failures:?}");
        let goes_on = fleet.members.values().any(|(client, _)| *client == endpoint);
        assert!(!goes_on || failures.is_empty(), "{endpoint}: {failures:?}");
        written.extend(seen.written);
    }
    written
}

/// On every member, as it is there.
async fn find_again(fleet: &Fleet<'_>, written: &Written) {
    for (client, _) in fleet.members.values() {
        let channel = Endpoint::from_shared(client.clone()).unwrap().connect().await.unwrap();
        let mut kv = KvClient::new(channel).max_decoding_message_size(1 << 30);
        let ask = |serializable| RangeRequest {
            key: "w".into(),
            range_end: "x".into(),
            serializable,
            ..Default::default()
        };
        // After this, the member itself has everything.
        kv.range(ask(false)).await.unwrap();
        let found = kv.range(ask(true)).await.unwrap().into_inner();
        let found: Written =
            found.kvs.into_iter().map(|kv| (kv.key.to_vec(), kv.value.to_vec())).collect();
        let lost: Vec<_> =
            written.iter().filter(|(key, value)| found.get(*key) != Some(value)).collect();
        assert!(lost.is_empty(), "{client} has lost {} of {}", lost.len(), written.len());
    }
    let hashes = ask(&fleet.endpoints(), "endpoint hashkv");
    let hashes: Vec<_> = hashes.lines().map(|line| line.rsplit(", ").next().unwrap()).collect();
    assert!(hashes.len() == 3 && hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

/// The members by name, each with its URL for clients.
struct Fleet<'a> {
    place: &'a Place,
    /// The first three.
    cluster: &'a Cluster<'a>,
    members: BTreeMap<String, (String, Running)>,
}

impl Fleet<'_> {
    fn client(&self, name: &str) -> &str {
        &self.members[name].0
    }

    fn endpoints(&self) -> String {
        let all = self.members.values().map(|(client, _)| address(client));
        all.collect::<Vec<_>>().join(",")
    }

    /// The columns of `etcdctl member list`, by name.
    fn listed(&self) -> BTreeMap<String, Vec<String>> {
        let list = ask(&self.endpoints(), "member list");
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
        let told = |client: &str| ask(&address(client), "endpoint status");
        let leads = |client: &str| told(client).split(", ").nth(4) == Some("true");
        let find = || self.members.iter().find(|(_, (client, _))| leads(client));
        wait_until(|| find().is_some(), "somebody leads");
        find().unwrap().0.clone()
    }

    /// Adds a member, and starts it with what `etcdctl` says that it wants.
    fn add(&self, name: &str, flag: &str) -> (String, Running) {
        let ports = free_ports(2);
        let url = |port| format!("http://127.0.0.1:{port}");
        let (peer, client) = (url(ports[0]), url(ports[1]));
        let told = ask(&self.endpoints(), &format!("member add {name} {flag} --peer-urls={peer}"));
        let settings = told.lines().filter_map(|line| line.strip_prefix("ETCD_")?.split_once('='));
        let mut command = quorate();
        command.arg("server");
        for (setting, value) in settings {
            command.env(format!("ETCD_{setting}"), value.trim_matches('"'));
        }
        command.arg("--data-dir").arg(self.place.path.join(name));
        command.args(["--listen-peer-urls", &peer, "--listen-client-urls", &client]);
        command.args(["--advertise-client-urls", &client]);
        let log = self.place.path.join(format!("{name}.log"));
        let running = Running::start(&mut command, &log);
        let started = || self.listed().get(name).is_some_and(|columns| columns[1] == "started");
        wait_until(started, "the new member has started");
        (client, running)
    }

    /// From now on clients may go there: learners would send them away.
    fn welcome(&mut self, name: &str, joiner: (String, Running)) {
        let endpoint = address(&joiner.0);
        let serves = || etcdctl(&endpoint).args(["get", "x"]).output().unwrap().status.success();
        wait_until(serves, "the new member has a vote, and knows");
        self.members.insert(name.to_owned(), joiner);
    }

    /// As operators do: until it works.
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

    /// Removes a member; its process ends by itself.
    fn remove(&mut self, name: &str, writers: &Writers) {
        let id = self.id(name);
        writers.may_fail(self.client(name));
        let (_, mut running) = self.members.remove(name).unwrap();
        let told = ask(&self.endpoints(), &format!("member remove {id}"));
        assert!(told.contains("removed from cluster"), "{told}");
        assert!(!self.listed().contains_key(name));
        assert!(running.ended(), "{name} goes on");
    }

    /// Who was removed and comes back is told, and goes; the others do not mind.
    fn start_removed(&self, name: &str) {
        let number: usize = name.trim_start_matches('m').parse().unwrap();
        assert!(self.cluster.spawn(number).ended(), "{name} goes on");
        let log = fs::read_to_string(self.cluster.log(number)).unwrap();
        assert!(log.contains("the member has been permanently removed from the cluster"), "{log}");
        assert!(!self.listed().contains_key(name));
    }

    /// A member is said to be elsewhere, and it does not matter: it is where it is.
    fn update_one(&self) {
        let leader = self.leader();
        let name = self.members.keys().find(|name| **name != leader).unwrap();
        let columns = &self.listed()[name];
        let told = ask(
            &self.endpoints(),
            &format!("member update {} --peer-urls={}", columns[0], columns[3]),
        );
        assert!(told.contains("updated in cluster"), "{told}");
        assert_eq!(self.listed()[name][3], columns[3]);
    }
}
