//! Behaviour that etcd's clients rely on, one test for each.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use quorate_kv::{
    Alarm, AlarmKind, ApplyError, Command, Compact, Compare, CompareOperator, CompareTarget,
    DeleteRange, KeyRange, Kv, KvCommandReply, KvError, KvOutcome, KvSnapshotError, LeaseGrant,
    MemoryTable, PollLimits, Put, Query, Quota, Range, RangeOutcome, Txn, TxnOperation, WatchEvent,
    WatchEventKind, WatchHub, WatchPoll, WatchRequest, check,
};

struct TestStore {
    kv: Kv<MemoryTable>,
    index: u64,
    hub: WatchHub,
}

impl TestStore {
    fn new() -> Self {
        Self { kv: Kv::open(MemoryTable::default()).unwrap(), index: 0, hub: WatchHub::new(1) }
    }

    fn run(&mut self, command: Command) -> KvCommandReply {
        self.index += 1;
        let applied = self.kv.apply(self.index, &command).unwrap();
        self.hub.publish(applied.events);
        applied.reply
    }

    fn put(&mut self, key: &'static str, value: &'static str) -> KvCommandReply {
        self.run(put(key, value, 0))
    }

    fn range(&self, range: Range) -> Result<RangeOutcome, KvError> {
        match self.kv.query(&Query::Range(range)).unwrap().result {
            Ok(KvOutcome::Range(found)) => Ok(found),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error),
        }
    }

    fn values(&self, keys: KeyRange, revision: i64) -> Result<Vec<Bytes>, KvError> {
        let found = self.range(Range { keys, revision, ..Range::default() })?;
        Ok(found.kvs.into_iter().map(|kv| kv.value).collect())
    }

    fn watch(&mut self, keys: KeyRange, start_revision: i64) -> (quorate_kv::WatcherId, WakeCount) {
        let counter = WakeCount::default();
        let woken = Arc::clone(&counter);
        let request = WatchRequest { keys, start_revision, ..WatchRequest::default() };
        let wake = Arc::new(move |_| {
            woken.fetch_add(1, Ordering::Relaxed);
        });
        (self.hub.create(request, self.kv.revision(), wake), counter)
    }

    fn poll(&mut self, id: quorate_kv::WatcherId) -> WatchPoll {
        self.hub.poll(&self.kv, id, PollLimits::default()).unwrap()
    }
}

type WakeCount = Arc<AtomicUsize>;

fn put(key: &'static str, value: &'static str, lease: i64) -> Command {
    Command::Put(Put { key: key.into(), value: value.into(), lease, ..Put::default() })
}

fn single(key: &'static str) -> KeyRange {
    KeyRange::single(key)
}

fn delete(keys: KeyRange) -> Command {
    Command::DeleteRange(DeleteRange { keys, prev_kv: false })
}

fn compact(revision: i64) -> Command {
    Command::Compact(Compact { revision })
}

fn names(events: &[WatchEvent]) -> Vec<(i64, WatchEventKind, &[u8])> {
    events.iter().map(|event| (event.kv.mod_revision, event.kind, &event.kv.key[..])).collect()
}

#[test]
fn first_write_has_revision_two() {
    let mut store = TestStore::new();
    assert_eq!(store.run(Command::Noop).revision, 1);
    assert_eq!(store.put("a", "1").revision, 2);
    assert_eq!(store.put("a", "2").revision, 3);
    let kv = store.range(Range { keys: single("a"), ..Range::default() }).unwrap().kvs.remove(0);
    assert_eq!((kv.create_revision, kv.mod_revision, kv.version), (2, 3, 2));
    assert_eq!(store.run(delete(single("b"))).revision, 3);
    assert_eq!(store.run(delete(single("a"))).revision, 4);
    store.put("a", "3");
    let kv = store.range(Range { keys: single("a"), ..Range::default() }).unwrap().kvs.remove(0);
    assert_eq!((kv.create_revision, kv.mod_revision, kv.version), (5, 5, 1));
}

#[test]
fn old_revisions_are_readable_until_compacted() {
    let mut store = TestStore::new();
    for value in ["1", "2", "3"] {
        store.put("a", value);
    }
    assert_eq!(store.values(single("a"), 3).unwrap(), ["2"]);
    assert_eq!(store.values(single("a"), 5), Err(KvError::FutureRevision));
    assert_eq!(store.run(compact(5)).result, Err(KvError::FutureRevision));
    assert_eq!(store.run(compact(3)).result, Ok(KvOutcome::Done));
    assert_eq!(store.run(compact(3)).result, Err(KvError::Compacted));
    assert_eq!(store.values(single("a"), 3).unwrap(), ["2"]);
    assert_eq!(store.values(single("a"), 2), Err(KvError::Compacted));
}

