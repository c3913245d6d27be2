//! The hash of keys: etcd's number, and what compaction does to it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use quorate_kv::{
    Command, Compact, DeleteRange, HashOutcome, KeyRange, Kv, KvError, KvOutcome, LeaseGrant,
    MemoryTable, Put, Query, Txn, TxnOperation,
};

struct HashedStore {
    kv: Kv<MemoryTable>,
    index: u64,
}

impl HashedStore {
    fn new() -> Self {
        Self { kv: Kv::open(MemoryTable::default()).unwrap(), index: 0 }
    }

    fn run(&mut self, command: Command) {
        self.index += 1;
        self.kv.apply(self.index, &command).unwrap().reply.result.unwrap();
    }

    fn put(&mut self, key: &str, value: &str) {
        self.run(Command::Put(put(key, value)));
    }

    fn delete(&mut self, key: &str) {
        let keys = KeyRange::single(key.to_owned());
        self.run(Command::DeleteRange(DeleteRange { keys, prev_kv: false }));
    }

    fn compact(&mut self, revision: i64) {
        self.run(Command::Compact(Compact { revision }));
    }

    fn hash(&self, revision: i64) -> Result<HashOutcome, KvError> {
        match self.kv.query(&Query::HashKv(revision)).unwrap().result {
            Ok(KvOutcome::Hash(hash)) => Ok(hash),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error),
        }
    }
}

fn put(key: &str, value: &str) -> Put {
    Put { key: key.to_owned().into(), value: value.to_owned().into(), ..Put::default() }
}

/// The numbers that etcd 3.4.23 and 3.7.3 answered after the same requests.
#[test]
fn hashes_are_those_of_etcd() {
    let mut store = HashedStore::new();
    store.put("a", "1");
    store.put("b", "2");
    store.run(Command::LeaseGrant(LeaseGrant { id: 7, ttl: 600 }));
    store.run(Command::Put(Put { lease: 7, ..put("leased", "") }));
    let puts = ["c", "d"].map(|key| TxnOperation::Put(put(key, "in one revision")));
    store.run(Command::Txn(Txn { success: puts.into(), ..Txn::default() }));
    store.put("a", &"large".repeat(60));
    store.delete("b");
    store.put("b", "again");
    let hashes: Vec<u32> = (2..=8).map(|revision| store.hash(revision).unwrap().hash).collect();
    assert_eq!(hashes, ETCD_BEFORE);
    store.delete("c");
    store.compact(9);
    store.put("a", "last");
    let hashes: Vec<u32> = (9..=10).map(|revision| store.hash(revision).unwrap().hash).collect();
    assert_eq!(hashes, ETCD_AFTER);
    assert_eq!(store.hash(9).unwrap().compact_revision, -1, "as before the compaction");
    assert_eq!(store.hash(10).unwrap().compact_revision, 9);
}

const ETCD_BEFORE: [u32; 7] =
    [2587454935, 1827592406, 261445238, 1468699716, 770366528, 1016073060, 2060742439];
const ETCD_AFTER: [u32; 2] = [3312529386, 322126789];

#[test]
fn the_hash_of_a_compacted_revision_stays() {
    let mut store = HashedStore::new();
    for round in 0..40 {
        for number in 0..100 {
            store.put(&format!("key {:04}", (round * 37 + number * 11) % 900), "value");
        }
        store.delete(&format!("key {:04}", round * 20));
        if round % 3 > 0 {
            continue;
        }
        let revision = store.kv.revision() - i64::from(round % 2) * 50;
        let before = store.hash(revision).unwrap();
        store.compact(revision);
        // At once, while the rows are removed and hashed, and afterwards.
        assert_eq!(store.hash(revision), Ok(before), "round {round}");
        while store.kv.is_compacting() {
            store.run(Command::Noop);
            assert_eq!(store.hash(revision), Ok(before), "round {round}");
        }
        assert_eq!(store.kv.compaction_hashes().last(), Some(before));
    }
    // The last ten are kept, also those below the compact revision.
    let kept: Vec<_> = store.kv.compaction_hashes().collect();
    assert_eq!(kept.len(), 10);
    for hash in &kept {
        assert_eq!(store.hash(hash.hash_revision), Ok(*hash));
    }
    assert_eq!(store.hash(kept[0].hash_revision - 1), Err(KvError::Compacted));
    // A store that was restored does not have them.
    let mut copy = HashedStore::new();
    copy.kv.install(&mut store.kv.snapshot().unwrap()).unwrap();
    let last = kept[9];
    assert_eq!(copy.hash(kept[8].hash_revision), Err(KvError::Compacted));
    assert_eq!(copy.hash(last.hash_revision).unwrap().compact_revision, last.hash_revision);
    assert_eq!(copy.hash(0), store.hash(0));
}

/// The hash of a compaction is given up when the next one comes before it is complete.
#[test]
fn a_compaction_ends_the_hash_of_the_one_before() {
    let mut store = HashedStore::new();
    for number in 0..3_000 {
        store.put(&format!("key {number}"), "value");
    }
    store.compact(2_990);
    let before = store.hash(2_995).unwrap();
    assert!(before.compact_revision == 2_990 && store.kv.is_compacting());
    store.compact(2_995);
    assert_eq!(store.hash(2_990), Err(KvError::Compacted));
    while store.kv.is_compacting() {
        store.run(Command::Noop);
    }
    assert_eq!(store.hash(2_995), Ok(before));
    assert_eq!(store.kv.compaction_hashes().len(), 1);
}
