//! Files of real etcds are read, with the numbers that etcd's tools print for them.
//! `scripts/etcd-fixtures.py` makes the files.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use quorate_etcd_files::{
    EtcdAlarm, EtcdDataDir, EtcdDatabase, EtcdFileError, EtcdLease, EtcdPermissionKind, fuzzing,
};
use serde_json::Value;

fn fixture(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(version)
}

fn snapshot(version: &str) -> EtcdDatabase<File> {
    EtcdDatabase::open(File::open(fixture(version).join("snapshot.db")).unwrap()).unwrap()
}

#[test]
fn snapshots_are_read_whole() {
    for (version, storage) in [("v3.4", None), ("v3.7", Some("3.7.0"))] {
        let mut database = snapshot(version);
        let marks = database.marks().unwrap();
        assert_eq!((marks.scheduled_compaction, marks.finished_compaction), (29, 29));
        assert!(marks.auth_enabled && marks.auth_revision > 5 && marks.consistent_index > 40);
        assert_eq!(marks.storage_version.as_deref(), storage);
        let lease = |id, ttl| EtcdLease { id, ttl, remaining: 0 };
        assert_eq!(database.leases().unwrap(), [lease(101, 3600), lease(103, 7200)]);
        assert_eq!(database.alarms().unwrap(), [EtcdAlarm { member: 77, kind: 1 }]);
        let users = database.users().unwrap();
        let names: Vec<_> = users.iter().map(|user| (&user.name[..], user.no_password)).collect();
        assert_eq!(names, [("alice", false), ("carol", true), ("root", false)]);
        assert!(users[0].password.starts_with(b"$2a$") && users[0].roles == ["reader"]);
        let roles = database.roles().unwrap();
        let kinds = roles[0].permissions.iter().map(|it| (it.kind, &it.key[..]));
        let expected = [
            (EtcdPermissionKind::Write, &b"from"[..]),
            (EtcdPermissionKind::Read, b"hist/"),
            (EtcdPermissionKind::ReadWrite, b"single"),
        ];
        assert!(kinds.eq(expected), "{roles:?}");
        let mut rows = Vec::new();
        database
            .rows(|row| {
                rows.push((row.main, row.sub, row.is_tombstone, row.key.to_vec(), row.value.len()));
                Ok::<_, EtcdFileError>(())
            })
            .unwrap();
        assert!(rows.contains(&(2, 29, false, b"many/0/29".to_vec(), 40)));
        assert!(rows.contains(&(32, 0, true, b"hist/b".to_vec(), 0)));
        assert!(rows.iter().any(|row| row.3 == b"large" && row.4 == 9000));
        let last = rows.last().unwrap();
        assert_eq!((last.0, &last.3[..]), (33, &b"hist/b"[..]));
        // A deletion at the compacted revision is kept since 3.4.34 and 3.5.16.
        assert_eq!(rows.iter().any(|row| row.0 == 29 && row.2), version == "v3.7");
    }
}

#[test]
fn status_has_the_numbers_of_etcds_tools() {
    for version in ["v3.4", "v3.7"] {
        let text = fs::read_to_string(fixture(version).join("snapshot.json")).unwrap();
        let expected = &serde_json::from_str::<Value>(&text).unwrap()["status"];
        let status = snapshot(version).status().unwrap();
        assert_eq!(status.hash, expected["hash"].as_u64().unwrap() as u32);
        assert_eq!(status.revision, expected["revision"]);
        assert_eq!(status.total_bytes, expected["totalSize"].as_u64().unwrap());
        // etcd 3.4 counts the rows of all buckets instead.
        assert_eq!(status.total_keys, 158);
    }
}

#[test]
fn data_directories_are_read_with_the_log_behind_the_database() {
    for version in ["v3.4", "v3.7"] {
        let data = fixture(version).join("data");
        let EtcdDataDir { mut database, log } = EtcdDataDir::open(&data, None).unwrap();
        assert_eq!(database.marks().unwrap().consistent_index, log.consistent_index);
        assert!(log.cluster_id != 0 && log.member_id != 0 && log.torn_at.is_none());
        let indexes: Vec<_> = log.entries.iter().map(|entry| entry.index).collect();
        let first = log.consistent_index + 1;
        assert!(indexes.len() >= 25, "{} entries", indexes.len());
        assert!(indexes.iter().copied().eq(first..first + indexes.len() as u64));
        let error = EtcdDataDir::open(&data, Some(&data)).unwrap_err().to_string();
        assert!(error.ends_with("*.wal does not exist"), "{error}");
    }
}

