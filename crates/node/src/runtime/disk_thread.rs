//! The one thread of a process that writes logs, for all members of the host.
//!
//! It takes all queued jobs, writes them, syncs once for each member, and reports. While it
//! syncs, the next batch is queued: that is group commit. Snapshots are begun and named
//! here, and written and read on other threads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use quorate_core::{EntryId, Envelope, Index, Load, Save, SaveId, SnapshotMeta};
use tokio::sync::{oneshot, watch};

use super::batch_queue::{BatchQueue, QuietKind};
use super::job_queue::JobQueue;
use super::mailbox::Completion;
use super::metrics::{Counters, NodeObserver};
use super::snapshots::OutgoingBytes;
use super::status::StopReason;
use super::storage::{SnapshotSink, SnapshotSource, Storage, StorageError};

/// Owns the thread: it ends when this is stopped or dropped.
pub(crate) struct DiskThread {
    queue: Arc<DiskQueue>,
    next_slot: AtomicU64,
    /// Closed when the thread has ended.
    running: watch::Receiver<()>,
}

/// Jobs with the slot that each is for.
type DiskQueue = JobQueue<(u64, DiskJob)>;

enum DiskJob {
    Open(Box<DiskSlot>),
    Save(Save),
    Load(Load),
    Trim(Index),
    Begin(SnapshotMeta, oneshot::Sender<Result<Box<dyn SnapshotSink>, StorageError>>),
    Adopt(EntryId, oneshot::Sender<()>),
    Read(EntryId, oneshot::Sender<Box<dyn SnapshotSource>>),
    /// As `Read`, for a snapshot that is sent to a peer.
    Send(EntryId, Box<Envelope>),
    Release(EntryId),
    Close(oneshot::Sender<Result<(), StorageError>>),
}

/// What the thread needs to serve one member.
pub(crate) struct DiskSlot {
    pub(crate) storage: Box<dyn Storage>,
    pub(crate) done: Arc<BatchQueue<Completion>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) observer: Arc<dyn NodeObserver>,
}

impl DiskThread {
    pub(crate) fn start() -> std::io::Result<Self> {
        let queue = Arc::new(DiskQueue::new());
        let worker = DiskWorker { queue: Arc::clone(&queue), slots: BTreeMap::new() };
        let (ended, running) = watch::channel(());
        thread::Builder::new().name("quorate-disk".into()).spawn(move || {
            worker.run();
            drop(ended);
        })?;
        Ok(Self { queue, next_slot: AtomicU64::new(1), running })
    }

    /// Ends the thread after what was queued, and waits for that. Jobs that are queued later
    /// are dropped.
    pub(crate) async fn stop(&self) {
        self.queue.close();
        let mut running = self.running.clone();
        while running.changed().await.is_ok() {}
    }

    /// Adds a member whose storage is open.
    pub(crate) fn add(&self, slot: DiskSlot) -> DiskHandle {
        let number = self.next_slot.fetch_add(1, Ordering::Relaxed);
        let handle = DiskHandle { queue: Arc::clone(&self.queue), slot: number };
        handle.push(DiskJob::Open(Box::new(slot)));
        handle
    }
}

impl Drop for DiskThread {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Queues jobs for one member's storage.
#[derive(Clone)]
pub(crate) struct DiskHandle {
    queue: Arc<DiskQueue>,
    slot: u64,
}

impl DiskHandle {
    /// Reported as [`Completion::Saved`].
    pub(crate) fn save(&self, save: Save) {
        self.push(DiskJob::Save(save));
    }

    /// Reported as [`Completion::Loaded`].
    pub(crate) fn load(&self, load: Load) {
        self.push(DiskJob::Load(load));
    }

    pub(crate) fn trim(&self, index: Index) {
        self.push(DiskJob::Trim(index));
    }

    /// Reported as [`Completion::SnapshotOpened`].
    pub(crate) fn send_snapshot(&self, id: EntryId, envelope: Envelope) {
        self.push(DiskJob::Send(id, Box::new(envelope)));
    }

    pub(crate) fn release_snapshot(&self, id: EntryId) {
        self.push(DiskJob::Release(id));
    }

    /// None when the member has stopped; also below.
    pub(crate) async fn begin_snapshot(
        &self,
        meta: SnapshotMeta,
    ) -> Option<Result<Box<dyn SnapshotSink>, StorageError>> {
        let (reply, begun) = oneshot::channel();
        self.push(DiskJob::Begin(meta, reply));
        begun.await.ok()
    }

    pub(crate) async fn adopt_snapshot(&self, id: EntryId) -> Option<()> {
        let (reply, adopted) = oneshot::channel();
        self.push(DiskJob::Adopt(id, reply));
        adopted.await.ok()
    }

