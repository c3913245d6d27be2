//! A server is started on the data directory of an etcd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use quorate_proto::etcdserverpb::PutRequest;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use tokio::runtime::Runtime;
use tonic::transport::Endpoint;

use crate::import::{compare, fixtures, is_3_4, recorded, recorded_of_data};
use crate::support::cluster::TestCluster;
use crate::support::messages::READY;
use crate::support::server::TestServer;
use crate::support::{TestDirectory, TestProcess, output_text, quorate, wait_for_text};

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_all(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// The only member of a cluster: its data is continued, and its files are kept.
#[test]
fn a_server_continues_with_the_data_of_a_single_etcd() {
    for (number, fixture) in fixtures().into_iter().enumerate() {
        let directory = TestDirectory::new(&format!("etcd-adopt-{number}"));
        let [server] = TestServer::all(&directory, ["m"]);
        copy_all(&fixture.join("data"), &server.data_dir);
        let etcd_files = files(&server.data_dir).len();
        let expected = recorded_of_data(&fixture);
        for _ in 0..2 {
            let _ = fs::remove_file(&server.log);
            let mut process = server.start_new(&[&server]);
            wait_for_text(&server.log, READY);
            let runtime = Runtime::new().unwrap();
            runtime.block_on(compare(&server.client_url, &expected));
            process.signal("TERM");
            process.wait_exit("m");
        }
        let names = fs::read_dir(&server.data_dir).unwrap();
        let kept = names.map(|entry| entry.unwrap().path());
        let kept = kept.filter(|path| path.to_str().unwrap().contains("member-before-"));
        let kept: Vec<PathBuf> = kept.collect();
        assert_eq!(kept.len(), 1, "{kept:?}");
        assert_eq!(files(&kept[0]).len(), etcd_files);
    }
}

/// Restores a snapshot with etcd's tool for each server; `false` if it is not installed.
fn restore_with_etcdctl(cluster: &TestCluster, file: &Path) -> bool {
    for server in cluster.iter() {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["snapshot", "restore"]).arg(file);
        let Ok(output) = command.args(server.member_flags(&cluster.all())).output() else {
            eprintln!("skipped: etcdctl is not installed");
            return false;
        };
        assert!(output.status.success(), "{}", output_text(&output));
    }
    true
}

/// The directories that `etcdctl snapshot restore` makes for the members of a new cluster.
#[test]
fn servers_start_from_directories_that_etcd_restored() {
    let fixture = fixtures().into_iter().find(|fixture| is_3_4(fixture)).unwrap();
    let directory = TestDirectory::new("etcd-restored");
    let cluster = TestCluster::new::<3>(&directory, "m");
    if !restore_with_etcdctl(&cluster, &fixture.join("snapshot.db")) {
        return;
    }
    let processes: Vec<_> = (0..3).map(|number| cluster.spawn(number)).collect();
    cluster.iter().for_each(|server| wait_for_text(&server.log, READY));
    let expected = recorded(&fixture, "snapshot.json");
    let runtime = Runtime::new().unwrap();
    for server in cluster.iter() {
        runtime.block_on(compare(&server.client_url, &expected));
    }
    drop(processes);
}

/// The members of a running cluster may have logs of different lengths: nothing is started, and
/// nothing is changed.
#[test]
fn the_data_of_one_of_several_etcds_is_refused() {
    let directory = TestDirectory::new("etcd-refused");
    let etcds = TestServer::all(&directory, ["e0", "e1", "e2"]);
    let all: Vec<&TestServer> = etcds.iter().collect();
    let mut processes = Vec::new();
    for server in &etcds {
        let mut command = Command::new("etcd");
        command.args(server.member_flags(&all)).args(server.listen_flags());
        if Command::new("etcd").arg("--version").output().is_err() {
            eprintln!("skipped: etcd is not installed");
            return;
        }
        processes.push(TestProcess::start(&mut command, &server.log));
    }
    Runtime::new().unwrap().block_on(wait_for_etcd(&etcds[0].client_url));
    for mut process in processes {
        process.signal("TERM");
        process.wait_exit("etcd");
    }
    let before = files(&etcds[0].data_dir);
    let mut command = quorate();
    command.arg("server").args(etcds[0].member_flags(&all)).args(etcds[0].listen_flags());
    let output = command.output().unwrap();
    let text = output_text(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("whose cluster has 3 members"), "{text}");
    assert!(text.contains("quorate import"), "{text}");
    assert_eq!(files(&etcds[0].data_dir), before);
    // Of this member alone, a cluster can be made.
    let mut forced = etcds[0].clone();
    forced.extra_flags.push("--force-new-cluster".into());
    let _ = fs::remove_file(&forced.log);
    let _process = forced.start_new(&all);
    wait_for_text(&forced.log, READY);
    let found = Runtime::new().unwrap().block_on(forced.value("a"));
    assert_eq!(found, "1");
}

/// Waits until a key can be written.
async fn wait_for_etcd(url: &str) {
    let endpoint = Endpoint::from_shared(url.to_owned()).unwrap();
    for _ in 0..600 {
        if let Ok(channel) = endpoint.connect().await {
            let put = PutRequest { key: "a".into(), value: "1".into(), ..PutRequest::default() };
            if KvClient::new(channel).put(put).await.is_ok() {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("etcd does not serve");
}
