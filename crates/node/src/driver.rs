//! One member without its threads, for runtimes other than the one in this crate.
//!
//! A [`Driver`] is the core with its open requests. Inputs are given to its methods;
//! [`Driver::take_output`] returns what to do next. The driver does no I/O: its runtime writes saves
//! in order, sends messages, runs the machine's jobs in order on an [`Applier`], and reports
//! each result back. Every request that was given a [`RequestToken`] ends exactly once.
//! [`Node`](crate::Node) and the simulator `quorate-sim` both run this module.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use quorate_core::message::Message;
use quorate_core::{
    Accepted, Boot, BootError, Change, Config, Dropped, Entries, EntryId, Envelope, Event, Index,
    Input, Load, LoadTarget, MemberId, Raft, Save, SaveId, SnapshotMeta, Term,
};

pub use crate::applier::{
    Applier, CommandOutcome, MachineJob, MachineJobDone, SnapshotInstallError,
};
pub use crate::cluster_version::{SupportedVersions, VersionChange};
pub use crate::command_id::{CommandBuffer, CommandDedup, CommandId};
pub use crate::outcome::{RequestOutcome, RequestReply};
pub use crate::request_table::{ChangeWait, RequestToken};
pub use crate::start::{
    MemberStartup, ReplayedLog, StartError, StartedMember, install, replay_log, seed, start,
};

use crate::applied_bytes::AppliedBytes;
use crate::cluster_version::{ClusterVersion, proposes_version};
use crate::outcome::{OutcomeUnknown, RequestRefused};
use crate::request_table::{RequestBody, RequestStage, RequestTable};

/// Limits and timeouts of requests, and when snapshots are captured. Start from the default and
/// assign the fields to change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct DriverOptions {
    /// A request that is not done after this many ticks ends as refused or unknown. A change
    /// that is committed by then may take longer.
    pub request_ticks: u64,
    /// A request that a leader did not acknowledge is sent again after this many ticks.
    pub retry_ticks: u64,
    /// Requests that may be open at once; one more is refused.
    pub requests_max: usize,
    /// A longer command is refused. Use the same value on all members; the transport has to
    /// carry messages that are a little longer.
    pub command_bytes_max: usize,
    /// Capture the machine's state after this many entries, however small they are.
    pub snapshot_entries: Option<u64>,
    /// Capture the machine's state after entries of this many bytes, and of as many as the
    /// newest snapshot has: then snapshots write no more bytes than the log, however large the
    /// state is. The larger of the two and `trim_keep_bytes` bound the size of the log.
    pub snapshot_bytes: u64,
    /// Bytes of entries kept before a snapshot, so that a slightly lagging peer needs no
    /// snapshot; [`Config::trim_keep_entries`] is the limit in entries.
    pub trim_keep_bytes: u64,
}

impl Default for DriverOptions {
    fn default() -> Self {
        Self {
            request_ticks: 100,
            retry_ticks: 20,
            requests_max: 65_536,
            command_bytes_max: 32 << 20,
            snapshot_entries: None,
            snapshot_bytes: 128 << 20,
            trim_keep_bytes: 64 << 20,
        }
    }
}

/// What a runtime has to do for a driver.
#[derive(Debug, Default)]
#[must_use = "saves, messages and jobs that are not done are lost"]
pub struct DriverOutput {
    /// Write this after every earlier save, then call [`Driver::saved`]. Messages that have to
    /// wait for it are in a later output.
    pub save: Option<Save>,
    /// Messages to send at once.
    pub send: Vec<Envelope>,
    /// Messages that carry a snapshot which is on the disk: send the snapshot's bytes with each,
    /// and report to [`Driver::snapshot_sent`]. A job may also ask for a snapshot to be sent
    /// ([`MachineJob::SendState`]).
    pub snapshots: Vec<Envelope>,
    /// Jobs for the machine, in this order, after all earlier jobs.
    pub jobs: Vec<MachineJob>,
    /// Entries to read back from the disk.
    pub load: Vec<Load>,
    /// Entries up to here may be removed from the disk.
    pub trim: Option<Index>,
    /// Requests that have ended. Each token comes once.
    pub outcomes: Vec<(RequestToken, RequestOutcome)>,
    /// For operators: logs and metrics. Nothing has to be done.
    pub events: Vec<Event>,
}

