//! Damaged logs: damage is reported with its position; a torn tail is truncated.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cluster::{FaultCluster, test_directory};
use crate::writers::{FaultWriters, assert_present};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_log_is_reported_with_its_position_and_the_others_continue() {
    let directory = test_directory("damage");
    let mut cluster = FaultCluster::three(&directory).await;
    let writers = FaultWriters::start(3, &cluster.clients());
    writers.wait_for_writes(100).await;
    cluster.kill(1);
    let log = newest_segment(&cluster.servers[1].data_dir);
    let records = records(&log);
    let middle = &records[records.len() / 2];
    flip_bit(&log, middle.offset + RECORD_HEAD_BYTES);

    cluster.restart(1);
    let (code, output) = cluster.wait_exit(1);
    assert_eq!(code, Some(1), "{output}");
    let name = log.file_name().unwrap().to_str().unwrap();
    let message = format!("{name} is corrupt at byte {}: checksum does not match", middle.offset);
    assert!(output.contains(&message), "no '{message}' in\n{output}");
    writers.wait_for_writes(100).await;

    // With that bit restored, the member works again.
    flip_bit(&log, middle.offset + RECORD_HEAD_BYTES);
    cluster.restart(1);
    cluster.wait_serving(1).await;
    let written = writers.finish().await;
    assert_present(&cluster.assert_identical_data().await, &written);
}

/// A power loss in the middle of a write: its second half is not on the disk, and no mark says
/// that it was synced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_tail_is_truncated_and_fetched_from_the_others() {
    let directory = test_directory("torn");
    let mut cluster = FaultCluster::three(&directory).await;
    let torn = 1;
    cluster.client(0).put_retrying("key", "before").await;
    cluster.assert_identical_data().await;
    cluster.signal(torn, "STOP");
    let data_dir = cluster.servers[torn].data_dir.clone();
    let mark = store(&data_dir).join("synced");
    let synced_before = fs::read(&mark).unwrap();
    cluster.signal(torn, "CONT");
    cluster.client(0).put_retrying("key", &LONG.repeat(100)).await;
    cluster.assert_identical_data().await;
    // Power is lost everywhere: no member remembers what this one had acknowledged.
    (0..3).for_each(|number| cluster.kill(number));
    fs::write(&mark, synced_before).unwrap();
    tear(&newest_segment(&data_dir));

    (0..3).for_each(|number| cluster.restart(number));
    cluster.wait_serving(torn).await;
    assert_eq!(cluster.assert_identical_data().await["key"], LONG.repeat(100));
}

const LONG: &str = "after";

/// Keeps half of the last long write, and nothing after it.
fn tear(log: &Path) {
    let records = records(log);
    let long = records.iter().rfind(|record| record.body_bytes > LONG.len() * 100).unwrap();
    let mut bytes = fs::read(log).unwrap();
    bytes[long.offset + RECORD_HEAD_BYTES + long.body_bytes / 2..].fill(0);
    fs::write(log, bytes).unwrap();
}

/// One record of a segment, as described in `docs/formats.md`.
struct LogRecord {
    offset: usize,
    body_bytes: usize,
}

const SEGMENT_HEAD_BYTES: usize = 512;
const RECORD_HEAD_BYTES: usize = 32;

/// All records up to the first position without a record of the next sequence number.
fn records(segment: &Path) -> Vec<LogRecord> {
    let bytes = fs::read(segment).unwrap();
    let u32_at =
        |offset: usize| u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap()) as usize;
    let sequence =
        |offset: usize| u64::from_le_bytes(bytes[offset + 8..offset + 16].try_into().unwrap());
    let (mut records, mut offset) = (Vec::new(), SEGMENT_HEAD_BYTES);
    let first = sequence(offset);
    while offset + RECORD_HEAD_BYTES <= bytes.len()
        && sequence(offset) == first + records.len() as u64
    {
        let body_bytes = u32_at(offset + 4);
        records.push(LogRecord { offset, body_bytes });
        offset += (RECORD_HEAD_BYTES + body_bytes).next_multiple_of(8);
    }
    assert!(records.len() > 2, "{} records in {}", records.len(), segment.display());
    records
}

fn store(data_dir: &Path) -> PathBuf {
    data_dir.join("member")
}

fn newest_segment(data_dir: &Path) -> PathBuf {
    let files = fs::read_dir(store(data_dir)).unwrap().map(|file| file.unwrap().path());
    let is_segment = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.strip_prefix("wal-").is_some_and(|rest| rest.parse::<u64>().is_ok())
    };
    files.filter(is_segment).max().unwrap()
}

fn flip_bit(path: &Path, offset: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[offset] ^= 0x40;
    fs::write(path, bytes).unwrap();
}
