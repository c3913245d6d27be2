//! A storage in use: each result is compared with the model at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use quorate_core::{
    Boot, Entry, EntryId, HardState, Index, MemberId, Membership, Save, SaveId, SnapshotMeta, Term,
};
use quorate_storage::StoreIdentity;

use super::StorageUnderTest;
use super::model::{MEMBER, StorageModel, content, entry};
use crate::storage::{SnapshotSink, SnapshotSource, Storage, StorageError, StoredState};

/// What is wrong with a storage, in words.
pub(super) struct SuiteViolation(pub(super) String);

pub(super) type CaseResult<T = ()> = Result<T, SuiteViolation>;

/// The mark of an empty storage.
pub(super) const MARK: StoreIdentity =
    StoreIdentity { cluster: 0xc1, member: MEMBER, incarnation: 99, joined_at: 0 };

/// How a storage ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Close,
    /// As when the process ends.
    Drop,
    /// As when the power is lost. The same as `Drop` if the storage cannot crash.
    Crash,
}

/// An open storage, and what it should hold.
pub(super) struct StorageTrial {
    subject: StorageUnderTest,
    pub(super) storage: Box<dyn Storage>,
    identity: StoreIdentity,
    boots: u64,
    saves: u64,
    /// What the last sync made durable.
    synced: StorageModel,
    /// The state after each write since: after a crash one of them is found.
    unsynced: Vec<StorageModel>,
    /// Contents of snapshots that were adopted or found.
    snapshots: BTreeMap<EntryId, CapturedSnapshot>,
    /// Snapshots that were installed and not released.
    expected: BTreeSet<EntryId>,
    trimmed: Index,
}

struct CapturedSnapshot {
    meta: SnapshotMeta,
    content: Vec<u8>,
}

impl StorageTrial {
    /// On an empty storage, as a first member of a cluster.
    pub(super) fn first(subject: StorageUnderTest) -> CaseResult<Self> {
        Self::begin(subject, &Boot::first(Membership::new([MEMBER], [])))
    }

    /// On an empty storage, as a joining member.
    pub(super) fn joining(subject: StorageUnderTest) -> CaseResult<Self> {
        Self::begin(subject, &Boot::empty())
    }

    fn begin(mut subject: StorageUnderTest, first: &Boot) -> CaseResult<Self> {
        let mut storage = (subject.handle)();
        let opened = check_ok("the first open", storage.open(MARK, first))?;
        let snapshot = first.snapshot.clone();
        let mut snapshots = BTreeMap::new();
        if snapshot.id != EntryId::ZERO {
            let captured = CapturedSnapshot { meta: snapshot.clone(), content: Vec::new() };
            snapshots.insert(snapshot.id, captured);
        }
        let mut trial = Self {
            subject,
            storage,
            identity: MARK,
            boots: 0,
            saves: 0,
            synced: StorageModel::new(first),
            unsynced: Vec::new(),
            snapshots,
            expected: BTreeSet::new(),
            trimmed: 0,
        };
        trial.check_opened(opened, End::Close)?;
        Ok(trial)
    }

    /// Closes and reopens, with a mark and a first membership that must be ignored.
    pub(super) fn reopen(self, end: End) -> CaseResult<Self> {
        let mut trial = self.ended(end)?;
        let mark = StoreIdentity { incarnation: 0xbad, joined_at: 77, ..MARK };
        let first = Boot::first(Membership::new([MEMBER, MemberId(66)], []));
        let opened = check_ok("opening again", trial.storage.open(mark, &first))?;
        trial.check_opened(opened, end)?;
        Ok(trial)
    }

    /// The same with a mark that has to be refused.
    pub(super) fn reopen_refused(self, mark: StoreIdentity) -> CaseResult<Self> {
        let mut trial = self.ended(End::Close)?;
        match trial.storage.open(mark, &Boot::empty()) {
            Err(_) => trial.ended(End::Drop),
            Ok(_) => {
                Err(SuiteViolation(format!("{mark:?} opened a storage that belongs to {MARK:?}")))
            }
        }
    }

    /// Closes; the storage is then a handle that is not open.
    fn ended(self, end: End) -> CaseResult<Self> {
        let Self { mut subject, mut storage, .. } = self;
        if end == End::Close {
            check_ok("close", storage.close())?;
        }
        drop(storage);
        if let Some(crash) = &mut subject.crash
            && end == End::Crash
        {
            crash();
        }
        let storage = (subject.handle)();
        Ok(Self { subject, storage, ..self })
    }

