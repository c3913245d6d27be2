//! The ports for clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_server::config::{ClusterState, ServerConfig, TransportSecurity};
use quorate_server::tls::{TlsConnector, TlsSettings};
use quorate_server::{RunningServer, Url};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tonic::transport::Channel;

use crate::certificates::{TestAuthority, write_garbage};
use crate::mutual;
use crate::support::{TestMember, TlsClient, http_get, put, wait_for};

/// A single member with these settings for clients, on two ports with and one without TLS.
async fn start(name: &str, security: TransportSecurity) -> (TestMember, RunningServer) {
    let member = TestMember::new(name);
    let url = |scheme: &str| Url::parse(&format!("{scheme}://127.0.0.1:0")).unwrap();
    let config = ServerConfig {
        client_security: security,
        listen_client_urls: vec![url("https"), url("http")],
        listen_metrics_urls: vec![url("https")],
        ..member.config(&[&member], ClusterState::New)
    };
    let server = RunningServer::start(config).await.unwrap();
    server.wait_ready().await;
    (member, server)
}

async fn channel(address: SocketAddr, settings: &TlsSettings) -> Result<Channel, String> {
    let endpoint = Channel::from_shared(format!("https://{address}")).unwrap();
    let connected = endpoint.connect_with_connector(TlsClient::new(settings)).await;
    connected.map_err(|error| format!("{error:?}"))
}

/// Connects and writes a key.
async fn write(address: SocketAddr, settings: &TlsSettings) -> Result<(), String> {
    let channel = channel(address, settings).await?;
    let put = KvClient::new(channel).put(put("a", "1")).await;
    put.map(|_| ()).map_err(|error| format!("{error:?}"))
}

/// Writing with these settings fails for this reason.
async fn assert_refused(address: SocketAddr, settings: &TlsSettings, reason: &str) {
    let error = write(address, settings).await.unwrap_err();
    assert!(error.contains(reason), "expected {reason}, got {error}");
}

