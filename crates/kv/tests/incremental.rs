//! Incremental ranges and hashes show one revision, regardless of commands between the steps.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_kv::{
    Command, Compact, Compare, CompareOperator, CompareTarget, DeleteRange, IncrementalRead,
    KeyRange, KeyValue, Kv, KvCommandReply, KvError, KvOutcome, MemoryTable, Put, Query, Range,
    ReadLimits, ReadStage, RowFile, SortOrder, SortTarget, Txn, TxnOperation,
};

struct TestKv {
    kv: Kv<MemoryTable>,
    applied: u64,
}

impl TestKv {
    /// A store with a few keys, some of them deleted.
    fn new() -> Self {
        let mut test = Self { kv: Kv::open(MemoryTable::default()).unwrap(), applied: 0 };
        for number in 0..20 {
            test.put(&format!("key {:02}", number % 12));
        }
        test.delete("key 03");
        test
    }

    fn apply(&mut self, command: &Command) -> KvCommandReply {
        self.applied += 1;
        self.kv.apply(self.applied, command).unwrap().reply
    }

    fn put(&mut self, key: &str) {
        let value = self.applied.to_string().into();
        self.apply(&Command::Put(Put { key: key.to_owned().into(), value, ..Put::default() }));
    }

    fn delete(&mut self, key: &str) {
        let keys = KeyRange::single(key.to_owned());
        self.apply(&Command::DeleteRange(DeleteRange { keys, prev_kv: false }));
    }

    fn compact(&mut self) {
        let revision = self.kv.revision();
        self.apply(&Command::Compact(Compact { revision })).result.unwrap();
    }
}

fn in_steps_of(keys_max: usize) -> ReadLimits {
    ReadLimits::default().keys_max(keys_max)
}

/// All queries that can be read in steps.
fn queries() -> Vec<Query> {
    let all = Range { keys: KeyRange::all(), ..Range::default() };
    let ranges = [
        all.clone(),
        Range { limit: 3, ..all.clone() },
        Range { count_only: true, ..all.clone() },
        Range { sort_order: SortOrder::Descend, keys_only: true, limit: 4, ..all.clone() },
        Range {
            sort_order: SortOrder::Descend,
            sort_target: SortTarget::Value,
            keys_only: true,
            ..all.clone()
        },
        Range { min_mod_revision: 15, limit: 2, ..all.clone() },
        Range { revision: 9, ..all.clone() },
        Range { keys: KeyRange::single("key 05"), ..Range::default() },
        Range { keys: KeyRange { key: "b".into(), range_end: "a".into() }, ..Range::default() },
    ];
    let versions = |keys: KeyRange, version| Compare {
        keys,
        operator: CompareOperator::Less,
        target: CompareTarget::Version(version),
    };
    let has_value = Compare {
        keys: KeyRange::all(),
        operator: CompareOperator::NotEqual,
        target: CompareTarget::Value("none".into()),
    };
    let reads: Vec<_> = ranges.iter().cloned().map(TxnOperation::Range).collect();
    let nested = |version| {
        TxnOperation::Txn(Txn {
            compare: vec![versions(KeyRange::all(), version)],
            success: vec![TxnOperation::Range(all.clone())],
            failure: reads.clone(),
        })
    };
    let txns = [
        Txn { success: reads.clone(), ..Txn::default() },
        Txn {
            compare: vec![has_value, versions(KeyRange::single("none"), 1)],
            success: vec![nested(2), TxnOperation::Range(all.clone()), nested(3)],
            failure: Vec::new(),
        },
        Txn {
            compare: vec![versions(KeyRange::all(), 2)],
            success: Vec::new(),
            failure: vec![nested(2), nested(9)],
        },
    ];
    ranges.into_iter().map(Query::Range).chain(txns.into_iter().map(Query::Txn)).collect()
}

fn start(kv: &Kv<MemoryTable>, query: &Query) -> Result<IncrementalRead, KvError> {
    match query.clone() {
        Query::Range(range) => kv.start_range(range),
        Query::Txn(txn) => kv.start_txn(txn),
        other => panic!("{other:?}"),
    }
}

#[test]
fn incremental_reads_equal_the_query_at_their_start() {
    for query in queries() {
        for keys_max in 1..14 {
            let mut test = TestKv::new();
            let expected = test.kv.query(&query).unwrap();
            let mut read = start(&test.kv, &query).unwrap();
            let limits = in_steps_of(keys_max);
            while test.kv.continue_read(&mut read, limits).unwrap().unwrap() != ReadStage::Complete
            {
                test.put("key 01");
                test.put("key 99");
                test.delete("key 11");
            }
            assert_eq!(read.finish(), expected, "{query:?} in steps of {keys_max}");
        }
    }
}

