//! The rules about terms: what a newer or an older one means, who leads the present
//! one, and how the next begins (thesis §3.3).
//!
//! Who may start one, and who wins it, stands in [`election`](crate::election).

use crate::role::Role;
use crate::{AppendReply, Dropped, EntryId, MemberId, Message, Raft, RoleKind, Term, VoteReply};

impl Raft {
    /// Somebody is in a newer term: so are we, unless the message says that the
    /// newer term is only being asked about.
    pub(crate) fn on_newer_term(
        &mut self,
        from: MemberId,
        term: Term,
        what: &Message,
    ) -> Result<(), Dropped> {
        match what {
            // A leader that was just heard from is not deposed by somebody who was
            // cut off, or removed and never told: neither vote nor term counts.
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

    /// There is a newer term, and nobody is known to lead it. That is no reason to wait
    /// longer than one did: else those who ask for votes and cannot win them would keep
    /// the one who can from standing, for as long as chance likes.
    /// Shown by scenarios/election_losing_candidate_does_not_reset_timeout.txt.
    fn learn_of_term(&mut self, term: Term) {
        let (elapsed, timeout) = (self.timer.elapsed, self.timer.timeout);
        let restarts = self.role.is_leader() || self.config.etcd_compat.newer_term_restarts_timer;
        self.become_follower(term, None);
        if !restarts {
            (self.timer.elapsed, self.timer.timeout) = (elapsed, timeout);
        }
    }

    /// Somebody is in an older term. Its questions are answered where silence would
    /// leave it stuck there; answers of an older term carry no news.
    pub(crate) fn on_older_term(
        &mut self,
        from: MemberId,
        term: Term,
        what: &Message,
    ) -> Result<(), Dropped> {
        let etcd_compat = self.config.etcd_compat;
        match what {
            // Who was cut off may have raised its term: its leader, still in the old
            // term, must hear of the new one, or the two never talk again.
            // Shown by scenarios/checkquorum_higher_term_rejoins.txt.
            Message::Append(_) | Message::Heartbeat(_)
                if self.config.check_quorum
                    || self.config.pre_vote
                    || !etcd_compat.old_term_silent =>
            {
                let reply = Message::AppendReply(AppendReply::OldTerm);
                self.send_when_saved(from, self.term, reply);
            }
            // A pre-candidate with an older term learns ours from the refusal.
            Message::PreVote(_) => {
                let reply = Message::PreVoteReply(self.vote_reply(false));
                self.send_when_saved(from, self.term, reply);
            }
            // A candidate may be known to nobody who could tell it how far terms have
            // gone: the others campaign under a membership without it. Then it would
            // stay behind them for ever. With a leader there is nothing to win.
            // Shown by scenarios/election_stale_candidate_learns_the_term.txt.
            Message::Vote(vote) if self.leader.is_none() && !etcd_compat.old_votes_unanswered => {
                self.give_way(vote.last);
                let reply = Message::VoteReply(self.vote_reply(false));
                self.send_when_saved(from, self.term, reply);
            }
            // What was confirmed stays confirmed.
            Message::ReadReply(..) | Message::ProposeReply(..) => return Ok(()),
            _ => {}
        }
        Err(Dropped::OldTerm { term, current: self.term })
    }

    /// Somebody with a newer log stands, and cannot have our vote this time. It gets the
    /// time to try again: our own campaign would only raise the term that it is behind.
    /// Shown by scenarios/election_stale_candidate_learns_the_term.txt.
    pub(crate) fn give_way(&mut self, last: EntryId) {
        let answered = !self.config.etcd_compat.old_votes_unanswered;
        if answered && !self.role.is_leader() && last > self.log.last() {
            self.timer.restart(&self.config);
        }
    }

    /// A leader of our term speaks.
    pub(crate) fn hear_leader(&mut self, from: MemberId) -> Result<(), Dropped> {
        if let Some(leader) = self.leader.filter(|leader| *leader != from) {
            return Err(Dropped::SecondLeader { from, leader });
        }
        if self.role.kind() != RoleKind::Follower {
            self.become_follower(self.term, Some(from));
        }
        self.timer.wait_again();
        self.taught = false;
        self.holds_newer_log = false;
        self.timer.loyal = self.config.loyal_ticks();
        self.set_leader(Some(from));
        Ok(())
    }

    /// Starts a term, or the same one again, with nobody leading it.
    pub(crate) fn enter_term(&mut self, term: Term) {
        if self.term != term {
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
