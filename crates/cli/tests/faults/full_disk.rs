//! A full disk.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::client::retry_until_ok;
use crate::cluster::{FaultCluster, test_directory};
use crate::support::cluster::TestCluster;
use crate::writers::{FaultWriters, assert_present};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_one_member_until_there_is_space() {
    let directory = test_directory("full-disk");
    let servers = TestCluster::new::<3>(&directory, "m");
    let full = 2;
    let Some(disk) = SmallDisk::mount(&servers[full].data_dir) else {
        println!("skipped: a_full_disk: mounting a file system is not permitted");
        return;
    };
    let mut cluster = FaultCluster::start(servers, 3).await;
    let writers = FaultWriters::start(2, &cluster.clients());
    writers.wait_for_writes(50).await;
    disk.fill();
    // The log reserves space in large segments: it must outgrow the present one.
    let large = "x".repeat(1 << 20);
    while cluster.is_running(full) {
        retry_until_ok("a large value", async || cluster.client(0).put("large", &large).await)
            .await;
    }
    let (code, log) = cluster.wait_exit(full);
    assert_eq!(code, Some(1), "{log}");
    assert_no_space(&log);
    writers.wait_for_writes(50).await;

    cluster.restart(full);
    let (code, log) = cluster.wait_exit(full);
    assert_eq!(code, Some(1), "{log}");
    assert_no_space(&log);

    disk.clear();
    cluster.restart(full);
    cluster.wait_serving(full).await;
    writers.wait_for_writes(50).await;
    let written = writers.finish().await;
    assert_present(&cluster.assert_identical_data().await, &written);
    drop(cluster);
    drop(disk);
}

fn assert_no_space(log: &str) {
    assert!(log.contains("os error 28"), "{log}");
}

/// A small file system in memory, mounted over a directory.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=400m,mode=0700", "tmpfs"]).arg(path);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Self(path.to_path_buf()))
    }

    fn other_file(&self) -> PathBuf {
        self.0.join("something-else")
    }

    /// Leaves less space than the log reserves for a segment.
    fn fill(&self) {
        let mut file = File::create(self.other_file()).unwrap();
        for _ in LEFT_MEBIBYTES..self.free_mebibytes() {
            file.write_all(&[1; 1 << 20]).unwrap();
        }
    }

    fn free_mebibytes(&self) -> u64 {
        let output = Command::new("df").args(["-m", "--output=avail"]).arg(&self.0).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        text.lines().last().unwrap().trim().parse().unwrap()
    }

    fn clear(&self) {
        fs::remove_file(self.other_file()).unwrap();
    }
}

const LEFT_MEBIBYTES: u64 = 20;

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}
