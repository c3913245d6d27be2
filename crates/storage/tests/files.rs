//! The store on real files: restarts, trimming, permissions, locks and refusals.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use quorate_core::{
    Boot, Entry, EntryId, HardState, MemberId, Membership, Save, SaveId, SnapshotMeta,
};
use quorate_storage::{
    CreateError, Disk, FileDisk, FileName, MovedDirectory, OpenError, OpenedStore, Store,
    StoreConfig, StoreError, StoreIdentity, StoreOwner,
};

const IDENTITY: StoreIdentity =
    StoreIdentity { cluster: 0xc1, member: MemberId(7), incarnation: 99, joined_at: 0 };
const OWNER: StoreOwner = StoreOwner { cluster: 0xc1, member: MemberId(7) };
const CONFIG: StoreConfig = StoreConfig::new().segment_bytes(16 << 10).tail_bytes_max(4 << 10);

fn first_boot() -> Boot {
    Boot::first(Membership::new([MemberId(7)], []))
}

fn created(path: &Path) -> FileDisk {
    let mut disk = FileDisk::open(path).unwrap();
    Store::create(&mut disk, IDENTITY, &first_boot(), &CONFIG).unwrap();
    disk
}

fn save(term: u64, first: u64, commands: &[&[u8]]) -> Save {
    let entries = (first..).zip(commands);
    let entries = entries.map(|(index, bytes)| Entry::command(term, index, bytes.to_vec()));
    Save {
        id: SaveId(1),
        hard_state: Some(HardState { term, vote: Some(MemberId(7)), commit: 1 }),
        entries: entries.collect(),
        install: None,
        must_sync: true,
        then_send: Vec::new(),
    }
}

#[test]
fn saves_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let OpenedStore { mut store, boot, identity, boots } =
        Store::open(created(&path), OWNER, &CONFIG).unwrap();
    assert_eq!((boot, identity, boots), (first_boot(), IDENTITY, 1));
    store.write(&save(2, 2, &[b"a", b"", b"c"])).unwrap();
    store.write(&save(3, 4, &[b"d"])).unwrap();
    store.sync().unwrap();
    drop(store.close().unwrap());

    let disk = FileDisk::open(&path).unwrap();
    let OpenedStore { mut store, boot, boots, .. } = Store::open(disk, OWNER, &CONFIG).unwrap();
    assert_eq!(boots, 2);
    assert_eq!(boot.hard_state, HardState { term: 3, vote: Some(MemberId(7)), commit: 1 });
    let expected = [
        Entry::command(2, 2, b"a".as_slice()),
        Entry::command(2, 3, b"".as_slice()),
        Entry::command(3, 4, b"d".as_slice()),
    ];
    assert_eq!(boot.tail, expected.to_vec().into());
    assert_eq!(store.load(3..9, u64::MAX).unwrap(), expected[1..].to_vec().into());
    assert_eq!(store.load(3..9, 1).unwrap(), expected[1..2].to_vec().into());
}

/// A large record that is loaded in parts is read once, and no longer used when its entries are replaced.
#[test]
fn the_rest_of_a_record_is_kept_for_the_next_load() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let OpenedStore { mut store, .. } = Store::open(created(&path), OWNER, &CONFIG).unwrap();
    let commands: Vec<Vec<u8>> = (0..8).map(|number| vec![number; 500]).collect();
    let commands: Vec<&[u8]> = commands.iter().map(|command| &command[..]).collect();
    store.write(&save(2, 2, &commands)).unwrap();
    store.sync().unwrap();
    let entries = |first: u64, count: usize| -> Vec<Entry> {
        let start = first as usize - 2;
        let commands = (first..).zip(&commands[start..start + count]);
        commands.map(|(index, bytes)| Entry::command(2, index, bytes.to_vec())).collect()
    };
    assert_eq!(store.load(2..10, 600).unwrap(), entries(2, 2).into());

    let segment = path.join(FileName::Segment(2).to_string());
    let intact = fs::read(&segment).unwrap();
    let damaged: Vec<u8> = intact.iter().map(|byte| byte ^ 1).collect();
    fs::write(&segment, damaged).unwrap();
    assert_eq!(store.load(4..10, 600).unwrap(), entries(4, 2).into());
    assert_eq!(store.load(6..7, 600).unwrap(), entries(6, 1).into());
    assert_eq!(store.load(7..10, u64::MAX).unwrap(), entries(7, 3).into());
    fs::write(&segment, &intact).unwrap();

    assert_eq!(store.load(2..10, 600).unwrap(), entries(2, 2).into());
    assert_eq!(store.load(3..10, 600).unwrap(), entries(3, 2).into(), "another start");
    store.write(&save(3, 6, &[b"replaced"])).unwrap();
    let mut expected = entries(5, 1);
    expected.push(Entry::command(3, 6, b"replaced".as_slice()));
    assert_eq!(store.load(5..10, u64::MAX).unwrap(), expected.into());
}

