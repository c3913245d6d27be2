//! Everything that reaches a member, in three queues.
//!
//! Requests of clients and messages of peers come through bounded channels: a sender that is
//! faster than the member waits (backpressure). The results of what the member started come
//! back through a queue that never blocks and needs no bound: it holds at most one item for
//! each thing in progress, and how many may be in progress is bounded where they begin.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use quorate_core::{Change, Entries, Envelope, Index, LoadTarget, MemberId, SaveId, Term};
use tokio::sync::{mpsc, oneshot};

use super::batch_queue::BatchQueue;
use super::side_messages::LeaderView;
use super::snapshots::OutgoingBytes;
use super::status::{NodeStatus, StopReason};
use super::transport::PeerMessage;
use crate::applier::MachineJobDone;
use crate::command_id::CommandBuffer;
use crate::outcome::{RequestOutcome, RequestRefused};
use crate::request_table::ChangeWait;

/// A client's request, and where the reply goes.
pub(crate) struct ClientRequest {
    pub(crate) kind: RequestKind,
    pub(crate) reply: oneshot::Sender<RequestOutcome>,
}

pub(crate) enum RequestKind {
    Propose(CommandBuffer),
    /// Only by this member, and only as the leader of this term.
    ProposeIn(Term, CommandBuffer),
    Read(Bytes),
    ReadLocal(Bytes),
    Change(Box<Change>, ChangeWait),
    Transfer(MemberId),
}

impl RequestKind {
    /// Whether nothing is logged for it.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Self::Read(_) | Self::ReadLocal(_))
    }

    /// For spans in the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Propose(..) => "propose",
            Self::ProposeIn(..) => "propose_in",
            Self::Read(..) => "read",
            Self::ReadLocal(..) => "read_local",
            Self::Change(..) => "change",
            Self::Transfer(..) => "transfer",
        }
    }
}

/// Memory that a transport counts until this is dropped.
pub(crate) type HeldBytes = Arc<dyn Any + Send + Sync>;

/// What the transport delivers.
pub(crate) enum FromPeers {
    /// With what they count for in the transport, until they are processed.
    Messages(Vec<PeerMessage>, Option<HeldBytes>),
    Unreachable(MemberId),
    ConnectionLost(MemberId),
    /// A snapshot is complete and durable.
    SnapshotReceived(Box<Envelope>),
}

/// Requests of operators: processed even when the member accepts nothing from clients. Few at
/// a time: each holds a permit.
pub(crate) enum Control {
    Status(oneshot::Sender<Box<NodeStatus>>),
    /// What the leader knows of its members.
    View(oneshot::Sender<Result<LeaderView, RequestRefused>>),
    /// A query to the application of the leader.
    AskLeader(Bytes, oneshot::Sender<Result<Bytes, RequestRefused>>),
    /// Answered when a snapshot of everything that is applied now is durable.
    Snapshot(oneshot::Sender<Result<Index, RequestRefused>>),
    Trim(Index),
    /// Lowers the cluster version to this one; none cancels a downgrade.
    Downgrade(Option<u32>, oneshot::Sender<RequestOutcome>),
    Campaign,
    Stop,
}

/// The result of something that the member started.
pub(crate) enum Completion {
    Saved(SaveId),
    Jobs(Vec<MachineJobDone>),
    Loaded(LoadTarget, Entries),
    /// A snapshot of the machine is durable.
    SnapshotSaved {
        index: Index,
        bytes: u64,
    },
    /// A snapshot of the machine failed.
    SnapshotFailed(Index),
    SnapshotSent(MemberId, bool),
    /// A snapshot for this peer was opened, or could not be.
    SnapshotOpened(Box<Envelope>, Option<OutgoingBytes>),
    Control(Control),
    Ended(StopReason),
}

/// The receiving ends.
pub(crate) struct Mailbox {
    pub(crate) clients: mpsc::Receiver<ClientRequest>,
    pub(crate) peers: mpsc::Receiver<FromPeers>,
    pub(crate) done: Arc<BatchQueue<Completion>>,
}
