//! Runs a member's jobs on its machine, in order, and writes snapshots of it to the disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_core::{Entries, Envelope, Index, SnapshotMeta};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};
use tracing::warn;

use super::batch_queue::{BatchQueue, QuietKind};
use super::capture::write_capture;
use super::disk_thread::DiskHandle;
use super::disk_use::DiskUses;
use super::mailbox::Completion;
use super::metrics::{Counters, NodeObserver};
use super::pending_replies::MachineReplies;
use super::snapshots::{LoadedSlot, OutgoingBytes};
use super::status::StopReason;
use super::storage::SnapshotSource;
use crate::applier::{Applier, LoadedSnapshot, MachineJob, MachineJobDone};
use crate::machine::{Machine, MachineFailed};

/// What the member sends to the task.
pub(crate) enum ApplyCommand {
    Job(MachineJob),
    Stop,
}

/// The task that owns the machine.
pub(crate) struct ApplyTask<M> {
    pub(crate) applier: Applier<M>,
    pub(crate) jobs: Arc<BatchQueue<ApplyCommand>>,
    pub(crate) done: Arc<BatchQueue<Completion>>,
    pub(crate) disk: DiskHandle,
    pub(crate) counters: Arc<Counters>,
    pub(crate) observer: Arc<dyn NodeObserver>,
    /// The machine may block: it runs on threads for blocking work.
    pub(crate) blocking: bool,
    /// One snapshot is written at a time.
    pub(crate) writing: Arc<Semaphore>,
    pub(crate) disk_uses: DiskUses,
    pub(crate) loaded: LoadedSlot,
    pub(crate) replies: MachineReplies,
}

impl<M: Machine + Send + 'static> ApplyTask<M> {
    /// Runs until it is told to stop, or the machine fails. The caller handles a panic.
    pub(crate) async fn run(mut self) {
        let mut batch = Vec::new();
        loop {
            self.jobs.ready().await;
            self.jobs.take_all(&mut batch);
            let jobs = std::mem::take(&mut batch);
            let ran = if self.blocking {
                let Some((task, ran)) = self.run_blocking(jobs).await else { return };
                self = task;
                ran
            } else {
                self.run_all(jobs)
            };
            let BatchResult { mut done, then } = ran;
            self.report(&mut done);
            match then {
                NextStep::Continue => {}
                NextStep::Stop => return,
                NextStep::Fail(why) => {
                    self.done.push(Completion::Ended(why.into()));
                    return;
                }
                NextStep::Install(meta, rest) => {
                    let Some(task) = self.install(meta).await else { return };
                    self = task;
                    self.put_back(rest);
                }
            }
        }
    }

    async fn run_blocking(mut self, jobs: Vec<ApplyCommand>) -> Option<(Self, BatchResult)> {
        let done = Arc::clone(&self.done);
        let ran = spawn_blocking(move || {
            let ran = self.run_all(jobs);
            (self, ran)
        });
        let ran = ran.await;
        ran.map_err(|why| {
            done.push(Completion::Ended(StopReason::MachinePanicked(panic_text(why))));
        })
        .ok()
    }

    fn run_all(&mut self, jobs: Vec<ApplyCommand>) -> BatchResult {
        let mut done = Vec::with_capacity(jobs.len());
        let mut jobs = jobs.into_iter();
        let mut reported = Instant::now();
        while let Some(job) = jobs.next() {
            if done.len() >= REPORTED_AT_ONCE || reported.elapsed() >= REPORT_INTERVAL {
                self.report(&mut done);
                reported = Instant::now();
            }
            let ran = match job {
                ApplyCommand::Job(MachineJob::Apply(entries)) => {
                    self.apply(&entries).map(|applied| done.push(applied))
                }
                ApplyCommand::Job(MachineJob::Query(token, query)) => {
                    self.applier.query(token, query.as_ref()).map(|queried| done.push(queried))
                }
                ApplyCommand::Job(MachineJob::Snapshot(meta)) => {
                    // A snapshot may be durable before the rest of this batch has run: the
                    // core has to learn first that what it covers is applied.
                    self.report(&mut done);
                    self.capture(meta)
                }
                ApplyCommand::Job(MachineJob::SendState { envelope, stored }) => {
                    // The capture may take long.
                    self.report(&mut done);
                    self.send_state(envelope, stored)
                }
                ApplyCommand::Job(MachineJob::Install(meta)) => {
                    return BatchResult { done, then: NextStep::Install(meta, jobs.collect()) };
                }
                ApplyCommand::Stop => {
                    if let Err(why) = self.applier.save() {
                        warn!(%why, "the state machine was not saved at shutdown");
                    }
                    return BatchResult { done, then: NextStep::Stop };
                }
            };
            if let Err(why) = ran {
                return BatchResult { done, then: NextStep::Fail(why) };
            }
        }
        BatchResult { done, then: NextStep::Continue }
    }

    fn report(&self, done: &mut Vec<MachineJobDone>) {
        if done.is_empty() {
            return;
        }
        let mut done = std::mem::take(done);
        let ready = self.replies.take_ready(&mut done);
        if done.iter().any(MachineJobDone::is_awaited) {
            self.done.push(Completion::Jobs(done));
        } else {
            self.done.push_quietly(Completion::Jobs(done), QuietKind::Job);
        }
        // After the report: a caller's next request finds a member that knows it.
        ready.send();
    }

    fn apply(&mut self, entries: &Entries) -> Result<MachineJobDone, MachineFailed> {
        let began = Instant::now();
        let done = self.applier.apply(entries)?;
        let (took, count) = (began.elapsed(), entries.len() as u64);
        self.counters.count_applied(took, count);
        self.observer.on_applied(self.applier.applied(), count, took);
        Ok(done)
    }

    fn capture(&mut self, meta: SnapshotMeta) -> Result<(), MachineFailed> {
        let (disk, done) = (self.disk.clone(), Arc::clone(&self.done));
        let index = meta.id.index;
        let MachineJobDone::Captured { meta, chunks } = self.applier.capture(meta)? else {
            done.push(Completion::SnapshotFailed(index));
            return Ok(());
        };
        let writing = Arc::clone(&self.writing);
        let user = self.disk_uses.begin_use();
        tokio::spawn(async move {
            let _turn = writing.acquire_owned().await;
            match write_capture(&disk, meta.clone(), chunks, user).await {
                Ok(bytes) => done.push(Completion::SnapshotSaved { index, bytes }),
                // The state cannot be read: requests would fail too.
                Err(why) if why.is::<MachineFailed>() => {
                    let Ok(failed) = why.downcast::<MachineFailed>() else { return };
                    done.push(Completion::Ended((*failed).into()));
                }
                Err(why) if why.is::<JoinError>() => {
                    let text =
                        why.downcast().map_or_else(|_| String::new(), |why| panic_text(*why));
                    done.push(Completion::Ended(StopReason::MachinePanicked(text)));
                }
                Err(why) => {
                    warn!(snapshot = %meta.id, %why, "cannot take a snapshot");
                    done.push(Completion::SnapshotFailed(meta.id.index));
                }
            }
        });
        Ok(())
    }

    /// The member's task passes it to the transport.
    fn send_state(&mut self, envelope: Envelope, stored: Index) -> Result<(), MachineFailed> {
        let state = self.applier.state_to_send(&envelope, stored)?.map(OutgoingBytes::Machine);
        self.done.push(Completion::SnapshotOpened(Box::new(envelope), state));
        Ok(())
    }

    /// None when the member stops because of it.
    async fn install(mut self, meta: SnapshotMeta) -> Option<Self> {
        let from = match self.loaded.take(meta.id) {
            Some(loaded) => InstallFrom::Loaded(Box::new(loaded)),
            None => InstallFrom::Disk(self.disk.read_snapshot(meta.id).await?),
        };
        let done = Arc::clone(&self.done);
        let installed = spawn_blocking(move || {
            let applier = &mut self.applier;
            let installed = match from {
                InstallFrom::Loaded(loaded) => install_loaded(applier, &meta, *loaded),
                InstallFrom::Disk(source) => install(applier, &meta, source),
            };
            (self, meta, installed)
        });
        let ended = match installed.await {
            Ok((task, meta, Ok(installed))) => {
                task.disk.release_snapshot(meta.id);
                done.push(Completion::Jobs(vec![installed]));
                return Some(task);
            }
            Ok((_, _, Err(ended))) => ended,
            Err(why) => StopReason::MachinePanicked(panic_text(why)),
        };
        done.push(Completion::Ended(ended));
        None
    }

    /// The jobs after an install have yet to run, before newer ones.
    fn put_back(&self, rest: Vec<ApplyCommand>) {
        self.jobs.push_front(rest);
    }
}

