//! etcd's flags by name: which there are, which have a meaning here, and which name was
//! probably meant.

use std::fmt;

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
    /// Asks for what is not done here, and to go on without it would be worse than not to
    /// start: refused, unless its value asks for nothing.
    Refused(UnsupportedFeature),
    /// The same, and without a value it is on.
    SwitchRefused(UnsupportedFeature),
}

/// What a flag asks for and does not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedFeature {
    /// Certificates and encryption.
    Tls,
    /// Tokens that clients have to show.
    Authentication,
    /// Requests are let in only under these names.
    HostNames,
    /// Finding the first members somewhere else.
    Discovery,
}

impl fmt::Display for UnsupportedFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls => "TLS is not served yet: what it should protect would go in clear",
            Self::Authentication => {
                "authentication is not served yet: nobody would be asked for a token"
            }
            Self::HostNames => "names of hosts are not checked yet: all would be let in",
            Self::Discovery => {
                "members are not looked up yet: this one would found a cluster of its own, \
                 name the members with --initial-cluster"
            }
        })
    }
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
    } else if let Some((_, missing)) = VALUES_REFUSED.iter().find(|(known, _)| *known == name) {
        Some(Kind::Refused(*missing))
    } else if listed(SWITCHES_REFUSED) {
        Some(Kind::SwitchRefused(UnsupportedFeature::Tls))
    } else {
        None
    }
}

/// The known name that is least different.
pub(crate) fn nearest(name: &str) -> &'static str {
    known().min_by_key(|known| distance(name, known)).unwrap_or("help")
}

fn known() -> impl Iterator<Item = &'static str> {
    let listed =
        [VALUES, SWITCHES, VALUES_WITHOUT_EFFECT, SWITCHES_WITHOUT_EFFECT, SWITCHES_REFUSED];
    let refused = VALUES_REFUSED.iter().map(|(name, _)| *name);
    listed.into_iter().flatten().copied().chain(refused)
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
    "log-level",
    "max-concurrent-streams",
    "max-learners",
    "max-request-bytes",
    "max-txn-ops",
    "metrics",
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
    "log-format",
    "log-outputs",
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
    fn the_name_that_was_meant_is_found() {
        assert_eq!(nearest("listen-client-url"), "listen-client-urls");
        assert_eq!(nearest("intial-cluster"), "initial-cluster");
        assert_eq!(nearest("datadir"), "data-dir");
    }

    #[test]
    fn names_are_known_once() {
        let all: Vec<&str> = known().collect();
        for name in &all {
            assert_eq!(all.iter().filter(|other| *other == name).count(), 1, "{name}");
            assert!(kind(name).is_some());
        }
        assert_eq!(kind("experimental-anything"), Some(Kind::SwitchWithoutEffect));
        assert_eq!(kind("anything"), None);
    }
}
