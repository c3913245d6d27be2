//! One member of a trace: a member in memory, and what the recorded system shows of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use quorate_core::message::Message;
use quorate_core::{
    Boot, Config, Dropped, Entries, Entry, EntryId, Envelope, Index, Input, MemberId, Output,
    Payload, Raft, SaveId, SnapshotMeta, Status,
};

use super::batch::{Batch, ShownState};
use super::message::{SaveDone, SaveWork, TraceMessage, apply_line};
use super::notation;
use crate::checkers::{Checked, Invariants, Violation};
use crate::cluster::{CoreMember, DiskState, WorkKind};

/// What all members of a trace have in common.
#[derive(Default)]
pub(super) struct Shared {
    /// What the state machine holds after each entry: the data of all entries up to it.
    pub(super) contents: BTreeMap<EntryId, Vec<u8>>,
    pub(super) invariants: Invariants,
}

pub(super) struct TraceMember {
    core: CoreMember,
    /// Saves and applies wait for the member's threads.
    threads: bool,
    election_ticks: u32,
    heartbeat_ticks: u32,
    shown: ShownState,
    content: Vec<u8>,
    /// The newest applied state.
    snapshot: SnapshotMeta,
    /// How the trace shows the saves in the queue of the core.
    saves: VecDeque<SaveWork>,
    /// Saves that were handed out and whose end this member has not heard of.
    open: BTreeSet<SaveId>,
    /// Saves that were done without a word, after one that is still open: counting
    /// them now would count that one too, since a save stands for all before it.
    untold: BTreeSet<SaveId>,
}

/// What a thread did: the lines to print and what it released.
pub(super) struct Worked {
    pub(super) lines: Vec<String>,
    pub(super) released: Vec<TraceMessage>,
}

/// A broken invariant stops the trace.
#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn text(violation: Violation) -> String {
    violation.to_string()
}

impl TraceMember {
    pub(super) fn new(
        config: Config,
        threads: bool,
        snapshot: SnapshotMeta,
        shared: &mut Shared,
    ) -> Result<Self, String> {
        let boot = match snapshot.id.index {
            0 => Boot::empty(),
            _ => Boot::from_snapshot(snapshot.clone()),
        };
        let mut core = CoreMember::new(config.id, DiskState::of_boot(&boot));
        core.start(&config, None).map_err(|why| format!("member cannot start: {why}"))?;
        let Some(raft) = &core.raft else { return Err("member is down".to_owned()) };
        shared.invariants.started(raft, &boot).map_err(text)?;
        let status = raft.status();
        Ok(Self {
            shown: ShownState {
                leader: status.leader,
                role: status.role,
                hard_state: boot.hard_state,
            },
            core,
            threads,
            election_ticks: config.election_ticks,
            heartbeat_ticks: config.heartbeat_ticks,
            content: shared.contents.get(&snapshot.id).cloned().unwrap_or_default(),
            snapshot,
            saves: VecDeque::new(),
            open: BTreeSet::new(),
            untold: BTreeSet::new(),
        })
    }

    /// A member of a trace always runs.
    fn raft(&mut self) -> Result<&mut Raft, String> {
        self.core.raft.as_mut().ok_or_else(|| "the member is down".to_owned())
    }

    pub(super) fn status(&self) -> Option<Status> {
        self.core.raft.as_ref().map(Raft::status)
    }

    /// Gives the core an input. The outer error is a broken invariant.
    pub(super) fn step(&mut self, input: Input) -> Result<Result<(), Dropped>, String> {
        let taken = self.core.step(input).map_err(text)?;
        Ok(taken.map_or(Ok(()), |taken| taken.map(|_| ())))
    }

    pub(super) fn set_timeout_ticks(&mut self, ticks: u32) -> Result<(), String> {
        self.raft()?.set_timeout_ticks(ticks);
        Ok(())
    }

    /// One heartbeat interval passes.
    pub(super) fn tick_heartbeat(&mut self) -> Result<(), String> {
        self.tick(self.heartbeat_ticks)
    }

    /// One election timeout passes, as it is before chance lengthens it.
    pub(super) fn tick_election(&mut self) -> Result<(), String> {
        self.tick(self.election_ticks)
    }

    fn tick(&mut self, ticks: u32) -> Result<(), String> {
        for _ in 0..ticks {
            // Time passes whether or not the member may campaign.
            let _dropped = self.step(Input::Tick)?;
        }
        Ok(())
    }

