use quorate::tls::{CipherSuite, TlsSettings, TlsVersion};

use super::*;
use crate::auth::AuthTokenConfig;

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn run(line: &str, env: &[(&str, &str)]) -> Result<ServerConfig, ServerConfigError> {
    let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    match parse(words(line), env)? {
        Invocation::Run(config) => Ok(*config),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_default_is_a_single_member_cluster() {
    let config = run("", &[]).unwrap();
    assert_eq!(config, ServerConfig::default());
    assert_eq!(config.initial_members().len(), 1);
}

#[test]
fn flags_override_environment_variables() {
    let env = [("ETCD_NAME", "a"), ("ETCD_DATA_DIR", "/d"), ("PATH", "x"), ("ETCD_OTHER", "1")];
    let config = run("--name=b -max-txn-ops 7 --pre-vote=false --auto-promote", &env).unwrap();
    assert_eq!((config.name.as_str(), config.max_txn_ops), ("b", 7));
    assert!(!config.pre_vote && config.auto_promote);
    assert_eq!(config.data_dir, PathBuf::from("/d"));
    let expected = [
        "ETCD_NAME is ignored, as --name is given",
        "unrecognized environment variable ETCD_OTHER",
    ];
    assert_eq!(config.warnings, expected);
}

#[test]
fn the_memory_for_rows_is_a_setting() {
    assert_eq!(run("", &[]).unwrap().row_memory_bytes, 64 << 20);
    assert_eq!(run("--row-memory-bytes 0", &[]).unwrap().row_memory_bytes, 0);
    let by_variable = run("", &[("ETCD_ROW_MEMORY_BYTES", "7")]).unwrap();
    assert_eq!(by_variable.row_memory_bytes, 7);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "row-memory-bytes: 8\n").unwrap();
    let by_file = run(&format!("--config-file={}", file.path().display()), &[]).unwrap();
    assert_eq!(by_file.row_memory_bytes, 8);
    assert!(run("--row-memory-bytes=much", &[]).is_err());
}

#[test]
fn a_file_makes_flags_and_variables_ignored() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "name: f\nelection-timeout: 500\nauto-compaction-retention: \"2\"\ntable: redb\n\
                log-outputs: [stderr, /l]\ndebug: false\nproxy: 'off'\ndiscovery:\n\
                client-transport-security:\n  cert-file:\n  auto-tls: false\n";
    std::fs::write(file.path(), text).unwrap();
    let line = format!("--name=b --config-file={}", file.path().display());
    let config = run(&line, &[("ETCD_MAX_TXN_OPS", "9")]).unwrap();
    assert_eq!((config.name.as_str(), config.max_txn_ops), ("f", 128));
    assert_eq!(config.election_timeout, Duration::from_millis(500));
    assert_eq!(config.table, TableKind::Redb);
    let period = Duration::from_secs(2 * 3600);
    assert_eq!(config.auto_compaction, Some(AutoCompaction::Periodic(period)));
    assert_eq!(config.log_outputs, [LogOutput::Stderr, LogOutput::File("/l".into())]);
    let expected = ["debug has no effect", "proxy has no effect"];
    assert_eq!(config.warnings[..2], expected);
    let ignored = "a configuration file was given: flags and environment variables are ignored";
    assert_eq!(config.warnings[2..], [ignored]);
}

#[test]
fn several_addresses_of_one_name_are_one_member() {
    let line = "--initial-cluster=a=http://h:1,b=http://h:2,a=http://h:3";
    let members = run(line, &[]).unwrap().initial_members();
    let counts: Vec<(&str, usize)> = members.iter().map(|(n, u)| (n.as_str(), u.len())).collect();
    assert_eq!(counts, [("a", 2), ("b", 1)]);
}

