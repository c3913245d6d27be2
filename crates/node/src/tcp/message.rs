//! The messages between members, as the head and body of a frame.
//!
//! Heads are protobuf messages, so that a later version may add fields; docs/formats.md lists
//! the field numbers. Sender and receiver are those of the channel.

use bytes::Bytes;
use prost::Oneof;
use quorate_core::message::{
    Append, AppendReply, Heartbeat, HeartbeatReply, Identity, Message, Proposal, Vote, VoteReply,
};
use quorate_core::{
    Change, Entries, EntryId, Envelope, MemberId, Refusal, RequestId, SnapshotMeta, Stalled,
};
use quorate_storage::codec::{Codec, DecodeError};

use super::frame::FrameBody;
use super::message_run::{AcceptedHead, ProposalsHead, RunHead};

/// The head of a message frame, and of a snapshot's first one.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MessageHead {
    #[prost(uint64, tag = "1")]
    term: u64,
    #[prost(uint64, tag = "2")]
    joined_at: u64,
    /// Only if the sender is not the member of the channel: a request that this member forwards
    /// for another one.
    #[prost(uint64, optional, tag = "3")]
    on_behalf_of: Option<u64>,
    /// Of a snapshot: the number of bytes that follow.
    #[prost(uint64, tag = "4")]
    pub(crate) snapshot_bytes: u64,
    /// Of a snapshot: the number of bytes is known only at its end.
    #[prost(bool, tag = "5")]
    pub(crate) snapshot_size_unknown: bool,
    #[prost(
        oneof = "MessageBody",
        tags = "16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33"
    )]
    message: Option<MessageBody>,
}

