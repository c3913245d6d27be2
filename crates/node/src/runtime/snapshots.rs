//! Snapshots in transfer: read from a disk and sent, received and written to one. Their bytes
//! pass neither the member's mailbox nor the core.

use std::fmt;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use quorate_core::message::Message;
use quorate_core::{EntryId, Envelope, SnapshotMeta};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinHandle, spawn_blocking};

use super::batch_queue::BatchQueue;
use super::disk_use::DiskUse;
use super::early_sync::EarlySync;
use super::inbox::LocalMember;
use super::mailbox::{Completion, FromPeers};
use super::storage::{SnapshotSink, SnapshotSource, StorageError};
use super::sync::lock;
use crate::applier::{LoadedSnapshot, SnapshotInstallError};
use crate::machine::SnapshotChunks;

/// A snapshot to be sent. If it is dropped before [`OutgoingSnapshot::arrived`] is called, it
/// counts as lost, and the leader retries later.
#[must_use = "a dropped snapshot counts as lost"]
pub struct OutgoingSnapshot {
    envelope: Envelope,
    bytes: Option<u64>,
    source: Option<(OutgoingBytes, DiskUse)>,
    done: Arc<BatchQueue<Completion>>,
    arrived: bool,
}

/// Where the bytes of a snapshot for a peer come from.
pub(crate) enum OutgoingBytes {
    Disk(Box<dyn SnapshotSource>),
    /// The machine's state, encoded while it is sent.
    Machine(SnapshotChunks),
}

impl OutgoingBytes {
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StorageError> {
        match self {
            Self::Disk(source) => source.next_chunk(),
            Self::Machine(chunks) => chunks.next().transpose(),
        }
    }
}

impl OutgoingSnapshot {
    pub(crate) fn new(
        envelope: Envelope,
        source: OutgoingBytes,
        user: DiskUse,
        done: Arc<BatchQueue<Completion>>,
    ) -> Self {
        let bytes = match &source {
            OutgoingBytes::Disk(source) => Some(source.bytes()),
            OutgoingBytes::Machine(_) => None,
        };
        Self { envelope, bytes, source: Some((source, user)), done, arrived: false }
    }

    /// The message that announces it, to be sent unchanged.
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// The number of bytes to send. It is not known for a state that is encoded while it is sent.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// The next bytes; none at the end. After an error, or when a call was cancelled, every
    /// further call fails.
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>, StorageError> {
        let (mut source, user) = self.source.take().ok_or(SnapshotReadAborted)?;
        if user.is_cancelled() {
            drop(source); // Closes its file before the disk counts as unused.
            return Err(SnapshotReadAborted.into());
        }
        let read = spawn_blocking(move || (read_piece(&mut source), source, user)).await;
        let (read, source, user) = read?;
        self.source = Some((source, user));
        read
    }

    /// The peer has all of it, durably.
    pub fn arrived(mut self) {
        self.arrived = true;
    }
}

/// Reads several short chunks together: each piece costs some hand-overs between threads.
fn read_piece(source: &mut OutgoingBytes) -> Result<Option<Bytes>, StorageError> {
    let Some(first) = source.next_chunk()? else { return Ok(None) };
    if first.len() >= PIECE_BYTES_MIN {
        return Ok(Some(first));
    }
    let mut piece = BytesMut::with_capacity(PIECE_BYTES_MIN + first.len());
    piece.extend_from_slice(&first);
    while piece.len() < PIECE_BYTES_MIN
        && let Some(chunk) = source.next_chunk()?
    {
        piece.extend_from_slice(&chunk);
    }
    Ok(Some(piece.freeze()))
}

const PIECE_BYTES_MIN: usize = 256 << 10;

impl Drop for OutgoingSnapshot {
    fn drop(&mut self) {
        self.done.push(Completion::SnapshotSent(self.envelope.to, self.arrived));
    }
}

impl fmt::Debug for OutgoingSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingSnapshot").field("envelope", &self.envelope).finish()
    }
}

