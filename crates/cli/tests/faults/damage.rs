//! Bytes of the log that are not what was written: damage is told, a torn end is none.

use std::fs;
use std::path::{Path, PathBuf};

use crate::members::{Members, place};
use crate::writers::{Writers, assert_kept};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_log_is_refused_with_its_place_and_the_others_go_on() {
    let place = place("damage");
    let mut members = Members::three(&place).await;
    let writers = Writers::start(3, &members.clients());
    writers.go_on(100).await;
    members.kill(1);
    let log = newest_segment(&members.cluster.directory(1));
    let records = records(&log);
    let middle = &records[records.len() / 2];
    flip(&log, middle.at + RECORD_HEAD_BYTES);

    members.start_again(1);
    let (code, said) = members.ended(1);
    assert_eq!(code, Some(1), "{said}");
    let name = log.file_name().unwrap().to_str().unwrap();
    let place = format!("{name} is corrupt at byte {}: checksum does not match", middle.at);
    assert!(said.contains(&place), "no '{place}' in\n{said}");
    writers.go_on(100).await;

    // The very byte mended, it is the member that it was.
    flip(&log, middle.at + RECORD_HEAD_BYTES);
    members.start_again(1);
    members.serves(1).await;
    let written = writers.finish().await;
    assert_kept(&members.agree().await, &written);
}

/// A write that power loss cut short: its second half never came to the disk, and nothing says
/// that it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_end_of_the_log_is_cut_and_what_was_lost_comes_from_the_others() {
    let place = place("torn");
    let mut members = Members::three(&place).await;
    let torn = 1;
    members.client(0).put_surely("key", "before").await;
    members.agree().await;
    members.signal(torn, "STOP");
    let directory = members.cluster.directory(torn);
    let mark = store(&directory).join("synced");
    let synced_before = fs::read(&mark).unwrap();
    members.signal(torn, "CONT");
    members.client(0).put_surely("key", &LONG.repeat(100)).await;
    members.agree().await;
    // Power is lost everywhere: nobody remembers what this member had said that it has.
    (0..3).for_each(|number| members.kill(number));
    fs::write(&mark, synced_before).unwrap();
    tear(&newest_segment(&directory));

    (0..3).for_each(|number| members.start_again(number));
    members.serves(torn).await;
    assert_eq!(members.agree().await["key"], LONG.repeat(100));
}

const LONG: &str = "after";

/// Half of the last long write, and nothing behind it.
fn tear(log: &Path) {
    let records = records(log);
    let long = records.iter().rfind(|record| record.body_bytes > LONG.len() * 100).unwrap();
    let mut bytes = fs::read(log).unwrap();
    bytes[long.at + RECORD_HEAD_BYTES + long.body_bytes / 2..].fill(0);
    fs::write(log, bytes).unwrap();
}

/// One record of a segment, as `docs/formats.md` has it.
struct Record {
    at: usize,
    body_bytes: usize,
}

const SEGMENT_HEAD_BYTES: usize = 512;
const RECORD_HEAD_BYTES: usize = 32;

/// Up to the first place without one of the next sequence.
fn records(segment: &Path) -> Vec<Record> {
    let bytes = fs::read(segment).unwrap();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let sequence = |at: usize| u64::from_le_bytes(bytes[at + 8..at + 16].try_into().unwrap());
    let (mut records, mut at) = (Vec::new(), SEGMENT_HEAD_BYTES);
    let first = sequence(at);
    while at + RECORD_HEAD_BYTES <= bytes.len() && sequence(at) == first + records.len() as u64 {
        let body_bytes = number(at + 4);
        records.push(Record { at, body_bytes });
        at += (RECORD_HEAD_BYTES + body_bytes).next_multiple_of(8);
    }
    assert!(records.len() > 2, "{} records in {}", records.len(), segment.display());
    records
}

fn store(directory: &str) -> PathBuf {
    Path::new(directory).join("member")
}

fn newest_segment(directory: &str) -> PathBuf {
    let files = fs::read_dir(store(directory)).unwrap().map(|file| file.unwrap().path());
    let is_segment = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.strip_prefix("wal-").is_some_and(|rest| rest.parse::<u64>().is_ok())
    };
    files.filter(is_segment).max().unwrap()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x40;
    fs::write(path, bytes).unwrap();
}
