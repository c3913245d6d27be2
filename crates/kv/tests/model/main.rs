//! Compares the machine on both tables, and on one in memory with a file, with a simple reference implementation: the same
//! random commands, queries, watches, snapshots and restarts must give the same results.
//!
//! `cargo test -p quorate-kv --release --test model -- --ignored` runs many more. A failure
//! prints its seed and step; the seed alone reproduces it.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod crash;
mod disk;
mod generate;
mod reference;

use std::sync::Arc;

use bytes::Bytes;
use disk::MemoryDisk;
use generate::Generator;
use quorate_kv::{
    BatchConfig, Command, Kv, KvCommandReply, KvOutcome, KvSnapshotError, MemoryTable, PollLimits,
    Query, RedbTable, RowFile, Table, WatchEvent, WatchEventKind, WatchHub, WatchPoll,
    WatchRequest, WatcherId, split_events,
};
use reference::{ReferenceKv, within};

struct ModelTest {
    generator: Generator,
    index: u64,
    reference: ReferenceKv,
    memory: Kv<MemoryTable>,
    redb: Option<Kv<RedbTable>>,
    /// As on a member that nobody waits for: its replies lack what commands read.
    unanswered: Kv<MemoryTable>,
    /// All its closed blocks are in the file.
    in_file: Kv<MemoryTable>,
    file: RowFile,
    disk: MemoryDisk,
    hubs: [WatchHub; 2],
    watchers: Vec<ModelWatcher>,
    counts: ModelCounts,
}

/// What the test covered, so that a test that covers nothing fails.
#[derive(Default, Debug)]
struct ModelCounts {
    refused: usize,
    done: usize,
    found: usize,
    events: usize,
    compacted_watches: usize,
    installs: usize,
    reopened: usize,
    file_bytes: u64,
}

struct ModelWatcher {
    id: WatcherId,
    request: WatchRequest,
    /// The first revision that it did not receive.
    next: i64,
}

fn open_redb(disk: &MemoryDisk) -> Kv<RedbTable> {
    let table = RedbTable::open(disk.clone(), "kv", 8 << 20).unwrap();
    // Small batches, so that rows are read from redb and not only from pending changes.
    Kv::open(table).unwrap().with_batch_config(BatchConfig::default().commands(5).durable_every(4))
}

impl ModelTest {
    fn new(seed: u64) -> Self {
        let disk = MemoryDisk::default();
        let redb = Some(open_redb(&disk));
        let mut unanswered = Kv::open(MemoryTable::default()).unwrap();
        unanswered.reply_with_reads(false);
        let file = new_row_file();
        Self {
            generator: Generator(seed),
            index: 0,
            reference: ReferenceKv::new(),
            memory: Kv::open(MemoryTable::default()).unwrap(),
            redb,
            unanswered,
            in_file: Kv::open(MemoryTable::with_file(file.clone())).unwrap(),
            file,
            disk,
            hubs: [WatchHub::new(1), WatchHub::new(1)],
            watchers: Vec::new(),
            counts: ModelCounts::default(),
        }
    }

    fn redb(&mut self) -> &mut Kv<RedbTable> {
        self.redb.as_mut().unwrap()
    }

    fn step(&mut self) {
        match self.generator.below(100) {
            0..60 => self.apply(),
            60..85 => self.query(),
            85..88 => self.watch(),
            88..96 => self.poll_one(),
            96 => self.install(),
            97 => self.reopen(),
            98 => {
                self.redb().save().unwrap();
                // The next command reads the last block back.
                self.in_file.defragment().unwrap();
                self.file.wait_until_written();
                self.counts.file_bytes += self.file.usage().file_bytes;
            }
            _ => self.compare_hashes(),
        }
    }

