//! The rules about terms: what a newer or an older one means, which member leads the
//! current one, and how the next begins (thesis §3.3).
//!
//! Which member may start a term, and which one wins it, is defined in
//! [`election`](crate::election).

use crate::ids::NUMBER_MAX;
use crate::pack::pack_fields;
use crate::role::Role;
use crate::{
    AppendReply, Dropped, EntryId, Envelope, MemberId, Message, Raft, RoleKind, Term, VoteReply,
};

/// How far messages may raise this member's term. A message only has to name a term to make
/// its receiver enter it, so one message could use up all of them. No cluster reaches the
/// budget by elections: docs/membership.md has the arithmetic.
/// Shown by scenarios/hostile_term_jump_is_refused.txt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TermBudget {
    terms: u64,
    /// A term was refused, and no leader with a quorum was heard since: this member may be
    /// the one that is behind, so that its budget grows until it can follow.
    refused: bool,
}

pack_fields!(TermBudget { terms, refused });

impl TermBudget {
    /// As many terms as elections at every millisecond for 30 years.
    const FULL: u64 = 1 << 40;
    const PER_TICK: u64 = 1 << 24;
    /// Steps of this size cost nothing, so that ordinary elections leave no trace here.
    const FREE: u64 = 1 << 10;
    /// The first term of an empty member, whose cluster may be of any age.
    const FIRST: u64 = 1 << 60;

    pub(crate) const fn new() -> Self {
        Self { terms: Self::FULL, refused: false }
    }

    pub(crate) fn tick(&mut self) {
        if self.terms < Self::FULL {
            self.terms = (self.terms + Self::PER_TICK).min(Self::FULL);
        } else if self.refused {
            self.terms = (self.terms + Self::PER_TICK).min(NUMBER_MAX);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.terms == Self::FULL && !self.refused
    }

    fn allows(&self, from: Term, to: Term) -> bool {
        let limit = if from == 0 { Self::FIRST } else { self.terms.max(Self::FREE) };
        to - from <= limit
    }

    fn spend(&mut self, terms: u64) {
        if terms > Self::FREE {
            self.terms = self.terms.saturating_sub(terms);
        }
    }

    /// A quorum is in this member's term.
    pub(crate) fn on_quorum_heard(&mut self) {
        self.refused = false;
        self.terms = self.terms.min(Self::FULL);
    }
}

impl Raft {
    /// Refuses a term that no cluster reaches by elections.
    pub(crate) fn check_term(&mut self, envelope: &Envelope) -> Result<(), Dropped> {
        let Envelope { from, term, message, .. } = envelope;
        let (from, term, current) = (*from, *term, self.term);
        if term <= current || message.is_termless() || self.term_budget.allows(current, term) {
            return Ok(());
        }
        self.term_budget.refused = true;
        Err(Dropped::ImplausibleTerm { from, term, current })
    }

    /// A message has a newer term: this member adopts it, unless the message only asks
    /// about a possible election.
    pub(crate) fn on_newer_term(
        &mut self,
        from: MemberId,
        term: Term,
        message: &Message,
    ) -> Result<(), Dropped> {
        match message {
            // A live leader is not deposed by a member that was partitioned, or that was
            // removed without knowing it: neither the vote nor the term counts (thesis
            // §4.2.3).
            Message::PreVote(vote) | Message::Vote(vote) if !vote.forced && self.leader_alive() => {
                Err(Dropped::LeaderAlive { leader: self.leader })
            }
            Message::PreVote(_) | Message::PreVoteReply(VoteReply { granted: true, .. }) => Ok(()),
            Message::Append(_) | Message::Heartbeat(_) | Message::Snapshot(_) => {
                self.become_follower(term, Some(from));
                Ok(())
            }
            _ => {
                self.learn_of_term(term);
                Ok(())
            }
        }
    }

