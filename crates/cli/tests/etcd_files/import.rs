//! From etcd's files to a cluster.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokio::runtime::Runtime;
use tonic::Code;

use crate::answers::User;
use crate::support::cluster::TestCluster;
use crate::support::messages::READY;
use crate::support::{TestDirectory, TestProcess, run, run_failing, wait_for_text};

/// The directories with files of one etcd each.
pub(crate) fn fixtures() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etcd-files/tests/fixtures");
    let more = std::env::var_os("QUORATE_ETCD_FIXTURES").map(PathBuf::from);
    ["v3.4", "v3.7", "v3.5", "v3.6"].iter().map(|name| own.join(name)).chain(more).collect()
}

pub(crate) fn recorded(directory: &Path, name: &str) -> Value {
    let text = fs::read_to_string(directory.join(name)).unwrap();
    let mut recorded: Value = serde_json::from_str(&text).unwrap();
    // See `User::roles`.
    recorded["roles"].as_object_mut().unwrap().remove("root");
    recorded
}

/// What an etcd with the data directory answered.
pub(crate) fn recorded_of_data(fixture: &Path) -> Value {
    let mut expected = recorded(fixture, "data.json");
    if is_3_4(fixture) {
        // etcd 3.4 loses the deletions of the revision at which it is compacted.
        let newer = recorded(&fixture.with_file_name("v3.7"), "data.json");
        expected["watch"] = newer["watch"].clone();
    }
    expected
}

pub(crate) fn is_3_4(fixture: &Path) -> bool {
    fixture.ends_with("v3.4")
}

/// Creates the data directories of a cluster with a command, and starts it.
fn start(cluster: &TestCluster, arguments: &[&str], data_dir_flag: &str) -> Vec<TestProcess> {
    for server in cluster.iter() {
        let flags = server.member_flags(&cluster.all());
        let flags = flags.iter().map(|flag| match &flag[..] {
            "--data-dir" => data_dir_flag,
            other => other,
        });
        let text = run(&arguments.iter().copied().chain(flags).collect::<Vec<_>>());
        assert!(text.contains("etcd cluster"), "{text}");
    }
    let processes = (0..cluster.len()).map(|number| cluster.spawn(number)).collect();
    cluster.iter().for_each(|server| wait_for_text(&server.log, READY));
    processes
}

/// Compares what a member answers with what etcd answered.
pub(crate) async fn compare(url: &str, expected: &Value) -> User {
    let root = User::login(url, "root", "rootpw").await.unwrap();
    let first = expected["first"].as_i64().unwrap();
    let found = root.answers(first).await;
    for field in ["revision", "ranges", "leases", "users", "roles", "alarms", "watch"] {
        assert_eq!(found[field], expected[field], "{field}");
    }
    let mut compared = 0;
    for (revision, hash) in expected["hashes"].as_object().unwrap() {
        // A hash from before a compaction is known only to members that were running then.
        if hash["compact"] == first {
            assert_eq!(found["hashes"][revision], *hash, "hash of revision {revision}");
            compared += 1;
        }
    }
    assert!(compared > 3, "{compared} hashes were compared");
    root
}

#[test]
fn a_cluster_restored_from_a_snapshot_answers_as_etcd() {
    for (number, fixture) in fixtures().into_iter().enumerate() {
        let directory = TestDirectory::new(&format!("etcd-snapshot-{number}"));
        let cluster = TestCluster::new::<1>(&directory, "m");
        let file = fixture.join("snapshot.db");
        let file = file.to_str().unwrap();
        let _processes = start(&cluster, &["snapshot", "restore", file], "--data-dir");
        let expected = recorded(&fixture, "snapshot.json");
        Runtime::new().unwrap().block_on(async {
            let url = &cluster[0].client_url;
            let root = compare(url, &expected).await;
            let alice = User::login(url, "alice", "alicepw").await.unwrap();
            assert_eq!(alice.range("hist/", "hist0", 0).await.unwrap().kvs.len(), 2);
            let denied = alice.range("many/", "many0", 0).await.err().unwrap();
            assert_eq!(denied.code(), Code::PermissionDenied);
            assert!(User::login(url, "alice", "wrong").await.is_err());
            assert!(User::login(url, "carol", "").await.is_err(), "carol has no password");
            // The alarm stops writes, until it is disarmed; then revisions continue.
            let full = root.put("new", "value").await.err().unwrap();
            assert_eq!(full.code(), Code::ResourceExhausted);
            root.disarm(77).await;
            root.put("new", "value").await.unwrap();
            let revision = root.range("new", "", 0).await.unwrap().revision;
            assert_eq!(revision, expected["revision"].as_i64().unwrap() + 1);
            alice.put("single", "allowed").await.unwrap();
            alice.put("fzzz", "allowed").await.unwrap();
            assert!(alice.put("a", "denied").await.is_err());
        });
    }
}

