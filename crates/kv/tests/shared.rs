//! A machine that is shared between a node and a server.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use quorate::storage::{FileDisk, StoreIdentity};
use quorate::{Machine, MemberId, WorkProgress};
use quorate_kv::{
    AnyTable, Command, Compact, DeleteRange, KeyRange, Kv, KvCommandReply, MemoryTable, PollLimits,
    Put, Query, Range, RedbTable, SharedKv, WatchEventKind, WatchPoll, WatchRequest, WatcherId,
};

type SharedMemoryKv = SharedKv<MemoryTable>;

fn shared() -> SharedMemoryKv {
    SharedKv::new(Kv::open(MemoryTable::default()).unwrap())
}

fn put(
    machine: &mut SharedMemoryKv,
    index: u64,
    key: impl Into<Bytes>,
    value: impl Into<Bytes>,
) -> KvCommandReply {
    let put = Put { key: key.into(), value: value.into(), ..Put::default() };
    KvCommandReply::decode(&machine.apply(index, &Command::Put(put).encode()).unwrap()).unwrap()
}

fn revisions(machine: &SharedMemoryKv, id: WatcherId) -> Vec<i64> {
    match machine.poll_watch(id, PollLimits::default()).unwrap() {
        WatchPoll::Events { events, .. } => {
            assert!(events.iter().all(|event| event.kind == WatchEventKind::Put));
            events.iter().map(|event| event.kv.mod_revision).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn watch(machine: &SharedMemoryKv, key: &'static str) -> (WatcherId, Arc<AtomicUsize>) {
    let woken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&woken);
    let wake = Arc::new(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let request = WatchRequest { keys: KeyRange::single(key), ..WatchRequest::default() };
    (machine.watch(request, wake).0, woken)
}

#[test]
fn server_sees_what_the_node_applies() {
    let mut machine = shared();
    let (id, woken) = watch(&machine, "a");
    assert_eq!(put(&mut machine, 5, "a", "1").revision, 2);
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert_eq!(revisions(&machine, id), [2]);
    assert_eq!(machine.read().applied(), 5);
    let range = Range { keys: KeyRange::single("a"), ..Range::default() };
    let query = Query::Range(range);
    let reply = KvCommandReply::decode(&machine.query(&query.encode()).unwrap()).unwrap();
    assert_eq!(reply, machine.read().query(&query).unwrap());
    let invalid =
        KvCommandReply::decode(&machine.query(&Bytes::from_static(b"?")).unwrap()).unwrap();
    assert!(invalid.result.is_err());
    assert!(machine.cancel_watch(id));
    assert_eq!(machine.watchers(), 0);
}

#[test]
fn watchers_survive_an_installation() {
    let mut ahead = shared();
    let mut behind = shared();
    let (id, woken) = watch(&behind, "a");
    let (other, _) = watch(&behind, "b");
    put(&mut ahead, 1, "a", "1");
    put(&mut behind, 1, "a", "1");
    assert_eq!(revisions(&behind, id), [2]);
    for index in 2..5 {
        put(&mut ahead, index, "a", "more");
    }
    behind.install(&mut ahead.snapshot().unwrap().map(Result::unwrap)).unwrap();
    assert_eq!(woken.load(Ordering::Relaxed), 2);
    assert_eq!(revisions(&behind, id), [3, 4, 5]);
    assert_eq!(behind.poll_watch(other, PollLimits::default()).unwrap(), WatchPoll::Idle);
    assert_eq!(behind.watch_progress(id), Some(5));

    // Revisions that were compacted in between cannot be delivered.
    put(&mut ahead, 5, "a", "more");
    put(&mut ahead, 6, "a", "more");
    ahead.apply(7, &Command::Compact(Compact { revision: 7 }).encode()).unwrap();
    behind.install(&mut ahead.snapshot().unwrap().map(Result::unwrap)).unwrap();
    let polled = behind.poll_watch(id, PollLimits::default()).unwrap();
    assert_eq!(polled, WatchPoll::Compacted { compact_revision: 7 });
    assert!(behind.install(&mut std::iter::once(Bytes::new())).is_err());
    assert_eq!(behind.read().revision(), 7);
}

#[test]
fn lagging_watcher_reads_history_from_the_table() {
    let mut machine = shared();
    let (id, woken) = watch(&machine, "a");
    let large = Bytes::from(vec![0; 1 << 20]);
    for index in 1..=40 {
        put(&mut machine, index, "a", large.clone());
    }
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    let mut received = Vec::new();
    while received.len() < 40 {
        let some = revisions(&machine, id);
        assert!(some.len() <= 2, "a poll respects its limits");
        received.extend(some);
    }
    assert_eq!(received, (2..42).collect::<Vec<_>>());
}

/// The server can read the old state until the last chunk is installed.
#[test]
#[expect(clippy::disallowed_methods, reason = "the server reads from other threads")]
fn old_state_is_readable_during_an_installation() {
    let (mut ahead, mut behind) = (shared(), shared());
    put(&mut behind, 1, "a", "1");
    put(&mut ahead, 1, "a", "1");
    put(&mut ahead, 2, "b", "2");
    let mut seen = Vec::new();
    let reader = behind.clone();
    let mut chunks = ahead.snapshot().unwrap().map(Result::unwrap).inspect(|_| {
        let (sender, receiver) = mpsc::channel();
        let reader = reader.clone();
        thread::spawn(move || sender.send(reader.read().revision()));
        seen.push(receiver.recv_timeout(Duration::from_secs(60)).unwrap());
    });
    behind.install(&mut chunks).unwrap();
    drop(chunks);
    assert!(seen.len() > 1 && seen.iter().all(|revision| *revision == 2), "{seen:?}");
    assert_eq!(behind.read().revision(), 3);
    let cut = ahead.snapshot().unwrap().map(Result::unwrap).take(2).collect::<Vec<Bytes>>();
    assert!(behind.install(&mut cut.into_iter()).is_err());
    behind.install(&mut ahead.snapshot().unwrap().map(Result::unwrap)).unwrap();
}

/// A state beside the present one would take all of its rows into memory.
#[test]
fn snapshots_for_a_table_on_a_disk_are_checked_and_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FileDisk::open(folder.path().join("table")).unwrap();
    let table: AnyTable = RedbTable::open(disk, "rows", 1 << 20).unwrap().into();
    let machine = SharedKv::new(Kv::open(table).unwrap());
    let chunks: Vec<Bytes> = machine.snapshot().unwrap().map(Result::unwrap).collect();
    let load = machine.snapshot_loader();
    assert!(load(&mut chunks.clone().into_iter()).unwrap().is_none());
    assert!(load(&mut chunks.into_iter().skip(1)).is_err());
    let in_memory = SharedKv::new(Kv::open(AnyTable::default()).unwrap());
    let chunks = in_memory.snapshot().unwrap().map(Result::unwrap);
    assert!(in_memory.snapshot_loader()(&mut chunks.into_iter()).unwrap().is_some());
}

/// The rows in a table belong to one disk of one member of one cluster.
#[test]
fn table_is_dropped_for_another_owner() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let disk = FileDisk::open(folder.path().join("table")).unwrap();
        let table: AnyTable = RedbTable::open(disk, "rows", 1 << 20).unwrap().into();
        SharedKv::new(Kv::open(table).unwrap())
    };
    let owner = StoreIdentity { cluster: 1, member: MemberId(2), incarnation: 3, joined_at: 0 };
    let command = Command::Put(Put { key: "a".into(), ..Put::default() }).encode();
    let mut machine = open();
    assert_eq!(machine.resume(&owner).unwrap(), 0);
    machine.apply(7, &command).unwrap();
    machine.save().unwrap();
    // Not saved, so it may be lost; the log has it.
    machine.apply(8, &command).unwrap();
    drop(machine);

    let mut machine = open();
    assert_eq!(machine.resume(&owner).unwrap(), 7);
    assert_eq!(machine.read().revision(), 2);
    drop(machine);

    for (number, other) in [
        StoreIdentity { incarnation: 4, ..owner },
        StoreIdentity { member: MemberId(3), incarnation: 4, ..owner },
        StoreIdentity { cluster: 2, member: MemberId(3), incarnation: 4, ..owner },
    ]
    .into_iter()
    .enumerate()
    {
        let mut machine = open();
        assert_eq!(machine.resume(&other).unwrap(), 0, "{number}");
        assert_eq!((machine.read().revision(), machine.read().key_count()), (1, 0));
        machine.apply(9, &command).unwrap();
        machine.save().unwrap();
    }
}

