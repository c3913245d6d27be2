//! etcd's flags by name: which exist, which have an effect here, and the nearest name to an
//! unknown one.

use std::fmt;

/// How a flag is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagKind {
    /// It has a value.
    Value,
    /// A switch: on if no value is given.
    Switch,
    /// etcd has it, and it has no effect here: ignored with a warning.
    WithoutEffect,
    /// The same, as a switch.
    SwitchWithoutEffect,
    /// It asks for a feature that this server lacks, and starting without it would be harmful:
    /// refused, unless its value turns the feature off.
    Refused(UnsupportedFeature),
}

/// A feature of etcd that this server lacks, and whose flags are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedFeature {
    /// Lookup of the initial members in another service.
    Discovery,
}

impl fmt::Display for UnsupportedFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discovery => {
                "discovery is not supported yet: this member would start a separate cluster; \
                 name the members with --initial-cluster"
            }
        })
    }
}

/// The present name of a flag. etcd 3.5 has many of them with the prefix `experimental-`, which
/// later releases dropped.
pub(crate) fn present_name(name: &str) -> &str {
    let Some(name_without) = name.strip_prefix("experimental-") else { return name };
    match name_without {
        "snapshot-catch-up-entries" => "snapshot-catchup-entries",
        known if kind(known).is_some() => known,
        _ => name,
    }
}

pub(crate) fn kind(name: &str) -> Option<FlagKind> {
    let listed = |names: &[&str]| names.contains(&name);
    if listed(VALUES) {
        Some(FlagKind::Value)
    } else if listed(SWITCHES) {
        Some(FlagKind::Switch)
    } else if listed(VALUES_WITHOUT_EFFECT) {
        Some(FlagKind::WithoutEffect)
    } else if listed(SWITCHES_WITHOUT_EFFECT) || name.starts_with("experimental-") {
        Some(FlagKind::SwitchWithoutEffect)
    } else if let Some((_, missing)) = VALUES_REFUSED.iter().find(|(known, _)| *known == name) {
        Some(FlagKind::Refused(*missing))
    } else {
        None
    }
}

/// The known name with the smallest edit distance.
pub(crate) fn nearest(name: &str) -> &'static str {
    known().min_by_key(|known| distance(name, known)).unwrap_or("help")
}

#[cfg(test)]
pub(super) fn with_effect() -> Vec<&'static str> {
    [VALUES, SWITCHES].concat()
}

pub(super) fn without_effect() -> Vec<&'static str> {
    [VALUES_WITHOUT_EFFECT, SWITCHES_WITHOUT_EFFECT].concat()
}

pub(super) fn refused() -> Vec<&'static str> {
    VALUES_REFUSED.iter().map(|(name, _)| *name).collect()
}

fn known() -> impl Iterator<Item = &'static str> {
    let listed = [VALUES, SWITCHES, VALUES_WITHOUT_EFFECT, SWITCHES_WITHOUT_EFFECT];
    let refused = VALUES_REFUSED.iter().map(|(name, _)| *name);
    listed.into_iter().flatten().copied().chain(refused)
}

