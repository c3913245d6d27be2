//! Hostile connections at the peer port. The replies are tested in the transport; here the
//! whole server must keep working.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::server::{HostileTarget, reply_to};
use crate::support::messages::{ACCEPTING, WRONG_CLUSTER};
use crate::support::server::{TestServer, output_of};
use crate::support::{output_text, wait_for_text};

/// Sends all cases. Returns their number.
pub(crate) async fn send_all(server: &HostileTarget) -> usize {
    let hello = b"quorate\n".to_vec();
    let with = |bytes: &[u8]| [hello.clone(), bytes.to_vec()].concat();
    let cases = [
        ("HTTP to a peer", b"GET /raft HTTP/1.1\r\nHost: m\r\n\r\n".to_vec()),
        ("HTTP/2 to a peer", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("zeros to a peer", vec![0; 1 << 16]),
        ("a hello and random bytes", with(&[0xff; 4096])),
        ("a hello and zeros", with(&[0; 4096])),
    ];
    for (name, bytes) in &cases {
        let before = server.resources();
        reply_to(server.peer, bytes, |_| false).await;
        server.assert_unharmed(name, before, MEMORY_GROWTH_KIB_MAX).await;
    }
    let before = server.resources();
    for number in 0..200 {
        let mut stream = TcpStream::connect(server.peer).await.unwrap();
        let _ = stream.write_all(&hello[..number % 9]).await;
    }
    server.assert_unharmed("half a hello, 200 times", before, MEMORY_GROWTH_KIB_MAX).await;
    foreign_cluster(server).await;
    cases.len() + 2
}

/// A member of another cluster that has this server in its initial cluster.
async fn foreign_cluster(server: &HostileTarget) {
    let before = server.resources();
    let [mut foreign] = TestServer::all(&server.directory, ["foreign"]);
    foreign.token = "foreign".to_string();
    let mut other = foreign.clone();
    other.name = "m".to_string();
    other.peer_url = format!("http://{}", server.peer);
    let process = foreign.start_new(&[&foreign, &other]);
    // It runs, tries to connect for its election, and is rejected.
    wait_for_text(&foreign.log, ACCEPTING);
    wait_for_text(&foreign.log, WRONG_CLUSTER);
    let metrics = server.page("/metrics").unwrap();
    assert!(metrics.contains("etcd_server_has_leader 1"), "{metrics}");
    let status = output_text(&output_of(&[&foreign], &["status"]));
    assert!(!status.contains("| leader "), "{status}");
    server.serves_others("a foreign cluster").await;
    drop(process);
    server.assert_unharmed("a foreign cluster", before, MEMORY_GROWTH_KIB_MAX).await;
}

const MEMORY_GROWTH_KIB_MAX: u64 = 32 << 10;
