//! The settings of a member, and why it may not start.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorate_core::membership::MemberInfo;
use quorate_core::{BootError, Config, EntryId, Index, MemberId, Membership};

use super::metrics::NodeObserver;
use super::storage::StorageError;
use super::transport::{MemberKey, TransportError};
use crate::applier::SnapshotInstallError;
use crate::cluster_version::{UnsupportedVersion, VersionRange};
use crate::driver::DriverOptions;
use crate::machine::MachineFailed;

/// Settings of one member. [`NodeConfig::first`] and [`NodeConfig::join`] fill in defaults;
/// every field may be changed after.
#[derive(Clone)]
#[non_exhaustive]
pub struct NodeConfig {
    /// Identifies the cluster: the same number for all of its members, and for no other
    /// cluster. Best drawn at random once.
    pub cluster: u64,
    /// The rules: timeouts in ticks, limits, how reads are confirmed. Incarnation and seed are
    /// drawn at random where they are 0.
    pub raft: Config,
    /// How long requests wait, and when snapshots are taken.
    pub options: DriverOptions,
    /// The first membership of a new cluster, the same for each of its members; none for a
    /// member that joins. Only used on an empty disk.
    pub first: Option<Membership>,
    /// The length of a tick. An election timeout is [`Config::election_ticks`] of them.
    pub tick: Duration,
    /// Requests that may wait in the mailbox; further callers wait (backpressure).
    pub mailbox_requests: usize,
    /// Deliveries from peers that may wait in the mailbox.
    pub mailbox_deliveries: usize,
    /// The machine may block, because it writes to a disk: run it on threads for blocking
    /// work. Costs a few microseconds for each batch of commands.
    pub machine_blocks: bool,
    /// The cluster versions that this program supports: which commands and formats its machine
    /// knows. Raise `max` with the first program that knows a new kind of command, and propose
    /// that kind only while [`Node::cluster_version`](crate::Node::cluster_version) allows it. A
    /// member does not run in a cluster whose version is outside the range.
    pub versions: VersionRange,
    /// Raft and the state machine get threads of their own, so that nothing else in the process
    /// can delay a heartbeat: see [`Host::start_on_own_threads`](crate::Host::start_on_own_threads).
    /// Used by [`Node::start`](crate::Node::start); a member on a [`Host`](crate::Host) runs
    /// where the host runs.
    pub own_threads: bool,
    /// Called when something happens, for metrics.
    pub observer: Arc<dyn NodeObserver>,
}

impl NodeConfig {
    /// A first member of a new cluster. All first members are given with their addresses: for
    /// TCP, `host:port`.
    pub fn first<I: Into<MemberId>, A: Into<String>>(
        cluster: u64,
        id: impl Into<MemberId>,
        members: impl IntoIterator<Item = (I, A)>,
    ) -> Self {
        let members: Vec<(MemberId, MemberInfo)> = members
            .into_iter()
            .map(|(id, address)| (id.into(), MemberInfo::address(address)))
            .collect();
        let mut first = Membership::new(members.iter().map(|(id, _)| *id), []);
        for (id, info) in members {
            first = first.with_info(id, info);
        }
        Self { first: Some(first), ..Self::new(cluster, id.into()) }
    }

    /// A member that joins a running cluster: `joined_at` is the entry that added it, as
    /// [`Node::add_learner`](crate::Node::add_learner) answered.
    pub fn join(cluster: u64, id: impl Into<MemberId>, joined_at: Index) -> Self {
        let mut config = Self::new(cluster, id.into());
        config.raft.joined_at = joined_at;
        config
    }

    fn new(cluster: u64, id: MemberId) -> Self {
        Self {
            cluster,
            raft: Config::new(id),
            options: DriverOptions::default(),
            first: None,
            tick: Duration::from_millis(100),
            mailbox_requests: 8_192,
            mailbox_deliveries: 1_024,
            machine_blocks: false,
            versions: VersionRange::default(),
            own_threads: false,
            observer: Arc::new(()),
        }
    }

    /// With ticks of this length.
    pub fn with_tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    pub(crate) fn key(&self) -> MemberKey {
        MemberKey { cluster: self.cluster, member: self.raft.id }
    }
}

impl fmt::Debug for NodeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeConfig")
            .field("cluster", &format_args!("{:016x}", self.cluster))
            .field("raft", &self.raft)
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}

/// Why a member did not start. Nothing on its disk was lost.
#[derive(Debug)]
#[non_exhaustive]
pub enum NodeError {
    /// The tick is zero.
    ZeroTick,
    /// The host was stopped. Start another one.
    HostStopped,
    /// A member with this cluster and id already runs on this host.
    AlreadyRunning(MemberKey),
    /// The storage cannot be read, belongs to another member, or is damaged.
    Storage(StorageError),
    /// What is on the disk is inconsistent, or does not fit the config.
    Boot(BootError),
    /// The newest snapshot is not one of this machine.
    Snapshot(EntryId, SnapshotInstallError),
    /// The cluster version is one that this program does not support.
    UnsupportedVersion(UnsupportedVersion),
    /// [`NodeConfig::versions`] is empty or begins with 0.
    EmptyVersions(VersionRange),
    /// The machine could not resume its own state.
    Machine(MachineFailed),
    /// The machine panicked while it was restored, with this message.
    MachinePanicked(String),
    /// The transport could not be started.
    Transport(TransportError),
    /// The disk thread could not be started, or the system gave no random numbers.
    System(std::io::Error),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroTick => write!(f, "tick interval must be greater than zero"),
            Self::HostStopped => write!(f, "the host is stopped"),
            Self::AlreadyRunning(key) => write!(f, "{key} already runs on this host"),
            Self::Storage(why) => write!(f, "cannot open the storage: {why}"),
            Self::Boot(why) => write!(f, "the stored state is not usable: {why}"),
            Self::Snapshot(id, why) => write!(f, "snapshot {id}: {why}"),
            Self::UnsupportedVersion(why) => write!(f, "{why}"),
            Self::EmptyVersions(range) => {
                write!(f, "supported versions {range} must be at least 1 and not empty")
            }
            Self::Machine(failed) => write!(f, "{failed}"),
            Self::MachinePanicked(text) => {
                write!(f, "the state machine panicked at its start: {text}")
            }
            Self::Transport(why) => write!(f, "cannot start the transport: {why}"),
            Self::System(why) => write!(f, "the system refused a thread or random numbers: {why}"),
        }
    }
}

impl std::error::Error for NodeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Storage(why) | Self::Transport(why) => Some(&**why),
            Self::Boot(why) => Some(why),
            Self::Snapshot(_, why) => Some(why),
            Self::UnsupportedVersion(why) => Some(why),
            Self::Machine(failed) => Some(failed),
            Self::System(why) => Some(why),
            Self::ZeroTick
            | Self::EmptyVersions(_)
            | Self::HostStopped
            | Self::AlreadyRunning(_)
            | Self::MachinePanicked(_) => None,
        }
    }
}
