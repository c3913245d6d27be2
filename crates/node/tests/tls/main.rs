//! TLS between processes: who is accepted, files that change, and the suite for transports.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic fails the test")]
#![allow(clippy::disallowed_methods, reason = "the simulator has no TLS")]

mod certificates;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quorate::testkit::transport::{TransportUnderTest, check};
use quorate::tls::{
    CipherSuite, HandshakeThread, TlsAcceptor, TlsConfigError, TlsConnector, TlsSecurity,
    TlsSettings, TlsVersion,
};
use quorate::{
    KvCommand, KvReply, MemberId, MemberInfo, MemoryKv, MemoryStorage, Node, NodeConfig, TcpConfig,
    TcpTransport,
};
use rcgen::date_time_ymd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use certificates::{TestAuthority, TestCertificate, write_garbage};

/// Settings with which both sides have to have a certificate of the authority.
fn mutual(authority: &TestAuthority, own: &TestCertificate) -> TlsSettings {
    let mut settings = TlsSettings::default();
    settings.certificate = Some(own.certificate.clone());
    settings.key = Some(own.key.clone());
    settings.trusted_ca = Some(authority.ca());
    settings
}

/// What a server and its client say of a connection: the common name of the client, and the
/// text that the server sent.
async fn connect(
    acceptor: &TlsAcceptor,
    connector: &TlsConnector,
    host: &str,
) -> (io::Result<Option<String>>, io::Result<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = async {
        let mut accepted = acceptor.accept(listener.accept().await.unwrap().0).await?;
        accepted.stream.write_all(b"hello").await?;
        accepted.stream.shutdown().await?;
        Ok(accepted.certificate.and_then(|certificate| certificate.common_name()))
    };
    let client = async {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        let mut stream = connector.connect(stream, &format!("{host}:{port}")).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    };
    tokio::join!(server, client)
}

/// The same for settings; a refusal is its text, from the side that refuses.
async fn try_settings(server: &TlsSettings, client: &TlsSettings) -> Result<String, String> {
    let (acceptor, connector) =
        (TlsAcceptor::new(server).unwrap(), TlsConnector::new(client).unwrap());
    let (server, client) = connect(&acceptor, &connector, "127.0.0.1").await;
    match (server, client) {
        (Ok(name), Ok(text)) => {
            assert_eq!(text, "hello");
            Ok(name.unwrap_or_default())
        }
        (server, client) => {
            // Neither side may believe that it has a connection.
            let client = client.expect_err("the client was refused").to_string();
            let server = server.err().map(|error| error.to_string()).unwrap_or_default();
            Err(format!("client: {client}; server: {server}"))
        }
    }
}

fn assert_refused(result: &Result<String, String>, text: &str) {
    match result {
        Err(error) if error.contains(text) => {}
        other => panic!("expected {text:?}, got {other:?}"),
    }
}

