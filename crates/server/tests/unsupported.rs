//! Unsupported services and methods return errors that each kind of client understands.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::net::SocketAddr;

use quorate_proto::etcdserverpb::auth_client::AuthClient;
use quorate_proto::etcdserverpb::{
    AuthEnableRequest, AuthRoleListRequest, AuthStatusRequest, AuthUserListRequest,
    AuthenticateRequest,
};
use quorate_proto::v3electionpb::election_client::ElectionClient;
use quorate_proto::v3electionpb::{CampaignRequest, LeaderRequest};
use quorate_proto::v3lockpb::lock_client::LockClient;
use quorate_proto::v3lockpb::{LockRequest, UnlockRequest};
use support::{TestMember, http_get, start_all};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

async fn post(address: SocketAddr, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_services_are_named_in_the_error() {
    let a = TestMember::new("a");
    let server = start_all(&[&a]).await.pop().unwrap();
    let channel = a.channel().await;
    let mut auth = AuthClient::new(channel.clone());
    let mut lock = LockClient::new(channel.clone());
    let mut election = ElectionClient::new(channel.clone());
    let text_for =
        |service: &str| format!("etcdserver: {service} is not supported by this server yet");
    let no_auth = [
        auth.auth_enable(AuthEnableRequest::default()).await.unwrap_err(),
        auth.auth_status(AuthStatusRequest::default()).await.unwrap_err(),
        auth.authenticate(AuthenticateRequest::default()).await.unwrap_err(),
        auth.user_list(AuthUserListRequest::default()).await.unwrap_err(),
        auth.role_list(AuthRoleListRequest::default()).await.unwrap_err(),
    ];
    for refused in &no_auth {
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::Unimplemented, &*text_for("authentication"))
        );
    }
    for refused in [
        lock.lock(LockRequest::default()).await.unwrap_err(),
        lock.unlock(UnlockRequest::default()).await.unwrap_err(),
    ] {
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::Unimplemented, &*text_for("the lock service"))
        );
    }
    for refused in [
        election.campaign(CampaignRequest::default()).await.unwrap_err(),
        election.observe(LeaderRequest::default()).await.unwrap_err(),
    ] {
        let text = text_for("the election service");
        assert_eq!((refused.code(), refused.message()), (Code::Unimplemented, &*text));
    }

    let address = server.client_addresses()[0];
    for path in ["/v3/kv/range", "/v3/watch", "/v3/auth/authenticate"] {
        let response = post(address, path, "{}").await;
        assert!(response.starts_with("HTTP/1.1 501 "), "{response}");
        assert!(response.contains(&text_for("the JSON gateway")), "{response}");
    }
    assert_eq!(http_get(address, "/no/such/page").await.0, "HTTP/1.1 404 Not Found");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_method_is_unimplemented() {
    let a = TestMember::new("a");
    let server = start_all(&[&a]).await.pop().unwrap();
    let mut client = tonic::client::Grpc::new(a.channel().await);
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<AuthEnableRequest, AuthEnableRequest>::default();
    let path = "/etcdserverpb.Nothing/Nothing".parse().unwrap();
    let request = tonic::Request::new(AuthEnableRequest::default());
    let refused = client.unary(request, path, codec).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    assert_eq!(refused.message(), "unknown method /etcdserverpb.Nothing/Nothing");
    server.stop().await;
}
