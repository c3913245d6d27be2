//! One member without its threads, for runtimes other than the one in this crate.
//!
//! A [`Driver`] is the core with its open requests. Inputs are given to its methods;
//! [`Driver::take`] returns what to do next. The driver does no I/O: its runtime writes saves
//! in order, sends messages, runs the machine's jobs in order on an [`Applier`], and reports
//! each result back. Every request that was given a [`RequestToken`] ends exactly once.
//! [`Node`](crate::Node) and the simulator `quorate-sim` both run this module.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use quorate_core::message::Message;
use quorate_core::{
    Accepted, Boot, BootError, Change, Config, Dropped, Entries, EntryId, Envelope, Event, Index,
    Input, Load, LoadTarget, MemberId, Raft, Save, SaveId, SnapshotMeta, Term,
};

pub use crate::applier::{Applier, CommandOutcome, MachineJob, MachineJobDone};
pub use crate::command_id::{CommandDedup, CommandId};
pub use crate::outcome::{RequestOutcome, RequestReply};
pub use crate::requests::RequestToken;
pub use crate::start::{MemberStartup, StartError, StartedMember, install, seed, start};

use crate::outcome::{OutcomeUnknown, RequestRefused};
use crate::requests::{Asked, Requests, Stage};

/// How a member deals with requests and snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct DriverOptions {
    /// A request that has no answer after this many ticks ends as refused or unknown.
    pub request_ticks: u64,
    /// What was offered to a leader and not acknowledged is offered again after this
    /// many ticks.
    pub retry_ticks: u64,
    /// Requests that may be open at once; one more is refused.
    pub requests_max: usize,
    /// A longer command is refused. All members should agree on it, and the transport has
    /// to carry that much and a little more in one piece.
    pub command_bytes_max: usize,
    /// Capture the machine's state after this many entries.
    pub snapshot_entries: u64,
}

impl Default for DriverOptions {
    fn default() -> Self {
        Self {
            request_ticks: 100,
            retry_ticks: 20,
            requests_max: 65_536,
            command_bytes_max: 32 << 20,
            snapshot_entries: 100_000,
        }
    }
}

/// What the driver wants done.
#[derive(Debug, Default)]
pub struct DriverOutput {
    /// Write this after every earlier one, then call [`Driver::saved`]. What may be
    /// sent only then comes out of the driver when it is told.
    pub save: Option<Save>,
    /// Messages that may leave at once.
    pub send: Vec<Envelope>,
    /// Messages that carry a snapshot: send the snapshot's bytes with each, and report
    /// to [`Driver::snapshot_sent`].
    pub snapshots: Vec<Envelope>,
    /// For the machine, in this order, after all jobs before.
    pub jobs: Vec<MachineJob>,
    /// Entries to read back from the disk.
    pub load: Vec<Load>,
    /// Entries up to here may leave the disk.
    pub trim: Option<Index>,
    /// For those who asked. Each ticket is answered once.
    pub answers: Vec<(RequestToken, RequestOutcome)>,
    /// What an operator would like to see. Nothing has to be done about it.
    pub events: Vec<Event>,
}

