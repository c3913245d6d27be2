//! A member whose log lacks what it confirmed: its disk was rolled back or restored.
//!
//! A leader's heartbeat carries a commit index that the receiver has confirmed to hold. In one
//! term a log never shrinks, so a receiver that does not hold it has lost entries, and perhaps
//! votes, that others count on. It stops voting and campaigning and reports this to the
//! leader, which stops counting it. Both say so to their operators.
//!
//! Delayed and reordered messages prove nothing, and are not taken for proof: the report names
//! the heartbeat that it answers, which the leader sent after the confirmation. Forged ones
//! are contradicted by the next heartbeat and its reply. docs/decisions/013 has the reasons,
//! and what cannot be noticed.

use crate::progress::LostLog;
use crate::{
    AppendReply, Dropped, EntryId, Event, Heartbeat, Index, MemberId, Message, Raft, Term,
};

/// What this member must have again before it votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnLostLog {
    /// The term of the leader that this member had confirmed more to.
    term: Term,
    pub(crate) confirmed: Index,
}

impl Raft {
    /// Whether this log lacks what this member confirmed, so that it does not vote.
    pub fn has_lost_log(&self) -> bool {
        self.lost_log.is_some()
    }

    /// How many peers this leader does not count, because their logs lack what they confirmed.
    pub fn lost_peers(&self) -> usize {
        let peers = self.role.leader().map_or(&[][..], |leader| &leader.peers);
        peers.iter().filter(|peer| peer.lost.is_some()).count()
    }

    /// The leader says that this member has confirmed entries that its log does not have. A
    /// new disk hears that too, until the leader has learned of it.
    /// Shown by scenarios/identity_rolled_back_voter_does_not_vote.txt and
    /// scenarios/identity_swapped_learner_starts_over.txt.
    pub(crate) fn on_missing_entries(&mut self, from: MemberId, heartbeat: Heartbeat) -> Dropped {
        let (confirmed, sent_at) = (heartbeat.commit, heartbeat.sent_at);
        let last = self.log.last().index;
        // Where incarnations are not used, a new disk cannot be told from a rolled-back one.
        if self.config.incarnation != 0 {
            let hint = self.log.last();
            let reply = AppendReply::Missing { confirmed, hint, sent_at };
            self.send_when_saved(from, self.term, Message::AppendReply(reply));
            if self.lost_log.is_none() {
                self.out.rare().events.push(Event::LogLost { leader: from, confirmed, last });
            }
            self.lost_log = Some(Box::new(OwnLostLog { term: self.term, confirmed }));
        }
        Dropped::CommitBeyondLog { commit: confirmed, last }
    }

    /// The leader expects no more than this log has. If it is the one that expected more, it
    /// has learned that this is a new disk. A later leader sends everything that was committed
    /// before its term: this member is complete when it knows an entry of that term to be
    /// committed.
    /// Shown by scenarios/identity_rolled_back_voter_is_filled_by_next_leader.txt.
    pub(crate) fn check_log_complete(&mut self) {
        let Some(lost) = self.lost_log.as_deref() else { return };
        let committed = self.log.term(self.log.commit).unwrap_or(0);
        if self.term == lost.term || committed > lost.term {
            self.lost_log = None;
            self.out.rare().events.push(Event::LogComplete);
        }
    }

    /// A peer answers a heartbeat: it does not hold what it confirmed. It counts no longer,
    /// neither for commits nor as a live member.
    /// Shown by scenarios/identity_rolled_back_voter_is_not_counted.txt.
    pub(crate) fn on_peer_missing_entries(
        &mut self,
        from: MemberId,
        confirmed: Index,
        hint: EntryId,
        sent_at: u64,
    ) -> Result<(), Dropped> {
        let Some(leader) = self.role.leader_mut() else { return Err(Dropped::NotForRole) };
        let clock = leader.clock;
        let Some(peer) = leader.peer_mut(from) else {
            return Err(Dropped::UnknownSender { from });
        };
        // Heartbeats from before this disk was known were meant for another one.
        let is_proof = sent_at > peer.since
            && sent_at <= clock
            && confirmed <= peer.progress.matched
            && hint.index < confirmed;
        if !is_proof {
            peer.progress.active = true;
            return Ok(());
        }
        let last = hint.index;
        let known = peer.lost.replace(Box::new(LostLog { confirmed, sent_at }));
        peer.progress.active = false;
        if known.is_none() {
            self.out.rare().events.push(Event::PeerLostLog { peer: from, confirmed, last });
        }
        Err(Dropped::PeerLostLog { from, confirmed, last })
    }
}