#[test]
fn errors_say_what_was_expected() {
    for (line, text) in [
        ("--nam=x", "unknown flag --nam, the nearest is --name"),
        ("x", "\"x\" does not belong to a flag"),
        ("--name", "--name needs a value"),
        ("--max-txn-ops=x", "--max-txn-ops is \"x\", expected a number"),
        ("--log-format=xml", "--log-format is \"xml\", expected json or console"),
        (
            "--log-outputs=stderr,",
            "--log-outputs is \"\", expected stderr, stdout, default, or paths of files",
        ),
        ("--table=paper", "--table is \"paper\", expected memory or redb"),
        ("--pre-vote=maybe", "--pre-vote is \"maybe\", expected true or false"),
        ("--initial-cluster=a", "--initial-cluster is \"a\", expected name=http://host:port"),
        (
            "--election-timeout=100",
            "--election-timeout is \"100\", expected at least 5 times the heartbeat interval",
        ),
        (
            "--config-file=/nowhere/at/all",
            "/nowhere/at/all: No such file or directory (os error 2)",
        ),
        (
            "--auto-compaction-mode=x --auto-compaction-retention=1",
            "--auto-compaction-mode is \"x\", expected periodic or revision",
        ),
        (
            "--auto-compaction-mode=revision --auto-compaction-retention=1h",
            "--auto-compaction-retention is \"1h\", expected the number of revisions to keep",
        ),
        (
            "--auto-compaction-retention=often",
            "--auto-compaction-retention is \"often\", expected hours, or a duration such as 30m",
        ),
        (
            "--auto-compaction-retention=-1",
            "--auto-compaction-retention is \"-1\", expected hours, or a duration such as 30m",
        ),
        ("--drain-timeout=5", "--drain-timeout is \"5\", expected a duration such as 10m or 1h30m"),
        ("--election-timeout=50001", "--election-timeout is \"50001\", expected at most 50000"),
        ("--heartbeat-interval=0", "--heartbeat-interval is \"0\", expected a duration above 0"),
        ("--heartbeat-interval=-1", "--heartbeat-interval is \"-1\", expected a number"),
        (
            "--initial-cluster-state=old",
            "--initial-cluster-state is \"old\", expected new or existing",
        ),
        ("--log-level=loud", "--log-level is \"loud\", expected debug, info, warn, error"),
        ("--metrics=all", "--metrics is \"all\", expected basic or extensive"),
        ("--auto-tls=maybe", "--auto-tls is \"maybe\", expected true or false"),
        (
            "--listen-client-urls=http://0.0.0.0:1",
            "--advertise-client-urls is \"http://0.0.0.0:1\", expected an address that \
             clients can connect to",
        ),
        (
            "--listen-peer-urls=host:1",
            "--listen-peer-urls is \"host:1\", expected http://host:port or https://host:port",
        ),
    ] {
        assert_eq!(run(line, &[]).unwrap_err().to_string(), text);
    }
}

#[test]
fn contradictions_of_tls_are_refused() {
    for (line, text) in [
        (
            "--listen-client-urls=https://a:1",
            "--listen-client-urls is \"https://a:1\", expected --cert-file and its key with an \
             https URL, or --auto-tls",
        ),
        (
            "--listen-peer-urls=https://a:1 --cert-file=c --key-file=k",
            "--listen-peer-urls is \"https://a:1\", expected --peer-cert-file and its key with an \
             https URL, or --peer-auto-tls",
        ),
        ("--cert-file=c", "--key-file is \"\", expected a file, since --cert-file is given"),
        (
            "--peer-client-key-file=k",
            "--peer-client-cert-file is \"\", expected a file, since --peer-client-key-file is given",
        ),
        (
            "--peer-client-cert-auth",
            "--peer-client-cert-auth is \"true\", expected --peer-trusted-ca-file with it, to \
             verify certificates",
        ),
        (
            "--client-crl-file=x",
            "--client-crl-file is \"x\", expected --trusted-ca-file with it, to verify certificates",
        ),
        (
            "--peer-trusted-ca-file=c --peer-cert-allowed-cn=a --peer-cert-allowed-hostname=b",
            "--peer-cert-allowed-hostname is \"b\", expected only one of it and \
             --peer-cert-allowed-cn",
        ),
        ("--tls-min-version=TLS1.1", "--tls-min-version is \"TLS1.1\", expected TLS1.2 or TLS1.3"),
        (
            "--tls-min-version=TLS1.3 --tls-max-version=TLS1.2",
            "--tls-min-version is \"TLS1.3\", expected at most --tls-max-version",
        ),
        (
            "--tls-min-version=TLS1.3 --cipher-suites=TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            "--tls-min-version is \"TLS1.3\", expected TLS1.2, since --cipher-suites cannot be used \
             with TLS1.3 alone",
        ),
        (
            "--self-signed-cert-validity=x",
            "--self-signed-cert-validity is \"x\", expected a number",
        ),
    ] {
        assert_eq!(run(line, &[]).unwrap_err().to_string(), text);
    }
}

