//! The expected content of a store: a second, much simpler implementation.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorate_core::membership::LoggedChange;
use quorate_core::{
    Boot, Change, Config, Entry, EntryId, HardState, MemberId, Membership, Payload, Raft, Save,
    SaveId, SnapshotMeta,
};
use quorate_storage::{OpenedStore, StoreConfig, StoreIdentity, StoreOwner};

use crate::faulty_disk::FaultyDisk;

pub(super) const IDENTITY: StoreIdentity =
    StoreIdentity { cluster: 5, member: MemberId(1), incarnation: 0x5eed, joined_at: 0 };
pub(super) const EXPECTED: StoreOwner = StoreOwner { cluster: 5, member: MemberId(1) };

/// Segments of this size, and a short tail, so that most of the log is read from disk.
pub(super) fn config(segment_bytes: u64) -> StoreConfig {
    StoreConfig::new().segment_bytes(segment_bytes).tail_bytes_max(200)
}

/// One action of a member on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreAction {
    /// A new term and a vote in it.
    Vote,
    /// A command and a membership change, with a commit index.
    Append,
    /// One large command and nothing else.
    AppendLarge,
    /// Replaces the uncommitted entries.
    Replace,
    Sync,
    /// Saves a snapshot of this member's own state, then trims the log before it.
    Capture,
    /// Installs a peer's snapshot, which replaces the log; one entry follows.
    Install,
    /// The process restarts without a power loss.
    Restart,
    /// A sync fails and drops its data; the process restarts.
    FailedSync,
    /// A sync fails and memory still shows the data; the process restarts.
    UnseenFailedSync,
}

impl StoreAction {
    pub const ALL: [Self; 10] = [
        Self::Vote,
        Self::Append,
        Self::AppendLarge,
        Self::Replace,
        Self::Sync,
        Self::Capture,
        Self::Install,
        Self::Restart,
        Self::FailedSync,
        Self::UnseenFailedSync,
    ];
}

/// The state of a store at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    hard_state: HardState,
    /// The log begins after this entry.
    base: EntryId,
    entries: Vec<Entry>,
}

impl State {
    pub(super) fn last(&self) -> EntryId {
        self.entries.last().map_or(self.base, |entry| entry.id)
    }

    pub(super) fn commit(&self) -> EntryId {
        self.id_at(self.hard_state.commit).unwrap_or(self.base)
    }

    fn id_at(&self, index: u64) -> Option<EntryId> {
        if index == self.base.index {
            return Some(self.base);
        }
        self.entries.iter().map(|entry| entry.id).find(|id| id.index == index)
    }

    fn save(&mut self, save: &Save) {
        if let Some(meta) = &save.install {
            self.base = meta.id;
            self.entries.clear();
        }
        if let Some(first) = save.entries.first() {
            self.entries.retain(|entry| entry.id.index < first.id.index);
            self.entries.extend(save.entries.iter().cloned());
        }
        self.hard_state = save.hard_state.unwrap_or(self.hard_state);
    }
}

/// All states that a crash may leave, and which of them must survive.
#[derive(Clone, Debug)]
pub(super) struct DiskModel {
    states: Vec<State>,
    /// This state or a later one must exist after a crash.
    synced: usize,
    /// Snapshots that were begun, with their bytes.
    snapshots: BTreeMap<EntryId, Vec<u8>>,
    /// Snapshots that were finished.
    finished: Vec<EntryId>,
    boots: u64,
    saves: u64,
    /// The highest index known to be committed because a snapshot covers it.
    captured: u64,
    /// The highest term used. A restart begins a new one, as no term has two leaders.
    term_max: u64,
    restarted: bool,
}

impl DiskModel {
    pub(super) fn new(boot: &Boot) -> Self {
        let first =
            State { hard_state: boot.hard_state, base: boot.snapshot.id, entries: Vec::new() };
        Self {
            states: vec![first],
            synced: 0,
            snapshots: [(boot.snapshot.id, Vec::new())].into(),
            finished: vec![boot.snapshot.id],
            boots: 0,
            saves: 0,
            captured: boot.snapshot.id.index,
            term_max: boot.hard_state.term,
            restarted: false,
        }
    }

    pub(super) fn now(&self) -> &State {
        &self.states[self.states.len() - 1]
    }

    /// The save is about to be written.
    pub(super) fn save(&mut self, save: &Save) {
        if let Some(meta) = &save.install {
            self.captured = meta.id.index;
        }
        let mut next = self.now().clone();
        next.save(save);
        self.states.push(next);
    }

    /// Everything written so far must survive.
    pub(super) fn synced(&mut self) {
        self.synced = self.states.len() - 1;
        self.states.drain(..self.synced);
        self.synced = 0;
    }

    pub(super) fn begun(&mut self, meta: &SnapshotMeta) -> Vec<u8> {
        let bytes: Vec<u8> =
            (0..700u32).map(|offset| (offset as u64 + meta.id.index) as u8).collect();
        self.snapshots.insert(meta.id, bytes.clone());
        bytes
    }

    pub(super) fn finished(&mut self, id: EntryId) {
        self.finished.push(id);
        if self.now().id_at(id.index) == Some(id) {
            self.captured = self.captured.max(id.index);
        }
    }

