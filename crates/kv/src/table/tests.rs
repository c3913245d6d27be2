//! Tables in memory, with and without a file, compared with a plain map; failures of the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::file_space::Extent;
use super::row_file::RowStorage;
use super::{MemoryTable, RowFile, RowReader, RowRef, Table, TableError};
use crate::revision::RowKey;

/// What a table must contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowMap(BTreeMap<RowKey, Bytes>);

impl RowMap {
    /// Enough rows for many blocks, in an order that covers every way to put and remove one.
    pub(super) fn change_randomly(&mut self, table: &mut MemoryTable, seed: u64, steps: u64) {
        let mut number = u128::from(seed);
        for step in 0..steps {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(12345);
            let key = random_key(number);
            let bytes = match number >> 8 & 0xfff {
                0 => 70_000,
                large if large < 50 => 5_000,
                small => (small & 0xff) as usize,
            };
            let mut row = step.to_le_bytes().to_vec();
            row.resize(bytes, step as u8);
            let row = Bytes::from(row);
            if number >> 20 & 3 == 0 {
                table.remove(key).unwrap();
                self.0.remove(&key);
            } else {
                table.put(key, row.clone()).unwrap();
                self.0.insert(key, row);
            }
        }
    }

    fn assert_same(&self, rows: &impl RowReader) {
        let mut found = BTreeMap::new();
        let visit = &mut |key, row: RowRef<'_>| {
            found.insert(key, row.to_bytes());
            ControlFlow::Continue(())
        };
        rows.scan(RowKey(0), RowKey::END, visit).unwrap();
        assert_eq!(found, self.0);
        for key in (0..0x4000).map(|number| random_key(number << 40)) {
            assert_eq!(rows.get(key).unwrap().as_ref(), self.0.get(&key));
        }
        let (from, to) = (random_key(77 << 40), random_key(3_000 << 40));
        let mut from_middle = Vec::new();
        let visit = &mut |key, _: RowRef<'_>| {
            from_middle.push(key);
            ControlFlow::Continue(())
        };
        rows.scan(from, to, visit).unwrap();
        let expected: Vec<_> = self.0.range(from..to).map(|(key, _)| *key).collect();
        assert_eq!(from_middle, expected);
    }
}

/// One of 8192 keys of two kinds.
fn random_key(number: u128) -> RowKey {
    let kind = if number >> 52 & 1 == 0 { 0 } else { 3 << 120 };
    RowKey(kind | number >> 40 & 0xfff)
}

#[test]
fn behaves_as_a_map_and_views_do_not_change() {
    let (mut table, mut map) = (MemoryTable::default(), RowMap::default());
    let mut views = Vec::new();
    for round in 0..5 {
        map.change_randomly(&mut table, round, 4_000);
        views.push((table.view().unwrap(), map.clone()));
    }
    for (view, map) in views {
        map.assert_same(&view);
    }
}

#[test]
fn a_table_with_a_file_behaves_as_a_map_and_views_do_not_change() {
    for memory_bytes in [0, 100_000] {
        let parts = TestParts::new(memory_bytes);
        let mut table = parts.table();
        let (mut map, mut views) = (RowMap::default(), Vec::new());
        for round in 0..40 {
            map.change_randomly(&mut table, round, 500);
            // In the other rounds the thread moves blocks while they change.
            if round % 2 == 0 {
                parts.file.wait_until_written();
                let usage = parts.file.usage();
                assert!(usage.memory_bytes <= memory_bytes, "{usage:?}");
                assert!(round < 10 || usage.file_bytes > 50_000, "{usage:?}");
            }
            if round % 8 == 0 {
                views.push((table.view().unwrap(), map.clone()));
            }
        }
        map.assert_same(&table);
        drop(table);
        for (view, map) in views {
            map.assert_same(&view);
        }
        parts.file.wait_until_written();
        assert_eq!((parts.allocated(), parts.file.usage().file_bytes), (0, 0));
    }
}