/// The alert with which the server refuses. (A client of HTTP may report only that the connection
/// was closed: with TLS 1.3 the alert arrives after the client's part of the handshake.)
async fn refusal(address: SocketAddr, settings: &TlsSettings) -> String {
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = TlsConnector::new(settings).unwrap();
    match connector.connect(stream, &address.to_string()).await {
        Ok(mut stream) => stream.read(&mut [0]).await.unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

fn only(settings: TlsSettings) -> TransportSecurity {
    TransportSecurity { settings, auto_tls: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_verified_on_every_port() {
    let (authority, other) = (TestAuthority::new(), TestAuthority::new());
    let security = only(mutual(&authority, &authority.issue("server")));
    let (_member, server) = start("a", security).await;
    let [secured, plain] = *server.client_addresses() else { panic!("two ports") };
    let metrics = server.metrics_addresses()[0];

    let client = mutual(&authority, &authority.issue("client"));
    write(secured, &client).await.unwrap();
    let mut without = client.clone();
    (without.certificate, without.key) = (None, None);
    assert!(write(secured, &without).await.is_err());
    let alert = refusal(secured, &without).await;
    assert!(alert.contains("CertificateRequired"), "{alert}");
    let foreign = mutual(&authority, &other.issue("foreign"));
    assert!(write(secured, &foreign).await.is_err());
    let alert = refusal(secured, &foreign).await;
    assert!(alert.contains("UnknownCA"), "{alert}");
    let mut distrustful = client.clone();
    distrustful.trusted_ca = Some(other.ca());
    assert_refused(secured, &distrustful, "UnknownIssuer").await;

    // Pages beside gRPC, and the port for metrics, need a certificate, too.
    let page = async |address: SocketAddr, settings: &TlsSettings| -> std::io::Result<String> {
        let stream = TcpStream::connect(address).await?;
        let connector = TlsConnector::new(settings).unwrap();
        let mut stream = connector.connect(stream, &address.to_string()).await?;
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    };
    for address in [secured, metrics] {
        assert!(page(address, &client).await.unwrap().starts_with("HTTP/1.1 200"));
        assert!(page(address, &without).await.is_err());
    }

    // The port without TLS serves beside them, and counts what happened.
    let text = http_get(plain, "/metrics").await.1;
    let failed = "quorate_client_tls_handshakes_total{result=\"failed\"} ";
    let failed = text.lines().find_map(|line| line.strip_prefix(failed)).unwrap();
    assert!(failed.parse::<u64>().unwrap() >= 3, "{failed}");
    assert!(text.contains("quorate_plaintext_listeners{kind=\"client\"} 0"), "{text}");
    server.stop_now().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_protocol_is_refused_and_silence_harms_nobody() {
    let authority = TestAuthority::new();
    let security = only(mutual(&authority, &authority.issue("server")));
    let (_member, server) = start("a", security).await;
    let [secured, plain] = *server.client_addresses() else { panic!("two ports") };

    let (status, body) = http_get(secured, "/health").await;
    assert_eq!(status, "HTTP/1.0 400 Bad Request");
    assert_eq!(body, "Client sent an HTTP request to an HTTPS server.\n");
    let client = mutual(&authority, &authority.issue("client"));
    assert!(write(plain, &client).await.is_err());

    // Connections that are silent, that stop in the middle of a message, and that send nonsense.
    let mut open = Vec::new();
    for number in 0..300 {
        let mut stream = TcpStream::connect(secured).await.unwrap();
        let start: &[u8] = [&[][..], &[22, 3, 1, 2], &[22, 3, 1, 0, 4, 9, 9, 9, 9]][number % 3];
        stream.write_all(start).await.unwrap();
        open.push(stream);
    }
    write(secured, &client).await.unwrap();
    // Those that sent nonsense are closed.
    let nonsense = &mut open[2];
    let mut received = Vec::new();
    let _ = nonsense.read_to_end(&mut received).await;
    drop(open);
    server.stop_now().await;
}

/// Clients that connect while files are replaced, in any order, do not fail.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_replaced_under_load() {
    let authority = TestAuthority::new();
    let own = authority.issue("server");
    let (_member, server) = start("a", only(mutual(&authority, &own))).await;
    let address = server.client_addresses()[0];
    let client = mutual(&authority, &authority.issue("client"));
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let load = tokio::spawn(async move {
        let mut count = 0;
        while !*stopped.borrow() {
            write(address, &client).await.unwrap();
            count += 1;
        }
        count
    });
    for number in 0..10 {
        let next = authority.issue(&format!("server-{number}"));
        std::fs::copy(&next.key, &own.key).unwrap();
        tokio::task::yield_now().await;
        write_garbage(&own.certificate);
        tokio::task::yield_now().await;
        std::fs::copy(&next.certificate, &own.certificate).unwrap();
        // The server uses this certificate before the next one is written.
        let mut expects = mutual(&authority, &authority.issue("observer"));
        expects.allowed_common_names = vec![format!("server-{number}")];
        wait_for("the new certificate", async || write(address, &expects).await.is_ok()).await;
    }
    stop.send_replace(true);
    assert!(load.await.unwrap() > 0);
    server.stop_now().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_makes_its_own_certificate() {
    let security = TransportSecurity { auto_tls: true, ..TransportSecurity::default() };
    let (member, server) = start("a", security).await;
    let address = server.client_addresses()[0];
    let mut trusting = TlsSettings::default();
    trusting.skip_verification = true;
    write(address, &trusting).await.unwrap();
    // Clients that verify it refuse it, and a restart uses it again.
    let authority = TestAuthority::new();
    let verifying = mutual(&authority, &authority.issue("client"));
    assert!(write(address, &verifying).await.unwrap_err().contains("UnknownIssuer"));
    assert!(member.directory().join("data/fixtures/client/cert.pem").exists());
    server.stop_now().await;
}

/// What other machines can reach without TLS is in the status and a metric.
#[tokio::test(flavor = "multi_thread")]
async fn a_plaintext_port_for_other_machines_is_reported() {
    use quorate_proto::quorate::v1;
    use quorate_proto::quorate::v1::membership_client::MembershipClient;
    let member = TestMember::new("a");
    // Port 0 on all addresses: nothing beyond this test knows it.
    let open = Url::parse("http://0.0.0.0:0").unwrap();
    let config = ServerConfig {
        listen_client_urls: vec![open],
        ..member.config(&[&member], ClusterState::New)
    };
    let server = RunningServer::start(config).await.unwrap();
    let port = server.client_addresses()[0].port();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let text = http_get(address, "/metrics").await.1;
    assert!(text.contains("quorate_plaintext_listeners{kind=\"client\"} 1"), "{text}");
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await;
    let status = MembershipClient::new(channel.unwrap()).status(v1::StatusRequest {}).await;
    let own = status.unwrap().into_inner().member.unwrap();
    assert_eq!(own.plaintext_listeners, ["client http://0.0.0.0:0"]);
    assert!(own.unverified_listeners.is_empty());
    server.stop_now().await;
}

/// So is what they can reach with TLS and without a certificate, unless there are users.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_verifies_nobody_is_reported() {
    use quorate_proto::etcdserverpb::auth_client::AuthClient;
    use quorate_proto::etcdserverpb::{
        AuthEnableRequest, AuthRoleAddRequest, AuthUserAddRequest, AuthUserGrantRoleRequest,
    };
    let member = TestMember::new("a");
    let url = |text: &str| Url::parse(text).unwrap();
    let config = ServerConfig {
        client_security: TransportSecurity { auto_tls: true, ..TransportSecurity::default() },
        listen_client_urls: vec![url("https://0.0.0.0:0"), url("http://127.0.0.1:0")],
        ..member.config(&[&member], ClusterState::New)
    };
    let server = RunningServer::start(config).await.unwrap();
    server.wait_ready().await;
    let plain = server.client_addresses()[1];
    let counted = async |count: usize| {
        let text = http_get(plain, "/metrics").await.1;
        text.contains(&format!("quorate_unverified_listeners{{kind=\"client\"}} {count}\n"))
    };
    assert!(counted(1).await);
    let channel = Channel::from_shared(format!("http://{plain}")).unwrap().connect().await.unwrap();
    let mut auth = AuthClient::new(channel);
    let (name, password) = ("root".to_owned(), "root".to_owned());
    let user = AuthUserAddRequest { name: name.clone(), password, ..Default::default() };
    auth.user_add(user).await.unwrap();
    auth.role_add(AuthRoleAddRequest { name: name.clone() }).await.unwrap();
    let grant = AuthUserGrantRoleRequest { user: name.clone(), role: name };
    auth.user_grant_role(grant).await.unwrap();
    auth.auth_enable(AuthEnableRequest {}).await.unwrap();
    assert!(counted(0).await);
    server.stop_now().await;
}

/// TLS on a socket in a file has the same rules as on a port.
#[tokio::test(flavor = "multi_thread")]
async fn clients_are_verified_on_a_socket_in_a_file() {
    let authority = TestAuthority::new();
    let member = TestMember::new("a");
    let path = member.directory().join("clients.sock");
    let url = format!("unixs://{}", path.display());
    let config = ServerConfig {
        client_security: only(mutual(&authority, &authority.issue("server"))),
        listen_client_urls: vec![Url::parse_for_clients(&url).unwrap()],
        ..member.config(&[&member], ClusterState::New)
    };
    let server = RunningServer::start(config).await.unwrap();
    server.wait_ready().await;
    let address = forward_to(path.clone()).await;
    let client = mutual(&authority, &authority.issue("client"));
    write(address, &client).await.unwrap();
    let mut without = client.clone();
    (without.certificate, without.key) = (None, None);
    assert!(write(address, &without).await.is_err());
    let alert = refusal(address, &without).await;
    assert!(alert.contains("CertificateRequired"), "{alert}");
    // Without TLS there is no response.
    let mut plain = UnixStream::connect(&path).await.unwrap();
    plain.write_all(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut response = Vec::new();
    let _ = plain.read_to_end(&mut response).await;
    assert!(!response.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&response));
    server.stop().await;
    assert!(!path.exists());
}

/// A port whose connections are forwarded to the socket in this file.
async fn forward_to(path: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = UnixStream::connect(&path).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    address
}

/// An `http` and an `https` URL may name one port: clients use TLS or not.
#[tokio::test(flavor = "multi_thread")]
async fn one_port_serves_clients_with_and_without_tls() {
    let authority = TestAuthority::new();
    let member = TestMember::new("a");
    let https = member.client.to_string().replace("http://", "https://");
    let config = ServerConfig {
        client_security: only(mutual(&authority, &authority.issue("server"))),
        listen_client_urls: vec![member.client.clone(), Url::parse(&https).unwrap()],
        ..member.config(&[&member], ClusterState::New)
    };
    let server = RunningServer::start(config).await.unwrap();
    server.wait_ready().await;
    let [address] = *server.client_addresses() else { panic!("one port") };
    write(address, &mutual(&authority, &authority.issue("client"))).await.unwrap();
    assert_eq!(member.get("a").await.as_deref(), Some("1"));
    assert_eq!(http_get(address, "/version").await.0, "HTTP/1.1 200 OK");
    // Who uses TLS has to have a certificate.
    let mut without = TlsSettings::default();
    without.trusted_ca = Some(authority.ca());
    assert!(write(address, &without).await.is_err());
    server.stop().await;
}