    fn apply(&mut self) {
        self.index += 1;
        let command = self.generator.command(self.reference.revision);
        let bytes = command.encode();
        assert_eq!(Command::decode(&bytes).as_ref(), Ok(&command));
        let expected = self.reference.apply(&command, self.memory.bytes_in_use());
        let index = self.index;
        // A hint has no effect, also if another command comes, or none.
        match self.generator.below(4) {
            0 => {}
            1 => self.memory.prepare(&[(index + 1, &bytes)]),
            _ => self.memory.prepare(&[(index - 1, b""), (index, &bytes), (index + 1, &bytes)]),
        }
        let memory = self.memory.apply_bytes(index, &bytes).unwrap();
        let redb = self.redb().apply_bytes(index, &bytes).unwrap();
        assert_eq!(memory.reply, expected, "{command:?}");
        assert_eq!(redb, memory, "{command:?}");
        let in_file = self.in_file.apply_bytes(index, &bytes).unwrap();
        assert_eq!(in_file, memory, "{command:?}");
        let unanswered = self.unanswered.apply_bytes(index, &bytes).unwrap();
        assert_eq!(unanswered.reply.revision, memory.reply.revision, "{command:?}");
        assert_eq!(unanswered.reply.result.as_ref().err(), memory.reply.result.as_ref().err());
        assert_eq!(unanswered.events, memory.events, "{command:?}");
        assert_eq!(self.unanswered.bytes_in_use(), self.memory.bytes_in_use());
        assert_eq!(KvCommandReply::decode(&expected.encode()), Some(expected.clone()));
        assert_eq!(self.memory.bytes_in_use(), self.redb().bytes_in_use());
        match expected.result {
            Ok(_) => self.counts.done += 1,
            Err(_) => self.counts.refused += 1,
        }
        self.hubs[0].publish(memory.events);
        self.hubs[1].publish(redb.events);
    }

    fn query(&mut self) {
        let query = self.generator.query(self.reference.revision);
        assert_eq!(Query::decode(&query.encode()).as_ref(), Some(&query));
        let memory = self.memory.query(&query).unwrap();
        let redb = self.redb().query(&query).unwrap();
        assert_eq!(self.in_file.query(&query).unwrap(), memory, "{query:?}");
        // A store that was restarted does not have the hashes of earlier compactions.
        let compacted = 1..=self.memory.compact_revision();
        if !matches!(query, Query::HashKv(revision) if compacted.contains(&revision)) {
            assert_eq!(memory, redb, "{query:?}");
        }
        if let Some(expected) = self.reference.query(&query) {
            assert_eq!(memory, expected, "{query:?}");
        }
        if let Ok(KvOutcome::Range(range)) = &memory.result {
            self.counts.found += range.kvs.len();
        }
    }

    fn watch(&mut self) {
        let revision = self.reference.revision;
        let request = self.generator.watch(revision);
        let [id, same] =
            self.hubs.each_mut().map(|hub| hub.create(request.clone(), revision, Arc::new(|_| {})));
        assert_eq!(id, same);
        let start = request.start_revision;
        let next = if start > 0 { start } else { revision + 1 };
        self.watchers.push(ModelWatcher { id, request, next });
        if self.watchers.len() > 6 {
            let gone = self.watchers.remove(0);
            assert!(self.hubs[0].cancel(gone.id) && self.hubs[1].cancel(gone.id));
        }
    }

    fn poll_one(&mut self) {
        if self.watchers.is_empty() {
            return;
        }
        let position = self.generator.below(self.watchers.len() as u64) as usize;
        let limits = PollLimits::default()
            .events_max(1 + self.generator.below(10) as usize)
            .rows_max(1 + self.generator.below(20) as usize);
        let ModelWatcher { id, .. } = self.watchers[position];
        let memory = self.hubs[0].poll(&self.memory, id, limits).unwrap();
        let redb = self.redb.as_ref().unwrap();
        let other = self.hubs[1].poll(redb, id, limits).unwrap();
        // Both hubs keep the same recent events, so they must stop at the same revision.
        assert_eq!(memory, other);
        let compact = self.reference.compact_revision;
        match memory {
            WatchPoll::Idle => self.expect_nothing(position),
            WatchPoll::Again => {}
            WatchPoll::Gone => panic!("watcher {id:?} is gone"),
            WatchPoll::Compacted { compact_revision } => {
                assert_eq!(compact_revision, compact);
                assert!(self.watchers[position].next < compact);
                self.watchers.remove(position);
                self.counts.compacted_watches += 1;
            }
            WatchPoll::Events { revision, events, .. } => {
                self.expect_events(position, revision, &events)
            }
        }
    }