#[tokio::test]
async fn both_sides_are_verified() {
    let (authority, other) = (TestAuthority::new(), TestAuthority::new());
    let server = mutual(&authority, &authority.issue("server"));
    let client = mutual(&authority, &authority.issue("client"));
    assert_eq!(try_settings(&server, &client).await, Ok("client".into()));

    let foreign = mutual(&authority, &other.issue("foreign"));
    assert_refused(&try_settings(&server, &foreign).await, "UnknownCA");
    assert_refused(&try_settings(&foreign, &client).await, "UnknownIssuer");

    let mut without = client.clone();
    (without.certificate, without.key) = (None, None);
    assert_refused(&try_settings(&server, &without).await, "CertificateRequired");

    let expired = authority.issue_with("expired", |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    let expired = mutual(&authority, &expired);
    assert_refused(&try_settings(&server, &expired).await, "CertificateExpired");
    assert_refused(&try_settings(&expired, &client).await, "expired");

    let elsewhere = authority.issue_with("elsewhere", |params| {
        params.subject_alt_names =
            vec![rcgen::SanType::DnsName("other.example".try_into().unwrap())];
    });
    let elsewhere = mutual(&authority, &elsewhere);
    assert_refused(&try_settings(&elsewhere, &client).await, "not valid for name");
    // A client has no name that could be checked, unless names are given.
    assert_eq!(try_settings(&server, &elsewhere).await, Ok("elsewhere".into()));

    let only_server = authority.issue_with("only-server", |params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    let only_server = mutual(&authority, &only_server);
    assert!(try_settings(&server, &only_server).await.is_err());

    let mut trusting = TlsSettings::default();
    trusting.skip_verification = true;
    let mut anonymous = foreign.clone();
    anonymous.trusted_ca = None;
    assert_eq!(try_settings(&anonymous, &trusting).await, Ok(String::new()));
}

/// As in Go: one self-signed certificate is the authority, the server's and the client's. Its
/// validity and its host names count.
#[tokio::test]
async fn an_authority_may_present_its_own_certificate() {
    let authority = TestAuthority::new();
    let own = authority.own("own", |_| {});
    let trusting = |own: &TestCertificate| {
        let mut settings = mutual(&authority, own);
        settings.trusted_ca = Some(own.certificate.clone());
        settings
    };
    let both = trusting(&own);
    assert_eq!(try_settings(&both, &both).await, Ok("own".into()));

    // Another one with the same name is not trusted.
    let mut foreign = trusting(&authority.own("foreign", |_| {}));
    foreign.trusted_ca = Some(own.certificate.clone());
    assert!(try_settings(&both, &foreign).await.is_err());
    assert!(try_settings(&foreign, &both).await.is_err());

    let expired = trusting(&authority.own("expired", |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    }));
    assert_refused(&try_settings(&expired, &expired).await, "expired");
    let mut careless = expired.clone();
    careless.skip_verification = true;
    assert_refused(&try_settings(&expired, &careless).await, "CertificateExpired");

    let elsewhere = trusting(&authority.own("elsewhere", |params| {
        params.subject_alt_names =
            vec![rcgen::SanType::DnsName("other.example".try_into().unwrap())];
    }));
    assert_refused(&try_settings(&elsewhere, &elsewhere).await, "not valid for name");
}

#[tokio::test]
async fn only_allowed_names_are_accepted() {
    let authority = TestAuthority::new();
    let client = mutual(&authority, &authority.issue("client"));
    let server = mutual(&authority, &authority.issue("server"));

    let mut by_name = server.clone();
    by_name.allowed_common_names = vec!["member".into(), "client".into()];
    assert_eq!(try_settings(&by_name, &client).await, Ok("client".into()));
    by_name.allowed_common_names = vec!["member".into()];
    assert_refused(&try_settings(&by_name, &client).await, "\"client\" is not allowed");

    let mut by_host = server.clone();
    by_host.allowed_host_names = vec!["member.example".into(), "localhost".into()];
    assert_eq!(try_settings(&by_host, &client).await, Ok("client".into()));
    by_host.allowed_host_names = vec!["member.example".into()];
    assert_refused(&try_settings(&by_host, &client).await, "no allowed host name");

    // The same for the servers that a connector meets.
    let mut strict = client.clone();
    strict.allowed_common_names = vec!["server".into()];
    assert_eq!(try_settings(&server, &strict).await, Ok("client".into()));
    strict.allowed_common_names = vec!["other".into()];
    assert_refused(&try_settings(&server, &strict).await, "\"server\" is not allowed");
}

#[tokio::test]
async fn revoked_certificates_are_refused() {
    let authority = TestAuthority::new();
    let (good, bad) = (authority.issue("good"), authority.issue("bad"));
    let mut server = mutual(&authority, &authority.issue("server"));
    server.revocation_list = Some(authority.revoke(&[&bad]));
    assert_eq!(try_settings(&server, &mutual(&authority, &good)).await, Ok("good".into()));
    let revoked = mutual(&authority, &bad);
    assert_refused(&try_settings(&server, &revoked).await, "CertificateRevoked");
    // A peer that dials checks it, too.
    let mut client = mutual(&authority, &good);
    client.revocation_list = server.revocation_list.clone();
    assert_refused(&try_settings(&revoked, &client).await, "Revoked");
    // A list that is changed takes effect for the next connection.
    let acceptor = TlsAcceptor::new(&server).unwrap();
    let connector = TlsConnector::new(&mutual(&authority, &good)).unwrap();
    assert!(connect(&acceptor, &connector, "127.0.0.1").await.0.is_ok());
    authority.revoke(&[&bad, &good]);
    assert!(connect(&acceptor, &connector, "127.0.0.1").await.0.is_err());
    authority.revoke(&[&bad]);
    assert!(connect(&acceptor, &connector, "127.0.0.1").await.0.is_ok());
}

/// An authority may have published several lists, each with a part of its revocations.
#[tokio::test]
async fn all_revocation_lists_of_an_authority_count() {
    let (authority, other) = (TestAuthority::new(), TestAuthority::new());
    let revoked = ["one", "two", "three"].map(|name| authority.issue(name));
    let mut lists = std::fs::read(other.revoke(&[&other.issue("foreign")])).unwrap();
    for certificate in &revoked {
        lists.extend(std::fs::read(authority.revoke(&[certificate])).unwrap());
    }
    let path = authority.path("lists.pem");
    std::fs::write(&path, lists).unwrap();
    let good = mutual(&authority, &authority.issue("good"));
    let mut server = mutual(&authority, &authority.issue("server"));
    server.revocation_list = Some(path.clone());
    assert_eq!(try_settings(&server, &good).await, Ok("good".into()));
    let mut client = good.clone();
    client.revocation_list = Some(path);
    for certificate in &revoked {
        let revoked = mutual(&authority, certificate);
        assert_refused(&try_settings(&server, &revoked).await, "CertificateRevoked");
        assert_refused(&try_settings(&revoked, &client).await, "Revoked");
    }
}

/// The thread that waits for a handshake, such as the one that runs Raft, does nothing for it.
#[test]
fn handshakes_run_on_a_thread_of_their_own() {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};
    let authority = TestAuthority::new();
    let mut settings = mutual(&authority, &authority.issue("member"));
    // In this version a client has finished when the server has.
    settings.version_max = Some(TlsVersion::Tls12);
    let acceptor = Arc::new(TlsAcceptor::new(&settings).unwrap());
    let handshakes = HandshakeThread::start().unwrap();
    let raft = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (listener, address) = raft.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    });
    let client = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let connector = TlsConnector::new(&settings).unwrap();
        let connected = runtime.block_on(async {
            let stream = TcpStream::connect(address).await.unwrap();
            connector.connect(stream, &address.to_string()).await.unwrap()
        });
        (runtime, connected)
    });
    let stream = raft.block_on(async { listener.accept().await.unwrap().0 });
    let guard = raft.enter();
    let mut accept = Box::pin(handshakes.accept(&acceptor, stream));
    let polled = accept.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Pending));
    drop(guard);
    // From here on, the runtime of Raft does not run.
    let (runtime, mut connected) = client.join().unwrap();
    // The connection belongs to that runtime now: it works without the other thread.
    let mut accepted = raft.block_on(accept).unwrap();
    drop(handshakes);
    let name = accepted.certificate.as_ref().and_then(|certificate| certificate.common_name());
    assert_eq!(name.as_deref(), Some("member"));
    let echo = std::thread::spawn(move || {
        runtime.block_on(async {
            let mut read = [0; 5];
            connected.read_exact(&mut read).await.unwrap();
            connected.write_all(&read).await.unwrap();
            connected.shutdown().await.unwrap();
        });
    });
    let mut received = Vec::new();
    raft.block_on(async {
        accepted.stream.write_all(b"hello").await.unwrap();
        accepted.stream.flush().await.unwrap();
        accepted.stream.read_to_end(&mut received).await.unwrap();
    });
    assert_eq!(received, b"hello");
    echo.join().unwrap();
}