/// One member: what [`Raft`] decides, and what clients wait for.
///
/// A cluster of one, on a disk that is always done at once:
/// ```
/// use quorate::driver::{Applier, Driver, MachineJob, RequestReply};
/// use quorate::{DriverOptions, KvCommand, MemoryKv};
/// use quorate_core::{Boot, Config, MemberId, Membership};
///
/// let id = MemberId(1);
/// let boot = Boot::first(Membership::new([id], []));
/// let first = boot.snapshot.clone();
/// let mut driver = Driver::new(Config::new(id), boot, 1, DriverOptions::default())?;
/// let mut applier = Applier::new(MemoryKv::default(), driver.origin());
/// applier.install(&first, std::iter::empty())?;
///
/// driver.campaign();
/// let command = KvCommand::Put { key: "color".into(), value: "green".into() };
/// let ticket = driver.propose(&command.encode());
/// let mut answers = Vec::new();
/// while driver.has_work() {
///     let work = driver.take();
///     if let Some(save) = work.save {
///         driver.saved(save.id);
///     }
///     for job in work.jobs {
///         if let MachineJob::Apply(entries) = job {
///             driver.job_done(applier.apply(&entries));
///         }
///     }
///     answers.extend(work.answers);
/// }
/// assert!(matches!(&answers[..], [(asked, Ok(RequestReply::Ran { .. }))] if *asked == ticket));
/// assert_eq!(applier.machine().get(b"color"), Some(&"green".into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Driver {
    pub(crate) raft: Raft,
    pub(crate) options: DriverOptions,
    pub(crate) own: CommandId,
    pub(crate) requests: Requests,
    pub(crate) now: u64,
    /// No request is due before this.
    pub(crate) look_at: u64,
    pub(crate) attempts: u64,
    /// The newest entry that was handed to the machine.
    handed: EntryId,
    /// Reads that may run once the machine was handed this index.
    pub(crate) confirmed: BTreeMap<Index, Vec<RequestToken>>,
    /// This member was removed from the cluster, and has run the entry that did it.
    pub(crate) removed: bool,
    /// The newest snapshot that was captured, or is being captured.
    captured: Index,
    /// One at a time: each holds on to the machine's state as it was.
    capturing: bool,
    /// Saves on their way to the disk, with what waits for them.
    saving: VecDeque<Saving>,
    /// The newest save that the disk holds.
    durable: u64,
    /// The newest save that the core was told of.
    reported: u64,
    /// Snapshots that the disk holds and the machine does not, with the saves that carried
    /// them.
    installs: VecDeque<(SaveId, EntryId)>,
    /// What goes into the next work.
    pub(crate) jobs: Vec<MachineJob>,
    send: Vec<Envelope>,
    pub(crate) answers: Vec<(RequestToken, RequestOutcome)>,
    dropped: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Debug)]
struct Saving {
    id: SaveId,
    then_send: Vec<Envelope>,
    install: Option<SnapshotMeta>,
}

impl Driver {
    /// A member that wakes up with what its disk said. `boots` is how often it was
    /// started on this disk, this time included: it makes request numbers unique.
    pub fn new(
        config: Config,
        boot: Boot,
        boots: u64,
        options: DriverOptions,
    ) -> Result<Self, BootError> {
        let own = CommandId {
            member: config.id,
            incarnation: config.incarnation,
            boot: boots,
            number: 0,
            open_from: 0,
        };
        let applied = EntryId::new(0, boot.applied);
        let captured = boot.snapshot.id.index;
        let raft = Raft::new(config, boot)?;
        Ok(Self {
            raft,
            options,
            own,
            requests: Requests::new(1),
            now: 0,
            look_at: u64::MAX,
            attempts: boots << ATTEMPT_BITS,
            handed: applied,
            confirmed: BTreeMap::new(),
            removed: false,
            captured,
            capturing: false,
            saving: VecDeque::new(),
            durable: 0,
            reported: 0,
            installs: VecDeque::new(),
            jobs: Vec::new(),
            send: Vec::new(),
            answers: Vec::new(),
            dropped: BTreeMap::new(),
        })
    }

    /// The rules at work, to look at: [`Raft::status`] says how this member stands.
    pub fn raft(&self) -> &Raft {
        &self.raft
    }

    /// The origin of requests asked here; its number means nothing.
    pub fn origin(&self) -> CommandId {
        self.own
    }

    /// How many requests wait for their answer.
    pub fn open_requests(&self) -> usize {
        self.requests.len()
    }

