//! Plain HTTP pages, on the client port and on a metrics port.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use quorate_server::config::ClusterState;
use quorate_server::{RunningServer, Url};
use support::{TestMember, http_get as get};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread")]
async fn health_version_and_metrics_are_served() {
    let a = TestMember::new("a");
    let mut config = a.config(&[&a], ClusterState::New);
    config.listen_metrics_urls = vec![Url::parse("http://127.0.0.1:0").unwrap()];
    let server = RunningServer::start(config).await.unwrap();
    a.put_until_done("x", "1").await;
    let (client, metrics) = (server.client_addresses()[0], server.metrics_addresses()[0]);
    let ok = "HTTP/1.1 200 OK";
    for address in [client, metrics] {
        let (line, body) = get(address, "/health").await;
        assert_eq!((line.as_str(), body.as_str()), (ok, "{\"health\":\"true\",\"reason\":\"\"}"));
        assert_eq!(get(address, "/livez").await, (ok.into(), "ok\n".into()));
        let (line, body) = get(address, "/readyz?verbose").await;
        assert!(line == ok && body.contains("[+]non_learner ok"), "{line} {body}");
        assert_eq!(get(address, "/readyz/non_learner").await, (ok.into(), "ok\n".into()));
        for unknown in ["/livez/non_learner", "/readyz/nope", "/nope"] {
            let (line, _) = get(address, unknown).await;
            assert_eq!(line, "HTTP/1.1 404 Not Found", "{unknown}");
        }
        let (_, page) = get(address, "/metrics").await;
        for name in [
            "etcd_server_has_leader 1",
            "etcd_server_is_leader 1",
            "etcd_server_proposals_committed_total ",
            "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.001\"}",
            "etcd_mvcc_db_total_size_in_bytes ",
            "etcd_network_peer_sent_bytes_total ",
            "process_resident_memory_bytes ",
            &format!("quorate_build_info{{version=\"{}\"}} 1", quorate_server::VERSION),
        ] {
            assert!(page.lines().any(|line| line.starts_with(name)), "{name} in {page}");
        }
    }
    let (line, body) = get(client, "/version").await;
    assert_eq!(line, ok);
    assert!(body.contains(quorate_server::EtcdRelease::default().version()), "{body}");
    assert!(body.contains("\"quoratecluster\":1"), "{body}");
    assert!(body.contains(&format!("\"quorate\":\"{}\"", quorate_server::VERSION)), "{body}");
    server.stop().await;
    assert!(TcpStream::connect(client).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_a_leader_is_not_healthy() {
    let [a, b, c] = ["a", "b", "c"].map(TestMember::new);
    let server = a.start(&[&a, &b, &c], ClusterState::New).await;
    let address = server.client_addresses()[0];
    let (line, body) = get(address, "/health").await;
    assert_eq!(line, "HTTP/1.1 503 Service Unavailable");
    assert_eq!(body, "{\"health\":\"false\",\"reason\":\"RAFT NO LEADER\"}\n");
    for ok in ["/health?serializable=true", "/livez", "/readyz/non_learner"] {
        let (line, _) = get(address, ok).await;
        assert_eq!(line, "HTTP/1.1 200 OK", "{ok}");
    }
    let (line, body) = get(address, "/readyz/linearizable_read").await;
    assert_eq!(line, "HTTP/1.1 503 Service Unavailable");
    assert!(body.starts_with("[-]linearizable_read failed"), "{body}");
    server.stop_now().await;
}