#[test]
fn the_newest_rows_stay_in_memory() {
    let parts = TestParts::new(1 << 20);
    let mut table = parts.table();
    for number in 0..10_000 {
        table.put(revision(number), vec![7; 1_000].into()).unwrap();
    }
    parts.file.wait_until_written();
    let usage = parts.file.usage();
    assert!((800_000..=1 << 20).contains(&usage.memory_bytes), "{usage:?}");
    assert!(usage.file_bytes > 8_900_000, "{usage:?}");
    // Rows of compacted old blocks are old rows.
    for number in (0..8_000).filter(|number| number % 10 != 0) {
        table.remove(revision(number)).unwrap();
    }
    parts.damage();
    for number in 9_250..10_000 {
        assert_eq!(table.get(revision(number)).unwrap().unwrap(), vec![7; 1_000]);
    }
}

/// Revisions ascend, so this does not happen yet.
#[test]
fn rows_that_are_put_before_all_others_do_not_stay_in_memory() {
    let parts = TestParts::new(0);
    let (mut table, mut map) = (parts.table(), RowMap::default());
    for number in (0..2_000u16).rev() {
        let (key, row) = (revision(number.into()), Bytes::from(vec![number as u8; 1_000]));
        table.put(key, row.clone()).unwrap();
        map.0.insert(key, row);
    }
    parts.file.wait_until_written();
    map.assert_same(&table);
    let usage = parts.file.usage();
    // But those of the last block.
    assert!(usage.file_bytes >= 1_900_000 && usage.memory_bytes == 0, "{usage:?}");
}

#[test]
fn removed_rows_free_their_space_unless_a_view_has_them() {
    let parts = TestParts::new(100_000);
    let mut table = parts.table();
    for number in 0..20_000 {
        table.put(revision(number), vec![number as u8; 1_000].into()).unwrap();
    }
    parts.file.wait_until_written();
    let view = table.view().unwrap();
    let full = parts.allocated();
    assert!(full > 19_000_000, "{full}");
    for number in (0..20_000).filter(|number| number % 200 != 0) {
        table.remove(revision(number)).unwrap();
    }
    parts.file.wait_until_written();
    assert!(parts.allocated() >= full, "{} of {full}", parts.allocated());
    for number in 0..20_000 {
        assert_eq!(view.get(revision(number)).unwrap().unwrap(), vec![number as u8; 1_000]);
        let row = table.get(revision(number)).unwrap();
        assert_eq!(row.is_some(), number % 200 == 0, "{number}");
    }
    drop(view);
    parts.file.wait_until_written();
    let few = parts.allocated();
    assert!(few < full / 20, "{few} of {full}");
    // New rows take the space again.
    for round in 0..20 {
        let rows = 20_000 + round * 1_000..21_000 + round * 1_000;
        for number in rows.clone() {
            table.put(revision(number), vec![number as u8; 1_000].into()).unwrap();
        }
        rows.for_each(|number| table.remove(revision(number)).unwrap());
    }
    parts.file.wait_until_written();
    assert!(parts.allocated() < full / 20, "{}", parts.allocated());
    let length = parts.contents.metadata().unwrap().len();
    assert!(length < full + full / 10, "{length}: space is used again");
}

#[test]
fn space_is_freed_in_large_parts() {
    let parts = TestParts::new(0);
    let mut table = parts.table();
    put_rows(&mut table, 0..20_000);
    parts.file.wait_until_written();
    let (view, hang) = (table.view().unwrap(), parts.hang.lock().unwrap());
    // The thread waits with this row while all others become unused.
    table.put(revision(20_000), vec![1; 100_000].into()).unwrap();
    parts.wait_for_hanging();
    drop((table, view));
    parts.calls.lock().unwrap().clear();
    drop(hang);
    parts.file.wait_until_written();
    let calls = parts.calls.lock().unwrap().clone();
    assert_eq!(parts.allocated(), 0);
    assert!(calls.len() < 10, "{calls:?} for 300 blocks");
}

#[test]
fn rows_are_moved_while_much_space_is_freed() {
    let parts = TestParts::new(0);
    let mut table = parts.table();
    let mut put = |numbers: Range<u128>| {
        numbers.for_each(|number| table.put(revision(number), vec![1; 70_000].into()).unwrap());
    };
    put(0..200);
    parts.file.wait_until_written();
    let hang = parts.hang.lock().unwrap();
    put(200..211);
    parts.wait_for_hanging();
    // No two of them touch each other.
    (0..200).step_by(2).for_each(|number| table.remove(revision(number)).unwrap());
    parts.calls.lock().unwrap().clear();
    drop(hang);
    parts.file.wait_until_written();
    let calls = parts.calls.lock().unwrap().clone();
    assert_eq!(calls.iter().filter(|call| **call == "free").count(), 100);
    let writes: Vec<_> = (0..calls.len()).filter(|at| calls[*at] == "write").collect();
    assert_eq!(writes.len(), 11);
    assert!(writes.windows(2).all(|pair| pair[1] - pair[0] <= 17), "{calls:?}");
}

