//! Users and roles survive restarts, and passwords and tokens are written nowhere.

use std::path::Path;

use quorate_proto::etcdserverpb::{AuthUserChangePasswordRequest, MoveLeaderRequest};
use quorate_server::RunningServer;

use crate::client::{UserClient, denied, error, password, set_up};
use crate::support::{TestMember, wait_for};
use crate::{config, put, range};

fn files(directory: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn users_survive_a_restart_and_no_secret_is_written() {
    let a = TestMember::new("a");
    let mut config = config(&a, &[&a]);
    // A snapshot is taken on the way.
    config.snapshot_count = Some(20);
    let audit = a.directory().join("audit.json");
    config.auth.audit_log = Some(audit.clone());
    let server = RunningServer::start(config.clone()).await.unwrap();
    let root = set_up(&a).await;
    let alice = UserClient::login(&a, "alice").await;
    for _ in 0..50 {
        alice.kv().put(put("w1")).await.unwrap();
    }
    assert_eq!(error(alice.kv().put(put("secret")).await), denied());
    assert!(alice.authenticate("alice", "clear-password-that-is-wrong").await.is_err());
    let change = AuthUserChangePasswordRequest {
        name: "alice".into(),
        password: "clear-password-that-is-new".into(),
        ..Default::default()
    };
    root.auth().user_change_password(change).await.unwrap();
    let _ = root.maintenance().move_leader(MoveLeaderRequest::default()).await;
    server.stop().await;

    let server = RunningServer::start(config).await.unwrap();
    server.wait_ready().await;
    assert!(alice.at(&a).await.kv().put(put("w1")).await.is_err());
    let alice = UserClient::anonymous(&a).await;
    let token = alice.authenticate("alice", "clear-password-that-is-new").await.unwrap();
    let alice = alice.with_token(&token);
    alice.kv().put(put("w1")).await.unwrap();
    assert_eq!(error(alice.kv().range(range("w", "x")).await), denied());
    wait_for("the audit log is written", async || {
        std::fs::read_to_string(&audit).is_ok_and(|text| text.lines().count() > 60)
    })
    .await;
    server.stop().await;

    let mut all = Vec::new();
    files(a.directory(), &mut all);
    assert!(all.len() >= 3, "{all:?}");
    let mut hashes = 0;
    for path in &all {
        let bytes = std::fs::read(path).unwrap();
        for secret in ["clear-password", &token, &password("root")] {
            assert!(!contains(&bytes, secret), "{secret} in {}", path.display());
        }
        hashes += usize::from(contains(&bytes, "$2b$"));
    }
    assert!(hashes > 0, "the search would find something");

    let text = std::fs::read_to_string(&audit).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let find = |call: &str, user: &str, result: &str| {
        lines
            .iter()
            .find(|line| line["call"] == call && line["user"] == user && line["result"] == result)
    };
    let done = find("/etcdserverpb.KV/Put", "alice", "Ok").unwrap();
    assert_eq!(done["ranges"][0]["key"], "w1");
    assert!(done["revision"].as_i64().is_some_and(|revision| revision > 1));
    let denied = find("/etcdserverpb.KV/Put", "alice", "PermissionDenied").unwrap();
    assert_eq!(denied["ranges"][0]["key"], "secret");
    assert!(find("/etcdserverpb.Auth/Authenticate", "alice", "InvalidArgument").is_some());
    assert!(find("/etcdserverpb.Auth/UserChangePassword", "root", "Ok").is_some());
}
