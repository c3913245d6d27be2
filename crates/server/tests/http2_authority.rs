//! Clients of etcd 3.4 with a scheme in their endpoints: Debian's `etcdctl`. Skipped with a message
//! where it is not installed.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::process::Command;

use support::{TestMember, start_all};

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_may_have_a_scheme() {
    if Command::new("etcdctl").arg("version").output().is_err() {
        eprintln!("skipped: etcdctl is not installed");
        return;
    }
    let a = TestMember::new("a");
    let server = start_all(&[&a]).await.pop().unwrap();
    let backup = a.directory().join("backup").display().to_string();
    for endpoint in [a.client.to_string(), a.client.address()] {
        for line in [
            "put x 1",
            "get x",
            "endpoint status",
            "endpoint health",
            "endpoint hashkv",
            "defrag",
            "alarm list",
            &format!("snapshot save {backup}"),
        ] {
            let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let endpoint_argument = endpoint.clone();
            let run = tokio::task::spawn_blocking(move || {
                let mut command = Command::new("etcdctl");
                command.env("ETCDCTL_API", "3").args(["--command-timeout=60s", "--endpoints"]);
                command.arg(endpoint_argument).args(arguments).output().unwrap()
            });
            let output = run.await.unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{endpoint} {line}: {stderr}");
        }
    }
    server.stop().await;
}