    fn expect_nothing(&mut self, position: usize) {
        let now = self.reference.revision;
        let watcher = &self.watchers[position];
        // Compaction does not affect a watcher that is up to date.
        let missed = self.expected(watcher, watcher.next.max(self.delivered_from(watcher)), now);
        assert_eq!(missed, Vec::<(i64, Bytes)>::new(), "{:?}", watcher.request);
        assert_eq!(self.hubs[0].progress(watcher.id), Some(now));
        let watcher = &mut self.watchers[position];
        watcher.next = watcher.next.max(now + 1);
    }

    fn expect_events(&mut self, position: usize, revision: i64, events: &[WatchEvent]) {
        let watcher = &self.watchers[position];
        let from = watcher.next.max(self.delivered_from(watcher));
        let delivered: Vec<_> = events
            .iter()
            .filter(|event| event.kv.mod_revision >= from)
            .map(|event| (event.kv.mod_revision, event.kv.key.clone()))
            .collect();
        assert_eq!(delivered, self.expected(watcher, from, revision), "{:?}", watcher.request);
        for event in events {
            self.expect_event(&watcher.request, event);
        }
        let parts = split_events(events, 400);
        assert_eq!(parts.concat(), events);
        self.counts.events += events.len();
        self.watchers[position].next = revision + 1;
    }

    /// At the compact revision itself, a key that was written twice may be delivered once.
    fn delivered_from(&self, watcher: &ModelWatcher) -> i64 {
        if watcher.next == self.reference.compact_revision {
            watcher.next + 1
        } else {
            watcher.next
        }
    }

    fn expect_event(&self, request: &WatchRequest, event: &WatchEvent) {
        let at = event.kv.mod_revision;
        let all = &self.reference.writes;
        let written = all.iter().filter(|w| w.revision == at && w.key == event.kv.key);
        let known = written.into_iter().any(|written| match event.kind {
            WatchEventKind::Put => written.kv.as_ref() == Some(&event.kv),
            WatchEventKind::Delete => written.kv.is_none(),
        });
        assert!(known, "{event:?}");
        let mut before = None;
        if request.prev_kv && at > self.reference.compact_revision {
            before = self.reference.at(at - 1).remove(&event.kv.key);
        }
        assert_eq!(event.previous, before);
    }

    fn expected(&self, watcher: &ModelWatcher, from: i64, to: i64) -> Vec<(i64, Bytes)> {
        let WatchRequest { keys, no_put, no_delete, .. } = &watcher.request;
        let wanted = self.reference.writes.iter().filter(|written| {
            let filtered = if written.kv.is_some() { *no_put } else { *no_delete };
            (from..=to).contains(&written.revision) && within(keys, &written.key) && !filtered
        });
        wanted.map(|written| (written.revision, written.key.clone())).collect()
    }

    /// Installs in each table the snapshot of the other one. A damaged snapshot must be
    /// refused and change nothing.
    fn install(&mut self) {
        let from_memory = self.memory.snapshot().unwrap();
        let from_redb = self.redb().snapshot().unwrap();
        let before = self.memory.hash().unwrap();
        self.apply();
        self.apply();
        let mut from_memory: Vec<Bytes> = from_memory.collect();
        let from_redb: Vec<Bytes> = from_redb.collect();
        assert_eq!(from_memory, from_redb);
        let now = self.memory.hash().unwrap();
        refuse_damaged(&mut self.memory, &from_redb, &mut self.generator);
        let redb = self.redb.as_mut().unwrap();
        refuse_damaged(redb, &from_memory, &mut self.generator);
        assert_eq!(self.memory.hash().unwrap(), now);

        let mut copy = Kv::open(MemoryTable::default()).unwrap();
        copy.install(&mut from_memory.drain(..)).unwrap();
        assert_eq!(copy.hash().unwrap(), before);

        let newest: Vec<Bytes> = self.memory.snapshot().unwrap().collect();
        let newest_redb: Vec<Bytes> = self.redb().snapshot().unwrap().collect();
        self.memory.install(&mut newest_redb.into_iter()).unwrap();
        self.redb().install(&mut newest.clone().into_iter()).unwrap();
        let own: Vec<Bytes> = self.in_file.snapshot().unwrap().collect();
        assert_eq!(own, newest);
        refuse_damaged(&mut self.in_file, &newest, &mut self.generator);
        assert_eq!(self.in_file.hash().unwrap(), now);
        self.in_file.install(&mut newest.into_iter()).unwrap();
        assert_eq!(self.in_file.hash().unwrap(), now);
        assert_eq!(self.memory.hash().unwrap(), now);
        assert_eq!(self.redb().hash().unwrap(), now);
        let revision = self.reference.revision;
        self.hubs.iter_mut().for_each(|hub| hub.restart(revision));
        self.counts.installs += 1;
    }

