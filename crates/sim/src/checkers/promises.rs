//! I12: no promise leaves a member before its disk keeps it.

use quorate_core::{AppendReply, Envelope, HardState, Message};

use super::{Durable, Violation, ensure};

/// A message leaves a member whose disk holds this.
pub fn promise_is_durable(envelope: &Envelope, disk: &Durable) -> Result<(), Violation> {
    let HardState { term, vote, .. } = disk.hard_state;
    let current = term == envelope.term;
    let durable = match &envelope.message {
        Message::VoteReply(reply) if reply.granted => {
            term > envelope.term || current && vote == Some(envelope.to)
        }
        Message::Vote(asked) => {
            term > envelope.term
                || current && vote == Some(envelope.from) && disk.log.holds(asked.last)
        }
        Message::AppendReply(AppendReply::Matches { index, .. }) => *index <= disk.log.last().index,
        _ => true,
    };
    ensure(durable, "I12", || {
        format!(
            "{} tells {} what its disk does not hold: {:?}",
            envelope.from, envelope.to, envelope.message
        )
    })
}
