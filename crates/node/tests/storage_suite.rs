//! The storages that come with Quorate pass the suite, and storages with one fault each
//! do not: the suite names the case.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;
use std::sync::{Arc, Mutex};

use quorate::storage::{SnapshotSink, SnapshotSource, Storage, StorageError, StoredState};
use quorate::testkit::storage::{FailedCase, StorageSuiteFailure, StorageUnderTest, check};
use quorate::{DirectoryStorage, MemoryStorage};
use quorate_core::{Boot, Entries, EntryId, HardState, Index, Save, SnapshotMeta};
use quorate_storage::{FileDisk, StoreConfig, StoreIdentity};

#[test]
fn memory_storage_passes() {
    let passed = check(|| {
        let place = MemoryStorage::new();
        let power = place.clone();
        StorageUnderTest::new(move || place.clone()).with_crash(move || power.crash())
    });
    assert!(passed.unwrap().skipped.is_empty());
}

#[test]
fn directory_storage_passes() {
    // The files of a member's log are larger; making one takes a disk a while.
    directory_passes(StoreConfig::new().segment_bytes(256 << 10));
}

/// Many small files, and a log of which memory holds the least part.
#[test]
fn directory_storage_passes_with_small_segments() {
    directory_passes(StoreConfig::new().segment_bytes(4 << 10).tail_bytes_max(500));
}

fn directory_passes(config: StoreConfig) {
    let passed = check(|| {
        let dir = tempfile::tempdir().unwrap();
        StorageUnderTest::new(move || {
            DirectoryStorage::with_disk(FileDisk::open(dir.path().join("data")).unwrap(), config)
        })
    });
    // A test cannot cut the power of a real disk.
    assert_eq!(passed.unwrap().skipped.len(), 4);
}

#[test]
fn each_fault_is_found() {
    for (fault, case) in FAULTS {
        let Err(StorageSuiteFailure { cases }) = check(|| broken(fault)) else {
            panic!("{fault:?} passed");
        };
        let named = cases.iter().any(|failed: &FailedCase| failed.case == case);
        assert!(named, "{fault:?} was to be found by {case}: {}", StorageSuiteFailure { cases });
    }
}

#[test]
fn a_storage_that_panics_is_named_with_its_case() {
    let failure = check(|| broken(Fault::PanicsOnLoad)).unwrap_err();
    let text = failure.to_string();
    assert!(
        text.contains(
            "loads_stay_within_limits: the storage panicked: loading is not for this storage"
        ),
        "{text}"
    );
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    ForgetsVote,
    ForgetsCommit,
    /// Keeps its entries instead of the conflicting ones it is given.
    KeepsConflictingTail,
    IgnoresLoadLimit,
    LoadsNothingAtTheLimit,
    CountsNoOpens,
    LetsAnyMemberIn,
    TakesTheNewMark,
    /// A sync that does nothing.
    SyncsNothing,
    /// What is found at the start is not synced.
    LeavesFoundUnsynced,
    TrimsOneTooMuch,
    /// Only the entries of an install are written.
    IgnoresInstall,
    /// Only an install counts, not the entries that come with it.
    DropsEntriesOfInstall,
    ReleasesAtOnce,
    CutsSnapshots,
    SwapsSnapshotChunks,
    FinishesDroppedSinks,
    PanicsOnLoad,
}

const FAULTS: [(Fault, &str); 17] = [
    (Fault::ForgetsVote, "term_vote_and_commit_are_kept"),
    (Fault::ForgetsCommit, "term_vote_and_commit_are_kept"),
    (Fault::KeepsConflictingTail, "new_entries_replace_a_longer_tail"),
    (Fault::IgnoresLoadLimit, "loads_stay_within_limits"),
    (Fault::LoadsNothingAtTheLimit, "loads_stay_within_limits"),
    (Fault::CountsNoOpens, "reopening_keeps_the_mark_and_counts"),
    (Fault::LetsAnyMemberIn, "another_member_is_refused"),
    (Fault::TakesTheNewMark, "reopening_keeps_the_mark_and_counts"),
    (Fault::SyncsNothing, "a_crash_leaves_a_prefix_with_all_that_was_synced"),
    (Fault::LeavesFoundUnsynced, "what_an_open_found_survives_a_crash"),
    (Fault::TrimsOneTooMuch, "trimming_keeps_all_entries_above"),
    (Fault::IgnoresInstall, "an_installed_snapshot_replaces_the_log"),
    (Fault::DropsEntriesOfInstall, "an_installed_snapshot_replaces_the_log"),
    (Fault::ReleasesAtOnce, "an_installed_snapshot_is_kept_until_released"),
    (Fault::CutsSnapshots, "a_snapshot_is_written_while_saves_continue"),
    (Fault::SwapsSnapshotChunks, "a_snapshot_is_written_while_saves_continue"),
    (Fault::FinishesDroppedSinks, "a_dropped_sink_leaves_nothing"),
];

fn broken(fault: Fault) -> StorageUnderTest {
    let inner = MemoryStorage::new();
    let power = inner.clone();
    let kept = Arc::new(Mutex::new(Kept::default()));
    let lost = Arc::clone(&kept);
    let handle = move || Broken { inner: inner.clone(), fault, kept: Arc::clone(&kept) };
    StorageUnderTest::new(handle).with_crash(move || {
        power.crash();
        let mut lost = lost.lock().unwrap();
        lost.written = lost.synced;
    })
}