/// The number of letters to insert, remove or replace.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (row_number, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = row_number + 1;
        for column in 0..other.len() {
            let replaced = diagonal + usize::from(letter != other[column]);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

const VALUES: &[&str] = &[
    "advertise-client-urls",
    "audit-log",
    "auth-token",
    "auth-token-ttl",
    "auto-compaction-mode",
    "auto-compaction-retention",
    "bcrypt-cost",
    "cert-file",
    "cipher-suites",
    "client-cert-allowed-cn",
    "client-cert-allowed-hostname",
    "client-crl-file",
    "compact-hash-check-time",
    "config-file",
    "corrupt-check-time",
    "cors",
    "data-dir",
    "drain-timeout",
    "election-timeout",
    "etcd-release",
    "feature-gates",
    "heartbeat-interval",
    "host-whitelist",
    "initial-advertise-peer-urls",
    "initial-cluster",
    "initial-cluster-state",
    "initial-cluster-token",
    "key-file",
    "listen-client-http-urls",
    "listen-client-urls",
    "listen-console-urls",
    "listen-metrics-urls",
    "listen-peer-urls",
    "log-format",
    "log-level",
    "log-outputs",
    "max-concurrent-streams",
    "max-learners",
    "max-peer-buffered-bytes",
    "max-request-bytes",
    "max-response-memory",
    "max-txn-ops",
    "metrics",
    "name",
    "peer-cert-allowed-cn",
    "peer-cert-allowed-hostname",
    "peer-cert-file",
    "peer-client-cert-file",
    "peer-client-key-file",
    "peer-crl-file",
    "peer-key-file",
    "peer-trusted-ca-file",
    "quota-backend-bytes",
    "row-memory-bytes",
    "self-signed-cert-validity",
    "snapshot-bytes",
    "snapshot-count",
    "table",
    "tls-max-version",
    "tls-min-version",
    "trusted-ca-file",
    "wal-dir",
    "watch-progress-notify-interval",
];

const SWITCHES: &[&str] = &[
    "allow-moved-data-dir",
    "auto-promote",
    "auto-tls",
    "client-cert-auth",
    "compact-hash-check-enabled",
    "enable-grpc-gateway",
    "force-new-cluster",
    "help",
    "initial-corrupt-check",
    "learner-reads",
    "peer-auto-tls",
    "peer-client-cert-auth",
    "peer-skip-client-san-verification",
    "pre-vote",
    "version",
];

const VALUES_WITHOUT_EFFECT: &[&str] = &[
    "backend-batch-interval",
    "backend-batch-limit",
    "backend-bbolt-freelist-type",
    "bootstrap-defrag-threshold-megabytes",
    "client-cert-file",
    "client-key-file",
    "compaction-batch-limit",
    "compaction-sleep-interval",
    "discovery-fallback",
    "discovery-proxy",
    "discovery-srv-name",
    "distributed-tracing-address",
    "distributed-tracing-instance-id",
    "distributed-tracing-sampling-rate",
    "distributed-tracing-service-name",
    "downgrade-check-time",
    "grpc-keepalive-interval",
    "grpc-keepalive-min-time",
    "grpc-keepalive-timeout",
    "log-rotation-config-json",
    "logger",
    "max-snapshots",
    "max-wals",
    "memory-mlock",
    "raft-read-timeout",
    "raft-write-timeout",
    "snapshot-catchup-entries",
    "v2-deprecation",
    "warning-apply-duration",
    "warning-unary-request-duration",
];

const SWITCHES_WITHOUT_EFFECT: &[&str] = &[
    "enable-distributed-tracing",
    "enable-log-rotation",
    "enable-pprof",
    "enable-v2",
    "initial-election-tick-advance",
    "socket-reuse-address",
    "socket-reuse-port",
    "stop-grpc-service-on-defrag",
    "strict-reconfig-check",
    "unsafe-no-fsync",
];

const VALUES_REFUSED: &[(&str, UnsupportedFeature)] = &[
    ("discovery", UnsupportedFeature::Discovery),
    ("discovery-endpoints", UnsupportedFeature::Discovery),
    ("discovery-srv", UnsupportedFeature::Discovery),
    ("discovery-token", UnsupportedFeature::Discovery),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested() {
        assert_eq!(nearest("listen-client-url"), "listen-client-urls");
        assert_eq!(nearest("intial-cluster"), "initial-cluster");
        assert_eq!(nearest("datadir"), "data-dir");
    }

    #[test]
    fn each_name_is_listed_once() {
        let all: Vec<&str> = known().collect();
        for name in &all {
            assert_eq!(all.iter().filter(|other| *other == name).count(), 1, "{name}");
            assert!(kind(name).is_some());
        }
        assert_eq!(kind("experimental-anything"), Some(FlagKind::SwitchWithoutEffect));
        assert_eq!(kind("anything"), None);
    }

    #[test]
    fn flags_keep_the_names_that_they_had_in_3_5() {
        for (old, new) in [
            ("experimental-max-learners", "max-learners"),
            ("experimental-corrupt-check-time", "corrupt-check-time"),
            ("experimental-snapshot-catch-up-entries", "snapshot-catchup-entries"),
            ("experimental-enable-lease-checkpoint", "experimental-enable-lease-checkpoint"),
            ("max-learners", "max-learners"),
        ] {
            assert_eq!(present_name(old), new);
        }
    }
}
