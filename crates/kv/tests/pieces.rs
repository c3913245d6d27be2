//! What is read in pieces shows one revision, whatever runs between them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use quorate_kv::{
    Command, Compact, DeleteRange, KeyRange, Kv, KvError, KvReply, MemoryTable, Put, Query, Range,
    SortOrder,
};

struct Run {
    kv: Kv<MemoryTable>,
    applied: u64,
}

impl Run {
    /// A few keys, some of them deleted.
    fn new() -> Self {
        let mut run = Self { kv: Kv::open(MemoryTable::default()).unwrap(), applied: 0 };
        for number in 0..20 {
            run.put(&format!("key {:02}", number % 12));
        }
        run.delete("key 03");
        run
    }

    fn apply(&mut self, command: &Command) -> KvReply {
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
fn a_range_in_pieces_is_the_range_as_it_was_when_it_began() {
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
            let mut run = Run::new();
            let expected = run.kv.query(&Query::Range(range.clone())).unwrap();
            let mut reading = run.kv.start_range(range.clone()).unwrap();
            while run.kv.continue_range(&mut reading, keys_max).unwrap().unwrap() {
                run.put("key 01");
                run.put("key 99");
                run.delete("key 11");
            }
            assert_eq!(reading.finish(), expected, "{range:?} by {keys_max}");
        }
    }
}

#[test]
fn a_range_in_pieces_ends_when_its_revision_is_compacted() {
    let mut run = Run::new();
    let mut reading = run.kv.start_range(Range { keys: KeyRange::all(), ..Range::default() });
    let reading = reading.as_mut().unwrap();
    assert_eq!(run.kv.continue_range(reading, 2).unwrap(), Ok(true));
    run.compact();
    assert_eq!(run.kv.continue_range(reading, 2).unwrap(), Ok(true), "that revision is left");
    run.put("a");
    run.compact();
    assert_eq!(run.kv.continue_range(reading, 2).unwrap(), Err(KvError::Compacted));
}

#[test]
fn a_hash_in_pieces_is_that_of_the_revision_at_which_it_began() {
    for rows_max in 1..24 {
        let mut run = Run::new();
        let expected = run.kv.query(&Query::HashKv(0)).unwrap();
        let mut hashing = run.kv.start_hash(0).unwrap();
        while run.kv.continue_hash(&mut hashing, rows_max).unwrap().unwrap() {
            run.put("key 01");
        }
        assert_eq!(hashing.finish(), expected);
    }
}

#[test]
fn a_hash_in_pieces_begins_anew_after_a_compaction() {
    let mut run = Run::new();
    let mut hashing = run.kv.start_hash(0).unwrap();
    let mut of_the_past = run.kv.start_hash(5).unwrap();
    assert_eq!(run.kv.continue_hash(&mut hashing, 3).unwrap(), Ok(true));
    assert_eq!(run.kv.continue_hash(&mut of_the_past, 3).unwrap(), Ok(true));
    run.compact();
    while run.kv.continue_hash(&mut hashing, 3).unwrap().unwrap() {}
    assert_eq!(hashing.finish(), run.kv.query(&Query::HashKv(0)).unwrap());
    assert_eq!(run.kv.continue_hash(&mut of_the_past, 3).unwrap(), Err(KvError::Compacted));
    let later = run.kv.deferred_hash().unwrap();
    let now = run.kv.hash().unwrap();
    run.put("key 01");
    assert_eq!(later().unwrap(), now);
}
