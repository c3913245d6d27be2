//! Messages between members: requests and their replies, in pairs.
//!
//! The wire encoding is defined elsewhere, and local events (ticks, saves, requests) are
//! not messages: see [`Input`](crate::Input).

use std::sync::Arc;

use crate::membership::Membership;
use crate::pack::pack_fields;
use crate::{Change, Config, Entries, EntryId, Index, MemberId, Refusal, RequestId, Stalled, Term};

use bytes::Bytes;

/// A message with its sender and recipient.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// The sender.
    pub from: MemberId,
    /// The recipient.
    pub to: MemberId,
    /// The sender's term. A pre-vote, and a granted pre-vote, carry the term of the
    /// possible election instead: one above the candidate's own.
    pub term: Term,
    /// The incarnation of the sender's disk; 0 where incarnations are not used.
    pub incarnation: u64,
    /// The index of the entry that added the sender, as given in its configuration; 0 for a
    /// first member. It distinguishes the present member with an id from a former one.
    pub joined_at: Index,
    /// The content.
    pub message: Message,
}

/// One request or reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// Asks for a vote without changing any term (thesis §9.6).
    PreVote(Vote),
    /// The reply to a pre-vote.
    PreVoteReply(VoteReply),
    /// Requests a vote in this term (thesis §3.4).
    Vote(Vote),
    /// The reply to a vote request.
    VoteReply(VoteReply),
    /// Entries from the leader; without entries it carries a commit index or probes the
    /// log.
    Append(Append),
    /// The reply to an append, to a snapshot, and to leader messages of an older term.
    AppendReply(AppendReply),
    /// Confirms leadership and asks for the confirmation of a read round.
    Heartbeat(Heartbeat),
    /// The reply to a heartbeat.
    HeartbeatReply(HeartbeatReply),
    /// Sent to a peer that is behind the leader's log. The snapshot's bytes are transferred
    /// outside the core. The reply is an append reply.
    Snapshot(SnapshotMeta),
    /// The leader hands over: campaign at once (thesis §3.10).
    TimeoutNow,
    /// A follower forwards a proposal to the leader of the envelope's term, and to no
    /// other.
    Propose(RequestId, Proposal),
    /// The reply to a forwarded proposal: its entry, or the refusal.
    ProposeReply(RequestId, Result<EntryId, Refusal>),
    /// A follower asks its leader for the read index (thesis §6.4).
    Read(RequestId),
    /// The reply to a forwarded read: its index, or the refusal.
    ReadReply(RequestId, Result<Index, Refusal>),
    /// A follower forwards the request to make this member the leader.
    Transfer(MemberId),
    /// Rejects a promise: the membership knows another member by the sender's id.
    IdentityRejected(Identity),
}

/// Identifies a member besides its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Identity {
    /// The incarnation of its disk, if one is recorded.
    pub incarnation: Option<u64>,
    /// The entry that added it; 0 for a first member.
    pub joined_at: Index,
}

/// A request for a vote or a pre-vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vote {
    /// The last entry of the candidate's log. A vote is granted only to a log that is not
    /// older.
    pub last: EntryId,
    /// The leader itself asked for this election (`TimeoutNow`), so voters reply even if
    /// they have just heard that leader.
    pub forced: bool,
    /// The last membership that the candidate knows to be committed; zero for none.
    pub committed: EntryId,
}

/// The reply to a vote request or a pre-vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VoteReply {
    /// Whether the vote is granted.
    pub granted: bool,
    /// The last membership that the voter knows to be committed; zero for none. Sent with
    /// refusals too.
    pub committed: EntryId,
}

/// Entries for a follower's log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Append {
    /// The entry just before `entries` in the leader's log. A receiver without it accepts
    /// nothing.
    pub prev: EntryId,
    /// The entries; none to probe or to send a commit index.
    pub entries: Entries,
    /// The leader's commit index. It is valid only up to the last entry that this message
    /// proves to match.
    pub commit: Index,
}

