//! Leader election: campaigns, pre-votes, votes, and winning (thesis §3.4, §3.6, §9.6).
//!
//! Handles `Vote` and `PreVote` and their replies. What a leader does after it has won is
//! in [`replication`](crate::replication).

use bytes::Bytes;

use crate::duplicates::DuplicateFilter;
use crate::membership::VoteResult;
use crate::refusal::CampaignBlocked;
use crate::role::{Leader, Role};
use crate::saves::OwnVote;
use crate::{
    Accepted, Activation, Dropped, EntryId, MemberId, Message, Payload, Raft, ReadMode, RoleKind,
    Term, Vote, VoteReply, ids::NUMBER_MAX,
};

/// How an election begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Campaign {
    /// A pre-vote: check whether the election could be won.
    Pre,
    Real,
    /// The leader asked for it: no pre-vote, and voters do not refuse in favour of that
    /// leader.
    Forced,
}

impl Raft {
    pub(crate) fn on_campaign_requested(&mut self) -> Result<Accepted, Dropped> {
        if self.campaign_blocked(Campaign::Real).is_none() && self.stall_forbids_campaign(true) {
            return Err(Dropped::MayNotCampaign(CampaignBlocked::Stalled));
        }
        self.on_campaign()
    }

    pub(crate) fn on_campaign(&mut self) -> Result<Accepted, Dropped> {
        self.campaign(if self.config.pre_vote { Campaign::Pre } else { Campaign::Real })
    }

    /// The only way into an election, whatever caused it.
    pub(crate) fn campaign(&mut self, kind: Campaign) -> Result<Accepted, Dropped> {
        if let Some(reason) = self.campaign_blocked(kind) {
            return Err(Dropped::MayNotCampaign(reason));
        }
        self.ask_for_votes(kind);
        Ok(Accepted::Done)
    }

    fn campaign_blocked(&self, kind: Campaign) -> Option<CampaignBlocked> {
        if self.role.is_leader() {
            Some(CampaignBlocked::AlreadyLeader)
        } else if !self.identity_matches() {
            Some(CampaignBlocked::IdentityMismatch)
        } else if !self.may_campaign() {
            Some(CampaignBlocked::NotVoter)
        } else if !self.has_joined() {
            Some(CampaignBlocked::NotJoinedYet)
        } else if self.installing.is_some() {
            Some(CampaignBlocked::SnapshotNotSaved)
        } else if self.config.activation == Activation::OnApply
            && self.memberships.any_between(self.log.applying, self.log.commit)
        {
            // Votes would be counted by a membership that is not the newest committed one;
            // two such steps behind, two leaders are possible.
            // Shown by scenarios/membership_unapplied_change_blocks_campaign.txt.
            Some(CampaignBlocked::MembershipNotApplied)
        } else if self.timer.lease_guard > 0 && kind != Campaign::Forced {
            // Shown by scenarios/read_lease_blocks_requested_campaign.txt.
            Some(CampaignBlocked::LeaderHoldsLease)
        } else if self.lost_log.is_some() {
            Some(CampaignBlocked::LogLost)
        } else if self.stall_forbids_campaign(kind == Campaign::Forced) {
            Some(CampaignBlocked::Stalled)
        } else if self.term + 2 >= NUMBER_MAX {
            Some(CampaignBlocked::TermsExhausted)
        } else {
            None
        }
    }

    /// Whether the election timeout may start a campaign. Cheap; asked when the timeout has
    /// ended.
    pub(crate) fn is_promotable(&self) -> bool {
        self.installing.is_none() && self.may_campaign() && !self.stall_delays_campaign()
    }

    /// This member needs no vote but its own: no other member has to answer.
    /// Shown by scenarios/election_sole_voter_does_not_wait.txt.
    pub(crate) fn is_sole_voter(&self) -> bool {
        self.role.kind() == RoleKind::Follower
            && self.leader.is_none()
            && !self.config.etcd_compat.sole_voter_waits
            && self.membership().is_single()
            && self.membership().is_voter(self.config.id)
    }