#[tokio::test]
async fn versions_and_cipher_suites_are_limited() {
    let authority = TestAuthority::new();
    let mut server = mutual(&authority, &authority.issue("server"));
    let mut client = mutual(&authority, &authority.issue("client"));
    client.version_max = Some(TlsVersion::Tls12);
    assert!(try_settings(&server, &client).await.is_ok());
    server.version_min = TlsVersion::Tls13;
    assert_refused(&try_settings(&server, &client).await, "ProtocolVersion");
    server.version_min = TlsVersion::Tls12;
    let suite = |name| CipherSuite::from_name(name).unwrap();
    server.cipher_suites = vec![suite("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384")];
    assert!(try_settings(&server, &client).await.is_ok());
    client.cipher_suites = vec![suite("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")];
    assert_refused(&try_settings(&server, &client).await, "HandshakeFailure");
    server.version_max = Some(TlsVersion::Tls12);
    server.version_min = TlsVersion::Tls13;
    assert!(TlsAcceptor::new(&server).is_err());
}

#[tokio::test]
async fn changed_files_are_used_and_bad_ones_are_not() {
    let (old, new) = (TestAuthority::new(), TestAuthority::new());
    let server = old.issue("server");
    let acceptor = TlsAcceptor::new(&mutual(&old, &server)).unwrap();
    let client = old.issue("client");
    let mut settings = mutual(&old, &client);
    let knows_old = TlsConnector::new(&settings).unwrap();
    settings.trusted_ca = Some(new.ca());
    let knows_new = TlsConnector::new(&settings).unwrap();
    let connects = async |connector: &TlsConnector| {
        let (server, client) = connect(&acceptor, connector, "localhost").await;
        server.is_ok() && client.is_ok()
    };
    assert!(connects(&knows_old).await);
    // A new key with the old certificate, as while files are being replaced.
    let next = new.issue("next");
    std::fs::copy(&next.key, &server.key).unwrap();
    assert!(connects(&knows_old).await);
    write_garbage(&server.certificate);
    assert!(connects(&knows_old).await);
    std::fs::remove_file(&server.certificate).unwrap();
    assert!(connects(&knows_old).await);
    server.replace_with(&next);
    assert!(!connects(&knows_old).await);
    assert!(connects(&knows_new).await);
    // The authority of clients, and then the certificate of a client.
    std::fs::copy(new.ca(), old.ca()).unwrap();
    assert!(!connects(&knows_new).await);
    client.replace_with(&new.issue("client"));
    assert!(connects(&knows_new).await);
}

