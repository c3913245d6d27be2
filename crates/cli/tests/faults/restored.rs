//! A member that returns with a copy, or an older state, of its disk: it has forgotten what it
//! promised, and must not count.

use std::fs;
use std::path::{Path, PathBuf};

use crate::client::wait_for;
use crate::cluster::{FaultCluster, test_directory};
use crate::support::cluster::TestCluster;
use crate::support::messages::{COPIED, LOST_LOG, PEER_LOST_LOG};
use crate::support::{TestDirectory, http_page, run};

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Replaces the files as a snapshot of the whole volume would: the file that knows its place
/// is the same file as before.
pub(crate) fn roll_back(directory: &Path, to: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && path.file_name().unwrap() != "place" {
            fs::remove_file(path).unwrap();
        }
    }
    for entry in fs::read_dir(to).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_file() && entry.file_name() != "place" {
            fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copied_data_directory_starts_only_on_request() {
    let directory = test_directory("copied");
    let mut cluster = FaultCluster::three(&directory).await;
    cluster.client(0).put_retrying("key", "value").await;
    cluster.kill(1);
    let data_dir = cluster.servers[1].data_dir.clone();
    let original = data_dir.with_extension("original");
    // A directory that is only renamed is the same one.
    fs::rename(&data_dir, &original).unwrap();
    fs::rename(&original, &data_dir).unwrap();
    cluster.restart(1);
    cluster.wait_serving(1).await;
    cluster.kill(1);

    fs::rename(&data_dir, &original).unwrap();
    copy(&original, &data_dir);
    cluster.restart(1);
    let (code, log) = cluster.wait_exit(1);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains(COPIED), "{log}");

    // The member did not run since the copy was made.
    cluster.servers[1].extra_flags.push("--allow-moved-data-dir".into());
    cluster.restart(1);
    cluster.wait_serving(1).await;
    cluster.kill(1);
    // Once is enough.
    cluster.servers[1].extra_flags.clear();
    cluster.restart(1);
    cluster.wait_serving(1).await;
    cluster.assert_identical_data().await;
}

/// Who is who in a cluster of three, and where the older state of a follower's disk is.
struct Setup {
    leader: usize,
    rolled_back: usize,
    other: usize,
    store: PathBuf,
    backup: PathBuf,
}

/// A cluster that has the value `old`, and a copy of a follower's disk from then.
async fn cluster_with_backup(directory: &TestDirectory, flags: &[&str]) -> (FaultCluster, Setup) {
    let mut servers = TestCluster::new::<3>(directory, "m");
    for server in servers.iter_mut() {
        server.extra_flags.extend(flags.iter().map(ToString::to_string));
    }
    let mut cluster = FaultCluster::start(servers, 3).await;
    cluster.client(0).put_retrying("key", "old").await;
    let leader = cluster.leader().await;
    let [rolled_back, other] = cluster.others(leader)[..] else { panic!("not three members") };
    cluster.kill(rolled_back);
    let store = cluster.servers[rolled_back].data_dir.join("member");
    let backup = directory.path.join("backup");
    copy(&store, &backup);
    cluster.restart(rolled_back);
    cluster.wait_serving(rolled_back).await;
    (cluster, Setup { leader, rolled_back, other, store, backup })
}

/// While the leader that noticed it leads, every member shows how many members lack what they
/// confirmed; the member itself shows that it is one, and is not ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolled_back_disk_is_shown_by_all_members() {
    let directory = test_directory("shown");
    let (mut cluster, Setup { rolled_back, store, backup, .. }) =
        cluster_with_backup(&directory, &[]).await;
    let all = cluster.running();
    for number in &all {
        wait_for_metric(&cluster, *number, "quorate_peers_lost", 0).await;
        wait_for_metric(&cluster, *number, "quorate_log_lost", 0).await;
    }
    cluster.client(rolled_back).put_retrying("key", "new").await;
    cluster.kill(rolled_back);
    roll_back(&store, &backup);
    cluster.restart(rolled_back);
    for number in &all {
        wait_for_metric(&cluster, *number, "quorate_peers_lost", 1).await;
        let is_lost = u64::from(*number == rolled_back);
        wait_for_metric(&cluster, *number, "quorate_log_lost", is_lost).await;
    }
    for number in &all {
        let page = http_page(cluster.servers[*number].client_address(), "/readyz?verbose").unwrap();
        let is_ready = *number != rolled_back;
        assert_eq!(page.contains("[+]log_complete ok"), is_ready, "{page}");
        assert_eq!(page.contains("[-]log_complete failed"), !is_ready, "{page}");
    }

    // Without it no member is missing anything.
    let leader = cluster.leader().await;
    let endpoint = &cluster.servers[leader].client_url;
    run(&["member", "remove", &cluster.servers[rolled_back].name, "--endpoints", endpoint]);
    for number in all.iter().filter(|number| **number != rolled_back) {
        wait_for_metric(&cluster, *number, "quorate_peers_lost", 0).await;
    }
}

/// A leader keeps leading for so long without a quorum: time for a process to start.
const PATIENT: [&str; 1] = ["--election-timeout=10000"];

/// Waits until the member's metrics show this value.
async fn wait_for_metric(cluster: &FaultCluster, number: usize, name: &str, value: u64) {
    let (start, end) = (format!("{name}{{"), format!(" {value}"));
    let address = cluster.servers[number].client_address();
    wait_for(&format!("{name} {value} on member {number}"), async || {
        let page = http_page(&address, "/metrics").ok()?;
        let is_shown = |line: &str| line.starts_with(&start) && line.ends_with(&end);
        page.lines().any(is_shown).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolled_back_disk_is_noticed_by_the_leader_and_does_not_count() {
    let directory = test_directory("rolled-back");
    let (mut cluster, Setup { leader, rolled_back, other: behind, store, backup }) =
        cluster_with_backup(&directory, &PATIENT).await;
    cluster.kill(behind);
    // Only the leader and this member have it.
    cluster.client(leader).put_retrying("key", "new").await;
    cluster.kill(rolled_back);
    roll_back(&store, &backup);
    cluster.restart(rolled_back);

    // It says so, and so does its leader.
    let client = cluster.client(rolled_back).clone();
    let says = async |wanted: &str| {
        let status = client.status().await.ok()?;
        status.errors.iter().any(|error| error.contains(wanted)).then_some(())
    };
    wait_for("the member reports its lost log", async || says(LOST_LOG).await).await;
    let of_leader = cluster.client(leader).clone();
    wait_for("the leader reports it", async || {
        let status = of_leader.status().await.ok()?;
        status.errors.iter().any(|error| error.contains(PEER_LOST_LOG)).then_some(())
    })
    .await;

    // The leader dies. The other two are a majority, and neither has the write.
    cluster.kill(leader);
    cluster.restart(behind);
    let (first, second) =
        tokio::join!(cluster.client(behind).get("key"), cluster.client(rolled_back).get("key"));
    assert!(first.is_err() && second.is_err(), "{first:?} {second:?}");

    cluster.restart(leader);
    assert_eq!(cluster.client(leader).get_retrying("key").await.as_deref(), Some("new"));
    let endpoint = cluster.servers[leader].client_url.clone();
    let server = &cluster.servers[rolled_back];
    run(&["member", "remove", &server.name, "--endpoints", &endpoint]);
    cluster.kill(rolled_back);
    assert_eq!(cluster.client(behind).get_retrying("key").await.as_deref(), Some("new"));
}
