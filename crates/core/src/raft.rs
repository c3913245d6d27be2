//! One member: its fields, and what `step` does with each input. What a term means
//! stands in [`terms`](crate::terms), what messages mean with their conversations.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::boundary::Load;
use crate::log::Log;
use crate::membership::Membership;
use crate::membership::history::{History, Known};
use crate::replay::Replay;
use crate::role::Role;
use crate::saves::Saves;
use crate::settled::Reports;
use crate::snapshot::Installing;
use crate::timer::Timer;
use crate::{
    Accepted, Activation, Boot, BootError, Config, Dropped, EntryId, Envelope, Event, Index, Input,
    LoadTarget, MemberId, Message, Output, Refusal, RequestId, SnapshotMeta, Term,
};

/// One member of a Raft cluster, as a value. It does nothing by itself: see
/// [`Input`] and [`Output`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Raft {
    pub(crate) config: Config,
    pub(crate) term: Term,
    pub(crate) vote: Option<MemberId>,
    /// Whom this member takes for the leader of its term.
    pub(crate) leader: Option<MemberId>,
    pub(crate) role: Role,
    pub(crate) log: Log,
    /// The newest snapshot that can be sent to peers.
    pub(crate) snapshot: SnapshotMeta,
    /// A peer's snapshot that the disk does not hold yet.
    pub(crate) installing: Option<Installing>,
    pub(crate) memberships: History,
    /// The entry whose membership counts. Kept so that a switch is noticed.
    pub(crate) counting: EntryId,
    pub(crate) saves: Saves,
    pub(crate) timer: Timer,
    /// Entries for the state machine are being loaded.
    pub(crate) loading: bool,
    /// Something happened after which a leader has to look at its duties. Done at the
    /// end of a step, never in the middle of a conversation with a peer.
    pub(crate) duties_due: bool,
    /// Something was applied, or a transfer was given up: leaving a joint may be due.
    pub(crate) leave_due: bool,
    /// A vote told of a committed membership that this member held without knowing:
    /// once it counts, there is no reason to wait for a timeout.
    pub(crate) taught: bool,
    /// Refused a vote only because its own log is newer: then it must be able to
    /// stand itself, member or not, or nobody could be elected.
    pub(crate) holds_newer_log: bool,
    pub(crate) reports: Reports,
    pub(crate) replay: Replay,
    /// A trim wanted by a snapshot, held back by peers that still need the log.
    pub(crate) trim_wanted: Index,
    pub(crate) out: Outbox,
}

/// What gathers between two outputs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Outbox {
    pub(crate) send: Vec<Envelope>,
    /// Entries that were loaded for the state machine.
    pub(crate) loaded: crate::Entries,
    pub(crate) load: Vec<Load>,
    pub(crate) trim: Option<Index>,
    pub(crate) accepted: Vec<(RequestId, EntryId)>,
    pub(crate) served: Vec<(RequestId, Index)>,
    pub(crate) refused: Vec<(RequestId, Refusal)>,
    pub(crate) events: Vec<Event>,
}

impl Raft {
    /// A member that wakes up with what its disk said. It is a follower.
    pub fn new(config: Config, boot: Boot) -> Result<Self, BootError> {
        config.check().map_err(BootError::Config)?;
        let (log, memberships) = boot.check(config.activation)?;
        // A leader that is forgotten by now may still count on us.
        let loyal = config.loyal_ticks();
        let seed = config.seed ^ config.id.0.rotate_left(32);
        let mut raft = Self {
            timer: Timer::new(&config, seed, loyal),
            term: boot.hard_state.term,
            vote: boot.hard_state.vote,
            leader: None,
            role: Role::Follower,
            counting: EntryId::ZERO,
            snapshot: boot.snapshot,
            installing: None,
            memberships,
            saves: Saves::default(),
            loading: false,
            duties_due: false,
            leave_due: false,
            taught: false,
            holds_newer_log: false,
            reports: Reports::default(),
            replay: Replay::closed(boot.hard_state.term),
            trim_wanted: 0,
            out: Outbox::default(),
            log,
            config,
        };
        raft.counting = raft.membership_known().id;
        raft.reports = Reports::new(raft.membership_known());
        // What was derived beyond it is not durable before it is saved again.
        raft.saves = Saves::new(boot.hard_state);
        Ok(raft)
    }

