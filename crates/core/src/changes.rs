//! Proposals: accepting commands and membership changes into the log, and switching to a
//! new active membership (thesis §4).
//!
//! Both use the same path. A change is additionally resolved and checked before it is
//! logged, and only one may be in progress.

use std::sync::Arc;

use bytes::Bytes;

use crate::membership::history::{ActiveMembership, LoggedMembership};
use crate::membership::{Change, ChangeKind, ChangeRefusal, GoalStep, LoggedChange, Membership};
use crate::role::Role;
use crate::{
    Accepted, Activation, Dropped, Entry, EntryId, Envelope, Event, MemberId, Message, Payload,
    Proposal, Raft, Refusal, RequestId, Term,
};

impl Raft {
    pub(crate) fn on_command(
        &mut self,
        request: RequestId,
        command: Bytes,
    ) -> Result<Accepted, Dropped> {
        if !self.role.is_leader() {
            return self.forward_proposal(request, Proposal::Command(command));
        }
        Ok(Accepted::Logged(self.propose(Payload::Command(command))?))
    }

    pub(crate) fn on_change(
        &mut self,
        request: RequestId,
        change: Change,
    ) -> Result<Accepted, Dropped> {
        if !self.role.is_leader() {
            return self.forward_proposal(request, Proposal::Change(Box::new(change)));
        }
        Ok(Accepted::Logged(self.propose_change(change)?))
    }

    fn forward_proposal(
        &mut self,
        request: RequestId,
        proposal: Proposal,
    ) -> Result<Accepted, Dropped> {
        match self.leader {
            Some(leader) if self.config.forward_proposals => {
                self.send(leader, Message::Propose(request, proposal));
                Ok(Accepted::Forwarded(leader))
            }
            _ => Err(self.not_leader().into()),
        }
    }

    /// A follower forwarded a proposal.
    pub(crate) fn on_forwarded(
        &mut self,
        from: MemberId,
        term: Term,
        request: RequestId,
        proposal: Proposal,
    ) -> Result<Accepted, Dropped> {
        let silent = self.config.etcd_compat.forwards_unanswered;
        if let (Some(leader), true) = (self.leader.filter(|_| !self.role.is_leader()), silent) {
            // With etcd's rules the sender gets no reply and cannot retry elsewhere:
            // forward it in the sender's name.
            let message = Message::Propose(request, proposal);
            let envelope = self.config.envelope(leader, self.term, message);
            self.out.send.push(Envelope { from, incarnation: 0, ..envelope });
            return Ok(Accepted::Forwarded(leader));
        }
        if !silent {
            self.check_not_duplicate(from, term, request)?;
        }
        let result = match proposal {
            Proposal::Command(command) => self.propose(Payload::Command(command)),
            Proposal::Change(change) => self.propose_change(*change),
        };
        if !silent {
            self.send(from, Message::ProposeReply(request, result.clone()));
        }
        Ok(Accepted::Logged(result?))
    }

    /// A request that was forwarded to the leader of `term` is accepted or refused only
    /// once, and only by that leader in that term. Anything else is dropped without a
    /// reply: it may be a duplicate of an accepted request.
    /// Shown by scenarios/proposal_duplicates_are_dropped.txt.
    fn check_not_duplicate(
        &mut self,
        from: MemberId,
        term: Term,
        request: RequestId,
    ) -> Result<(), Dropped> {
        // Nothing is remembered about requests of non-members.
        if !self.membership().contains(from) {
            return Err(Dropped::UnknownSender { from });
        }
        if self.role.is_leader() && term > self.term {
            return Err(Dropped::NotForRole);
        }
        self.duplicates.check(term, from, request)
    }

    /// The leader accepted or refused a forwarded proposal.
    pub(crate) fn on_propose_reply(
        &mut self,
        request: RequestId,
        reply: Result<EntryId, Refusal>,
    ) -> Result<Accepted, Dropped> {
        match reply {
            Ok(id) => self.out.rare().accepted.push((request, id)),
            Err(refusal) => self.out.rare().refused.push((request, refusal)),
        }
        Ok(Accepted::Done)
    }

    fn propose_change(&mut self, change: Change) -> Result<EntryId, Refusal> {
        self.check_takes_proposals()?;
        match self.resolve(&change) {
            Ok(next) => self.log_membership(change, next),
            Err(_) if self.config.etcd_compat.refused_change_logs_empty => {
                self.propose(Payload::Command(Bytes::new()))
            }
            Err(refusal) => Err(Refusal::Change(refusal)),
        }
    }

