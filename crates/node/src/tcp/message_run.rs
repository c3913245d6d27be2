//! Runs: several messages in one frame, since version 2 of the peer protocol.
//!
//! Under load most messages are commands that a follower forwards and the leader's replies to
//! them, each with the request number after that of the one before. A frame for each would cost
//! its header, two checksums and an allocation on both sides.

use bytes::Bytes;
use quorate_core::message::{Message, Proposal};
use quorate_core::{EntryId, Envelope, RequestId};

use super::frame::FrameBody;
use super::message::MalformedMessage;
use crate::runtime::PeerMessage;

/// Commands with consecutive request numbers. Their bytes are the body, one after the other.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProposalsHead {
    /// The number of the first one.
    #[prost(uint64, tag = "1")]
    request: u64,
    #[prost(uint32, repeated, tag = "2")]
    lengths: Vec<u32>,
}

/// Proposals with consecutive request numbers were accepted, as consecutive entries.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct AcceptedHead {
    /// The number of the first one.
    #[prost(uint64, tag = "1")]
    request: u64,
    #[prost(uint32, tag = "2")]
    count: u32,
    /// The id of the first entry.
    #[prost(uint64, tag = "3")]
    term: u64,
    #[prost(uint64, tag = "4")]
    index: u64,
}

/// The head of a run.
pub(crate) enum RunHead {
    Proposals(ProposalsHead),
    Accepted(AcceptedHead),
}

/// The messages of a frame. A frame of a few bytes must not become very many messages.
const RUN_MAX: usize = 128;
/// The bytes of all commands of a frame. Longer commands gain nothing.
const RUN_BYTES_MAX: usize = 32 << 10;

/// How many messages from the first one on fit into one frame: 1 if it has to be alone.
pub(crate) fn run_length(messages: &[PeerMessage], frame_bytes_max: usize) -> usize {
    let bytes_max = RUN_BYTES_MAX.min(frame_bytes_max / 2);
    let mut bytes = 0;
    let mut fits = |message: &PeerMessage| {
        bytes += command(message).map_or(0, Bytes::len);
        bytes <= bytes_max
    };
    let Some(first) = messages.first().filter(|first| fits(first)) else { return 1 };
    let mut last = first;
    let continued = messages.iter().skip(1).take(RUN_MAX - 1).take_while(|next| {
        let continues = follows(last, next) && fits(next);
        last = next;
        continues
    });
    1 + continued.count()
}

fn command(message: &PeerMessage) -> Option<&Bytes> {
    match message {
        PeerMessage::Raft(Envelope { message, .. }) => match message {
            Message::Propose(_, Proposal::Command(command)) => Some(command),
            _ => None,
        },
        PeerMessage::Side { .. } => None,
    }
}

/// Whether a message can be in the same frame as the one before it.
fn follows(before: &PeerMessage, next: &PeerMessage) -> bool {
    let (PeerMessage::Raft(before), PeerMessage::Raft(next)) = (before, next) else { return false };
    let sender = |envelope: &Envelope| {
        let Envelope { from, to, term, incarnation, joined_at, .. } = *envelope;
        (from, to, term, incarnation, joined_at)
    };
    let is_next = |request: RequestId, next: RequestId| request.0.checked_add(1) == Some(next.0);
    let continues = match (&before.message, &next.message) {
        (
            Message::Propose(request, Proposal::Command(_)),
            Message::Propose(next, Proposal::Command(_)),
        ) => is_next(*request, *next),
        (Message::ProposeReply(request, Ok(id)), Message::ProposeReply(next, Ok(next_id))) => {
            is_next(*request, *next)
                && id.term == next_id.term
                && id.index.checked_add(1) == Some(next_id.index)
        }
        _ => false,
    };
    continues && sender(before) == sender(next)
}