/// A snapshot that a peer sends. If it is dropped before [`IncomingSnapshot::finish`], nothing
/// of it remains.
#[must_use = "a dropped snapshot is deleted"]
pub struct IncomingSnapshot {
    local: Arc<LocalMember>,
    envelope: Envelope,
    sink: Option<(Box<dyn SnapshotSink>, DiskUse)>,
    early_sync: EarlySync,
    /// A copy of everything that is appended goes to the machine's loader, which runs beside.
    to_loader: Option<SyncSender<Bytes>>,
    loading: JoinHandle<Result<Option<LoadedSnapshot>, SnapshotInstallError>>,
    bytes: u64,
    _permit: OwnedSemaphorePermit,
}

impl IncomingSnapshot {
    pub(crate) async fn begin(
        local: Arc<LocalMember>,
        envelope: Envelope,
    ) -> Result<Self, SnapshotReceiveError> {
        let Message::Snapshot(meta) = &envelope.message else {
            return Err(SnapshotReceiveError::NoSnapshot);
        };
        let meta = meta.clone();
        let permit = Arc::clone(&local.snapshot_permits).try_acquire_owned();
        let permit = permit.map_err(|_| SnapshotReceiveError::Busy)?;
        // Before the sink exists: a member that stops waits for this use, and starts again on
        // a disk that nothing holds.
        let disk_use = local.disk_uses.begin_use();
        if disk_use.is_cancelled() {
            return Err(SnapshotReceiveError::Stopped);
        }
        let sink = local.disk.begin_snapshot(meta.clone()).await;
        let sink = sink.ok_or(SnapshotReceiveError::Stopped)?;
        let sink = sink.map_err(SnapshotReceiveError::Disk)?;
        let early_sync = EarlySync::new(sink.sync_beside(), local.disk_uses.clone());
        let sink = Some((sink, disk_use));
        let (to_loader, arriving) = sync_channel(LOADED_AHEAD);
        let load = Arc::clone(&local.load_snapshot);
        let loading = spawn_blocking(move || load(&meta, &mut arriving.into_iter()));
        let to_loader = Some(to_loader);
        let bytes = 0;
        Ok(Self { local, envelope, sink, early_sync, to_loader, loading, bytes, _permit: permit })
    }

    /// Appends bytes. Returns when they are written, so that the sender is slowed down to the
    /// speed of the disk.
    pub async fn append(&mut self, bytes: Bytes) -> Result<(), SnapshotReceiveError> {
        let (mut sink, user) = self.sink.take().ok_or(SnapshotReceiveError::Stopped)?;
        if user.is_cancelled() {
            drop(sink); // Removes its file before the disk counts as unused.
            return Err(SnapshotReceiveError::Stopped);
        }
        self.bytes += bytes.len() as u64;
        let to_loader = self.to_loader.clone();
        let appended = spawn_blocking(move || {
            let appended = sink.append(&bytes);
            // A loader that has ended already has its result.
            let _ = to_loader.map(|to_loader| to_loader.send(bytes));
            (appended, sink, user)
        });
        let appended = appended.await;
        let (appended, sink, user) =
            appended.map_err(|why| SnapshotReceiveError::Disk(why.into()))?;
        appended.map_err(SnapshotReceiveError::Disk)?;
        let synced = self.early_sync.on_added(self.bytes).await;
        // After a failure, or when this call was cancelled, the snapshot has no sink: it cannot be finished.
        synced.map_err(SnapshotReceiveError::Disk)?;
        self.sink = Some((sink, user));
        Ok(())
    }