    pub(crate) async fn read_snapshot(&self, id: EntryId) -> Option<Box<dyn SnapshotSource>> {
        let (reply, opened) = oneshot::channel();
        self.push(DiskJob::Read(id, reply));
        opened.await.ok()
    }

    pub(crate) async fn close(&self) -> Option<Result<(), StorageError>> {
        let (reply, closed) = oneshot::channel();
        self.push(DiskJob::Close(reply));
        closed.await.ok()
    }

    fn push(&self, job: DiskJob) {
        self.queue.push((self.slot, job));
    }
}

struct DiskWorker {
    queue: Arc<DiskQueue>,
    slots: BTreeMap<u64, OpenSlot>,
}

struct OpenSlot {
    slot: DiskSlot,
    /// The newest save that was written and is not reported yet.
    written: Option<SaveId>,
    must_sync: bool,
    saves: u64,
}

impl DiskWorker {
    fn run(mut self) {
        let mut batch = Vec::new();
        while self.queue.take_all(&mut batch) {
            for (slot, job) in batch.drain(..) {
                self.run_job(slot, job);
            }
            self.sync_all();
        }
    }

    fn run_job(&mut self, number: u64, job: DiskJob) {
        if let DiskJob::Open(slot) = job {
            let open = OpenSlot { slot: *slot, written: None, must_sync: false, saves: 0 };
            self.slots.insert(number, open);
            return;
        }
        // The member has stopped: its reply channels are dropped.
        let Some(open) = self.slots.get_mut(&number) else { return };
        let closes = matches!(job, DiskJob::Close(_));
        match unless_panicked(|| open.run(job)) {
            Ok(()) if !closes => {}
            Ok(()) => drop(self.slots.remove(&number)),
            Err(why) => self.fail(number, why),
        }
    }

    fn sync_all(&mut self) {
        let mut failed = Vec::new();
        for (number, open) in &mut self.slots {
            if let Err(why) = unless_panicked(|| open.report_saved()) {
                failed.push((*number, why));
            }
        }
        for (number, why) in failed {
            self.fail(number, why);
        }
    }

    /// A storage that failed is not used again.
    fn fail(&mut self, number: u64, why: StorageError) {
        if let Some(open) = self.slots.remove(&number) {
            open.slot.done.push(Completion::Ended(StopReason::Disk(why.into())));
        }
    }
}

impl OpenSlot {
    fn run(&mut self, job: DiskJob) -> Result<(), StorageError> {
        let storage = &mut self.slot.storage;
        match job {
            DiskJob::Save(save) => {
                let began = Instant::now();
                storage.write(&save)?;
                self.slot.observer.on_write(began.elapsed(), save.entries.bytes());
                self.written = Some(save.id);
                self.must_sync |= save.must_sync;
                self.saves += 1;
            }
            DiskJob::Load(Load { target, range, bytes_max }) => {
                let entries = storage.load(range, bytes_max)?;
                self.slot.done.push(Completion::Loaded(target, entries));
            }
            DiskJob::Trim(index) => storage.trim(index)?,
            DiskJob::Begin(meta, reply) => drop(reply.send(storage.begin_snapshot(meta))),
            DiskJob::Adopt(id, reply) => {
                storage.adopt_snapshot(id)?;
                let _ = reply.send(());
            }
            DiskJob::Read(id, reply) => drop(reply.send(storage.open_snapshot(id)?)),
            DiskJob::Send(id, envelope) => {
                // It may have been replaced since: then the leader picks a newer one.
                let source = storage.open_snapshot(id).ok().map(OutgoingBytes::Disk);
                self.slot.done.push(Completion::SnapshotOpened(envelope, source));
            }
            DiskJob::Release(id) => storage.release_snapshot(id),
            DiskJob::Close(reply) => drop(reply.send(storage.close())),
            DiskJob::Open(_) => {}
        }
        Ok(())
    }

    fn report_saved(&mut self) -> Result<(), StorageError> {
        let Some(id) = self.written.take() else { return Ok(()) };
        let saves = std::mem::take(&mut self.saves);
        if std::mem::take(&mut self.must_sync) {
            let began = Instant::now();
            self.slot.storage.sync()?;
            let took = began.elapsed();
            self.slot.counters.count_sync(took, saves);
            self.slot.observer.on_sync(took, saves);
        }
        self.slot.done.push_quietly(Completion::Saved(id), QuietKind::Save);
        Ok(())
    }
}

/// A storage or an observer that panics stops its own member, and no other.
fn unless_panicked(run: impl FnOnce() -> Result<(), StorageError>) -> Result<(), StorageError> {
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    ran.unwrap_or_else(|_| Err(StoragePanicked.into()))
}

#[derive(Clone, Copy, Debug)]
struct StoragePanicked;

impl std::fmt::Display for StoragePanicked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the storage panicked")
    }
}

impl std::error::Error for StoragePanicked {}