#[test]
fn segments_are_trimmed_and_reused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let OpenedStore { mut store, .. } = Store::open(created(&path), OWNER, &CONFIG).unwrap();
    let command = vec![7; 1000];
    for index in 2..=100 {
        store.write(&save(2, index, &[&command])).unwrap();
        store.sync().unwrap();
    }
    let segments = |path: &Path| {
        let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("wal-0")).count()
    };
    let before = segments(&path);
    assert!(before > 5, "{before} segments");
    assert_eq!(store.trim(50), Err(StoreError::NotSnapshotted { newest: 1 }));

    let membership = Arc::new(Membership::new([MemberId(7)], []));
    let meta = SnapshotMeta { id: EntryId::new(2, 60), membership };
    let mut writer = store.begin_snapshot(meta.clone()).unwrap();
    store.append_snapshot(&mut writer, b"state").unwrap();
    store.finish_snapshot(writer).unwrap();
    store.trim(50).unwrap();
    assert!(segments(&path) < before);
    assert!(path.join("wal-spare").exists());
    for index in 101..=120 {
        store.write(&save(2, index, &[&command])).unwrap();
    }
    assert!(!path.join("wal-spare").exists(), "the spare segment is reused");
    drop(store.close().unwrap());

    let disk = FileDisk::open(&path).unwrap();
    let OpenedStore { mut store, boot, .. } = Store::open(disk, OWNER, &CONFIG).unwrap();
    assert_eq!((boot.snapshot.clone(), boot.applied), (meta.clone(), 60));
    assert!(boot.base.index <= 50, "entries after the trimmed ones stay: {}", boot.base);
    assert!(boot.tail.bytes() <= CONFIG.tail_bytes_max, "{}", boot.tail.bytes());
    assert_eq!(boot.tail.last().unwrap().id, EntryId::new(2, 120));
    let loaded = store.load(51..121, u64::MAX).unwrap();
    assert_eq!(loaded.len(), 70);
    let mut reader = store.open_snapshot(meta.id).unwrap();
    assert_eq!(store.read_snapshot(&mut reader).unwrap().unwrap(), "state");
    assert_eq!(store.read_snapshot(&mut reader).unwrap(), None);
}

#[test]
fn large_save_gets_a_larger_segment() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let OpenedStore { mut store, .. } = Store::open(created(&path), OWNER, &CONFIG).unwrap();
    let large = vec![1; 100 << 10];
    store.write(&save(2, 2, &[&large])).unwrap();
    drop(store.close().unwrap());
    let opened = Store::open(FileDisk::open(&path).unwrap(), OWNER, &CONFIG).unwrap();
    assert_eq!(opened.boot.tail, save(2, 2, &[&large]).entries);
}

#[test]
fn only_the_owner_has_access() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let store = Store::open(created(&path), OWNER, &CONFIG).unwrap().store;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    for entry in fs::read_dir(&path).unwrap() {
        let file = entry.unwrap().path();
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    drop(store);
    fs::set_permissions(&path, Permissions::from_mode(0o750)).unwrap();
    let refused = FileDisk::open(&path).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    assert!(refused.to_string().ends_with("mode is 0750, must be 0700"), "{refused}");
}

#[test]
fn second_process_is_refused_while_the_first_holds_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let store = Store::open(created(&path), OWNER, &CONFIG).unwrap().store;
    let second = || Store::open(FileDisk::open(&path).unwrap(), OWNER, &CONFIG).map(|_| ());
    assert_eq!(second(), Err(OpenError::Locked));
    assert_eq!(OpenError::Locked.to_string(), "directory is locked by another process");
    let mut disk = FileDisk::open(&path).unwrap();
    let again = Store::create(&mut disk, IDENTITY, &first_boot(), &CONFIG);
    assert_eq!(again, Err(CreateError::Locked));
    drop(store);
    assert_eq!(second(), Ok(()));
}

#[test]
fn store_is_not_created_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = created(&dir.path().join("data"));
    let again = Store::create(&mut disk, IDENTITY, &Boot::empty(), &CONFIG);
    assert!(matches!(again, Err(CreateError::InUse { .. })), "{again:?}");
}

#[test]
fn directory_of_another_owner_is_refused_and_the_error_names_both() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    drop(created(&path));
    let open = |cluster, member| {
        let expected = StoreOwner { cluster, member: MemberId(member) };
        Store::open(FileDisk::open(&path).unwrap(), expected, &CONFIG).map(|_| ()).unwrap_err()
    };
    assert_eq!(
        open(0xc2, 7).to_string(),
        "directory belongs to cluster 00000000000000c1, expected 00000000000000c2"
    );
    assert_eq!(
        open(0xc1, 8).to_string(),
        "directory belongs to member 0000000000000007, expected 0000000000000008"
    );
    let segment = path.join(FileName::Segment(1).to_string());
    let mut bytes = fs::read(&segment).unwrap();
    bytes[8] = 2;
    fs::write(&segment, bytes).unwrap();
    let text = open(0xc1, 7).to_string();
    let expected = "wal-00000000000000000001 has format version 2, this program reads 1: \
                    start a program that reads 2 on the same data";
    assert_eq!(text, expected);
}

