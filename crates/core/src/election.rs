//! Who leads: campaigning, asking first, granting votes, winning (thesis §3.4,
//! §3.6, §9.6).
//!
//! Owns the `Vote` and `PreVote` conversations. Knows nothing of how entries flow
//! once somebody has won; see [`replication`](crate::replication).

use bytes::Bytes;

use crate::membership::Count;
use crate::refusal::CampaignBar;
use crate::role::{Leader, Role, Tally};
use crate::saves::OwnVote;
use crate::{
    Dropped, EntryId, Envelope, MemberId, Message, Payload, Raft, ReadMode, RoleKind, Taken, Term,
    Vote, VoteReply, ids::NUMBER_MAX,
};

/// How an election begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Campaign {
    /// Ask whether it could be won.
    Pre,
    Real,
    /// The leader asked for it: no pre-vote, and nobody refuses for its sake.
    Forced,
}

impl Raft {
    pub(crate) fn on_campaign(&mut self) -> Result<Taken, Dropped> {
        self.campaign(if self.config.pre_vote { Campaign::Pre } else { Campaign::Real })
    }

    /// The only way into an election, by whatever door it was reached.
    pub(crate) fn campaign(&mut self, kind: Campaign) -> Result<Taken, Dropped> {
        if let Some(bar) = self.campaign_bar(kind) {
            return Err(Dropped::MayNotCampaign(bar));
        }
        self.ask_for_votes(kind);
        Ok(Taken::Done)
    }

    fn campaign_bar(&self, kind: Campaign) -> Option<CampaignBar> {
        if self.role.is_leader() {
            Some(CampaignBar::AlreadyLeader)
        } else if !self.membership().is_voter(self.config.id) {
            Some(CampaignBar::NotVoter)
        } else if self.installing.is_some() {
            Some(CampaignBar::SnapshotNotInstalled)
        } else if self.memberships.any_between(self.log.applying, self.log.commit) {
            // Votes would be counted by a membership that is no longer the newest
            // committed one; two such steps behind, two leaders are possible.
            // Shown by scenarios/membership_committed_not_applied_bars_campaign.txt.
            Some(CampaignBar::MembershipNotApplied)
        } else if self.timer.loyal > 0 && kind != Campaign::Forced {
            // Shown by scenarios/read_lease_and_a_campaign_by_request.txt.
            Some(CampaignBar::LeaderHoldsLease)
        } else if self.term + 2 >= NUMBER_MAX {
            Some(CampaignBar::TermsExhausted)
        } else {
            None
        }
    }

    /// Ticks alone may lead to a campaign. Cheap: asked when the timeout is over.
    pub(crate) fn is_promotable(&self) -> bool {
        self.installing.is_none() && self.membership().is_voter(self.config.id)
    }

    fn ask_for_votes(&mut self, kind: Campaign) {
        let term = self.term + 1;
        if kind == Campaign::Pre {
            // Neither term nor vote changes, and the clock runs on.
            self.set_role(Role::PreCandidate(Tally::default()));
        } else {
            self.enter_term(term);
            self.vote = Some(self.config.id);
            self.set_role(Role::Candidate(Tally::default()));
        }
        self.set_leader(None);
        let vote = Vote { last: self.log.last(), forced: kind == Campaign::Forced };
        for to in self.membership().voters().iter() {
            if to == self.config.id {
                self.promise_own_vote(OwnVote { term, pre: kind == Campaign::Pre });
                continue;
            }
            let from = self.config.id;
            let message =
                if kind == Campaign::Pre { Message::PreVote(vote) } else { Message::Vote(vote) };
            self.out.send.push(Envelope { from, to, term, message });
        }
    }

    /// A candidate's own vote is durable.
    pub(crate) fn count_own_vote(&mut self, vote: OwnVote) {
        let current = if vote.pre { self.term + 1 } else { self.term };
        if vote.term == current {
            // It may be over by now: then the vote counts nowhere.
            let _ = self.on_vote_reply(self.config.id, vote.pre, true);
        }
    }

