//! What members say to each other: questions and their replies, in pairs.
//!
//! Bytes on a wire are not decided here, and nothing local (ticks, saves,
//! requests) travels as a message: see [`Input`](crate::Input) for those.

use std::sync::Arc;

use crate::membership::Membership;
use crate::{Change, Config, Entries, EntryId, Index, MemberId, Refusal, RequestId, Term};

use bytes::Bytes;

/// A message with its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    pub from: MemberId,
    pub to: MemberId,
    /// The sender's term. A pre-vote, and a pre-vote that is granted, carry the
    /// term that is being asked about instead: one above the asker's own.
    pub term: Term,
    /// The disk behind the sender; 0 where nobody tells disks apart.
    pub incarnation: u64,
    /// The entry that added the sender, as it was told when it was started; 0 for a
    /// first member. Tells the present member of an id from a former one.
    pub joined_at: Index,
    pub message: Message,
}

/// One side of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// "Would you vote for me?" Asks without disturbing anybody's term.
    PreVote(Vote),
    PreVoteReply(VoteReply),
    /// "Vote for me in this term."
    Vote(Vote),
    VoteReply(VoteReply),
    /// Entries from the leader, or none, to tell a commit index or to probe.
    Append(Append),
    /// Answers an append, and a snapshot, and anything of an older term.
    AppendReply(AppendReply),
    /// "I still lead." Also asks for confirmation of a read round.
    Heartbeat(Heartbeat),
    HeartbeatReply(HeartbeatReply),
    /// The peer is behind the leader's log: here is a snapshot. The bytes of it
    /// travel beside the core. Answered by an append reply.
    Snapshot(SnapshotMeta),
    /// The leader hands over: campaign at once.
    TimeoutNow,
    /// A follower passes a client's command on to its leader: the one of the envelope's
    /// term, and no other.
    Propose(RequestId, Proposal),
    ProposeReply(RequestId, Result<EntryId, Refusal>),
    /// A follower asks its leader from which index on a read is not stale.
    Read(RequestId),
    ReadReply(RequestId, Result<Index, Refusal>),
    /// A follower passes on an operator's wish that this member should lead.
    Transfer(MemberId),
    /// Answers a promise that does not count: the member of that id is another one.
    IdentityRejected(Identity),
}

/// Who a member is, beside its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Identity {
    /// The disk behind it, if one was named.
    pub incarnation: Option<u64>,
    /// The entry that added it; 0 for a first member.
    pub joined_at: Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vote {
    /// The last entry of the asker's log. Granted only to a log that is not older.
    pub last: EntryId,
    /// The leader itself asked for this election: no leader is disturbed by it, so
    /// it is answered even by those who have just heard from that leader.
    pub forced: bool,
    /// The last membership that the asker knows to be committed; zero for none.
    pub committed: EntryId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VoteReply {
    pub granted: bool,
    /// The last membership that the answerer knows to be committed; zero for none.
    /// Told with a no as with a yes.
    pub committed: EntryId,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Append {
    /// The entry just before `entries` in the leader's log. A receiver without it
    /// takes nothing.
    pub prev: EntryId,
    pub entries: Entries,
    /// The leader's commit index. Counts up to the last entry this message proves
    /// to be the same on both sides, no further.
    pub commit: Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AppendReply {
    /// The sender's log equals the leader's up to `index`, durably, and it durably
    /// knows it to be committed up to `commit`.
    Matches { index: Index, commit: Index },
    /// The sender has no entry equal to `prev` of the append. `hint` is the newest
    /// entry of its log that could be in the leader's: not above `prev`, and not
    /// of a later term. A hint with term 0 has an unknown term.
    Differs { prev: Index, hint: EntryId },
    /// The append came from an older term; only the envelope's term matters.
    OldTerm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heartbeat {
    /// The commit index, never above what the receiver is known to hold.
    pub commit: Index,
    /// The read round that an answer confirms; 0 when nobody reads.
    pub round: u64,
    /// The leader's clock when it sent this, in ticks since it won. Comes back in
    /// the reply, so that a leader lease is counted from the sending, not from the
    /// answer.
    pub sent_at: u64,
    /// The newest membership that the leader knows to be settled, by the index of the
    /// entry that brought it; 0 for none. True for ever: who holds that much committed
    /// may tell its clients that the change is done.
    pub settled: Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeartbeatReply {
    /// How far the answerer durably knows its log to be committed.
    pub commit: Index,
    /// As in the heartbeat that this answers.
    pub round: u64,
    /// As in the heartbeat that this answers.
    pub sent_at: u64,
}

/// What a snapshot says about the log it replaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SnapshotMeta {
    /// The last entry that the captured state contains.
    pub id: EntryId,
    /// The membership as of that entry.
    pub membership: Arc<Membership>,
}

/// What a client wants put into the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Proposal {
    Command(Bytes),
    /// Boxed: rare, and larger than everything else that members say.
    Change(Box<Change>),
}

impl Config {
    /// A message in the name of this member.
    #[inline]
    pub(crate) fn envelope(&self, to: MemberId, term: Term, message: Message) -> Envelope {
        let Self { id: from, incarnation, joined_at, .. } = *self;
        Envelope { from, to, term, incarnation, joined_at, message }
    }

    /// Whether this is the member that is known so. Where disks are not told apart,
    /// former members are not either.
    pub(crate) fn is_known_as(&self, known: Identity) -> bool {
        let told_apart = self.incarnation != 0;
        known.incarnation.is_none_or(|named| named == self.incarnation)
            && (!told_apart || known.joined_at == self.joined_at)
    }
}

impl Message {
    /// The committed membership that a vote or its answer tells of.
    pub(crate) fn told_commit(&self) -> Option<EntryId> {
        match self {
            Self::PreVote(vote) | Self::Vote(vote) => Some(vote.committed),
            Self::PreVoteReply(reply) | Self::VoteReply(reply) => Some(reply.committed),
            _ => None,
        }
    }

    /// Rests on what its sender's disk remembers: promises, and claims to lead.
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

    /// Answers that count by who gives them, and so only from members it knows. What
    /// became of a client's request counts whoever says it: a leader that has just
    /// been removed may be the only one to know.
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

    /// Neither ends a term nor belongs to one: requests passed on for a client, whose
    /// sender's term only says whom it takes for the leader; and news about who the
    /// receiver is.
    pub(crate) fn is_termless(&self) -> bool {
        matches!(self, Self::Propose(..) | Self::Read(_) | Self::IdentityRejected(_))
    }
}
