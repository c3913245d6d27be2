//! Fake members without a core: a mailbox and a disk for snapshots, behind a real inbox.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use quorate_core::membership::MemberInfo;
use quorate_core::message::Message;
use quorate_core::{Boot, Entries, EntryId, Envelope, Index, MemberId, Save};
use quorate_core::{Membership, SnapshotMeta};
use quorate_storage::StoreIdentity;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::transport::TransportSuiteFailure;
use crate::applier::{LoadedSnapshot, SnapshotInstallError};
use crate::cluster_version::ClusterVersion;
use crate::runtime::batch_queue::BatchQueue;
use crate::runtime::disk_thread::{DiskSlot, DiskThread};
use crate::runtime::disk_use::DiskUses;
use crate::runtime::inbox::{LocalMember, LocalMembers};
use crate::runtime::mailbox::{Completion, FromPeers};
use crate::runtime::metrics::Counters;
use crate::runtime::snapshots::OutgoingBytes;
use crate::runtime::status::KnownMembership;
use crate::runtime::{
    Inbox, MemberKey, OutgoingSnapshot, PeerMessage, SnapshotSink, SnapshotSource, Storage,
    StorageError, StoredState, Transport, lock,
};

/// Far longer than anything takes on the slowest machine: only a failure lasts this long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A process with a transport and fake members.
pub(crate) struct Process {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) info: MemberInfo,
    local_members: Arc<LocalMembers>,
    disks: DiskThread,
}

impl Process {
    pub(crate) fn start(
        transport: Box<dyn Transport>,
        info: MemberInfo,
    ) -> Result<Self, StorageError> {
        let local_members = Arc::new(LocalMembers::default());
        transport.start(Inbox::new(Arc::clone(&local_members)))?;
        Ok(Self { transport, info, local_members, disks: DiskThread::start()? })
    }

    /// How peers reach it.
    #[cfg(test)]
    pub(crate) fn info(&self) -> &MemberInfo {
        &self.info
    }

    /// Adds a member with room for this many unread deliveries.
    pub(crate) fn add(&self, key: MemberKey, incarnation: u64, unread_max: usize) -> FakeMember {
        let done = Arc::new(BatchQueue::new());
        let disk = Arc::new(FakeDisk::default());
        let handle = self.disks.add(DiskSlot {
            storage: Box::new(FakeStorage(Arc::clone(&disk))),
            done: Arc::clone(&done),
            counters: Arc::new(Counters::default()),
            observer: Arc::new(()),
        });
        let (sender, peers) = mpsc::channel(unread_max);
        let membership = Arc::new(Membership::new([key.member], []));
        let known =
            watch::Sender::new(KnownMembership { id: EntryId::new(1, 1), membership, settled: 1 });
        let known = known.subscribe();
        let version = watch::Sender::new(ClusterVersion::default()).subscribe();
        let known = (known, version);
        let local = Arc::new(LocalMember::new(sender, handle, Arc::new(accept_snapshot), known));
        self.local_members.add(key, Arc::clone(&local));
        self.transport.add_member(key, incarnation);
        FakeMember { key, incarnation, peers, done, local, disk }
    }

    /// Sets the peers of a member, each with the process that hosts it.
    pub(crate) fn introduce(&self, member: &FakeMember, peers: &[(MemberId, &Self)]) {
        let peers = peers.iter().map(|(id, process)| (*id, process.info.clone())).collect();
        self.transport.set_peers(member.key, peers);
    }
}

/// A fake member has no machine: it takes any snapshot.
fn accept_snapshot(
    _meta: &SnapshotMeta,
    pieces: &mut dyn Iterator<Item = Bytes>,
) -> Result<Option<LoadedSnapshot>, SnapshotInstallError> {
    pieces.for_each(drop);
    Ok(None)
}

pub(crate) struct FakeMember {
    pub(crate) key: MemberKey,
    pub(crate) incarnation: u64,
    peers: mpsc::Receiver<FromPeers>,
    done: Arc<BatchQueue<Completion>>,
    pub(crate) local: Arc<LocalMember>,
    pub(crate) disk: Arc<FakeDisk>,
}

/// What a fake member received.
#[derive(Debug)]
pub(crate) enum Received {
    Messages(Vec<PeerMessage>),
    Unreachable(MemberId),
    ConnectionLost,
    Snapshot(Box<Envelope>),
}

impl FakeMember {
    /// What it receives next, within the limit.
    pub(crate) async fn receive_within(&mut self, limit: Duration) -> Option<Received> {
        let received = timeout(limit, self.peers.recv()).await.ok()??;
        Some(match received {
            FromPeers::Messages(messages, _) => Received::Messages(messages),
            FromPeers::Unreachable(peer) => Received::Unreachable(peer),
            FromPeers::ConnectionLost(_) => Received::ConnectionLost,
            FromPeers::SnapshotReceived(envelope) => Received::Snapshot(envelope),
        })
    }

