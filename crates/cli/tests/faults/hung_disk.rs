//! A disk whose syncs do not return, while the process of its member runs on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::{FaultCluster, test_directory};
use crate::support::TestDirectory;
use crate::support::cluster::TestCluster;
use crate::support::server::{TestServer, succeed};
use crate::writers::{FaultWriters, assert_present};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_hangs_is_replaced_and_can_be_removed() {
    let directory = test_directory("hung-disk");
    let Some(library) = hanging_sync(&directory.path) else {
        println!("skipped: a_leader_whose_disk_hangs: no C compiler");
        return;
    };
    let mut cluster = start(&directory, &library).await;
    let old = cluster.leader().await;
    let others = cluster.others(old);
    let clients = others.iter().map(|other| cluster.client(*other).clone()).collect::<Vec<_>>();
    let writers = FaultWriters::start(2, &clients);
    writers.wait_for_writes(20).await;

    // The old leader runs and answers. Writes through the others continue under another one.
    fs::write(hung_file(&cluster.servers[old]), "").unwrap();
    let new = cluster.leader_among(&others).await;
    assert_ne!(new, old);
    writers.wait_for_writes(20).await;
    assert!(cluster.is_running(old), "{}", cluster.log_text(old));
    assert!(cluster.log_text(old).contains("stands still"), "{}", cluster.log_text(old));

    // It can be removed although it acknowledges nothing.
    let name = cluster.servers[old].name.clone();
    let (_, text) = succeed(&cluster.servers.select(&others), &["member", "remove", &name]);
    assert!(text.contains("is removed"), "{text}");
    writers.wait_for_writes(20).await;
    let written = writers.finish().await;
    cluster.kill(old);
    assert_present(&cluster.assert_identical_data().await, &written);
    drop(cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_hung_for_a_while_follows_again() {
    let directory = test_directory("hung-disk-returns");
    let Some(library) = hanging_sync(&directory.path) else {
        println!("skipped: a_leader_whose_disk_hung_for_a_while: no C compiler");
        return;
    };
    let mut cluster = start(&directory, &library).await;
    let old = cluster.leader().await;
    let others = cluster.others(old);
    let hung = hung_file(&cluster.servers[old]);
    fs::write(&hung, "").unwrap();
    // A write makes the leader use its disk.
    cluster.client(others[0]).put_retrying("word", "during").await;
    cluster.leader_among(&others).await;
    fs::remove_file(&hung).unwrap();
    cluster.wait_serving(old).await;
    assert_eq!(cluster.client(old).get_retrying("word").await.as_deref(), Some("during"));
    assert_eq!(cluster.assert_identical_data().await["word"], "during");
    drop(cluster);
}

async fn start(directory: &TestDirectory, library: &str) -> FaultCluster {
    let mut servers = TestServer::all(directory, ["m0", "m1", "m2"]);
    for server in &mut servers {
        let hung = hung_file(server).to_str().unwrap().to_string();
        server.environment =
            vec![("LD_PRELOAD".to_string(), library.to_string()), ("HUNG_WHILE".to_string(), hung)];
    }
    FaultCluster::start(TestCluster::of(servers.into()), 3).await
}

/// The server's syncs hang while this file exists.
fn hung_file(server: &TestServer) -> PathBuf {
    server.log.with_extension("hung")
}

/// Compiles a library that makes syncs hang. None without a C compiler.
fn hanging_sync(directory: &Path) -> Option<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/hung_disk.c");
    let library = directory.join("hung_disk.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
    let compiled = compiler.output().ok()?;
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(library.to_str().unwrap().to_string())
}
