//! From a cluster to etcd's files, and to a real etcd where one is installed: the one on the path,
//! and those in the directories of `QUORATE_ETCD_PROGRAMS`, separated by colons.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tokio::runtime::Runtime;

use crate::answers::User;
use crate::support::cluster::TestCluster;
use crate::support::messages::READY;
use crate::support::server::TestServer;
use crate::support::{TestDirectory, TestProcess, output_text, run, wait_for_text, wait_until};

/// A cluster with every kind of data, made from etcd's snapshot, and some more history.
fn start(directory: &TestDirectory) -> (TestCluster, Vec<TestProcess>) {
    let cluster = TestCluster::new::<1>(directory, "q");
    let fixture = "../etcd-files/tests/fixtures/v3.7/snapshot.db";
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join(fixture);
    let flags = cluster[0].member_flags(&cluster.all());
    let mut arguments = vec!["snapshot", "restore", fixture.to_str().unwrap()];
    arguments.extend(flags.iter().map(String::as_str));
    run(&arguments);
    let processes = vec![cluster.spawn(0)];
    wait_for_text(&cluster[0].log, READY);
    (cluster, processes)
}

async fn write_more(url: &str) -> User {
    let root = User::login(url, "root", "rootpw").await.unwrap();
    root.disarm(77).await;
    for number in 0..300 {
        root.put(&format!("exported/{}", number % 250), &"x".repeat(number)).await.unwrap();
    }
    root.put("exported/large", &"y".repeat(100_000)).await.unwrap();
    root
}

fn save(url: &str, file: &str, format: &str) {
    let save = ["snapshot", "save", file, "--format", format, "--endpoints", url];
    run(&[&save[..], &["--user", "root:rootpw"]].concat());
}

fn restore(server: &TestServer, file: &str) {
    let flags = server.member_flags(&[server]);
    let mut arguments = vec!["snapshot", "restore", file];
    arguments.extend(flags.iter().map(String::as_str));
    let text = run(&arguments);
    assert!(text.contains("of an etcd cluster"), "{text}");
}

/// Without an etcd: what is saved in etcd's format can be restored here, with all of its data.
#[test]
fn a_file_in_etcds_format_holds_everything() {
    let directory = TestDirectory::new("etcd-export");
    let (cluster, _processes) = start(&directory);
    let runtime = Runtime::new().unwrap();
    let root = runtime.block_on(write_more(&cluster[0].client_url));
    let expected = runtime.block_on(root.answers(29));
    let file = directory.file("saved");
    save(&cluster[0].client_url, &file, "etcd");
    let status: Value =
        serde_json::from_str(&run(&["snapshot", "status", &file, "-w", "json"])).unwrap();
    assert_eq!(status["revision"], expected["revision"]);
    assert_eq!(status["version"], "3.7.0");
    let copy = TestCluster::new::<1>(&directory, "copy");
    restore(&copy[0], &file);
    let _copy = copy.spawn(0);
    wait_for_text(&copy[0].log, READY);
    let found = runtime.block_on(async {
        let root = User::login(&copy[0].client_url, "root", "rootpw").await.unwrap();
        root.answers(29).await
    });
    assert_eq!(found, expected);
}

/// The programs of one version of etcd.
struct EtcdPrograms {
    etcd: PathBuf,
    /// `etcdutl`, or the etcdctl of versions without it.
    etcdutl: PathBuf,
}

fn installed() -> Vec<EtcdPrograms> {
    let directories = std::env::var("QUORATE_ETCD_PROGRAMS").unwrap_or_default();
    let directories = directories.split(':').filter(|path| !path.is_empty()).map(PathBuf::from);
    let mut found = Vec::new();
    for directory in [PathBuf::new()].into_iter().chain(directories) {
        let works = |path: &PathBuf| Command::new(path).arg("version").output().is_ok();
        let program = |name: &str| Some(directory.join(name)).filter(works);
        let etcdutl = program("etcdutl").or_else(|| program("etcdctl"));
        if let (Some(etcd), Some(etcdutl)) = (program("etcd"), etcdutl) {
            found.push(EtcdPrograms { etcd, etcdutl });
        }
    }
    if found.is_empty() {
        eprintln!("skipped: etcd is not installed");
    }
    found
}

impl EtcdPrograms {
    fn snapshot(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.etcdutl);
        let output = command.env("ETCDCTL_API", "3").arg("snapshot").args(arguments).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", output_text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The format of snapshots for this version.
    fn format(&self) -> &'static str {
        let output = Command::new(&self.etcd).arg("--version").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let is = |version: &str| text.contains(&format!("etcd Version: {version}."));
        match () {
            () if is("3.4") || is("3.5") => "etcd-3.5",
            () if is("3.6") => "etcd-3.6",
            () => "etcd",
        }
    }

    /// Starts an etcd that is restored from a file.
    fn start(&self, server: &TestServer, file: &str) -> TestProcess {
        let flags = server.member_flags(&[server]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        self.snapshot(&[&["restore", file][..], &flags].concat());
        let mut command = Command::new(&self.etcd);
        command.args(server.single_member_flags());
        TestProcess::start(&mut command, &server.log)
    }
}

/// The way back: etcd's own tools accept the file, and an etcd that is restored from it has the
/// same data, revisions and hashes.
#[test]
fn a_real_etcd_continues_with_the_data() {
    for (number, programs) in installed().into_iter().enumerate() {
        let directory = TestDirectory::new(&format!("etcd-way-back-{number}"));
        let (cluster, _processes) = start(&directory);
        let runtime = Runtime::new().unwrap();
        let root = runtime.block_on(write_more(&cluster[0].client_url));
        let mut expected = runtime.block_on(root.answers(29));
        let file = directory.file("saved");
        save(&cluster[0].client_url, &file, programs.format());
        let ours: Value =
            serde_json::from_str(&run(&["snapshot", "status", &file, "-w", "json"])).unwrap();
        let theirs: Value =
            serde_json::from_str(&programs.snapshot(&["status", &file, "-w", "json"])).unwrap();
        for field in ["hash", "revision", "totalSize"] {
            assert_eq!(theirs[field], ours[field], "{field} by {}", programs.etcdutl.display());
        }
        let [etcd] = TestServer::all(&directory, ["etcd"]);
        let _etcd = programs.start(&etcd, &file);
        wait_until(
            || runtime.block_on(async { login_works(&etcd.client_url).await }),
            &format!("{} serves, see {}", programs.etcd.display(), etcd.log.display()),
        );
        let answers = runtime.block_on(async {
            let root = User::login(&etcd.client_url, "root", "rootpw").await.unwrap();
            let alice = User::login(&etcd.client_url, "alice", "alicepw").await;
            assert!(alice.is_ok(), "passwords are the same");
            root.answers(29).await
        });
        // etcd 3.4 cannot hash the compacted revision itself.
        if answers["hashes"].get("29").is_none() {
            expected["hashes"].as_object_mut().unwrap().remove("29");
        }
        assert_eq!(answers, expected, "{}", programs.etcd.display());
    }
}

async fn login_works(url: &str) -> bool {
    let channel = tonic::transport::Endpoint::from_shared(url.to_owned()).unwrap().connect().await;
    channel.is_ok() && User::login(url, "root", "rootpw").await.is_ok()
}