    /// A candidate asks for our vote. Newer terms are ours by now, older ones are
    /// dropped, and who has just heard from a leader does not get here.
    pub(crate) fn on_vote(&mut self, from: MemberId, vote: Vote) -> Result<Taken, Dropped> {
        let free = self.vote.map_or(self.leader.is_none(), |member| member == from);
        let granted = free && self.is_up_to_date(vote.last);
        if granted {
            self.vote = Some(from);
            self.timer.elapsed = 0;
        }
        // A yes is a promise that must outlive a crash: it rides in the save that
        // records it. A learner answers as well: a voter asks it because it is one
        // in a membership that has not reached it yet.
        // Shown by scenarios/learner_must_vote_when_asked.txt.
        self.send_when_saved(from, self.term, Message::VoteReply(VoteReply { granted }));
        Ok(Taken::Done)
    }

    /// "Would you vote for me?" The answer binds nobody.
    pub(crate) fn on_pre_vote(
        &mut self,
        from: MemberId,
        term: Term,
        vote: Vote,
    ) -> Result<Taken, Dropped> {
        let free =
            term > self.term || self.vote.map_or(self.leader.is_none(), |member| member == from);
        let granted = free && self.is_up_to_date(vote.last);
        // A yes repeats the term that was asked about; a no tells our own, from
        // which a candidate that is behind learns.
        let term = if granted { term } else { self.term };
        self.send_when_saved(from, term, Message::PreVoteReply(VoteReply { granted }));
        Ok(Taken::Done)
    }

    /// Entries compare by term, then index: a longer log of an older term may lack
    /// what a newer term committed.
    /// Shown by scenarios/election_longer_stale_log_loses.txt.
    fn is_up_to_date(&self, last: EntryId) -> bool {
        last >= self.log.last()
    }

    /// A leader was heard from less than an election timeout ago, or, after a
    /// start with leader leases, may have been.
    pub(crate) fn leader_alive(&self) -> bool {
        let heard = self.config.check_quorum
            && self.leader.is_some()
            && self.timer.elapsed < self.config.election_ticks;
        heard || self.timer.loyal > 0
    }

    pub(crate) fn on_vote_reply(
        &mut self,
        from: MemberId,
        pre: bool,
        granted: bool,
    ) -> Result<Taken, Dropped> {
        let wanted = if pre { RoleKind::PreCandidate } else { RoleKind::Candidate };
        if self.role.kind() != wanted {
            return Err(Dropped::Unasked); // Won or lost already: no news.
        }
        if let Some(tally) = self.role.tally_mut() {
            tally.record(from, granted);
        }
        match self.count_votes() {
            Count::Won if pre => {
                // Through the same door: what bars a campaign may have come since.
                if self.campaign(Campaign::Real).is_err() {
                    self.become_follower(self.term, None);
                }
            }
            Count::Won => self.become_leader(),
            Count::Lost => self.become_follower(self.term, None),
            Count::Open => {}
        }
        Ok(Taken::Done)
    }

    fn count_votes(&self) -> Count {
        let Some(tally) = self.role.tally() else { return Count::Open };
        self.membership().count(|id| tally.reply(id))
    }

    fn become_leader(&mut self) {
        self.enter_term(self.term);
        let last = self.log.last().index;
        let leader = Leader::new(&self.config, self.membership(), last, self.log.saved());
        self.set_role(Role::Leader(Box::new(leader)));
        self.set_leader(Some(self.config.id));
        // Entries of older terms become committed only together with one of this.
        // Shown by scenarios/commit_old_term_needs_own_term.txt.
        self.append_own(Payload::Command(Bytes::new()));
        self.broadcast_append();
    }

    /// Stops believing in the leader, without a new term: the next candidate that
    /// asks may win.
    pub(crate) fn on_forget_leader(&mut self) -> Result<Taken, Dropped> {
        if matches!(self.config.reads, ReadMode::LeaderLease { .. }) {
            return Err(Dropped::LeaseReads);
        }
        if self.role.kind() != RoleKind::Follower || self.leader.is_none() {
            return Err(Dropped::NothingToDo);
        }
        self.set_leader(None);
        Ok(Taken::Done)
    }
}
