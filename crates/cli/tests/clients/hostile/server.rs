//! The server under attack, and checks that it is unharmed.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::{PutRequest, RangeRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};

use crate::support::server::TestServer;
use crate::support::{
    POLL_INTERVAL, TEST_TIMEOUT, TestDirectory, TestProcess, http_page, wait_until,
};

/// A server with one member.
pub(crate) struct HostileTarget {
    pub(crate) client: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) directory: TestDirectory,
    process: TestProcess,
}

/// The memory and open files of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessResources {
    pub(crate) memory_kib: u64,
    pub(crate) files: usize,
}

impl HostileTarget {
    /// Starts it in a shell, after these shell commands.
    pub(crate) fn start(name: &str, shell: &[&str]) -> Self {
        let directory = TestDirectory::new(name);
        let [server] = TestServer::all(&directory, ["m"]);
        let address = |url: &str| url.trim_start_matches("http://").parse().unwrap();
        let (client, peer) = (address(&server.client_url), address(&server.peer_url));
        let mut command = Command::new("sh");
        command.arg("-c").arg([shell, &["exec \"$0\" \"$@\""]].concat().join("; "));
        command.args([env!("CARGO_BIN_EXE_quorate"), "server"]).args(server.single_member_flags());
        let process = TestProcess::start(&mut command, &server.log);
        let target = Self { client, peer, directory, process };
        let healthy = || target.page("/health").is_ok_and(|page| page.contains("\"true\""));
        wait_until(healthy, "the server is healthy");
        target
    }

    pub(crate) fn resources(&self) -> ProcessResources {
        let process = format!("/proc/{}", self.process.0.id());
        let status = fs::read_to_string(format!("{process}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let memory_kib = line.split_whitespace().next().unwrap().parse().unwrap();
        let files = fs::read_dir(format!("{process}/fd")).unwrap().count();
        ProcessResources { memory_kib, files }
    }

    /// Fetches a page over HTTP/1, on a new connection.
    pub(crate) fn page(&self, path: &str) -> std::io::Result<String> {
        http_page(self.client, path)
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.client).await.unwrap()
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.client)).unwrap().connect().await.unwrap()
    }

    /// Another client can write and read.
    pub(crate) async fn serves_others(&self, after: &str) {
        let served = timeout(TEST_TIMEOUT, async {
            let mut client = KvClient::new(self.channel().await);
            let value = bytes::Bytes::from(after.to_owned());
            let put = PutRequest { key: "k".into(), value: value.clone(), ..Default::default() };
            client.put(put).await.unwrap();
            let get = RangeRequest { key: "k".into(), ..Default::default() };
            let got = client.range(get).await.unwrap().into_inner();
            assert_eq!(got.kvs[0].value, value);
        });
        served
            .await
            .unwrap_or_else(|_| panic!("timed out: other clients are not served after: {after}"));
    }

    /// Other clients are served, connections are closed, and memory is about the same as before.
    pub(crate) async fn assert_unharmed(
        &self,
        after: &str,
        before: ProcessResources,
        growth_kib_max: u64,
    ) {
        self.serves_others(after).await;
        let started = Instant::now();
        loop {
            let now = self.resources();
            let files_back = now.files <= before.files + FILES_SPARE;
            if files_back && now.memory_kib <= before.memory_kib + growth_kib_max {
                return;
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "after {after}: {before:?}, then {now:?}");
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Sends bytes, and reads until the server closes the connection or the reply is `complete`.
pub(crate) async fn reply_to(
    address: SocketAddr,
    bytes: &[u8],
    complete: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(bytes).await;
    read_to_end(&mut stream, complete).await
}

pub(crate) async fn read_to_end(
    stream: &mut TcpStream,
    complete: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    let mut reply = Vec::new();
    while !complete(&reply) {
        let mut part = [0; 4096];
        match timeout(TEST_TIMEOUT, stream.read(&mut part))
            .await
            .expect("the server closes the connection")
        {
            Ok(0) | Err(_) => break,
            Ok(read) => reply.extend_from_slice(&part[..read]),
        }
    }
    reply
}

/// Connections of the test itself that are being closed, and segments of the log.
const FILES_SPARE: usize = 4;