    fn check_opened(&mut self, opened: StoredState, end: End) -> CaseResult {
        same("the identity of the storage", &opened.identity, &self.identity)?;
        if opened.boots <= self.boots {
            let why = format!("opens were counted up to {}, now {}", self.boots, opened.boots);
            return Err(SuiteViolation(why));
        }
        self.boots = opened.boots;
        let states = std::mem::take(&mut self.unsynced);
        if end == End::Close {
            self.synced = states.last().unwrap_or(&self.synced).clone();
            self.check_boot(&self.synced, &opened.boot)?;
        } else {
            let oldest = self.check_boot(&self.synced, &opened.boot);
            let fits = |state: &&StorageModel| self.check_boot(state, &opened.boot).is_ok();
            match states.iter().rev().find(fits) {
                Some(state) => self.synced = state.clone(),
                None => oldest.map_err(|SuiteViolation(why)| {
                    let count = states.len();
                    SuiteViolation(format!(
                        "not as any of the {count} writes since the sync: {why}"
                    ))
                })?,
            }
        }
        self.expected.clear();
        self.snapshots.retain(|id, _| *id == opened.boot.snapshot.id);
        self.check_all()
    }

    fn check_boot(&self, state: &StorageModel, boot: &Boot) -> CaseResult {
        state.check_boot(boot, &self.newest_snapshot_of(state), self.trimmed)
    }

    pub(super) fn now(&self) -> &StorageModel {
        self.unsynced.last().unwrap_or(&self.synced)
    }

    pub(super) fn newest_snapshot(&self) -> EntryId {
        self.newest_snapshot_of(self.now()).id
    }

    /// The newest one of an entry in the log, or just before it.
    fn newest_snapshot_of(&self, state: &StorageModel) -> SnapshotMeta {
        let held = self.snapshots.values().filter(|captured| state.holds(captured.meta.id));
        let newest = held.max_by_key(|captured| captured.meta.id.index);
        newest.map(|captured| captured.meta.clone()).unwrap_or_default()
    }

    /// Checks the log and the snapshots.
    pub(super) fn check_all(&mut self) -> CaseResult {
        let last = self.now().last().index;
        let mut next = self.first_kept();
        while next <= last {
            next += self.check_load(next..last + 1, u64::MAX)?;
        }
        self.check_load(last + 1..last + 10, u64::MAX)?;
        let newest = Some(self.newest_snapshot()).filter(|id| *id != EntryId::ZERO);
        let expected: Vec<EntryId> = self.expected.iter().copied().chain(newest).collect();
        expected.into_iter().try_for_each(|id| self.check_snapshot(id))
    }

    /// The oldest entry that has to be kept.
    fn first_kept(&self) -> Index {
        let trimmed = self.trimmed.min(self.newest_snapshot().index);
        trimmed.max(self.now().floor().index) + 1
    }

    /// Loads entries, and returns their number.
    pub(super) fn check_load(&mut self, range: Range<Index>, bytes_max: u64) -> CaseResult<u64> {
        let found = check_ok("load", self.storage.load(range.clone(), bytes_max))?;
        let what = format!("loading {range:?} with at most {bytes_max} bytes");
        let (first_kept, last) = (self.first_kept(), self.now().last().index);
        let is_kept = (first_kept..=last).contains(&range.start);
        if is_kept && !range.is_empty() && found.is_empty() {
            return Err(SuiteViolation(format!("{what} gave nothing of a log up to {last}")));
        }
        let mut bytes = 0;
        for (index, entry) in (range.start..).zip(found.iter()) {
            if index >= range.end || (index > range.start && bytes >= bytes_max) {
                return Err(SuiteViolation(format!("{what} went on to {}", entry.id)));
            }
            same(&what, &Some(entry), &self.now().entry(index))?;
            bytes += entry.bytes();
        }
        Ok(found.len() as u64)
    }

    /// Writes new entries of this term in place of existing ones.
    pub(super) fn append(
        &mut self,
        term: Term,
        indexes: impl Iterator<Item = Index>,
    ) -> CaseResult {
        let entries = indexes.map(|index| entry(EntryId::new(term, index))).collect();
        let now = self.now().hard_state;
        let hard_state = (term > now.term).then_some(HardState { term, vote: None, ..now });
        self.save(hard_state, entries, None)
    }

    pub(super) fn save_hard_state(&mut self, hard_state: HardState) -> CaseResult {
        self.save(Some(hard_state), Vec::new(), None)
    }

    /// Installs a snapshot that was adopted, with entries after it.
    pub(super) fn install(&mut self, meta: &SnapshotMeta, entries: Vec<Entry>) -> CaseResult {
        let HardState { term, vote, commit } = self.now().hard_state;
        let reached = entries.last().map_or(meta.id.term, |entry| entry.id.term);
        let vote = vote.filter(|_| term >= reached);
        let commit = commit.max(meta.id.index);
        let hard_state = HardState { term: term.max(reached), vote, commit };
        self.save(Some(hard_state), entries, Some(meta.clone()))?;
        self.expected.insert(meta.id);
        Ok(())
    }