    /// Saves that were handed out and not reported.
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
        if self.now >= self.look_at {
            self.look_after_requests();
        }
    }

    /// A peer said something. A snapshot is announced here when all of its bytes are
    /// on the disk, not before. Says why, if it had no effect.
    pub fn receive(&mut self, envelope: Envelope) -> Option<Dropped> {
        self.step(Input::Received(envelope)).err()
    }

    /// A command for the machine.
    pub fn propose(&mut self, command: &[u8]) -> RequestToken {
        let sealed = self.seal(command);
        self.ask(Asked::Command(sealed), self.options.request_ticks)
    }

    /// A command that counts only if this member logs it, as the leader of this term.
    /// Otherwise it is refused: no later leader is offered it.
    pub fn propose_in(&mut self, term: Term, command: &[u8]) -> RequestToken {
        let sealed = self.seal(command);
        self.ask_once(sealed, term)
    }

    fn seal(&self, command: &[u8]) -> Bytes {
        let number = self.requests.next().0;
        let open_from = self.requests.oldest().0;
        CommandId { number, open_from, ..self.own }.seal(command)
    }

    /// A linearizable query: its reply shows every command that was acknowledged before.
    pub fn read(&mut self, query: Bytes) -> RequestToken {
        self.ask(Asked::Read(Some(query)), self.options.request_ticks)
    }

    /// As [`Driver::read`] without a query: done when every command that was acknowledged
    /// before has run here.
    pub fn barrier(&mut self) -> RequestToken {
        self.ask(Asked::Read(None), self.options.request_ticks)
    }

    /// A query to the machine as it is here, after the entries that were handed out. No leader
    /// is asked: the reply may be stale.
    pub fn read_local(&mut self, query: Bytes) -> RequestToken {
        self.ask_locally(query)
    }

    /// A membership change. It is done when it is settled; a goal, when it has ended.
    /// That may take as long as `ticks`.
    pub fn change(&mut self, change: Change, ticks: u64) -> RequestToken {
        self.ask(Asked::Change(Box::new(change)), ticks)
    }

    /// This member should lead.
    pub fn transfer(&mut self, to: MemberId) -> RequestToken {
        self.ask(Asked::Transfer(to), self.options.request_ticks)
    }

    /// The disk holds this save and every one before it.
    ///
    /// The core hears of a save with a snapshot, and of those after it, once the machine holds
    /// that snapshot: until then the member runs no entries and does not campaign. What a save
    /// lets it send leaves at once, because that needs the disk only.
    pub fn saved(&mut self, id: SaveId) {
        while self.saving.front().is_some_and(|save| save.id <= id) {
            let Some(save) = self.saving.pop_front() else { break };
            self.send.extend(save.then_send);
            if let Some(meta) = save.install {
                self.handed = meta.id;
                self.captured = self.captured.max(meta.id.index);
                self.installs.push_back((save.id, meta.id));
                self.jobs.push(MachineJob::Install(meta));
            }
        }
        self.durable = self.durable.max(id.0);
        self.report_saved();
        self.ask_machine();
    }

    /// Tells the core of the saves that are durable and, if they carry a snapshot, installed.
    fn report_saved(&mut self) {
        let before_install = self.installs.front().map(|(save, _)| save.0 - 1);
        let newest = self.durable.min(before_install.map_or(u64::MAX, |_| u64::MAX));
        if newest > self.reported {
            self.reported = newest;
            let _ = self.step(Input::Saved(SaveId(newest)));
        }
    }

    /// The machine holds this snapshot, and with it every earlier one.
    fn on_snapshot_installed(&mut self, meta: &SnapshotMeta) {
        while self.installs.front().is_some_and(|(_, id)| *id <= meta.id) {
            self.installs.pop_front();
        }
        self.report_saved();
    }

    /// The machine did a job.
    pub fn job_done(&mut self, done: MachineJobDone) {
        match done {
            MachineJobDone::Applied { index, outcomes, removed } => {
                let _ = self.step(Input::Applied(index));
                for (number, outcome) in outcomes {
                    self.on_outcome(RequestToken(number), outcome);
                }
                self.removed = removed;
                if removed {
                    self.on_removed();
                }
            }
            MachineJobDone::Queried { token, index, reply } => {
                self.answer(token, Ok(RequestReply::Read { index, reply }));
            }
            // The caller writes it to the disk and then tells `snapshot_saved`.
            MachineJobDone::Captured { .. } => {}
            MachineJobDone::TooLate(_) => self.snapshot_given_up(),
            MachineJobDone::Installed { meta, origins } => {
                self.on_snapshot_installed(&meta);
                self.on_installed(&meta, &origins);
            }
        }
    }

    /// A capture did not become durable. The next one is taken when it is due: what failed
    /// just now would fail again.
    pub fn snapshot_given_up(&mut self) {
        self.capturing = false;
    }

    /// A capture of the machine as of this index is durable.
    pub fn snapshot_saved(&mut self, index: Index) {
        self.capturing = false;
        let _ = self.step(Input::Snapshotted(index));
    }

    /// Capture the machine now, if it has changed since the last time and no capture is
    /// under way. A capture of at least the index returned is there, or under way.
    pub fn capture(&mut self) -> Index {
        let index = self.handed.index;
        let installing = self.raft.log_status().installing;
        if index > self.captured && !self.capturing && !installing {
            self.captured = index;
            self.capturing = true;
            let membership = self.raft.membership_at(index);
            self.jobs.push(MachineJob::Snapshot(SnapshotMeta { id: self.handed, membership }));
        }
        self.captured
    }

    /// A snapshot's bytes reached the peer, or were lost on the way.
    pub fn snapshot_sent(&mut self, to: MemberId, arrived: bool) {
        let sent = Input::SnapshotSent(to);
        let _ = self.step(if arrived { sent } else { Input::SnapshotLost(to) });
    }

    /// Entries that [`DriverOutput::load`] asked for.
    pub fn loaded(&mut self, target: LoadTarget, entries: Entries) {
        let _ = self.step(Input::Loaded(target, entries));
    }

    /// Messages to this peer are being lost.
    pub fn unreachable(&mut self, peer: MemberId) {
        let _ = self.step(Input::Unreachable(peer));
    }

    /// The connection to this peer was closed or broken. A hint that it may be gone: if it
    /// leads, this member soon asks whether it would be elected. Harmless when it lives.
    pub fn connection_lost(&mut self, peer: MemberId) {
        let _ = self.step(Input::ConnectionLost(peer));
    }

    /// Stand for election now.
    pub fn campaign(&mut self) {
        let _ = self.step(Input::Campaign);
    }

    /// Drop the log up to here even if a peer will then need a snapshot.
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
        for ticket in self.requests.tickets(|_| true) {
            let Some(open) = self.requests.get_mut(ticket) else { continue };
            let harmless = open.stage == Stage::Waiting || matches!(open.asked, Asked::Read(_));
            let answer =
                if harmless { Err(refused.clone().into()) } else { Err(unknown.clone().into()) };
            self.answer(ticket, answer);
        }
    }

    /// Whether there is anything to [`Driver::take`].
    pub fn has_work(&self) -> bool {
        self.raft.has_output()
            || !self.jobs.is_empty()
            || !self.send.is_empty()
            || !self.answers.is_empty()
    }

    /// Everything to do since the last time.
    pub fn take(&mut self) -> DriverOutput {
        let mut output = self.raft.take_output();
        if let Some(save) = &mut output.save {
            let then_send = std::mem::take(&mut save.then_send);
            let install = save.install.clone();
            self.saving.push_back(Saving { id: save.id, then_send, install });
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
        }
        DriverOutput {
            save: output.save,
            send,
            snapshots,
            jobs: std::mem::take(&mut self.jobs),
            load: output.load,
            trim: output.trim,
            answers: std::mem::take(&mut self.answers),
            events: output.events,
        }
    }

    pub(crate) fn step(&mut self, input: Input) -> Result<Accepted, Dropped> {
        let taken = self.raft.step(input);
        if let Err(why) = &taken {
            *self.dropped.entry(why.name()).or_default() += 1;
        }
        taken
    }

    /// Committed entries go to the machine, and with them what waited for them.
    fn hand_over(&mut self, entries: Entries) {
        if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
            let first = first.id.index;
            self.handed = last.id;
            self.on_handed(first, &entries);
            self.jobs.push(MachineJob::Apply(entries));
        }
        self.ask_machine();
        let next = self.captured.saturating_add(self.options.snapshot_entries);
        if self.handed.index >= next {
            self.capture();
        }
    }

    /// Reads whose index was handed to the machine: it does its jobs in order.
    fn ask_machine(&mut self) {
        let handed = self.handed.index;
        while let Some(read) = self.confirmed.first_entry()
            && *read.key() <= handed
        {
            for ticket in read.remove() {
                let Some(open) = self.requests.get_mut(ticket) else { continue };
                if let Asked::Read(question) = &open.asked {
                    self.jobs.push(MachineJob::Query(ticket, question.clone()));
                    open.stage = Stage::Asking;
                }
            }
        }
    }
}

fn carries_snapshot(envelope: &Envelope) -> bool {
    matches!(envelope.message, Message::Snapshot(_))
}

/// Offers are numbered from the boot counter on, in steps that no run uses up.
const ATTEMPT_BITS: u32 = 40;
