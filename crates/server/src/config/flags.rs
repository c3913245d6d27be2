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
    /// The same, as a switch.
    SwitchRefused(UnsupportedFeature),
}

/// A feature of etcd that this server lacks, and whose flags are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedFeature {
    /// Certificates and encryption.
    Tls,
    /// Tokens that clients have to send.
    Authentication,
    /// Checks of the host name of requests.
    HostNames,
    /// Lookup of the initial members in another service.
    Discovery,
}

impl fmt::Display for UnsupportedFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls => "TLS is not supported yet: data would be sent unencrypted",
            Self::Authentication => {
                "authentication is not supported yet: no token would be checked"
            }
            Self::HostNames => "host names are not checked yet: all requests would be accepted",
            Self::Discovery => {
                "discovery is not supported yet: this member would start a separate cluster; \
                 name the members with --initial-cluster"
            }
        })
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
    } else if listed(SWITCHES_REFUSED) {
        Some(FlagKind::SwitchRefused(UnsupportedFeature::Tls))
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
    let values = VALUES_REFUSED.iter().map(|(name, _)| *name);
    values.chain(SWITCHES_REFUSED.iter().copied()).collect()
}

fn known() -> impl Iterator<Item = &'static str> {
    let listed =
        [VALUES, SWITCHES, VALUES_WITHOUT_EFFECT, SWITCHES_WITHOUT_EFFECT, SWITCHES_REFUSED];
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
    "auto-compaction-mode",
    "auto-compaction-retention",
    "config-file",
    "data-dir",
    "drain-timeout",
    "election-timeout",
    "heartbeat-interval",
    "initial-advertise-peer-urls",
    "initial-cluster",
    "initial-cluster-state",
    "initial-cluster-token",
    "listen-client-urls",
    "listen-metrics-urls",
    "listen-peer-urls",
    "log-format",
    "log-level",
    "log-outputs",
    "max-concurrent-streams",
    "max-learners",
    "max-request-bytes",
    "max-response-memory",
    "max-peer-buffered-bytes",
    "max-txn-ops",
    "metrics",
    "name",
    "quota-backend-bytes",
    "snapshot-bytes",
    "snapshot-count",
    "table",
    "wal-dir",
    "watch-progress-notify-interval",
];

const SWITCHES: &[&str] = &[
    "allow-moved-data-dir",
    "auto-promote",
    "force-new-cluster",
    "help",
    "learner-reads",
    "pre-vote",
    "version",
];

const VALUES_WITHOUT_EFFECT: &[&str] = &[
    "auth-token-ttl",
    "backend-batch-interval",
    "backend-batch-limit",
    "backend-bbolt-freelist-type",
    "bcrypt-cost",
    "bootstrap-defrag-threshold-megabytes",
    "cipher-suites",
    "compact-hash-check-time",
    "compaction-batch-limit",
    "compaction-sleep-interval",
    "corrupt-check-time",
    "cors",
    "discovery-fallback",
    "discovery-proxy",
    "discovery-srv-name",
    "distributed-tracing-address",
    "distributed-tracing-instance-id",
    "distributed-tracing-sampling-rate",
    "distributed-tracing-service-name",
    "downgrade-check-time",
    "feature-gates",
    "grpc-keepalive-interval",
    "grpc-keepalive-min-time",
    "grpc-keepalive-timeout",
    "listen-client-http-urls",
    "log-rotation-config-json",
    "logger",
    "max-snapshots",
    "max-wals",
    "memory-mlock",
    "raft-read-timeout",
    "raft-write-timeout",
    "self-signed-cert-validity",
    "snapshot-catchup-entries",
    "tls-max-version",
    "tls-min-version",
    "v2-deprecation",
    "warning-apply-duration",
    "warning-unary-request-duration",
];

const SWITCHES_WITHOUT_EFFECT: &[&str] = &[
    "compact-hash-check-enabled",
    "enable-distributed-tracing",
    "enable-grpc-gateway",
    "enable-log-rotation",
    "enable-pprof",
    "enable-v2",
    "initial-corrupt-check",
    "initial-election-tick-advance",
    "peer-skip-client-san-verification",
    "socket-reuse-address",
    "socket-reuse-port",
    "stop-grpc-service-on-defrag",
    "strict-reconfig-check",
    "unsafe-no-fsync",
];

const VALUES_REFUSED: &[(&str, UnsupportedFeature)] = &[
    ("auth-token", UnsupportedFeature::Authentication),
    ("cert-file", UnsupportedFeature::Tls),
    ("client-cert-allowed-hostname", UnsupportedFeature::Tls),
    ("client-cert-file", UnsupportedFeature::Tls),
    ("client-crl-file", UnsupportedFeature::Tls),
    ("client-key-file", UnsupportedFeature::Tls),
    ("discovery", UnsupportedFeature::Discovery),
    ("discovery-endpoints", UnsupportedFeature::Discovery),
    ("discovery-srv", UnsupportedFeature::Discovery),
    ("discovery-token", UnsupportedFeature::Discovery),
    ("host-whitelist", UnsupportedFeature::HostNames),
    ("key-file", UnsupportedFeature::Tls),
    ("peer-cert-allowed-cn", UnsupportedFeature::Tls),
    ("peer-cert-allowed-hostname", UnsupportedFeature::Tls),
    ("peer-cert-file", UnsupportedFeature::Tls),
    ("peer-client-cert-file", UnsupportedFeature::Tls),
    ("peer-client-key-file", UnsupportedFeature::Tls),
    ("peer-crl-file", UnsupportedFeature::Tls),
    ("peer-key-file", UnsupportedFeature::Tls),
    ("peer-trusted-ca-file", UnsupportedFeature::Tls),
    ("trusted-ca-file", UnsupportedFeature::Tls),
];

const SWITCHES_REFUSED: &[&str] =
    &["auto-tls", "client-cert-auth", "peer-auto-tls", "peer-client-cert-auth"];

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
}