#[test]
fn a_staged_state_and_a_detached_table_use_the_file() {
    let parts = TestParts::new(0);
    let mut table = parts.table();
    table.put(revision(1), vec![1; 100].into()).unwrap();
    for number in 0..2_000 {
        table.stage(revision(number), &[2; 1_000]).unwrap();
    }
    parts.file.wait_until_written();
    let staged = parts.file.usage().file_bytes;
    assert!(staged > 1_900_000);
    table.replace_by_staged().unwrap();
    let mut detached = table.make_detached().unwrap()();
    for number in 0..2_000 {
        detached.put(revision(number), vec![3; 1_000].into()).unwrap();
    }
    parts.file.wait_until_written();
    assert!(parts.file.usage().file_bytes > 2 * staged - 100_000);
    assert_eq!(table.get(revision(7)).unwrap().unwrap(), vec![2; 1_000]);
    assert_eq!(detached.get(revision(7)).unwrap().unwrap(), vec![3; 1_000]);
    let before = parts.file.usage().file_bytes;
    assert!(!table.claim(b"another owner").unwrap());
    assert!(parts.file.usage().file_bytes < before);
    for number in 0..2_000 {
        table.stage(revision(number), &[4; 1_000]).unwrap();
    }
    parts.file.wait_until_written();
    assert_eq!(parts.file.usage().memory_bytes, 0);
    table.drop_staged().unwrap();
    drop((table, detached));
    parts.file.wait_until_written();
    assert_eq!((parts.file.usage(), parts.allocated()), Default::default());
}

#[test]
fn damage_is_an_error() {
    for (damage, error_of_get) in [
        (TestParts::damage as fn(&TestParts), true),
        (|parts| parts.contents.set_len(70_000).unwrap(), true),
        // As if a write had been lost.
        (|parts| parts.contents.write_all_at(&[0; 1_000_000], 0).unwrap(), true),
        (|parts| parts.contents.write_all_at(&[9; 1_000_000], 10_000_000).unwrap(), false),
    ] {
        let parts = TestParts::new(0);
        let mut table = parts.table();
        for number in 0..1_000 {
            table.put(revision(number), vec![7; 1_000].into()).unwrap();
        }
        parts.file.wait_until_written();
        damage(&parts);
        let key = revision(500);
        let read = table.get(key);
        let scanned = table.scan(key, RowKey::END, &mut |_, _| ControlFlow::Continue(()));
        let mut removed = (0..400).map(|number| table.remove(revision(number)));
        let removed = removed.find(Result::is_err);
        if error_of_get {
            assert!(matches!(read, Err(TableError::BadRow(bad)) if bad == key), "{read:?}");
            assert!(matches!(scanned, Err(TableError::BadRow(bad)) if bad == key));
            // Blocks of which few rows remain are read and written again.
            assert!(matches!(removed, Some(Err(TableError::BadRow(_)))), "{removed:?}");
        } else {
            assert_eq!(read.unwrap().unwrap(), vec![7; 1_000]);
            assert!(scanned.is_ok() && removed.is_none());
        }
    }
}

#[test]
fn rows_stay_in_memory_while_writes_fail_and_are_moved_later() {
    let parts = TestParts::new(10_000);
    parts.fails.store(true, Ordering::SeqCst);
    let (mut table, mut map) = (parts.table(), RowMap::default());
    map.change_randomly(&mut table, 1, 5_000);
    parts.file.wait_until_written();
    assert_eq!((parts.file.usage().file_bytes, parts.allocated()), (0, 0));
    map.assert_same(&table);
    parts.wait_for_failures(3);
    assert_eq!(*parts.reports.lock().unwrap(), ["no space left"]);
    parts.fails.store(false, Ordering::SeqCst);
    while parts.file.usage().memory_bytes > 10_000 {
        std::thread::sleep(Duration::from_millis(1));
    }
    map.assert_same(&table);
    parts.wait_for_reports(2);
    assert_eq!(*parts.reports.lock().unwrap(), ["no space left", "ok"]);
}

