//! A poll of a watcher reads little at once.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::sync::Arc;

use quorate_kv::{
    Command, Compact, DeleteRange, KeyRange, Kv, MemoryTable, PollLimits, Put, ReadLimits,
    WatchEvent, WatchHub, WatchPoll, WatchRequest, WatcherId,
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

    /// A watcher of all keys, with previous pairs.
    fn watch(&mut self) -> WatcherId {
        let request = WatchRequest { keys: KeyRange::all(), prev_kv: true, ..Default::default() };
        self.hub.create(request, self.kv.revision(), Arc::new(|_| {}))
    }

    fn delete_all(&mut self) {
        self.apply(&Command::DeleteRange(DeleteRange { keys: KeyRange::all(), prev_kv: false }));
    }

    fn poll_events(&mut self, id: WatcherId) -> Vec<WatchEvent> {
        match self.hub.poll_events(&self.kv, id, PollLimits::default()).unwrap() {
            WatchPoll::Events { events, .. } => events,
            other => panic!("{other:?}"),
        }
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

#[test]
fn previous_pairs_of_many_revisions_are_read_a_few_at_a_time() {
    let mut store = TestStore::new(100, 100_000);
    let id = store.watch();
    (0..100).for_each(|key| store.put(&format!("key {key:04}"), 1));
    let mut polls = 0;
    let mut delivered = 0;
    while delivered < 100 {
        let WatchPoll::Events { events, .. } =
            store.hub.poll(&store.kv, id, PollLimits::default()).unwrap()
        else {
            panic!()
        };
        for event in &events {
            assert_eq!(event.previous.as_ref().unwrap().value.len(), 100_000);
        }
        (polls, delivered) = (polls + 1, delivered + events.len());
    }
    assert!((8..=12).contains(&polls), "{polls} polls for 10 MB");
}

/// A revision is never split, but its previous pairs are measured before they are read, and read in steps.
#[test]
fn previous_pairs_of_one_revision_are_measured_and_read_in_steps() {
    let mut store = TestStore::new(100, 100_000);
    let id = store.watch();
    store.delete_all();
    let mut events = store.poll_events(id);
    assert!(events.len() == 100 && events.iter().all(|event| event.previous.is_none()));
    let (count, bytes) = store.kv.measure_previous(&events, usize::MAX);
    assert!(count == 100 && (10_000_000..10_100_000).contains(&bytes), "{count} with {bytes}");
    assert_eq!(store.kv.measure_previous(&events, 250_000).0, 2);
    assert_eq!(store.kv.measure_previous(&events, 1).0, 1);
    let (mut read, mut steps) = (0, 0);
    while read < events.len() {
        let limits = ReadLimits::default();
        read += store.kv.read_previous(&mut events[read..], limits).unwrap();
        steps += 1;
    }
    assert!((8..=12).contains(&steps), "{steps} steps for 10 MB");
    for event in &events {
        let previous = event.previous.as_ref().unwrap();
        assert_eq!((&previous.key, previous.value.len()), (&event.kv.key, 100_000));
    }
}

#[test]
fn a_revision_that_was_compacted_since_the_poll_has_no_previous_pairs() {
    let mut store = TestStore::new(10, 10);
    let id = store.watch();
    store.delete_all();
    let mut events = store.poll_events(id);
    store.apply(&Command::Compact(Compact { revision: store.kv.revision() }));
    let before = events.clone();
    assert_eq!(store.kv.read_previous(&mut events, ReadLimits::default()).unwrap(), 10);
    assert_eq!(events, before);
}