#[tokio::test]
async fn unusable_settings_say_what_is_wrong() {
    let (authority, other) = (TestAuthority::new(), TestAuthority::new());
    let certificate = authority.issue("server");
    let good = mutual(&authority, &certificate);
    let error = |settings: &TlsSettings| TlsAcceptor::new(settings).unwrap_err().to_string();

    let mut settings = good.clone();
    settings.key = Some(other.issue("server").key);
    assert!(error(&settings).contains("does not belong to the key"), "{}", error(&settings));
    settings.key = Some(authority.path("missing.key"));
    assert!(error(&settings).contains("missing.key: No such file"), "{}", error(&settings));
    settings.key = Some(certificate.certificate.clone());
    assert!(error(&settings).contains("no private key"), "{}", error(&settings));
    settings = good.clone();
    settings.certificate = Some(certificate.key.clone());
    assert!(error(&settings).contains("no certificate"), "{}", error(&settings));
    settings = good.clone();
    settings.trusted_ca = None;
    settings.client_cert_auth = true;
    assert!(error(&settings).contains("without a trusted CA file"), "{}", error(&settings));
    settings = good.clone();
    let garbage = authority.path("garbage");
    std::fs::write(&garbage, "x").unwrap();
    settings.revocation_list = Some(garbage.clone());
    assert!(error(&settings).contains("not a usable revocation list"), "{}", error(&settings));
    settings = good.clone();
    settings.allowed_host_names = vec!["a b".into()];
    assert!(error(&settings).contains("is not a host name"), "{}", error(&settings));
    settings = TlsSettings::default();
    assert!(matches!(TlsAcceptor::new(&settings), Err(TlsConfigError::Settings { .. })));
    settings.trusted_ca = Some(authority.ca());
    settings.certificate = Some(certificate.certificate);
    assert!(TlsConnector::new(&settings).is_err());
}

