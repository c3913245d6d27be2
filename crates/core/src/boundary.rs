//! The whole boundary of the core: one door in, one door out.
//!
//! [`Raft::step`](crate::Raft::step) takes any number of inputs, then
//! [`Raft::take_output`](crate::Raft::take_output) hands over everything they led
//! to. A caller that drains its mailbox before it takes the output gets group
//! commit, coalesced appends and batched reads for nothing.

use std::ops::Range;

use bytes::Bytes;

use crate::{
    Change, Entries, EntryId, Envelope, Event, Index, MemberId, Refusal, RequestId, SaveId,
    SnapshotMeta, Term,
};

/// Everything that can happen to a member. Nothing else moves it: no clock, no
/// disk, no thread, no chance but the seed. A list of inputs is a full replay.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// One unit of time has passed.
    Tick,
    Received(Envelope),
    /// A client's command. Answered at once by `step`; on a follower that passes
    /// it on, later by `Output::accepted` or `Output::refused`, or not at all when a
    /// message was lost or the leader changed: then nobody knows what became of it.
    ///
    /// The caller promises that the numbers of proposals and changes grow, and that a
    /// member uses none twice in its life, restarts included. A leader takes or refuses
    /// each once; one that arrives more than 63 numbers late is not answered.
    Propose(RequestId, Bytes),
    /// A membership change; answered and numbered as a command is.
    Change(RequestId, Change),
    /// A linearizable read; answered by `Output::served` or `Output::refused`.
    Read(RequestId),
    /// This member should lead. A follower passes the wish on to its leader.
    Transfer(MemberId),
    /// The disk holds this save and every one before it.
    Saved(SaveId),
    /// The state machine has run every entry up to here.
    Applied(Index),
    /// The state machine was captured as of this applied entry, and the capture is
    /// durable: it can be sent to peers, and the log before it can go.
    Snapshotted(Index),
    /// Drop the log up to here even if a peer will then need a snapshot.
    Trim(Index),
    /// A snapshot reached this peer. It says itself when it has installed it.
    SnapshotSent(MemberId),
    /// A snapshot did not reach this peer.
    SnapshotLost(MemberId),
    /// Older entries that `Output::load` asked for, from the first one asked for
    /// on, as many as the reader liked; none when they could not be read.
    Loaded(LoadTarget, Entries),
    /// Messages to this peer are being lost.
    Unreachable(MemberId),
    /// The connection to this peer was closed or broken, as it is when its process ends.
    /// A hint: a follower that loses its leader so asks soon whether it would be elected,
    /// instead of after a whole timeout. A leader that lives loses nothing by it: others
    /// refuse, and its next heartbeat is believed. Dropped with leader-lease reads, and
    /// without pre-vote and check-quorum, where it could depose a leader that lives.
    ConnectionLost(MemberId),
    /// Stand for election now.
    Campaign,
    /// Stop believing in the current leader, so that somebody else may win.
    ForgetLeader,
}

/// What became of an input that was not dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Nothing to tell.
    Done,
    /// The proposal is in this member's log. It took effect once an entry of this
    /// id is applied; it never will once another id is applied at its index.
    Logged(EntryId),
    /// Passed on to the leader.
    Forwarded(MemberId),
    /// The read waits for its round.
    Queued,
}

/// Everything a member asks of the world since the last time it was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    pub save: Option<Save>,
    /// These may leave at once, in parallel with the save.
    pub send: Vec<Envelope>,
    /// Committed entries for the state machine, in order, each exactly once.
    /// Durable here, unless `Config::apply_unsaved` allows those of this very save.
    pub apply: Entries,
    /// Entries older than the tail kept in memory, wanted back.
    pub load: Vec<Load>,
    /// Entries up to here are covered by a snapshot and may leave the disk.
    pub trim: Option<Index>,
    /// Proposals that this member passed on and the leader took into its log.
    pub accepted: Vec<(RequestId, EntryId)>,
    /// Reads that may run once the state machine has applied this index.
    pub served: Vec<(RequestId, Index)>,
    /// Requests that did not happen, refused after `step` had taken them.
    pub refused: Vec<(RequestId, Refusal)>,
    /// What an operator would like to see.
    pub events: Vec<Event>,
}

/// One durable write. The only ordering rule of the whole boundary: do saves in
/// order, and let `then_send` leave once this save is on disk, never before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Save {
    pub id: SaveId,
    /// Term, vote and commit, when one of them changed.
    pub hard_state: Option<HardState>,
    /// Replaces the saved log from its first index on.
    pub entries: Entries,
    /// A peer's snapshot to install in place of the state machine and of the whole
    /// log before it; `Saved` then means installed.
    pub install: Option<SnapshotMeta>,
    /// False when losing this save in a crash would break no promise.
    pub must_sync: bool,
    pub then_send: Vec<Envelope>,
}

/// What a member must remember through a crash, besides its log. Term and vote are
/// one promise and are written together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct HardState {
    pub term: Term,
    pub vote: Option<MemberId>,
    pub commit: Index,
}

/// A wish for entries that are on disk but no longer in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Load {
    pub target: LoadTarget,
    /// The first is wanted, the rest welcome.
    pub range: Range<Index>,
    /// Stop reading when this much is in hand (but read one entry at least).
    pub bytes_max: u64,
}

/// Who waits for loaded entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoadTarget {
    /// A peer that is far behind.
    Peer(MemberId),
    /// This member's own state machine, after a restart.
    Machine,
}