/// One member without I/O: the rules ([`Raft`]) and the open requests.
///
/// A cluster of one member, whose disk is always done at once:
/// ```
/// use quorate::driver::{Applier, Driver, MachineJob, RequestReply};
/// use quorate::{DriverOptions, KvCommand, MemoryKv};
/// use quorate_core::{Boot, Config, MemberId, Membership};
///
/// let id = MemberId(1);
/// let boot = Boot::first(Membership::new([id], []));
/// let first = boot.snapshot.clone();
/// let mut driver = Driver::new(Config::new(id), boot, 1, DriverOptions::default())?;
/// let mut applier = Applier::new(MemoryKv::default(), driver.command_id());
/// applier.install(&first, std::iter::empty())?;
///
/// driver.campaign();
/// let command = KvCommand::Put { key: "color".into(), value: "green".into() };
/// let token = driver.propose(&command.encode());
/// let mut outcomes = Vec::new();
/// while driver.has_output() {
///     let output = driver.take_output();
///     if let Some(save) = output.save {
///         driver.saved(save.id);
///     }
///     for job in output.jobs {
///         if let MachineJob::Apply(entries) = job {
///             driver.job_done(applier.apply(&entries)?);
///         }
///     }
///     outcomes.extend(output.outcomes);
/// }
/// assert!(matches!(&outcomes[..], [(ended, Ok(RequestReply::Ran { .. }))] if *ended == token));
/// assert_eq!(applier.machine().get(b"color"), Some(&"green".into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Driver {
    pub(crate) raft: Raft,
    pub(crate) options: DriverOptions,
    pub(crate) own: CommandId,
    pub(crate) requests: RequestTable,
    pub(crate) now: u64,
    /// No request has to be retried or ended before this tick.
    pub(crate) next_check: u64,
    pub(crate) attempt_count: u64,
    /// The newest entry that was handed to the machine.
    handed: EntryId,
    /// Reads that may run once the machine was handed this index.
    pub(crate) confirmed: BTreeMap<Index, Vec<RequestToken>>,
    /// The newest entry whose effect the machine has, as it reported since the start.
    ran: Index,
    /// This member was removed from the cluster, and has run the entry that removed it.
    pub(crate) removed: bool,
    /// The newest snapshot that was captured, or is being captured.
    captured: Index,
    /// One at a time: each capture keeps a copy of the machine's state.
    capturing: bool,
    pub(crate) version: ClusterVersion,
    /// The cluster version changed at this entry: until a snapshot covers it, this disk needs a
    /// program that supports every version up to this one.
    pub(crate) version_changed: Option<(Index, u32)>,
    applied_bytes: AppliedBytes,
    /// As configured; the core's own limit is lower while entries are large.
    trim_keep_entries: u64,
    /// Members to which the last snapshot was lost: the next one is read from the disk.
    lost_snapshots: BTreeSet<MemberId>,
    /// The peer that is being sent the machine's state. One at a time: each may be a copy of it.
    receives_state: Option<MemberId>,
    /// Saves in progress, with the messages and snapshots that wait for them.
    saving: VecDeque<SaveInProgress>,
    /// Parts of the next output.
    pub(crate) jobs: Vec<MachineJob>,
    send: Vec<Envelope>,
    pub(crate) outcomes: Vec<(RequestToken, RequestOutcome)>,
    dropped: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Debug)]
struct SaveInProgress {
    id: SaveId,
    then_send: Vec<Envelope>,
    install: Option<SnapshotMeta>,
}