    /// A voter may campaign, and so may a member that refused a vote only because its own
    /// log is newer: on append, the only member with the newest log may be a learner in it.
    /// Its own vote counts only where it is a voter.
    /// Shown by scenarios/onappend_learner_with_the_newest_log_campaigns.txt.
    fn may_campaign(&self) -> bool {
        self.identity_matches() && self.may_campaign_by_role()
    }

    /// The membership records this member under its id, and not another disk with other
    /// promises.
    fn identity_matches(&self) -> bool {
        let (id, membership) = (self.config.id, self.membership());
        !membership.contains(id) || self.config.is_known_as(membership.identity(id))
    }

    fn may_campaign_by_role(&self) -> bool {
        self.membership().is_voter(self.config.id)
            || self.config.activation == Activation::OnAppend
                && self.holds_newer_log
                && !self.membership().is_empty()
    }

    /// This member holds the entry that added it, or is a first member. Earlier entries may
    /// be about another member that had its id.
    /// Shown by scenarios/identity_joiner_does_not_campaign_early.txt.
    fn has_joined(&self) -> bool {
        match self.config.activation {
            Activation::OnApply => self.log.commit >= self.config.joined_at,
            Activation::OnAppend => self.log.last().index >= self.config.joined_at,
        }
    }

    /// The last membership known to be committed, for the receivers of votes and replies.
    fn committed_membership(&self) -> EntryId {
        if self.config.liveness.votes_tell_commit {
            self.memberships.at(self.log.commit).id
        } else {
            EntryId::ZERO
        }
    }

    pub(crate) fn vote_reply(&self, granted: bool) -> VoteReply {
        VoteReply { granted, committed: self.committed_membership() }
    }