    pub(crate) async fn receive(&mut self, what: &str) -> Result<Received, TransportSuiteFailure> {
        let received = self.receive_within(TIMEOUT).await;
        received.ok_or_else(|| {
            TransportSuiteFailure::new(format!("{} never received {what}", self.key))
        })
    }

    /// An envelope from this member.
    pub(crate) fn envelope(&self, to: MemberId, term: u64, message: Message) -> Envelope {
        let (from, incarnation) = (self.key.member, self.incarnation);
        Envelope { from, to, term, incarnation, joined_at: 3, message }
    }

    /// A snapshot from this member, with these bytes.
    pub(crate) fn snapshot(&self, envelope: Envelope, chunks: Vec<Bytes>) -> OutgoingSnapshot {
        let meta = match &envelope.message {
            Message::Snapshot(meta) => meta.clone(),
            _ => SnapshotMeta::default(),
        };
        let source = Box::new(FakeSource { meta, chunks: chunks.into() });
        let user = DiskUses::new().begin_use();
        OutgoingSnapshot::new(envelope, OutgoingBytes::Disk(source), user, Arc::clone(&self.done))
    }

    /// A state of this member's machine, whose size is not known.
    pub(crate) fn state(&self, envelope: Envelope, chunks: Vec<Bytes>) -> OutgoingSnapshot {
        let source = OutgoingBytes::Machine(Box::new(chunks.into_iter().map(Ok)));
        let user = DiskUses::new().begin_use();
        OutgoingSnapshot::new(envelope, source, user, Arc::clone(&self.done))
    }

    /// The report about a snapshot that it sent: the receiver, and whether it arrived.
    pub(crate) async fn reported(&self) -> Result<(MemberId, bool), TransportSuiteFailure> {
        let wait = async {
            let mut done = Vec::new();
            loop {
                self.done.take_all(&mut done);
                for completion in done.drain(..) {
                    if let Completion::SnapshotSent(to, arrived) = completion {
                        return (to, arrived);
                    }
                }
                self.done.ready().await;
            }
        };
        let waited = timeout(TIMEOUT, wait).await;
        waited.map_err(|_| TransportSuiteFailure::new("nothing was reported of a snapshot"))
    }
}

/// Keeps snapshots, or refuses them.
#[derive(Default)]
pub(crate) struct FakeDisk {
    pub(crate) snapshots: Mutex<BTreeMap<EntryId, Vec<u8>>>,
    pub(crate) refuses: AtomicBool,
}

struct FakeStorage(Arc<FakeDisk>);

impl Storage for FakeStorage {
    fn open(&mut self, identity: StoreIdentity, first: &Boot) -> Result<StoredState, StorageError> {
        Ok(StoredState { identity, boots: 1, boot: first.clone() })
    }

    fn write(&mut self, _save: &Save) -> Result<(), StorageError> {
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        Ok(())
    }

    fn load(&mut self, _range: Range<Index>, _bytes_max: u64) -> Result<Entries, StorageError> {
        Ok(Entries::new())
    }

    fn trim(&mut self, _index: Index) -> Result<(), StorageError> {
        Ok(())
    }

    fn begin_snapshot(
        &mut self,
        meta: SnapshotMeta,
    ) -> Result<Box<dyn SnapshotSink>, StorageError> {
        if self.0.refuses.load(Ordering::SeqCst) {
            return Err("this disk refuses snapshots".into());
        }
        Ok(Box::new(FakeSink { disk: Arc::clone(&self.0), id: meta.id, bytes: Vec::new() }))
    }

    fn adopt_snapshot(&mut self, _id: EntryId) -> Result<(), StorageError> {
        Ok(())
    }

    fn open_snapshot(&mut self, id: EntryId) -> Result<Box<dyn SnapshotSource>, StorageError> {
        let bytes = lock(&self.0.snapshots).get(&id).cloned().ok_or("no such snapshot")?;
        let meta = SnapshotMeta { id, ..SnapshotMeta::default() };
        Ok(Box::new(FakeSource { meta, chunks: vec![Bytes::from(bytes)].into() }))
    }

    fn release_snapshot(&mut self, _id: EntryId) {}

    fn close(&mut self) -> Result<(), StorageError> {
        Ok(())
    }
}

struct FakeSink {
    disk: Arc<FakeDisk>,
    id: EntryId,
    bytes: Vec<u8>,
}

impl SnapshotSink for FakeSink {
    fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), StorageError> {
        lock(&self.disk.snapshots).insert(self.id, self.bytes);
        Ok(())
    }
}

struct FakeSource {
    meta: SnapshotMeta,
    chunks: std::collections::VecDeque<Bytes>,
}

impl SnapshotSource for FakeSource {
    fn meta(&self) -> &SnapshotMeta {
        &self.meta
    }

    fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }

    fn next_chunk(&mut self) -> Result<Option<Bytes>, StorageError> {
        Ok(self.chunks.pop_front())
    }
}
