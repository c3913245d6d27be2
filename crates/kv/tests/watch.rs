//! A poll of a watcher reads little at once.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::sync::Arc;

use quorate_kv::{
    Command, KeyRange, Kv, MemoryTable, PollLimits, Put, WatchHub, WatchPoll, WatchRequest,
};

struct TestStore {
    kv: Kv<MemoryTable>,
    hub: WatchHub,
    applied: u64,
}

impl TestStore {
    /// A store with this many keys.
    fn new(keys: usize, value_bytes: usize) -> Self {
        let kv = Kv::open(MemoryTable::default()).unwrap();
        let mut store = Self { hub: WatchHub::new(kv.revision()), kv, applied: 0 };
        (0..keys).for_each(|key| store.put(&format!("key {key:04}"), value_bytes));
        store
    }

    fn apply(&mut self, command: &Command) {
        self.applied += 1;
        let applied = self.kv.apply(self.applied, command).unwrap();
        applied.reply.result.unwrap();
        self.hub.publish(applied.events);
    }

    fn put(&mut self, key: &str, value_bytes: usize) {
        let (key, value) = (key.to_owned().into(), vec![7; value_bytes].into());
        self.apply(&Command::Put(Put { key, value, ..Put::default() }));
    }
}

#[test]
fn a_poll_reads_few_bytes_of_history_that_does_not_match() {
    let mut store = TestStore::new(100, 50_000);
    let keys = KeyRange::single("other");
    let request = WatchRequest { keys, start_revision: 2, ..WatchRequest::default() };
    let id = store.hub.create(request, store.kv.revision(), Arc::new(|_| {}));
    let mut polls = 0;
    while store.hub.poll(&store.kv, id, PollLimits::default()).unwrap() == WatchPoll::Again {
        polls += 1;
    }
    assert!((8..=10).contains(&polls), "{polls} polls for 5 MB");
    assert_eq!(store.hub.progress(id), Some(store.kv.revision()));
}
