//! One member of a trace: the core, its disk, its state machine and its threads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use quorate_core::message::Message;
use quorate_core::{
    Boot, Config, Dropped, Entries, Entry, EntryId, Envelope, Index, Input, MemberId, Payload,
    Raft, SaveId, SnapshotMeta, Status,
};

use super::batch::{Batch, ShownState};
use super::message::{SaveDone, SaveWork, TraceMessage, apply_line};
use super::notation;
use super::storage::{TraceStorage, TrimError};

/// What the state machine holds after each entry: the data of all entries up to it.
/// One table for all members, because they have to agree.
pub(super) type MachineContents = BTreeMap<EntryId, Vec<u8>>;

pub(super) struct TraceMember {
    raft: Raft,
    /// Saves and applies wait for the member's threads.
    threads: bool,
    election_ticks: u32,
    heartbeat_ticks: u32,
    shown: ShownState,
    storage: TraceStorage,
    content: Vec<u8>,
    /// The newest applied state.
    snapshot: SnapshotMeta,
    saves: VecDeque<SaveWork>,
    applies: VecDeque<Entries>,
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

impl TraceMember {
    pub(super) fn new(
        config: Config,
        threads: bool,
        snapshot: SnapshotMeta,
        content: Vec<u8>,
    ) -> Result<Self, String> {
        let boot = match snapshot.id.index {
            0 => Boot::empty(),
            _ => Boot::from_snapshot(snapshot.clone()),
        };
        let hard_state = boot.hard_state;
        let (election_ticks, heartbeat_ticks) = (config.election_ticks, config.heartbeat_ticks);
        let raft = Raft::new(config, boot).map_err(|why| format!("member cannot start: {why}"))?;
        let status = raft.status();
        Ok(Self {
            shown: ShownState { leader: status.leader, role: status.role, hard_state },
            raft,
            threads,
            election_ticks,
            heartbeat_ticks,
            storage: TraceStorage::new(snapshot.id),
            content,
            snapshot,
            saves: VecDeque::new(),
            applies: VecDeque::new(),
            open: BTreeSet::new(),
            untold: BTreeSet::new(),
        })
    }

    pub(super) fn status(&self) -> Status {
        self.raft.status()
    }

    pub(super) fn step(&mut self, input: Input) -> Result<(), Dropped> {
        self.raft.step(input).map(|_| ())
    }

    pub(super) fn set_timeout_ticks(&mut self, ticks: u32) {
        self.raft.set_timeout_ticks(ticks);
    }

    /// One heartbeat interval passes.
    pub(super) fn tick_heartbeat(&mut self) {
        self.tick(self.heartbeat_ticks);
    }

    /// One election timeout passes, as it is before chance lengthens it.
    pub(super) fn tick_election(&mut self) {
        self.tick(self.election_ticks);
    }

    fn tick(&mut self, ticks: u32) {
        for _ in 0..ticks {
            // Time passes whether or not the member may campaign.
            let _dropped = self.step(Input::Tick);
        }
    }

    /// What the member has to hand out, if the recorded system would see it so.
    pub(super) fn take_batch(&mut self) -> Result<Option<Batch>, String> {
        let status = self.raft.status();
        let standing = (status.leader, status.role);
        if !self.raft.has_output() && standing == (self.shown.leader, self.shown.role) {
            return Ok(None);
        }
        let output = self.raft.take_output();
        if let Some(load) = output.load.first() {
            // The preset keeps everything in memory.
            return Err(format!("the core asks for entries {:?} from disk", load.range));
        }
        let batch = Batch::new(output, &status, &mut self.shown, self.threads);
        Ok((!batch.is_empty()).then_some(batch))
    }

    /// Saves, applies and reports both; or hands them to the threads.
    pub(super) fn work_off(
        &mut self,
        batch: Batch,
        agreed: &mut MachineContents,
    ) -> Result<(), String> {
        let Batch { save, apply, .. } = batch;
        if self.threads {
            self.open.extend(save.as_ref().map(|save| save.save));
            self.saves.extend(save);
            self.applies.extend((!apply.is_empty()).then_some(apply));
            return Ok(());
        }
        let saved = save.as_ref().map(|save| save.save);
        if let Some(save) = save {
            self.save(&save, agreed)?;
        }
        self.apply(&apply, agreed)?;
        // The save counts before the apply does: this order is part of the traces.
        if let Some(save) = saved {
            self.report(Input::Saved(save))?;
        }
        self.report_applied(&apply)
    }

    fn save(&mut self, work: &SaveWork, agreed: &MachineContents) -> Result<(), String> {
        if let Some(meta) = &work.install {
            let Some(content) = agreed.get(&meta.id) else {
                return Err(format!("asked to install {}, which no member captured", meta.id));
            };
            self.storage.install(meta);
            self.content.clone_from(content);
            self.snapshot = meta.clone();
        }
        self.storage.append(&work.entries)
    }

