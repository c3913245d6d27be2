//! Unknown methods and pages return errors that each kind of client understands.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use quorate_proto::etcdserverpb::AuthEnableRequest;
use support::{TestMember, http_get, start_all};
use tonic::Code;

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
    let page = http_get(server.client_addresses()[0], "/no/such/page").await;
    assert_eq!(page.0, "HTTP/1.1 404 Not Found");
    server.stop().await;
}
