//! Linearizable reads: from which index on a read is not stale (thesis §6.4).
//!
//! A leader that was deposed without knowing must not answer. Either a quorum
//! confirms after the read arrived that it still follows (one round of heartbeats
//! serves every read that waits), or a leader lease says that nobody else can have
//! been elected yet. Both need an entry of the own term committed first: before
//! that the leader does not know what was.

use crate::progress::Peer;
use crate::{Accepted, Dropped, Index, MemberId, Message, Raft, ReadMode, Refusal, RequestId};

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Reads {
    /// Not in a round yet.
    waiting: Vec<Waiting>,
    /// The newest round begun. Answers to older ones confirm nothing.
    begun: u64,
    /// The round that is open, and who waits for it.
    open: Option<Round>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Round {
    /// The commit index when it began.
    index: Index,
    reads: Vec<Waiting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    from: MemberId,
    request: RequestId,
}

impl Reads {
    /// The round that a heartbeat asks to confirm; 0 when none is open.
    pub(crate) fn round(&self) -> u64 {
        if self.open.is_some() { self.begun } else { 0 }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() + self.open.as_ref().map_or(0, |round| round.reads.len())
    }
}

impl Raft {
    pub(crate) fn on_read(&mut self, request: RequestId) -> Result<Accepted, Dropped> {
        if self.role.is_leader() {
            return Ok(self.queue_read(self.config.id, request)?);
        }
        let Some(leader) = self.leader else { return Err(self.not_leader().into()) };
        self.send(leader, Message::Read(request));
        Ok(Accepted::Forwarded(leader))
    }

    pub(crate) fn on_forwarded_read(
        &mut self,
        from: MemberId,
        request: RequestId,
    ) -> Result<Accepted, Dropped> {
        let queued = if self.role.is_leader() {
            self.queue_read(from, request)
        } else {
            Err(self.not_leader())
        };
        if let Err(refusal) = &queued {
            self.send(from, Message::ReadReply(request, Err(refusal.clone())));
        }
        Ok(queued?)
    }

    pub(crate) fn on_read_reply(
        &mut self,
        request: RequestId,
        reply: Result<Index, Refusal>,
    ) -> Result<Accepted, Dropped> {
        match reply {
            Ok(index) => self.out.served.push((request, index)),
            Err(refusal) => self.out.refused.push((request, refusal)),
        }
        Ok(Accepted::Done)
    }

    fn queue_read(&mut self, from: MemberId, request: RequestId) -> Result<Accepted, Refusal> {
        let limit = self.config.reads_waiting_max;
        let refusal = self.not_leader();
        let Some(leader) = self.role.leader_mut() else { return Err(refusal) };
        if leader.reads.waiting() >= limit {
            return Err(Refusal::TooManyReads { limit });
        }
        leader.reads.waiting.push(Waiting { from, request });
        Ok(Accepted::Queued)
    }

    /// Reads wait, no round is open, and this leader knows what is committed.
    /// Shown by scenarios/read_waits_for_own_term_commit.txt.
    pub(crate) fn may_begin_reads(&self) -> bool {
        self.role.leader().is_some_and(|leader| {
            !leader.reads.waiting.is_empty()
                && leader.reads.open.is_none()
                && self.log.commit >= leader.first_own
        })
    }

    /// Answers every read that waits, or opens one round for all of them.
    pub(crate) fn begin_reads(&mut self) {
        if !self.may_begin_reads() {
            return;
        }
        let index = self.log.commit;
        let votes = self.membership().is_voter(self.config.id);
        let alone = self.membership().is_single() && votes;
        let sure = alone || self.holds_lease();
        let Some(leader) = self.role.leader_mut() else { return };
        let reads = std::mem::take(&mut leader.reads.waiting);
        if sure {
            self.serve(reads, index);
            return;
        }
        leader.reads.begun += 1;
        leader.reads.open = Some(Round { index, reads });
        self.broadcast_heartbeat();
    }

    /// No other leader can have been elected: a quorum answered heartbeats that were
    /// sent so lately that it still ignores every candidate. Counted from the
    /// sending; and given up for the rest of the term once somebody was told to
    /// campaign at once, for that campaign is not ignored.
    fn holds_lease(&self) -> bool {
        let ReadMode::LeaderLease { drift_ticks } = self.config.reads else { return false };
        let Some(leader) = self.role.leader() else { return false };
        let lease = u64::from(self.config.election_ticks - drift_ticks);
        let own = self.config.id;
        let heard_at = self.membership().quorum(|id| match leader.peer(id) {
            Some(peer) if id != own => peer.heard_at,
            _ => leader.clock,
        });
        !leader.lease_given_up && leader.clock < heard_at.saturating_add(lease)
    }

    /// A peer still followed us when it answered a heartbeat of this round.
    pub(crate) fn on_round_confirmed(&mut self, slot: usize, round: u64) {
        let Some(leader) = self.role.leader_mut() else { return };
        let peer: &mut Peer = &mut leader.peers[slot];
        if round > peer.round && round <= leader.reads.begun {
            peer.round = round;
            self.finish_round_if_confirmed();
        }
    }

    pub(crate) fn finish_round_if_confirmed(&mut self) {
        let own = self.config.id;
        let Some(leader) = self.role.leader() else { return };
        let begun = leader.reads.begun;
        if leader.reads.open.is_none() {
            return;
        }
        let round = |id| match leader.peer(id) {
            Some(peer) if id != own => peer.round,
            Some(_) => begun,
            None => 0,
        };
        if self.membership().quorum(round) < begun {
            return;
        }
        let round = self.role.leader_mut().and_then(|leader| leader.reads.open.take());
        if let Some(round) = round {
            self.serve(round.reads, round.index);
        }
    }

    fn serve(&mut self, reads: Vec<Waiting>, index: Index) {
        for read in reads {
            if read.from == self.config.id {
                self.out.served.push((read.request, index));
            } else {
                self.send(read.from, Message::ReadReply(read.request, Ok(index)));
            }
        }
    }

    /// A leader that leads no longer can confirm nothing.
    pub(crate) fn refuse_reads(&mut self, reads: Reads) {
        let open = reads.open.into_iter().flat_map(|round| round.reads);
        for read in open.chain(reads.waiting) {
            let refusal = Refusal::NotLeader { leader: None };
            if read.from == self.config.id {
                self.out.refused.push((read.request, refusal));
            } else {
                self.send(read.from, Message::ReadReply(read.request, Err(refusal)));
            }
        }
    }
}
