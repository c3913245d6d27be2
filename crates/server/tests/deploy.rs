//! The files in `deploy/` fit this server: every metric that a dashboard or an alert uses is on the
//! page, every alert has an entry in the runbook, and every flag and variable exists.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quorate_server::config::{Invocation, ServerConfig, parse};
use serde_json::Value;
use support::{TestMember, http_get, start_all, wait_for};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of our metrics in expressions of Prometheus.
fn metric_names(text: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter: char| !is_name(letter));
    let prefixes = ["etcd_", "quorate_", "grpc_server_", "process_"];
    let is_metric = |word: &&str| prefixes.iter().any(|prefix| word.starts_with(prefix));
    words.filter(is_metric).map(str::to_owned).collect()
}

fn alerts() -> Vec<(String, String)> {
    let text = read("deploy/prometheus/alerts.yaml");
    let value = |line: &str, name: &str| line.trim().strip_prefix(name).map(str::to_owned);
    let names = text.lines().filter_map(|line| value(line, "- alert: "));
    let expressions = text.lines().filter_map(|line| value(line, "expr: "));
    names.zip(expressions).collect()
}

fn dashboard_expressions() -> String {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/quorate.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut texts: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        texts.extend(variable["query"]["query"].as_str());
    }
    texts.join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn dashboards_and_alerts_use_metrics_that_exist() {
    let members = ["a", "b", "c"].map(TestMember::new);
    let all: Vec<&TestMember> = members.iter().collect();
    let servers = start_all(&all).await;
    members[0].put_until_done("k", "v").await;
    let alert_text: String =
        alerts().into_iter().map(|(_, expression)| expression + "\n").collect();
    let mut names = metric_names(&alert_text);
    assert!(names.len() > 15, "{names:?}");
    names.append(&mut metric_names(&dashboard_expressions()));
    // Labels have names like metrics.
    names.retain(|name| !["grpc_method", "grpc_code"].contains(&name.as_str()));
    let leader = async || {
        let leader = servers.iter().find(|server| server.node().is_leader())?;
        Some(http_get(leader.client_addresses()[0], "/metrics").await.1)
    };
    let missing = |page: &str| -> Vec<String> {
        let has = |name: &&String| {
            let lines = page.lines().filter_map(|line| line.strip_prefix(name.as_str()));
            lines.into_iter().any(|rest| rest.starts_with(['{', ' ']))
        };
        names.iter().filter(|name| !has(name)).cloned().collect()
    };
    // Some appear with the first heartbeats.
    let mut left = Vec::new();
    wait_for("all metrics are on the page", async || {
        left = match leader().await {
            Some(page) => missing(&page),
            None => names.iter().cloned().collect(),
        };
        left.is_empty()
    })
    .await;
    for server in servers {
        server.stop_now().await;
    }
}

#[test]
fn every_alert_is_in_the_runbook() {
    let (runbook, alerts) = (read("docs/operating.md"), alerts());
    assert!(alerts.len() > 15, "{}", alerts.len());
    for (name, _) in &alerts {
        assert!(runbook.contains(&format!("| `{name}` |")), "{name} is not in docs/operating.md");
    }
    let listed = runbook.matches("| `Quorate").count();
    assert_eq!(listed, alerts.len(), "the runbook has alerts that do not exist");
}

fn parsed(flags: Vec<String>, variables: Vec<(String, String)>) -> ServerConfig {
    match parse(flags, variables).unwrap() {
        Invocation::Run(config) => *config,
        other => panic!("{other:?}"),
    }
}

/// The flags of the manifest, the unit and the container are accepted, and mean what they say.
#[test]
fn flags_and_variables_exist() {
    let manifest = read("deploy/kubernetes/quorate.yaml");
    let flags = manifest.lines().filter_map(|line| line.trim().strip_prefix("- --"));
    let flags: Vec<String> =
        flags.map(|flag| format!("--{}", flag.replace("$(POD_NAME)", "quorate-1"))).collect();
    assert!(flags.len() > 8, "{flags:?}");
    let config = parsed(flags, Vec::new());
    assert_eq!(config.name, "quorate-1");
    assert_eq!(config.initial_cluster.len(), 3);
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let variables = read("deploy/quorate.env");
    let variables = variables.lines().filter(|line| line.starts_with("ETCD_"));
    let variables = variables.map(|line| line.split_once('=').unwrap());
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let config = parsed(Vec::new(), variables);
    assert_eq!((config.name.as_str(), config.initial_cluster.len()), ("m1", 1));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let unit = read("deploy/quorate.service");
    for line in ["Type=notify", "RestartPreventExitStatus=3", "TimeoutStartSec=infinity"] {
        assert!(unit.lines().any(|other| other == line), "{line}");
    }
}
