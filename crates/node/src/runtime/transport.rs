//! How members reach each other, as a trait: implement it to carry messages over
//! something else. [`TcpTransport`](crate::TcpTransport) is the one that comes with
//! Quorate, and [`testkit::transport`](crate::testkit::transport) the suite that every one
//! has to pass.
//!
//! A transport may lose, delay, repeat and reorder; Raft copes with all of that. It must
//! not alter, and it must not wait: what cannot leave soon is dropped and told.

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

/// Names a member that lives in some process: one of each cluster at most has that id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberKey {
    /// The cluster: one group of members with one log.
    pub cluster: u64,
    /// The member in it.
    pub member: MemberId,
}

impl fmt::Display for MemberKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of cluster {:x}", self.member, self.cluster)
    }
}

/// How a member says who it is, to one that it wants to talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Introduction {
    /// Who speaks.
    pub from: MemberKey,
    /// The disk behind it.
    pub incarnation: u64,
    /// To whom, in the same cluster.
    pub to: MemberId,
}

/// A member that lives in some process, and the membership that counts for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostedMember {
    /// Which one it is.
    pub key: MemberKey,
    /// The membership, with the entry that brought it.
    pub membership: SnapshotMeta,
}

/// What travels between two members of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMessage {
    /// Between their cores. Never a snapshot: that one has bytes, and a way of its own.
    Raft(Envelope),
    /// Between their nodes, about something that the core need not know. Opaque.
    Side {
        /// Who says it.
        from: MemberId,
        /// To whom.
        to: MemberId,
        /// What is said.
        bytes: Bytes,
    },
}

impl PeerMessage {
    /// To whom it goes.
    pub fn to(&self) -> MemberId {
        match self {
            Self::Raft(envelope) => envelope.to,
            Self::Side { to, .. } => *to,
        }
    }

    /// From whom it says to be.
    pub fn from(&self) -> MemberId {
        match self {
            Self::Raft(envelope) => envelope.from,
            Self::Side { from, .. } => *from,
        }
    }
}

/// Carries messages and snapshots between processes, for any number of members here.
///
/// All calls come from within a tokio runtime, and none may block.
pub trait Transport: Send + Sync + 'static {
    /// Begins to listen. What arrives goes into the inbox. Called once, first.
    fn start(&self, inbox: Inbox) -> Result<(), TransportError>;

    /// A member lives here from now on, on the disk of this incarnation.
    fn add_member(&self, key: MemberKey, incarnation: u64);

    /// It does not any more.
    fn remove_member(&self, key: MemberKey);

    /// Whom this member may have to reach, with what its cluster says about each: in place
    /// of what was said before. It may have to answer others, too, who reach it first.
    fn set_peers(&self, key: MemberKey, peers: Vec<(MemberId, MemberInfo)>);

    /// Sends these, in this order to each peer. What cannot be sent is dropped, and the
    /// inbox told that the peer is unreachable.
    fn send(&self, key: MemberKey, messages: Vec<PeerMessage>);

    /// Sends a snapshot with all its bytes to the peer that [`OutgoingSnapshot::envelope`]
    /// names. Whatever becomes of it, the snapshot itself reports when it is dropped.
    fn send_snapshot(&self, key: MemberKey, snapshot: OutgoingSnapshot);

    /// The member turned out not to be who it says it is: what it says to `key` does not
    /// count. Tell it so, as well as can be, and do not listen to it for a while.
    fn reject(&self, key: MemberKey, from: MemberId, why: RejectReason);

    /// What happened so far, by name: for metrics.
    fn counts(&self) -> BTreeMap<&'static str, u64>;

    /// Closes everything. Done when nothing listens any more.
    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Why a transport did not start.
pub type TransportError = Box<dyn Error + Send + Sync>;

/// Why somebody is not listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// No member of that cluster lives here. Look at the address, or at the cluster.
    ForeignCluster,
    /// Another member of the cluster lives here. Look at the address.
    OtherMember,
    /// It was removed from the cluster, and that is settled. Add it anew, under a new id,
    /// with an empty disk.
    Removed,
    /// The member of this id has another disk, or was added by another entry. Add it anew,
    /// under a new id, with an empty disk.
    NotItself,
}

impl RejectReason {
    /// A stable name to count by.
    pub fn name(self) -> &'static str {
        match self {
            Self::ForeignCluster => "foreign_cluster",
            Self::OtherMember => "other_member",
            Self::Removed => "removed",
            Self::NotItself => "not_itself",
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ForeignCluster => "no member of that cluster lives here",
            Self::OtherMember => "another member of the cluster lives here",
            Self::Removed => "removed from the cluster: add it anew, under a new id",
            Self::NotItself => "not the disk that is known by this id: add it anew",
        })
    }
}

impl Error for RejectReason {}