/// The head and body of the frame for these messages, whose number is a [`run_length`] above 1.
pub(crate) fn encode_run(messages: &[PeerMessage]) -> Option<(RunHead, Option<FrameBody>)> {
    let PeerMessage::Raft(first) = messages.first()? else { return None };
    match &first.message {
        Message::Propose(request, _) => {
            let commands = || messages.iter().filter_map(command);
            let lengths = commands().map(|command| command.len() as u32).collect();
            let mut body = Vec::with_capacity(commands().map(Bytes::len).sum());
            commands().for_each(|command| body.extend_from_slice(command));
            let head = ProposalsHead { request: request.0, lengths };
            Some((RunHead::Proposals(head), Some(FrameBody::new(body.into()))))
        }
        Message::ProposeReply(request, Ok(id)) => {
            let EntryId { term, index } = *id;
            let (request, count) = (request.0, messages.len() as u32);
            Some((RunHead::Accepted(AcceptedHead { request, count, term, index }), None))
        }
        _ => None,
    }
}

impl ProposalsHead {
    pub(crate) fn into_messages(self, body: Bytes) -> Result<Vec<Message>, MalformedMessage> {
        let numbers = run_of(self.request, self.lengths.len())?;
        let mut rest = body;
        let mut messages = Vec::with_capacity(self.lengths.len());
        for (request, length) in numbers.zip(&self.lengths) {
            let length = *length as usize;
            if length > rest.len() {
                return Err(MalformedMessage);
            }
            let command = Proposal::Command(rest.split_to(length));
            messages.push(Message::Propose(RequestId(request), command));
        }
        if rest.is_empty() { Ok(messages) } else { Err(MalformedMessage) }
    }
}

impl AcceptedHead {
    pub(crate) fn into_messages(self, body: &Bytes) -> Result<Vec<Message>, MalformedMessage> {
        let count = self.count as usize;
        let entries = run_of(self.request, count)?.zip(run_of(self.index, count)?);
        if !body.is_empty() {
            return Err(MalformedMessage);
        }
        let reply = |(request, index)| {
            Message::ProposeReply(RequestId(request), Ok(EntryId::new(self.term, index)))
        };
        Ok(entries.map(reply).collect())
    }
}

/// This many numbers from the first one on.
fn run_of(first: u64, count: usize) -> Result<std::ops::Range<u64>, MalformedMessage> {
    if !(2..=RUN_MAX).contains(&count) {
        return Err(MalformedMessage);
    }
    let end = first.checked_add(count as u64).ok_or(MalformedMessage)?;
    Ok(first..end)
}

#[cfg(test)]
mod tests {
    use quorate_core::MemberId;

    use super::super::message::MessageHead;
    use super::*;

    const FROM: MemberId = MemberId(1);
    const TO: MemberId = MemberId(2);
    const INCARNATION: u64 = 7;
    const FRAME_BYTES_MAX: usize = 1 << 20;

    fn raft(message: Message) -> PeerMessage {
        let (term, incarnation, joined_at) = (4, INCARNATION, 3);
        PeerMessage::Raft(Envelope { from: FROM, to: TO, term, incarnation, joined_at, message })
    }

    fn proposal(request: u64, bytes: usize) -> PeerMessage {
        let command = Proposal::Command(vec![request as u8; bytes].into());
        raft(Message::Propose(RequestId(request), command))
    }

    fn accepted(request: u64, index: u64) -> PeerMessage {
        raft(Message::ProposeReply(RequestId(request), Ok(EntryId::new(4, index))))
    }

    /// What is received when these messages are sent in one frame.
    fn sent(messages: &[PeerMessage]) -> Result<Vec<PeerMessage>, MalformedMessage> {
        let (run, body) = encode_run(messages).unwrap();
        let PeerMessage::Raft(first) = &messages[0] else { panic!("{:?}", messages[0]) };
        let head = MessageHead::of_run(first, run, FROM, INCARNATION).unwrap();
        assert!(head.is_run());
        received(&head, body.map_or_else(Bytes::new, |body| body.bytes))
    }

    fn received(head: &MessageHead, body: Bytes) -> Result<Vec<PeerMessage>, MalformedMessage> {
        let head = prost::Message::encode_to_vec(head);
        let mut received = Vec::new();
        let deliver = |envelope| received.push(PeerMessage::Raft(envelope));
        MessageHead::decode(&head, body, FROM, INCARNATION, TO, deliver)?;
        Ok(received)
    }

