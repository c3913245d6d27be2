//! The whole boundary of the core: inputs go in through [`Raft::step`](crate::Raft::step),
//! outputs come out of [`Raft::take_output`](crate::Raft::take_output).
//!
//! A caller may step any number of inputs before it takes the output. A caller that drains
//! its queue first gets group commit, coalesced appends and batched reads without extra
//! code.

use std::ops::Range;

use bytes::Bytes;

use crate::pack::pack_fields;
use crate::{
    Change, Entries, EntryId, Envelope, Event, Index, MemberId, Refusal, RequestId, SaveId,
    SnapshotMeta, Term,
};

/// Everything that can happen to a member. Nothing else changes its state: no clock, no
/// disk, no thread, no randomness except the seed. A list of inputs is a full replay.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// One unit of time has passed.
    Tick,
    /// A message from a peer arrived.
    Received(Envelope),
    /// A client's command. `step` replies at once. On a follower that forwards it, the
    /// reply follows in `Output::accepted` or `Output::refused`, or never when a message
    /// was lost or the leader changed: then the outcome is unknown.
    ///
    /// The caller must use increasing numbers below 2^63 for proposals and changes, and a
    /// member must never use a number twice, restarts included. A leader accepts or refuses each number
    /// once; a request that arrives more than 63 numbers late gets no reply.
    Propose(RequestId, Bytes),
    /// A membership change, with replies and numbers like those of a command.
    Change(RequestId, Change),
    /// A linearizable read; the reply is in `Output::served` or `Output::refused`.
    Read(RequestId),
    /// Makes the named member the leader. A follower forwards the request to its leader.
    Transfer(MemberId),
    /// The disk holds this save and every one before it, with the snapshot of `Save::install`.
    Saved(SaveId),
    /// The state machine has applied every entry up to here, or has installed the snapshot of
    /// a save up to here.
    Applied(Index),
    /// The state machine is still applying the next entry, or installing a snapshot, and has made
    /// progress since the last such report. Without it, a command that takes long looks like a
    /// state machine that stands still.
    Applying,
    /// The state machine has a durable snapshot as of this applied entry: it can be sent to
    /// peers, and the log before it can be trimmed.
    Snapshotted(Index),
    /// Trims the log up to here even if a peer will then need a snapshot.
    Trim(Index),
    /// A snapshot was delivered to this peer. The peer itself replies when its disk holds it.
    SnapshotSent(MemberId),
    /// A snapshot was not delivered to this peer.
    SnapshotLost(MemberId),
    /// Older entries that `Output::load` asked for: from the first requested one on, as
    /// many as the caller read; none when they could not be read.
    Loaded(LoadTarget, Entries),
    /// Messages to this peer are being lost.
    Unreachable(MemberId),
    /// The connection to this peer was closed or lost, for example because its process
    /// ended. This is a hint: a follower that loses its leader this way sends pre-votes
    /// soon instead of after a whole election timeout. It does not harm a live leader:
    /// other members refuse, and its next heartbeat is accepted. Dropped with leader-lease
    /// reads, and without pre-vote and check-quorum, because then it could depose a live
    /// leader.
    ConnectionLost(MemberId),
    /// Starts a campaign now.
    Campaign,
    /// Stops following the current leader without a new term, so that another candidate may
    /// win.
    ForgetLeader,
}

/// What `step` did with an input that was not dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The input was processed; there is nothing else to report.
    Done,
    /// The proposal is in this member's log. It has taken effect once an entry with this id
    /// is applied; it never will once another id is applied at its index.
    Logged(EntryId),
    /// Forwarded to this leader.
    Forwarded(MemberId),
    /// The read waits for a confirmation of leadership.
    Queued,
}

/// Everything that a member asks its caller to do since the previous output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a lost output loses messages, saves and committed entries"]
pub struct Output {
    /// A durable write, if one is needed.
    pub save: Option<Save>,
    /// Messages that may be sent at once, in parallel with the save.
    pub send: Vec<Envelope>,
    /// Committed entries for the state machine, in order, each exactly once. They are
    /// durable on this member, except that `Config::apply_unsaved` allows those of this
    /// save.
    pub apply: Entries,
    /// Requests for entries that are no longer in memory.
    pub load: Vec<Load>,
    /// Entries up to here are covered by a snapshot and may be deleted from disk.
    pub trim: Option<Index>,
    /// Forwarded proposals that the leader accepted into its log.
    pub accepted: Vec<(RequestId, EntryId)>,
    /// Reads that may run once the state machine has applied this index.
    pub served: Vec<(RequestId, Index)>,
    /// Requests that `step` had accepted and that did not happen.
    pub refused: Vec<(RequestId, Refusal)>,
    /// Changes of role, leader and membership, for logs and metrics.
    pub events: Vec<Event>,
}

/// One durable write. The only ordering rule of the boundary: perform saves in order, and
/// send `then_send` only after this save is on disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "a lost save loses entries and votes that this member promises to keep"]
pub struct Save {
    /// To be reported with `Input::Saved`.
    pub id: SaveId,
    /// Term, vote and commit, when one of them changed.
    pub hard_state: Option<HardState>,
    /// Replaces the saved log from the first of these indexes on.
    pub entries: Entries,
    /// A peer's snapshot that replaces the whole log before it. `Input::Saved` means that the
    /// snapshot is durable. The caller then installs it in the state machine before it applies
    /// any entry of a later output; a member that restarts in between installs it at start. The
    /// core does not wait for the installation, which may take long: the member can vote and
    /// lead meanwhile.
    pub install: Option<SnapshotMeta>,
    /// False when a crash may lose this save without breaking a promise to another member.
    pub must_sync: bool,
    /// Messages to send once this save is on disk.
    pub then_send: Vec<Envelope>,
}

/// What a member must keep through a crash besides its log. Term and vote form one promise
/// and are written together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct HardState {
    /// The current term.
    pub term: Term,
    /// The member that got this member's vote in the term.
    pub vote: Option<MemberId>,
    /// The commit index.
    pub commit: Index,
}

pack_fields!(HardState { term, vote, commit });

/// A request for entries that are on disk but no longer in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "the member waits for `Input::Loaded`"]
pub struct Load {
    /// What the entries are for.
    pub target: LoadTarget,
    /// At least the first of these entries is needed.
    pub range: Range<Index>,
    /// Stop reading after this many bytes, but read at least one entry.
    pub bytes_max: u64,
}

/// What loaded entries are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoadTarget {
    /// A lagging peer.
    Peer(MemberId),
    /// This member's own state machine, after a restart.
    Machine,
}
