//! Clusters of real servers.

use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::{PutRequest, RangeRequest};

use super::{Place, Running, free_ports, quorate, wait_until};

/// Members `name0`, `name1` and so on, each a process of its own on loopback.
pub(crate) struct Cluster<'a> {
    place: &'a Place,
    name: &'static str,
    /// Of each member, the peers' and the clients' port.
    ports: Vec<(u16, u16)>,
}

impl<'a> Cluster<'a> {
    pub(crate) fn new(place: &'a Place, name: &'static str, members: usize) -> Self {
        let ports = free_ports(members * 2);
        Self { place, name, ports: ports.chunks(2).map(|pair| (pair[0], pair[1])).collect() }
    }

    pub(crate) fn peer(&self, number: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[number].0)
    }

    pub(crate) fn client(&self, number: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[number].1)
    }

    pub(crate) fn directory(&self, number: usize) -> String {
        self.place.path.join(format!("{}{number}", self.name)).to_str().unwrap().to_string()
    }

    /// What a restored and a started member have in common.
    pub(crate) fn flags(&self, number: usize) -> Vec<String> {
        let all = (0..self.ports.len()).map(|one| format!("{}{one}={}", self.name, self.peer(one)));
        let flags = [
            ("--name", format!("{}{number}", self.name)),
            ("--data-dir", self.directory(number)),
            ("--initial-cluster", all.collect::<Vec<_>>().join(",")),
            ("--initial-cluster-token", self.name.to_string()),
            ("--initial-advertise-peer-urls", self.peer(number)),
        ];
        flags.into_iter().flat_map(|(flag, value)| [flag.to_string(), value]).collect()
    }

    /// All members, as soon as each of them serves.
    pub(crate) fn start(&self) -> Vec<Running> {
        let all = 0..self.ports.len();
        let running = all.clone().map(|number| self.spawn(number)).collect();
        all.for_each(|number| self.wait_served(number));
        running
    }

    pub(crate) fn start_one(&self, number: usize) -> Running {
        let running = self.spawn(number);
        self.wait_served(number);
        running
    }

    pub(crate) fn spawn(&self, number: usize) -> Running {
        let mut command = quorate();
        command.arg("server").args(self.flags(number));
        command.args(["--listen-peer-urls", &self.peer(number)]);
        command.args(["--listen-client-urls", &self.client(number)]);
        command.args(["--advertise-client-urls", &self.client(number)]);
        let log = self.place.path.join(format!("{}{number}.log", self.name));
        Running::start(&mut command, &log)
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
