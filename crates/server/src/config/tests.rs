use super::*;

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn run(line: &str, env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    match parse(words(line), env)? {
        Wanted::Run(config) => Ok(*config),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_given_is_a_cluster_of_one() {
    let config = run("", &[]).unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.first_members().len(), 1);
}

#[test]
fn flags_beat_variables() {
    let env = [("ETCD_NAME", "a"), ("ETCD_DATA_DIR", "/d"), ("PATH", "x"), ("ETCD_OTHER", "1")];
    let config = run("--name=b -max-txn-ops 7 --pre-vote=false --auto-promote", &env).unwrap();
    assert_eq!((config.name.as_str(), config.max_txn_ops), ("b", 7));
    assert!(!config.pre_vote && config.auto_promote);
    assert_eq!(config.data_dir, PathBuf::from("/d"));
    assert_eq!(config.warnings, ["unrecognized environment variable ETCD_OTHER"]);
}

#[test]
fn a_file_counts_alone() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "name: f\nelection-timeout: 500\nauto-compaction-retention: \"2\"\ntable: redb\n\
                client-transport-security:\n  cert-file: x\n";
    std::fs::write(file.path(), text).unwrap();
    let line = format!("--name=b --config-file={}", file.path().display());
    let config = run(&line, &[("ETCD_MAX_TXN_OPS", "9")]).unwrap();
    assert_eq!((config.name.as_str(), config.max_txn_ops), ("f", 128));
    assert_eq!(config.election_timeout, Duration::from_millis(500));
    assert_eq!(config.table, TableKind::Redb);
    let period = Duration::from_secs(2 * 3600);
    assert_eq!(config.auto_compaction, Some(AutoCompaction::Periodic(period)));
    assert_eq!(config.warnings.len(), 2);
}

#[test]
fn members_with_several_addresses_are_one() {
    let line = "--initial-cluster=a=http://h:1,b=http://h:2,a=http://h:3";
    let members = run(line, &[]).unwrap().first_members();
    let counts: Vec<(&str, usize)> = members.iter().map(|(n, u)| (n.as_str(), u.len())).collect();
    assert_eq!(counts, [("a", 2), ("b", 1)]);
}

#[test]
fn what_is_wrong_is_said_with_what_is_wanted() {
    for (line, text) in [
        ("--nam=x", "unknown flag --nam, the nearest is --name"),
        ("x", "\"x\" belongs to no flag"),
        ("--name", "--name has no value, want one"),
        ("--max-txn-ops=x", "--max-txn-ops is \"x\", want a number"),
        ("--table=paper", "--table is \"paper\", want memory or redb"),
        ("--pre-vote=maybe", "--pre-vote is \"maybe\", want true or false"),
        (
            "--listen-client-urls=https://a:1",
            "--listen-client-urls is \"https://a:1\", want http://host:port, TLS is not served yet",
        ),
        ("--initial-cluster=a", "--initial-cluster is \"a\", want name=http://host:port"),
        (
            "--election-timeout=100",
            "--election-timeout is \"100\", want at least 5 times the heartbeat interval",
        ),
        (
            "--config-file=/nowhere/at/all",
            "/nowhere/at/all: No such file or directory (os error 2)",
        ),
        (
            "--auto-compaction-mode=x --auto-compaction-retention=1",
            "--auto-compaction-mode is \"x\", want periodic or revision",
        ),
    ] {
        assert_eq!(run(line, &[]).unwrap_err().to_string(), text);
    }
}

#[test]
fn flags_without_effect_are_warned_about() {
    let config = run("--logger zap --auto-tls --experimental-x y --name a", &[]).unwrap();
    let names = ["logger", "auto-tls", "experimental-x"];
    assert_eq!(config.warnings, names.map(|name| format!("{name} has no effect")));
}
