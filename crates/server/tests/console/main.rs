//! The console over the network: its page, who may read and write with it, the feed of events, and
//! the calls of `quorate.v1` as JSON.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[path = "../gateway/http_client.rs"]
mod http_client;
#[path = "../support/mod.rs"]
mod support;

use std::net::SocketAddr;

use http_client::{HttpResponse, post, send};
use quorate_server::Url;
use serde_json::{Value, json};
use support::{TEST_TIMEOUT, TestMember, start_all, start_one, wait_for};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

async fn get(address: SocketAddr, path: &str, headers: &[&str]) -> HttpResponse {
    let host = format!("Host: {address}");
    let mut all = headers.to_vec();
    if !headers.iter().any(|line| line.starts_with("Host:")) {
        all.push(&host);
    }
    send(address, "GET", path, &all, b"").await
}

/// A request as the console's own page makes it.
async fn from_page(address: SocketAddr, path: &str, body: &str) -> HttpResponse {
    let (host, origin) = (format!("Host: {address}"), format!("Origin: http://{address}"));
    let headers = [&*host, &*origin, "Content-Type: application/json"];
    send(address, "POST", path, &headers, body.as_bytes()).await
}

/// An open feed.
struct Feed {
    lines: tokio::io::Lines<BufReader<TcpStream>>,
    head: String,
}

