//! One member: its state, and the dispatch of each input. Terms are handled in
//! [`terms`](crate::terms), messages in the module of their conversation.

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;

use crate::duplicates::DuplicateFilter;
use crate::idle::IdleMark;
use crate::log::Log;
use crate::lost_log::OwnLostLog;
use crate::membership::Membership;
use crate::membership::history::{ActiveMembership, MembershipHistory};
use crate::outbox::Outbox;
use crate::pack::pack_fields;
use crate::role::Role;
use crate::saves::Saves;
use crate::settled::Reports;
use crate::snapshot::PendingSnapshot;
use crate::stall::StallTimer;
use crate::terms::TermBudget;
use crate::timer::Timer;
use crate::transfer::RequestedCampaign;
use crate::{
    Accepted, Boot, BootError, Config, Dropped, Envelope, Event, Index, Input, LoadTarget,
    MemberId, Message, Refusal, RequestId, SaveId, SnapshotMeta, Term,
};

/// One member of a Raft cluster, as a value. It does no I/O: see [`Input`] and
/// [`Output`](crate::Output).
// A process may hold thousands of members, so what members rarely have is boxed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Raft {
    pub(crate) config: Config,
    pub(crate) term: Term,
    pub(crate) vote: Option<MemberId>,
    /// The leader of this term, if this member knows one.
    pub(crate) leader: Option<MemberId>,
    pub(crate) role: Role,
    pub(crate) log: Log,
    /// The newest snapshot that can be sent to peers.
    pub(crate) snapshot: SnapshotMeta,
    /// A peer's snapshot that is not on disk yet.
    pub(crate) installing: Option<Box<PendingSnapshot>>,
    pub(crate) memberships: MembershipHistory,
    /// The membership that counts now: the newest one that was handed to the state machine
    /// (on apply), or the newest one in the log (on append).
    pub(crate) active: ActiveMembership,
    pub(crate) saves: Saves,
    pub(crate) timer: Timer,
    pub(crate) stall: StallTimer,
    pub(crate) term_budget: TermBudget,
    /// This log lacks what this member confirmed.
    pub(crate) lost_log: Option<Box<OwnLostLog>>,
    /// Entries for the state machine are being loaded.
    pub(crate) loading: bool,
    /// Membership work may be due: settled changes, goal steps, leaving a joint. Done at
    /// the end of a step, never while a message is being processed.
    pub(crate) membership_work_due: bool,
    /// An entry was applied, or a transfer was aborted: leaving a joint may be due.
    pub(crate) leave_joint_due: bool,
    /// A vote message reported as committed a membership that this member already held:
    /// once it counts, there is no reason to wait for a timeout.
    pub(crate) informed_by_vote: bool,
    /// This member refused a vote only because its own log is newer: then it must be able
    /// to campaign itself, voter or not, or no member could be elected.
    pub(crate) holds_newer_log: bool,
    /// The leader asked this member to campaign, which it may not yet do.
    pub(crate) requested_campaign: Option<Box<RequestedCampaign>>,
    pub(crate) reports: Reports,
    pub(crate) duplicates: DuplicateFilter,
    /// A trim after a snapshot, delayed by peers that still need the log.
    pub(crate) pending_trim: Index,
    pub(crate) out: Outbox,
    pub(crate) idle: IdleMark,
}

pack_fields!(Raft {
    config, term, vote, leader, role, log, snapshot, memberships, active, saves, timer, term_budget,
    informed_by_vote, holds_newer_log, reports, duplicates, pending_trim,
} unset {
    installing, stall, lost_log, loading, membership_work_due, leave_joint_due, requested_campaign,
    out, idle,
});

impl Raft {
    /// Starts a member from the state on its disk, as a follower.
    pub fn new(config: Config, boot: Boot) -> Result<Self, BootError> {
        config.check().map_err(BootError::Config)?;
        let (log, memberships) = boot.check(config.activation)?;
        // A leader that this member no longer knows may still rely on it for its lease.
        let lease_guard = config.lease_guard_ticks();
        let seed = config.seed ^ config.id.0.rotate_left(32);
        let mut raft = Self {
            timer: Timer::new(&config, seed, lease_guard),
            term_budget: TermBudget::new(),
            lost_log: None,
            term: boot.hard_state.term,
            vote: boot.hard_state.vote,
            leader: None,
            role: Role::Follower,
            active: ActiveMembership::new(
                memberships.active(config.activation, log.applying),
                &config,
            ),
            snapshot: boot.snapshot,
            installing: None,
            memberships,
            saves: Saves::default(),
            stall: StallTimer::default(),
            loading: false,
            membership_work_due: false,
            leave_joint_due: false,
            informed_by_vote: false,
            holds_newer_log: false,
            requested_campaign: None,
            reports: Reports::default(),
            duplicates: DuplicateFilter::after_start(boot.hard_state.term),
            pending_trim: 0,
            out: Outbox::default(),
            idle: IdleMark::NO,
            log,
            config,
        };
        raft.reports = Reports::new(&raft.active.logged);
        // State derived beyond it is not durable before it is saved again.
        raft.saves = Saves::new(boot.hard_state);
        Ok(raft)
    }