#[test]
fn a_failure_is_reported_once_though_some_writes_succeed() {
    let parts = TestParts::new(100_000);
    let mut table = parts.table();
    put_rows(&mut table, 0..2_000);
    parts.file.wait_until_written();
    parts.disk_bytes.store(parts.allocated() + (256 << 20) + 2_000_000, Ordering::SeqCst);
    put_rows(&mut table, 2_000..5_000);
    parts.wait_for_failures(1);
    // Makes room for some rows each time.
    for number in (0..1_920).step_by(64) {
        (number..number + 64).for_each(|number| table.remove(revision(number)).unwrap());
        parts.wait_for_failures(parts.file.usage().failures + 1);
    }
    assert!(parts.file.usage().memory_bytes < 2_500_000, "{:?}", parts.file.usage());
    assert_eq!(parts.reports.lock().unwrap().len(), 1);
    parts.disk_bytes.store(u64::MAX, Ordering::SeqCst);
    parts.wait_for_reports(2);
    assert_eq!(parts.reports.lock().unwrap()[1], "ok");
}

#[test]
fn a_failure_ends_when_the_rows_that_failed_are_removed() {
    let parts = TestParts::new(100_000);
    parts.fails.store(true, Ordering::SeqCst);
    let mut table = parts.table();
    put_rows(&mut table, 0..1_000);
    parts.wait_for_failures(2);
    (0..1_000).for_each(|number| table.remove(revision(number)).unwrap());
    parts.wait_for_reports(2);
    assert_eq!(*parts.reports.lock().unwrap(), ["no space left", "ok"]);
}

/// The page cache takes writes that the disk refuses later.
#[test]
fn rows_stay_in_memory_until_the_file_is_synced() {
    let parts = TestParts::new(10_000);
    parts.sync_fails.store(true, Ordering::SeqCst);
    let (mut table, mut map) = (parts.table(), RowMap::default());
    map.change_randomly(&mut table, 1, 5_000);
    parts.wait_for_failures(3);
    assert_eq!(parts.file.usage().file_bytes, 0);
    parts.contents.set_len(0).unwrap();
    map.assert_same(&table);
    assert_eq!(*parts.reports.lock().unwrap(), ["input/output error"]);
    parts.sync_fails.store(false, Ordering::SeqCst);
    while parts.file.usage().memory_bytes > 10_000 {
        std::thread::sleep(Duration::from_millis(1));
    }
    map.assert_same(&table);
}

