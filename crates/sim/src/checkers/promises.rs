//! I12: no promise leaves a member before its disk keeps it.

use quorate_core::message::{AppendReply, Message};
use quorate_core::{Envelope, HardState};

use super::{Durable, Violation, ensure};

/// A message leaves a member whose disk holds this: a vote that is granted, an entry
/// that is acknowledged.
pub fn promise_is_durable(envelope: &Envelope, disk: &Durable) -> Result<(), Violation> {
    let HardState { term, vote, .. } = disk.hard_state;
    let durable = match &envelope.message {
        Message::VoteReply(reply) if reply.granted => {
            term > envelope.term || term == envelope.term && vote == Some(envelope.to)
        }
        Message::AppendReply(AppendReply::Matches { index, .. }) => *index <= disk.log.last().index,
        _ => true,
    };
    ensure(durable, "I12", || what(envelope))
}

/// A candidate asks for votes with a term and a log that its disk holds: after a crash
/// it could ask again in the same term with less. With etcd's rules it does not wait.
pub fn candidacy_is_durable(envelope: &Envelope, disk: &Durable) -> Result<(), Violation> {
    let Message::Vote(asked) = &envelope.message else { return Ok(()) };
    let HardState { term, vote, .. } = disk.hard_state;
    let current =
        term == envelope.term && vote == Some(envelope.from) && disk.log.holds(asked.last);
    ensure(term > envelope.term || current, "I12", || what(envelope))
}

fn what(envelope: &Envelope) -> String {
    let Envelope { from, to, message, .. } = envelope;
    format!("{from} tells {to} what its disk does not hold: {message:?}")
}