    /// Processes one input. The error says why the input had no effect; each of these
    /// reasons is normal in a running cluster.
    // The inputs of a running cluster have their own paths, so that a caller that knows which one
    // it has neither copies it nor asks again.
    #[inline(always)]
    pub fn step(&mut self, input: Input) -> Result<Accepted, Dropped> {
        if self.idle.is_set() && matches!(input, Input::Tick) && self.tick_idle() {
            return Ok(Accepted::Done);
        }
        match input {
            Input::Received(envelope) => self.step_message(envelope),
            Input::Propose(request, command) => self.step_command(request, command),
            Input::Saved(id) => self.step_saved(id),
            Input::Applied(index) => self.step_applied(index),
            other => self.step_other(other),
        }
    }

    fn step_message(&mut self, envelope: Envelope) -> Result<Accepted, Dropped> {
        self.idle = IdleMark::NO;
        let accepted = if self.is_steady(&envelope) {
            self.on_steady(envelope)
        } else {
            self.on_received(envelope)
        };
        self.do_membership_work_if_due();
        accepted
    }

    fn step_command(&mut self, request: RequestId, command: Bytes) -> Result<Accepted, Dropped> {
        self.idle = IdleMark::NO;
        let accepted = self.on_command(request, command);
        self.do_membership_work_if_due();
        accepted
    }

    fn step_saved(&mut self, id: SaveId) -> Result<Accepted, Dropped> {
        self.idle = IdleMark::NO;
        let accepted = self.on_saved(id);
        self.do_membership_work_if_due();
        accepted
    }

    fn step_applied(&mut self, index: Index) -> Result<Accepted, Dropped> {
        self.idle = IdleMark::NO;
        let accepted = self.on_applied(index);
        self.do_membership_work_if_due();
        accepted
    }

    fn step_other(&mut self, input: Input) -> Result<Accepted, Dropped> {
        self.idle = IdleMark::NO;
        let is_tick = matches!(input, Input::Tick);
        let accepted = self.dispatch(input);
        self.do_membership_work_if_due();
        if is_tick {
            self.rest_if_idle();
        }
        accepted
    }

    fn dispatch(&mut self, input: Input) -> Result<Accepted, Dropped> {
        match input {
            Input::Tick => self.on_tick(),
            Input::Received(envelope) => self.on_received(envelope),
            Input::Propose(request, command) => self.on_command(request, command),
            Input::Change(request, change) => self.on_change(request, change),
            Input::Read(request) => self.on_read(request),
            Input::Transfer(to) => self.on_transfer(to),
            Input::Saved(id) => self.on_saved(id),
            Input::Applied(index) => self.on_applied(index),
            Input::Applying => self.on_applying(),
            Input::Snapshotted(index) => self.on_snapshotted(index),
            Input::Trim(index) => self.on_trim(index),
            Input::SnapshotSent(peer) => self.on_snapshot_report(peer, true),
            Input::SnapshotLost(peer) => self.on_snapshot_report(peer, false),
            Input::Loaded(LoadTarget::Peer(peer), entries) => {
                self.on_loaded_for_peer(peer, &entries)
            }
            Input::Loaded(LoadTarget::Machine, entries) => self.on_loaded_to_apply(&entries),
            Input::Unreachable(peer) => self.on_unreachable(peer),
            Input::ConnectionLost(peer) => self.on_connection_lost(peer),
            Input::Campaign => self.on_campaign_requested(),
            Input::ForgetLeader => self.on_forget_leader(),
        }
    }

    /// The settings of this member.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The membership that counts now.
    pub fn membership(&self) -> &Arc<Membership> {
        &self.active.logged.membership
    }

    /// The membership as of this entry, for a snapshot at it. The entry must not be older
    /// than the newest snapshot nor newer than the log.
    pub fn membership_at(&self, index: Index) -> Arc<Membership> {
        self.memberships.at(index).membership.clone()
    }

    /// Replaces the random election timeout until the next one is drawn, for tests in which
    /// the order of campaigns matters.
    pub fn set_timeout_ticks(&mut self, ticks: u32) {
        self.timer.timeout = ticks.max(1);
        self.timer.early_timeout = None;
    }

    pub(crate) fn send(&mut self, to: MemberId, message: Message) {
        self.out.send.push(self.config.envelope(to, self.term, message));
    }

    pub(crate) fn not_leader(&self) -> Refusal {
        Refusal::NotLeader { leader: self.leader }
    }

    fn on_tick(&mut self) -> Result<Accepted, Dropped> {
        self.timer.tick();
        self.tick_stall();
        self.term_budget.tick();
        if self.role.is_leader() {
            self.on_leader_tick();
        } else if self.timer.is_due() || self.is_sole_voter() {
            self.requested_campaign = None;
            if self.is_promotable() {
                self.timer.begin_campaign();
                return self.on_campaign();
            }
        }
        Ok(Accepted::Done)
    }

