//! The help text of the server: every flag, by group.

use super::flags;

/// A group of flags: its heading, and for each flag its name, its value and what it does.
struct FlagGroup {
    heading: &'static str,
    flags: &'static [(&'static str, &'static str, &'static str)],
}

/// The text of `quorate server --help`.
pub fn help() -> String {
    let mut text = INTRODUCTION.to_owned();
    for group in GROUPS {
        text.push_str(&format!("\n\n{}:\n", group.heading));
        for (name, value, meaning) in group.flags {
            let flag = format!("--{name} {value}");
            text.push_str(&format!("\n  {:<width$}  {meaning}", flag.trim_end(), width = WIDTH));
        }
    }
    let without_effect = flags::without_effect();
    text.push_str("\n\nAccepted without effect, with a warning:\n");
    text.push_str(&wrapped(&without_effect));
    text.push_str("\n\nRefused until they are supported (discovery):\n");
    text.push_str(&wrapped(&flags::refused()));
    text
}

/// Names in lines of at most 98 characters.
fn wrapped(names: &[&str]) -> String {
    let mut text = String::new();
    let mut width = usize::MAX;
    for name in names {
        if width.saturating_add(name.len() + 3) > LINE_WIDTH {
            text.push_str("\n ");
            width = 1;
        }
        text.push_str(&format!(" --{name}"));
        width += name.len() + 3;
    }
    text
}

const WIDTH: usize = 38;
const LINE_WIDTH: usize = 98;

const INTRODUCTION: &str = "\
Run a member of a cluster with etcd's API. Takes etcd's flags, ETCD_* variables (--data-dir is
ETCD_DATA_DIR) and --config-file. A flag takes precedence over its variable; a config file replaces
both. The names of etcd 3.5 with --experimental- before them work too. Defaults are in brackets.";

