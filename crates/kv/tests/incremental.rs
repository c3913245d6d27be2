//! Incremental ranges and hashes show one revision, regardless of commands between the steps.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use quorate_kv::{
    Command, Compact, DeleteRange, KeyRange, Kv, KvCommandReply, KvError, MemoryTable, Put, Query,
    Range, SortOrder,
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

#[test]
fn incremental_range_equals_the_range_at_its_start() {
    let all = Range { keys: KeyRange::all(), ..Range::default() };
    let ranges = [
        all.clone(),
        Range { limit: 3, ..all.clone() },
        Range { count_only: true, ..all.clone() },
        Range { sort_order: SortOrder::Descend, keys_only: true, limit: 4, ..all.clone() },
        Range { revision: 9, ..all.clone() },
        Range { keys: KeyRange::single("key 05"), ..Range::default() },
        Range { keys: KeyRange { key: "b".into(), range_end: "a".into() }, ..Range::default() },
    ];
    for range in ranges {
        for keys_max in 1..14 {
            let mut test = TestKv::new();
            let expected = test.kv.query(&Query::Range(range.clone())).unwrap();
            let mut reading = test.kv.start_range(range.clone()).unwrap();
            while test.kv.continue_range(&mut reading, keys_max).unwrap().unwrap() {
                test.put("key 01");
                test.put("key 99");
                test.delete("key 11");
            }
            assert_eq!(reading.finish(), expected, "{range:?} in steps of {keys_max}");
        }
    }
}

#[test]
fn incremental_range_is_refused_when_its_revision_is_compacted() {
    let mut test = TestKv::new();
    let mut reading = test.kv.start_range(Range { keys: KeyRange::all(), ..Range::default() });
    let reading = reading.as_mut().unwrap();
    assert_eq!(test.kv.continue_range(reading, 2).unwrap(), Ok(true));
    test.compact();
    assert_eq!(
        test.kv.continue_range(reading, 2).unwrap(),
        Ok(true),
        "the compact revision itself stays readable"
    );
    test.put("a");
    test.compact();
    assert_eq!(test.kv.continue_range(reading, 2).unwrap(), Err(KvError::Compacted));
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