    /// There is a newer term without a known leader. The election timeout is not restarted:
    /// otherwise candidates that cannot win would delay the one that can, repeatedly.
    /// Shown by scenarios/election_losing_candidate_does_not_reset_timeout.txt.
    fn learn_of_term(&mut self, term: Term) {
        let (elapsed, timeout) = (self.timer.elapsed, self.timer.timeout);
        let restarts = self.role.is_leader() || self.config.etcd_compat.newer_term_restarts_timer;
        self.become_follower(term, None);
        if !restarts {
            (self.timer.elapsed, self.timer.timeout) = (elapsed, timeout);
        }
    }

    /// A message has an older term. Its sender gets a reply where it would otherwise stay
    /// in that term; replies of an older term are dropped.
    pub(crate) fn on_older_term(
        &mut self,
        from: MemberId,
        term: Term,
        message: &Message,
    ) -> Result<(), Dropped> {
        let etcd_compat = self.config.etcd_compat;
        match message {
            // A partitioned member may have raised its term: its leader, still in the old
            // term, must learn of the new one, or the two stay separated.
            // Shown by scenarios/checkquorum_higher_term_rejoins.txt.
            Message::Append(_) | Message::Heartbeat(_)
                if self.config.check_quorum
                    || self.config.pre_vote
                    || !etcd_compat.old_term_unanswered =>
            {
                let reply = Message::AppendReply(AppendReply::OldTerm);
                self.send_when_saved(from, self.term, reply);
            }
            // A pre-candidate with an older term learns the current one from the refusal.
            Message::PreVote(_) => {
                let reply = Message::PreVoteReply(self.vote_reply(false));
                self.send_when_saved(from, self.term, reply);
            }
            // A candidate may be unknown to all members that could tell it the current
            // term: they campaign under a membership without it. Then it would stay behind
            // forever. With a leader the candidate cannot win.
            // Shown by scenarios/election_stale_candidate_learns_the_term.txt.
            Message::Vote(vote) if self.leader.is_none() && !etcd_compat.old_votes_unanswered => {
                self.yield_to_newer_log(vote.last);
                let reply = Message::VoteReply(self.vote_reply(false));
                self.send_when_saved(from, self.term, reply);
            }
            // A confirmed result stays valid.
            Message::ReadReply(..) | Message::ProposeReply(..) => return Ok(()),
            _ => {}
        }
        Err(Dropped::OldTerm { term, current: self.term })
    }

    /// A candidate with a newer log cannot have this member's vote in this term. This
    /// member waits so that the candidate can try again: its own campaign would only raise
    /// the term that the candidate lacks.
    /// Shown by scenarios/election_stale_candidate_learns_the_term.txt.
    pub(crate) fn yield_to_newer_log(&mut self, last: EntryId) {
        let answered = !self.config.etcd_compat.old_votes_unanswered;
        if answered && !self.role.is_leader() && last > self.log.last() {
            self.timer.restart(&self.config);
        }
    }

    /// A message from the leader of this term.
    pub(crate) fn on_leader_contact(&mut self, from: MemberId) -> Result<(), Dropped> {
        if let Some(leader) = self.leader.filter(|leader| *leader != from) {
            return Err(Dropped::SecondLeader { from, leader });
        }
        if self.role.kind() != RoleKind::Follower {
            self.become_follower(self.term, Some(from));
        }
        self.on_known_leader_heard();
        self.set_leader(Some(from));
        Ok(())
    }

    #[inline]
    pub(crate) fn on_known_leader_heard(&mut self) {
        self.timer.reset();
        self.term_budget.on_quorum_heard();
        self.informed_by_vote = false;
        self.holds_newer_log = false;
        self.timer.lease_guard = self.config.lease_guard_ticks();
    }

    /// Enters a term, or the same one again, without a known leader.
    pub(crate) fn enter_term(&mut self, term: Term) {
        if self.term != term {
            self.term_budget.spend(term.saturating_sub(self.term));
            self.term = term;
            self.vote = None;
        }
        self.timer.restart(&self.config);
    }

    pub(crate) fn become_follower(&mut self, term: Term, leader: Option<MemberId>) {
        self.enter_term(term);
        self.set_role(Role::Follower);
        self.set_leader(leader);
    }
}
