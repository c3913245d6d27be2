//! A flood of TLS handshakes at the ports for clients and for peers, beside Raft.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quorate_server::RunningServer;
use quorate_server::config::ClusterState;
use quorate_server::tls::TlsSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::certificates::TestAuthority;
use crate::support::{TestMember, wait_until};
use crate::{GROWTH_MAX, GoodClient, resident_bytes, tls};

/// Far longer than a loaded machine delays a thread, and shorter than the flood.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(5);
const FLOOD: Duration = Duration::from_secs(12);
const HANDSHAKES_MIN: u64 = 1_000;

fn settings(authority: &TestAuthority, name: &str) -> TlsSettings {
    let own = authority.issue(name);
    let mut settings = TlsSettings::default();
    settings.certificate = Some(own.certificate);
    settings.key = Some(own.key);
    settings.trusted_ca = Some(authority.ca());
    settings
}

/// Begins handshakes until it is stopped. Each costs the server a signature. Some connections stay
/// open and silent afterwards, until the server closes them.
async fn begin_handshakes(address: SocketAddr, stop: Arc<AtomicBool>, answered: Arc<AtomicU64>) {
    let mut silent = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        // The server may have closed it, or has no room for it at the moment.
        let Ok(mut stream) = TcpStream::connect(address).await else { continue };
        let _ = stream.write_all(&tls::valid_hello()).await;
        let mut reply = [0; 64];
        let read = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut reply)).await;
        if read.is_ok_and(|read| read.is_ok_and(|count| count > 0 && reply[0] == 22)) {
            answered.fetch_add(1, Ordering::Relaxed);
        }
        silent.push(stream);
        silent.drain(..silent.len().saturating_sub(50));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_handshakes_deposes_no_leader_and_disturbs_no_client() {
    let authority = TestAuthority::new();
    let members =
        ["a", "b", "c"].map(|name| TestMember::with_tls(name, Some(settings(&authority, name))));
    let all: Vec<&TestMember> = members.iter().collect();
    let mut servers = Vec::new();
    for member in &members {
        let mut config = member.config(&all, ClusterState::New);
        config.election_timeout = ELECTION_TIMEOUT;
        config.heartbeat_interval = ELECTION_TIMEOUT / 10;
        servers.push(RunningServer::start(config).await.unwrap());
    }
    members[0].put_until_done("key", "value").await;
    wait_until("a leader", || servers.iter().any(|server| server.node().is_leader())).await;
    let leader = servers.iter().position(|server| server.node().is_leader()).unwrap();
    let term = servers[leader].node().term();
    let client = GoodClient::start(&members[leader]).await;
    let before = resident_bytes();

    let stop = Arc::new(AtomicBool::new(false));
    let ports = [servers[leader].client_addresses()[0], servers[leader].peer_address()];
    let answered = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let mut flood = JoinSet::new();
    for (address, answered) in ports.iter().zip(&answered) {
        for _ in 0..8 {
            flood.spawn(begin_handshakes(*address, Arc::clone(&stop), Arc::clone(answered)));
        }
    }
    tokio::time::sleep(FLOOD).await;
    wait_until("handshakes at both ports", || {
        answered.iter().all(|count| count.load(Ordering::Relaxed) >= HANDSHAKES_MIN)
    })
    .await;
    let served = client.finish().await;
    println!("{answered:?} handshakes were answered; {served} requests beside them");
    for server in &servers {
        assert_eq!(server.node().term(), term);
    }
    assert!(servers[leader].node().is_leader());
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "grew by {growth} bytes");
    stop.store(true, Ordering::Relaxed);
    flood.join_all().await;
    for server in servers {
        server.stop_now().await;
    }
}