#[tokio::test]
async fn clients_without_tls_are_refused() {
    let authority = TestAuthority::new();
    let acceptor = TlsAcceptor::new(&mutual(&authority, &authority.issue("server"))).unwrap();
    for (sent, reply) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.0 400 Bad Request"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.0 400 Bad Request"),
        ("quorate\n", ""),
        ("\u{16}\u{3}\u{1}not really", ""),
    ] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = async { acceptor.accept(listener.accept().await.unwrap().0).await };
        let client = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.map(|_| received)
        };
        let (server, received) = tokio::join!(server, client);
        assert!(server.is_err(), "{sent}");
        let received = String::from_utf8_lossy(&received.unwrap()).into_owned();
        assert!(received.starts_with(reply), "{sent}: {received:?}");
    }
}

async fn transport(settings: &TlsSettings) -> TcpTransport {
    let mut config = TcpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.queue_bytes_max = 16 << 20;
    config.reconnect_min = Duration::from_millis(5);
    config.security = Arc::new(TlsSecurity::new(settings).unwrap());
    TcpTransport::bind(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transport_with_tls_passes_the_suite() {
    let authority = TestAuthority::new();
    let settings = mutual(&authority, &authority.issue("member"));
    let passed = check(|| async {
        let transport = transport(&settings).await;
        let info =
            MemberInfo { info: transport.advertised().to_owned().into(), ..MemberInfo::default() };
        TransportUnderTest { transport: Box::new(transport), info }
    })
    .await
    .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(passed.checks.contains(&"snapshots_arrive_complete"));
}

/// Members of one process each: a stranger with a certificate of another authority, and one
/// without TLS, learn nothing and get no further than the handshake.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_get_nothing_from_a_cluster() {
    let authority = TestAuthority::new();
    let mut transports = Vec::new();
    for id in 1..=3 {
        let own = authority.issue(&format!("member-{id}"));
        transports.push(transport(&mutual(&authority, &own)).await);
    }
    let members: Vec<(u64, String)> =
        (1..).zip(transports.iter().map(|one| one.advertised().to_owned())).collect();
    let mut nodes = Vec::new();
    for (id, transport) in (1..).zip(transports) {
        let config = NodeConfig::first(7, id, members.clone());
        let storage = MemoryStorage::new();
        nodes.push(Node::start(config, storage, MemoryKv::default(), transport).await.unwrap());
    }
    let put = KvCommand::Put { key: "color".into(), value: "green".into() };
    nodes[0].propose(put.encode()).await.unwrap();
    let reply = nodes[2].read("color").await.unwrap();
    assert_eq!(KvReply::decode(&reply).and_then(|reply| reply.value), Some("green".into()));

    let other = TestAuthority::new();
    let stranger = transport(&mutual(&authority, &other.issue("stranger"))).await;
    let plain = TcpTransport::bind(TcpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))));
    let (_, address) = &members[0];
    for transport in [&stranger, &plain.await.unwrap()] {
        let limit = Duration::from_secs(60);
        assert!(transport.discover(address, limit).await.is_err());
    }
    let refused = || nodes[0].metrics().transport["handshake_not_secured"];
    while refused() < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(nodes[0].metrics().transport["discovery_answered"], 0);
    assert!(nodes[0].membership().contains(MemberId(3)));
    for node in nodes {
        node.stop_now().await;
    }
}