/// Three members, each made from the same directory: they must have the same data.
#[test]
fn a_cluster_imported_from_a_data_directory_answers_as_etcd() {
    for (number, fixture) in fixtures().into_iter().enumerate() {
        let directory = TestDirectory::new(&format!("etcd-data-{number}"));
        let cluster = TestCluster::new::<3>(&directory, "m");
        let data = fixture.join("data");
        let data = data.to_str().unwrap();
        let _processes = start(&cluster, &["import", "--data-dir", data], "--new-data-dir");
        let expected = recorded_of_data(&fixture);
        Runtime::new().unwrap().block_on(async {
            for server in cluster.iter() {
                compare(&server.client_url, &expected).await;
            }
            let url = &cluster[1].client_url;
            // Users of the log behind the database.
            let bob = User::login(url, "bob", "bobpw").await.unwrap();
            bob.put("wal/bob", "allowed").await.unwrap();
            assert!(bob.put("a", "denied").await.is_err());
            assert!(User::login(url, "alice", "alicepw").await.is_err(), "the password changed");
            let alice = User::login(url, "alice", "newpw").await.unwrap();
            assert!(alice.range("single", "", 0).await.is_err(), "the permission was revoked");
            assert!(User::login(url, "carol", "").await.is_err());
        });
    }
}

#[test]
fn status_has_the_numbers_of_etcdutl() {
    for fixture in fixtures() {
        let file = fixture.join("snapshot.db");
        let arguments = ["snapshot", "status", file.to_str().unwrap(), "-w", "json"];
        let found: Value = serde_json::from_str(&run(&arguments)).unwrap();
        let expected = &recorded(&fixture, "snapshot.json")["status"];
        for field in ["hash", "revision", "totalSize"] {
            assert_eq!(found[field], expected[field], "{field} of {}", fixture.display());
        }
        if is_3_4(&fixture) || fixture.ends_with("v3.5") {
            // They count the rows of all buckets.
            assert_eq!((&found["totalKey"], &found["version"]), (&158.into(), &"".into()));
        } else {
            assert_eq!(found, *expected);
        }
    }
}

#[test]
fn a_bumped_restore_reports_old_revisions_as_compacted() {
    let directory = TestDirectory::new("etcd-bumped");
    let cluster = TestCluster::new::<1>(&directory, "m");
    let fixture = &fixtures()[1];
    let file = fixture.join("snapshot.db");
    let bump = ["--bump-revision", "1000", "--mark-compacted"];
    let arguments = [&["snapshot", "restore", file.to_str().unwrap()][..], &bump].concat();
    let _processes = start(&cluster, &arguments, "--data-dir");
    let expected = recorded(fixture, "snapshot.json");
    Runtime::new().unwrap().block_on(async {
        let root = User::login(&cluster[0].client_url, "root", "rootpw").await.unwrap();
        let revision = expected["revision"].as_i64().unwrap();
        let found = root.range("\0", "\0", 0).await.unwrap();
        assert_eq!((found.revision, found.kvs.len()), (revision + 1000, 158));
        for old in [revision, revision + 999] {
            let compacted = root.range("\0", "\0", old).await.err().unwrap();
            assert_eq!(compacted.code(), Code::OutOfRange, "{compacted}");
        }
    });
}

