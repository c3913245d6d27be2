//! The messages of a cluster in steady state: appends of the leader that this member follows,
//! and the replies to those of this leader. Nearly all messages are of these two kinds.
//!
//! They take a short path to their conversation, [`replication`](crate::replication). What the
//! checks of a message's sender and term would find is known of them: the leader of this term
//! was checked when it was first heard, and the peers of a leader are the members.

use crate::role::Role;
use crate::validate::check_append;
use crate::{Accepted, Append, AppendReply, Dropped, Envelope, Message, Raft};

impl Raft {
    /// Processes a message of the steady state. None for any other message, which is left as
    /// it is.
    #[inline]
    pub(crate) fn on_steady(
        &mut self,
        envelope: &mut Envelope,
    ) -> Option<Result<Accepted, Dropped>> {
        if envelope.term != self.term || envelope.to != self.config.id {
            return None;
        }
        match &self.role {
            Role::Follower => self.on_steady_append(envelope),
            Role::Leader(_) => self.on_steady_reply(envelope),
            _ => None,
        }
    }

    fn on_steady_append(&mut self, envelope: &mut Envelope) -> Option<Result<Accepted, Dropped>> {
        let Envelope { from, term, .. } = *envelope;
        let Message::Append(append) = &mut envelope.message else { return None };
        if self.leader != Some(from) {
            return None;
        }
        if let Err(malformed) = check_append(term, append, self.config.activation) {
            return Some(Err(malformed.into()));
        }
        self.on_known_leader_heard();
        let Append { prev, commit, .. } = *append;
        let entries = std::mem::take(&mut append.entries);
        Some(self.on_append(from, Append { prev, entries, commit }))
    }

    fn on_steady_reply(&mut self, envelope: &Envelope) -> Option<Result<Accepted, Dropped>> {
        let Message::AppendReply(AppendReply::Matches { index, commit }) = envelope.message else {
            return None;
        };
        let leader = self.role.leader()?;
        let slot = leader.slot(envelope.from)?;
        let is_known = leader.own != Some(slot)
            && leader.peers[slot].incarnation == envelope.incarnation
            && self.identity_mismatch(envelope).is_none();
        if !is_known || index > self.log.last().index {
            return None;
        }
        self.on_matches(slot, index, commit);
        Some(Ok(Accepted::Done))
    }
}
