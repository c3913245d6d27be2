//! How members exchange messages, as a trait: implement it to use another network protocol.
//! [`TcpTransport`](crate::TcpTransport) is the one that comes with Quorate, and
//! [`testkit::transport`](crate::testkit::transport) the suite that each implementation has to
//! pass.
//!
//! A transport may lose, delay, duplicate and reorder messages; Raft tolerates all of that. It
//! must not alter them, and it must not block: what cannot be sent soon is dropped and
//! reported.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use quorate_core::membership::MemberInfo;
use quorate_core::{Envelope, MemberId, SnapshotMeta};

use super::inbox::Inbox;
use super::snapshots::OutgoingSnapshot;

/// Identifies a member among all members that a process hosts or talks to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberKey {
    /// The cluster: one group of members with one log.
    pub cluster: u64,
    /// The member in it.
    pub member: MemberId,
}

impl fmt::Display for MemberKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {} of cluster {:016x}", self.member, self.cluster)
    }
}

impl fmt::Debug for MemberKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberKey")
            .field("cluster", &format_args!("{:016x}", self.cluster))
            .field("member", &self.member)
            .finish()
    }
}

/// How a member identifies itself to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Introduction {
    /// The sender.
    pub from: MemberKey,
    /// The incarnation of the sender's disk.
    pub incarnation: u64,
    /// The receiver, in the same cluster.
    pub to: MemberId,
}

/// A member that a process hosts, and the membership that is in effect for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostedMember {
    /// The member.
    pub key: MemberKey,
    /// The membership, with the entry that brought it.
    pub membership: SnapshotMeta,
    /// The cluster version. A program that does not support it cannot join.
    pub cluster_version: u32,
}

/// A message from one member of a cluster to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMessage {
    /// A message of the Raft core. Never a snapshot: its bytes are sent separately, by
    /// [`Transport::send_snapshot`].
    Raft(Envelope),
    /// A message between the runtimes of two members, beside the Raft core. Opaque to the
    /// transport.
    Side {
        /// The sender.
        from: MemberId,
        /// The receiver.
        to: MemberId,
        /// The message.
        bytes: Bytes,
    },
}

impl PeerMessage {
    /// The receiver.
    pub fn to(&self) -> MemberId {
        match self {
            Self::Raft(envelope) => envelope.to,
            Self::Side { to, .. } => *to,
        }
    }

    /// The sender, as the message names it.
    pub fn from(&self) -> MemberId {
        match self {
            Self::Raft(envelope) => envelope.from,
            Self::Side { from, .. } => *from,
        }
    }
}

/// Sends and receives messages and snapshots, for any number of local members.
///
/// All calls come from within a tokio runtime, and none may block.
pub trait Transport: Send + Sync + 'static {
    /// Begins to listen. What is received goes into the inbox. Called once, first.
    fn start(&self, inbox: Inbox) -> Result<(), TransportError>;

    /// A member starts here, on the disk of this incarnation.
    fn add_member(&self, key: MemberKey, incarnation: u64);

    /// A member has stopped.
    fn remove_member(&self, key: MemberKey);

    /// The peers that this member may send to, with their infos from the membership. Replaces
    /// the previous list. The member may also have to reply to peers that are not in it and
    /// that connected first.
    fn set_peers(&self, key: MemberKey, peers: Vec<(MemberId, MemberInfo)>);

    /// Sends these messages, in this order to each peer. What cannot be sent is dropped, and
    /// reported with [`Inbox::unreachable`].
    fn send(&self, key: MemberKey, messages: Vec<PeerMessage>);

    /// Sends a snapshot with all its bytes to the peer that [`OutgoingSnapshot::envelope`]
    /// names. The snapshot reports its result itself when it is dropped.
    fn send_snapshot(&self, key: MemberKey, snapshot: OutgoingSnapshot);

    /// `key` rejects what this member sends. Tell the sender the reason if possible, and close
    /// its channels to `key`.
    fn reject(&self, key: MemberKey, from: MemberId, why: RejectReason);

    /// Counters by name, for [`Metrics`](crate::metrics::Metrics).
    fn counts(&self) -> BTreeMap<&'static str, u64>;

    /// The peers that this member is connected with now, in either direction. For metrics only.
    fn connected_peers(&self, _key: MemberKey) -> Vec<MemberId> {
        Vec::new()
    }

    /// Stops listening, closes all connections and ends all tasks. When it returns, the
    /// address is free. May be called twice.
    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Why a transport did not start.
pub type TransportError = Box<dyn Error + Send + Sync>;

/// Why messages of a member are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// The process hosts no member of that cluster. Check the address and the cluster.
    ForeignCluster,
    /// The process hosts another member of the cluster. Check the address.
    OtherMember,
    /// The member was removed from the cluster, and that is settled. Add it again under a new
    /// id, with an empty disk.
    Removed,
    /// The cluster knows another disk under this id, or the member was added by another entry.
    /// Add it again under a new id, with an empty disk.
    OtherDisk,
}

impl RejectReason {
    /// The number that stands for it on the wire. Numbers never change; 0 is never used.
    pub fn code(self) -> u32 {
        match self {
            Self::ForeignCluster => 1,
            Self::OtherMember => 2,
            Self::Removed => 3,
            Self::OtherDisk => 4,
        }
    }

    /// The reason with this number on the wire. None for a reason of a later version.
    pub fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::ForeignCluster,
            2 => Self::OtherMember,
            3 => Self::Removed,
            4 => Self::OtherDisk,
            _ => return None,
        })
    }

    /// Whether it may pass by itself: the member may have yet to start there. Otherwise an
    /// operator has to act.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::ForeignCluster | Self::OtherMember)
    }

    /// A stable name, for counters.
    pub fn name(self) -> &'static str {
        match self {
            Self::ForeignCluster => "foreign_cluster",
            Self::OtherMember => "other_member",
            Self::Removed => "removed",
            Self::OtherDisk => "other_disk",
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ForeignCluster => "no member of that cluster runs here",
            Self::OtherMember => "another member of the cluster runs here",
            Self::Removed => "removed from the cluster: add it again under a new id",
            Self::OtherDisk => "another disk is known under this id: add it again under a new id",
        })
    }
}

impl Error for RejectReason {}