    /// The sender knows this membership to be committed. If this member holds the same
    /// entry, it is committed here too; the term does not change. A candidate starts over,
    /// because it counted votes by an older membership.
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
            return; // It counted already, also for the votes of a candidate.
        }
        self.informed_by_vote = true;
        if self.role.kind() != RoleKind::Follower {
            self.become_follower(self.term, None);
        }
    }

    fn ask_for_votes(&mut self, kind: Campaign) {
        let term = self.term + 1;
        if kind == Campaign::Pre {
            // Neither the term nor the vote changes, and the timer continues.
            self.set_role(Role::PreCandidate(Box::default()));
        } else {
            self.enter_term(term);
            self.vote = Some(self.config.id);
            self.set_role(Role::Candidate(Box::default()));
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
                // Not before the disk holds the term and the log that the request names:
                // after a crash this member could request votes in the same term with less,
                // and the replies to the first request would count.
                // Shown by scenarios/save_candidate_restarts_with_less.txt.
                self.send_when_saved(to, term, Message::Vote(vote));
            }
        }
    }

    /// A candidate's own vote is durable.
    pub(crate) fn count_own_vote(&mut self, vote: OwnVote) {
        let current = if vote.pre { self.term + 1 } else { self.term };
        if vote.term == current {
            // The election may be over by now: then the vote has no effect.
            let _ = self.on_vote_reply(self.config.id, vote.pre, true);
        }
    }

    /// A candidate requests this member's vote. Newer terms are adopted already, older ones
    /// dropped, and a member that has just heard from a leader does not get here.
    pub(crate) fn on_vote(&mut self, from: MemberId, vote: Vote) -> Result<Accepted, Dropped> {
        let free = self.vote.map_or(self.leader.is_none(), |member| member == from);
        let granted = free && self.is_up_to_date(vote.last);
        if granted {
            self.vote = Some(from);
            self.timer.reset();
        } else {
            self.yield_to_newer_log(vote.last);
        }
        self.note_refusal(free, granted);
        // A granted vote is a promise that must survive a crash: it is sent with the save
        // that records it. A learner replies as well: the candidate asks it because it is a
        // voter in a membership that has not arrived here yet.
        // Shown by scenarios/learner_must_vote_when_asked.txt.
        let reply = Message::VoteReply(self.vote_reply(granted));
        self.send_when_saved(from, self.term, reply);
        Ok(Accepted::Done)
    }

    /// Replies to a pre-vote. The reply is not a promise.
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
        // A granted pre-vote repeats the term of the request; a refusal carries this
        // member's own term, from which a lagging candidate learns.
        let term = if granted { term } else { self.term };
        let reply = Message::PreVoteReply(self.vote_reply(granted));
        self.send_when_saved(from, term, reply);
        Ok(Accepted::Done)
    }

    /// A member that refuses only because of its own newer log may campaign until it hears
    /// a leader.
    fn note_refusal(&mut self, free: bool, granted: bool) {
        if free && !granted {
            self.holds_newer_log = true;
        }
    }

    /// Logs are compared by the term of their last entry, then its index: a longer log of
    /// an older term may lack what a newer term committed (thesis §3.6.1).
    /// Shown by scenarios/election_longer_stale_log_loses.txt.
    fn is_up_to_date(&self, last: EntryId) -> bool {
        last >= self.log.last()
    }

    /// A leader was heard less than an election timeout ago, or, after a start with leader
    /// leases, may have been.
    pub(crate) fn leader_alive(&self) -> bool {
        let heard = self.config.check_quorum
            && self.leader.is_some()
            && self.timer.elapsed < self.config.election_ticks;
        heard || self.timer.lease_guard > 0
    }

    pub(crate) fn on_vote_reply(
        &mut self,
        from: MemberId,
        pre: bool,
        granted: bool,
    ) -> Result<Accepted, Dropped> {
        let expected_role = if pre { RoleKind::PreCandidate } else { RoleKind::Candidate };
        if self.role.kind() != expected_role {
            return Err(Dropped::Unsolicited); // Won or lost already.
        }
        if let Some(tally) = self.role.tally_mut() {
            tally.record(from, granted);
        }
        match self.count_votes() {
            VoteResult::Won if pre => {
                // Checked again: a reason against a campaign may have appeared since.
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
        self.duplicates = DuplicateFilter::for_leader(self.term);
        self.set_role(Role::Leader(Box::new(leader)));
        self.set_leader(Some(self.config.id));
        self.on_own_commit_saved(self.saves.durable_commit);
        // Entries of older terms are committed only together with one of this term (thesis
        // §3.6.2).
        // Shown by scenarios/commit_old_term_needs_own_term.txt.
        self.append_own(Payload::Command(Bytes::new()));
        self.broadcast_append();
    }

    /// Stops following the leader without a new term: the next candidate may win.
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

    /// The leader's process may have ended. Other members will have noticed as well: they
    /// campaign one after the other, the first one with the next tick. While the leader lives, members
    /// that hear it refuse.
    /// Shown by scenarios/hint_lost_connection_elects_soon.txt,
    /// scenarios/hint_followers_campaign_in_turn.txt and
    /// scenarios/hint_highest_priority_campaigns_first.txt.
    pub(crate) fn on_connection_lost(&mut self, peer: MemberId) -> Result<Accepted, Dropped> {
        if matches!(self.config.reads, ReadMode::LeaderLease { .. }) {
            return Err(Dropped::LeaseReads);
        }
        let can_verify = self.config.pre_vote && self.config.check_quorum;
        if !can_verify {
            return Err(Dropped::NeedsPreVote);
        }
        if self.role.kind() != RoleKind::Follower || self.leader != Some(peer) {
            return Err(Dropped::NothingToDo);
        }
        self.set_leader(None);
        self.timer.set_early_timeout(self.place_in_row(peer));
        Ok(Accepted::Done)
    }

    /// How many members campaign before this one when this leader is lost: those of higher
    /// priority, as far as this member can tell from its own, and of equal ones those with lower ids.
    fn place_in_row(&self, leader: MemberId) -> u32 {
        let voters = self.membership().voters();
        let own = self.config.id;
        let before = voters.iter().filter(|id| *id < own && *id != leader).count() as u32;
        let row = voters.len() as u32;
        self.config.priority_delay_ticks().saturating_mul(row).saturating_add(before)
    }
}