#[test]
fn flags_without_effect_cause_a_warning() {
    let config = run("--logger zap --enable-pprof --experimental-x y --name a", &[]).unwrap();
    let names = ["logger", "enable-pprof", "experimental-x"];
    assert_eq!(config.warnings, names.map(|name| format!("{name} has no effect")));
}

/// As flags, as variables and in the file.
#[test]
fn names_of_3_5_work_as_the_present_ones() {
    let line = "--experimental-max-learners 3 --experimental-watch-progress-notify-interval=5m \
        --experimental-initial-corrupt-check --experimental-corrupt-check-time 6h \
        --experimental-compact-hash-check-enabled --experimental-compact-hash-check-time=2m";
    let variables = [
        ("ETCD_EXPERIMENTAL_MAX_LEARNERS", "3"),
        ("ETCD_EXPERIMENTAL_WATCH_PROGRESS_NOTIFY_INTERVAL", "5m"),
        ("ETCD_EXPERIMENTAL_CORRUPT_CHECK_TIME", "6h"),
        ("ETCD_EXPERIMENTAL_COMPACT_HASH_CHECK_TIME", "2m"),
        ("ETCD_FEATURE_GATES", "InitialCorruptCheck=true,CompactHashCheck=true,AllAlpha=false"),
    ];
    let yaml = "experimental-max-learners: 3\n\
        experimental-watch-progress-notify-interval: 5m\n\
        experimental-initial-corrupt-check: true\n\
        experimental-corrupt-check-time: 6h\n\
        experimental-compact-hash-check-enabled: true\n\
        experimental-compact-hash-check-time: 2m\n";
    let given = [run(line, &[]), run("", &variables), file(yaml)].map(Result::unwrap);
    for config in given {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let expected = CorruptionChecks {
            initial: true,
            interval: minutes(360),
            compact_hash: true,
            compact_hash_interval: minutes(2),
        };
        assert_eq!(config.corruption_checks, expected);
        let interval = config.watch_progress_notify_interval;
        assert_eq!((config.max_learners, interval, config.warnings), (3, minutes(5), vec![]));
    }
    for wrong in ["--feature-gates X=true", "--feature-gates AllAlpha=yes", "--etcd-release 3.4"] {
        assert!(run(wrong, &[]).is_err(), "{wrong}");
    }
}

fn file(text: &str) -> Result<ServerConfig, ServerConfigError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    run(&format!("--config-file={}", file.path().display()), &[])
}

#[test]
fn flags_for_protection_are_refused() {
    for (line, feature) in [
        ("--discovery=https://discovery/1", UnsupportedFeature::Discovery),
        ("--discovery-srv=example.com", UnsupportedFeature::Discovery),
        ("--discovery-endpoints=h:1", UnsupportedFeature::Discovery),
    ] {
        match run(line, &[]) {
            Err(ServerConfigError::Unsupported { feature: found, .. }) => {
                assert_eq!(found, feature)
            }
            other => panic!("{line}: {other:?}"),
        }
    }
}

