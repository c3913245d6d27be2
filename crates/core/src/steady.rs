//! The messages of a cluster in steady state: appends of the leader that this member follows,
//! and the replies to those of this leader. Nearly all messages are of these two kinds.
//!
//! They take a short path to their conversation, [`replication`](crate::replication). What the
//! checks of a message's sender and term would find is known of them: the leader of this term
//! was checked when it was first heard, and the peers of a leader are the members.

use crate::role::{Leader, Role};
use crate::validate::check_append;
use crate::{Accepted, AppendReply, Dropped, Envelope, Message, Raft};

impl Raft {
    /// Whether [`Raft::on_steady`] processes this message.
    #[inline(always)]
    pub(crate) fn is_steady(&self, envelope: &Envelope) -> bool {
        if envelope.term != self.term || envelope.to != self.config.id {
            return false;
        }
        match (&envelope.message, &self.role) {
            (Message::Append(_), Role::Follower) => self.leader == Some(envelope.from),
            (Message::AppendReply(AppendReply::Matches { index, .. }), Role::Leader(leader)) => {
                *index <= self.log.last().index && self.is_steady_peer(leader, envelope)
            }
            _ => false,
        }
    }

    /// The sender is another member, and the one that is recorded under its id.
    fn is_steady_peer(&self, leader: &Leader, envelope: &Envelope) -> bool {
        leader.slot(envelope.from).is_some_and(|slot| {
            leader.own != Some(slot)
                && leader.peers[slot].incarnation == envelope.incarnation
                && self.identity_mismatch(envelope).is_none()
        })
    }

    #[inline(always)]
    pub(crate) fn on_steady(&mut self, envelope: Envelope) -> Result<Accepted, Dropped> {
        let Envelope { from, term, message, .. } = envelope;
        match message {
            Message::Append(append) => {
                check_append(term, &append, self.config.activation)?;
                self.on_known_leader_heard();
                self.on_append(from, append)
            }
            Message::AppendReply(AppendReply::Matches { index, commit }) => {
                if let Some(slot) = self.role.leader().and_then(|leader| leader.slot(from)) {
                    self.on_matches(slot, index, commit);
                }
                Ok(Accepted::Done)
            }
            _ => unreachable!("a message of the steady state"),
        }
    }
}