#[derive(Clone, PartialEq, Oneof)]
enum MessageBody {
    #[prost(message, tag = "16")]
    PreVote(VoteHead),
    #[prost(message, tag = "17")]
    PreVoteReply(VoteReplyHead),
    #[prost(message, tag = "18")]
    Vote(VoteHead),
    #[prost(message, tag = "19")]
    VoteReply(VoteReplyHead),
    /// The entries are the body.
    #[prost(message, tag = "20")]
    Append(AppendHead),
    #[prost(message, tag = "21")]
    AppendReply(AppendReplyHead),
    #[prost(message, tag = "22")]
    Heartbeat(HeartbeatHead),
    #[prost(message, tag = "23")]
    HeartbeatReply(HeartbeatReplyHead),
    /// A `SnapshotMeta`.
    #[prost(bytes = "bytes", tag = "24")]
    Snapshot(Bytes),
    #[prost(message, tag = "25")]
    TimeoutNow(EmptyHead),
    /// The command, or the `Change`, is the body.
    #[prost(message, tag = "26")]
    Propose(ProposeHead),
    #[prost(message, tag = "27")]
    ProposeReply(ReplyHead),
    #[prost(uint64, tag = "28")]
    Read(u64),
    #[prost(message, tag = "29")]
    ReadReply(ReplyHead),
    #[prost(uint64, tag = "30")]
    Transfer(u64),
    #[prost(message, tag = "31")]
    IdentityRejected(IdentityRejectedHead),
    /// Several messages in one frame: see `message_run.rs`.
    #[prost(message, tag = "32")]
    Proposals(ProposalsHead),
    #[prost(message, tag = "33")]
    Accepted(AcceptedHead),
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct EmptyHead {}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct VoteHead {
    #[prost(uint64, tag = "1")]
    last_term: u64,
    #[prost(uint64, tag = "2")]
    last_index: u64,
    #[prost(bool, tag = "3")]
    forced: bool,
    #[prost(uint64, tag = "4")]
    committed_term: u64,
    #[prost(uint64, tag = "5")]
    committed_index: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct VoteReplyHead {
    #[prost(bool, tag = "1")]
    granted: bool,
    #[prost(uint64, tag = "2")]
    committed_term: u64,
    #[prost(uint64, tag = "3")]
    committed_index: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct AppendHead {
    #[prost(uint64, tag = "1")]
    prev_term: u64,
    #[prost(uint64, tag = "2")]
    prev_index: u64,
    #[prost(uint64, tag = "3")]
    commit: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct AppendReplyHead {
    /// 1 matches, 2 differs, 3 old term.
    #[prost(uint32, tag = "1")]
    case: u32,
    /// Matches: how far. Differs: the index of `prev`.
    #[prost(uint64, tag = "2")]
    index: u64,
    #[prost(uint64, tag = "3")]
    commit: u64,
    #[prost(uint64, tag = "4")]
    hint_term: u64,
    #[prost(uint64, tag = "5")]
    hint_index: u64,
    /// Differs, as the answer to a heartbeat: the log lacks what it confirmed. As in the
    /// heartbeat.
    #[prost(uint64, optional, tag = "6")]
    heartbeat_sent_at: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct HeartbeatHead {
    #[prost(uint64, tag = "1")]
    commit: u64,
    #[prost(uint64, tag = "2")]
    round: u64,
    #[prost(uint64, tag = "3")]
    sent_at: u64,
    #[prost(uint64, tag = "4")]
    settled: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct HeartbeatReplyHead {
    #[prost(uint64, tag = "1")]
    commit: u64,
    #[prost(uint64, tag = "2")]
    round: u64,
    #[prost(uint64, tag = "3")]
    sent_at: u64,
    #[prost(uint64, tag = "4")]
    applied: u64,
    #[prost(bool, tag = "5")]
    disk_stalled: bool,
    #[prost(bool, tag = "6")]
    machine_stalled: bool,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct ProposeHead {
    #[prost(uint64, tag = "1")]
    request: u64,
    /// The body is a `Change`, not a command.
    #[prost(bool, tag = "2")]
    change: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReplyHead {
    #[prost(uint64, tag = "1")]
    request: u64,
    /// The id of the proposal's entry.
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(uint64, tag = "3")]
    index: u64,
    /// A `Refusal`; if it is present, the other fields mean nothing.
    #[prost(bytes = "bytes", optional, tag = "4")]
    refusal: Option<Bytes>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct IdentityRejectedHead {
    #[prost(uint64, optional, tag = "1")]
    incarnation: Option<u64>,
    #[prost(uint64, tag = "2")]
    joined_at: u64,
}

/// A message that cannot be put into a frame. The core never sends one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnencodableMessage;

/// The bytes of an append's entries, which must be consecutive.
pub(crate) fn encode_entries(entries: &Entries) -> Result<FrameBody, UnencodableMessage> {
    let mut next = entries.first().map_or(0, |entry| entry.id.index);
    for entry in entries.chunks().flatten() {
        if entry.id.index != next {
            return Err(UnencodableMessage);
        }
        next = next.checked_add(1).ok_or(UnencodableMessage)?;
    }
    let mut bytes = Vec::with_capacity(entries.bytes() as usize + 16);
    entries.encode(&mut bytes);
    Ok(FrameBody::new(bytes.into()))
}

/// The body of a message. That of an append comes from [`encode_entries`], so that several
/// peers can share it.
pub(crate) fn body_of(message: &Message) -> Result<Option<FrameBody>, UnencodableMessage> {
    Ok(match message {
        Message::Append(append) if !append.entries.is_empty() => {
            Some(encode_entries(&append.entries)?)
        }
        Message::Propose(_, Proposal::Command(command)) => Some(FrameBody::new(command.clone())),
        Message::Propose(_, Proposal::Change(change)) => {
            Some(FrameBody::new(change.to_bytes().into()))
        }
        _ => None,
    })
}

impl MessageHead {
    /// The head of a message on the channel of the member with this id and incarnation.
    pub(crate) fn new(
        envelope: &Envelope,
        member: MemberId,
        incarnation: u64,
    ) -> Result<Self, UnencodableMessage> {
        let own = envelope.from == member && envelope.incarnation == incarnation;
        let forwarded = envelope.incarnation == 0 && may_be_forwarded(&envelope.message);
        if !own && !forwarded {
            return Err(UnencodableMessage);
        }
        Ok(Self {
            term: envelope.term,
            joined_at: envelope.joined_at,
            on_behalf_of: (!own).then_some(envelope.from.0),
            snapshot_bytes: 0,
            snapshot_size_unknown: false,
            message: Some(MessageBody::new(&envelope.message)),
        })
    }

    /// The same for several messages in one frame, of which this is the first one.
    pub(crate) fn of_run(
        first: &Envelope,
        run: RunHead,
        member: MemberId,
        incarnation: u64,
    ) -> Result<Self, UnencodableMessage> {
        let message = Some(match run {
            RunHead::Proposals(head) => MessageBody::Proposals(head),
            RunHead::Accepted(head) => MessageBody::Accepted(head),
        });
        Ok(Self { message, ..Self::new(first, member, incarnation)? })
    }

    /// Whether the frame has several messages.
    pub(crate) fn is_run(&self) -> bool {
        self.message.as_ref().is_some_and(MessageBody::is_run)
    }

    /// The envelopes of this head and body, received on the channel of this member.
    pub(crate) fn decode(
        head: &[u8],
        body: Bytes,
        from: MemberId,
        incarnation: u64,
        to: MemberId,
        mut deliver: impl FnMut(Envelope),
    ) -> Result<(), MalformedMessage> {
        let mut head = <Self as prost::Message>::decode(head)?;
        let messages = match head.message.take_if(|message| message.is_run()) {
            Some(MessageBody::Proposals(run)) => run.into_messages(body)?,
            Some(MessageBody::Accepted(run)) => run.into_messages(&body)?,
            _ => {
                deliver(head.into_envelope(body, from, incarnation, to)?);
                return Ok(());
            }
        };
        for message in messages {
            deliver(head.envelope(message, from, incarnation, to)?);
        }
        Ok(())
    }

    /// The envelope of a frame with one message.
    pub(crate) fn into_envelope(
        mut self,
        body: Bytes,
        from: MemberId,
        incarnation: u64,
        to: MemberId,
    ) -> Result<Envelope, MalformedMessage> {
        let message = self.message.take().ok_or(MalformedMessage)?.into_message(body)?;
        self.envelope(message, from, incarnation, to)
    }

    fn envelope(
        &self,
        message: Message,
        from: MemberId,
        incarnation: u64,
        to: MemberId,
    ) -> Result<Envelope, MalformedMessage> {
        let (from, incarnation) = match self.on_behalf_of {
            Some(other) if may_be_forwarded(&message) => (MemberId(other), 0),
            Some(_) => return Err(MalformedMessage),
            None => (from, incarnation),
        };
        Ok(Envelope { from, to, term: self.term, incarnation, joined_at: self.joined_at, message })
    }
}

/// Only a client's request may be forwarded for another member: no message whose meaning
/// depends on its sender.
fn may_be_forwarded(message: &Message) -> bool {
    matches!(message, Message::Propose(..))
}

impl MessageBody {
    fn is_run(&self) -> bool {
        matches!(self, Self::Proposals(_) | Self::Accepted(_))
    }

    fn new(message: &Message) -> Self {
        match message {
            Message::PreVote(vote) => Self::PreVote((*vote).into()),
            Message::PreVoteReply(reply) => Self::PreVoteReply((*reply).into()),
            Message::Vote(vote) => Self::Vote((*vote).into()),
            Message::VoteReply(reply) => Self::VoteReply((*reply).into()),
            Message::Append(append) => Self::Append(AppendHead {
                prev_term: append.prev.term,
                prev_index: append.prev.index,
                commit: append.commit,
            }),
            Message::AppendReply(reply) => Self::AppendReply((*reply).into()),
            Message::Heartbeat(Heartbeat { commit, round, sent_at, settled }) => {
                Self::Heartbeat(HeartbeatHead {
                    commit: *commit,
                    round: *round,
                    sent_at: *sent_at,
                    settled: *settled,
                })
            }
            Message::HeartbeatReply(reply) => Self::HeartbeatReply((*reply).into()),
            Message::Snapshot(meta) => Self::Snapshot(meta.to_bytes().into()),
            Message::TimeoutNow => Self::TimeoutNow(EmptyHead {}),
            Message::Propose(request, proposal) => Self::Propose(ProposeHead {
                request: request.0,
                change: matches!(proposal, Proposal::Change(_)),
            }),
            Message::ProposeReply(request, result) => {
                let id = result.as_ref().copied().unwrap_or_default();
                Self::ProposeReply(ReplyHead::new(*request, id, result.as_ref().err()))
            }
            Message::Read(request) => Self::Read(request.0),
            Message::ReadReply(request, result) => {
                let id = EntryId::new(0, result.as_ref().copied().unwrap_or_default());
                Self::ReadReply(ReplyHead::new(*request, id, result.as_ref().err()))
            }
            Message::Transfer(to) => Self::Transfer(to.0),
            Message::IdentityRejected(Identity { incarnation, joined_at }) => {
                let (incarnation, joined_at) = (*incarnation, *joined_at);
                Self::IdentityRejected(IdentityRejectedHead { incarnation, joined_at })
            }
        }
    }

    fn into_message(self, body: Bytes) -> Result<Message, MalformedMessage> {
        let has_body = matches!(self, Self::Append(_) | Self::Propose(_));
        if !has_body && !body.is_empty() {
            return Err(MalformedMessage);
        }
        Ok(match self {
            Self::PreVote(vote) => Message::PreVote(vote.into()),
            Self::PreVoteReply(reply) => Message::PreVoteReply(reply.into()),
            Self::Vote(vote) => Message::Vote(vote.into()),
            Self::VoteReply(reply) => Message::VoteReply(reply.into()),
            Self::Append(AppendHead { prev_term, prev_index, commit }) => {
                let prev = EntryId::new(prev_term, prev_index);
                let entries =
                    if body.is_empty() { Entries::new() } else { Entries::from_bytes(body)? };
                Message::Append(Append { prev, entries, commit })
            }
            Self::AppendReply(reply) => Message::AppendReply(reply.try_into()?),
            Self::Heartbeat(HeartbeatHead { commit, round, sent_at, settled }) => {
                Message::Heartbeat(Heartbeat { commit, round, sent_at, settled })
            }
            Self::HeartbeatReply(reply) => Message::HeartbeatReply(reply.into()),
            Self::Snapshot(meta) => Message::Snapshot(SnapshotMeta::from_bytes(meta)?),
            Self::TimeoutNow(EmptyHead {}) => Message::TimeoutNow,
            Self::Propose(ProposeHead { request, change: false }) => {
                Message::Propose(RequestId(request), Proposal::Command(body))
            }
            Self::Propose(ProposeHead { request, change: true }) => {
                let change = Box::new(Change::from_bytes(body)?);
                Message::Propose(RequestId(request), Proposal::Change(change))
            }
            Self::ProposeReply(reply) => {
                let id = EntryId::new(reply.term, reply.index);
                Message::ProposeReply(RequestId(reply.request), reply.result(id)?)
            }
            Self::Read(request) => Message::Read(RequestId(request)),
            Self::ReadReply(reply) => {
                Message::ReadReply(RequestId(reply.request), reply.result(reply.index)?)
            }
            Self::Transfer(to) => Message::Transfer(MemberId(to)),
            Self::IdentityRejected(IdentityRejectedHead { incarnation, joined_at }) => {
                Message::IdentityRejected(Identity { incarnation, joined_at })
            }
            // Not where one message is expected.
            Self::Proposals(_) | Self::Accepted(_) => return Err(MalformedMessage),
        })
    }
}

impl ReplyHead {
    fn new(request: RequestId, id: EntryId, refusal: Option<&Refusal>) -> Self {
        let refusal = refusal.map(|refusal| refusal.to_bytes().into());
        Self { request: request.0, term: id.term, index: id.index, refusal }
    }

    fn result<T>(&self, done: T) -> Result<Result<T, Refusal>, MalformedMessage> {
        Ok(match &self.refusal {
            Some(refusal) => Err(Refusal::from_bytes(refusal.clone())?),
            None => Ok(done),
        })
    }
}

impl From<Vote> for VoteHead {
    fn from(Vote { last, forced, committed }: Vote) -> Self {
        Self {
            last_term: last.term,
            last_index: last.index,
            forced,
            committed_term: committed.term,
            committed_index: committed.index,
        }
    }
}

impl From<VoteHead> for Vote {
    fn from(head: VoteHead) -> Self {
        Self {
            last: EntryId::new(head.last_term, head.last_index),
            forced: head.forced,
            committed: EntryId::new(head.committed_term, head.committed_index),
        }
    }
}

impl From<VoteReply> for VoteReplyHead {
    fn from(VoteReply { granted, committed }: VoteReply) -> Self {
        Self { granted, committed_term: committed.term, committed_index: committed.index }
    }
}

impl From<VoteReplyHead> for VoteReply {
    fn from(head: VoteReplyHead) -> Self {
        let committed = EntryId::new(head.committed_term, head.committed_index);
        Self { granted: head.granted, committed }
    }
}

impl From<HeartbeatReply> for HeartbeatReplyHead {
    fn from(reply: HeartbeatReply) -> Self {
        let HeartbeatReply { commit, round, sent_at, applied, stalled } = reply;
        let Stalled { disk: disk_stalled, machine: machine_stalled } = stalled;
        Self { commit, round, sent_at, applied, disk_stalled, machine_stalled }
    }
}

impl From<HeartbeatReplyHead> for HeartbeatReply {
    fn from(head: HeartbeatReplyHead) -> Self {
        let HeartbeatReplyHead { commit, round, sent_at, applied, .. } = head;
        let stalled = Stalled { disk: head.disk_stalled, machine: head.machine_stalled };
        Self { commit, round, sent_at, applied, stalled }
    }
}

impl From<AppendReply> for AppendReplyHead {
    fn from(reply: AppendReply) -> Self {
        let (case, index, commit, hint) = match reply {
            AppendReply::Matches { index, commit } => (1, index, commit, EntryId::ZERO),
            AppendReply::Differs { prev, hint } => (2, prev, 0, hint),
            AppendReply::Missing { confirmed, hint, .. } => (2, confirmed, 0, hint),
            AppendReply::OldTerm => (3, 0, 0, EntryId::ZERO),
        };
        let heartbeat_sent_at = match reply {
            AppendReply::Missing { sent_at, .. } => Some(sent_at),
            _ => None,
        };
        let (hint_term, hint_index) = (hint.term, hint.index);
        Self { case, index, commit, hint_term, hint_index, heartbeat_sent_at }
    }
}

impl TryFrom<AppendReplyHead> for AppendReply {
    type Error = MalformedMessage;

    fn try_from(head: AppendReplyHead) -> Result<Self, MalformedMessage> {
        Ok(match head.case {
            1 => Self::Matches { index: head.index, commit: head.commit },
            2 => {
                let hint = EntryId::new(head.hint_term, head.hint_index);
                match head.heartbeat_sent_at {
                    Some(sent_at) => Self::Missing { confirmed: head.index, hint, sent_at },
                    None => Self::Differs { prev: head.index, hint },
                }
            }
            3 => Self::OldTerm,
            _ => return Err(MalformedMessage),
        })
    }
}

/// The frame is intact, but this version does not understand it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedMessage;

impl From<prost::DecodeError> for MalformedMessage {
    fn from(_: prost::DecodeError) -> Self {
        Self
    }
}

impl From<DecodeError> for MalformedMessage {
    fn from(_: DecodeError) -> Self {
        Self
    }
}
