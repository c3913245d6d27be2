//! The same over HTTP/2.

use bytes::Bytes;
use http::{Method, Request};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::support::start_one;

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_streams_work_over_http2() {
    let (member, server, address) = start_one(|_| {}).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let mut send = |path: &str, body: &'static str| {
        let uri = format!("http://{address}{path}");
        let request = Request::builder().method(Method::POST).uri(uri).body(()).unwrap();
        let (response, mut sender) = client.send_request(request, false).unwrap();
        sender.send_data(Bytes::from_static(body.as_bytes()), true).unwrap();
        response
    };
    let put = send("/v3/kv/put", r#"{"key":"Zm9v","value":"YmFy"}"#).await.unwrap();
    assert_eq!(put.status(), 200);
    let watch = send("/v3/watch", r#"{"create_request":{"key":"Zm9v"}}"#).await.unwrap();
    assert_eq!(watch.status(), 200);
    let mut lines = watch.into_body();
    let first: Value = serde_json::from_slice(&lines.data().await.unwrap().unwrap()).unwrap();
    assert_eq!(first["result"]["created"], true);
    member.put("foo", "2").await.unwrap();
    let event: Value = serde_json::from_slice(&lines.data().await.unwrap().unwrap()).unwrap();
    assert_eq!(event["result"]["events"][0]["kv"]["value"], "Mg==");
    server.stop().await;
}