/// A read of the current state is answered whatever is compacted meanwhile.
#[test]
fn incremental_reads_of_now_start_over_when_their_revision_is_compacted() {
    for query in queries() {
        if matches!(&query, Query::Range(range) if range.revision > 0) {
            continue;
        }
        let mut test = TestKv::new();
        let mut read = start(&test.kv, &query).unwrap();
        let mut steps = 0;
        let outcome = loop {
            // Larger steps after each restart, so that it ends.
            let limits = in_steps_of(2 << read.restarts());
            match test.kv.continue_read(&mut read, limits).unwrap() {
                Ok(ReadStage::Complete) => break Ok(test.kv.query(&query).unwrap()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
            steps += 1;
            test.put("a");
            test.compact();
        };
        let reads_old = matches!(&query, Query::Txn(_));
        match outcome {
            Ok(expected) => assert_eq!(read.finish(), expected, "{query:?} in {steps} steps"),
            // One of the ranges in the transactions names a revision.
            Err(error) => assert!(reads_old && error == KvError::Compacted, "{query:?}"),
        }
    }
}

#[test]
fn a_named_revision_is_refused_once_it_is_compacted() {
    let mut test = TestKv::new();
    let revision = test.kv.revision();
    let range = Range { keys: KeyRange::all(), revision, ..Range::default() };
    let mut read = test.kv.start_range(range).unwrap();
    let limits = in_steps_of(2);
    assert_eq!(test.kv.continue_read(&mut read, limits).unwrap(), Ok(ReadStage::Reading));
    test.compact();
    let step = test.kv.continue_read(&mut read, limits).unwrap();
    assert_eq!(step, Ok(ReadStage::Reading), "the compact revision itself stays readable");
    test.put("a");
    test.compact();
    assert_eq!(test.kv.continue_read(&mut read, limits).unwrap(), Err(KvError::Compacted));
}

#[test]
fn a_step_visits_deleted_keys_and_bytes_up_to_its_limits() {
    let mut test = TestKv::new();
    for number in 0..1_000 {
        test.put(&format!("gone {number}"));
    }
    let gone = KeyRange { key: "gone".into(), range_end: "gonf".into() };
    test.apply(&Command::DeleteRange(DeleteRange { keys: gone, prev_kv: false }));
    let all = Range { keys: KeyRange::all(), ..Range::default() };
    let mut read = test.kv.start_range(all.clone()).unwrap();
    let mut steps = 0;
    while test.kv.continue_read(&mut read, in_steps_of(10)).unwrap() != Ok(ReadStage::Complete) {
        steps += 1;
    }
    assert!(steps >= 100, "{steps} steps for 1000 deleted keys");
    // Values are as short as a number, so each step reads one or two.
    let limits = ReadLimits::default().bytes_max(1);
    let mut read = test.kv.start_range(all).unwrap();
    let mut steps = 0;
    while test.kv.continue_read(&mut read, limits).unwrap() != Ok(ReadStage::Complete) {
        steps += 1;
    }
    assert!(steps >= 10, "{steps} steps for 11 values");
}

/// A store with this many keys, most of whose rows are in a file.
fn store_with_file(keys: usize, value: &[u8]) -> TestKv {
    let directory = tempfile::tempdir().unwrap();
    let file = RowFile::create(&directory.path().join("rows"), 0, Box::new(|_| {})).unwrap();
    let kv = Kv::open(MemoryTable::with_file(file.clone())).unwrap();
    let mut test = TestKv { kv, applied: 0 };
    for number in 0..keys {
        let (key, value) = (format!("key {number:04}").into(), value.to_vec().into());
        test.apply(&Command::Put(Put { key, value, ..Put::default() }));
    }
    file.wait_until_written();
    test
}

/// How often the machine calls the function for progress while it applies a command.
fn progress_of(test: &mut TestKv, command: &Command) -> u64 {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    test.kv.report_progress_to(Arc::new(move || _ = counted.fetch_add(1, Ordering::Relaxed)));
    test.apply(command).result.unwrap();
    count.load(Ordering::Relaxed)
}

/// The lock of the store is held during a step, and each row in a file may take a read of the disk.
#[test]
fn a_step_reads_few_rows_from_a_file() {
    let test = store_with_file(1_000, b"value");
    let all = Query::Range(Range { keys: KeyRange::all(), ..Range::default() });
    let mut read = start(&test.kv, &all).unwrap();
    let mut steps = 0;
    while read.stage() != ReadStage::Complete {
        let _ = test.kv.continue_read(&mut read, ReadLimits::default()).unwrap().unwrap();
        steps += 1;
        // The rows of the last block are in memory, so that later steps may read more.
        assert!(steps > 1 || read.keys_read() <= 64, "{} rows in the first step", read.keys_read());
    }
    assert!((8..20).contains(&steps), "{steps} steps for 1,000 rows");
    assert_eq!(read.finish(), test.kv.query(&all).unwrap());
}

/// Whether all values differ from one, which is decided by their rows.
fn comparison_of_all_values() -> Txn {
    let (operator, target) = (CompareOperator::NotEqual, CompareTarget::Value("other".into()));
    let compare = vec![Compare { keys: KeyRange::all(), operator, target }];
    Txn { compare, success: Vec::new(), failure: Vec::new() }
}

#[test]
fn a_step_compares_few_rows_from_a_file() {
    let test = store_with_file(1_000, b"value");
    let mut read = test.kv.start_txn(comparison_of_all_values()).unwrap();
    let mut steps = 0;
    while read.stage() != ReadStage::Complete {
        let _ = test.kv.continue_read(&mut read, ReadLimits::default()).unwrap().unwrap();
        steps += 1;
    }
    assert!((8..20).contains(&steps), "{steps} steps for 1,000 rows");
    let Ok(KvOutcome::Txn(outcome)) = read.finish().result else { panic!() };
    assert!(outcome.succeeded);
    // Large values in memory are limited too.
    let mut test = TestKv { kv: Kv::open(MemoryTable::default()).unwrap(), applied: 0 };
    for number in 0..10 {
        let (key, value) = (format!("key {number}").into(), vec![7; 600 << 10].into());
        test.apply(&Command::Put(Put { key, value, ..Put::default() }));
    }
    let mut read = test.kv.start_txn(comparison_of_all_values()).unwrap();
    let mut steps = 0;
    while read.stage() != ReadStage::Complete {
        let _ = test.kv.continue_read(&mut read, ReadLimits::default()).unwrap().unwrap();
        steps += 1;
    }
    assert!(steps >= 5, "{steps} steps for 6 MB");
}

/// Otherwise a member with a slow disk would count as stalled.
#[test]
fn a_command_that_compares_many_rows_reports_progress() {
    let mut test = store_with_file(1_000, b"value");
    let progress = progress_of(&mut test, &Command::Txn(comparison_of_all_values()));
    assert!(progress >= 8, "{progress}");
}

#[test]
fn a_step_hashes_few_rows_if_they_are_large() {
    let test = store_with_file(50, &[7; 100_000]);
    let mut hashing = test.kv.start_hash(0).unwrap();
    let mut steps = 1;
    while test.kv.continue_hash(&mut hashing, usize::MAX).unwrap().unwrap() {
        steps += 1;
    }
    assert!((8..=10).contains(&steps), "{steps} steps for 5 MB");
    assert_eq!(hashing.finish(), test.kv.query(&Query::HashKv(0)).unwrap());
}

#[test]
fn commands_hash_few_rows_of_a_compaction_and_report_progress() {
    let mut test = store_with_file(1_000, b"value");
    let revision = test.kv.revision();
    let compact = Command::Compact(Compact { revision });
    assert!(progress_of(&mut test, &compact) >= 1_000);
    // Without a file it is the same.
    let in_memory = TestKv { kv: Kv::open(MemoryTable::default()).unwrap(), applied: 0 };
    for mut test in [store_with_file(0, b""), in_memory] {
        for number in 0..50 {
            let (key, value) = (format!("key {number}").into(), vec![7; 100_000].into());
            test.apply(&Command::Put(Put { key, value, ..Put::default() }));
        }
        let compact = Command::Compact(Compact { revision: test.kv.revision() });
        let mut hashed = Vec::new();
        let put = Command::Put(Put { key: "other".into(), ..Put::default() });
        for command in [compact, Command::Noop, put] {
            hashed.push(progress_of(&mut test, &command));
        }
        assert_eq!(hashed, [11, 11, 3]);
    }
}

#[test]
fn the_size_of_a_read_is_known_before_it_is_read() {
    for query in queries() {
        let test = TestKv::new();
        let mut read = start(&test.kv, &query).unwrap();
        while read.stage() == ReadStage::Comparing {
            test.kv.continue_read(&mut read, in_steps_of(1)).unwrap().unwrap();
        }
        while !test.kv.measure_read(&mut read, 2) {}
        while test.kv.continue_read(&mut read, in_steps_of(3)).unwrap() != Ok(ReadStage::Complete) {
        }
        let (measured, actual) = (read.bytes_measured(), read.bytes_read());
        // Filters apply only to what was read.
        assert!(measured >= actual, "{query:?}: {measured} measured, {actual} read");
    }
}

#[test]
fn incremental_hash_equals_the_hash_at_its_start() {
    for rows_max in 1..24 {
        let mut test = TestKv::new();
        let expected = test.kv.query(&Query::HashKv(0)).unwrap();
        let mut hashing = test.kv.start_hash(0).unwrap();
        while test.kv.continue_hash(&mut hashing, rows_max).unwrap().unwrap() {
            test.put("key 01");
        }
        assert_eq!(hashing.finish(), expected);
    }
}

#[test]
fn incremental_hash_starts_over_after_a_compaction() {
    let mut test = TestKv::new();
    let mut hashing = test.kv.start_hash(0).unwrap();
    let mut of_old_revision = test.kv.start_hash(5).unwrap();
    assert_eq!(test.kv.continue_hash(&mut hashing, 3).unwrap(), Ok(true));
    assert_eq!(test.kv.continue_hash(&mut of_old_revision, 3).unwrap(), Ok(true));
    test.compact();
    while test.kv.continue_hash(&mut hashing, 3).unwrap().unwrap() {}
    assert_eq!(hashing.finish(), test.kv.query(&Query::HashKv(0)).unwrap());
    assert_eq!(test.kv.continue_hash(&mut of_old_revision, 3).unwrap(), Err(KvError::Compacted));
    let deferred = test.kv.deferred_hash().unwrap();
    let now = test.kv.hash().unwrap();
    test.put("key 01");
    assert_eq!(deferred().unwrap(), now);
}

/// A range of one key takes a shorter path, which must find the same as the general one.
#[test]
fn a_single_key_is_read_as_a_range_of_it_is() {
    let mut test = TestKv::new();
    test.compact();
    (0..6).for_each(|number| test.put(&format!("key {number:02}")));
    let revision = test.kv.revision();
    let plain = Range::default();
    let filters = [
        plain.clone(),
        Range { limit: 1, ..plain.clone() },
        Range { limit: -1, keys_only: true, ..plain.clone() },
        Range { count_only: true, ..plain.clone() },
        Range { sort_order: SortOrder::Descend, sort_target: SortTarget::Value, ..plain.clone() },
        Range { keys_only: true, sort_target: SortTarget::Value, ..plain.clone() },
        Range { min_mod_revision: revision - 2, ..plain.clone() },
        Range { max_create_revision: 4, ..plain.clone() },
    ];
    for key in ["key 00", "key 03", "key 05", "key 09", "missing", ""] {
        for at in [0, -1, revision, revision - 3, 5, revision + 1] {
            for filter in &filters {
                let keys = KeyRange::single(key.to_owned());
                let range = Range { keys, revision: at, ..filter.clone() };
                let general = test.kv.start_range(range.clone()).map(|mut read| {
                    test.kv.continue_read(&mut read, ReadLimits::default()).unwrap().unwrap();
                    read.finish().result.unwrap()
                });
                let single = test.kv.read_single_key(&range).unwrap();
                let single = single.map(|(found, bytes)| {
                    let size =
                        |kv: &KeyValue| kv.key.len() + kv.value.len() + size_of::<KeyValue>();
                    assert_eq!(bytes, found.kvs.iter().map(size).sum::<usize>() as u64);
                    KvOutcome::Range(found)
                });
                assert_eq!(single, general, "{range:?}");
            }
        }
    }
}

/// What a comparison needs of an older version is in its row.
#[test]
fn comparisons_of_a_key_that_was_overwritten_since_see_its_older_version() {
    let targets = [
        (CompareTarget::Version(2), CompareTarget::Version(3)),
        (CompareTarget::Create(3), CompareTarget::Create(4)),
        (CompareTarget::Mod(15), CompareTarget::Mod(16)),
        (CompareTarget::Value("13".into()), CompareTarget::Value("14".into())),
        (CompareTarget::Lease(0), CompareTarget::Lease(1)),
    ];
    for (right, wrong) in targets {
        for (target, holds) in [(right, true), (wrong, false)] {
            let mut test = TestKv::new();
            let compare = |key: &'static str, target| {
                let keys = KeyRange::single(key);
                Compare { keys, operator: CompareOperator::Equal, target }
            };
            // The first comparison is all of the first step.
            let compare =
                vec![compare("key 00", CompareTarget::Lease(0)), compare("key 01", target.clone())];
            let txn = Txn { compare, ..Txn::default() };
            let mut read = test.kv.start_txn(txn).unwrap();
            let stage = test.kv.continue_read(&mut read, in_steps_of(1)).unwrap().unwrap();
            assert_eq!(stage, ReadStage::Comparing);
            (0..5).for_each(|_| test.put("key 01"));
            test.delete("key 01");
            while test.kv.continue_read(&mut read, in_steps_of(1)).unwrap().unwrap()
                != ReadStage::Complete
            {}
            let Ok(KvOutcome::Txn(done)) = read.finish().result else { panic!("not a txn") };
            assert_eq!(done.succeeded, holds, "{target:?}");
        }
    }
}
