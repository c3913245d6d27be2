//! The JSON gateway over the network: calls, streams, errors, access, and hostile requests.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod access;
mod http2;
mod http_client;
mod streams;
#[path = "../support/mod.rs"]
mod support;

use http_client::{post, send};
use serde_json::json;
use support::start_one;

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_written_and_read() {
    let (_member, server, address) = start_one(|_| {}).await;
    let put = post(address, "/v3/kv/put", r#"{"key":"Zm9v","value":"YmFy"}"#).await;
    assert_eq!((put.code, put.header("content-type")), (200, Some("application/json")));
    assert_eq!(put.json()["header"]["revision"], "2");
    for path in ["/v3/kv/range", "/v3beta/kv/range"] {
        let found = post(address, path, r#"{"key":"Zm9v"}"#).await;
        let kv = json!({
            "key": "Zm9v", "create_revision": "2", "mod_revision": "2", "version": "1",
            "value": "YmFy",
        });
        assert_eq!((&found.json()["kvs"], &found.json()["count"]), (&json!([kv]), &json!("1")));
    }
    let txn = r#"{"compare":[{"key":"Zm9v","target":"VERSION","version":1}],
        "success":[{"requestDeleteRange":{"key":"Zm9v"}}],"failure":[{"requestRange":{"key":"Zm9v"}}]}"#;
    let done = post(address, "/v3/kv/txn", txn).await.json();
    assert_eq!(done["succeeded"], true);
    assert_eq!(done["responses"][0]["response_delete_range"]["deleted"], "1");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_reaches_its_service() {
    let (_member, server, address) = start_one(|_| {}).await;
    let calls = "kv/range kv/put kv/deleterange kv/txn kv/compaction watch lease/grant \
        lease/revoke kv/lease/revoke lease/keepalive lease/timetolive kv/lease/timetolive \
        lease/leases kv/lease/leases cluster/member/add cluster/member/remove \
        cluster/member/update cluster/member/list cluster/member/promote maintenance/alarm \
        maintenance/status maintenance/defragment maintenance/hash maintenance/hashkv \
        maintenance/snapshot maintenance/transfer-leadership maintenance/downgrade auth/enable \
        auth/disable auth/status auth/authenticate auth/user/add auth/user/get auth/user/list \
        auth/user/delete auth/user/changepw auth/user/grant auth/user/revoke auth/role/add \
        auth/role/get auth/role/list auth/role/delete auth/role/grant auth/role/revoke \
        lock/lock lock/unlock election/campaign election/proclaim election/leader \
        election/observe election/resign";
    for call in calls.split_whitespace() {
        // Streams without a request have nothing to say.
        let timeout = match call {
            "watch" | "election/observe" => "Grpc-Timeout: 200m",
            _ => "Grpc-Timeout: 60S",
        };
        let path = format!("/v3/{call}");
        // The candidates of an election wait for locks of the same name.
        let body = if call == "election/campaign" { r#"{"name":"eA=="}"# } else { "{}" };
        let response = send(address, "POST", &path, &[timeout], body.as_bytes()).await;
        let is_served = !matches!(response.code, 0 | 501) && response.body.starts_with('{');
        assert!(is_served && !response.body.contains("Not Found"), "{call}: {}", response.body);
        let refused = send(address, "GET", &path, &[], b"").await;
        let error = json!({
            "error": "Method Not Allowed", "message": "Method Not Allowed", "code": 12,
        });
        assert_eq!((refused.code, refused.json()), (501, error), "{call}");
    }
    for path in ["/v3/kv/nothing", "/v3/kv/range/", "/v3/"] {
        let response = post(address, path, "{}").await;
        let error = json!({ "error": "Not Found", "message": "Not Found", "code": 5 });
        assert_eq!((response.code, response.json()), (404, error), "{path}");
    }
    // As in etcd since 3.4.
    let old = post(address, "/v3alpha/kv/range", "{}").await;
    assert_eq!((old.code, &*old.body), (404, "404 page not found\n"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_codes_of_etcd() {
    let (_member, server, address) = start_one(|_| {}).await;
    for (path, body, http, code, text) in [
        ("kv/range", "{}", 400, 3, "etcdserver: key is not provided"),
        (
            "kv/range",
            r#"{"key":"Zm9v","revision":"99"}"#,
            400,
            11,
            "etcdserver: mvcc: required \
            revision is a future revision",
        ),
        ("lease/revoke", r#"{"ID":"1"}"#, 404, 5, "etcdserver: requested lease not found"),
        ("auth/user/get", r#"{"name":"x"}"#, 400, 9, "etcdserver: user name not found"),
        ("election/leader", r#"{"name":"eA=="}"#, 500, 2, "election: no leader"),
        ("election/proclaim", "{}", 500, 2, "\"leader\" field must be provided"),
    ] {
        let response = post(address, &format!("/v3/{path}"), body).await;
        let error = json!({ "error": text, "message": text, "code": code });
        assert_eq!((response.code, response.json()), (http, error), "{path}");
    }
    let passed = send(address, "POST", "/v3/kv/range", &["Grpc-Timeout: 1n"], b"{}").await;
    assert_eq!(
        (passed.code, passed.json()["message"].as_str()),
        (504, Some("context deadline exceeded"))
    );
    let bad = send(address, "POST", "/v3/kv/range", &["Grpc-Timeout: 1x"], b"{}").await;
    assert_eq!((bad.code, bad.json()["message"].as_str()), (400, Some("invalid grpc-timeout: 1x")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_requests_are_refused_and_the_server_serves_on() {
    let (_member, server, address) = start_one(|config| config.max_request_bytes = 10_000).await;
    let deep = "{\"success\":[{\"requestTxn\":".repeat(5_000);
    let long = format!("{{\"key\":\"{}\"}}", "A".repeat(2 << 20));
    let wide = format!("{{\"success\":[{}{{}}]}}", "{},".repeat(100_000));
    for (body, code) in [
        (&b"abc"[..], 400),
        (b"{\"key\":\"\xff\"}", 400),
        (b"{\"key\":\"Zm9v\",\"key\":\"Zm9v\"}", 400),
        (b"{\"limit\":1e999}", 400),
        (b"\x00\x00\x00\x00\x00", 400),
        (deep.as_bytes(), 400),
        (wide.as_bytes(), 400),
        (long.as_bytes(), 429),
    ] {
        for path in ["/v3/kv/txn", "/v3/kv/range"] {
            let response = send(address, "POST", path, &[], body).await;
            // A body may be well-formed for one of them.
            let refused = response.code == code || (400..500).contains(&response.code);
            let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            assert!(
                refused || response.code == 200,
                "{shown}: {} {}",
                response.code,
                response.body
            );
            assert_ne!(response.code, 0, "{shown}");
        }
    }
    let too_large = post(address, "/v3/kv/put", &long).await;
    assert_eq!((too_large.code, too_large.json()["code"].as_i64()), (429, Some(8)));
    // A length that is never sent costs nothing once the client is gone.
    let put = post(address, "/v3/kv/put", r#"{"key":"Zm9v"}"#).await;
    assert_eq!(put.code, 200, "{}", put.body);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_response_is_sent_in_pieces_and_frees_its_memory() {
    let (member, server, address) = start_one(|_| {}).await;
    let value = "v".repeat(600 << 10);
    for number in 0..8 {
        member.put(&format!("key {number}"), &value).await.unwrap();
    }
    let found = post(address, "/v3/kv/range", r#"{"key":"aw==","range_end":"bA=="}"#).await;
    assert_eq!(found.header("transfer-encoding"), Some("chunked"));
    let json = found.json();
    assert_eq!(json["count"], "8");
    let values = json["kvs"].as_array().unwrap().iter();
    assert!(values.map(|kv| kv["value"].as_str().unwrap().len()).all(|length| length == 800 << 10));
    support::wait_for("no memory is used", async || {
        let page = support::http_get(address, "/metrics").await.1;
        page.lines().any(|line| line == "quorate_client_response_bytes 0")
    })
    .await;
    server.stop().await;
}
