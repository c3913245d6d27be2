//! The server that is harmed, and how one sees that it was not.

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

use crate::common::{PATIENCE, Place, Running, free_ports, wait_until};

/// One member, alone.
pub(crate) struct Server {
    pub(crate) client: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) place: Place,
    running: Running,
}

/// What the process holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holds {
    pub(crate) memory_kib: u64,
    pub(crate) files: usize,
}

impl Server {
    /// Starts it from a shell that was told these first.
    pub(crate) fn start(name: &str, shell: &[&str]) -> Self {
        let place = Place::new(name);
        fs::create_dir_all(&place.path).unwrap();
        let ports = free_ports(2);
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let (client, peer) = (address(ports[0]), address(ports[1]));
        let mut command = Command::new("sh");
        command.arg("-c").arg([shell, &["exec \"$0\" \"$@\""]].concat().join("; "));
        command.args([env!("CARGO_BIN_EXE_quorate"), "server", "--name", "m"]);
        command.arg("--data-dir").arg(place.path.join("data"));
        for flag in ["--listen-client-urls", "--advertise-client-urls"] {
            command.args([flag, &format!("http://{client}")]);
        }
        for flag in ["--listen-peer-urls", "--initial-advertise-peer-urls"] {
            command.args([flag, &format!("http://{peer}")]);
        }
        command.args(["--initial-cluster", &format!("m=http://{peer}")]);
        let running = Running::start(&mut command, &place.path.join("m.log"));
        let server = Self { client, peer, place, running };
        let serves = || server.page("/health").is_ok_and(|page| page.contains("\"true\""));
        wait_until(serves, "the server serves");
        server
    }

    pub(crate) fn holds(&self) -> Holds {
        let process = format!("/proc/{}", self.running.0.id());
        let status = fs::read_to_string(format!("{process}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let memory_kib = line.split_whitespace().next().unwrap().parse().unwrap();
        let files = fs::read_dir(format!("{process}/fd")).unwrap().count();
        Holds { memory_kib, files }
    }

    /// A page over plain HTTP, on a connection of its own.
    pub(crate) fn page(&self, path: &str) -> std::io::Result<String> {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(self.client)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.client).await.unwrap()
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.client)).unwrap().connect().await.unwrap()
    }

    /// Somebody else writes and reads as ever.
    pub(crate) async fn serves_others(&self, after: &str) {
        let served = timeout(PATIENCE, async {
            let mut client = KvClient::new(self.channel().await);
            let value = bytes::Bytes::from(after.to_owned());
            let put = PutRequest { key: "k".into(), value: value.clone(), ..Default::default() };
            client.put(put).await.unwrap();
            let get = RangeRequest { key: "k".into(), ..Default::default() };
            let got = client.range(get).await.unwrap().into_inner();
            assert_eq!(got.kvs[0].value, value);
        });
        served.await.unwrap_or_else(|_| panic!("nobody is served after: {after}"));
    }

    /// Others are served, connections are closed again, and memory is about what it was.
    pub(crate) async fn is_unharmed(&self, after: &str, before: Holds, grown_kib_max: u64) {
        self.serves_others(after).await;
        let began = Instant::now();
        loop {
            let now = self.holds();
            let files_back = now.files <= before.files + FILES_SPARE;
            if files_back && now.memory_kib <= before.memory_kib + grown_kib_max {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "after {after}: {before:?}, then {now:?}");
            sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}

/// Sends bytes and reads until the server closes, or has sent `enough`.
pub(crate) async fn answer_to(
    address: SocketAddr,
    bytes: &[u8],
    enough: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // It may close before it has read everything.
    let _ = stream.write_all(bytes).await;
    read_to_end(&mut stream, enough).await
}

pub(crate) async fn read_to_end(stream: &mut TcpStream, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut answer = Vec::new();
    while !enough(&answer) {
        let mut part = [0; 4096];
        match timeout(PATIENCE, stream.read(&mut part)).await.expect("the server closes") {
            Ok(0) | Err(_) => break,
            Ok(read) => answer.extend_from_slice(&part[..read]),
        }
    }
    answer
}

/// Connections of the test itself, on their way out, and segments of the log.
const FILES_SPARE: usize = 4;
