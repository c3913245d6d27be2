//! Servers in processes of their own, and the commands that tests send to them.

use std::path::PathBuf;
use std::process::{Command, Output};

use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::{PutRequest, RangeRequest};
use tonic::transport::{Channel, Endpoint};

use super::{TestDirectory, TestProcess, free_ports, output_text, quorate, wait_until};

/// The configuration of one server, which may run or not.
#[derive(Clone, Debug)]
pub(crate) struct TestServer {
    pub(crate) name: String,
    pub(crate) peer_url: String,
    pub(crate) client_url: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) token: String,
    /// Further flags.
    pub(crate) extra_flags: Vec<String>,
    /// The network namespace in which it runs, if not in that of the test.
    pub(crate) namespace: Option<String>,
    /// Environment variables of its process.
    pub(crate) environment: Vec<(String, String)>,
    /// Another program than the one of this build.
    pub(crate) other_program: Option<PathBuf>,
}

impl TestServer {
    /// `peer` and `client` are `HOST:PORT`.
    pub(crate) fn new(directory: &TestDirectory, name: &str, peer: &str, client: &str) -> Self {
        Self {
            name: name.to_string(),
            peer_url: format!("http://{peer}"),
            client_url: format!("http://{client}"),
            data_dir: directory.path.join(name),
            log: directory.path.join(format!("{name}.log")),
            token: "test".to_string(),
            extra_flags: Vec::new(),
            namespace: None,
            environment: Vec::new(),
            other_program: None,
        }
    }

    /// Servers with these names, on free ports of this machine.
    pub(crate) fn all<const N: usize>(directory: &TestDirectory, names: [&str; N]) -> [Self; N] {
        let mut ports = free_ports(2 * N).into_iter();
        let mut address = || format!("127.0.0.1:{}", ports.next().unwrap());
        names.map(|name| Self::new(directory, name, &address(), &address()))
    }

    /// `NAME=PEER_URL`.
    pub(crate) fn pair(&self) -> String {
        format!("{}={}", self.name, self.peer_url)
    }

    /// The client address without the scheme, which old versions of etcdctl do not accept.
    pub(crate) fn client_address(&self) -> String {
        self.client_url.trim_start_matches("http://").to_owned()
    }

    /// Starts it as an initial member of a new cluster.
    pub(crate) fn start_new(&self, members: &[&Self]) -> TestProcess {
        self.start(members, "new")
    }

    /// Starts it as a member that joins these, itself included.
    pub(crate) fn start_joining(&self, members: &[&Self]) -> TestProcess {
        self.start(members, "existing")
    }

    fn start(&self, members: &[&Self], state: &str) -> TestProcess {
        let mut command = self.program();
        command.envs(self.environment.iter().cloned());
        command.arg("server").args(self.member_flags(members));
        command.args(["--initial-cluster-state", state]).args(self.listen_flags());
        command.args(&self.extra_flags);
        TestProcess::start(&mut command, &self.log)
    }

    fn program(&self) -> Command {
        let own = match &self.other_program {
            Some(program) => Command::new(program),
            None => quorate(),
        };
        let Some(namespace) = &self.namespace else { return own };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(own.get_program());
        command
    }

    /// The flags that `server` and `snapshot restore` have in common.
    pub(crate) fn member_flags(&self, members: &[&Self]) -> Vec<String> {
        let flags = [
            ("--name", self.name.clone()),
            ("--data-dir", self.data_dir.to_str().unwrap().to_string()),
            ("--initial-cluster", pairs(members)),
            ("--initial-cluster-token", self.token.clone()),
            ("--initial-advertise-peer-urls", self.peer_url.clone()),
        ];
        flags.into_iter().flat_map(|(flag, value)| [flag.to_string(), value]).collect()
    }

