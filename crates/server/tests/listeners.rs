//! A server listens on all given addresses.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use quorate_proto::etcdserverpb::RangeRequest;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_server::config::ClusterState;
use quorate_server::{RunningServer, ServerError, Url};
use support::{TestMember, http_get, wait_for};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn peers_and_clients_can_use_every_listener() {
    let [a, b, c, other] = ["a", "b", "c", "other"].map(TestMember::new);
    let mut config = a.config(&[&a, &b, &c], ClusterState::New);
    config.listen_peer_urls.push(other.peer.clone());
    config.listen_client_urls.push(other.client.clone());
    // b and c connect to the second peer address of a.
    config.initial_advertise_peer_urls = vec![other.peer.clone()];
    let mut initial_cluster = config.initial_cluster.clone();
    initial_cluster[0].1 = other.peer.clone();
    config.initial_cluster = initial_cluster.clone();
    let mut running = vec![RunningServer::start(config).await.unwrap()];
    for member in [&b, &c] {
        let mut config = member.config(&[&a, &b, &c], ClusterState::New);
        config.initial_cluster = initial_cluster.clone();
        running.push(RunningServer::start(config).await.unwrap());
    }
    a.put_until_done("x", "1").await;
    assert_eq!(other.get("x").await.as_deref(), Some("1"));
    assert_eq!(running[0].client_addresses().len(), 2);
    for address in running[0].client_addresses() {
        assert_eq!(http_get(*address, "/version").await.0, "HTTP/1.1 200 OK");
    }
    // Without c, b can write only if it reaches a at its second peer address.
    running.pop().unwrap().stop_now().await;
    b.put_until_done("x", "2").await;
    wait_for("a has it", async || a.get("x").await.as_deref() == Some("2")).await;

    // The error names the address that is in use.
    let mut config = c.config(&[&c], ClusterState::New);
    config.listen_peer_urls.push(other.peer.clone());
    let refused = RunningServer::start(config).await.unwrap_err();
    let ServerError::Bind { url, .. } = &refused else { panic!("{refused}") };
    assert!(url.contains(&other.peer.to_string()), "{refused}");
    for server in running {
        server.stop_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_served_on_a_socket_in_a_file() {
    let a = TestMember::new("a");
    let path = a.directory().join("clients.sock");
    // As left behind by a server that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut config = a.config(&[&a], ClusterState::New);
    let url = Url::parse_for_clients(&format!("unix://{}", path.display())).unwrap();
    config.listen_client_urls.push(url.clone());
    let server = RunningServer::start(config).await.unwrap();
    a.put_until_done("x", "1").await;
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let request = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
    assert!(response.ends_with("{\"health\":\"true\",\"reason\":\"\"}"), "{response}");
    server.stop().await;
    assert!(!path.exists());

    // A file that is no socket is not removed.
    std::fs::write(&path, "data").unwrap();
    let mut config = a.config(&[&a], ClusterState::New);
    config.listen_client_urls = vec![url];
    assert!(matches!(RunningServer::start(config).await, Err(ServerError::Bind { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
}

/// With `--listen-client-http-urls`, gRPC and everything else have ports of their own.
#[tokio::test(flavor = "multi_thread")]
async fn grpc_and_http_can_have_ports_of_their_own() {
    let [a, other] = ["a", "other"].map(TestMember::new);
    let mut config = a.config(&[&a], ClusterState::New);
    config.listen_client_http_urls = vec![other.client.clone()];
    let server = RunningServer::start(config).await.unwrap();
    a.put_until_done("x", "1").await;
    let (grpc, http) = (server.client_addresses()[0], server.http_addresses()[0]);
    for path in ["/version", "/health", "/metrics", "/readyz"] {
        assert_eq!(http_get(http, path).await.0, "HTTP/1.1 200 OK", "{path}");
        let refused = http_get(grpc, path).await;
        assert_eq!(refused.0, "HTTP/1.1 415 Unsupported Media Type", "{path}");
    }
    let range = RangeRequest { key: "x".into(), ..RangeRequest::default() };
    let error = KvClient::new(other.channel().await).range(range).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented, "{error}");
    server.stop().await;
}