impl Feed {
    async fn open(address: SocketAddr, headers: &[&str]) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let request = format!("GET /quorate/v1/events HTTP/1.1\r\nHost: {address}\r\n{lines}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        let mut head = String::new();
        loop {
            let line = timeout(TEST_TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
            if line.is_empty() {
                return Self { lines, head };
            }
            head.push_str(&line);
            head.push('\n');
        }
    }

    /// The data of the next event with this name, and its id.
    async fn next(&mut self, name: &str) -> Option<(String, String)> {
        let (mut id, mut event) = (String::new(), String::new());
        loop {
            let line = timeout(TEST_TIMEOUT, self.lines.next_line()).await.unwrap().unwrap()?;
            if let Some(value) = line.strip_prefix("id: ") {
                id = value.to_owned();
            } else if let Some(value) = line.strip_prefix("event: ") {
                event = value.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ")
                && event == name
            {
                return Some((data.to_owned(), id));
            }
        }
    }

    async fn overview(&mut self) -> (Value, u64) {
        let (data, id) = self.next("overview").await.unwrap();
        (serde_json::from_str(&data).unwrap(), id.parse().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_served_with_a_strict_policy() {
    let (_member, server, address) = start_one(|_| {}).await;
    let moved = get(address, "/console", &[]).await;
    assert_eq!((moved.code, moved.header("location")), (308, Some("/console/")));
    for (path, kind) in [
        ("/console/", "text/html; charset=utf-8"),
        ("/console/main.js", "text/javascript; charset=utf-8"),
        ("/console/style.css", "text/css; charset=utf-8"),
        ("/console/icon.svg", "image/svg+xml"),
    ] {
        let page = get(address, path, &[]).await;
        assert_eq!((page.code, page.header("content-type")), (200, Some(kind)), "{path}");
        let policy = page.header("content-security-policy").unwrap();
        for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(page.header("x-frame-options"), Some("DENY"));
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(page.header("set-cookie"), None);
    }
    assert_eq!(get(address, "/console/other.js", &[]).await.code, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_its_own_page_may_write() {
    let (_member, server, address) = start_one(|_| {}).await;
    let put = r#"{"key":"Zm9v","value":"YmFy"}"#;
    let put_with = async |headers: &[&str]| {
        send(address, "POST", "/v3/kv/put", headers, put.as_bytes()).await.code
    };
    let json = "Content-Type: application/json";
    let (host, origin) = (format!("Host: {address}"), format!("Origin: http://{address}"));
    let (host, own) = (host.as_str(), origin.as_str());
    assert_eq!(put_with(&[host, own, json]).await, 200);
    assert_eq!(put_with(&[host, own, "Content-Type: text/plain"]).await, 403);
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost"] {
        let line = format!("Origin: {origin}");
        assert_eq!(put_with(&[host, line.as_str(), json]).await, 403, "{origin}");
    }
    // A name that was made to resolve to this server.
    let rebound = ["Host: evil.example:2379", "Origin: http://evil.example:2379", json];
    assert_eq!(put_with(&rebound).await, 403);
    for path in ["/console/", "/quorate/v1/events"] {
        let page = get(address, path, &["Host: evil.example:2379"]).await;
        assert_eq!(page.code, 421, "{path}: {}", page.body);
        let foreign = get(address, path, &["Sec-Fetch-Site: cross-site"]).await;
        assert_eq!(foreign.code, 403, "{path}");
    }
    let link = ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"];
    assert_eq!(get(address, "/console/", &link).await.code, 200);
    let goal = r#"{"target":{"voters":[{"name":"a"}]}}"#;
    let headers = ["Host: x", "Origin: http://evil.example", json];
    let calls = ["setgoal", "plan", "cancel", "status", "overview"];
    let paths = calls.map(|call| format!("/quorate/v1/membership/{call}"));
    for path in paths.iter().map(String::as_str).chain(["/quorate/v1/leadership/transfer"]) {
        let refused = send(address, "POST", path, &headers, goal.as_bytes()).await;
        assert_eq!(refused.code, 403, "{path}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_calls_are_served_as_json() {
    let (_member, server, address) = start_one(|_| {}).await;
    let status = post(address, "/quorate/v1/membership/status", "{}").await;
    assert_eq!(status.code, 200, "{}", status.body);
    let status = status.json();
    assert_eq!(status["member"]["role"], "ROLE_LEADER");
    assert_eq!(status["tolerance"]["has_quorum"], true);
    let plan = r#"{"target":{"voters":[{"name":"a"},
        {"new":{"name":"b","peer_urls":["http://127.0.0.1:9"]}}]}}"#;
    let plan = post(address, "/quorate/v1/membership/plan", plan).await.json();
    assert!(plan["steps"].as_array().unwrap().len() > 2, "{plan}");
    assert_eq!(plan["newcomers"][0]["name"], "b");
    let overview = async || post(address, "/quorate/v1/membership/overview", "{}").await.json();
    let first = overview().await;
    let report = &first["reports"][0];
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["role"], "ROLE_LEADER");
    wait_for("the timeline has the election and the first membership", async || {
        let overview = overview().await;
        let entries = overview["timeline"].as_array().unwrap();
        let has = |kind: &str| entries.iter().any(|entry| entry["kind"] == kind);
        has("leader") && has("settled")
    })
    .await;
    let nothing = post(address, "/quorate/v1/membership/cancel", "{}").await;
    assert_ne!(nothing.code, 200, "there is no change to cancel");
    assert_eq!(post(address, "/quorate/v1/membership/other", "{}").await.code, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_member_shows_the_whole_cluster() {
    let members = ["a", "b", "c"].map(TestMember::new);
    let all: Vec<&TestMember> = members.iter().collect();
    let servers = start_all(&all).await;
    for server in &servers {
        let address = server.client_addresses()[0];
        wait_for("all members report", async || {
            let reply = post(address, "/quorate/v1/membership/overview", "{}").await;
            let overview = reply.json();
            let reports = overview["reports"].as_array().map_or(0, Vec::len);
            // Only the leader knows the peers: the status is the leader's, whoever is asked.
            let peers = overview["status"]["peers"].as_array().map_or(0, Vec::len);
            let own = overview["header"]["member_id"].as_str();
            let failures = &overview["status"]["tolerance"]["failures"];
            reports == 3
                && peers == 3
                && *failures == json!(1)
                && own == Some(&server.node().id().0.to_string())
        })
        .await;
    }
    for server in servers {
        server.stop_now().await;
    }
}

/// From the page of a follower, and to a member that is neither it nor the leader.
#[tokio::test(flavor = "multi_thread")]
async fn leadership_is_transferred_through_any_member() {
    let members = ["a", "b", "c"].map(TestMember::new);
    let all: Vec<&TestMember> = members.iter().collect();
    let servers = start_all(&all).await;
    let path = "/quorate/v1/leadership/transfer";
    wait_for("a leader of which all members know", async || {
        let leaders: Vec<_> = servers.iter().map(|server| server.node().leader()).collect();
        leaders[0].is_some() && leaders.iter().all(|leader| *leader == leaders[0])
    })
    .await;
    let leader = servers[0].node().leader().unwrap();
    let mut followers = servers.iter().filter(|server| server.node().id() != leader);
    let (through, to) = (followers.next().unwrap(), followers.next().unwrap().node().id());
    let address = through.client_addresses()[0];
    let unknown = from_page(address, path, r#"{"target_id":"9"}"#).await;
    assert_eq!(unknown.code, 400, "{}", unknown.body);
    assert_eq!(unknown.json()["message"], "etcdserver: bad leader transferee");
    let to_none = from_page(address, path, "{}").await;
    assert_eq!(to_none.json()["message"], "etcdserver: bad leader transferee");
    let body = format!(r#"{{"target_id":"{}"}}"#, to.0);
    let moved = from_page(address, path, &body).await;
    assert_eq!(moved.code, 200, "{}", moved.body);
    assert_eq!(moved.json()["header"]["member_id"], through.node().id().0.to_string());
    wait_for("the member leads", async || through.node().leader() == Some(to)).await;
    // It leads already.
    assert_eq!(from_page(address, path, &body).await.code, 200);
    for server in servers {
        server.stop_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_feed_sends_what_happens() {
    let (_member, server, address) = start_one(|_| {}).await;
    let mut feed = Feed::open(address, &[]).await;
    assert!(feed.head.contains("200 OK"), "{}", feed.head);
    assert!(feed.head.to_lowercase().contains("content-type: text/event-stream"), "{}", feed.head);
    let (first, id) = feed.overview().await;
    assert!(id > 0 && !first["timeline"].as_array().unwrap().is_empty(), "{first}");
    let goal = r#"{"target":{"voters":[{"name":"a"}],
        "learners":[{"new":{"name":"b","peer_urls":["http://127.0.0.1:9"]}}]}}"#;
    let set = from_page(address, "/quorate/v1/membership/setgoal", goal).await;
    assert_eq!(set.code, 200, "{}", set.body);
    let mut kinds = Vec::new();
    while !kinds.iter().any(|kind| kind == "goal_ended") {
        let (overview, _) = feed.overview().await;
        for entry in overview["timeline"].as_array().into_iter().flatten() {
            assert!(entry["number"].as_str().unwrap().parse::<u64>().unwrap() > id);
            kinds.push(entry["kind"].as_str().unwrap().to_owned());
        }
    }
    for kind in ["proposed", "committed", "active", "settled"] {
        assert!(kinds.iter().any(|other| other == kind), "{kind} in {kinds:?}");
    }
    // A client that comes back gets only what it lacks.
    let mut again = Feed::open(address, &[&format!("Last-Event-ID: {id}")]).await;
    let (overview, _) = again.overview().await;
    let first = &overview["timeline"][0]["number"];
    assert_eq!(first.as_str().unwrap(), (id + 1).to_string());
    // It ends with the server.
    server.stop().await;
    assert!(feed.next("end").await.is_none_or(|(text, _)| text.contains("stopped")));
}

#[tokio::test(flavor = "multi_thread")]
async fn feeds_are_limited() {
    let (_member, server, address) = start_one(|_| {}).await;
    let mut feeds = Vec::new();
    let refused = loop {
        let feed = Feed::open(address, &[]).await;
        if !feed.head.contains("200 OK") {
            break feed.head;
        }
        feeds.push(feed);
        assert!(feeds.len() <= 64, "there is a limit");
    };
    assert!(refused.contains("503"), "{refused}");
    assert_eq!(feeds.len(), 64);
    drop(feeds);
    wait_for("closed feeds make room", async || {
        Feed::open(address, &[]).await.head.contains("200 OK")
    })
    .await;
    server.stop_now().await;
}

async fn enable_auth(address: SocketAddr) {
    for (path, body) in [
        ("auth/user/add", r#"{"name":"root","password":"r"}"#),
        ("auth/role/add", r#"{"name":"root"}"#),
        ("auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("auth/user/add", r#"{"name":"u","password":"p"}"#),
        ("auth/enable", "{}"),
    ] {
        let done = post(address, &format!("/v3/{path}"), body).await;
        assert_eq!(done.code, 200, "{path}: {}", done.body);
    }
}

async fn token(address: SocketAddr, login: &str) -> String {
    let reply = from_page(address, "/v3/auth/authenticate", login).await;
    assert_eq!(reply.code, 200, "{}", reply.body);
    format!("Authorization: {}", reply.json()["token"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_users_the_feed_needs_one_and_changes_need_root() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("audit.json");
    let (_member, server, address) =
        start_one(|config| config.auth.audit_log = Some(log.clone())).await;
    enable_auth(address).await;
    let refused = get(address, "/quorate/v1/events", &[]).await;
    assert_eq!(refused.code, 400, "{}", refused.body);
    wait_for("the refusal is in the audit log", async || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut of_feed = lines.filter(|line| line["call"] == "/quorate/v1/events");
        of_feed.any(|line| line["result"] == "InvalidArgument")
    })
    .await;
    assert_eq!(refused.json()["message"], "etcdserver: user name is empty");
    let wrong = get(address, "/quorate/v1/events", &["Authorization: x.1"]).await;
    assert_eq!(wrong.code, 401, "{}", wrong.body);
    // The page itself holds no data.
    assert_eq!(get(address, "/console/", &[]).await.code, 200);
    let user = token(address, r#"{"name":"u","password":"p"}"#).await;
    let root = token(address, r#"{"name":"root","password":"r"}"#).await;
    let mut feed = Feed::open(address, &[&user]).await;
    assert_eq!(feed.overview().await.0["auth_enabled"], true);
    let goal = br#"{"target":{"voters":[{"name":"a"}]}}"#;
    let path = "/quorate/v1/membership/setgoal";
    assert_eq!(send(address, "POST", path, &[&user], goal).await.code, 403);
    assert_eq!(send(address, "POST", path, &[], goal).await.code, 400);
    assert_eq!(send(address, "POST", path, &[&root], goal).await.code, 200);
    let (path, own) = ("/quorate/v1/leadership/transfer", server.node().id().0);
    let transfer = format!(r#"{{"target_id":"{own}"}}"#);
    for (header, code) in [(&[user.as_str()][..], 403), (&[], 400), (&[root.as_str()], 200)] {
        let reply = send(address, "POST", path, header, transfer.as_bytes()).await;
        assert_eq!(reply.code, code, "{header:?}: {}", reply.body);
    }
    // A user that is deleted hears no more.
    let delete = br#"{"name":"u"}"#;
    assert_eq!(send(address, "POST", "/v3/auth/user/delete", &[&root], delete).await.code, 200);
    let (reason, _) = feed.next("end").await.unwrap();
    assert!(reason.contains("invalid auth token") || reason.contains("user"), "{reason}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_of_its_own_only_reads_without_users() {
    let url = Url::parse("http://127.0.0.1:0").unwrap();
    let (_member, server, clients) =
        start_one(|config| config.listen_console_urls = vec![url]).await;
    let console = server.console_addresses()[0];
    assert_eq!(get(console, "/console/", &[]).await.code, 200);
    assert_eq!(get(clients, "/console/", &[]).await.code, 404, "not on the client port");
    assert!(Feed::open(console, &[]).await.head.contains("200 OK"));
    assert_eq!(from_page(console, "/v3/kv/range", r#"{"key":"Zm9v"}"#).await.code, 200);
    for (path, body) in [
        ("/v3/kv/put", r#"{"key":"Zm9v"}"#),
        ("/v3/auth/user/add", r#"{"name":"root","password":"r"}"#),
        ("/v3/maintenance/alarm", r#"{"action":"DEACTIVATE"}"#),
        ("/quorate/v1/membership/setgoal", r#"{"target":{"voters":[{"name":"a"}]}}"#),
        ("/quorate/v1/leadership/transfer", r#"{"target_id":"1"}"#),
    ] {
        // Neither its page nor a program.
        assert_eq!(from_page(console, path, body).await.code, 403, "{path}");
        assert_eq!(post(console, path, body).await.code, 403, "{path}");
    }
    let grpc = ["Content-Type: application/grpc"];
    assert_eq!(send(console, "POST", "/etcdserverpb.KV/Put", &grpc, &[0; 5]).await.code, 404);
    enable_auth(clients).await;
    let root = token(console, r#"{"name":"root","password":"r"}"#).await;
    let put = br#"{"key":"Zm9v"}"#;
    assert_eq!(send(console, "POST", "/v3/kv/put", &[&root], put).await.code, 200);
    assert_eq!(send(console, "POST", "/v3/kv/put", &[], put).await.code, 400);
    server.stop().await;
}