    /// Logs a change together with the resulting membership.
    pub(crate) fn log_membership(
        &mut self,
        change: Change,
        next: Membership,
    ) -> Result<EntryId, Refusal> {
        let now = &self.memberships.newest().membership;
        assert!(now.can_change_to(&next), "{now} may become {next} by {change}");
        let since = EntryId::new(self.term, self.log.last().index + 1);
        let next = next.logged(now, &change, since, |id| self.incarnation_seen(id));
        let membership = Arc::new(next);
        self.propose(Payload::Change(Arc::new(LoggedChange { change, membership })))
    }

    /// Accepts a payload into the log, or refuses it. Only on a leader.
    #[inline]
    fn propose(&mut self, payload: Payload) -> Result<EntryId, Refusal> {
        self.check_takes_proposals()?;
        self.check_uncommitted(payload.bytes())?;
        let id = self.append_own(payload);
        self.broadcast_append();
        Ok(id)
    }

    #[inline]
    fn check_takes_proposals(&self) -> Result<(), Refusal> {
        match &self.role {
            // The target of a transfer must catch up, so the log must not grow.
            Role::Leader(leader) => match (leader.transfer, leader.own) {
                (None, Some(_)) => Ok(()),
                (Some(transfer), _) => Err(Refusal::Transferring { to: transfer.to }),
                (None, None) => Err(Refusal::LeaderRemoved),
            },
            _ => Err(self.not_leader()),
        }
    }

    #[inline]
    fn check_uncommitted(&mut self, bytes: u64) -> Result<(), Refusal> {
        let limit = self.config.uncommitted_bytes_max;
        let Some(leader) = self.role.leader_mut() else { return Ok(()) };
        let waiting = leader.uncommitted_bytes;
        // With nothing waiting any size is accepted, and an empty payload always is: the
        // first entry of a term and leaving a joint must not be refused.
        let any_size = waiting == 0 || bytes == 0;
        let exceeds = waiting.saturating_add(bytes) > limit;
        if !any_size && exceeds {
            return Err(Refusal::TooMuchUncommitted { waiting, limit });
        }
        leader.uncommitted_bytes = waiting.saturating_add(bytes);
        Ok(())
    }

    #[inline]
    pub(crate) fn append_own(&mut self, payload: Payload) -> EntryId {
        let id = EntryId::new(self.term, self.log.last().index + 1);
        let changes = matches!(payload, Payload::Change(_));
        if let Payload::Change(change) = &payload {
            self.memberships.push(id, change.membership.clone());
            if let Some(leader) = self.role.leader_mut() {
                leader.change_pending = id.index;
            }
        }
        self.log.push(Entry { id, payload });
        self.promise_own_append(id.index);
        if changes {
            self.update_active_membership();
        }
        id
    }

    /// The membership that a change makes of the newest one in the log. One change at a
    /// time: with two in progress, the quorums of the first and the last might not overlap
    /// (thesis §4.1).
    /// Shown by scenarios/membership_second_change_refused_until_applied.txt.
    fn resolve(&self, change: &Change) -> Result<Membership, ChangeRefusal> {
        self.check_no_change_in_flight()?;
        let newest = self.memberships.newest();
        let since = newest.since();
        let now = &newest.membership;
        // A cancel may name its goal instead, whatever steps the leader has taken since.
        // Shown by scenarios/goal_cancel_names_the_goal.txt.
        let cancelled = now.goal().filter(|_| change.kind == ChangeKind::Cancel);
        let is_expected = |id| id == since || cancelled.is_some_and(|goal| goal.id == id);
        if change.expected.is_some_and(|id| !is_expected(id)) {
            return Err(ChangeRefusal::Stale { newest: since });
        }
        // Updating a member's info does not affect a goal.
        // Shown by scenarios/goal_continues_after_member_info_update.txt.
        let allowed_with_goal = change.only_updates_info()
            || matches!(change.kind, ChangeKind::Cancel | ChangeKind::Goal { .. });
        if now.goal().is_some() && !allowed_with_goal {
            return Err(ChangeRefusal::GoalInProgress);
        }
        let next = now.resolve(change, &self.config.etcd_compat)?;
        if self.config.liveness.demote_before_removal
            && let Some(id) = now.voter_removed_by(&next)
        {
            return Err(ChangeRefusal::RemovesVoterDirectly { id });
        }
        if self.needs_quorum_check(change) {
            self.check_quorum_ready(now, &next)?;
        }
        if !self.config.etcd_compat.ids_reusable {
            now.check_joining_ids(&next)?;
        }
        Ok(next)
    }

