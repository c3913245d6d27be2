//! Servers in this process, on loopback, and clients of them.

#![allow(dead_code, reason = "each test file uses what it needs")]

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use quorate_proto::etcdserverpb::cluster_client::ClusterClient;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::{Member, MemberListRequest, PutRequest, RangeRequest};
use quorate_server::config::{ClusterState, ServerConfig, TransportSecurity};
use quorate_server::tls::{PeerStream, TlsConnector, TlsSettings};
use quorate_server::{RunningServer, Url};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tonic::Status;
use tonic::codegen::Service;
use tonic::transport::Channel;

/// Long enough for slow machines: only what never happens takes longer.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(90);

/// The name, addresses and directory of one member, running or not.
pub(crate) struct TestMember {
    pub(crate) name: String,
    pub(crate) peer: Url,
    pub(crate) client: Url,
    /// For clients and peers; none without TLS.
    tls: Option<TlsSettings>,
    directory: TempDir,
}

impl TestMember {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_tls(name, None)
    }

    pub(crate) fn with_tls(name: &str, tls: Option<TlsSettings>) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = |port: u16| Url::parse(&format!("{scheme}://127.0.0.1:{port}")).unwrap();
        let (peer, client) = (url(free_port()), url(free_port()));
        Self { name: name.into(), peer, client, tls, directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The configuration of this member in a cluster of these.
    pub(crate) fn config(&self, cluster: &[&Self], state: ClusterState) -> ServerConfig {
        let settings = self.tls.clone().unwrap_or_default();
        let security = TransportSecurity { settings, auto_tls: false };
        ServerConfig {
            client_security: security.clone(),
            peer_security: security,
            name: self.name.clone(),
            data_dir: self.directory.path().join("data"),
            listen_peer_urls: vec![self.peer.clone()],
            listen_client_urls: vec![self.client.clone()],
            initial_advertise_peer_urls: vec![self.peer.clone()],
            advertise_client_urls: vec![self.client.clone()],
            initial_cluster: cluster.iter().map(|p| (p.name.clone(), p.peer.clone())).collect(),
            initial_cluster_state: state,
            heartbeat_interval: Duration::from_millis(50),
            election_timeout: Duration::from_millis(500),
            ..ServerConfig::default()
        }
    }

    pub(crate) async fn start(&self, cluster: &[&Self], state: ClusterState) -> RunningServer {
        RunningServer::start(self.config(cluster, state)).await.unwrap()
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(self.client.to_string()).unwrap();
        let began = Instant::now();
        loop {
            let connected = match &self.tls {
                None => endpoint.connect().await,
                Some(settings) => endpoint.connect_with_connector(TlsClient::new(settings)).await,
            };
            match connected {
                Ok(channel) => return channel,
                Err(error) => assert!(began.elapsed() < TEST_TIMEOUT, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel().await)
    }

    pub(crate) async fn cluster(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel().await)
    }

    pub(crate) async fn put(&self, key: &str, value: &str) -> Result<(), Status> {
        self.kv().await.put(put(key, value)).await.map(|_| ())
    }

    /// Retries until the write succeeds.
    pub(crate) async fn put_until_done(&self, key: &str, value: &str) {
        let began = Instant::now();
        while let Err(error) = self.put(key, value).await {
            assert!(began.elapsed() < TEST_TIMEOUT, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn get(&self, key: &str) -> Option<String> {
        let began = Instant::now();
        loop {
            let range = RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
            match self.kv().await.range(range).await {
                Ok(response) => {
                    let kvs = response.into_inner().kvs;
                    return kvs.first().map(|kv| String::from_utf8_lossy(&kv.value).into_owned());
                }
                Err(error) => assert!(began.elapsed() < TEST_TIMEOUT, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn members(&self) -> Result<Vec<Member>, Status> {
        let list = MemberListRequest { linearizable: true };
        self.cluster().await.member_list(list).await.map(|reply| reply.into_inner().members)
    }

    /// Waits until the condition holds for the members, and returns them.
    pub(crate) async fn members_until(&self, condition: impl Fn(&[Member]) -> bool) -> Vec<Member> {
        let began = Instant::now();
        loop {
            let members = self.members().await;
            if let Ok(members) = &members
                && condition(members)
            {
                return members.clone();
            }
            assert!(began.elapsed() < TEST_TIMEOUT, "{members:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Opens the connections of a channel with TLS.
pub(crate) struct TlsClient(Arc<TlsConnector>);

impl TlsClient {
    pub(crate) fn new(settings: &TlsSettings) -> Self {
        Self(Arc::new(TlsConnector::new(settings).unwrap()))
    }
}

impl Service<Uri> for TlsClient {
    type Response = TokioIo<Box<dyn PeerStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = Arc::clone(&self.0);
        Box::pin(async move {
            let address = uri.authority().unwrap().to_string();
            let stream = TcpStream::connect(&address).await?;
            connector.connect(stream, &address).await.map(TokioIo::new)
        })
    }
}

pub(crate) fn put(key: &str, value: &str) -> PutRequest {
    let (key, value) = (key.to_owned().into(), value.to_owned().into());
    PutRequest { key, value, ..PutRequest::default() }
}

/// The first line and the body of a response.
pub(crate) async fn http_get(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

/// Waits until the server at this address has started to handle a put.
pub(crate) async fn put_started(address: SocketAddr) {
    let line = "grpc_server_started_total{grpc_method=\"Put\",\
                grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 1";
    wait_for("a put has started", async || {
        http_get(address, "/metrics").await.1.lines().any(|other| other == line)
    })
    .await;
}

pub(crate) async fn wait_for(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < TEST_TIMEOUT, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, async || condition()).await;
}

pub(crate) fn names(members: &[Member]) -> BTreeSet<&str> {
    members.iter().map(|member| member.name.as_str()).collect()
}

/// Starts a single member with these changes to its configuration, and waits until it serves.
pub(crate) async fn start_one(
    change: impl FnOnce(&mut ServerConfig),
) -> (TestMember, RunningServer, SocketAddr) {
    let member = TestMember::new("a");
    let mut config = member.config(&[&member], ClusterState::New);
    config.auth.bcrypt_cost = 4;
    change(&mut config);
    let server = RunningServer::start(config).await.unwrap();
    server.wait_ready().await;
    let address = server.client_addresses()[0];
    (member, server, address)
}

/// Starts all of them, and waits until each has published its client URLs.
pub(crate) async fn start_all(test_members: &[&TestMember]) -> Vec<RunningServer> {
    let mut running = Vec::new();
    for member in test_members {
        running.push(member.start(test_members, ClusterState::New).await);
    }
    let first = test_members.first().unwrap();
    first.members_until(|members| members.iter().all(|m| !m.client_urls.is_empty())).await;
    running
}

/// A port that is free at the moment.
fn free_port() -> u16 {
    quorate::testkit::ports::free_ports(1).unwrap()[0]
}