#[test]
fn transaction_compares_first_and_reads_its_own_writes() {
    let mut store = TestStore::new();
    store.put("a", "old");
    let read = || TxnOperation::Range(Range { keys: single("a"), ..Range::default() });
    let write = |key: &'static str, value: &'static str| {
        TxnOperation::Put(Put { key: key.into(), value: value.into(), ..Put::default() })
    };
    let is_old = || Compare {
        keys: single("a"),
        operator: CompareOperator::Equal,
        target: CompareTarget::Value("old".into()),
    };
    // Nested comparisons are evaluated before any write.
    let nested = Txn { compare: vec![is_old()], success: vec![write("b", "")], failure: vec![] };
    let txn = Txn {
        compare: vec![is_old()],
        success: vec![read(), write("a", "new"), read(), TxnOperation::Txn(nested)],
        failure: vec![],
    };
    let reply = store.run(Command::Txn(txn));
    let Ok(KvOutcome::Txn(outcome)) = reply.result else { panic!("{reply:?}") };
    assert!(outcome.succeeded);
    let revisions: Vec<_> = outcome.responses.iter().map(|response| response.revision).collect();
    assert_eq!((reply.revision, revisions), (3, vec![2, 3, 3, 0]));
    let seen = outcome.responses.iter().filter_map(|response| match &response.outcome {
        KvOutcome::Range(range) => Some(range.kvs[0].value.clone()),
        _ => None,
    });
    assert_eq!(seen.collect::<Vec<_>>(), ["old", "new"]);
    assert_eq!(store.values(single("b"), 0).unwrap().len(), 1);
    let idle = store.run(Command::Txn(Txn { success: vec![read()], ..Txn::default() }));
    assert_eq!(idle.revision, 3);
}

/// Operations are checked in their order; of reads, only 0 means the current revision.
#[test]
fn transaction_is_refused_with_the_same_error_as_in_etcd() {
    let mut store = TestStore::new();
    store.put("a", "1");
    let read =
        |revision| TxnOperation::Range(Range { revision, keys: single("a"), ..Range::default() });
    let put = |key: &'static str, lease, ignore_value| {
        TxnOperation::Put(Put { key: key.into(), lease, ignore_value, ..Put::default() })
    };
    let nested = |request| TxnOperation::Txn(Txn { success: vec![request], ..Txn::default() });
    let cases = [
        (vec![read(999), put("a", 7, false)], Some(KvError::FutureRevision)),
        (vec![nested(put("a", 7, false)), read(999)], Some(KvError::LeaseNotFound)),
        (vec![put("none", 7, true)], Some(KvError::LeaseNotFound)),
        (vec![put("none", 0, true)], Some(KvError::KeyNotFound)),
        (vec![read(999), nested(read(-2))], Some(KvError::FutureRevision)),
        (vec![nested(read(-2))], Some(KvError::Compacted)),
        (vec![read(-1)], None),
    ];
    for (success, why) in cases {
        let txn = Txn { success, ..Txn::default() };
        if txn.is_read_only() {
            let asked = store.kv.query(&Query::Txn(txn.clone())).unwrap();
            assert_eq!(asked.result.err(), why, "{txn:?}");
        }
        assert_eq!(store.run(Command::Txn(txn.clone())).result.err(), why, "{txn:?}");
    }
    // Outside a transaction a negative revision means the current one.
    let alone = Put { key: "none".into(), lease: 7, ignore_value: true, ..Put::default() };
    assert_eq!(store.run(Command::Put(alone)).result.err(), Some(KvError::LeaseNotFound));
    assert_eq!(store.values(single("a"), -2), Ok(vec!["1".into()]));
}

