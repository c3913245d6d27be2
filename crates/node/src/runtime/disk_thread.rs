//! The one thread of a process that writes logs: of every member that lives here.
//!
//! It takes everything that has gathered, writes it, syncs once for each member, and
//! reports. While it syncs the next batch gathers: that is group commit. Snapshots are
//! begun and named here, and written and read elsewhere.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use quorate_core::{EntryId, Envelope, Index, Load, Save, SaveId, SnapshotMeta};
use tokio::sync::oneshot;

use super::mailbox::{BatchQueue, Completion, lock};
use super::metrics::{Counters, NodeObserver};
use super::status::StopReason;
use super::storage::{SnapshotSink, SnapshotSource, Storage, StorageError};

/// The thread, for as long as somebody holds this.
pub(crate) struct DiskThread {
    queue: Arc<DiskQueue>,
    next_slot: AtomicU64,
}

#[derive(Default)]
struct DiskQueue {
    jobs: Mutex<DiskJobs>,
    filled: Condvar,
}

#[derive(Default)]
struct DiskJobs {
    list: Vec<(u64, DiskJob)>,
    closed: bool,
}

enum DiskJob {
    Open(Box<DiskSlot>),
    Save(Save),
    Load(Load),
    Trim(Index),
    Begin(SnapshotMeta, oneshot::Sender<Result<Box<dyn SnapshotSink>, StorageError>>),
    Adopt(EntryId, oneshot::Sender<()>),
    Read(EntryId, oneshot::Sender<Box<dyn SnapshotSource>>),
    /// As `Read`, for a snapshot that goes to a peer.
    Send(EntryId, Box<Envelope>),
    Release(EntryId),
    Close(oneshot::Sender<Result<(), StorageError>>),
}

/// One member's place on the thread.
pub(crate) struct DiskSlot {
    pub(crate) storage: Box<dyn Storage>,
    pub(crate) done: Arc<BatchQueue<Completion>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) observer: Arc<dyn NodeObserver>,
}

impl DiskThread {
    pub(crate) fn start() -> std::io::Result<Self> {
        let queue = Arc::new(DiskQueue::default());
        let worker = DiskWorker { queue: Arc::clone(&queue), slots: BTreeMap::new() };
        thread::Builder::new().name("quorate-disk".into()).spawn(move || worker.run())?;
        Ok(Self { queue, next_slot: AtomicU64::new(1) })
    }

    /// A member whose storage was opened.
    pub(crate) fn add(&self, slot: DiskSlot) -> DiskHandle {
        let number = self.next_slot.fetch_add(1, Ordering::Relaxed);
        let handle = DiskHandle { queue: Arc::clone(&self.queue), slot: number };
        handle.push(DiskJob::Open(Box::new(slot)));
        handle
    }
}

impl Drop for DiskThread {
    fn drop(&mut self) {
        lock(&self.queue.jobs).closed = true;
        self.queue.filled.notify_one();
    }
}

/// One member's way to its storage.
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

    /// Nothing when the member has ended; so below.
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
        let mut jobs = lock(&self.queue.jobs);
        if jobs.closed {
            return;
        }
        jobs.list.push((self.slot, job));
        let first = jobs.list.len() == 1;
        drop(jobs);
        if first {
            self.queue.filled.notify_one();
        }
    }
}

struct DiskWorker {
    queue: Arc<DiskQueue>,
    slots: BTreeMap<u64, OpenSlot>,
}

struct OpenSlot {
    slot: DiskSlot,
    /// The newest save that was written and not reported.
    written: Option<SaveId>,
    must_sync: bool,
    saves: u64,
}

impl DiskWorker {
    fn run(mut self) {
        let mut batch = Vec::new();
        while self.take(&mut batch) {
            for (slot, job) in batch.drain(..) {
                self.run_job(slot, job);
            }
            self.sync_all();
        }
    }

    /// Waits until there is something. False when nobody will ask again.
    fn take(&self, into: &mut Vec<(u64, DiskJob)>) -> bool {
        let mut jobs = lock(&self.queue.jobs);
        while jobs.list.is_empty() {
            if jobs.closed {
                return false;
            }
            jobs = self.queue.filled.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut jobs.list, into);
        true
    }

    fn run_job(&mut self, number: u64, job: DiskJob) {
        if let DiskJob::Open(slot) = job {
            let open = OpenSlot { slot: *slot, written: None, must_sync: false, saves: 0 };
            self.slots.insert(number, open);
            return;
        }
        // A member that has ended gets no answers.
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

    /// A disk that failed is not asked again.
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
                storage.write(&save)?;
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
                // It may have gone since: then the leader looks again.
                let source = storage.open_snapshot(id).ok();
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
        self.slot.done.push(Completion::Saved(id));
        Ok(())
    }
}

/// A storage or an observer that panics ends its member, and no other one.
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