    fn apply(&mut self, entries: &Entries, agreed: &mut MachineContents) -> Result<(), String> {
        for entry in entries.iter() {
            if entry.id.index <= self.snapshot.id.index {
                continue; // A snapshot was installed since it was handed out.
            }
            self.content.extend_from_slice(data(entry));
            let content = agreed.entry(entry.id).or_insert_with(|| self.content.clone());
            if *content != self.content {
                let (here, there) = (notation::quoted(&self.content), notation::quoted(content));
                let (id, at) = (self.raft.status().id, entry.id);
                return Err(format!("{id} applied {at} and holds {here}, another holds {there}"));
            }
            self.snapshot =
                SnapshotMeta { id: entry.id, membership: self.raft.membership_at(entry.id.index) };
        }
        Ok(())
    }

    fn report_applied(&mut self, entries: &Entries) -> Result<(), String> {
        let log = self.raft.status().log;
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
        self.step(input).map_err(|dropped| format!("the core drops {what}: {dropped}"))
    }

    pub(super) fn has_saves(&self) -> bool {
        !self.saves.is_empty()
    }

    pub(super) fn has_applies(&self) -> bool {
        !self.applies.is_empty()
    }

    /// The append thread does its oldest save.
    pub(super) fn process_save(&mut self, agreed: &MachineContents) -> Result<Worked, String> {
        let Some(work) = self.saves.pop_front() else {
            return Ok(Worked::nothing("no append work to perform"));
        };
        self.save(&work, agreed)?;
        if work.is_silent() {
            self.open.remove(&work.save);
            self.untold.insert(work.save);
            self.report_untold();
        }
        Ok(Worked::new(work.line().to_string(), work.replies))
    }

    /// The apply thread runs its oldest batch of entries.
    pub(super) fn process_apply(&mut self, agreed: &mut MachineContents) -> Result<Worked, String> {
        let Some(entries) = self.applies.pop_front() else {
            return Ok(Worked::nothing("no apply work to perform"));
        };
        self.apply(&entries, agreed)?;
        let member = self.raft.status().id;
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
                Ok(match self.step(Input::Received(envelope)) {
                    Err(Dropped::UnknownSender { .. }) => Some(UNKNOWN_SENDER),
                    Err(Dropped::Refused(_)) if proposes => Some(PROPOSAL_DROPPED),
                    _ => None,
                })
            }
            TraceMessage::Promise { envelope, completes } => {
                let status = self.raft.status();
                if let Some(save) = completes {
                    self.end_save(save, true);
                }
                Ok((!status.membership.contains(envelope.from)).then_some(UNKNOWN_SENDER))
            }
            TraceMessage::SaveDone(SaveDone { save, term, install, .. }) => {
                // What was saved in an older term may be overwritten by now, and the
                // recorded system waits for a save of this term. An installed snapshot
                // is committed and so counts in any term.
                self.end_save(save, install.is_some() || term == self.raft.status().term);
                Ok(None)
            }
            TraceMessage::ApplyDone { entries, .. } => self.report_applied(&entries).map(|()| None),
        }
    }

    /// The member hears that a save is done, and perhaps counts it.
    fn end_save(&mut self, save: SaveId, counts: bool) {
        self.open.retain(|open| *open > save);
        if counts {
            self.report_saved(save);
        }
        self.report_untold();
    }

    fn report_untold(&mut self) {
        let first_open = self.open.first().copied();
        while let Some(save) = self.untold.first().copied() {
            if first_open.is_some_and(|open| open < save) {
                return;
            }
            self.untold.remove(&save);
            self.report_saved(save);
        }
    }

    fn report_saved(&mut self, save: SaveId) {
        // A newer save may have been reported before; then this one is no news.
        let _late = self.step(Input::Saved(save));
    }

    /// The newest snapshot as a message.
    pub(super) fn snapshot_to(&self, to: MemberId) -> Envelope {
        let status = self.raft.status();
        let message = Message::Snapshot(self.snapshot.clone());
        Envelope { from: status.id, to, term: status.term, incarnation: 0, joined_at: 0, message }
    }

    /// Drops the log up to an index, on disk and in the core.
    pub(super) fn trim(&mut self, index: Index) -> Result<(), Trim> {
        self.storage.trim(index).map_err(Trim::Storage)?;
        self.step(Input::Trim(index)).map_err(Trim::Core)
    }

    pub(super) fn log_lines(&self) -> Vec<String> {
        self.storage.lines()
    }
}

/// Which part refused to trim.
pub(super) enum Trim {
    Storage(TrimError),
    Core(Dropped),
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
