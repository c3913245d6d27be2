//! What a member is started with, and why it may not start.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorate_core::membership::MemberInfo;
use quorate_core::{BootError, Config, EntryId, Index, MemberId, Membership};

use super::metrics::NodeObserver;
use super::storage::StorageError;
use super::transport::{MemberKey, TransportError};
use crate::applier::SnapshotInstallError;
use crate::driver::DriverOptions;

/// Settings of one member. [`NodeConfig::first`] and [`NodeConfig::join`] fill in what
/// most want; every field may be changed after.
#[derive(Clone)]
pub struct NodeConfig {
    /// Names the cluster: the same number for all of its members, and for nobody else's.
    /// Drawn at random once is best.
    pub cluster: u64,
    /// The rules: timeouts in ticks, limits, how reads are confirmed. Its incarnation and
    /// seed are drawn at random where they are 0.
    pub raft: Config,
    /// How long requests wait, and when snapshots are taken.
    pub options: DriverOptions,
    /// The first membership of a new cluster, the same for each of its members; none for
    /// a member that joins. Only counts on an empty disk.
    pub first: Option<Membership>,
    /// How long a tick is. An election timeout is [`Config::election_ticks`] of them.
    pub tick: Duration,
    /// Requests that may wait to be looked at; who asks more waits.
    pub mailbox_requests: usize,
    /// Deliveries from peers that may wait to be looked at.
    pub mailbox_deliveries: usize,
    /// The machine may block, because it writes to a disk: run it on threads made for
    /// that. Costs a few microseconds for each batch of commands.
    pub machine_blocks: bool,
    /// Hears of everything that happens.
    pub observer: Arc<dyn NodeObserver>,
}

impl NodeConfig {
    /// A first member of a new cluster, of which all first members are given with the
    /// information that the transport needs to reach them: for TCP, `host:port`.
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
            .field("cluster", &self.cluster)
            .field("raft", &self.raft)
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}

/// Why a member did not start. Nothing on its disk was given up.
#[derive(Debug)]
#[non_exhaustive]
pub enum NodeError {
    /// A tick has to take some time.
    ZeroTick,
    /// The host was stopped. Start another one.
    HostStopped,
    /// A member with this cluster and id already runs on this host.
    AlreadyRunning(MemberKey),
    /// What is on the disk cannot be read, is another member's, or is damaged.
    Storage(StorageError),
    /// What the disk says does not fit together, or not with the config.
    Boot(BootError),
    /// The newest snapshot is not one of this machine.
    Snapshot(EntryId, SnapshotInstallError),
    /// The machine panicked while it was made of the newest snapshot.
    MachinePanicked,
    /// Nobody could be listened to.
    Transport(TransportError),
    /// The thread for the disk could not be started, or no random numbers be had.
    System(std::io::Error),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroTick => write!(f, "a tick takes no time, want some"),
            Self::HostStopped => write!(f, "the host is stopped"),
            Self::AlreadyRunning(key) => write!(f, "{key} already runs on this host"),
            Self::Storage(why) => write!(f, "{why}"),
            Self::Boot(why) => write!(f, "{why}"),
            Self::Snapshot(id, why) => write!(f, "snapshot {id}: {why}"),
            Self::MachinePanicked => write!(f, "the state machine panicked on a snapshot"),
            Self::Transport(why) => write!(f, "{why}"),
            Self::System(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for NodeError {}
