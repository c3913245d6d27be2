//! Where a transport delivers messages: to the members of this process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use quorate_core::{Envelope, MemberId, SnapshotMeta};
use tokio::sync::{Semaphore, mpsc, watch};

use super::disk_thread::DiskHandle;
use super::disk_use::DiskUses;
use super::mailbox::{FromPeers, HeldBytes};
use super::snapshots::{IncomingSnapshot, LoadedSlot, SnapshotReceiveError};
use super::status::KnownMembership;
use super::transport::{HostedMember, Introduction, MemberKey, PeerMessage, RejectReason};
use crate::applier::ApplierLoader;
use crate::cluster_version::ClusterVersion;

/// Delivers from a transport to the members of this process. Cheap to clone.
#[derive(Clone)]
pub struct Inbox {
    local_members: Arc<LocalMembers>,
}

/// The members of this process.
#[derive(Default)]
pub(crate) struct LocalMembers {
    members: RwLock<BTreeMap<MemberKey, Arc<LocalMember>>>,
}

/// How a transport reaches one member.
pub(crate) struct LocalMember {
    pub(crate) peers: mpsc::Sender<FromPeers>,
    pub(crate) disk: DiskHandle,
    /// Permits for snapshots that may be received at the same time.
    pub(crate) snapshot_permits: Arc<Semaphore>,
    pub(crate) filter: RwLock<PeerFilter>,
    pub(crate) disk_uses: DiskUses,
    pub(crate) load_snapshot: ApplierLoader,
    pub(crate) loaded: LoadedSlot,
    known: watch::Receiver<KnownMembership>,
    cluster_version: watch::Receiver<ClusterVersion>,
}

impl LocalMember {
    pub(crate) fn new(
        peers: mpsc::Sender<FromPeers>,
        disk: DiskHandle,
        load_snapshot: ApplierLoader,
        known: (watch::Receiver<KnownMembership>, watch::Receiver<ClusterVersion>),
    ) -> Self {
        let (known, cluster_version) = known;
        let snapshot_permits = Arc::new(Semaphore::new(INCOMING_SNAPSHOTS_MAX));
        let disk_uses = DiskUses::new();
        let filter = RwLock::default();
        Self {
            peers,
            disk,
            snapshot_permits,
            filter,
            disk_uses,
            load_snapshot,
            loaded: LoadedSlot::default(),
            known,
            cluster_version,
        }
    }
}

/// The peers whose messages a member rejects.
#[derive(Default)]
pub(crate) struct PeerFilter {
    /// Removed by a membership that is settled: no member needs them.
    pub(crate) removed: Vec<MemberId>,
    /// Members with a disk that is not the one in the membership.
    pub(crate) rejected_disks: Vec<(MemberId, u64)>,
}

impl Inbox {
    pub(crate) fn new(local_members: Arc<LocalMembers>) -> Self {
        Self { local_members }
    }

    /// Whether a local member accepts messages from this sender. A transport has to check this
    /// before it reads anything else from the sender.
    pub fn admit(&self, introduction: &Introduction) -> Result<(), RejectReason> {
        let Introduction { from, incarnation, to } = *introduction;
        let members = read(&self.local_members.members);
        let Some(local) = members.get(&MemberKey { cluster: from.cluster, member: to }) else {
            let known = members.keys().any(|key| key.cluster == from.cluster);
            return Err(if known {
                RejectReason::OtherMember
            } else {
                RejectReason::ForeignCluster
            });
        };
        let filter = read(&local.filter);
        if filter.removed.contains(&from.member) {
            return Err(RejectReason::Removed);
        }
        if filter.rejected_disks.contains(&(from.member, incarnation)) {
            return Err(RejectReason::OtherDisk);
        }
        Ok(())
    }

    /// The members of this process, and the membership that is in effect for each: for a
    /// process that asks before it joins. At most `count_max`, without those that have yet to
    /// join themselves.
    pub fn hosted_members(&self, count_max: usize) -> Vec<HostedMember> {
        let members = read(&self.local_members.members);
        let resident = |(key, local): (&MemberKey, &Arc<LocalMember>)| {
            let KnownMembership { id, membership, .. } = local.known.borrow().clone();
            let cluster_version = local.cluster_version.borrow().version;
            let membership = SnapshotMeta { id, membership };
            HostedMember { key: *key, membership, cluster_version }
        };
        let joined = |resident: &HostedMember| !resident.membership.membership.is_empty();
        members.iter().map(resident).filter(joined).take(count_max).collect()
    }

    /// Delivers messages to a member, in order. Waits while the member is busy: do not read
    /// from the same peer in the meantime, so that backpressure reaches it.
    pub async fn deliver(
        &self,
        to: MemberKey,
        messages: Vec<PeerMessage>,
    ) -> Result<(), MemberStopped> {
        self.deliver_held(to, messages, None).await
    }

    pub(crate) async fn deliver_held(
        &self,
        to: MemberKey,
        messages: Vec<PeerMessage>,
        held: Option<HeldBytes>,
    ) -> Result<(), MemberStopped> {
        let peers = self.local(to).ok_or(MemberStopped)?.peers.clone();
        peers.send(FromPeers::Messages(messages, held)).await.map_err(|_| MemberStopped)
    }

    /// Messages to this peer are being dropped: it cannot be reached, or reads too slowly.
    pub fn unreachable(&self, key: MemberKey, peer: MemberId) {
        self.hint(key, FromPeers::Unreachable(peer));
    }

    /// The connection from this peer was closed: its process has probably ended.
    pub fn connection_lost(&self, key: MemberKey, peer: MemberId) {
        self.hint(key, FromPeers::ConnectionLost(peer));
    }

    /// Begins to receive the snapshot that this envelope announces.
    pub async fn begin_snapshot(
        &self,
        key: MemberKey,
        envelope: Envelope,
    ) -> Result<IncomingSnapshot, SnapshotReceiveError> {
        let local = self.local(key).ok_or(SnapshotReceiveError::Stopped)?;
        IncomingSnapshot::begin(local, envelope).await
    }

    /// Hints are dropped when the member is busy.
    fn hint(&self, key: MemberKey, hint: FromPeers) {
        if let Some(local) = self.local(key) {
            let _ = local.peers.try_send(hint);
        }
    }

    fn local(&self, key: MemberKey) -> Option<Arc<LocalMember>> {
        read(&self.local_members.members).get(&key).cloned()
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

impl LocalMembers {
    /// False when there is one with this key already.
    pub(crate) fn add(&self, key: MemberKey, local: Arc<LocalMember>) -> bool {
        let mut members = write(&self.members);
        if members.contains_key(&key) {
            return false;
        }
        members.insert(key, local);
        true
    }

    pub(crate) fn remove(&self, key: MemberKey) {
        write(&self.members).remove(&key);
    }
}

/// The member has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStopped;

impl fmt::Display for MemberStopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the member is stopped")
    }
}

impl std::error::Error for MemberStopped {}

pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// One from the leader, and one from the previous leader.
const INCOMING_SNAPSHOTS_MAX: usize = 2;
