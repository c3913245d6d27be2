//! Proposals: commands and membership changes on their way into the log, and what
//! follows when another membership counts (thesis §4).
//!
//! There is one path for both. A change differs in that it is resolved and checked
//! before it is logged, and that only one may be in flight.

use std::sync::Arc;

use bytes::Bytes;

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
            return self.pass_on(request, Proposal::Command(command));
        }
        Ok(Accepted::Logged(self.propose(Payload::Command(command))?))
    }

    pub(crate) fn on_change(
        &mut self,
        request: RequestId,
        change: Change,
    ) -> Result<Accepted, Dropped> {
        if !self.role.is_leader() {
            return self.pass_on(request, Proposal::Change(Box::new(change)));
        }
        Ok(Accepted::Logged(self.propose_change(change)?))
    }

    fn pass_on(&mut self, request: RequestId, proposal: Proposal) -> Result<Accepted, Dropped> {
        match self.leader {
            Some(leader) if self.config.forward_proposals => {
                self.send(leader, Message::Propose(request, proposal));
                Ok(Accepted::Forwarded(leader))
            }
            _ => Err(self.not_leader().into()),
        }
    }

    /// A follower passed a proposal on.
    pub(crate) fn on_forwarded(
        &mut self,
        from: MemberId,
        term: Term,
        request: RequestId,
        proposal: Proposal,
    ) -> Result<Accepted, Dropped> {
        let silent = self.config.etcd_compat.forwarders_hear_nothing;
        if let (Some(leader), true) = (self.leader.filter(|_| !self.role.is_leader()), silent) {
            // Who hears nothing cannot ask elsewhere: it is done in its name.
            let message = Message::Propose(request, proposal);
            let envelope = self.config.envelope(leader, self.term, message);
            self.out.send.push(Envelope { from, incarnation: 0, ..envelope });
            return Ok(Accepted::Forwarded(leader));
        }
        if !silent {
            self.check_not_repeated(from, term, request)?;
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

    /// What was passed on to the leader of `term` is taken or refused here only once, and
    /// only by that leader, in that term. Anything else is dropped without an answer: it
    /// may be a copy of what was taken.
    /// Shown by scenarios/proposal_duplicates_are_dropped.txt.
    fn check_not_repeated(
        &mut self,
        from: MemberId,
        term: Term,
        request: RequestId,
    ) -> Result<(), Dropped> {
        // A stranger has no place to be remembered in.
        if !self.membership().contains(from) {
            return Err(Dropped::UnknownSender { from });
        }
        if self.role.is_leader() && term > self.term {
            return Err(Dropped::NotForRole);
        }
        self.replay.take(term, from, request)
    }

    /// The leader took a proposal of ours, or not.
    pub(crate) fn on_propose_reply(
        &mut self,
        request: RequestId,
        reply: Result<EntryId, Refusal>,
    ) -> Result<Accepted, Dropped> {
        match reply {
            Ok(id) => self.out.accepted.push((request, id)),
            Err(refusal) => self.out.refused.push((request, refusal)),
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

    /// Logs a change with the membership that results from it.
    pub(crate) fn log_membership(
        &mut self,
        change: Change,
        next: Membership,
    ) -> Result<EntryId, Refusal> {
        let now = &self.memberships.newest().membership;
        assert!(now.may_become(&next), "{now} may become {next} by {change}");
        let since = EntryId::new(self.term, self.log.last().index + 1);
        let next = next.logged(now, &change, since, |id| self.incarnation_seen(id));
        let membership = Arc::new(next);
        self.propose(Payload::Change(Arc::new(LoggedChange { change, membership })))
    }

    /// Takes a payload into the log, or says why not. Only a leader does.
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
            // The target of a transfer must catch up with a log that stands still.
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
        // With nothing waiting any size is taken, and an empty payload always is:
        // opening a term and leaving a joint must not be refused.
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
            self.follow_membership();
        }
        id
    }

    /// What a change would make of the newest membership in the log. One at a time:
    /// with two in flight, the quorums of the first and the last need not meet.
    /// Shown by scenarios/membership_second_change_refused_until_applied.txt.
    fn resolve(&self, change: &Change) -> Result<Membership, ChangeRefusal> {
        self.check_no_change_in_flight()?;
        let newest = self.memberships.newest();
        let since = newest.since();
        if change.expected.is_some_and(|expected| expected != since) {
            return Err(ChangeRefusal::Stale { newest: since });
        }
        let now = &newest.membership;
        // What is said about a member neither helps nor hinders a goal.
        // Shown by scenarios/goal_continues_after_member_info_update.txt.
        let harmless = change.only_describes()
            || matches!(change.kind, ChangeKind::Cancel | ChangeKind::Goal { .. });
        if now.goal().is_some() && !harmless {
            return Err(ChangeRefusal::GoalInProgress);
        }
        let next = now.resolve(change, &self.config.etcd_compat)?;
        if self.config.liveness.demote_before_removal
            && let Some(id) = now.voter_removed_by(&next)
        {
            return Err(ChangeRefusal::RemovesVoterDirectly { id });
        }
        if self.has_to_be_carried(change) {
            self.check_carried(now, &next)?;
        }
        if !self.config.etcd_compat.ids_return {
            now.check_newcomers(&next)?;
        }
        Ok(next)
    }

    /// Out of a joint, forwards or back, the step is committed by the joint itself where
    /// memberships count when applied: who could not carry the next one cannot commit it
    /// either, and a leader that was just elected has heard of nobody yet.
    /// Shown by scenarios/goal_just_elected_leader_cancels.txt.
    fn has_to_be_carried(&self, change: &Change) -> bool {
        let back = change.kind == ChangeKind::Cancel;
        !(change.is_leave() || back) || self.leaving_burns_bridges()
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
                if self.log.commit < leader.first_own {
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

    /// The disk behind a member, as this leader saw it.
    pub(crate) fn incarnation_seen(&self, id: MemberId) -> Option<u64> {
        let seen = if id == self.config.id {
            self.config.incarnation
        } else {
            self.role.leader().and_then(|leader| leader.peer(id)).map_or(0, |peer| peer.incarnation)
        };
        (seen != 0).then_some(seen)
    }

    /// Leaving a joint is the duty of whoever leads, not of who entered it. Asked
    /// again with every entry applied, so that neither a crash nor a transfer in
    /// between leaves the cluster joint.
    /// Shown by scenarios/joint_left_by_next_leader.txt.
    pub(crate) fn leave_if_due(&mut self) {
        if self.role.is_leader()
            && self.membership().auto_leave()
            && self.check_no_change_in_flight().is_ok()
        {
            if self.membership().goal().is_some() {
                self.note_step(Some(GoalStep::Leave));
            }
            let now = self.memberships.newest().membership.clone();
            if self.held_up(&now, &GoalStep::Leave).is_some() {
                self.leave_due = true;
            } else if let Ok(next) = now.take_step(&GoalStep::Leave) {
                // Refused while leadership is moving; then it is the next leader's.
                let _ = self.log_membership(Change::leave(), next);
            }
        }
    }

    /// Notices that another membership counts than before, and acts on it.
    pub(crate) fn follow_membership(&mut self) {
        let counts = self.membership_known();
        if counts.id == self.counting {
            return;
        }
        let (id, membership) = (counts.id, counts.membership.clone());
        self.counting = id;
        self.out.events.push(Event::Membership { id, membership: membership.clone() });
        let last = self.log.last().index;
        let Some(leader) = self.role.leader_mut() else {
            self.stand_soon_if_taught();
            return;
        };
        leader.follow(&membership, last, &self.config);
        if !membership.is_voter(self.config.id) && !self.leads_on_its_way_out() {
            if self.config.step_down_on_removal {
                self.become_follower(self.term, None);
            }
            return;
        }
        if self.commit_by_quorum() {
            self.broadcast_append();
        } else {
            self.broadcast_entries(); // New members need not wait for a heartbeat.
        }
        self.abort_transfer_if_target_left();
        self.finish_round_if_confirmed();
        self.duties_due = true;
    }

    /// Who learned by a vote that it counts need not wait for a timeout.
    fn stand_soon_if_taught(&mut self) {
        let taught = std::mem::replace(&mut self.taught, false);
        if taught && self.leader.is_none() {
            self.timer.elapsed = self.timer.timeout;
        }
    }
}
