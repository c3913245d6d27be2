//! Hostile input at the ports of a server. Each case of the tables has its expected answer. A
//! well-behaved client beside it gets every answer, and the memory of the process stays flat.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[path = "../../../node/tests/tls/certificates.rs"]
mod certificates;
#[path = "../support/mod.rs"]
mod support;

mod grpc;
mod handshakes;
mod http1;
mod http2;
mod peer_port;
mod signed_tokens;
mod tls;
mod tokens;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quorate_server::config::{ClusterState, ServerConfig, TransportSecurity};
use quorate_server::tls::TlsSettings;
use quorate_server::{RunningServer, Url};
use support::{TestMember, start_all};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Cases of all tables. A case that is lost by mistake fails the test.
const CASES: usize = grpc::CASES + http1::CASES + http2::CASES + peer_port::CASES;

/// All tables together are as large as promised.
const _: () = assert!(CASES + tls::CASES + tokens::CASES + signed_tokens::CASES >= 200);

/// How much the process may grow. Far less than what a hostile length names.
const GROWTH_MAX: u64 = 192 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_input_gets_its_answer_and_disturbs_no_other_client() {
    let member = TestMember::new("a");
    let server = start_all(&[&member]).await.pop().unwrap();
    member.put_until_done("key", "value").await;
    let client = GoodClient::start(&member).await;
    let before = resident_bytes();

    let clients = server.client_addresses()[0];
    let peers = member.peer.address().parse().unwrap();
    let mut report = Report::default();
    grpc::run(clients, &mut report).await;
    http1::run(clients, &mut report).await;
    http2::run(clients, &mut report).await;
    peer_port::run(peers, &mut report).await;
    assert!(report.wrong.is_empty(), "{}", report.wrong.join("\n"));
    assert_eq!(report.cases, CASES);

    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "grew by {growth} bytes");
    client.finish().await;
    server.stop().await;
}

/// The same at ports with TLS, and with tokens of users.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_at_ports_with_tls_get_no_further_than_the_handshake() {
    let authority = certificates::TestAuthority::new();
    let settings = |name: &str| {
        let own = authority.issue(name);
        let mut settings = TlsSettings::default();
        settings.certificate = Some(own.certificate);
        settings.key = Some(own.key);
        settings.trusted_ca = Some(authority.ca());
        settings.revocation_list = Some(authority.revoke(&[&tls::revoked(&authority)]));
        settings.allowed_common_names =
            ["a", "withdrawn", "expired", "early"].map(Into::into).into();
        settings
    };
    let member = TestMember::with_tls("a", Some(settings("a")));
    let url = |scheme: &str| Url::parse(&format!("{scheme}://127.0.0.1:0")).unwrap();
    let config = ServerConfig {
        client_security: TransportSecurity { settings: settings("a"), auto_tls: false },
        listen_client_urls: vec![member.client.clone(), url("https")],
        listen_metrics_urls: vec![url("https")],
        ..member.config(&[&member], ClusterState::New)
    };
    let server = RunningServer::start(config).await.unwrap();
    member.put_until_done("key", "value").await;
    let client = GoodClient::start(&member).await;
    let before = resident_bytes();
    let ports = tls::SecuredPorts {
        clients: server.client_addresses()[1],
        metrics: server.metrics_addresses()[0],
        peers: server.peer_address(),
    };
    let mut report = Report::default();
    tls::run(&ports, &authority, &mut report).await;
    assert!(report.wrong.is_empty(), "{}", report.wrong.join("\n"));
    assert_eq!(report.cases, tls::CASES);
    // None of them became a connection of a peer or of a client.
    let counts = server.node().metrics().transport;
    assert_eq!((counts["discovery_answered"], counts["connections_identified"]), (0, 0));
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "grew by {growth} bytes");
    client.finish().await;

    tokens::run(&member, &mut report).await;
    assert!(report.wrong.is_empty(), "{}", report.wrong.join("\n"));
    assert_eq!(report.cases, tls::CASES + tokens::CASES);
    server.stop().await;
}

/// Tokens of users that the server did not sign, or not so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_signed_tokens_are_refused() {
    let member = TestMember::new("a");
    let mut config = member.config(&[&member], ClusterState::New);
    config.auth.token = signed_tokens::config();
    let server = RunningServer::start(config).await.unwrap();
    member.put_until_done("key", "value").await;
    let mut report = Report::default();
    signed_tokens::run(&member, &mut report).await;
    assert!(report.wrong.is_empty(), "{}", report.wrong.join("\n"));
    assert_eq!(report.cases, signed_tokens::CASES);
    server.stop().await;
}

/// The results of the cases: all of them are run, also after a wrong one.
#[derive(Default)]
struct Report {
    cases: usize,
    wrong: Vec<String>,
}

impl Report {
    fn case(&mut self, name: &str, is_right: bool, reply: impl std::fmt::Debug) {
        self.cases += 1;
        if !is_right {
            self.wrong.push(format!("{name}: {reply:?}"));
        }
    }
}

/// Writes all the time. No request may fail.
struct GoodClient {
    stop: Arc<AtomicBool>,
    requests: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl GoodClient {
    async fn start(member: &TestMember) -> Self {
        let mut kv = member.kv().await;
        let (stop, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&requests));
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                kv.put(support::put("key", "value")).await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        Self { stop, requests, task }
    }

    /// Returns how many requests were served.
    async fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        let requests = self.requests.load(Ordering::Relaxed);
        assert!(requests > 0);
        requests
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    let kib = line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Sends bytes and returns everything that the server sends until it closes the connection, or
/// None if it does not close it. The writing side stays open: the server has to decide.
async fn exchange(address: SocketAddr, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may close before it has read everything.
    let _ = stream.write_all(bytes).await;
    let mut reply = Vec::new();
    let read = async {
        let mut buffer = [0; 4096];
        loop {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(count) => reply.extend_from_slice(&buffer[..count]),
            }
        }
    };
    let closed = tokio::time::timeout(CLOSE_TIMEOUT, read).await.is_ok();
    closed.then_some(reply)
}

/// Longer than every deadline of the server for what a connection must send.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);
