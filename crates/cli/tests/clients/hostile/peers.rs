//! At the peers' port: no peers, and peers of somebody else. What the transport says to each
//! is tested where it is; here the whole server has to go on.

use std::fs;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::server::{Server, answer_to};
use crate::common::{Running, free_ports, quorate, wait_until};

/// Sends each, and gives how many there were.
pub(crate) async fn send_all(server: &Server) -> usize {
    let hello = b"quorate\n".to_vec();
    let with = |bytes: &[u8]| [hello.clone(), bytes.to_vec()].concat();
    let cases = [
        ("HTTP to a peer", b"GET /raft HTTP/1.1\r\nHost: m\r\n\r\n".to_vec()),
        ("HTTP/2 to a peer", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("zeros to a peer", vec![0; 1 << 16]),
        ("a hello and nonsense", with(&[0xff; 4096])),
        ("a hello and zeros", with(&[0; 4096])),
    ];
    for (name, bytes) in &cases {
        let before = server.holds();
        answer_to(server.peer, bytes, |_| false).await;
        server.is_unharmed(name, before, GROWN_KIB_MAX).await;
    }
    let before = server.holds();
    for number in 0..200 {
        let mut stream = TcpStream::connect(server.peer).await.unwrap();
        let _ = stream.write_all(&hello[..number % 9]).await;
    }
    server.is_unharmed("half a hello, 200 times", before, GROWN_KIB_MAX).await;
    foreign_cluster(server).await;
    cases.len() + 2
}

/// A member of another cluster believes that this server is one of its own.
async fn foreign_cluster(server: &Server) {
    let before = server.holds();
    let ports = free_ports(2);
    let url = |port| format!("http://127.0.0.1:{port}");
    let (client, peer) = (url(ports[0]), url(ports[1]));
    let mut command = quorate();
    command.args(["server", "--name", "x", "--initial-cluster-token", "foreign"]);
    command.arg("--data-dir").arg(server.place.path.join("foreign"));
    command.args(["--initial-cluster", &format!("x={peer},m=http://{}", server.peer)]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    let log = server.place.path.join("foreign.log");
    let foreign = Running::start(&mut command, &log);
    let told = || fs::read_to_string(&log).unwrap().contains("ready to serve client requests");
    wait_until(told, "the foreign member runs");
    // It campaigns for as long as this; nobody listens.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let members = server.page("/metrics").unwrap();
    assert!(members.contains("etcd_server_has_leader 1"), "{members}");
    let alone = quorate().args(["status", "--endpoints", &client]).output().unwrap();
    let shown = crate::common::both(&alone);
    assert!(!shown.contains("| leader "), "{shown}");
    server.serves_others("a foreign cluster").await;
    drop(foreign);
    server.is_unharmed("a foreign cluster", before, GROWN_KIB_MAX).await;
}

const GROWN_KIB_MAX: u64 = 32 << 10;
