//! Linearizable reads: the index from which a read is not stale (thesis §6.4).
//!
//! A leader that was deposed without knowing it must not serve reads. Either a quorum
//! confirms its leadership after the read arrived (one round of heartbeats serves all
//! waiting reads), or a leader lease shows that no other leader can have been elected yet.
//! Both require a committed entry of the current term: before that the leader does not know
//! the commit index.

use crate::pack::pack_fields;
use crate::progress::Peer;
use crate::role::Leader;
use crate::{Accepted, Dropped, Index, MemberId, Message, Raft, ReadMode, Refusal, RequestId};

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Reads {
    /// Reads that are not in a round yet.
    waiting: Vec<WaitingRead>,
    /// The newest round. Replies to older ones confirm nothing.
    newest_round: u64,
    /// The open round, and the reads that wait for it.
    open: Option<ReadRound>,
}

pack_fields!(Reads { newest_round } unset { waiting, open });

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ReadRound {
    /// The commit index when it began.
    index: Index,
    reads: Vec<WaitingRead>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct WaitingRead {
    from: MemberId,
    request: RequestId,
}

impl Reads {
    /// The round that a heartbeat asks to confirm; 0 for none.
    pub(crate) fn round(&self) -> u64 {
        if self.open.is_some() { self.newest_round } else { 0 }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() + self.open.as_ref().map_or(0, |round| round.reads.len())
    }
}

impl Leader {
    /// Reads wait, no round is open, and this leader knows the commit index.
    /// Shown by scenarios/read_waits_for_own_term_commit.txt.
    #[inline]
    pub(crate) fn may_begin_reads(&self, commit: Index) -> bool {
        !self.reads.waiting.is_empty() && self.reads.open.is_none() && commit >= self.first_of_term
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
            Ok(index) => self.out.rare().served.push((request, index)),
            Err(refusal) => self.out.rare().refused.push((request, refusal)),
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
        leader.reads.waiting.push(WaitingRead { from, request });
        Ok(Accepted::Queued)
    }

    /// Serves all waiting reads, or opens one round for all of them.
    pub(crate) fn begin_reads(&mut self) {
        let index = self.log.commit;
        if !self.role.leader().is_some_and(|leader| leader.may_begin_reads(index)) {
            return;
        }
        let votes = self.membership().is_voter(self.config.id);
        let alone = self.membership().is_single() && votes;
        let sure = alone || self.holds_lease();
        let Some(leader) = self.role.leader_mut() else { return };
        let reads = std::mem::take(&mut leader.reads.waiting);
        if sure {
            self.serve(reads, index);
            return;
        }
        leader.reads.newest_round += 1;
        leader.reads.open = Some(ReadRound { index, reads });
        self.broadcast_heartbeat();
    }

    /// No other leader can have been elected: a quorum answered heartbeats that were sent
    /// so recently that it still ignores other candidates. Counted from when they were
    /// sent; and given up for the rest of the term once a TimeoutNow was sent, because
    /// voters do not ignore that campaign.
    pub fn holds_lease(&self) -> bool {
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

    /// A peer still followed this leader when it answered a heartbeat of this round.
    pub(crate) fn on_round_confirmed(&mut self, slot: usize, round: u64) {
        let Some(leader) = self.role.leader_mut() else { return };
        let peer: &mut Peer = &mut leader.peers[slot];
        if round > peer.round && round <= leader.reads.newest_round {
            peer.round = round;
            self.finish_round_if_confirmed();
        }
    }

    pub(crate) fn finish_round_if_confirmed(&mut self) {
        let own = self.config.id;
        let Some(leader) = self.role.leader() else { return };
        let newest_round = leader.reads.newest_round;
        if leader.reads.open.is_none() {
            return;
        }
        let round = |id| match leader.peer(id) {
            Some(peer) if id != own => peer.round,
            Some(_) => newest_round,
            None => 0,
        };
        if self.membership().quorum(round) < newest_round {
            return;
        }
        let round = self.role.leader_mut().and_then(|leader| leader.reads.open.take());
        if let Some(round) = round {
            self.serve(round.reads, round.index);
        }
    }

    fn serve(&mut self, reads: Vec<WaitingRead>, index: Index) {
        for read in reads {
            if read.from == self.config.id {
                self.out.rare().served.push((read.request, index));
            } else {
                self.send(read.from, Message::ReadReply(read.request, Ok(index)));
            }
        }
    }

    /// A former leader cannot confirm reads.
    pub(crate) fn refuse_reads(&mut self, reads: Reads) {
        let open = reads.open.into_iter().flat_map(|round| round.reads);
        for read in open.chain(reads.waiting) {
            let refusal = Refusal::NotLeader { leader: None };
            if read.from == self.config.id {
                self.out.rare().refused.push((read.request, refusal));
            } else {
                self.send(read.from, Message::ReadReply(read.request, Err(refusal)));
            }
        }
    }
}