/// The settings for clients and for peers that are expected of the three inputs below.
fn expected_security() -> (TransportSecurity, TransportSecurity) {
    let mut both = TlsSettings::default();
    both.version_min = TlsVersion::Tls12;
    both.version_max = Some(TlsVersion::Tls12);
    let suites = ["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"];
    both.cipher_suites = suites.map(|name| CipherSuite::from_name(name).unwrap()).into();
    both.client_cert_auth = true;
    let mut client = both.clone();
    client.certificate = Some("c.pem".into());
    client.key = Some("c.key".into());
    client.trusted_ca = Some("ca.pem".into());
    client.revocation_list = Some("crl.pem".into());
    client.allowed_host_names = vec!["h".into()];
    let mut peer = both;
    peer.certificate = Some("p.pem".into());
    peer.key = Some("p.key".into());
    peer.dial_certificate = Some("d.pem".into());
    peer.dial_key = Some("d.key".into());
    peer.trusted_ca = Some("pca.pem".into());
    peer.revocation_list = Some("pcrl.pem".into());
    peer.allowed_common_names = vec!["a".into(), "b".into()];
    let security = |settings| TransportSecurity { settings, auto_tls: false };
    (security(client), security(peer))
}

const TLS_FLAGS: &[(&str, &str)] = &[
    ("cert-file", "c.pem"),
    ("key-file", "c.key"),
    ("trusted-ca-file", "ca.pem"),
    ("client-cert-auth", "true"),
    ("client-crl-file", "crl.pem"),
    ("client-cert-allowed-hostname", "h"),
    ("peer-cert-file", "p.pem"),
    ("peer-key-file", "p.key"),
    ("peer-client-cert-file", "d.pem"),
    ("peer-client-key-file", "d.key"),
    ("peer-trusted-ca-file", "pca.pem"),
    ("peer-client-cert-auth", "true"),
    ("peer-crl-file", "pcrl.pem"),
    ("peer-cert-allowed-cn", "a,b"),
    ("tls-min-version", "TLS1.2"),
    ("tls-max-version", "TLS1.2"),
    (
        "cipher-suites",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    ),
    ("listen-client-urls", "https://h:1"),
    ("listen-peer-urls", "https://h:2"),
];

#[test]
fn flags_variables_and_files_configure_tls() {
    let flags = TLS_FLAGS.iter().map(|(name, value)| format!("--{name}={value}"));
    let by_flags = run(&flags.collect::<Vec<_>>().join(" "), &[]).unwrap();
    let variable = |name: &str| format!("ETCD_{}", name.replace('-', "_").to_uppercase());
    let env: Vec<(String, &str)> =
        TLS_FLAGS.iter().map(|(n, value)| (variable(n), *value)).collect();
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let by_variables = run("", &env).unwrap();
    let by_file = file(
        "listen-client-urls: https://h:1\nlisten-peer-urls: https://h:2\n\
         tls-min-version: TLS1.2\ntls-max-version: TLS1.2\n\
         cipher-suites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, \
         TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]\n\
         client-transport-security:\n  cert-file: c.pem\n  key-file: c.key\n  \
         client-cert-auth: true\n  trusted-ca-file: ca.pem\n  client-crl-file: crl.pem\n  \
         allowed-hostname: [h]\n\
         peer-transport-security:\n  cert-file: p.pem\n  key-file: p.key\n  \
         client-cert-file: d.pem\n  client-key-file: d.key\n  client-cert-auth: true\n  \
         trusted-ca-file: pca.pem\n  crl-file: pcrl.pem\n  allowed-cn: [a, b]\n",
    )
    .unwrap();
    let (client, peer) = expected_security();
    for config in [by_flags, by_variables, by_file] {
        assert_eq!(config.client_security, client);
        assert_eq!(config.peer_security, peer);
        assert_eq!(config.warnings, [""; 0]);
    }
}

#[test]
fn certificates_can_be_made_automatically() {
    let line = "--auto-tls --listen-client-urls=https://localhost:1 --peer-auto-tls \
                --listen-peer-urls=https://localhost:2 --self-signed-cert-validity=3";
    let config = run(line, &[]).unwrap();
    assert!(config.client_security.auto_tls && config.peer_security.auto_tls);
    assert_eq!(config.self_signed_cert_validity, 3);
    let blocks = "listen-client-urls: https://localhost:1\n\
                  client-transport-security:\n  auto-tls: true";
    assert!(file(blocks).unwrap().client_security.auto_tls);
}

