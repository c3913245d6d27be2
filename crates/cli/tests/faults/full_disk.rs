//! A disk without room for one more byte.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::client::surely;
use crate::common::cluster::Cluster;
use crate::members::{Members, place};
use crate::writers::{Writers, assert_kept};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_ends_one_member_with_the_reason_and_with_room_it_comes_back() {
    let place = place("full-disk");
    let cluster = Cluster::new(&place, "m", 3);
    let full = 2;
    let Some(disk) = SmallDisk::mount(Path::new(&cluster.directory(full))) else {
        println!("skipped: a_full_disk: may not mount a small file system");
        return;
    };
    let mut members = Members::start(cluster, 3, 3).await;
    let writers = Writers::start(2, &members.clients());
    writers.go_on(50).await;
    disk.fill();
    // The log reserves its room in large pieces: it has to outgrow the one that it has.
    let large = "x".repeat(1 << 20);
    while members.is_running(full) {
        surely("a large value", async || members.client(0).put("large", &large).await).await;
    }
    let (code, said) = members.ended(full);
    assert_eq!(code, Some(1), "{said}");
    assert_no_space(&said);
    writers.go_on(50).await;

    members.start_again(full);
    let (code, said) = members.ended(full);
    assert_eq!(code, Some(1), "{said}");
    assert_no_space(&said);

    disk.clear();
    members.start_again(full);
    members.serves(full).await;
    writers.go_on(50).await;
    let written = writers.finish().await;
    assert_kept(&members.agree().await, &written);
    drop(members);
    drop(disk);
}

fn assert_no_space(said: &str) {
    assert!(said.contains("os error 28"), "{said}");
}

/// A file system in memory at the place of a directory.
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

    /// What is left is less than the log reserves at once.
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