impl Driver {
    /// A member with the state that its disk holds. `starts` is how often it was started on
    /// this disk, this time included: it makes command ids unique.
    pub fn new(
        config: Config,
        boot: Boot,
        starts: u64,
        options: DriverOptions,
    ) -> Result<Self, BootError> {
        let own = CommandId {
            member: config.id,
            incarnation: config.incarnation,
            start: starts,
            sequence: 0,
            open_from: 0,
        };
        let applied = EntryId::new(0, boot.applied);
        let captured = boot.snapshot.id.index;
        let applied_bytes = AppliedBytes::new(boot.applied.max(captured), options.trim_keep_bytes);
        let trim_keep_entries = config.trim_keep_entries;
        let raft = Raft::new(config, boot)?;
        Ok(Self {
            raft,
            options,
            own,
            requests: RequestTable::new(1),
            now: 0,
            next_check: u64::MAX,
            attempt_count: starts << ATTEMPT_BITS,
            handed: applied,
            confirmed: BTreeMap::new(),
            ran: 0,
            removed: false,
            captured,
            capturing: false,
            version: ClusterVersion::default(),
            version_changed: None,
            applied_bytes,
            trim_keep_entries,
            lost_snapshots: BTreeSet::new(),
            receives_state: None,
            saving: VecDeque::new(),
            jobs: Vec::new(),
            send: Vec::new(),
            outcomes: Vec::new(),
            dropped: BTreeMap::new(),
        })
    }

    /// The size of the snapshot that the machine was started from.
    pub(crate) fn set_snapshot_bytes(&mut self, bytes: u64) {
        self.applied_bytes.set_snapshot_bytes(bytes);
    }

    /// The core, read only: see [`Raft::status`].
    pub fn raft(&self) -> &Raft {
        &self.raft
    }

    /// The ids of commands that are proposed here, except for the sequence number.
    pub fn command_id(&self) -> CommandId {
        self.own
    }

    /// How many requests are open.
    pub fn open_requests(&self) -> usize {
        self.requests.len()
    }

    /// Saves that were handed out and are not reported as saved.
    pub fn saves_waiting(&self) -> usize {
        self.saving.len()
    }