/// A received database that etcd had not put in place yet replaces the old one.
#[test]
fn a_received_database_is_used_if_the_log_continues_it() {
    let directory = tempfile::tempdir().unwrap();
    let member = directory.path().join("member");
    fs::create_dir_all(member.join("snap")).unwrap();
    fs::create_dir_all(member.join("wal")).unwrap();
    let data = fixture("v3.7").join("data/member");
    let name = "0000000000000000-0000000000000000.wal";
    fs::copy(data.join("wal").join(name), member.join("wal").join(name)).unwrap();
    fs::copy(data.join("snap/db"), member.join("snap/db")).unwrap();
    let log = EtcdDataDir::open(directory.path(), None).unwrap().log;
    // The log of the same member, with a record that says that a snapshot was received.
    let index = log.consistent_index + 2;
    let mut bytes = fs::read(member.join("wal").join(name)).unwrap();
    append_snapshot_record(&mut bytes, index);
    fs::write(member.join("wal").join(name), &bytes).unwrap();
    let received = member.join(format!("snap/{index:016x}.snap.db"));
    let error = EtcdDataDir::open(directory.path(), None).unwrap_err();
    assert!(matches!(&error, EtcdFileError::Missing(path) if *path == received), "{error}");
    fs::copy(data.join("snap/db"), &received).unwrap();
    let opened = EtcdDataDir::open(directory.path(), None).unwrap();
    assert_eq!(opened.log.consistent_index, index);
    assert_eq!(opened.log.entries.len() + 2, log.entries.len());
}

/// Appends a record of a snapshot, whose checksum continues that of the last record.
fn append_snapshot_record(log: &mut Vec<u8>, index: u64) {
    let (mut at, mut checksum) = (0, 0u32);
    while at < log.len() {
        let length = i64::from_le_bytes(log[at..at + 8].try_into().unwrap());
        let bytes = (length & 0x00ff_ffff_ffff_ffff) as usize;
        let record = &log[at + 8..at + 8 + bytes];
        let field = |number| {
            let fields = quorate_etcd_files::ProtobufFields::new(record).flatten();
            fields.filter(|field| field.number == number).last().map(|field| field.value)
        };
        checksum = field(2).map_or(0, |value| value.number()) as u32;
        let padding = if length < 0 { (length >> 56) & 7 } else { 0 };
        at += 8 + bytes + padding as usize;
    }
    let mut data = vec![8];
    put_varint(&mut data, index);
    let checksum = crc32c::crc32c_append(checksum, &data);
    let mut record = vec![8, 5, 16];
    put_varint(&mut record, checksum.into());
    record.extend([26, data.len() as u8]);
    record.extend(data);
    let padding = record.len().next_multiple_of(8) - record.len();
    let flag = if padding > 0 { (0x80 | padding as u64) << 56 } else { 0 };
    log.extend((record.len() as u64 | flag).to_le_bytes());
    log.extend(record);
    log.resize(log.len() + padding, 0);
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A database that is locked belongs to an etcd that runs.
#[test]
fn a_directory_in_use_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("member/snap/db");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::copy(fixture("v3.7").join("data/member/snap/db"), &path).unwrap();
    let running = File::options().write(true).open(&path).unwrap();
    running.lock().unwrap();
    let error = EtcdDataDir::open(directory.path(), None).unwrap_err();
    assert!(matches!(error, EtcdFileError::InUse(_)), "{error}");
}

#[test]
fn damaged_fixtures_never_panic() {
    for version in ["v3.4", "v3.7"] {
        let database = fs::read(fixture(version).join("snapshot.db")).unwrap();
        assert!(fuzzing::read_database(&database));
        let log = fs::read_dir(fixture(version).join("data/member/wal")).unwrap();
        let log = fs::read(log.last().unwrap().unwrap().path()).unwrap();
        assert!(fuzzing::read_log(&log));
        let mut seed = 1u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            (seed >> 33) as usize % below
        };
        for _ in 0..300 {
            for (bytes, read) in [(&database, true), (&log, false)] {
                let mut damaged = bytes.clone();
                for _ in 0..=random(4) {
                    let at = random(damaged.len());
                    damaged[at] = [0, 1, 0x7f, 0xff, damaged[at] ^ 4][random(5)];
                }
                if random(5) == 0 {
                    damaged.truncate(random(bytes.len()));
                }
                match read {
                    true => fuzzing::read_database(&damaged),
                    false => fuzzing::read_log(&damaged),
                };
            }
        }
    }
}