    #[test]
    fn a_run_arrives_as_the_messages_that_it_was_made_of() {
        let proposals: Vec<_> = (0..9).map(|n| proposal(u64::MAX - 10 + n, n as usize)).collect();
        assert_eq!(run_length(&proposals, FRAME_BYTES_MAX), 9);
        assert_eq!(sent(&proposals).unwrap(), proposals);
        let replies: Vec<_> = (0..RUN_MAX as u64 + 9).map(|n| accepted(70 + n, 900 + n)).collect();
        assert_eq!(run_length(&replies, FRAME_BYTES_MAX), RUN_MAX);
        assert_eq!(sent(&replies[..RUN_MAX]).unwrap(), replies[..RUN_MAX]);
    }

    #[test]
    fn a_run_ends_where_the_next_message_does_not_follow() {
        let first = || proposal(5, 1);
        let length = |next: PeerMessage| run_length(&[first(), next], FRAME_BYTES_MAX);
        assert_eq!(length(proposal(6, 1)), 2);
        assert_eq!(length(proposal(7, 1)), 1, "a number is missing");
        assert_eq!(length(proposal(5, 1)), 1, "a repeated number");
        assert_eq!(length(accepted(6, 1)), 1, "another kind");
        assert_eq!(length(proposal(6, RUN_BYTES_MAX)), 1, "too long for a run");
        let with = |change: fn(&mut Envelope)| {
            let PeerMessage::Raft(mut next) = proposal(6, 1) else { panic!("a side message") };
            change(&mut next);
            length(PeerMessage::Raft(next))
        };
        assert_eq!(with(|next| next.term += 1), 1, "another term");
        assert_eq!(with(|next| next.to = MemberId(3)), 1, "another receiver");
        assert_eq!(with(|next| next.from = MemberId(3)), 1, "on behalf of another member");
        let replies = |next| run_length(&[accepted(5, 8), next], FRAME_BYTES_MAX);
        assert_eq!(replies(accepted(6, 9)), 2);
        assert_eq!(replies(accepted(6, 10)), 1, "not the next entry");
        let refused = Message::ProposeReply(
            RequestId(6),
            Err(quorate_core::Refusal::NotLeader { leader: None }),
        );
        assert_eq!(replies(raft(refused)), 1);
        let long = [proposal(5, 600), proposal(6, 600)];
        assert_eq!((run_length(&long, 2_000), run_length(&long, 2_400)), (1, 2));
        assert_eq!(run_length(&[proposal(5, RUN_BYTES_MAX + 1)], FRAME_BYTES_MAX), 1);
    }

    /// A frame of a few bytes that claims very many messages, and one whose parts do not fit.
    #[test]
    fn implausible_runs_are_refused() {
        let PeerMessage::Raft(first) = accepted(1, 1) else { panic!("a side message") };
        let accepted = |request, count, index, body: &'static [u8]| {
            let head = AcceptedHead { request, count, term: 4, index };
            let run = RunHead::Accepted(head);
            let head = MessageHead::of_run(&first, run, FROM, INCARNATION).unwrap();
            received(&head, body.into()).map(|messages| messages.len())
        };
        assert_eq!(accepted(1, RUN_MAX as u32, 1, b""), Ok(RUN_MAX));
        for count in [0, 1, RUN_MAX as u32 + 1, u32::MAX] {
            assert_eq!(accepted(1, count, 1, b""), Err(MalformedMessage), "{count}");
        }
        assert_eq!(accepted(u64::MAX, 2, 1, b""), Err(MalformedMessage));
        assert_eq!(accepted(1, 2, u64::MAX, b""), Err(MalformedMessage));
        assert_eq!(accepted(1, 2, 1, b"body"), Err(MalformedMessage));
        let proposals = |lengths: &[u32], body: &'static [u8]| {
            let run = RunHead::Proposals(ProposalsHead { request: 1, lengths: lengths.into() });
            let head = MessageHead::of_run(&first, run, FROM, INCARNATION).unwrap();
            received(&head, body.into()).map(|messages| messages.len())
        };
        assert_eq!(proposals(&[1, 0, 2], b"abc"), Ok(3));
        for lengths in [&[][..], &[3], &[1, 1], &[2, 2], &[u32::MAX, 4], &[0; RUN_MAX + 1]] {
            assert_eq!(proposals(lengths, b"abc"), Err(MalformedMessage), "{lengths:?}");
        }
    }
}