    /// How many inputs had no effect, by reason.
    pub fn dropped(&self) -> &BTreeMap<&'static str, u64> {
        &self.dropped
    }

    /// One unit of time has passed.
    pub fn tick(&mut self) {
        self.now += 1;
        let _ = self.step(Input::Tick);
        if self.now >= self.next_check {
            self.check_requests();
        }
    }

    /// A message from a peer. One with a snapshot must be given only when all bytes of the
    /// snapshot are on the disk. Returns the reason when the message had no effect.
    pub fn receive(&mut self, envelope: Envelope) -> Option<Dropped> {
        if proposes_version(&envelope) {
            *self.dropped.entry("version change of a follower").or_default() += 1;
            return None;
        }
        self.step(Input::Received(envelope)).err()
    }

    /// Proposes a command for the machine.
    pub fn propose(&mut self, command: impl Into<CommandBuffer>) -> RequestToken {
        let logged = self.add_header(command.into());
        self.request(RequestBody::Command(logged))
    }

    /// Proposes a command that only this member may log, as the leader of this term. Otherwise
    /// it is refused: it is not forwarded, and not sent to a later leader.
    pub fn propose_in(&mut self, term: Term, command: impl Into<CommandBuffer>) -> RequestToken {
        let logged = self.add_header(command.into());
        self.request_once(logged, term)
    }

    pub(crate) fn next_command_id(&self) -> CommandId {
        let sequence = self.requests.next().0;
        let open_from = self.requests.oldest().0;
        CommandId { sequence, open_from, ..self.own }
    }

    fn add_header(&self, command: CommandBuffer) -> Bytes {
        self.next_command_id().prepend_to(command)
    }

    /// A linearizable query: its reply shows every command that was acknowledged before.
    pub fn read(&mut self, query: Bytes) -> RequestToken {
        self.request(RequestBody::Read(Some(query)))
    }

    /// As [`Driver::read`] without a query: done when every command that was acknowledged
    /// before has run here.
    pub fn barrier(&mut self) -> RequestToken {
        self.request(RequestBody::Read(None))
    }

    /// A query to the machine as it is here, after the entries that were handed out. No leader
    /// is asked: the reply may be stale.
    pub fn read_local(&mut self, query: Bytes) -> RequestToken {
        self.request_locally(query)
    }

    /// A membership change. It is done when `wait` says so.
    pub fn change(&mut self, change: Change, wait: ChangeWait) -> RequestToken {
        self.request(RequestBody::Change(Box::new(change), wait))
    }

    /// Transfers leadership to this member.
    pub fn transfer(&mut self, to: MemberId) -> RequestToken {
        self.request(RequestBody::Transfer(to))
    }

    /// The disk holds this save and every one before it.
    ///
    /// A snapshot that came with it is installed in the machine next, before any entry after it.
    /// The member may vote and lead meanwhile: that needs the disk only, and an installation may
    /// take minutes.
    pub fn saved(&mut self, id: SaveId) {
        while self.saving.front().is_some_and(|save| save.id <= id) {
            let Some(save) = self.saving.pop_front() else { break };
            self.send.extend(save.then_send);
            if let Some(meta) = save.install {
                self.handed = meta.id;
                self.captured = self.captured.max(meta.id.index);
                self.applied_bytes.restart(meta.id.index);
                self.jobs.push(MachineJob::Install(meta));
            }
        }
        let _ = self.step(Input::Saved(id));
        self.run_confirmed_reads();
    }

    /// Whether messages are sent when a save is durable.
    pub fn messages_wait_for_saves(&self) -> bool {
        self.saving.iter().any(|save| !save.then_send.is_empty())
    }

    /// The machine did a job.
    pub fn job_done(&mut self, done: MachineJobDone) {
        match done {
            MachineJobDone::Applied { index, outcomes, removed, versions, .. } => {
                self.ran = self.ran.max(index);
                let _ = self.step(Input::Applied(index));
                self.on_versions(&versions);
                for (sequence, outcome) in outcomes {
                    self.on_outcome(RequestToken(sequence), outcome);
                }
                self.removed = removed;
                if removed {
                    self.on_removed();
                }
            }
            MachineJobDone::Queried { token, index, reply } => {
                self.finish(token, Ok(RequestReply::Read { index, reply }));
            }
            // The runtime writes it to the disk and then calls `snapshot_saved`.
            MachineJobDone::Captured { .. } => {}
            MachineJobDone::TooLate(_) => self.snapshot_given_up(),
            MachineJobDone::Installed { meta, dedup, version, bytes } => {
                self.version = version;
                self.ran = self.ran.max(meta.id.index);
                self.applied_bytes.set_snapshot_bytes(bytes);
                self.on_installed(&meta, &dedup);
            }
        }
    }

    /// The machine is busy with a job and has made progress since the last tick.
    pub fn machine_progressed(&mut self) {
        let _ = self.step(Input::Applying);
    }

    /// A capture could not be made durable. The next one is taken when it is due, because an
    /// immediate retry would probably fail again.
    pub fn snapshot_given_up(&mut self) {
        self.capturing = false;
    }

    /// A capture of the machine as of this index is durable, and has this many bytes.
    pub fn snapshot_saved(&mut self, index: Index, bytes: u64) {
        self.capturing = false;
        self.applied_bytes.on_saved(bytes);
        let fitting = self.applied_bytes.entries_within(index, self.options.trim_keep_bytes);
        self.raft.set_trim_keep_entries(self.trim_keep_entries.min(fitting));
        let _ = self.step(Input::Snapshotted(index));
    }

    /// Captures the machine now, if it has changed since the last capture and none is in
    /// progress. A capture of at least the returned index exists or is in progress.
    pub fn capture(&mut self) -> Index {
        let index = self.handed.index;
        let installing = self.raft.log_status().installing;
        if index > self.captured && !self.capturing && !installing {
            self.captured = index;
            self.capturing = true;
            self.applied_bytes.on_capture();
            let membership = self.raft.membership_at(index);
            self.jobs.push(MachineJob::Snapshot(SnapshotMeta { id: self.handed, membership }));
        }
        self.captured
    }

    /// All bytes of a snapshot reached this peer.
    pub fn snapshot_sent(&mut self, to: MemberId) {
        self.lost_snapshots.remove(&to);
        self.receives_state.take_if(|receiver| *receiver == to);
        let _ = self.step(Input::SnapshotSent(to));
    }

    /// A snapshot did not reach this peer.
    pub fn snapshot_lost(&mut self, to: MemberId) {
        let membership = self.raft.membership();
        self.lost_snapshots.insert(to);
        self.lost_snapshots.retain(|peer| membership.contains(*peer));
        self.receives_state.take_if(|receiver| *receiver == to);
        let _ = self.step(Input::SnapshotLost(to));
    }

    /// Entries that [`DriverOutput::load`] asked for.
    pub fn loaded(&mut self, target: LoadTarget, entries: Entries) {
        let _ = self.step(Input::Loaded(target, entries));
    }

    /// Messages to this peer are being lost.
    pub fn unreachable(&mut self, peer: MemberId) {
        let _ = self.step(Input::Unreachable(peer));
    }

    /// The connection to this peer was closed or broken. A hint that the peer may have failed:
    /// if it leads, this member starts a pre-vote soon. Harmless when the peer is alive.
    pub fn connection_lost(&mut self, peer: MemberId) {
        let _ = self.step(Input::ConnectionLost(peer));
    }

    /// Campaigns now, without waiting for an election timeout.
    pub fn campaign(&mut self) {
        let _ = self.step(Input::Campaign);
    }

    /// Trims the log up to here, even if a peer will then need a snapshot.
    pub fn trim(&mut self, index: Index) {
        let _ = self.step(Input::Trim(index));
    }

    /// This member is about to stop: all open requests end.
    pub fn stop(&mut self) {
        self.end_requests(RequestRefused::Stopped, &OutcomeUnknown::Stopped);
    }

    /// This member cannot continue, for this reason: all open requests end with it.
    pub fn fail(&mut self, reason: &str) {
        let reason = reason.to_owned();
        let unknown = OutcomeUnknown::MemberFailed { reason: reason.clone() };
        self.end_requests(RequestRefused::MemberFailed { reason }, &unknown);
    }

    fn end_requests(&mut self, refused: RequestRefused, unknown: &OutcomeUnknown) {
        for token in self.requests.tokens(|_| true) {
            let Some(open) = self.requests.get_mut(token) else { continue };
            let is_read = matches!(open.body, RequestBody::Read(_));
            let certain = is_read || open.stage == RequestStage::Waiting;
            let error = if certain { refused.clone().into() } else { unknown.clone().into() };
            self.finish(token, Err(error));
        }
    }

    /// Whether [`Driver::take_output`] would return something to do.
    pub fn has_output(&self) -> bool {
        self.raft.has_output()
            || !self.jobs.is_empty()
            || !self.send.is_empty()
            || !self.outcomes.is_empty()
    }

    /// Everything to do since the last call.
    pub fn take_output(&mut self) -> DriverOutput {
        let mut output = self.raft.take_output();
        if let Some(save) = &mut output.save {
            let then_send = std::mem::take(&mut save.then_send);
            let install = save.install.clone();
            self.saving.push_back(SaveInProgress { id: save.id, then_send, install });
        }
        for (attempt, id) in output.accepted {
            self.on_accepted(attempt, id);
        }
        for (attempt, refusal) in output.refused {
            self.on_refused(attempt, refusal);
        }
        for (attempt, index) in output.served {
            self.on_confirmed(attempt, index);
        }
        self.hand_over(output.apply);
        for event in &output.events {
            self.on_event(event);
        }
        let mut send = std::mem::take(&mut self.send);
        send.append(&mut output.send);
        let mut snapshots = Vec::new();
        if send.iter().any(carries_snapshot) {
            (snapshots, send) = send.into_iter().partition(carries_snapshot);
            snapshots.retain_mut(|envelope| !self.sends_current_state(envelope));
        }
        DriverOutput {
            save: output.save,
            send,
            snapshots,
            jobs: std::mem::take(&mut self.jobs),
            load: output.load,
            trim: output.trim,
            outcomes: std::mem::take(&mut self.outcomes),
            events: output.events,
        }
    }

    /// If the snapshot on the disk is old, the peer gets the current state instead of it and of all
    /// entries since. Its message then names another entry than the core chose, which is harmless:
    /// this log has all entries from the older one on.
    fn sends_current_state(&mut self, envelope: &mut Envelope) -> bool {
        let to = envelope.to;
        let Message::Snapshot(meta) = &mut envelope.message else { return false };
        let is_newer = self.handed.index > meta.id.index && !self.raft.log_status().installing;
        if !is_newer
            || !self.applied_bytes.is_snapshot_old()
            || self.receives_state.is_some()
            || self.lost_snapshots.contains(&to)
        {
            return false;
        }
        let membership = self.raft.membership_at(self.handed.index);
        // A change since then may be the peer's own, and its entry tells the peer how it ended.
        if meta.membership.contains(to) && meta.membership.since() != membership.since() {
            return false;
        }
        let stored = meta.id.index;
        *meta = SnapshotMeta { id: self.handed, membership };
        self.receives_state = Some(to);
        self.jobs.push(MachineJob::SendState { envelope: envelope.clone(), stored });
        true
    }

    pub(crate) fn step(&mut self, input: Input) -> Result<Accepted, Dropped> {
        let accepted = self.raft.step(input);
        if let Err(dropped) = &accepted {
            *self.dropped.entry(dropped.name()).or_default() += 1;
        }
        accepted
    }

    /// Hands committed entries to the machine, and the reads that waited for them.
    fn hand_over(&mut self, entries: Entries) {
        if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
            let first = first.id.index;
            self.handed = last.id;
            self.applied_bytes.add(last.id.index, entries.bytes());
            self.on_committed_entries(first, &entries);
            self.jobs.push(MachineJob::Apply(entries));
        }
        self.run_confirmed_reads();
        let entries = self.handed.index.saturating_sub(self.captured);
        let is_long = self.options.snapshot_entries.is_some_and(|limit| entries >= limit);
        if is_long || self.applied_bytes.is_capture_due(self.options.snapshot_bytes) {
            self.capture();
        }
    }

    /// Hands reads to the machine whose index it was handed before: it runs jobs in order. A barrier
    /// whose entries have run is complete without the machine.
    fn run_confirmed_reads(&mut self) {
        if self.confirmed.is_empty() {
            return;
        }
        let (handed, ran) = (self.handed.index, self.ran);
        while let Some(read) = self.confirmed.first_entry()
            && *read.key() <= handed
        {
            let (index, tokens) = read.remove_entry();
            for token in tokens {
                let Some(open) = self.requests.get_mut(token) else { continue };
                match &open.body {
                    RequestBody::Read(None) if index <= ran => {
                        let reply = RequestReply::Read { index: ran, reply: Bytes::new() };
                        self.finish(token, Ok(reply));
                    }
                    RequestBody::Read(query) => {
                        self.jobs.push(MachineJob::Query(token, query.clone()));
                        open.stage = RequestStage::Querying;
                    }
                    _ => {}
                }
            }
        }
    }
}

fn carries_snapshot(envelope: &Envelope) -> bool {
    matches!(envelope.message, Message::Snapshot(_))
}

/// Attempts are numbered from the start counter, in ranges that no run uses up.
const ATTEMPT_BITS: u32 = 40;