    /// The number of bytes that were appended.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The snapshot is complete. If the machine could be restored from it, this makes it durable
    /// and tells the member; else nothing of it remains. The member's log and its previous
    /// snapshot are replaced only after that.
    pub async fn finish(mut self) -> Result<(), SnapshotReceiveError> {
        drop(self.to_loader.take());
        let loaded = (&mut self.loading).await;
        let loaded = loaded
            .map_err(|why| SnapshotReceiveError::Disk(why.into()))?
            .map_err(SnapshotReceiveError::Invalid)?;
        self.early_sync.finish().await.map_err(SnapshotReceiveError::Disk)?;
        let (sink, user) = self.sink.take().ok_or(SnapshotReceiveError::Stopped)?;
        let finished = spawn_blocking(move || {
            let finished = sink.finish();
            drop(user);
            finished
        });
        let finished = finished.await;
        finished
            .map_err(|why| SnapshotReceiveError::Disk(why.into()))?
            .map_err(SnapshotReceiveError::Disk)?;
        let Message::Snapshot(SnapshotMeta { id, .. }) = &self.envelope.message else {
            return Err(SnapshotReceiveError::NoSnapshot);
        };
        self.local.disk.adopt_snapshot(*id).await.ok_or(SnapshotReceiveError::Stopped)?;
        self.local.loaded.set(loaded);
        let told = self
            .local
            .peers
            .send(FromPeers::SnapshotReceived(Box::new(self.envelope.clone())))
            .await;
        told.map_err(|_| SnapshotReceiveError::Stopped)
    }
}

impl fmt::Debug for IncomingSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingSnapshot").field("envelope", &self.envelope).finish()
    }
}

/// Why a snapshot was not received. The member continues as before.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotReceiveError {
    /// The message announces no snapshot.
    NoSnapshot,
    /// Other snapshots are being received. Retry later.
    Busy,
    /// It cannot be written.
    Disk(StorageError),
    /// The member has stopped.
    Stopped,
    /// It is not a complete snapshot of this state machine. Nothing of it was used.
    Invalid(SnapshotInstallError),
}

impl SnapshotReceiveError {
    /// The number that stands for it on the wire. Numbers never change; 0 is never used.
    pub(crate) fn code(&self) -> u32 {
        match self {
            Self::NoSnapshot => 1,
            Self::Busy => 2,
            Self::Disk(_) => 3,
            Self::Stopped => 4,
            Self::Invalid(_) => 5,
        }
    }
}

impl fmt::Display for SnapshotReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSnapshot => write!(f, "the message announces no snapshot"),
            Self::Busy => write!(f, "other snapshots are being received"),
            Self::Disk(why) => write!(f, "the disk failed: {why}"),
            Self::Stopped => write!(f, "the member is stopped"),
            Self::Invalid(why) => write!(f, "the snapshot cannot be used: {why}"),
        }
    }
}

impl std::error::Error for SnapshotReceiveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Disk(why) => Some(&**why),
            Self::Invalid(why) => Some(why),
            Self::NoSnapshot | Self::Busy | Self::Stopped => None,
        }
    }
}

/// Pieces of a snapshot that may wait for the machine's loader.
const LOADED_AHEAD: usize = 2;

/// A snapshot that was loaded while it arrived, until the machine takes it over.
#[derive(Clone, Default)]
pub(crate) struct LoadedSlot(Arc<Mutex<Option<LoadedSnapshot>>>);

impl LoadedSlot {
    /// Replaces what was there: only the newest one is used.
    pub(crate) fn set(&self, loaded: Option<LoadedSnapshot>) {
        let before = std::mem::replace(&mut *lock(&self.0), loaded);
        if before.is_some() {
            // Freeing a large state takes time.
            spawn_blocking(move || drop(before));
        }
    }

    /// The loaded state of this snapshot, if it is there.
    pub(crate) fn take(&self, id: EntryId) -> Option<LoadedSnapshot> {
        lock(&self.0).take_if(|loaded| loaded.id == id)
    }
}

/// The read was cancelled, or the member has stopped.
#[derive(Clone, Copy, Debug)]
struct SnapshotReadAborted;

impl fmt::Display for SnapshotReadAborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("reading the snapshot was cancelled")
    }
}

impl std::error::Error for SnapshotReadAborted {}