#[test]
fn the_file_does_not_grow_while_little_of_the_disk_is_free() {
    let parts = TestParts::new(100_000);
    let mut table = parts.table();
    put_rows(&mut table, 0..1_000);
    parts.file.wait_until_written();
    let (usage, length) = (parts.file.usage(), parts.contents.metadata().unwrap().len());
    assert!(usage.file_bytes > 800_000 && usage.memory_bytes <= 100_000, "{usage:?}");
    // A snapshot of a million bytes would not fit.
    parts.disk_bytes.store(parts.allocated() + (256 << 20) + 900_000, Ordering::SeqCst);
    put_rows(&mut table, 1_000..2_000);
    parts.wait_for_failures(2);
    assert_eq!(parts.contents.metadata().unwrap().len(), length);
    let reports = parts.reports.lock().unwrap().clone();
    assert!(matches!(&reports[..], [one] if one.starts_with("less than 25")), "{reports:?}");
    // Space that becomes unused is used again.
    for number in 0..700 {
        table.remove(revision(number)).unwrap();
    }
    while parts.file.usage().memory_bytes > 950_000 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(parts.contents.metadata().unwrap().len() <= length);
    parts.disk_bytes.store(u64::MAX, Ordering::SeqCst);
    while parts.file.usage().memory_bytes > 100_000 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Unused parts of the file were returned to the file system, so that others may have taken their space.
#[test]
fn unused_parts_of_the_file_are_not_used_while_little_of_the_disk_is_free() {
    let parts = TestParts::new(100_000);
    let mut table = parts.table();
    put_rows(&mut table, 0..20_000);
    parts.file.wait_until_written();
    for number in 0..19_000 {
        table.remove(revision(number)).unwrap();
    }
    parts.file.wait_until_written();
    let few = parts.allocated();
    assert!(few < 2_000_000, "{few}");
    parts.disk_bytes.store(few + (10 << 20), Ordering::SeqCst);
    put_rows(&mut table, 20_000..25_000);
    parts.wait_for_failures(2);
    assert_eq!(parts.allocated(), few);
    assert!(parts.file.usage().memory_bytes > 4_900_000, "{:?}", parts.file.usage());
    parts.disk_bytes.store(u64::MAX, Ordering::SeqCst);
    while parts.file.usage().memory_bytes > 100_000 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn rows_in_the_file_are_known() {
    let parts = TestParts::new(0);
    let mut table = parts.table();
    for number in 0..1_000 {
        table.put(revision(number), vec![1; 1_000].into()).unwrap();
    }
    parts.file.wait_until_written();
    assert!(table.is_in_file(revision(0)) && table.view().unwrap().is_in_file(revision(500)));
    assert!(!table.is_in_file(revision(999)), "its block is not closed");
    assert!(!table.is_in_file(RowKey(0)));
    assert!(!MemoryTable::default().is_in_file(revision(0)));
}

/// A scan reads ahead.
#[test]
fn a_row_that_is_kept_does_not_keep_all_that_was_read() {
    let parts = TestParts::new(0);
    let mut table = parts.table();
    for number in 0..100 {
        let bytes = [4_200, 3_900, 12_000][number as usize % 3];
        table.put(revision(number), vec![7; bytes].into()).unwrap();
    }
    parts.file.wait_until_written();
    let mut copied = BTreeMap::new();
    let visit = &mut |_, row: RowRef<'_>| {
        *copied.entry((row.len(), row.to_bytes().as_ptr() != row.as_ptr())).or_insert(0) += 1;
        ControlFlow::Continue(())
    };
    table.scan(revision(0), revision(90), visit).unwrap();
    let expected =
        BTreeMap::from([((3_900, true), 30), ((4_200, true), 30), ((12_000, false), 30)]);
    assert_eq!(copied, expected);
}

#[test]
fn nothing_waits_for_a_disk_that_hangs() {
    let parts = TestParts::new(10_000);
    let hang = parts.hang.lock().unwrap();
    let (mut table, mut map) = (parts.table(), RowMap::default());
    map.change_randomly(&mut table, 1, 5_000);
    map.assert_same(&table);
    let view = table.view().unwrap();
    let mut detached = table.make_detached().unwrap()();
    RowMap::default().change_randomly(&mut detached, 2, 1_000);
    drop(detached);
    assert_eq!(parts.file.usage().file_bytes, 0);
    drop(hang);
    parts.file.wait_until_written();
    assert!(parts.file.usage().file_bytes > 10_000);
    map.assert_same(&view);
}

#[test]
fn the_thread_ends_with_the_last_handle() {
    let TestParts { file, ended, .. } = TestParts::new(0);
    let mut table = MemoryTable::with_file(file);
    table.put(revision(1), vec![1; 100_000].into()).unwrap();
    let view = table.view().unwrap();
    drop(table);
    assert_eq!(view.get(revision(1)).unwrap().unwrap(), vec![1; 100_000]);
    drop(view);
    while Arc::strong_count(&ended) > 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_file_has_no_name_and_replaces_a_leftover() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows.tmp");
    std::fs::write(&path, "leftover").unwrap();
    let create = |path| RowFile::create(path, 0, Box::new(|_| {}));
    let mut table = MemoryTable::with_file(create(&path).unwrap());
    assert!(!path.exists());
    table.put(revision(1), vec![1; 100_000].into()).unwrap();
    assert_eq!(table.get(revision(1)).unwrap().unwrap(), vec![1; 100_000]);
    let missing = create(&directory.path().join("missing/rows.tmp")).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
}

fn revision(number: u128) -> RowKey {
    RowKey(3 << 120 | number << 32)
}

fn put_rows(table: &mut MemoryTable, numbers: Range<u128>) {
    numbers.for_each(|number| table.put(revision(number), vec![1; 1_000].into()).unwrap());
}

/// A file, and what a test needs to look at it.
struct TestParts {
    file: RowFile,
    contents: File,
    fails: Arc<AtomicBool>,
    sync_fails: Arc<AtomicBool>,
    /// The size of the disk.
    disk_bytes: Arc<AtomicU64>,
    /// Writes wait while a test has the lock.
    hang: Arc<Mutex<()>>,
    is_hanging: Arc<AtomicBool>,
    reports: Arc<Mutex<Vec<String>>>,
    /// What the thread has done with the file.
    calls: Arc<Mutex<Vec<&'static str>>>,
    ended: Arc<()>,
}

struct TestStorage {
    file: File,
    fails: Arc<AtomicBool>,
    sync_fails: Arc<AtomicBool>,
    disk_bytes: Arc<AtomicU64>,
    hang: Arc<Mutex<()>>,
    is_hanging: Arc<AtomicBool>,
    calls: Arc<Mutex<Vec<&'static str>>>,
    _ended: Arc<()>,
}

impl TestParts {
    fn new(memory_bytes_max: u64) -> Self {
        let contents = tempfile::tempfile().unwrap();
        let (fails, ended) = (Arc::<AtomicBool>::default(), Arc::new(()));
        let sync_fails = Arc::<AtomicBool>::default();
        let disk_bytes = Arc::new(AtomicU64::new(u64::MAX));
        let hang = Arc::<Mutex<()>>::default();
        let is_hanging = Arc::<AtomicBool>::default();
        let calls = Arc::<Mutex<Vec<&'static str>>>::default();
        let storage = TestStorage {
            file: contents.try_clone().unwrap(),
            fails: Arc::clone(&fails),
            sync_fails: Arc::clone(&sync_fails),
            disk_bytes: Arc::clone(&disk_bytes),
            hang: Arc::clone(&hang),
            is_hanging: Arc::clone(&is_hanging),
            calls: Arc::clone(&calls),
            _ended: Arc::clone(&ended),
        };
        let reports: Arc<Mutex<Vec<String>>> = Arc::default();
        let reported = Arc::clone(&reports);
        let report = Box::new(move |result: Result<(), &io::Error>| {
            let text = result.map_or_else(io::Error::to_string, |()| "ok".into());
            reported.lock().unwrap().push(text);
        });
        let pause = Duration::from_millis(5);
        let file = RowFile::start(Box::new(storage), memory_bytes_max, pause, report).unwrap();
        Self {
            file,
            contents,
            fails,
            sync_fails,
            disk_bytes,
            hang,
            is_hanging,
            reports,
            calls,
            ended,
        }
    }

    fn table(&self) -> MemoryTable {
        MemoryTable::with_file(self.file.clone())
    }

    fn wait_for_failures(&self, count: u64) {
        while self.file.usage().failures < count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait_for_hanging(&self) {
        while !self.is_hanging.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait_for_reports(&self, count: usize) {
        while self.reports.lock().unwrap().len() < count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn allocated(&self) -> u64 {
        self.contents.metadata().unwrap().blocks() * 512
    }

    /// Changes one byte of each page.
    fn damage(&self) {
        let length = self.contents.metadata().unwrap().len();
        for at in (0..length).step_by(1 << 10) {
            let mut byte = [0];
            self.contents.read_exact_at(&mut byte, at).unwrap();
            self.contents.write_all_at(&[!byte[0]], at).unwrap();
        }
    }
}

impl RowStorage for TestStorage {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.is_hanging.store(true, Ordering::SeqCst);
        drop(self.hang.lock().unwrap());
        self.is_hanging.store(false, Ordering::SeqCst);
        self.calls.lock().unwrap().push("write");
        match self.fails.load(Ordering::SeqCst) {
            true => Err(io::Error::other("no space left")),
            false => self.file.write(offset, bytes),
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self.sync_fails.load(Ordering::SeqCst) {
            true => Err(io::Error::other("input/output error")),
            false => Ok(()),
        }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let used = self.file.metadata()?.blocks() * 512;
        Ok(self.disk_bytes.load(Ordering::SeqCst).saturating_sub(used))
    }

    fn free(&self, extent: Extent) -> bool {
        self.calls.lock().unwrap().push("free");
        RowStorage::free(&self.file, extent)
    }

    fn set_end(&self, end: u64) {
        self.calls.lock().unwrap().push("set end");
        self.file.set_end(end);
    }
}