    fn save(
        &mut self,
        hard_state: Option<HardState>,
        entries: Vec<Entry>,
        install: Option<SnapshotMeta>,
    ) -> CaseResult {
        self.saves += 1;
        let save = Save {
            id: SaveId(self.saves),
            hard_state,
            entries: entries.into(),
            install,
            must_sync: true,
            then_send: Vec::new(),
        };
        check_ok("write", self.storage.write(&save))?;
        let mut state = self.now().clone();
        state.apply(&save);
        self.unsynced.push(state);
        Ok(())
    }

    pub(super) fn sync(&mut self) -> CaseResult {
        check_ok("sync", self.storage.sync())?;
        self.synced = self.unsynced.pop().unwrap_or_else(|| self.synced.clone());
        self.unsynced.clear();
        Ok(())
    }

    pub(super) fn trim(&mut self, index: Index) -> CaseResult {
        check_ok("trim", self.storage.trim(index))?;
        self.trimmed = self.trimmed.max(index);
        Ok(())
    }

    /// Captures the machine as of this entry.
    pub(super) fn capture(&mut self, index: Index, bytes: usize) -> CaseResult<EntryId> {
        let meta = self.now().meta_at(index);
        self.receive(&meta, bytes)?;
        Ok(meta.id)
    }

    /// Writes a snapshot and adopts it.
    pub(super) fn receive(&mut self, meta: &SnapshotMeta, bytes: usize) -> CaseResult {
        let sink = self.begin_snapshot(meta)?;
        fill(sink, &content(meta.id, bytes))?;
        self.adopt(meta, bytes)
    }

    pub(super) fn begin_snapshot(
        &mut self,
        meta: &SnapshotMeta,
    ) -> CaseResult<Box<dyn SnapshotSink>> {
        check_ok("beginning a snapshot", self.storage.begin_snapshot(meta.clone()))
    }

    pub(super) fn adopt(&mut self, meta: &SnapshotMeta, bytes: usize) -> CaseResult {
        check_ok("adopting a snapshot", self.storage.adopt_snapshot(meta.id))?;
        let captured = CapturedSnapshot { meta: meta.clone(), content: content(meta.id, bytes) };
        self.snapshots.insert(meta.id, captured);
        Ok(())
    }

    pub(super) fn open_snapshot(&mut self, id: EntryId) -> CaseResult<Box<dyn SnapshotSource>> {
        check_ok(&format!("opening snapshot {id}"), self.storage.open_snapshot(id))
    }

    pub(super) fn check_snapshot(&mut self, id: EntryId) -> CaseResult {
        let source = self.open_snapshot(id)?;
        let Some(captured) = self.snapshots.get(&id) else {
            return Err(SuiteViolation(format!("snapshot {id} was never adopted")));
        };
        same("the meta of a snapshot", source.meta(), &captured.meta)?;
        check_content(source, &captured.content)
    }

    pub(super) fn release(&mut self, id: EntryId) {
        self.storage.release_snapshot(id);
        self.expected.remove(&id);
    }

    pub(super) fn expected(&self) -> Option<EntryId> {
        self.expected.first().copied()
    }
}

/// Writes all of a snapshot, in pieces, and finishes it.
pub(super) fn fill(mut sink: Box<dyn SnapshotSink>, content: &[u8]) -> CaseResult {
    for piece in content.chunks(PIECE_BYTES) {
        check_ok("appending to a snapshot", sink.append(piece))?;
        check_ok("syncing a part of a snapshot", sink.sync())?;
    }
    check_ok("finishing a snapshot", sink.finish())
}

/// The rest of a snapshot is exactly this.
pub(super) fn check_content(mut source: Box<dyn SnapshotSource>, content: &[u8]) -> CaseResult {
    let id = source.meta().id;
    same(&format!("the size of snapshot {id}"), &source.bytes(), &(content.len() as u64))?;
    let mut found = Vec::new();
    while let Some(chunk) = check_ok("reading a snapshot", source.next_chunk())? {
        found.extend_from_slice(&chunk);
    }
    if found == content {
        return Ok(());
    }
    let common =
        found.iter().zip(content).take_while(|(found, expected)| found == expected).count();
    let (found, expected) = (found.len(), content.len());
    let sizes = format!("{found} bytes were read, {expected} written");
    Err(SuiteViolation(format!("snapshot {id} differs from byte {common} on: {sizes}")))
}

pub(super) fn check_ok<T>(what: &str, result: Result<T, StorageError>) -> CaseResult<T> {
    result.map_err(|why| SuiteViolation(format!("{what} failed: {why}")))
}

pub(super) fn same<T: PartialEq + fmt::Debug + ?Sized>(
    what: &str,
    found: &T,
    expected: &T,
) -> CaseResult {
    if found == expected {
        return Ok(());
    }
    Err(SuiteViolation(format!("{what}: found {found:?}, expected {expected:?}")))
}

const PIECE_BYTES: usize = 1000;
