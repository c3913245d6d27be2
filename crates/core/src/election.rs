//! Who leads: campaigning, asking first, granting votes, winning (thesis §3.4,
//! §3.6, §9.6).
//!
//! Owns the `Vote` and `PreVote` conversations. Knows nothing of how entries flow
//! once somebody has won; see [`replication`](crate::replication).

use bytes::Bytes;

use crate::membership::VoteResult;
use crate::refusal::CampaignBlocked;
use crate::replay::Replay;
use crate::role::{Leader, Role, Tally};
use crate::saves::OwnVote;
use crate::{
    Accepted, Activation, Dropped, EntryId, MemberId, Message, Payload, Raft, ReadMode, RoleKind,
    Term, Vote, VoteReply, ids::NUMBER_MAX,
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
    pub(crate) fn on_campaign(&mut self) -> Result<Accepted, Dropped> {
        self.campaign(if self.config.pre_vote { Campaign::Pre } else { Campaign::Real })
    }

    /// The only way into an election, by whatever door it was reached.
    pub(crate) fn campaign(&mut self, kind: Campaign) -> Result<Accepted, Dropped> {
        if let Some(bar) = self.campaign_bar(kind) {
            return Err(Dropped::MayNotCampaign(bar));
        }
        self.ask_for_votes(kind);
        Ok(Accepted::Done)
    }

    fn campaign_bar(&self, kind: Campaign) -> Option<CampaignBlocked> {
        if self.role.is_leader() {
            Some(CampaignBlocked::AlreadyLeader)
        } else if !self.is_itself() {
            Some(CampaignBlocked::IdentityMismatch)
        } else if !self.may_stand() {
            Some(CampaignBlocked::NotVoter)
        } else if !self.has_joined() {
            Some(CampaignBlocked::NotJoinedYet)
        } else if self.installing.is_some() {
            Some(CampaignBlocked::SnapshotNotInstalled)
        } else if self.config.activation == Activation::OnApply
            && self.memberships.any_between(self.log.applying, self.log.commit)
        {
            // Votes would be counted by a membership that is no longer the newest
            // committed one; two such steps behind, two leaders are possible.
            // Shown by scenarios/membership_unapplied_change_blocks_campaign.txt.
            Some(CampaignBlocked::MembershipNotApplied)
        } else if self.timer.loyal > 0 && kind != Campaign::Forced {
            // Shown by scenarios/read_lease_blocks_requested_campaign.txt.
            Some(CampaignBlocked::LeaderHoldsLease)
        } else if self.term + 2 >= NUMBER_MAX {
            Some(CampaignBlocked::TermsExhausted)
        } else {
            None
        }
    }

    /// Ticks alone may lead to a campaign. Cheap: asked when the timeout is over.
    pub(crate) fn is_promotable(&self) -> bool {
        self.installing.is_none() && self.may_stand()
    }

    /// A voter may stand; and so may whoever refused a vote only because its own log
    /// is newer: with a membership that counts before it is committed, the only one
    /// with the newest log may be a learner in it. Its own vote counts only where it
    /// is a voter.
    /// Shown by scenarios/onappend_learner_with_the_newest_log_campaigns.txt.
    fn may_stand(&self) -> bool {
        self.is_itself() && self.may_stand_by_role()
    }

    /// The membership means this member by its id, and not another disk, which has
    /// promised something else.
    fn is_itself(&self) -> bool {
        let (id, membership) = (self.config.id, self.membership());
        !membership.contains(id) || self.config.is_known_as(membership.identity(id))
    }

    fn may_stand_by_role(&self) -> bool {
        self.membership().is_voter(self.config.id)
            || self.config.activation == Activation::OnAppend
                && self.holds_newer_log
                && !self.membership().is_empty()
    }

    /// The entry that added this member is here, or it is a first member. Before that,
    /// what it reads may be about somebody else who had its id.
    /// Shown by scenarios/identity_joiner_does_not_campaign_early.txt.
    fn has_joined(&self) -> bool {
        match self.config.activation {
            Activation::OnApply => self.log.commit >= self.config.joined_at,
            Activation::OnAppend => self.log.last().index >= self.config.joined_at,
        }
    }

    /// The last membership known to be committed, for others to learn.
    fn committed_membership(&self) -> EntryId {
        if self.config.liveness.votes_tell_commit {
            self.memberships.counts(self.log.commit).id
        } else {
            EntryId::ZERO
        }
    }

    pub(crate) fn vote_reply(&self, granted: bool) -> VoteReply {
        VoteReply { granted, committed: self.committed_membership() }
    }

    /// Somebody knows this membership to be committed. If we hold that very entry,
    /// so do we now; our term is not touched. A candidate starts over: it counted by
    /// an older membership.
    /// Shown by scenarios/liveness_joint_promoted_member_learns_by_votes.txt.
    pub(crate) fn learn_commit(&mut self, id: EntryId) {
        let useful = self.config.liveness.votes_tell_commit
            && !self.role.is_leader()
            && id.index > self.log.commit
            && self.log.holds(id);
        if !useful {
            return;
        }
        self.commit_to(id.index);
        if self.config.activation == Activation::OnAppend {
            return; // It counted already, and so did the votes of a candidate.
        }
        self.taught = true;
        if self.role.kind() != RoleKind::Follower {
            self.become_follower(self.term, None);
        }
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
        let vote = Vote {
            last: self.log.last(),
            forced: kind == Campaign::Forced,
            committed: self.committed_membership(),
        };
        for to in self.membership().voters().iter() {
            if to == self.config.id {
                self.promise_own_vote(OwnVote { term, pre: kind == Campaign::Pre });
                continue;
            }
            if kind == Campaign::Pre {
                self.out.send.push(self.config.envelope(to, term, Message::PreVote(vote)));
            } else if self.config.etcd_compat.every_reply_waits {
                self.send(to, Message::Vote(vote));
            } else {
                // Not before the disk knows the term and the log it speaks of: after a
                // crash it could ask again in the same term with less, and the answers
                // to the first question would count.
                // Shown by scenarios/save_candidate_restarts_with_less.txt.
                self.send_when_saved(to, term, Message::Vote(vote));
            }
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
    pub(crate) fn on_vote(&mut self, from: MemberId, vote: Vote) -> Result<Accepted, Dropped> {
        let free = self.vote.map_or(self.leader.is_none(), |member| member == from);
        let granted = free && self.is_up_to_date(vote.last);
        if granted {
            self.vote = Some(from);
            self.timer.wait_again();
        } else {
            self.give_way(vote.last);
        }
        self.note_refusal(free, granted);
        // A yes is a promise that must outlive a crash: it rides in the save that
        // records it. A learner answers as well: a voter asks it because it is one
        // in a membership that has not reached it yet.
        // Shown by scenarios/learner_must_vote_when_asked.txt.
        let reply = Message::VoteReply(self.vote_reply(granted));
        self.send_when_saved(from, self.term, reply);
        Ok(Accepted::Done)
    }

    /// "Would you vote for me?" The answer binds nobody.
    pub(crate) fn on_pre_vote(
        &mut self,
        from: MemberId,
        term: Term,
        vote: Vote,
    ) -> Result<Accepted, Dropped> {
        let free =
            term > self.term || self.vote.map_or(self.leader.is_none(), |member| member == from);
        let granted = free && self.is_up_to_date(vote.last);
        self.note_refusal(free, granted);
        // A yes repeats the term that was asked about; a no tells our own, from
        // which a candidate that is behind learns.
        let term = if granted { term } else { self.term };
        let reply = Message::PreVoteReply(self.vote_reply(granted));
        self.send_when_saved(from, term, reply);
        Ok(Accepted::Done)
    }

    /// Who would have voted, but for its own newer log, gains the right to stand, until
    /// a leader is heard.
    fn note_refusal(&mut self, free: bool, granted: bool) {
        if free && !granted {
            self.holds_newer_log = true;
        }
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
    ) -> Result<Accepted, Dropped> {
        let wanted = if pre { RoleKind::PreCandidate } else { RoleKind::Candidate };
        if self.role.kind() != wanted {
            return Err(Dropped::Unsolicited); // Won or lost already: no news.
        }
        if let Some(tally) = self.role.tally_mut() {
            tally.record(from, granted);
        }
        match self.count_votes() {
            VoteResult::Won if pre => {
                // Through the same door: what bars a campaign may have come since.
                if self.campaign(Campaign::Real).is_err() {
                    self.become_follower(self.term, None);
                }
            }
            VoteResult::Won => self.become_leader(),
            VoteResult::Lost => self.become_follower(self.term, None),
            VoteResult::Pending => {}
        }
        Ok(Accepted::Done)
    }

    fn count_votes(&self) -> VoteResult {
        let Some(tally) = self.role.tally() else { return VoteResult::Pending };
        self.membership().count(|id| tally.reply(id))
    }

    fn become_leader(&mut self) {
        self.enter_term(self.term);
        let last = self.log.last().index;
        let leader = Leader::new(&self.config, self.membership(), last, self.log.saved());
        self.replay = Replay::open(self.term);
        self.set_role(Role::Leader(Box::new(leader)));
        self.set_leader(Some(self.config.id));
        self.on_own_commit_saved(self.saves.durable_commit);
        // Entries of older terms become committed only together with one of this.
        // Shown by scenarios/commit_old_term_needs_own_term.txt.
        self.append_own(Payload::Command(Bytes::new()));
        self.broadcast_append();
    }

    /// Stops believing in the leader, without a new term: the next candidate that
    /// asks may win.
    pub(crate) fn on_forget_leader(&mut self) -> Result<Accepted, Dropped> {
        if matches!(self.config.reads, ReadMode::LeaderLease { .. }) {
            return Err(Dropped::LeaseReads);
        }
        if self.role.kind() != RoleKind::Follower || self.leader.is_none() {
            return Err(Dropped::NothingToDo);
        }
        self.set_leader(None);
        Ok(Accepted::Done)
    }

    /// The leader's process may have ended. Others will have noticed as well: a short draw
    /// keeps them apart, and is long enough to hear a leader that lives.
    /// Shown by scenarios/hint_lost_connection_elects_soon.txt.
    pub(crate) fn on_connection_lost(&mut self, peer: MemberId) -> Result<Accepted, Dropped> {
        if matches!(self.config.reads, ReadMode::LeaderLease { .. }) {
            return Err(Dropped::LeaseReads);
        }
        let asks_first = self.config.pre_vote && self.config.check_quorum;
        if !asks_first {
            return Err(Dropped::NeedsPreVote);
        }
        if self.role.kind() != RoleKind::Follower || self.leader != Some(peer) {
            return Err(Dropped::NothingToDo);
        }
        self.set_leader(None);
        self.timer.hurry(&self.config);
        Ok(Accepted::Done)
    }
}