    pub(crate) fn listen_flags(&self) -> [&str; 6] {
        [
            "--listen-peer-urls",
            &self.peer_url,
            "--listen-client-urls",
            &self.client_url,
            "--advertise-client-urls",
            &self.client_url,
        ]
    }

    /// All flags of a cluster that consists of this server. etcd has the same flags.
    pub(crate) fn single_member_flags(&self) -> Vec<String> {
        let listen = self.listen_flags().map(str::to_string);
        self.member_flags(&[self]).into_iter().chain(listen).collect()
    }

    pub(crate) fn is_serving(&self) -> bool {
        output_of(&[self], &["status"]).status.success()
    }

    pub(crate) fn wait_serving(&self) {
        wait_until(|| self.is_serving(), &format!("{} serves requests", self.name));
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::from_shared(self.client_url.clone()).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn put(&self, key: &str, value: &str) {
        let (key, value) = (key.to_string().into(), value.to_string().into());
        let request = PutRequest { key, value, ..Default::default() };
        KvClient::new(self.channel().await).put(request).await.unwrap();
    }

    pub(crate) async fn value(&self, key: &str) -> String {
        let request = RangeRequest { key: key.to_string().into(), ..Default::default() };
        let reply = KvClient::new(self.channel().await).range(request).await.unwrap().into_inner();
        let value = reply.kvs.first().map(|kv| kv.value.to_vec()).unwrap_or_default();
        String::from_utf8(value).unwrap()
    }

    /// How many keys start with `key`, and the revision of the reply.
    pub(crate) async fn count(&self) -> (i64, i64) {
        let request = RangeRequest {
            key: "key".into(),
            range_end: "kez".into(),
            count_only: true,
            ..Default::default()
        };
        let reply = KvClient::new(self.channel().await).range(request).await.unwrap().into_inner();
        (reply.count, reply.header.unwrap().revision)
    }

    pub(crate) async fn revision(&self) -> i64 {
        self.count().await.1
    }
}

/// The value of `--initial-cluster`.
pub(crate) fn pairs(servers: &[&TestServer]) -> String {
    servers.iter().map(|server| server.pair()).collect::<Vec<_>>().join(",")
}

/// The value of `--endpoints`.
pub(crate) fn endpoints(servers: &[&TestServer]) -> String {
    servers.iter().map(|server| server.client_url.as_str()).collect::<Vec<_>>().join(",")
}

/// Starts a new cluster of these servers. Returns when each of them serves requests and has
/// published its client URLs, which happens after the first election.
pub(crate) fn start_all(servers: &[&TestServer]) -> Vec<TestProcess> {
    let processes = servers.iter().map(|server| server.start_new(servers)).collect();
    servers.iter().for_each(|server| server.wait_serving());
    let published = || {
        let list = output_of(&servers[..1], &["member", "list", "-w", "json"]);
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        servers.iter().all(|server| list.contains(&server.client_url))
    };
    wait_until(published, "all servers have published their client URLs");
    processes
}

/// Runs a command against these servers.
pub(crate) fn output_of(servers: &[&TestServer], arguments: &[&str]) -> Output {
    quorate().args(arguments).args(["--endpoints", &endpoints(servers)]).output().unwrap()
}

/// Runs a command that must succeed. Returns its standard output and standard error.
pub(crate) fn succeed(servers: &[&TestServer], arguments: &[&str]) -> (String, String) {
    let output = output_of(servers, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", output_text(&output));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// Runs a command that must be refused. Returns its standard error.
pub(crate) fn refused(servers: &[&TestServer], arguments: &[&str]) -> String {
    let output = output_of(servers, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", output_text(&output));
    String::from_utf8(output.stderr).unwrap()
}

/// Runs a command with `-w json`. It must succeed.
pub(crate) fn json(servers: &[&TestServer], arguments: &[&str]) -> serde_json::Value {
    let all: Vec<&str> = arguments.iter().copied().chain(["-w", "json"]).collect();
    let (text, _) = succeed(servers, &all);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}