#[test]
fn unknown_cipher_suites_are_refused() {
    for name in ["TLS_RSA_WITH_AES_128_CBC_SHA", "x"] {
        let error = run(&format!("--cipher-suites={name}"), &[]).unwrap_err().to_string();
        let expected = format!("--cipher-suites is \"{name}\", expected some of TLS_AES_128_GCM");
        assert!(error.starts_with(&expected), "{error}");
    }
}

#[test]
fn listeners_without_tls_are_reported() {
    let line = "--listen-client-urls=http://0.0.0.0:1,http://localhost:2,https://0.0.0.0:3 \
                --advertise-client-urls=https://h:3 --cert-file=c --key-file=k \
                --listen-metrics-urls=http://10.0.0.1:4";
    let config = run(line, &[]).unwrap();
    let url = |text| Url::parse(text).unwrap();
    let expected = [("client", url("http://0.0.0.0:1")), ("metrics", url("http://10.0.0.1:4"))];
    assert_eq!(config.plaintext_listeners(), expected);
    let unused = "the scheme of client URL http://0.0.0.0:1 is HTTP: its connections do not use \
                  the certificate";
    assert_eq!(config.warnings[0], unused);
    assert_eq!(run("", &[]).unwrap().plaintext_listeners(), []);
    // TLS alone says nothing of who the clients are.
    assert_eq!(config.unverified_listeners(), [("client", url("https://0.0.0.0:3"))]);
    let verified = format!("{line} --trusted-ca-file=ca --client-cert-auth");
    assert_eq!(run(&verified, &[]).unwrap().unverified_listeners(), []);
    let peers = "--listen-peer-urls=https://10.0.0.1:1,https://127.0.0.1:2 --peer-auto-tls \
                 --initial-advertise-peer-urls=https://h:1 --initial-cluster=default=https://h:1";
    let expected = [("peer", url("https://10.0.0.1:1"))];
    assert_eq!(run(peers, &[]).unwrap().unverified_listeners(), expected);
}

#[test]
fn the_rule_that_binds_members_to_certificates_can_be_turned_off() {
    let line = "--peer-trusted-ca-file=ca --peer-cert-allowed-cn=a,b";
    assert!(run(line, &[]).unwrap().peer_security.settings.binds_members());
    let off = format!("{line} --peer-skip-client-san-verification");
    assert!(!run(&off, &[]).unwrap().peer_security.settings.binds_members());
    let without_names = run("--peer-trusted-ca-file=ca", &[]).unwrap();
    assert!(!without_names.peer_security.settings.binds_members());
}

#[test]
fn flags_that_turn_protection_off_are_accepted() {
    let line = "--auto-tls=false --client-cert-auth=false --peer-auto-tls=0 --cert-file= \
                --trusted-ca-file= --host-whitelist=*";
    assert_eq!(run(line, &[("ETCD_KEY_FILE", "")]).unwrap().warnings, [""; 0]);
    let blocks = "client-transport-security:\n  cert-file: ''\n  auto-tls: false\n\
                  peer-transport-security:\n  trusted-ca-file:\n  client-cert-auth: false";
    assert_eq!(file(blocks).unwrap().warnings, [""; 0]);
    assert_eq!(file("peer-transport-security:").unwrap().warnings, [""; 0]);
    // As in etcd, only the file counts.
    let empty = tempfile::NamedTempFile::new().unwrap();
    let line = format!("--auth-token=jwt --config-file={}", empty.path().display());
    assert_eq!(run(&line, &[]).unwrap().warnings.len(), 1);
}

