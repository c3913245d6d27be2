//! The JSON gateway with TLS: a certificate lets a client in, and does not name its user.

use std::net::SocketAddr;

use quorate_server::RunningServer;
use quorate_server::config::{ClusterState, ServerConfig, TransportSecurity};
use quorate_server::tls::{TlsConnector, TlsSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::certificates::TestAuthority;
use crate::mutual;
use crate::support::TestMember;

async fn post(address: SocketAddr, settings: &TlsSettings, path: &str, body: &str) -> String {
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = TlsConnector::new(settings).unwrap();
    let mut stream = connector.connect(stream, &address.to_string()).await.unwrap();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: unknown\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn the_name_of_a_certificate_is_not_a_user_of_the_gateway() {
    let authority = TestAuthority::new();
    let mut settings = mutual(&authority, &authority.issue("server"));
    settings.client_cert_auth = true;
    let member = TestMember::with_tls("a", Some(settings.clone()));
    let mut config = ServerConfig {
        client_security: TransportSecurity { settings, auto_tls: false },
        // With TLS, the certificate has the name.
        host_whitelist: vec!["known".into()],
        ..member.config(&[&member], ClusterState::New)
    };
    config.auth.bcrypt_cost = 4;
    let server = RunningServer::start(config).await.unwrap();
    server.wait_ready().await;
    let address = server.client_addresses()[0];
    let root = mutual(&authority, &authority.issue("root"));
    for (path, body) in [
        ("/v3/kv/put", r#"{"key":"Zm9v","value":"YmFy"}"#),
        ("/v3/auth/user/add", r#"{"name":"root","password":"r"}"#),
        ("/v3/auth/role/add", r#"{"name":"root"}"#),
        ("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("/v3/auth/enable", "{}"),
    ] {
        let response = post(address, &root, path, body).await;
        assert!(response.starts_with("HTTP/1.1 200 OK"), "{path}: {response}");
    }
    let refused = post(address, &root, "/v3/kv/range", r#"{"key":"Zm9v"}"#).await;
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    let text = "CommonName of client sending a request against gateway will be ignored and not \
                used as expected\n";
    assert!(refused.ends_with(text), "{refused}");
    server.stop_now().await;
}