#[test]
fn revoked_lease_deletes_its_keys_in_one_revision() {
    let mut store = TestStore::new();
    assert_eq!(store.run(put("a", "", 7)).result, Err(KvError::LeaseNotFound));
    store.run(Command::LeaseGrant(LeaseGrant { id: 7, ttl: 60 }));
    store.run(Command::LeaseGrant(LeaseGrant { id: 8, ttl: 60 }));
    let again = store.run(Command::LeaseGrant(LeaseGrant { id: 7, ttl: 1 }));
    assert_eq!(again.result, Err(KvError::LeaseExists));
    for key in ["a", "b", "c", "d"] {
        store.run(put(key, "", 7));
    }
    store.run(put("b", "", 8));
    store.run(put("c", "", 0));
    assert_eq!(store.kv.lease(7).unwrap().keys().collect::<Vec<_>>(), [b"a", b"d"]);
    let before = store.kv.revision();
    let (id, _) = store.watch(KeyRange::all(), 0);
    assert_eq!(store.run(Command::LeaseRevoke(7)).revision, before + 1);
    let WatchPoll::Events { events, .. } = store.poll(id) else { panic!("no events") };
    let delete = WatchEventKind::Delete;
    assert_eq!(names(&events), [(before + 1, delete, &b"a"[..]), (before + 1, delete, b"d")]);
    assert_eq!(store.run(Command::LeaseRevoke(7)).result, Err(KvError::LeaseNotFound));
    assert_eq!(store.run(Command::LeaseRevoke(8)).revision, before + 2);
}

#[test]
fn full_store_still_reads_deletes_and_compacts() {
    let mut store = TestStore::new();
    store.run(Command::SetQuota(Quota { bytes: 2_000, member: 5 }));
    while store.put("a", "some value that fills the store").result.is_ok() {}
    let alarm = Alarm { kind: AlarmKind::NoSpace, member: 5 };
    assert_eq!(store.kv.alarms(), [alarm]);
    let full = Err(KvError::NoSpace);
    assert_eq!(store.put("b", "").result, full);
    assert!(store.kv.would_exceed_quota(&put("b", "", 0)));
    assert_eq!(store.run(Command::LeaseGrant(LeaseGrant { id: 1, ttl: 9 })).result, full);
    assert_eq!(store.values(single("a"), 0).unwrap().len(), 1);
    assert!(store.run(delete(single("a"))).result.is_ok());
    assert!(store.run(compact(store.kv.revision())).result.is_ok());
    // Free space does not clear the alarm: the operator disarms it.
    assert_eq!(store.put("b", "").result, full);
    store.run(Command::AlarmDisarm(alarm));
    assert!(store.put("b", "").result.is_ok());
}

#[test]
fn corrupt_alarm_refuses_writes() {
    let mut store = TestStore::new();
    store.put("a", "1");
    let alarm = Alarm { kind: AlarmKind::Corrupt, member: 1 };
    store.run(Command::AlarmActivate(alarm));
    let corrupt = Err(KvError::Corrupt);
    assert_eq!(store.put("a", "2").result, corrupt);
    assert_eq!(store.run(delete(single("a"))).result, corrupt);
    assert_eq!(store.run(compact(2)).result, corrupt);
    assert_eq!(store.values(single("a"), 0).unwrap(), ["1"]);
    store.run(Command::AlarmDisarm(alarm));
    assert!(store.put("a", "2").result.is_ok());
}

#[test]
fn watcher_is_woken_once_and_receives_all_events_in_order() {
    let mut store = TestStore::new();
    let (id, woken) = store.watch(KeyRange::prefix("a"), 0);
    assert_eq!(store.poll(id), WatchPoll::Idle);
    store.put("b", "");
    assert_eq!(woken.load(Ordering::Relaxed), 0);
    assert_eq!(store.hub.progress(id), Some(2));
    store.put("a1", "");
    store.put("a2", "");
    store.run(delete(single("a1")));
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert_eq!(store.hub.progress(id), None);
    let backlog = store.hub.backlog(store.kv.revision());
    assert_eq!((backlog.watchers, backlog.revisions), (1, 3));
    let WatchPoll::Events { revision, events, .. } = store.poll(id) else { panic!("no events") };
    let (put_kind, delete) = (WatchEventKind::Put, WatchEventKind::Delete);
    assert_eq!(
        names(&events),
        [(3, put_kind, &b"a1"[..]), (4, put_kind, b"a2"), (5, delete, b"a1")]
    );
    assert_eq!(revision, 5);
    assert_eq!(store.poll(id), WatchPoll::Idle);
    assert_eq!(store.hub.backlog(store.kv.revision()).watchers, 0);
    store.put("a1", "");
    assert_eq!(woken.load(Ordering::Relaxed), 2);
    assert!(store.hub.cancel(id));
    assert_eq!(store.poll(id), WatchPoll::Gone);
}