    /// What the member has to hand out, if the recorded system would see it so. Its saves and
    /// applies are queued.
    pub(super) fn take_batch(&mut self, shared: &mut Shared) -> Result<Option<Batch>, String> {
        let raft = self.raft()?;
        let (status, has_output) = (raft.status(), raft.has_output());
        if !has_output && (status.leader, status.role) == (self.shown.leader, self.shown.role) {
            return Ok(None);
        }
        let output = self.core.take_output(&mut shared.invariants).map_err(text)?;
        let output = output.unwrap_or_default();
        if let Some(load) = output.load.first() {
            // The preset keeps everything in memory.
            return Err(format!("the core asks for entries {:?} from disk", load.range));
        }
        let Output { save, apply, .. } = &output;
        let work = Output { save: save.clone(), apply: apply.clone(), ..Output::default() };
        self.core.queue(work);
        let batch = Batch::new(output, &status, &mut self.shown, self.threads);
        self.saves.extend(batch.save.clone());
        Ok((!batch.is_empty()).then_some(batch))
    }

    /// Saves, applies and reports both; or leaves them to the threads.
    pub(super) fn work_off(&mut self, batch: &Batch, shared: &mut Shared) -> Result<(), String> {
        let saved = batch.save.as_ref().map(|save| save.save);
        if self.threads {
            self.open.extend(saved);
            return Ok(());
        }
        if saved.is_some() {
            self.save(shared)?;
        }
        if !batch.apply.is_empty() {
            self.apply(shared)?;
        }
        // The save counts before the apply does: this order is part of the traces.
        if let Some(save) = saved {
            self.report(Input::Saved(save))?;
        }
        self.report_applied(&batch.apply)
    }

    /// The disk writes the oldest save.
    fn save(&mut self, shared: &mut Shared) -> Result<Option<SaveWork>, String> {
        self.core.do_work(WorkKind::Saves, &mut shared.invariants).map_err(text)?;
        let Some(work) = self.saves.pop_front() else { return Ok(None) };
        if let Some(meta) = &work.install {
            let Some(content) = shared.contents.get(&meta.id) else {
                return Err(format!("asked to install {}, which no member captured", meta.id));
            };
            self.content.clone_from(content);
            self.snapshot = meta.clone();
        }
        Ok(Some(work))
    }

    /// The machine runs the oldest entries.
    fn apply(&mut self, shared: &mut Shared) -> Result<Option<Entries>, String> {
        let Some(entries) = self.core.applies.front().cloned() else { return Ok(None) };
        let done = self.core.do_work(WorkKind::Applies, &mut shared.invariants).map_err(text)?;
        if done.is_none() {
            return Err("entries are applied before they are saved".to_owned());
        }
        for entry in entries.iter() {
            if entry.id.index <= self.snapshot.id.index {
                continue; // A snapshot was installed since it was handed out.
            }
            self.content.extend_from_slice(data(entry));
            self.captured(entry.id, shared).map_err(text)?;
            let membership = self.raft()?.membership_at(entry.id.index);
            self.snapshot = SnapshotMeta { id: entry.id, membership };
        }
        Ok(Some(entries))
    }

    /// After every entry the machines of all members hold the same.
    fn captured(&self, entry: EntryId, shared: &mut Shared) -> Checked {
        let mut hasher = DefaultHasher::new();
        self.content.hash(&mut hasher);
        shared.contents.entry(entry).or_insert_with(|| self.content.clone());
        shared.invariants.captured(self.core.id, entry.index, hasher.finish())
    }

    fn report_applied(&mut self, entries: &Entries) -> Result<(), String> {
        let log = self.raft()?.log_status();
        let replaced = |index| log.installing || index <= log.applied;
        let Some(last) = entries.last().filter(|last| !replaced(last.id.index)) else {
            return Ok(()); // Nothing, or a snapshot has taken its place.
        };
        self.report(Input::Applied(last.id.index))?;
        // After every apply there is a new snapshot to send.
        self.report(Input::Snapshotted(last.id.index))
    }

    /// Tells the core what was done for it; it has to take that.
    fn report(&mut self, input: Input) -> Result<(), String> {
        let what = format!("{input:?}");
        self.step(input)?.map_err(|dropped| format!("the core drops {what}: {dropped}"))
    }

    pub(super) fn has_saves(&self) -> bool {
        !self.saves.is_empty()
    }

    pub(super) fn has_applies(&self) -> bool {
        !self.core.applies.is_empty()
    }

    /// The append thread does its oldest save.
    pub(super) fn process_save(&mut self, shared: &mut Shared) -> Result<Worked, String> {
        let Some(work) = self.save(shared)? else {
            return Ok(Worked::nothing("no append work to perform"));
        };
        if work.is_silent() {
            self.open.remove(&work.save);
            self.untold.insert(work.save);
            self.report_untold()?;
        }
        Ok(Worked::new(work.line().to_string(), work.replies))
    }