#[test]
fn empty_directory_is_not_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FileDisk::open(dir.path().join("data")).unwrap();
    let opened = Store::open(disk, OWNER, &CONFIG).map(|_| ());
    assert_eq!(opened, Err(OpenError::NotCreated));
}

#[test]
fn symbolic_link_to_a_segment_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    drop(created(&path));
    let segment = path.join(FileName::Segment(1).to_string());
    let elsewhere = dir.path().join("elsewhere");
    fs::rename(&segment, &elsewhere).unwrap();
    symlink(&elsewhere, &segment).unwrap();
    let opened = Store::open(FileDisk::open(&path).unwrap(), OWNER, &CONFIG).map(|_| ());
    assert!(matches!(opened, Err(OpenError::Failed(_))), "{opened:?}");
}

#[test]
fn restarts_do_not_accumulate_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let mut disk = created(&path);
    for boot in 1..=20 {
        let OpenedStore { store, boots, .. } = Store::open(disk, OWNER, &CONFIG).unwrap();
        assert_eq!(boots, boot);
        disk = store.into_disk();
    }
    // The lock, the place, the sync mark, the snapshot and one segment.
    assert_eq!(disk.list().unwrap().len(), 5, "{:?}", disk.list().unwrap());
}

fn copy(from: &Path, to: &Path) -> FileDisk {
    let disk = FileDisk::open(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    disk
}

#[test]
fn a_copied_directory_is_refused_and_a_renamed_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("data"), dir.path().join("other"));
    drop(Store::open(created(&path), OWNER, &CONFIG).unwrap());
    fs::rename(&path, &other).unwrap();
    drop(Store::open(FileDisk::open(&other).unwrap(), OWNER, &CONFIG).unwrap());

    let open = |disk, moved| Store::open(disk, OWNER, &CONFIG.moved(moved)).map(|_| ());
    drop(copy(&other, &path));
    let again = || FileDisk::open(&path).unwrap();
    let before = fs::read_dir(&path).unwrap().count();
    assert_eq!(open(again(), MovedDirectory::Refuse), Err(OpenError::Moved));
    assert_eq!(fs::read_dir(&path).unwrap().count(), before, "nothing was changed");
    // A tool that reads it does not make it the original.
    assert_eq!(open(again(), MovedDirectory::Ignore), Ok(()));
    assert_eq!(open(again(), MovedDirectory::Refuse), Err(OpenError::Moved));
    assert_eq!(open(again(), MovedDirectory::Accept), Ok(()));
    assert_eq!(open(again(), MovedDirectory::Refuse), Ok(()));
}

#[test]
fn a_directory_without_a_recorded_place_gets_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    drop(Store::open(created(&path), OWNER, &CONFIG).unwrap());
    let open = |path: &Path| Store::open(FileDisk::open(path).unwrap(), OWNER, &CONFIG).map(|_| ());
    // As after an upgrade, and after a crash during the first start.
    fs::remove_file(path.join("place")).unwrap();
    assert_eq!(open(&path), Ok(()));
    fs::write(path.join("place"), b"qrt").unwrap();
    assert_eq!(open(&path), Ok(()));
    drop(copy(&path, &dir.path().join("copy")));
    assert_eq!(open(&dir.path().join("copy")), Err(OpenError::Moved));
}

#[test]
fn a_damaged_newest_snapshot_is_replaced_by_an_older_one_that_the_log_reaches() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let OpenedStore { mut store, .. } = Store::open(created(&path), OWNER, &CONFIG).unwrap();
    store.write(&save(2, 2, &[b"a", b"b"])).unwrap();
    store.sync().unwrap();
    let meta = SnapshotMeta { id: EntryId::new(2, 3), ..first_boot().snapshot };
    let mut writer = store.begin_snapshot(meta).unwrap();
    store.append_snapshot(&mut writer, &[7; 1000]).unwrap();
    store.finish_snapshot(writer).unwrap();
    // A crash before the log is trimmed: both snapshots are there.
    drop(store.into_disk());
    let newest = path.join(FileName::Snapshot(EntryId::new(2, 3)).to_string());
    let mut bytes = fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&newest, bytes).unwrap();

    let opened = Store::open(FileDisk::open(&path).unwrap(), OWNER, &CONFIG).unwrap();
    assert_eq!(opened.boot.snapshot.id, EntryId::new(1, 1));
    assert_eq!(opened.boot.tail.last().unwrap().id, EntryId::new(2, 3));
    assert!(!newest.exists());
}