#[test]
fn watcher_of_an_old_revision_reads_history_and_of_a_future_one_waits() {
    let mut store = TestStore::new();
    for key in ["a", "b", "a", "a"] {
        store.put(key, "");
    }
    let (past, _) = store.watch(single("a"), 2);
    let (future, woken) = store.watch(single("a"), 8);
    let WatchPoll::Events { events, .. } = store.poll(past) else { panic!("no events") };
    let revisions: Vec<_> = events.iter().map(|event| event.kv.mod_revision).collect();
    assert_eq!(revisions, [2, 4, 5]);
    for _ in 6..8 {
        store.put("a", "");
    }
    assert_eq!((store.poll(future), woken.load(Ordering::Relaxed)), (WatchPoll::Idle, 0));
    store.put("a", "");
    let WatchPoll::Events { events, .. } = store.poll(future) else { panic!("no events") };
    assert_eq!(events[0].kv.mod_revision, 8);
}

#[test]
fn compaction_ends_only_watchers_that_miss_events() {
    let mut store = TestStore::new();
    let (idle, _) = store.watch(single("quiet"), 0);
    let (slow, _) = store.watch(single("a"), 0);
    for _ in 0..8 {
        store.put("a", "");
    }
    store.run(compact(6));
    assert_eq!(store.poll(slow), WatchPoll::Compacted { compact_revision: 6 });
    assert_eq!(store.poll(slow), WatchPoll::Gone);
    assert_eq!(store.poll(idle), WatchPoll::Idle);
    store.put("quiet", "");
    assert!(matches!(store.poll(idle), WatchPoll::Events { .. }));
    let (late, _) = store.watch(single("a"), 5);
    assert_eq!(store.poll(late), WatchPoll::Compacted { compact_revision: 6 });
}

#[test]
fn hash_does_not_depend_on_compaction_progress() {
    let mut store = TestStore::new();
    for number in 0..3_000 {
        let key = Bytes::from(format!("key{number:05}"));
        store.run(Command::Put(Put { key: key.clone(), ..Put::default() }));
        if number % 3 == 0 {
            store.run(delete(KeyRange::single(key)));
        } else {
            store.run(Command::Put(Put { key, value: "again".into(), ..Put::default() }));
        }
    }
    let revision = store.kv.revision();
    store.run(compact(revision - 1));
    let hash = |store: &TestStore| store.kv.query(&Query::HashKv(revision)).unwrap();
    let at_first = hash(&store);
    assert!(store.kv.is_compacting());
    let bytes = store.kv.bytes_in_use();
    while store.kv.is_compacting() {
        store.run(Command::Noop);
        assert_eq!(hash(&store), at_first);
    }
    assert!(store.kv.bytes_in_use() < bytes);
    assert_eq!(store.kv.key_count(), 2_000);
    let early = store.kv.query(&Query::HashKv(revision - 2)).unwrap();
    assert_eq!(early.result, Err(KvError::Compacted));
}

/// A compaction that starts before the previous one is complete must not restart at the first
/// key: the last keys would never be compacted.
#[test]
fn compactions_in_quick_succession_reach_every_key() {
    let mut store = TestStore::new();
    for number in 0..3_000 {
        let key = format!("key {number:04}").into();
        store.run(Command::Put(Put { key, ..Put::default() }));
    }
    let bytes = store.kv.bytes_in_use();
    for _ in 0..300 {
        let revision = store.put("last", "value").revision;
        store.run(compact(revision)).result.unwrap();
    }
    let row_bytes = bytes / 3_000;
    let left = store.kv.bytes_in_use() - bytes;
    assert!(left < 10 * row_bytes, "{left} bytes left for one key, {row_bytes} per row");
    while store.kv.is_compacting() {
        store.run(Command::Noop);
    }
    let one_row = store.kv.bytes_in_use() - bytes;
    assert!(one_row < 2 * row_bytes, "{one_row}");
}

#[test]
fn restored_store_starts_a_new_log_and_hides_old_revisions() {
    let mut store = TestStore::new();
    store.put("a", "1");
    store.put("a", "2");
    store.put("b", "1");
    store.run(delete(single("b")));
    store.kv.reset_for_new_cluster(1_000, true).unwrap();
    assert_eq!((store.kv.applied(), store.kv.revision()), (0, 1_005));
    assert_eq!(store.values(single("a"), 0).unwrap(), ["2"]);
    assert_eq!(store.values(single("a"), 1_004), Err(KvError::Compacted));
    let (old, _) = store.watch(single("a"), 3);
    assert_eq!(store.poll(old), WatchPoll::Compacted { compact_revision: 1_005 });
    store.index = 0;
    assert_eq!(store.put("a", "3").revision, 1_006);
    assert_eq!(store.kv.key_count(), 1);
}

