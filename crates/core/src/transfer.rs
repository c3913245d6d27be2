//! Leadership transfer (thesis §3.10).
//!
//! The leader stops accepting proposals, brings the target up to date, and asks it to
//! campaign at once. If the target does not take over within an election timeout, the
//! leader continues.

use crate::election::Campaign;
use crate::event::AbortReason;
use crate::refusal::CampaignBlocked;
use crate::{Accepted, Dropped, Event, MemberId, Message, Raft, Refusal, RoleKind, Term};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Transfer {
    pub(crate) to: MemberId,
}

/// A leader's request to campaign that arrived before the newest committed membership was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestedCampaign {
    from: MemberId,
    term: Term,
}

const NOT_APPLIED_YET: Result<Accepted, Dropped> =
    Err(Dropped::MayNotCampaign(CampaignBlocked::MembershipNotApplied));

impl Raft {
    pub(crate) fn on_transfer(&mut self, to: MemberId) -> Result<Accepted, Dropped> {
        let last = self.log.last().index;
        let is_voter = self.membership().is_voter(to);
        let Some(leader) = self.role.leader_mut() else { return self.forward_transfer(to) };
        let Some(slot) = leader.slot(to).filter(|_| is_voter) else {
            return Err(Refusal::TargetNotVoter { to }.into());
        };
        if leader.transfer.is_some_and(|open| open.to == to) {
            return Err(Dropped::NothingToDo);
        }
        if leader.peers[slot].stalled.any() {
            return Err(Refusal::TargetStalled { to }.into());
        }
        let caught_up = leader.peers[slot].progress.matched == last;
        let aborted = self.abort_transfer(AbortReason::Replaced);
        if to == self.config.id {
            if !aborted {
                return Err(Dropped::NothingToDo);
            }
            // What the transfer delayed is due again.
            // Shown by scenarios/joint_left_after_aborted_transfer.txt.
            self.membership_work_due = true;
            self.leave_joint_due = true;
            return Ok(Accepted::Done);
        }
        // The transfer has one election timeout from now.
        self.timer.elapsed = 0;
        if let Some(leader) = self.role.leader_mut() {
            leader.transfer = Some(Transfer { to });
        }
        self.out.rare().events.push(Event::TransferBegan { to });
        if caught_up {
            self.send_timeout_now(to);
        } else {
            self.send_append(slot);
        }
        Ok(Accepted::Done)
    }

    fn forward_transfer(&mut self, to: MemberId) -> Result<Accepted, Dropped> {
        match self.leader {
            Some(leader) if self.role.kind() == RoleKind::Follower => {
                self.send(leader, Message::Transfer(to));
                Ok(Accepted::Forwarded(leader))
            }
            _ => Err(self.not_leader().into()),
        }
    }

    /// A peer made progress; the target may be up to date now.
    pub(crate) fn on_transfer_progress(&mut self, id: MemberId) {
        let last = self.log.last().index;
        let Some(leader) = self.role.leader() else { return };
        let target = leader.transfer.filter(|open| open.to == id);
        if let Some(target) = target
            && leader.peer(id).is_some_and(|peer| peer.progress.matched == last)
        {
            self.send_timeout_now(target.to);
        }
    }

    fn send_timeout_now(&mut self, to: MemberId) {
        if let Some(leader) = self.role.leader_mut() {
            leader.lease_given_up = true;
        }
        self.send(to, Message::TimeoutNow);
    }

    /// The leader asks this member to take over.
    pub(crate) fn on_timeout_now(&mut self, from: MemberId) -> Result<Accepted, Dropped> {
        if self.role.kind() != RoleKind::Follower {
            return Err(Dropped::NotForRole);
        }
        if self.leader.is_some_and(|leader| leader != from) {
            return Err(Dropped::Unsolicited); // Not from the leader of this term.
        }
        // The leader asked for this campaign, so no pre-vote is needed.
        let campaign = self.campaign(Campaign::Forced);
        if campaign == NOT_APPLIED_YET && !self.config.etcd_compat.early_timeout_now_dropped {
            self.requested_campaign = Some(Box::new(RequestedCampaign { from, term: self.term }));
            return Ok(Accepted::Done);
        }
        campaign
    }

    /// Starts the campaign that the leader asked for, once the committed membership counts here.
    /// A leader that leaves sends the commit index and the request together: a successor that
    /// dropped the request would leave the cluster without a leader for an election timeout.
    /// Shown by scenarios/leaving_leader_request_waits_for_apply.txt.
    pub(crate) fn campaign_if_requested(&mut self) {
        let Some(RequestedCampaign { from, term }) = self.requested_campaign.as_deref().copied()
        else {
            return;
        };
        let is_current = term == self.term
            && self.role.kind() == RoleKind::Follower
            && self.leader.is_none_or(|leader| leader == from);
        if !is_current || self.campaign(Campaign::Forced) != NOT_APPLIED_YET {
            self.requested_campaign = None;
        }
    }

    pub(crate) fn on_transfer_timeout(&mut self) {
        if self.abort_transfer(AbortReason::TimedOut) {
            self.membership_work_due = true;
            self.leave_joint_due = true;
        }
    }

    pub(crate) fn abort_transfer_if_target_left(&mut self) {
        let target = self.role.leader().and_then(|leader| leader.transfer);
        if target.is_some_and(|target| !self.membership().is_voter(target.to)) {
            self.abort_transfer(AbortReason::TargetLeft);
        }
    }

    fn abort_transfer(&mut self, reason: AbortReason) -> bool {
        let Some(open) = self.role.leader_mut().and_then(|leader| leader.transfer.take()) else {
            return false;
        };
        self.out.rare().events.push(Event::TransferAborted { to: open.to, reason });
        true
    }
}
