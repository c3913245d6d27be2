use super::*;

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
fn a_file_makes_flags_and_variables_ignored() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "name: f\nelection-timeout: 500\nauto-compaction-retention: \"2\"\ntable: redb\n\
                log-outputs: [stderr]\ndebug: false\nproxy: 'off'\ndiscovery:\n\
                client-transport-security:\n  cert-file:\n  auto-tls: false\n";
    std::fs::write(file.path(), text).unwrap();
    let line = format!("--name=b --config-file={}", file.path().display());
    let config = run(&line, &[("ETCD_MAX_TXN_OPS", "9")]).unwrap();
    assert_eq!((config.name.as_str(), config.max_txn_ops), ("f", 128));
    assert_eq!(config.election_timeout, Duration::from_millis(500));
    assert_eq!(config.table, TableKind::Redb);
    let period = Duration::from_secs(2 * 3600);
    assert_eq!(config.auto_compaction, Some(AutoCompaction::Periodic(period)));
    let expected = ["log-outputs has no effect", "debug has no effect", "proxy has no effect"];
    assert_eq!(config.warnings[..3], expected);
    let ignored = "a configuration file was given: flags and environment variables are ignored";
    assert_eq!(config.warnings[3..], [ignored]);
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
        ("--table=paper", "--table is \"paper\", expected memory or redb"),
        ("--pre-vote=maybe", "--pre-vote is \"maybe\", expected true or false"),
        (
            "--listen-client-urls=https://a:1",
            "--listen-client-urls is \"https://a:1\", expected http://host:port, TLS is not supported yet",
        ),
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
            "--listen-peer-urls is \"host:1\", expected http://host:port",
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

const NO_TLS: &str = "but TLS is not supported yet: data would be sent unencrypted";

fn file(text: &str) -> Result<ServerConfig, ServerConfigError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    run(&format!("--config-file={}", file.path().display()), &[])
}

#[test]
fn flags_for_protection_are_refused() {
    for name in ["cert-file", "key-file", "trusted-ca-file", "client-crl-file", "client-key-file"] {
        let expected = format!("--{name} is \"x\", {NO_TLS}");
        assert_eq!(run(&format!("--{name}=x"), &[]).unwrap_err().to_string(), expected);
        assert_eq!(run(&format!("--{name} x"), &[]).unwrap_err().to_string(), expected);
        let variable = format!("ETCD_{}", name.replace('-', "_").to_uppercase());
        assert_eq!(run("", &[(&variable, "x")]).unwrap_err().to_string(), expected);
    }
    for name in ["auto-tls", "client-cert-auth", "peer-auto-tls", "peer-client-cert-auth"] {
        let expected = format!("--{name} is \"true\", {NO_TLS}");
        assert_eq!(run(&format!("--{name}"), &[]).unwrap_err().to_string(), expected);
        // A switch does not take the next argument as its value.
        assert_eq!(run(&format!("--{name} --name a"), &[]).unwrap_err().to_string(), expected);
    }
    for (line, feature) in [
        ("--peer-cert-file=x", UnsupportedFeature::Tls),
        ("--peer-key-file=x", UnsupportedFeature::Tls),
        ("--peer-client-cert-file=x", UnsupportedFeature::Tls),
        ("--peer-client-key-file=x", UnsupportedFeature::Tls),
        ("--peer-trusted-ca-file=x", UnsupportedFeature::Tls),
        ("--peer-crl-file=x", UnsupportedFeature::Tls),
        ("--peer-cert-allowed-cn=x", UnsupportedFeature::Tls),
        ("--peer-cert-allowed-hostname=x", UnsupportedFeature::Tls),
        ("--client-cert-file=x", UnsupportedFeature::Tls),
        ("--client-cert-allowed-hostname=x", UnsupportedFeature::Tls),
        ("--auth-token=jwt,pub-key=a,sign-method=RS256", UnsupportedFeature::Authentication),
        ("--host-whitelist=example.com", UnsupportedFeature::HostNames),
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

#[test]
fn a_file_that_asks_for_protection_is_refused() {
    for (text, flag) in [
        ("client-transport-security:\n  cert-file: x", "cert-file"),
        ("client-transport-security:\n  client-cert-auth: true", "client-cert-auth"),
        ("client-transport-security:\n  auto-tls: true", "auto-tls"),
        ("peer-transport-security:\n  key-file: x", "peer-key-file"),
        ("peer-transport-security:\n  client-cert-auth: true", "peer-client-cert-auth"),
        ("peer-transport-security:\n  peer-client-cert-auth: true", "peer-client-cert-auth"),
        ("peer-transport-security:\n  auto-tls: true", "peer-auto-tls"),
        ("peer-transport-security:\n  allowed-cn: [a, b]", "peer-cert-allowed-cn"),
        ("auth-token: jwt", "auth-token"),
        ("cert-file: x", "cert-file"),
    ] {
        match file(text) {
            Err(ServerConfigError::Unsupported { flag: found, .. }) => {
                assert_eq!(found, flag, "{text}")
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn flags_that_turn_protection_off_are_accepted() {
    let line = "--auto-tls=false --client-cert-auth=false --peer-auto-tls=0 --cert-file= \
                --trusted-ca-file= --auth-token=simple --host-whitelist=*";
    assert_eq!(run(line, &[("ETCD_KEY_FILE", "")]).unwrap().warnings, [""; 0]);
    let blocks = "client-transport-security:\n  cert-file: ''\n  auto-tls: false\n\
                  peer-transport-security:\n  trusted-ca-file:\n  client-cert-auth: false";
    assert_eq!(file(blocks).unwrap().warnings, [""; 0]);
    assert_eq!(file("peer-transport-security:").unwrap().warnings, [""; 0]);
    // As in etcd, only the file counts.
    let empty = tempfile::NamedTempFile::new().unwrap();
    let line = format!("--cert-file=x --config-file={}", empty.path().display());
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