const GROUPS: &[FlagGroup] = &[
    FlagGroup {
        heading: "Member",
        flags: &[
            ("name", "NAME", "name of this member [default]"),
            ("data-dir", "DIR", "data directory [NAME.etcd]"),
            ("wal-dir", "DIR", "directory of the log [in the data directory]"),
            ("table", "KIND", "where data is kept: memory, or redb for a file [memory]"),
            ("row-memory-bytes", "BYTES", "older rows go to a file; 0 is no file [67108864]"),
            ("snapshot-count", "ENTRIES", "take a snapshot after this many entries [no limit]"),
            ("snapshot-bytes", "BYTES", "and after this many bytes of the log [134217728]"),
            ("heartbeat-interval", "MS", "time between heartbeats of the leader [100]"),
            ("election-timeout", "MS", "time without a leader before an election [1000]"),
            ("pre-vote", "BOOL", "ask for votes before raising the term [true]"),
            ("allow-moved-data-dir", "", "start from a data directory that was copied"),
            ("drain-timeout", "DURATION", "wait for requests in progress at shutdown [5s]"),
            ("config-file", "FILE", "read the settings from this YAML file"),
            ("help", "", "print this text"),
            ("version", "", "print the version"),
        ],
    },
    FlagGroup {
        heading: "Addresses",
        flags: &[
            ("listen-client-urls", "URLS", "listen here for clients [http://localhost:2379]"),
            ("advertise-client-urls", "URLS", "the addresses that clients should use"),
            ("listen-peer-urls", "URLS", "listen here for members [http://localhost:2380]"),
            ("initial-advertise-peer-urls", "URLS", "the addresses that members should use"),
            ("listen-client-http-urls", "URLS", "serve HTTP here, and only gRPC on the URLs above"),
            ("listen-metrics-urls", "URLS", "listen here too for /metrics and /health"),
            ("listen-console-urls", "URLS", "serve /console here, and not to clients"),
            ("enable-grpc-gateway", "BOOL", "serve JSON over HTTP below /v3/ [true]"),
            ("cors", "ORIGINS", "web pages that may use it; * is any [none]"),
            ("host-whitelist", "NAMES", "hosts that HTTP without TLS may name; * is any [*]"),
        ],
    },
    FlagGroup {
        heading: "Cluster",
        flags: &[
            ("initial-cluster", "NAME=URL,...", "first members, or all members when joining"),
            ("initial-cluster-state", "STATE", "new, or existing to join a cluster [new]"),
            ("initial-cluster-token", "TEXT", "distinguishes clusters that share addresses"),
            ("force-new-cluster", "", "make a new cluster from this disk, without other members"),
            ("max-learners", "COUNT", "learners that may have started [1]"),
            ("auto-promote", "", "promote learners as soon as they have caught up"),
            ("learner-reads", "", "learners serve linearizable reads and watches"),
        ],
    },
    FlagGroup {
        heading: "TLS for clients (https in --listen-client-urls)",
        flags: &[
            ("cert-file", "FILE", "certificate of the server (PEM)"),
            ("key-file", "FILE", "its private key (PEM)"),
            ("trusted-ca-file", "FILE", "clients need a certificate of these authorities"),
            ("client-cert-auth", "", "the common name of the certificate is the user"),
            ("client-crl-file", "FILE", "revoked certificates of clients (PEM or DER)"),
            ("client-cert-allowed-cn", "NAMES", "common names that clients may have"),
            ("client-cert-allowed-hostname", "NAMES", "host names that clients may have"),
            ("auto-tls", "", "make a certificate; clients cannot verify it"),
        ],
    },
    FlagGroup {
        heading: "TLS between members (https in --listen-peer-urls)",
        flags: &[
            ("peer-cert-file", "FILE", "certificate of this member (PEM)"),
            ("peer-key-file", "FILE", "its private key (PEM)"),
            ("peer-client-cert-file", "FILE", "another certificate for connections it opens"),
            ("peer-client-key-file", "FILE", "the private key of that certificate"),
            ("peer-trusted-ca-file", "FILE", "members need a certificate of these authorities"),
            ("peer-client-cert-auth", "", "the same, said explicitly"),
            ("peer-crl-file", "FILE", "revoked certificates of members (PEM or DER)"),
            ("peer-cert-allowed-cn", "NAMES", "common names that members may have"),
            ("peer-cert-allowed-hostname", "NAMES", "host names that members may have"),
            (
                "peer-skip-client-san-verification",
                "",
                "any allowed certificate may speak for any member",
            ),
            ("peer-auto-tls", "", "make a certificate; members are not verified"),
        ],
    },
    FlagGroup {
        heading: "TLS for both",
        flags: &[
            ("tls-min-version", "VERSION", "TLS1.2 or TLS1.3 [TLS1.2]"),
            ("tls-max-version", "VERSION", "TLS1.2 or TLS1.3 [TLS1.3]"),
            ("cipher-suites", "NAMES", "suites of TLS 1.2, by Go's names [all secure ones]"),
            ("self-signed-cert-validity", "YEARS", "of certificates made by auto-tls [1]"),
        ],
    },
    FlagGroup {
        heading: "Limits and upkeep",
        flags: &[
            ("quota-backend-bytes", "BYTES", "limit of the data; 0 is 2 GiB, -1 is none [0]"),
            ("max-request-bytes", "BYTES", "largest request [1572864]"),
            ("max-response-memory", "BYTES", "memory of responses in progress [536870912]"),
            ("max-peer-buffered-bytes", "BYTES", "memory of messages from members [268435456]"),
            ("max-txn-ops", "COUNT", "operations in a branch of a transaction [128]"),
            ("max-concurrent-streams", "COUNT", "calls in progress of one connection [16384]"),
            ("auto-compaction-mode", "MODE", "periodic or revision [periodic]"),
            ("auto-compaction-retention", "VALUE", "hours, a duration or revisions; 0 is off [0]"),
            ("watch-progress-notify-interval", "DURATION", "between progress notices [10m]"),
            ("etcd-release", "VERSION", "release of etcd to report: 3.5, 3.6 or 3.7 [3.7]"),
        ],
    },
    FlagGroup {
        heading: "Comparison of the data of members",
        flags: &[
            ("initial-corrupt-check", "", "compare before this member serves"),
            (
                "corrupt-check-time",
                "DURATION",
                "compare the newest data this often; 0 is never [0]",
            ),
            ("compact-hash-check-enabled", "", "compare what each compaction left"),
            ("compact-hash-check-time", "DURATION", "how often that is done [1m]"),
            ("feature-gates", "LIST", "InitialCorruptCheck=true and CompactHashCheck=true"),
        ],
    },
    FlagGroup {
        heading: "Authentication",
        flags: &[
            ("auth-token", "KIND", "simple, or jwt,sign-method=RS256,pub-key=F,priv-key=F"),
            ("auth-token-ttl", "SECONDS", "a simple token ends so long after its use [300]"),
            ("bcrypt-cost", "NUMBER", "work of hashing a password, 4 to 31 [10]"),
            ("audit-log", "FILE", "append who called what to this file [none]"),
        ],
    },
    FlagGroup {
        heading: "Logs and metrics",
        flags: &[
            ("log-level", "LEVEL", "debug, info, warn or error [info]"),
            ("log-format", "FORMAT", "json or console [json]"),
            ("log-outputs", "LIST", "stderr, stdout, default or paths of files [default]"),
            ("metrics", "KIND", "basic, or extensive for the duration of calls [basic]"),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_is_listed_once() {
        let listed: Vec<&str> =
            GROUPS.iter().flat_map(|group| group.flags.iter().map(|(name, ..)| *name)).collect();
        for name in flags::with_effect() {
            assert_eq!(listed.iter().filter(|other| **other == name).count(), 1, "--{name}");
        }
        assert_eq!(listed.len(), flags::with_effect().len());
        let text = help();
        for name in flags::without_effect().iter().chain(&flags::refused()) {
            assert!(text.contains(&format!("--{name}")), "{name}");
        }
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }
}