/// The result of a batch of jobs.
struct BatchResult {
    done: Vec<MachineJobDone>,
    then: NextStep,
}

enum NextStep {
    Continue,
    Stop,
    /// The machine returned an error.
    Fail(MachineFailed),
    /// All jobs before it have run; the rest has not.
    Install(SnapshotMeta, Vec<ApplyCommand>),
}

/// Where the machine gets the state of a snapshot from.
enum InstallFrom {
    Loaded(Box<LoadedSnapshot>),
    Disk(Box<dyn SnapshotSource>),
}

/// Restores the machine from a snapshot that was loaded while it arrived.
fn install_loaded<M: Machine>(
    applier: &mut Applier<M>,
    meta: &SnapshotMeta,
    loaded: LoadedSnapshot,
) -> Result<MachineJobDone, StopReason> {
    let installed = applier.install_loaded(meta, loaded);
    installed.map_err(|why| StopReason::of_snapshot(meta.id, why))
}

/// Restores the machine from a snapshot.
pub(crate) fn install<M: Machine>(
    applier: &mut Applier<M>,
    meta: &SnapshotMeta,
    mut source: Box<dyn SnapshotSource>,
) -> Result<MachineJobDone, StopReason> {
    let (bytes, mut failed) = (source.bytes(), None);
    let chunks = std::iter::from_fn(|| {
        source.next_chunk().unwrap_or_else(|why| {
            failed = Some(why);
            None
        })
    });
    let installed = applier.install(meta, chunks);
    let installed = installed.map(|done| done.with_snapshot_bytes(bytes));
    match failed {
        Some(why) => Err(StopReason::Disk(why.into())),
        None => installed.map_err(|why| StopReason::of_snapshot(meta.id, why)),
    }
}

/// The message of a panic of the machine.
pub(crate) fn panic_text(why: JoinError) -> String {
    let Ok(panic) = why.try_into_panic() else { return "the task was cancelled".to_owned() };
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "no message".to_owned())
}

/// At most this many jobs are reported together, so that callers do not wait for the whole
/// batch.
const REPORTED_AT_ONCE: usize = 256;
/// And after this time: a slow machine that makes progress must not look like one that stands
/// still.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