#[test]
fn malformed_files_are_refused_with_the_reason() {
    for (text, expected) in [
        ("nam: a", "unknown flag --nam, the nearest is --name"),
        ("- a", "not a mapping from names to values"),
        ("1: a", "a name is not a string"),
        ("name: [a]", "--name is \"a list or block\", expected a plain value"),
        ("max-txn-ops: many", "--max-txn-ops is \"many\", expected a number"),
        ("client-transport-security: x", "expected a block of names and values"),
        ("client-transport-security:\n  cert: x", "unknown flag --cert, the nearest is --cors"),
        ("a: [", "while parsing"),
    ] {
        let error = file(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    // A variable may name the file, and durations in it may be numbers.
    let named = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(named.path(), "watch-progress-notify-interval: 5000000000").unwrap();
    let variable = [("ETCD_CONFIG_FILE", named.path().to_str().unwrap())];
    let config = run("", &variable).unwrap();
    assert_eq!(config.watch_progress_notify_interval, Duration::from_secs(5));
    assert!(config.warnings.is_empty());
}

#[test]
fn retention_is_parsed_as_in_etcd() {
    let minutes = |minutes: u64| Some(AutoCompaction::Periodic(Duration::from_secs(minutes * 60)));
    for (mode, text, expected) in [
        ("", "0", None),
        ("", "0h", None),
        ("", "1", minutes(60)),
        ("periodic", "8", minutes(480)),
        ("periodic", "10m", minutes(10)),
        ("periodic", "1h", minutes(60)),
        ("periodic", "1h30m", minutes(90)),
        ("periodic", "1.5h", minutes(90)),
        ("periodic", "90000ms", Some(AutoCompaction::Periodic(Duration::from_secs(90)))),
        ("revision", "0", None),
        ("revision", "1000", Some(AutoCompaction::Revision(1000))),
    ] {
        let line = format!("--auto-compaction-mode={mode} --auto-compaction-retention={text}");
        assert_eq!(run(&line, &[]).unwrap().auto_compaction, expected, "{mode} {text}");
    }
}

#[test]
fn values_have_etcds_meaning() {
    assert_eq!(run("--quota-backend-bytes=-1", &[]).unwrap().quota_backend_bytes, u64::MAX);
    let config = run("--listen-client-urls=http://h:1,http://i:2", &[]).unwrap();
    assert_eq!(config.advertise_client_urls, config.listen_client_urls);
    let config =
        run("--listen-client-urls=http://0.0.0.0:1 --advertise-client-urls=http://h:1", &[]);
    assert_eq!(config.unwrap().advertise_client_urls, [Url::parse("http://h:1").unwrap()]);
    assert!(run("--metrics=extensive", &[]).unwrap().extensive_metrics);
    assert!(matches!(parse(words("--help"), []), Ok(Invocation::Help)));
    assert!(matches!(parse(words("-h"), []), Ok(Invocation::Help)));
    assert!(matches!(parse(words("--version"), []), Ok(Invocation::Version)));
    assert!(matches!(
        parse(words(""), [("ETCD_VERSION".into(), "3".into())]),
        Ok(Invocation::Run(_))
    ));
}

#[test]
fn authentication_is_configured_as_in_etcd() {
    let line = "--auth-token=jwt,pub-key=a,priv-key=b,sign-method=RS256,ttl=10m --auth-token-ttl=7 \
                --bcrypt-cost=4 --audit-log=audit.json";
    let auth = run(line, &[]).unwrap().auth;
    let AuthTokenConfig::Jwt(jwt) = &auth.token else { panic!("{auth:?}") };
    assert_eq!(jwt.ttl, Duration::from_secs(600));
    assert_eq!((auth.token_ttl, auth.bcrypt_cost), (Duration::from_secs(7), 4));
    assert_eq!(auth.audit_log, Some("audit.json".into()));
    assert_eq!(file("auth-token: simple\nauth-token-ttl: 5").unwrap().auth.token_ttl.as_secs(), 5);
    for wrong in ["--auth-token=jwt", "--auth-token=other", "--bcrypt-cost=3", "--bcrypt-cost=32"] {
        assert!(matches!(run(wrong, &[]), Err(ServerConfigError::BadValue { .. })), "{wrong}");
    }
}