#[test]
fn requests_are_validated_before_they_are_proposed() {
    let refused = |command: Command| check::command(&command, check::TXN_REQUESTS_MAX);
    assert_eq!(refused(put("", "", 0)), Err(KvError::EmptyKey));
    let kept = |put: Put| refused(Command::Put(Put { key: "a".into(), ..put }));
    let value = Put { value: "1".into(), ignore_value: true, ..Put::default() };
    assert_eq!(kept(value), Err(KvError::ValueProvided));
    let lease = Put { lease: 1, ignore_lease: true, ..Put::default() };
    assert_eq!(kept(lease), Err(KvError::LeaseProvided));
    let request = |number: usize| {
        TxnOperation::Put(Put { key: format!("{number}").into(), ..Put::default() })
    };
    let txn =
        |count| Command::Txn(Txn { success: (0..count).map(request).collect(), ..Txn::default() });
    assert_eq!(refused(txn(128)), Ok(()));
    assert_eq!(refused(txn(129)), Err(KvError::TooManyOperations));
    let long = Command::LeaseGrant(LeaseGrant { id: 1, ttl: 9_000_000_001 });
    assert_eq!(refused(long), Err(KvError::LeaseTtlTooLarge));
}

#[test]
fn refusals_have_etcds_texts() {
    let words = [
        (KvError::EmptyKey, "etcdserver: key is not provided"),
        (KvError::KeyNotFound, "etcdserver: key not found"),
        (KvError::Compacted, "etcdserver: mvcc: required revision has been compacted"),
        (KvError::FutureRevision, "etcdserver: mvcc: required revision is a future revision"),
        (KvError::NoSpace, "etcdserver: mvcc: database space exceeded"),
        (KvError::LeaseNotFound, "etcdserver: requested lease not found"),
        (KvError::DuplicateKey, "etcdserver: duplicate key given in txn request"),
    ];
    for (error, text) in words {
        assert_eq!(error.to_string(), text);
        let reply = KvCommandReply { revision: 9, result: Err(error) };
        assert_eq!(KvCommandReply::decode(&reply.encode()), Some(reply));
    }
}

#[test]
fn invalid_commands_change_nothing_and_never_panic() {
    let mut store = TestStore::new();
    store.put("a", "1");
    let mut index = 1;
    let txn = Txn { success: vec![TxnOperation::Txn(Txn::default())], ..Txn::default() };
    for whole in [put("key", "value", 3).encode(), Command::Txn(txn).encode()] {
        for cut in 0..whole.len() {
            for flipped in [0, 1, 0x80, 0xff] {
                let mut bytes = whole[..cut].to_vec();
                bytes.iter_mut().last().into_iter().for_each(|last| *last ^= flipped);
                index += 1;
                let reply = store.kv.apply_bytes(index, &bytes.into()).unwrap().reply;
                assert_eq!(reply.revision, 2, "{reply:?}");
            }
        }
    }
    assert_eq!((store.kv.revision(), store.kv.applied()), (2, index));
    // Nested deeper than a client can request.
    let mut deep = vec![1, 3];
    deep.extend([0, 1, 3].repeat(100_000));
    assert!(Command::decode(&deep.into()).is_err());
}

/// A member that skipped a command which others run would hold other data.
#[test]
fn commands_of_later_versions_are_refused_until_the_cluster_allows_them_and_then_stop_the_member() {
    let mut store = TestStore::new();
    let mut later = put("key", "value", 0).encode().to_vec();
    later[0] = 9;
    let reply = store.kv.apply_bytes(1, &later.clone().into()).unwrap().reply;
    assert_eq!((reply.revision, reply.result), (1, Err(KvError::UnknownCommand)));
    store.kv.set_cluster_version(9);
    let error = store.kv.apply_bytes(2, &later.into()).unwrap_err();
    assert!(matches!(error, ApplyError::Newer(_)), "{error}");
    assert!(error.to_string().contains("cluster version 9 is needed"), "{error}");
    let mut copy = Kv::open(MemoryTable::default()).unwrap();
    let refused = copy.install(&mut store.kv.snapshot().unwrap()).unwrap_err();
    assert!(matches!(refused, KvSnapshotError::Newer(_)), "{refused}");
}

/// etcd's gauge counts the keys that exist, without those whose history is left.
#[test]
fn deleted_keys_are_not_counted() {
    let mut store = TestStore::new();
    assert_eq!(store.kv.live_key_count(), 0);
    for key in ["a", "b", "c"] {
        store.put(key, "1");
    }
    store.put("a", "2");
    store.run(delete(single("b")));
    assert_eq!((store.kv.live_key_count(), store.kv.key_count()), (2, 3));
    store.put("b", "2");
    assert_eq!(store.kv.live_key_count(), 3);
}