    /// Lets something happen to this member. The error says why it had no effect;
    /// every such reason is normal somewhere in the life of a cluster.
    pub fn step(&mut self, input: Input) -> Result<Accepted, Dropped> {
        let taken = self.dispatch(input);
        if self.duties_due {
            self.do_duties();
        }
        taken
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
            Input::Campaign => self.on_campaign(),
            Input::ForgetLeader => self.on_forget_leader(),
        }
    }

    /// Takes everything asked of the world since the last time.
    pub fn take_output(&mut self) -> Output {
        self.begin_reads();
        self.send_wanted();
        let save = self.take_save();
        let apply = self.take_apply();
        let out = &mut self.out;
        let output = Output {
            save,
            send: std::mem::take(&mut out.send),
            apply,
            load: std::mem::take(&mut out.load),
            trim: out.trim.take(),
            accepted: std::mem::take(&mut out.accepted),
            served: std::mem::take(&mut out.served),
            refused: std::mem::take(&mut out.refused),
            events: std::mem::take(&mut out.events),
        };
        // The entries are in the machine's hands: from here on they are applied as
        // far as memberships go. What follows from it is part of the next output.
        self.follow_membership();
        if self.duties_due {
            self.do_duties();
        }
        self.log.evict(self.config.tail_bytes_max);
        output
    }

    /// Whether [`Raft::take_output`] would hand over anything.
    pub fn has_output(&self) -> bool {
        let out = &self.out;
        self.has_save()
            || self.has_apply()
            || self.has_wanted()
            || self.may_begin_reads()
            || !out.send.is_empty()
            || !out.load.is_empty()
            || out.trim.is_some()
            || !out.accepted.is_empty()
            || !out.served.is_empty()
            || !out.refused.is_empty()
            || !out.events.is_empty()
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The membership that counts now.
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership_known().membership
    }

    /// The membership as of this entry, for a snapshot there. Not older than the
    /// newest snapshot, not newer than the log.
    pub fn membership_at(&self, index: Index) -> Arc<Membership> {
        self.memberships.counts(index).membership.clone()
    }

    /// Replaces the timeout that was drawn, until the next one is: for stories in
    /// which it matters who campaigns first.
    pub fn set_timeout_ticks(&mut self, ticks: u32) {
        self.timer.timeout = ticks.max(1);
        self.timer.hurry = None;
    }

    /// The one answer to "which membership counts now": the newest one that was
    /// handed to the state machine, or the newest one in the log.
    pub(crate) fn membership_known(&self) -> &Known {
        match self.config.activation {
            Activation::OnApply => self.memberships.counts(self.log.applying),
            Activation::OnAppend => self.memberships.newest(),
        }
    }

    pub(crate) fn send(&mut self, to: MemberId, message: Message) {
        self.out.send.push(self.config.envelope(to, self.term, message));
    }

    pub(crate) fn not_leader(&self) -> Refusal {
        Refusal::NotLeader { leader: self.leader }
    }

    fn on_tick(&mut self) -> Result<Accepted, Dropped> {
        self.timer.tick();
        if self.role.is_leader() {
            self.on_leader_tick();
        } else if self.timer.is_due() && self.is_promotable() {
            self.timer.begin_campaign();
            return self.on_campaign();
        }
        Ok(Accepted::Done)
    }

    fn on_received(&mut self, envelope: Envelope) -> Result<Accepted, Dropped> {
        self.check_envelope(&envelope)?;
        self.check_identity(&envelope)?;
        let Envelope { from, term, message, .. } = envelope;
        if message.is_reply() && !self.membership().contains(from) {
            return Err(Dropped::UnknownSender { from });
        }
        if let Some(id) = message.told_commit() {
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
            // A lease binds in whatever term it is asked about.
            // Shown by scenarios/read_lease_survives_late_prevote_refusal.txt.
            Message::PreVote(vote) | Message::Vote(vote)
                if !vote.forced && self.timer.loyal > 0 =>
            {
                Err(Dropped::LeaderAlive { leader: self.leader })
            }
            Message::PreVote(vote) => self.on_pre_vote(from, term, vote),
            Message::Vote(vote) => self.on_vote(from, vote),
            Message::PreVoteReply(reply) => self.on_vote_reply(from, true, reply.granted),
            Message::VoteReply(reply) => self.on_vote_reply(from, false, reply.granted),
            Message::Append(append) => {
                self.hear_leader(from)?;
                self.on_append(from, append)
            }
            Message::Heartbeat(heartbeat) => {
                self.hear_leader(from)?;
                self.on_heartbeat(from, heartbeat)
            }
            Message::Snapshot(meta) => {
                self.hear_leader(from)?;
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
            Message::IdentityRejected(known) => self.on_disowned(from, known),
        }
    }

    /// What a leader owes the membership, whoever asked for it.
    fn do_duties(&mut self) {
        self.duties_due = false;
        self.check_settled();
        self.report_goal_ends();
        if std::mem::replace(&mut self.leave_due, false) {
            self.leave_if_due();
        }
        self.pursue_goal();
        self.name_disks();
    }

    pub(crate) fn set_leader(&mut self, leader: Option<MemberId>) {
        if self.leader != leader {
            self.leader = leader;
            self.out.events.push(Event::Leader { leader, term: self.term });
        }
    }

    pub(crate) fn set_role(&mut self, role: Role) {
        let (from, to) = (self.role.kind(), role.kind());
        if let Role::Leader(leader) = std::mem::replace(&mut self.role, role) {
            self.refuse_reads(leader.reads);
        }
        if from != to {
            self.out.events.push(Event::Role { from, to, term: self.term });
        }
    }
}