    /// The save that this action writes, if it writes one.
    pub(super) fn save_for(&mut self, action: StoreAction) -> Option<Save> {
        self.saves += 1;
        let last = self.now().last();
        let HardState { mut term, vote, mut commit } = self.now().hard_state;
        commit = commit.max(self.captured);
        let same_term =
            matches!(action, StoreAction::Append | StoreAction::AppendLarge) && !self.restarted;
        if !same_term {
            self.term_max += 1;
            term = self.term_max;
        }
        let hard_state = HardState { term, vote: None, commit };
        let save = match action {
            StoreAction::Vote => {
                save(HardState { vote: Some(MemberId(2)), ..hard_state }, Vec::new())
            }
            StoreAction::Append => {
                let entries =
                    vec![self.command(term, last.index + 1, 100), change(term, last.index + 2)];
                save(HardState { term, vote, commit: last.index }, entries)
            }
            StoreAction::AppendLarge => {
                let mut save = save(hard_state, vec![self.command(term, last.index + 1, 1900)]);
                if same_term {
                    save.hard_state = None;
                }
                save
            }
            StoreAction::Replace => save(hard_state, vec![self.command(term, commit + 1, 200)]),
            StoreAction::Install => {
                let id = EntryId::new(term, last.index + 10);
                let hard_state = HardState { commit: id.index, ..hard_state };
                let mut save = save(hard_state, vec![self.command(term, id.index + 1, 50)]);
                save.install = Some(meta(id));
                save
            }
            _ => return None,
        };
        self.restarted = false;
        Some(save)
    }

    /// A command unlike all others.
    fn command(&self, term: u64, index: u64, bytes: usize) -> Entry {
        let mut command = vec![self.saves as u8; bytes];
        command.extend_from_slice(&self.saves.to_le_bytes());
        Entry::command(term, index, command)
    }

    /// Checks a store that was opened after a crash. The state that it reported must
    /// survive from then on.
    pub(super) fn opened(&mut self, opened: &mut OpenedStore<FaultyDisk>) -> Result<(), String> {
        let OpenedStore { store, boot, boots, identity } = opened;
        if *identity != IDENTITY {
            return Err(format!("identity is {identity:?}"));
        }
        if *boots <= self.boots {
            return Err(format!("boot number {boots} after {}", self.boots));
        }
        let below = boot.base.index + 1..u64::MAX;
        let entries = store.load(below, u64::MAX).map_err(|why| format!("load: {why}"))?;
        let state = State {
            hard_state: boot.hard_state,
            base: boot.base,
            entries: entries.iter().cloned().collect(),
        };
        let tail = boot.tail.len();
        if !entries.iter().skip(entries.len() - tail).eq(boot.tail.iter()) {
            return Err(format!("tail {:?} is not the end of {entries:?}", boot.tail));
        }
        if let Err(why) = Raft::new(Config::new(MemberId(1)), boot.clone()) {
            return Err(format!("the core rejects it: {why}"));
        }
        let known = self.states[self.synced..].iter().rposition(|known| known.matches(&state));
        let Some(known) = known else {
            let oldest = &self.states[self.synced];
            let newest = self.now();
            return Err(format!("holds {state:?}, expected {oldest:?} up to {newest:?}"));
        };
        self.check_snapshot(opened, &state)?;
        self.states = vec![self.states[self.synced + known].clone()];
        self.synced = 0;
        self.boots = opened.boots;
        self.captured = opened.boot.snapshot.id.index;
        self.finished = vec![opened.boot.snapshot.id];
        self.restarted = true;
        Ok(())
    }

    fn check_snapshot(
        &self,
        opened: &mut OpenedStore<FaultyDisk>,
        state: &State,
    ) -> Result<(), String> {
        let id = opened.boot.snapshot.id;
        let in_log = |id: &&EntryId| state.id_at(id.index) == Some(**id);
        let newest = self.finished.iter().filter(in_log).map(|id| id.index).max().unwrap_or(0);
        if id.index < newest {
            return Err(format!("snapshot {id}, but a newer one at {newest} was finished"));
        }
        let Some(bytes) = self.snapshots.get(&id) else {
            return Err(format!("snapshot {id} was never begun"));
        };
        let describe = |why| format!("snapshot {id}: {why}");
        let mut reader = opened.store.open_snapshot(id).map_err(describe)?;
        let mut read = Vec::new();
        while let Some(chunk) = opened.store.read_snapshot(&mut reader).map_err(describe)? {
            read.extend_from_slice(&chunk);
        }
        if read == *bytes { Ok(()) } else { Err(format!("snapshot {id} has different bytes")) }
    }
}

impl State {
    /// Equal except for old entries that were trimmed.
    fn matches(&self, opened: &Self) -> bool {
        let kept = self.entries.iter().filter(|entry| entry.id.index > opened.base.index);
        self.hard_state == opened.hard_state
            && self.id_at(opened.base.index) == Some(opened.base)
            && kept.eq(opened.entries.iter())
    }
}

pub(super) fn meta(id: EntryId) -> SnapshotMeta {
    SnapshotMeta { id, membership: Arc::new(Membership::new([MemberId(1)], [])) }
}

fn change(term: u64, index: u64) -> Entry {
    let change = Change::add_learner(MemberId(index));
    let membership = Arc::new(Membership::new([MemberId(1)], [MemberId(index)]));
    let payload = Payload::Change(Arc::new(LoggedChange { change, membership }));
    Entry { id: EntryId::new(term, index), payload }
}

fn save(hard_state: HardState, entries: Vec<Entry>) -> Save {
    Save {
        id: SaveId(1),
        hard_state: Some(hard_state),
        entries: entries.into(),
        install: None,
        must_sync: true,
        then_send: Vec::new(),
    }
}

pub(super) fn first_boot() -> Boot {
    Boot::first(Membership::new([MemberId(1)], []))
}
