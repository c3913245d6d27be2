//! Clusters of real servers.

use std::path::PathBuf;
use std::process::Command;

use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::{PutRequest, RangeRequest};

use super::{Place, Running, free_ports, quorate, wait_published, wait_until};

/// Members `name0`, `name1` and so on, each a process of its own on loopback.
pub(crate) struct Cluster<'a> {
    place: &'a Place,
    name: &'static str,
    sites: Vec<Site>,
}

/// Where a member is.
pub(crate) struct Site {
    /// For its peers and for its clients: a host and a port.
    pub(crate) peer: String,
    pub(crate) client: String,
    /// The network namespace in which it runs, if not in that of the test.
    pub(crate) namespace: Option<String>,
}

impl<'a> Cluster<'a> {
    pub(crate) fn new(place: &'a Place, name: &'static str, members: usize) -> Self {
        let local = |port: u16| format!("127.0.0.1:{port}");
        let site =
            |pair: &[u16]| Site { peer: local(pair[0]), client: local(pair[1]), namespace: None };
        Self::on(place, name, free_ports(members * 2).chunks(2).map(site).collect())
    }

    pub(crate) fn on(place: &'a Place, name: &'static str, sites: Vec<Site>) -> Self {
        Self { place, name, sites }
    }

    pub(crate) fn peer(&self, number: usize) -> String {
        format!("http://{}", self.sites[number].peer)
    }

    pub(crate) fn client(&self, number: usize) -> String {
        format!("http://{}", self.sites[number].client)
    }

    pub(crate) fn member_name(&self, number: usize) -> String {
        format!("{}{number}", self.name)
    }

    /// What its process says.
    pub(crate) fn log(&self, number: usize) -> PathBuf {
        self.place.path.join(format!("{}.log", self.member_name(number)))
    }

    pub(crate) fn directory(&self, number: usize) -> String {
        self.place.path.join(self.member_name(number)).to_str().unwrap().to_string()
    }

    /// What a restored and a started member have in common.
    pub(crate) fn flags(&self, number: usize) -> Vec<String> {
        self.flags_among(number, &(0..self.sites.len()).collect::<Vec<_>>())
    }

    fn flags_among(&self, number: usize, members: &[usize]) -> Vec<String> {
        let all =
            members.iter().map(|one| format!("{}={}", self.member_name(*one), self.peer(*one)));
        let flags = [
            ("--name", self.member_name(number)),
            ("--data-dir", self.directory(number)),
            ("--initial-cluster", all.collect::<Vec<_>>().join(",")),
            ("--initial-cluster-token", self.name.to_string()),
            ("--initial-advertise-peer-urls", self.peer(number)),
        ];
        flags.into_iter().flat_map(|(flag, value)| [flag.to_string(), value]).collect()
    }

    /// All members, as soon as each of them serves.
    pub(crate) fn start(&self) -> Vec<Running> {
        let all = 0..self.sites.len();
        let running = all.clone().map(|number| self.spawn(number)).collect();
        all.clone().for_each(|number| self.wait_served(number));
        wait_published(&all.map(|number| self.client(number)).collect::<Vec<_>>());
        running
    }

    pub(crate) fn start_one(&self, number: usize) -> Running {
        let running = self.spawn(number);
        self.wait_served(number);
        running
    }

    pub(crate) fn spawn(&self, number: usize) -> Running {
        self.spawn_with(number, &self.flags(number))
    }

    /// A member of these, the others of which run already or will be: not of all there are
    /// places for.
    pub(crate) fn spawn_among(&self, number: usize, members: &[usize], state: &str) -> Running {
        let mut flags = self.flags_among(number, members);
        flags.extend(["--initial-cluster-state".to_string(), state.to_string()]);
        self.spawn_with(number, &flags)
    }

    fn spawn_with(&self, number: usize, flags: &[String]) -> Running {
        let mut command = self.program(number);
        command.arg("server").args(flags);
        command.args(["--listen-peer-urls", &self.peer(number)]);
        command.args(["--listen-client-urls", &self.client(number)]);
        command.args(["--advertise-client-urls", &self.client(number)]);
        Running::start(&mut command, &self.log(number))
    }

    fn program(&self, number: usize) -> Command {
        let own = quorate();
        let Some(namespace) = &self.sites[number].namespace else { return own };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(own.get_program());
        command
    }

    pub(crate) fn wait_served(&self, number: usize) {
        let client = self.client(number);
        let serves = || {
            let status = quorate().args(["status", "--endpoints", &client]).output().unwrap();
            status.status.success()
        };
        wait_until(serves, "the cluster serves");
    }

    pub(crate) async fn kv(&self, number: usize) -> KvClient<tonic::transport::Channel> {
        let endpoint = tonic::transport::Endpoint::from_shared(self.client(number)).unwrap();
        KvClient::new(endpoint.connect().await.unwrap())
    }

    pub(crate) async fn put(&self, number: usize, key: &str, value: &str) {
        let (key, value) = (key.to_string().into(), value.to_string().into());
        let request = PutRequest { key, value, ..Default::default() };
        self.kv(number).await.put(request).await.unwrap();
    }

    /// How many keys begin with `key`, and the revision of the answer.
    pub(crate) async fn count(&self, number: usize) -> (i64, i64) {
        let request = RangeRequest {
            key: "key".into(),
            range_end: "kez".into(),
            count_only: true,
            ..Default::default()
        };
        let reply = self.kv(number).await.range(request).await.unwrap().into_inner();
        (reply.count, reply.header.unwrap().revision)
    }

    pub(crate) async fn revision(&self, number: usize) -> i64 {
        self.count(number).await.1
    }

    pub(crate) async fn value(&self, number: usize, key: &str) -> Vec<u8> {
        let request = RangeRequest { key: key.to_string().into(), ..Default::default() };
        let reply = self.kv(number).await.range(request).await.unwrap().into_inner();
        reply.kvs.first().map(|kv| kv.value.to_vec()).unwrap_or_default()
    }
}
