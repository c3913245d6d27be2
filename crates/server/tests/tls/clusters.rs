//! Members that use mutual TLS among themselves.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quorate::tls::TlsSecurity;
use quorate::{TcpConfig, TcpTransport};
use quorate_proto::etcdserverpb::{
    MemberAddRequest, MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest,
};
use quorate_server::config::{ClusterState, ServerConfig, TransportSecurity};
use quorate_server::tls::TlsSettings;
use quorate_server::{RunningServer, Url};

use crate::certificates::TestAuthority;
use crate::mutual;
use crate::support::{TestMember, names, start_all, wait_for, wait_until};

/// Entries after which a snapshot is taken.
const SNAPSHOT_COUNT: u64 = 10;

fn with_snapshots(config: ServerConfig) -> ServerConfig {
    ServerConfig { snapshot_count: Some(SNAPSHOT_COUNT), ..config }
}

/// Asks the member which members it hosts, with these settings; without settings, without TLS.
async fn discovers(member: &TestMember, settings: Option<&TlsSettings>) -> bool {
    let mut config = TcpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    if let Some(settings) = settings {
        config.security = Arc::new(TlsSecurity::new(settings).unwrap());
    }
    let transport = TcpTransport::bind(config).await.unwrap();
    transport.discover(&member.peer.address(), Duration::from_secs(60)).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_is_replaced_and_gets_a_snapshot() {
    let authority = TestAuthority::new();
    let member = |name: &str| {
        let mut settings = mutual(&authority, &authority.issue(name));
        settings.allowed_common_names = ["a", "b", "c", "d"].map(Into::into).into();
        TestMember::with_tls(name, Some(settings))
    };
    let [a, b, c, d] = ["a", "b", "c", "d"].map(member);
    let mut running = Vec::new();
    for member in [&a, &b, &c] {
        let config = with_snapshots(member.config(&[&a, &b, &c], ClusterState::New));
        running.push(RunningServer::start(config).await.unwrap());
    }
    for number in 0..5 * SNAPSHOT_COUNT {
        b.put_until_done(&format!("key-{number}"), "value").await;
    }

    // Nobody without an allowed certificate learns anything from the port for members.
    let stranger = TestAuthority::new();
    assert!(discovers(&b, Some(&mutual(&authority, &authority.issue("a")))).await);
    assert!(!discovers(&b, None).await);
    assert!(!discovers(&b, Some(&mutual(&authority, &stranger.issue("a")))).await);
    assert!(!discovers(&b, Some(&mutual(&authority, &authority.issue("z")))).await);
    wait_until("the refusals are counted", || {
        running[1].node().metrics().transport["handshake_not_secured"] >= 3
    })
    .await;

    let peer_urls = vec![d.peer.to_string()];
    let add = MemberAddRequest { peer_urls, is_learner: true };
    let added = b.cluster().await.member_add(add).await.unwrap().into_inner();
    let id = added.member.unwrap().id;
    let config = with_snapshots(d.config(&[&a, &b, &c, &d], ClusterState::Existing));
    let joined = RunningServer::start(config).await.unwrap();
    wait_until("a snapshot arrives", || {
        joined.node().metrics().transport["snapshots_received"] > 0
    })
    .await;
    running.push(joined);
    wait_for("the learner is promoted", async || {
        b.cluster().await.member_promote(MemberPromoteRequest { id }).await.is_ok()
    })
    .await;
    let members = b.members_until(|members| members.len() == 4).await;
    let id = members.iter().find(|member| member.name == "a").unwrap().id;
    b.cluster().await.member_remove(MemberRemoveRequest { id }).await.unwrap();
    b.members_until(|members| names(members) == ["b", "c", "d"].into()).await;
    running.remove(0).stop_now().await;
    d.put_until_done("after", "1").await;
    assert_eq!(d.get("key-7").await.as_deref(), Some("value"));
    assert_eq!(b.get("after").await.as_deref(), Some("1"));
    for server in running {
        server.stop_now().await;
    }
}

/// The rolling change that `docs/operating.md` describes: every member listens on both ports,
/// then the URLs of the members change, then the ports without TLS are closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_cluster_moves_to_tls() {
    let authority = TestAuthority::new();
    let plain = ["a", "b", "c"].map(TestMember::new);
    let all: Vec<&TestMember> = plain.iter().collect();
    let secured: Vec<Url> = (plain.iter())
        .map(|_| {
            let port = quorate::testkit::ports::free_ports(1).unwrap()[0];
            Url::parse(&format!("https://127.0.0.1:{port}")).unwrap()
        })
        .collect();
    let config = |number: usize, both: bool| {
        let member = &plain[number];
        let config = member.config(&all, ClusterState::New);
        let mut urls = vec![secured[number].clone()];
        if both {
            urls.push(member.peer.clone());
        }
        let settings = mutual(&authority, &authority.issue(&member.name));
        let peer_security = TransportSecurity { settings, auto_tls: false };
        ServerConfig { listen_peer_urls: urls, peer_security, ..config }
    };
    let mut running: Vec<Option<RunningServer>> =
        start_all(&all).await.into_iter().map(Some).collect();
    plain[0].put_until_done("a", "1").await;
    for (number, slot) in running.iter_mut().enumerate() {
        slot.take().unwrap().stop().await;
        let server = RunningServer::start(config(number, true)).await.unwrap();
        server.wait_ready().await;
        *slot = Some(server);
    }
    let members = plain[0].members_until(|members| members.len() == 3).await;
    for (number, member) in plain.iter().enumerate() {
        let id = members.iter().find(|other| other.name == member.name).unwrap().id;
        let update = || MemberUpdateRequest { id, peer_urls: vec![secured[number].to_string()] };
        wait_for("the URL is updated", async || {
            plain[0].cluster().await.member_update(update()).await.is_ok()
        })
        .await;
    }
    for (number, slot) in running.iter_mut().enumerate() {
        slot.take().unwrap().stop().await;
        let server = RunningServer::start(config(number, false)).await.unwrap();
        server.wait_ready().await;
        *slot = Some(server);
    }
    plain[1].put_until_done("b", "2").await;
    assert_eq!(plain[2].get("a").await.as_deref(), Some("1"));
    for server in running.into_iter().flatten() {
        server.stop_now().await;
    }
}