/// A member that is busy with a long command does not look like one that stands still.
#[test]
fn long_commands_report_progress() {
    let mut machine = shared();
    let progress = WorkProgress::default();
    machine.report_progress_to(progress.clone());
    for index in 1..=1_000 {
        put(&mut machine, index, format!("key {index}"), "1");
    }
    let before = progress.steps();
    let keys = KeyRange { key: "key".into(), range_end: "kez".into() };
    let deletion = Command::DeleteRange(DeleteRange { keys, prev_kv: false });
    machine.apply(1_001, &deletion.encode()).unwrap();
    assert!(progress.steps() - before >= 1_000, "{}", progress.steps());
    let (mut other, progress) = (shared(), WorkProgress::default());
    other.report_progress_to(progress.clone());
    other.install(&mut machine.snapshot().unwrap().map(Result::unwrap)).unwrap();
    assert!(progress.steps() > 1, "{}", progress.steps());

    // So do commits of very many rows.
    let folder = tempfile::tempdir().unwrap();
    let disk = FileDisk::open(folder.path().join("kv")).unwrap();
    let mut kv = Kv::open(RedbTable::open(disk, "kv.redb", 1 << 20).unwrap()).unwrap();
    let progress = WorkProgress::default();
    Machine::report_progress_to(&mut kv, progress.clone());
    for index in 1..=500u64 {
        let put = Put { key: format!("key {index}").into(), ..Put::default() };
        Machine::apply(&mut kv, index, &Command::Put(put).encode()).unwrap();
    }
    let before = progress.steps();
    Machine::save(&mut kv).unwrap();
    assert!(progress.steps() - before > 500, "{} {before}", progress.steps());
}