#[test]
fn files_that_cannot_be_used_are_refused_with_the_place() {
    let directory = TestDirectory::new("etcd-damaged");
    let fixture = &fixtures()[1];
    let intact = fs::read(fixture.join("snapshot.db")).unwrap();
    let (path, target) = (directory.file("file"), directory.file("target"));
    let restore = |bytes: &[u8], more: &[&str]| {
        fs::write(&path, bytes).unwrap();
        let command = ["snapshot", "restore", &path, "--data-dir", &target];
        let (code, text) = run_failing(&[&command[..], more].concat());
        assert_eq!(code, Some(1), "{text}");
        assert!(!Path::new(&target).exists(), "{text}");
        text
    };
    let without_checksum = &intact[..intact.len() - 32];
    let text = restore(without_checksum, &[]);
    assert!(text.contains("--skip-hash-check"), "{text}");
    let mut damaged = intact.clone();
    damaged[20_000] ^= 1;
    let text = restore(&damaged, &[]);
    assert!(text.contains("its SHA-256 checksum does not match"), "{text}");
    // The flags of a page: found without the checksum too.
    let page = 2 * 4096..intact.len() - 32;
    let leaf = page.step_by(4096).find(|at| intact[at + 8] == 2).unwrap();
    damaged = intact.clone();
    damaged[leaf + 8] = 0x40;
    let text = restore(&damaged, &["--skip-hash-check"]);
    assert!(text.contains(&format!("page {}: flags 0x40", leaf / 4096)), "{text}");
    let text = restore(&intact[..16_384], &["--skip-hash-check"]);
    assert!(text.contains("the file is truncated: 16384 bytes of a database of"), "{text}");
    let text =
        restore(b"not a database, but long enough to be read as the head of one ......", &[]);
    assert!(text.contains("not a snapshot of this program or of etcd"), "{text}");

    // A log with a hole, and one that is damaged before its end.
    let data = directory.path.join("data");
    let wal = "member/wal/0000000000000000-0000000000000000.wal";
    fs::create_dir_all(data.join("member/snap")).unwrap();
    fs::create_dir_all(data.join("member/wal")).unwrap();
    let import = || {
        let data = data.to_str().unwrap();
        let (code, text) = run_failing(&["import", "--data-dir", data, "--new-data-dir", &target]);
        assert_eq!(code, Some(1), "{text}");
        assert!(!Path::new(&target).exists(), "{text}");
        text
    };
    assert!(import().contains("member/snap/db does not exist"));
    fs::copy(fixture.join("data/member/snap/db"), data.join("member/snap/db")).unwrap();
    assert!(import().contains("*.wal does not exist"));
    let mut log = fs::read(fixture.join("data").join(wal)).unwrap();
    let middle = log.len() / 2;
    log[middle] ^= 1;
    fs::write(data.join(wal), &log).unwrap();
    let text = import();
    assert!(text.contains("0000000000000000.wal, offset "), "{text}");
}

/// etcd fills its log files with zeros, and a crash may cut the last record.
#[test]
fn a_log_that_ends_within_a_record_is_imported_up_to_it() {
    let directory = TestDirectory::new("etcd-torn");
    let fixture = &fixtures()[1];
    let data = directory.path.join("data");
    fs::create_dir_all(data.join("member/snap")).unwrap();
    fs::create_dir_all(data.join("member/wal")).unwrap();
    fs::copy(fixture.join("data/member/snap/db"), data.join("member/snap/db")).unwrap();
    let wal = "member/wal/0000000000000000-0000000000000000.wal";
    let log = fs::read(fixture.join("data").join(wal)).unwrap();
    let import = |bytes: &[u8], target: &str| {
        fs::write(data.join(wal), bytes).unwrap();
        let (data, target) = (data.to_str().unwrap(), directory.file(target));
        let text = run(&["import", "--data-dir", data, "--new-data-dir", &target, "-w", "json"]);
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let mut preallocated = log.clone();
    preallocated.resize(1 << 20, 0);
    let whole = import(&preallocated, "whole");
    let expected = recorded(fixture, "data.json");
    assert_eq!(whole["revision"], expected["revision"]);
    let torn = import(&log[..log.len() - 20], "torn");
    let replayed = |report: &Value| report["replayedEntries"].as_u64().unwrap();
    assert_eq!(replayed(&torn) + 1, replayed(&whole));
    assert!(torn["notes"].to_string().contains("the log ends within a record"), "{torn}");
}
