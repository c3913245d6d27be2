//! Tokens, web pages of other origins, and names of hosts.

use std::net::SocketAddr;

use crate::http_client::{HttpResponse, post, send};
use crate::support::http_get;
use crate::support::start_one;

async fn post_with(address: SocketAddr, path: &str, header: &str, body: &str) -> HttpResponse {
    send(address, "POST", path, &[header], body.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_give_the_rights_of_their_user() {
    let (_member, server, address) = start_one(|_| {}).await;
    for (path, body) in [
        ("auth/user/add", r#"{"name":"root","password":"r"}"#),
        ("auth/role/add", r#"{"name":"root"}"#),
        ("auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("auth/user/add", r#"{"name":"u","password":"p"}"#),
        ("auth/role/add", r#"{"name":"reader"}"#),
        ("auth/role/grant", r#"{"name":"reader","perm":{"permType":"READ","key":"Zm9v"}}"#),
        ("auth/user/grant", r#"{"user":"u","role":"reader"}"#),
        ("auth/enable", "{}"),
    ] {
        let done = post(address, &format!("/v3/{path}"), body).await;
        assert_eq!(done.code, 200, "{path}: {}", done.body);
    }
    let login = post(address, "/v3/auth/authenticate", r#"{"name":"u","password":"p"}"#).await;
    let token = login.json()["token"].as_str().unwrap().to_owned();
    for header in [format!("Authorization: {token}"), format!("Grpc-Metadata-Token: {token}")] {
        let read = post_with(address, "/v3/kv/range", &header, r#"{"key":"Zm9v"}"#).await;
        assert_eq!(read.code, 200, "{}", read.body);
        let write = post_with(address, "/v3/kv/put", &header, r#"{"key":"Zm9v"}"#).await;
        assert_eq!((write.code, write.json()["code"].as_i64()), (403, Some(7)));
        // Its parts need the same rights as calls of KV.
        let lock = post_with(address, "/v3/lock/lock", &header, r#"{"name":"bG9jaw=="}"#).await;
        assert_eq!(lock.json()["message"], "etcdserver: permission denied", "{}", lock.body);
        let observe = r#"{"name":"bG9jaw=="}"#;
        let observed = post_with(address, "/v3/election/observe", &header, observe).await;
        assert_eq!(observed.code, 403, "{}", observed.body);
    }
    let none = post(address, "/v3/kv/range", r#"{"key":"Zm9v"}"#).await;
    assert_eq!(
        (none.code, none.json()["message"].as_str()),
        (400, Some("etcdserver: user name is empty"))
    );
    let bad = post_with(address, "/v3/kv/range", "Authorization: x.1", r#"{"key":"Zm9v"}"#).await;
    let text = "etcdserver: invalid auth token";
    assert_eq!((bad.code, bad.header("www-authenticate")), (401, Some(text)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_cannot_write() {
    let (_member, server, address) = start_one(|_| {}).await;
    let put = r#"{"key":"Zm9v","value":"YmFy"}"#;
    // Browsers send these without asking first.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let kind = format!("Content-Type: {kind}");
        for origin in ["http://a.example", "null", &format!("http://{address}")] {
            let headers = [&*kind, &format!("Origin: {origin}")];
            let refused = send(address, "POST", "/v3/kv/put", &headers, put.as_bytes()).await;
            assert_eq!((refused.code, refused.json()["code"].as_i64()), (403, Some(7)));
            assert_eq!(refused.header("access-control-allow-origin"), None);
        }
    }
    // For all others they ask, and get no permission.
    let origin = "Origin: http://a.example";
    let asked = send(address, "OPTIONS", "/v3/kv/put", &[origin], b"").await;
    assert_eq!((asked.code, asked.header("access-control-allow-origin")), (200, None));
    let found = post(address, "/v3/kv/range", r#"{"key":"Zm9v"}"#).await;
    assert!(found.json().get("kvs").is_none(), "{}", found.body);
    // Programs send no origin, whatever content type they send.
    let headers = ["Content-Type: application/x-www-form-urlencoded"];
    let written = send(address, "POST", "/v3/kv/put", &headers, put.as_bytes()).await;
    assert_eq!(written.code, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cors_allows_the_origins_that_it_names() {
    let (_member, server, address) =
        start_one(|config| config.cors = vec!["http://a.example".into()]).await;
    for (origin, code) in [("http://a.example", 200), ("http://b.example", 403)] {
        let header = format!("Origin: {origin}");
        let response = post_with(address, "/v3/kv/put", &header, r#"{"key":"Zm9v"}"#).await;
        assert_eq!(response.code, code);
        let expected = (code == 200).then_some(origin);
        assert_eq!(response.header("access-control-allow-origin"), expected);
        let asked = send(address, "OPTIONS", "/v3/kv/put", &[&header], b"").await;
        assert_eq!(asked.header("access-control-allow-origin"), expected);
        let methods = expected.map(|_| "POST, GET, OPTIONS, PUT, DELETE");
        assert_eq!(asked.header("access-control-allow-methods"), methods);
    }
    server.stop().await;
    let (_member, server, address) = start_one(|config| config.cors = vec!["*".into()]).await;
    let any = post_with(address, "/v3/kv/put", "Origin: null", r#"{"key":"Zm9v"}"#).await;
    assert_eq!((any.code, any.header("access-control-allow-origin")), (200, Some("*")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_whitelisted_hosts_are_served() {
    let (member, server, address) =
        start_one(|config| config.host_whitelist = vec!["a.example".into(), "::1".into()]).await;
    for (host, code) in [
        ("a.example", 200),
        ("a.example:2379", 200),
        ("[::1]:2379", 200),
        ("b.example", 421),
        ("a.example.b.example", 421),
    ] {
        let header = format!("Host: {host}");
        let response = post_with(address, "/v3/kv/put", &header, r#"{"key":"Zm9v"}"#).await;
        assert_eq!(response.code, code, "{host}");
        let page = send(address, "GET", "/version", &[&header], b"").await;
        assert_eq!(page.code, code, "{host}");
    }
    // gRPC is not for browsers.
    member.put("k", "v").await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_can_be_turned_off() {
    let (_member, server, address) = start_one(|config| config.enable_grpc_gateway = false).await;
    let response = post(address, "/v3/kv/range", r#"{"key":"Zm9v"}"#).await;
    assert_eq!((response.code, &*response.body), (404, "404 page not found\n"));
    assert_eq!(http_get(address, "/version").await.0, "HTTP/1.1 200 OK");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_variables_of_etcd_are_shown() {
    let (_member, server, address) = start_one(|_| {}).await;
    let page = send(address, "GET", "/debug/vars", &[], b"").await;
    assert_eq!(page.header("content-type"), Some("application/json; charset=utf-8"));
    let variables = page.json();
    let raft = &variables["raft.status"];
    assert_eq!((&raft["raftState"], &raft["lead"]), (&"StateLeader".into(), &raft["id"]));
    let own = &raft["progress"][raft["id"].as_str().unwrap()];
    assert_eq!(own["state"], "StateReplicate");
    assert!(variables["memstats"]["Sys"].as_u64().unwrap() > 1 << 20);
    assert!(variables["file_descriptor_limit"].as_u64().unwrap() > 0);
    assert!(!variables["cmdline"].as_array().unwrap().is_empty());
    server.stop().await;
}
