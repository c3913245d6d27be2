//! etcd's flags by name: which there are, which have a meaning here, and which name was
//! probably meant.

/// What is done with a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Has a value.
    Value,
    /// Is on without a value.
    Switch,
    /// etcd has it, and here it has no effect: said so, and ignored.
    WithoutEffect,
    /// The same, and without a value it is on.
    SwitchWithoutEffect,
}

pub(crate) fn kind(name: &str) -> Option<Kind> {
    let listed = |names: &[&str]| names.contains(&name);
    if listed(VALUES) {
        Some(Kind::Value)
    } else if listed(SWITCHES) {
        Some(Kind::Switch)
    } else if listed(VALUES_WITHOUT_EFFECT) {
        Some(Kind::WithoutEffect)
    } else if listed(SWITCHES_WITHOUT_EFFECT) || name.starts_with("experimental-") {
        Some(Kind::SwitchWithoutEffect)
    } else {
        None
    }
}

/// The known name that is least different.
pub(crate) fn nearest(name: &str) -> &'static str {
    let known = [VALUES, SWITCHES, VALUES_WITHOUT_EFFECT, SWITCHES_WITHOUT_EFFECT];
    let known = known.into_iter().flatten().copied();
    known.min_by_key(|known| distance(name, known)).unwrap_or("help")
}

/// Letters to insert, remove or replace.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for place in 0..other.len() {
            let replaced = diagonal + usize::from(letter != other[place]);
            diagonal = row[place + 1];
            row[place + 1] = replaced.min(diagonal + 1).min(row[place] + 1);
        }
    }
    row[other.len()]
}

const VALUES: &[&str] = &[
    "advertise-client-urls",
    "auto-compaction-mode",
    "auto-compaction-retention",
    "config-file",
    "data-dir",
    "election-timeout",
    "heartbeat-interval",
    "initial-advertise-peer-urls",
    "initial-cluster",
    "initial-cluster-state",
    "initial-cluster-token",
    "listen-client-urls",
    "listen-metrics-urls",
    "listen-peer-urls",
    "log-level",
    "max-learners",
    "max-request-bytes",
    "max-txn-ops",
    "name",
    "quota-backend-bytes",
    "snapshot-count",
    "table",
    "wal-dir",
    "watch-progress-notify-interval",
];

const SWITCHES: &[&str] =
    &["auto-promote", "force-new-cluster", "help", "learner-reads", "pre-vote", "version"];

const VALUES_WITHOUT_EFFECT: &[&str] = &[
    "auth-token",
    "auth-token-ttl",
    "backend-batch-interval",
    "backend-batch-limit",
    "backend-bbolt-freelist-type",
    "bcrypt-cost",
    "bootstrap-defrag-threshold-megabytes",
    "cert-file",
    "cipher-suites",
    "client-cert-file",
    "client-crl-file",
    "client-key-file",
    "compact-hash-check-time",
    "compaction-batch-limit",
    "compaction-sleep-interval",
    "corrupt-check-time",
    "cors",
    "discovery",
    "discovery-fallback",
    "discovery-proxy",
    "discovery-srv",
    "discovery-srv-name",
    "discovery-token",
    "discovery-endpoints",
    "distributed-tracing-address",
    "distributed-tracing-instance-id",
    "distributed-tracing-sampling-rate",
    "distributed-tracing-service-name",
    "downgrade-check-time",
    "feature-gates",
    "grpc-keepalive-interval",
    "grpc-keepalive-min-time",
    "grpc-keepalive-timeout",
    "host-whitelist",
    "key-file",
    "listen-client-http-urls",
    "log-format",
    "log-outputs",
    "log-rotation-config-json",
    "logger",
    "max-concurrent-streams",
    "max-snapshots",
    "max-wals",
    "memory-mlock",
    "metrics",
    "peer-cert-allowed-cn",
    "peer-cert-allowed-hostname",
    "peer-cert-file",
    "peer-client-cert-file",
    "peer-client-key-file",
    "peer-crl-file",
    "peer-key-file",
    "peer-trusted-ca-file",
    "raft-read-timeout",
    "raft-write-timeout",
    "self-signed-cert-validity",
    "snapshot-catchup-entries",
    "tls-max-version",
    "tls-min-version",
    "trusted-ca-file",
    "v2-deprecation",
    "warning-apply-duration",
    "warning-unary-request-duration",
];

const SWITCHES_WITHOUT_EFFECT: &[&str] = &[
    "auto-tls",
    "client-cert-auth",
    "compact-hash-check-enabled",
    "enable-distributed-tracing",
    "enable-grpc-gateway",
    "enable-log-rotation",
    "enable-pprof",
    "enable-v2",
    "initial-corrupt-check",
    "initial-election-tick-advance",
    "peer-auto-tls",
    "peer-client-cert-auth",
    "peer-skip-client-san-verification",
    "socket-reuse-address",
    "socket-reuse-port",
    "stop-grpc-service-on-defrag",
    "strict-reconfig-check",
    "unsafe-no-fsync",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_was_meant_is_found() {
        assert_eq!(nearest("listen-client-url"), "listen-client-urls");
        assert_eq!(nearest("intial-cluster"), "initial-cluster");
        assert_eq!(nearest("datadir"), "data-dir");
    }

    #[test]
    fn names_are_known_once() {
        let all = [VALUES, SWITCHES, VALUES_WITHOUT_EFFECT, SWITCHES_WITHOUT_EFFECT].concat();
        for name in &all {
            assert_eq!(all.iter().filter(|other| *other == name).count(), 1, "{name}");
            assert!(kind(name).is_some());
        }
        assert_eq!(kind("experimental-anything"), Some(Kind::SwitchWithoutEffect));
        assert_eq!(kind("anything"), None);
    }
}