/// The reply to an append or a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AppendReply {
    /// The sender's log matches the leader's up to `index`, durably, and it durably knows
    /// the log to be committed up to `commit`.
    Matches {
        /// The index.
        index: Index,
        /// The commit index.
        commit: Index,
    },
    /// The sender has no entry equal to `prev` of the append. `hint` is the newest entry of
    /// its log that could match the leader's: not above `prev`, and not of a later term. A
    /// hint with term 0 has an unknown term.
    Differs {
        /// The index before the rejected entries.
        prev: Index,
        /// The newest entry that could match.
        hint: EntryId,
    },
    /// The reply to a heartbeat: the sender's log does not have what the heartbeat says that
    /// it confirmed.
    Missing {
        /// The commit index of the heartbeat.
        confirmed: Index,
        /// The last entry of the sender's log.
        hint: EntryId,
        /// As in the heartbeat.
        sent_at: u64,
    },
    /// The append came from an older term; only the envelope's term matters.
    OldTerm,
}

/// A heartbeat of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heartbeat {
    /// The commit index, never above what the receiver is known to hold.
    pub commit: Index,
    /// The read round that a reply confirms; 0 when there is none.
    pub round: u64,
    /// The leader's clock when it sent this, in ticks since its election. The reply returns
    /// it, so that a leader lease starts when the heartbeat was sent, not when the reply
    /// arrived.
    pub sent_at: u64,
    /// The newest membership that the leader knows to be settled, as the index of its
    /// entry; 0 for none. A settled membership stays settled: a member that has committed
    /// that entry may report the change as done.
    pub settled: Index,
}

/// The reply to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeartbeatReply {
    /// How far the sender durably knows its log to be committed.
    pub commit: Index,
    /// As in the heartbeat.
    pub round: u64,
    /// As in the heartbeat.
    pub sent_at: u64,
    /// How far the sender's state machine has applied the log.
    pub applied: Index,
    /// Which work of the sender stands still. The reply itself does not wait for the disk.
    pub stalled: Stalled,
}

/// Which entry a snapshot covers, and the membership at that entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SnapshotMeta {
    /// The last entry that the snapshot contains.
    pub id: EntryId,
    /// The membership as of that entry.
    pub membership: Arc<Membership>,
}

pack_fields!(SnapshotMeta { id, membership });

/// What a client asks to put into the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Proposal {
    /// A command for the state machine.
    Command(Bytes),
    /// Boxed because it is rare and much larger than a command.
    Change(Box<Change>),
}

impl Config {
    /// A message from this member.
    #[inline]
    pub(crate) fn envelope(&self, to: MemberId, term: Term, message: Message) -> Envelope {
        let Self { id: from, incarnation, joined_at, .. } = *self;
        Envelope { from, to, term, incarnation, joined_at, message }
    }

    /// Whether this member has this identity. Without incarnations, join indexes are not
    /// compared either.
    pub(crate) fn is_known_as(&self, known: Identity) -> bool {
        let told_apart = self.incarnation != 0;
        known.incarnation.is_none_or(|named| named == self.incarnation)
            && (!told_apart || known.joined_at == self.joined_at)
    }
}

impl Message {
    /// The committed membership that a vote or its reply reports.
    pub(crate) fn committed_membership(&self) -> Option<EntryId> {
        match self {
            Self::PreVote(vote) | Self::Vote(vote) => Some(vote.committed),
            Self::PreVoteReply(reply) | Self::VoteReply(reply) => Some(reply.committed),
            _ => None,
        }
    }

    /// Whether the message relies on what its sender's disk remembers: promises and claims
    /// of leadership.
    pub(crate) fn is_promise(&self) -> bool {
        matches!(
            self,
            Self::VoteReply(_)
                | Self::AppendReply(_)
                | Self::HeartbeatReply(_)
                | Self::Vote(_)
                | Self::PreVote(_)
        )
    }

    /// Replies that count for their sender, and therefore only from known members. The
    /// outcome of a client's request is accepted from any sender: a leader that has just
    /// been removed may be the only one that knows it.
    /// Shown by scenarios/proposal_refused_by_a_removed_leader.txt.
    pub(crate) fn is_reply(&self) -> bool {
        matches!(
            self,
            Self::PreVoteReply(_)
                | Self::VoteReply(_)
                | Self::AppendReply(_)
                | Self::HeartbeatReply(_)
        )
    }

    /// Messages that neither end a term nor belong to one: forwarded requests, whose term
    /// only tells which leader the sender follows; and rejected identities.
    pub(crate) fn is_termless(&self) -> bool {
        matches!(self, Self::Propose(..) | Self::Read(_) | Self::IdentityRejected(_))
    }
}