    #[inline(never)]
    fn on_received(&mut self, envelope: Envelope) -> Result<Accepted, Dropped> {
        self.check_envelope(&envelope)?;
        self.check_term(&envelope)?;
        self.check_identity(&envelope)?;
        let Envelope { from, term, message, .. } = envelope;
        if message.is_reply() && !self.membership().contains(from) {
            return Err(Dropped::UnknownSender { from });
        }
        if let Some(id) = message.committed_membership() {
            self.learn_commit(id);
        }
        match term.cmp(&self.term) {
            Ordering::Greater if !message.is_termless() => {
                self.on_newer_term(from, term, &message)?;
            }
            Ordering::Less if !message.is_termless() => self.on_older_term(from, term, &message)?,
            _ => {}
        }
        match message {
            // A lease binds this member in any term.
            // Shown by scenarios/read_lease_survives_late_prevote_refusal.txt.
            Message::PreVote(vote) | Message::Vote(vote)
                if !vote.forced && self.timer.lease_guard > 0 =>
            {
                Err(Dropped::LeaderAlive { leader: self.leader })
            }
            // What this member promised is lost: it must not promise anything else.
            // Shown by scenarios/identity_rolled_back_voter_does_not_vote.txt.
            Message::PreVote(_) | Message::Vote(_) if self.lost_log.is_some() => {
                Err(Dropped::LogLost)
            }
            Message::PreVote(vote) => self.on_pre_vote(from, term, vote),
            Message::Vote(vote) => self.on_vote(from, vote),
            Message::PreVoteReply(reply) => self.on_vote_reply(from, true, reply.granted),
            Message::VoteReply(reply) => self.on_vote_reply(from, false, reply.granted),
            Message::Append(append) => {
                self.on_leader_contact(from)?;
                self.on_append(from, append)
            }
            Message::Heartbeat(heartbeat) => {
                self.on_leader_contact(from)?;
                self.on_heartbeat(from, heartbeat)
            }
            Message::Snapshot(meta) => {
                self.on_leader_contact(from)?;
                self.on_snapshot(from, meta)
            }
            Message::AppendReply(reply) => self.on_append_reply(from, reply),
            Message::HeartbeatReply(reply) => self.on_heartbeat_reply(from, reply),
            Message::TimeoutNow => self.on_timeout_now(from),
            Message::ReadReply(request, reply) => self.on_read_reply(request, reply),
            Message::ProposeReply(request, reply) => self.on_propose_reply(request, reply),
            Message::Transfer(to) if self.role.is_leader() => self.on_transfer(to),
            Message::Transfer(_) => Err(self.not_leader().into()),
            Message::Propose(request, proposal) => self.on_forwarded(from, term, request, proposal),
            Message::Read(request) => self.on_forwarded_read(from, request),
            Message::IdentityRejected(known) => self.on_identity_rejected(from, known),
        }
    }

    #[inline(always)]
    pub(crate) fn do_membership_work_if_due(&mut self) {
        if self.membership_work_due {
            self.do_membership_work();
        }
    }

    /// The work that follows from membership changes, whichever member proposed them.
    #[inline(always)]
    pub(crate) fn do_membership_work(&mut self) {
        self.membership_work_due = false;
        if self.is_membership_at_rest() {
            self.leave_joint_due = false;
        } else {
            self.do_due_membership_work();
        }
    }

    #[inline(never)]
    fn do_due_membership_work(&mut self) {
        self.check_settled();
        self.report_goal_ends();
        if std::mem::replace(&mut self.leave_joint_due, false) {
            self.leave_joint_if_due();
        }
        self.pursue_goal();
        self.record_incarnations();
    }

    /// Whether no membership change is in progress as far as this member knows: none of the work
    /// that follows from one has anything to do. On a leader the membership is then settled.
    #[inline]
    pub fn is_membership_at_rest(&self) -> bool {
        let active = &self.active;
        if active.last_goal_end > self.reports.goals_ended {
            return false;
        }
        if !self.role.is_leader() {
            return self.reports.leader_report.is_none();
        }
        let settled = !self.config.liveness.settle || self.reports.settled >= active.since;
        settled && active.is_plain && self.memberships.newest().id == active.logged.id
    }

    #[inline]
    pub(crate) fn set_leader(&mut self, leader: Option<MemberId>) {
        if self.leader != leader {
            self.leader = leader;
            self.out.rare().events.push(Event::Leader { leader, term: self.term });
        }
    }

    pub(crate) fn set_role(&mut self, role: Role) {
        let (from, to) = (self.role.kind(), role.kind());
        if let Role::Leader(leader) = std::mem::replace(&mut self.role, role) {
            self.refuse_reads(leader.reads);
        }
        if from != to {
            self.out.rare().events.push(Event::Role { from, to, term: self.term });
        }
    }
}
