//! Everything that reaches a member, in three lanes.
//!
//! What clients ask and what peers say comes through bounded channels: who is faster than
//! the member waits. What the member itself has set going comes back through a lane that
//! never makes anybody wait, and needs no bound of its own: it holds at most one item for each
//! thing that is under way, and how many may be is bounded where they begin.

use std::sync::Arc;

use bytes::Bytes;
use quorate_core::{
    Change, Entries, Envelope, Index, LoadTarget, MemberId, SaveId, SnapshotMeta, Term,
};
use tokio::sync::{mpsc, oneshot};

use super::batch_queue::BatchQueue;
use super::side_messages::LeaderView;
use super::status::{NodeStatus, StopReason};
use super::storage::SnapshotSource;
use super::transport::PeerMessage;
use crate::applier::MachineJobDone;
use crate::outcome::{RequestOutcome, RequestRefused};

/// What a client asks, and where the answer goes.
pub(crate) struct ClientRequest {
    pub(crate) question: RequestKind,
    pub(crate) reply: oneshot::Sender<RequestOutcome>,
}

pub(crate) enum RequestKind {
    Propose(Bytes),
    /// Only by this member, and only as the leader of this term.
    ProposeIn(Term, Bytes),
    Read(Bytes),
    ReadLocal(Bytes),
    Barrier,
    Change(Box<Change>, u64),
    Transfer(MemberId),
}

/// What the transport brings.
pub(crate) enum FromPeers {
    Messages(Vec<PeerMessage>),
    Unreachable(MemberId),
    ConnectionLost(MemberId),
    /// A snapshot is on the disk, all of it.
    SnapshotReceived(Box<Envelope>),
}

/// What an operator asks: answered even when the member takes nothing more from clients.
/// Few at a time: who asks holds a permit.
pub(crate) enum Control {
    Status(oneshot::Sender<Box<NodeStatus>>),
    /// What the leader sees, from wherever it is.
    View(oneshot::Sender<Result<LeaderView, RequestRefused>>),
    /// For the application where the leader is.
    AskLeader(Bytes, oneshot::Sender<Result<Bytes, RequestRefused>>),
    /// Answered when a snapshot of what is applied now, or of more, is durable.
    Snapshot(oneshot::Sender<Result<Index, RequestRefused>>),
    Trim(Index),
    Campaign,
    Stop,
}

/// What has become of something that the member set going.
pub(crate) enum Completion {
    Saved(SaveId),
    Jobs(Vec<MachineJobDone>),
    Loaded(LoadTarget, Entries),
    /// A capture of the machine is durable.
    SnapshotSaved(SnapshotMeta),
    /// It is not: the next one may be.
    SnapshotGivenUp(Index),
    SnapshotSent(MemberId, bool),
    /// A snapshot for this peer can be read.
    SnapshotOpened(Box<Envelope>, Option<Box<dyn SnapshotSource>>),
    Control(Control),
    Ended(StopReason),
}

/// The receiving end.
pub(crate) struct Mailbox {
    pub(crate) clients: mpsc::Receiver<ClientRequest>,
    pub(crate) peers: mpsc::Receiver<FromPeers>,
    pub(crate) done: Arc<BatchQueue<Completion>>,
}
