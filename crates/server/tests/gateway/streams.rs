//! Streams: a line for each response.

use serde_json::json;

use crate::http_client::{HttpStream, post, send};
use crate::support::start_one;

#[tokio::test(flavor = "multi_thread")]
async fn watches_are_created_and_cancelled_on_one_stream() {
    let (member, server, address) = start_one(|_| {}).await;
    let mut stream = HttpStream::open(address, "/v3/watch").await;
    stream.send(r#"{"create_request":{"key":"Zm"#).await;
    stream.send(r#"9v"}} {"create_request":{"key":"YmFy","watch_id":"7"}}"#).await;
    assert_eq!(stream.next().await["result"]["created"], true);
    let second = stream.next().await;
    assert_eq!(second["result"]["watch_id"], "7");
    member.put("foo", "1").await.unwrap();
    let event = &stream.next().await["result"]["events"][0];
    let kv = json!({
        "key": "Zm9v", "create_revision": "2", "mod_revision": "2", "version": "1", "value": "MQ==",
    });
    assert_eq!(event, &json!({ "kv": kv }));
    stream.send(r#"{"cancel_request":{"watch_id":"7"}}"#).await;
    let cancelled = stream.next().await;
    assert_eq!(
        (&cancelled["result"]["canceled"], &cancelled["result"]["watch_id"]),
        (&json!(true), &json!("7"))
    );
    // What is no JSON ends the stream with an error.
    stream.send("nonsense").await;
    let error = &stream.next().await["error"];
    assert_eq!((&error["code"], &error["http_status"]), (&json!(3), &json!("Bad Request")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_before_the_first_result_has_its_code() {
    let (_member, server, address) = start_one(|_| {}).await;
    let refused = post(address, "/v3/watch", "nonsense").await;
    assert_eq!((refused.code, &refused.json()["error"]["grpc_code"]), (400, &json!(3)));
    let late = send(address, "POST", "/v3/watch", &["Grpc-Timeout: 100m"], b"{}").await;
    assert_eq!(late.code, 504, "{}", late.body);
    // With a result before, the error is the last line.
    let create = br#"{"create_request":{"key":"Zm9v"}}"#;
    let ended = send(address, "POST", "/v3/watch", &["Grpc-Timeout: 1S"], create).await;
    assert_eq!(ended.code, 200);
    let lines: Vec<&str> = ended.body.lines().collect();
    assert_eq!(lines.len(), 2, "{}", ended.body);
    assert!(lines[0].contains("created") && lines[1].starts_with("{\"error\":"), "{}", ended.body);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_kept_alive_and_backups_are_read() {
    let (_member, server, address) = start_one(|_| {}).await;
    let granted = post(address, "/v3/lease/grant", r#"{"TTL":"100","ID":77}"#).await;
    assert_eq!(granted.json()["ID"], "77");
    let renewed = post(address, "/v3/lease/keepalive", r#"{"ID":"77"}"#).await;
    assert_eq!((renewed.code, &renewed.json()["result"]["TTL"]), (200, &json!("100")));
    let backup = post(address, "/v3/maintenance/snapshot", "").await;
    let lines = backup.body.lines();
    assert!(
        lines.clone().count() > 1 && lines.clone().all(|line| line.starts_with("{\"result\":"))
    );
    // The checksum, with nothing that remains.
    assert!(lines.last().unwrap().starts_with("{\"result\":{\"blob\":"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_when_the_server_stops() {
    let (_member, server, address) = start_one(|_| {}).await;
    let mut stream = HttpStream::open(address, "/v3/watch").await;
    stream.send(r#"{"create_request":{"key":"Zm9v"}}"#).await;
    assert_eq!(stream.next().await["result"]["created"], true);
    let stopping = tokio::spawn(server.stop());
    let error = stream.next().await;
    assert_eq!(error["error"]["message"], "etcdserver: server stopped");
    drop(stream);
    stopping.await.unwrap();
}