    /// The apply thread runs its oldest batch of entries.
    pub(super) fn process_apply(&mut self, shared: &mut Shared) -> Result<Worked, String> {
        let Some(entries) = self.apply(shared)? else {
            return Ok(Worked::nothing("no apply work to perform"));
        };
        let member = self.core.id;
        let line = apply_line(member, &entries).to_string();
        Ok(Worked::new(line, vec![TraceMessage::ApplyDone { member, entries }]))
    }

    /// Takes what was delivered; the answer is what the recorded system would print.
    pub(super) fn receive(
        &mut self,
        message: TraceMessage,
    ) -> Result<Option<&'static str>, String> {
        match message {
            TraceMessage::Message(envelope) => {
                let proposes = matches!(envelope.message, Message::Propose(..));
                Ok(match self.step(Input::Received(envelope))? {
                    Err(Dropped::UnknownSender { .. }) => Some(UNKNOWN_SENDER),
                    Err(Dropped::Refused(_)) if proposes => Some(PROPOSAL_DROPPED),
                    _ => None,
                })
            }
            TraceMessage::Promise { envelope, completes } => {
                let status = self.raft()?.status();
                if let Some(save) = completes {
                    self.end_save(save, true)?;
                }
                Ok((!status.membership.contains(envelope.from)).then_some(UNKNOWN_SENDER))
            }
            TraceMessage::SaveDone(SaveDone { save, term, install, .. }) => {
                // What was saved in an older term may be overwritten by now, and the
                // recorded system waits for a save of this term. An installed snapshot
                // is committed and so counts in any term.
                let counts = install.is_some() || term == self.raft()?.term();
                self.end_save(save, counts).map(|()| None)
            }
            TraceMessage::ApplyDone { entries, .. } => self.report_applied(&entries).map(|()| None),
        }
    }

    /// The member hears that a save is done, and perhaps counts it.
    fn end_save(&mut self, save: SaveId, counts: bool) -> Result<(), String> {
        self.open.retain(|open| *open > save);
        if counts {
            self.report_saved(save)?;
        }
        self.report_untold()
    }

    fn report_untold(&mut self) -> Result<(), String> {
        let first_open = self.open.first().copied();
        while let Some(save) = self.untold.first().copied() {
            if first_open.is_some_and(|open| open < save) {
                return Ok(());
            }
            self.untold.remove(&save);
            self.report_saved(save)?;
        }
        Ok(())
    }

    fn report_saved(&mut self, save: SaveId) -> Result<(), String> {
        // A newer save may have been reported before; then this one is no news.
        self.step(Input::Saved(save)).map(|_late| ())
    }

    /// The newest snapshot as a message.
    pub(super) fn snapshot_to(&mut self, to: MemberId) -> Result<Envelope, String> {
        let (from, term) = (self.core.id, self.raft()?.term());
        let message = Message::Snapshot(self.snapshot.clone());
        Ok(Envelope { from, to, term, incarnation: 0, joined_at: 0, message })
    }

    /// Drops the log up to an index, on disk and in the core.
    pub(super) fn trim(&mut self, index: Index) -> Result<(), Trim> {
        let log = &self.core.disk.log;
        if index <= log.base.index {
            return Err(Trim::Trimmed);
        }
        if index > log.last().index {
            return Err(Trim::BeyondLog { last: log.last().index });
        }
        self.core.trim(index);
        self.step(Input::Trim(index)).map_err(Trim::Broken)?.map_err(Trim::Core)
    }

    /// The log on its disk.
    pub(super) fn log_lines(&self) -> Vec<String> {
        let log = &self.core.disk.log;
        if log.entries.is_empty() {
            let last = log.last().index;
            return vec![format!("log is empty: first index={}, last index={last}", last + 1)];
        }
        log.entries.iter().map(notation::entry).collect()
    }
}

/// Why the log is not trimmed.
pub(super) enum Trim {
    Trimmed,
    BeyondLog { last: Index },
    Core(Dropped),
    Broken(String),
}

const UNKNOWN_SENDER: &str = "raft: cannot step as peer not found";
pub(super) const PROPOSAL_DROPPED: &str = "raft proposal dropped";

impl Worked {
    fn new(line: String, released: Vec<TraceMessage>) -> Self {
        let mut lines = vec!["Processing:".to_owned(), line, "Responses:".to_owned()];
        lines.extend(released.iter().map(|message| message.line().to_string()));
        Self { lines, released }
    }

    fn nothing(text: &str) -> Self {
        Self { lines: vec![text.to_owned()], released: Vec::new() }
    }
}

fn data(entry: &Entry) -> &Bytes {
    match &entry.payload {
        Payload::Command(command) => command,
        Payload::Change(logged) => &logged.change.context,
    }
}
