//! Single servers, for tests in which members come and go.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::{PutRequest, RangeRequest};
use tonic::transport::{Channel, Endpoint};

use super::{Place, Running, both, free_ports, quorate, wait_published, wait_until};

/// One that may run: its name and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) peer: String,
    pub(crate) client: String,
    pub(crate) directory: PathBuf,
    pub(crate) log: PathBuf,
}

impl Member {
    pub(crate) fn all<const N: usize>(place: &Place, names: [&'static str; N]) -> [Self; N] {
        fs::create_dir_all(&place.path).unwrap();
        let mut ports =
            free_ports(2 * N).into_iter().map(|port| format!("http://127.0.0.1:{port}"));
        names.map(|name| Self {
            name,
            peer: ports.next().unwrap(),
            client: ports.next().unwrap(),
            directory: place.path.join(name),
            log: place.path.join(format!("{name}.log")),
        })
    }

    /// `NAME=PEER_URL`.
    pub(crate) fn pair(&self) -> String {
        format!("{}={}", self.name, self.peer)
    }

    /// A first member of a new cluster of these.
    pub(crate) fn found(&self, members: &[&Self]) -> Running {
        self.start(members, "new")
    }

    /// One that joins these, itself among them.
    pub(crate) fn join(&self, members: &[&Self]) -> Running {
        self.start(members, "existing")
    }

    fn start(&self, members: &[&Self], state: &str) -> Running {
        let cluster = pairs(members);
        let mut command = quorate();
        command.args(["server", "--name", self.name, "--initial-cluster", &cluster]);
        command.arg("--data-dir").arg(&self.directory);
        command.args(["--initial-cluster-state", state]);
        command.args(["--initial-advertise-peer-urls", &self.peer]);
        command.args(["--listen-peer-urls", &self.peer, "--listen-client-urls", &self.client]);
        command.args(["--advertise-client-urls", &self.client]);
        Running::start(&mut command, &self.log)
    }

    pub(crate) fn wait_served(&self) {
        let serves = || asked(&[self], &["status"]).status.success();
        wait_until(serves, &format!("{} serves", self.name));
    }

    pub(crate) async fn kv(&self) -> KvClient<Channel> {
        KvClient::new(Endpoint::from_shared(self.client.clone()).unwrap().connect().await.unwrap())
    }

    pub(crate) async fn put(&self, key: &str, value: &str) {
        let (key, value) = (key.to_string().into(), value.to_string().into());
        let request = PutRequest { key, value, ..Default::default() };
        self.kv().await.put(request).await.unwrap();
    }

    pub(crate) async fn value(&self, key: &str) -> String {
        let request = RangeRequest { key: key.to_string().into(), ..Default::default() };
        let reply = self.kv().await.range(request).await.unwrap().into_inner();
        let value = reply.kvs.first().map(|kv| kv.value.to_vec()).unwrap_or_default();
        String::from_utf8(value).unwrap()
    }
}

/// `--initial-cluster` of these.
pub(crate) fn pairs(members: &[&Member]) -> String {
    members.iter().map(|member| member.pair()).collect::<Vec<_>>().join(",")
}

/// All of a new cluster, as soon as each of them serves.
pub(crate) fn found_all(members: &[&Member]) -> Vec<Running> {
    let running = members.iter().map(|member| member.found(members)).collect();
    members.iter().for_each(|member| member.wait_served());
    wait_published(&members.iter().map(|member| member.client.clone()).collect::<Vec<_>>());
    running
}

/// What a command does that is sent to these.
pub(crate) fn asked(members: &[&Member], arguments: &[&str]) -> Output {
    let endpoints: Vec<&str> = members.iter().map(|member| member.client.as_str()).collect();
    quorate().args(arguments).args(["--endpoints", &endpoints.join(",")]).output().unwrap()
}

/// What it printed, and what it told beside that. It has to succeed.
pub(crate) fn done(members: &[&Member], arguments: &[&str]) -> (String, String) {
    let output = asked(members, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", both(&output));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// Why it was refused.
pub(crate) fn refused(members: &[&Member], arguments: &[&str]) -> String {
    let output = asked(members, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", both(&output));
    String::from_utf8(output.stderr).unwrap()
}

/// The same command with `-w json`.
pub(crate) fn json(members: &[&Member], arguments: &[&str]) -> serde_json::Value {
    let all: Vec<&str> = arguments.iter().copied().chain(["-w", "json"]).collect();
    let (text, _) = done(members, &all);
    serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why} in {text}"))
}