/// What faults need to know from one handle to the next.
#[derive(Default)]
struct Kept {
    mark: Option<StoreIdentity>,
    last: Index,
    written: HardState,
    synced: HardState,
}

/// A storage that is right but for one fault.
struct Broken {
    inner: MemoryStorage,
    fault: Fault,
    kept: Arc<Mutex<Kept>>,
}

impl Storage for Broken {
    fn open(&mut self, mark: StoreIdentity, first: &Boot) -> Result<StoredState, StorageError> {
        let mut kept = self.kept.lock().unwrap();
        if kept.mark.is_none() {
            kept.last = first.snapshot.id.index;
            kept.written = first.hard_state;
            kept.synced = first.hard_state;
        }
        let owner = *kept.mark.get_or_insert(mark);
        let shown = if self.fault == Fault::LetsAnyMemberIn { owner } else { mark };
        let mut opened = self.inner.open(shown, first)?;
        kept.last = opened.boot.tail.last().map_or(opened.boot.base, |entry| entry.id).index;
        match self.fault {
            Fault::CountsNoOpens => opened.boots = 1,
            Fault::TakesTheNewMark => opened.identity = mark,
            Fault::LeavesFoundUnsynced => opened.boot.hard_state = kept.written,
            _ => {}
        }
        Ok(opened)
    }

    fn write(&mut self, save: &Save) -> Result<(), StorageError> {
        let mut save = save.clone();
        let mut kept = self.kept.lock().unwrap();
        let installed = save.install.as_ref().map(|meta| meta.id);
        match (self.fault, &mut save.hard_state) {
            (Fault::ForgetsVote, Some(hard_state)) => hard_state.vote = None,
            (Fault::ForgetsCommit, Some(hard_state)) => hard_state.commit = 0,
            (Fault::KeepsConflictingTail, _) if installed.is_none() => {
                let new = save.entries.iter().filter(|entry| entry.id.index > kept.last);
                save.entries = new.cloned().collect();
            }
            (Fault::IgnoresInstall, _) => save.install = None,
            (Fault::DropsEntriesOfInstall, _) if installed.is_some() => {
                save.entries = Entries::new();
            }
            _ => {}
        }
        kept.written = save.hard_state.unwrap_or(kept.written);
        let last = save.entries.last().map(|entry| entry.id).or(installed);
        kept.last = last.map_or(kept.last, |id| id.index);
        self.inner.write(&save)?;
        if let Some(id) = installed
            && self.fault == Fault::ReleasesAtOnce
        {
            self.inner.release_snapshot(id);
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        if self.fault == Fault::SyncsNothing {
            return Ok(());
        }
        let mut kept = self.kept.lock().unwrap();
        kept.synced = kept.written;
        self.inner.sync()
    }

    fn load(&mut self, range: Range<Index>, bytes_max: u64) -> Result<Entries, StorageError> {
        match self.fault {
            Fault::IgnoresLoadLimit => self.inner.load(range, u64::MAX),
            Fault::LoadsNothingAtTheLimit if bytes_max < 2 => Ok(Entries::new()),
            Fault::PanicsOnLoad => panic!("loading is not for this storage"),
            _ => self.inner.load(range, bytes_max),
        }
    }

    fn trim(&mut self, index: Index) -> Result<(), StorageError> {
        self.inner.trim(index + u64::from(self.fault == Fault::TrimsOneTooMuch))
    }

    fn begin_snapshot(
        &mut self,
        meta: SnapshotMeta,
    ) -> Result<Box<dyn SnapshotSink>, StorageError> {
        let inner = Some(self.inner.begin_snapshot(meta)?);
        Ok(Box::new(BrokenSink { inner, fault: self.fault, pieces: Vec::new() }))
    }

    fn adopt_snapshot(&mut self, id: EntryId) -> Result<(), StorageError> {
        self.inner.adopt_snapshot(id)
    }

    fn open_snapshot(&mut self, id: EntryId) -> Result<Box<dyn SnapshotSource>, StorageError> {
        if self.fault == Fault::FinishesDroppedSinks {
            // Of those that are adopted already there is nothing to adopt.
            let _ = self.inner.adopt_snapshot(id);
        }
        self.inner.open_snapshot(id)
    }

    fn release_snapshot(&mut self, id: EntryId) {
        self.inner.release_snapshot(id);
    }

    fn close(&mut self) -> Result<(), StorageError> {
        self.inner.close()
    }
}

struct BrokenSink {
    inner: Option<Box<dyn SnapshotSink>>,
    fault: Fault,
    pieces: Vec<Vec<u8>>,
}

impl SnapshotSink for BrokenSink {
    fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        let cut = self.fault == Fault::CutsSnapshots;
        let kept = if cut { bytes.len() / 2 } else { bytes.len() };
        self.pieces.push(bytes[..kept].to_vec());
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), StorageError> {
        self.end()
    }
}

impl BrokenSink {
    fn end(&mut self) -> Result<(), StorageError> {
        let Some(mut sink) = self.inner.take() else { return Ok(()) };
        if self.fault == Fault::SwapsSnapshotChunks {
            self.pieces.reverse();
        }
        self.pieces.iter().try_for_each(|piece| sink.append(piece))?;
        sink.finish()
    }
}

impl Drop for BrokenSink {
    fn drop(&mut self) {
        if self.fault == Fault::FinishesDroppedSinks {
            self.end().unwrap();
        }
    }
}
