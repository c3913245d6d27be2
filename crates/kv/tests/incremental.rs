//! Incremental ranges and hashes show one revision, regardless of commands between the steps.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use quorate_kv::{
    Command, Compact, Compare, CompareOperator, CompareTarget, DeleteRange, IncrementalRead,
    KeyRange, Kv, KvCommandReply, KvError, MemoryTable, Put, Query, Range, ReadLimits, ReadStage,
    SortOrder, SortTarget, Txn, TxnOperation,
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