    /// On apply, both ways out of a joint are committed by the joint itself: if the next
    /// membership has no live quorum, the step cannot be committed either, and a new leader
    /// has not heard from any member yet.
    /// Shown by scenarios/goal_just_elected_leader_cancels.txt.
    fn needs_quorum_check(&self, change: &Change) -> bool {
        let back = change.kind == ChangeKind::Cancel;
        !(change.is_leave() || back) || self.leave_is_irreversible()
    }

    pub(crate) fn check_no_change_in_flight(&self) -> Result<(), ChangeRefusal> {
        let Some(leader) = self.role.leader() else { return Ok(()) };
        match self.config.activation {
            Activation::OnApply => {
                let (index, applied) = (leader.change_pending, self.log.applied);
                if index > applied {
                    return Err(ChangeRefusal::InFlight { index, applied });
                }
            }
            Activation::OnAppend => {
                // Before that it may not know that another leader's membership is
                // committed, and both would count.
                // Shown by scenarios/onappend_change_waits_for_own_term_commit.txt.
                if self.log.commit < leader.first_of_term {
                    return Err(ChangeRefusal::NoOwnCommit);
                }
                let index = self.memberships.newest().id.index;
                if index > self.log.commit {
                    return Err(ChangeRefusal::InFlight { index, applied: self.log.commit });
                }
            }
        }
        Ok(())
    }

    /// The incarnation of a member's disk, as this leader has seen it.
    pub(crate) fn incarnation_seen(&self, id: MemberId) -> Option<u64> {
        let seen = if id == self.config.id {
            self.config.incarnation
        } else {
            self.role.leader().and_then(|leader| leader.peer(id)).map_or(0, |peer| peer.incarnation)
        };
        (seen != 0).then_some(seen)
    }

    /// Any leader leaves the joint, not only the one that entered it. Checked with every
    /// applied entry, so that neither a crash nor a transfer leaves the cluster joint.
    /// Shown by scenarios/joint_left_by_next_leader.txt.
    pub(crate) fn leave_joint_if_due(&mut self) {
        if self.role.is_leader()
            && self.membership().auto_leave()
            && self.check_no_change_in_flight().is_ok()
        {
            if self.membership().goal().is_some() {
                self.note_step(Some(GoalStep::Leave));
            }
            let now = self.memberships.newest().membership.clone();
            if self.held_up(&now, &GoalStep::Leave).is_some() {
                self.leave_joint_due = true;
            } else if let Ok(next) = now.take_step(&GoalStep::Leave) {
                // Refused during a transfer; then the next leader does it.
                let _ = self.log_membership(Change::leave(), next);
            }
        }
    }

    /// Switches to another active membership if it has changed.
    #[inline(always)]
    pub(crate) fn update_active_membership(&mut self) {
        let counts = self.memberships.active(self.config.activation, self.log.applying);
        if counts.id != self.active.logged.id {
            self.active = ActiveMembership::new(counts, &self.config);
            self.follow_active_membership();
        }
    }

    #[cold]
    fn follow_active_membership(&mut self) {
        let LoggedMembership { id, membership } = self.active.logged.clone();
        self.out.rare().events.push(Event::Membership { id, membership: membership.clone() });
        let last = self.log.last().index;
        let Some(leader) = self.role.leader_mut() else {
            self.campaign_soon_if_informed();
            return;
        };
        leader.follow(&membership, last, &self.config);
        if !membership.is_voter(self.config.id) && !self.must_lead_until_settled() {
            if self.config.step_down_on_removal {
                self.become_follower(self.term, None);
            }
            return;
        }
        if self.commit_by_quorum() {
            self.broadcast_append();
        } else {
            self.broadcast_entries(); // New members do not wait for a heartbeat.
        }
        self.abort_transfer_if_target_left();
        self.finish_round_if_confirmed();
        self.membership_work_due = true;
    }

    /// A member that learned from a vote that it is a voter need not wait for a timeout.
    fn campaign_soon_if_informed(&mut self) {
        let informed_by_vote = std::mem::replace(&mut self.informed_by_vote, false);
        if informed_by_vote && self.leader.is_none() {
            self.timer.elapsed = self.timer.timeout;
        }
    }
}