/// A silent connection does not keep the handshake open.
#[tokio::test(flavor = "multi_thread")]
async fn handshakes_between_members_have_a_deadline() {
    let authority = TestAuthority::new();
    let settings = mutual(&authority, &authority.issue("member"));
    let mut config = TcpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.handshake_timeout = Duration::from_millis(100);
    config.security = Arc::new(TlsSecurity::new(&settings).unwrap());
    let transport = TcpTransport::bind(config).await.unwrap();
    let address = transport.local_address();
    let config = NodeConfig::first(7, 1, [(1, "nowhere")]);
    let node = Node::start(config, MemoryStorage::new(), MemoryKv::default(), transport);
    let node = node.await.unwrap();
    let mut silent = TcpStream::connect(address).await.unwrap();
    silent.write_all(&[22, 3, 1]).await.unwrap();
    let _ = silent.read(&mut [0]).await;
    while node.metrics().transport["handshake_timeout"] == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    node.stop_now().await;
}

/// With allowed names, a process may speak only for the members whose address its certificate is
/// for: here each member has another address.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_one_member_is_not_accepted_for_another() {
    let authority = TestAuthority::new();
    let hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];
    let settings = |number: usize| {
        let name = format!("member-{number}");
        let own = authority.issue_with(&name, |params| {
            let host = hosts[number].parse().unwrap();
            params.subject_alt_names = vec![rcgen::SanType::IpAddress(host)];
        });
        let mut settings = mutual(&authority, &own);
        settings.allowed_common_names = (0..3).map(|number| format!("member-{number}")).collect();
        settings
    };
    let transport = async |number: usize, port: u16, settings: &TlsSettings| {
        let host: std::net::IpAddr = hosts[number].parse().unwrap();
        let mut config = TcpConfig::new(SocketAddr::from((host, port)));
        config.reconnect_min = Duration::from_millis(5);
        config.reconnect_max = Duration::from_millis(50);
        config.security = Arc::new(TlsSecurity::new(settings).unwrap());
        TcpTransport::bind(config).await.unwrap()
    };
    let mut transports = Vec::new();
    for number in 0..3 {
        transports.push(transport(number, 0, &settings(number)).await);
    }
    let members: Vec<(u64, String)> =
        (1..).zip(transports.iter().map(|one| one.advertised().to_owned())).collect();
    let third = transports.pop().unwrap();
    let port = third.local_address().port();
    drop(third);
    let start = async |id: u64, transport: TcpTransport| {
        let config = NodeConfig::first(7, id, members.clone());
        Node::start(config, MemoryStorage::new(), MemoryKv::default(), transport).await.unwrap()
    };
    let mut nodes = Vec::new();
    for (id, transport) in (1..).zip(transports) {
        nodes.push(start(id, transport).await);
    }
    let put = |color: &str| KvCommand::Put { key: "color".into(), value: color.to_owned().into() };
    nodes[0].propose(put("green").encode()).await.unwrap();

    // The second member, or who has its key, says that it is the third.
    let impostor = start(3, transport(2, port, &settings(1)).await).await;
    let count = |node: &Node| node.metrics().transport["rejected_other_certificate"];
    while nodes.iter().map(count).sum::<u64>() < 3 {
        // What it sends to one of them it sends again.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(impostor.leader().is_none());
    assert_eq!(impostor.metrics().transport["connections_identified"], 0);
    impostor.stop_now().await;

    // With its own certificate the third member is accepted.
    let member = start(3, transport(2, port, &settings(2)).await).await;
    let reply = member.read("color").await.unwrap();
    let value = KvReply::decode(&reply).and_then(|reply| reply.value);
    assert_eq!(value, Some("green".into()));
    member.stop_now().await;
    for node in nodes {
        node.stop_now().await;
    }
}