    /// Closes and reopens the table. Applying a command again must change nothing.
    fn reopen(&mut self) {
        self.redb().save().unwrap();
        self.redb = None;
        self.redb = Some(open_redb(&self.disk));
        let index = self.index;
        assert_eq!(self.redb().applied(), index);
        let hash = self.redb().hash().unwrap();
        let command = Command::Put(quorate_kv::Put { key: "a".into(), ..Default::default() });
        let _ = self.redb().apply(index, &command).unwrap();
        assert_eq!(self.redb().hash().unwrap(), hash);
        if self.generator.chance(30) {
            self.redb().defragment().unwrap();
        }
        self.counts.reopened += 1;
    }

    fn compare_hashes(&mut self) {
        let memory = self.memory.hash().unwrap();
        assert_eq!(self.redb().hash().unwrap(), memory);
        assert_eq!(self.unanswered.hash().unwrap(), memory);
        assert_eq!(self.in_file.hash().unwrap(), memory);
    }
}

fn new_row_file() -> RowFile {
    let directory = tempfile::tempdir().unwrap();
    RowFile::create(&directory.path().join("rows"), 0, Box::new(|_| {})).unwrap()
}

fn refuse_damaged<T: Table>(kv: &mut Kv<T>, chunks: &[Bytes], generator: &mut Generator) {
    let mut damaged = chunks.to_vec();
    let position = generator.below(damaged.len() as u64) as usize;
    match generator.below(3) {
        0 => drop(damaged.remove(position)),
        1 => {
            let mut bytes = damaged[position].to_vec();
            let byte = generator.below(bytes.len() as u64) as usize;
            bytes[byte] ^= 1 << generator.below(8);
            damaged[position] = bytes.into();
        }
        _ => damaged.truncate(position),
    }
    let refused = kv.install(&mut damaged.into_iter());
    assert!(matches!(refused, Err(KvSnapshotError::Bad)), "{refused:?}");
}

fn run(seed: u64, steps: u64) -> ModelCounts {
    let mut test = ModelTest::new(seed);
    for step in 0..steps {
        let stepped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test.step()));
        if let Err(panic) = stepped {
            eprintln!("seed {seed}, step {step}");
            std::panic::resume_unwind(panic);
        }
    }
    test.counts
}

#[test]
fn both_tables_agree_with_the_reference() {
    let mut all = ModelCounts::default();
    for seed in 0..40 {
        let counts = run(seed, 600);
        all.refused += counts.refused;
        all.done += counts.done;
        all.found += counts.found;
        all.events += counts.events;
        all.compacted_watches += counts.compacted_watches;
        all.installs += counts.installs;
        all.reopened += counts.reopened;
        all.file_bytes += counts.file_bytes;
    }
    println!("{all:?}");
    assert!(all.done > 5_000 && all.refused > 1_000 && all.found > 2_000, "{all:?}");
    assert!(all.events > 500 && all.compacted_watches > 20, "{all:?}");
    assert!(all.installs > 50 && all.reopened > 50, "{all:?}");
    assert!(all.file_bytes > 100_000, "{all:?}");
}

#[test]
#[ignore = "takes minutes; run it with --release"]
fn both_tables_agree_with_the_reference_for_long() {
    for seed in 1_000..1_150 {
        run(seed, 3_000);
    }
}
