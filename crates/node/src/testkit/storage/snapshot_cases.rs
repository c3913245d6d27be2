//! The cases about snapshots: own ones and those of peers, trimming and installing.

use std::thread;

use quorate_core::{EntryId, HardState};

use super::model::{content, entry, meta_of_peer};
use super::trial::{CaseResult, End, StorageTrial, SuiteViolation, check_content, fill};
use super::{StorageCase, StorageUnderTest};

pub(super) fn all() -> impl Iterator<Item = StorageCase> {
    let case = |name, run| StorageCase { name, crashes: false, run };
    let crash = |name, run| StorageCase { name, crashes: true, run };
    let cases: [StorageCase; 11] = [
        case("a_snapshot_is_written_while_saves_continue", beside_saves),
        case("a_snapshot_of_a_peer_changes_nothing_before_it_is_installed", not_installed),
        case("an_installed_snapshot_replaces_the_log", installed),
        case("an_installed_snapshot_replaces_a_longer_log", installed_in_longer_log),
        crash("an_install_that_was_not_synced_goes_as_a_whole", install_crashed),
        case("an_installed_snapshot_is_kept_until_released", released),
        case("trimming_keeps_all_entries_above", trimmed),
        crash("trimming_rests_on_what_is_durable", trimmed_unsynced),
        case("a_dropped_sink_leaves_nothing", dropped_sink),
        case("a_dropped_sink_leaves_the_snapshot_before_it", dropped_second_sink),
        case("a_source_outlives_its_replacement", outlived),
    ];
    cases.into_iter()
}

/// A log that is committed up to the end.
fn with_log(subject: StorageUnderTest, last: u64) -> CaseResult<StorageTrial> {
    let mut trial = StorageTrial::first(subject)?;
    trial.append(2, 2..=last)?;
    let hard_state = HardState { commit: last, ..trial.now().hard_state };
    trial.save_hard_state(hard_state)?;
    trial.sync()?;
    Ok(trial)
}

fn beside_saves(subject: StorageUnderTest) -> CaseResult {
    let mut trial = with_log(subject, 30)?;
    let meta = trial.now().meta_at(20);
    let sink = trial.begin_snapshot(&meta)?;
    thread::scope(|scope| {
        let writing = scope.spawn(|| fill(sink, &content(meta.id, SNAPSHOT_BYTES)));
        for first in 31..40 {
            trial.append(3, first..=first)?;
            trial.sync()?;
        }
        writing.join().unwrap_or_else(|_| Err(SuiteViolation("writing a snapshot panicked".into())))
    })?;
    trial.adopt(&meta, SNAPSHOT_BYTES)?;
    trial.check_all()?;
    let source = trial.open_snapshot(meta.id)?;
    thread::scope(|scope| {
        let reading = scope.spawn(|| check_content(source, &content(meta.id, SNAPSHOT_BYTES)));
        for first in 40..50 {
            trial.append(3, first..=first)?;
            trial.sync()?;
        }
        reading.join().unwrap_or_else(|_| Err(SuiteViolation("reading a snapshot panicked".into())))
    })?;
    trial.reopen(End::Drop)?.reopen(End::Crash).map(drop)
}

fn not_installed(subject: StorageUnderTest) -> CaseResult {
    let mut trial = with_log(subject, 10)?;
    let meta = meta_of_peer(EntryId::new(4, 20));
    trial.receive(&meta, SNAPSHOT_BYTES)?;
    trial.check_all()?;
    trial.check_snapshot(meta.id)?;
    trial.append(3, 11..=12)?;
    trial.reopen(End::Close).map(drop)
}

fn installed(subject: StorageUnderTest) -> CaseResult {
    let mut trial = with_log(subject, 10)?;
    let meta = meta_of_peer(EntryId::new(4, 20));
    trial.receive(&meta, SNAPSHOT_BYTES)?;
    trial.install(&meta, Vec::new())?;
    trial.check_all()?;
    trial.check_load(5..30, u64::MAX)?;
    trial.sync()?;
    trial.check_all()?;
    trial.release(meta.id);
    trial = trial.reopen(End::Drop)?;
    trial.append(5, 21..=25)?;
    trial.sync()?;
    // One save may bring entries with a snapshot.
    let meta = meta_of_peer(EntryId::new(6, 40));
    trial.receive(&meta, 0)?;
    trial.install(&meta, (41..=44).map(|index| entry(EntryId::new(6, index))).collect())?;
    trial.check_all()?;
    trial.sync()?;
    trial.check_all()?;
    trial.reopen(End::Drop)?.reopen(End::Close).map(drop)
}

fn installed_in_longer_log(subject: StorageUnderTest) -> CaseResult {
    let mut trial = with_log(subject, 5)?;
    trial.append(2, 6..=60)?;
    trial.sync()?;
    let meta = meta_of_peer(EntryId::new(3, 30));
    trial.receive(&meta, SNAPSHOT_BYTES)?;
    trial.install(&meta, Vec::new())?;
    trial.sync()?;
    trial.check_all()?;
    for first in [10, 30, 31, 45] {
        trial.check_load(first..70, u64::MAX)?;
    }
    trial.append(3, 31..=33)?;
    trial.sync()?;
    trial.reopen(End::Drop).map(drop)
}

fn install_crashed(subject: StorageUnderTest) -> CaseResult {
    let mut trial = with_log(subject, 10)?;
    let meta = meta_of_peer(EntryId::new(4, 20));
    trial.receive(&meta, SNAPSHOT_BYTES)?;
    trial.append(3, 11..=12)?;
    trial.install(&meta, vec![entry(EntryId::new(4, 21))])?;
    trial.append(4, 22..=25)?;
    trial.reopen(End::Crash)?.reopen(End::Crash).map(drop)
}

fn released(subject: StorageUnderTest) -> CaseResult {
    let mut trial = with_log(subject, 10)?;
    let [older, newer] = [(3, 20), (4, 40)].map(|(term, at)| meta_of_peer(EntryId::new(term, at)));
    for meta in [&older, &newer] {
        trial.receive(meta, SNAPSHOT_BYTES)?;
        trial.install(meta, Vec::new())?;
        trial.sync()?;
    }
    trial.append(4, 41..=50)?;
    trial.sync()?;
    trial.capture(45, SNAPSHOT_BYTES)?;
    trial.trim(45)?;
    // Both are still expected.
    trial.check_all()?;
    trial.release(older.id);
    trial.release(newer.id);
    trial.trim(45)?;
    trial.check_all()?;
    trial.reopen(End::Drop).map(drop)
}

fn trimmed(subject: StorageUnderTest) -> CaseResult {
    let mut trial = with_log(subject, 200)?;
    trial.capture(150, SNAPSHOT_BYTES)?;
    trial.trim(100)?;
    trial.check_all()?;
    trial.check_load(95..120, u64::MAX)?;
    trial.append(3, 201..=220)?;
    trial.sync()?;
    trial = trial.reopen(End::Drop)?;
    trial.trim(150)?;
    trial.check_all()?;
    trial.capture(200, 10)?;
    trial.trim(200)?;
    trial.check_all()?;
    // An uncommitted tail may still be replaced.
    trial.append(4, 210..=211)?;
    trial.sync()?;
    trial.check_all()?;
    trial.reopen(End::Drop)?.reopen(End::Close).map(drop)
}

/// A machine may run ahead of its disk, and be captured there.
fn trimmed_unsynced(subject: StorageUnderTest) -> CaseResult {
    let mut trial = with_log(subject, 50)?;
    trial.append(3, 51..=60)?;
    let hard_state = HardState { commit: 60, ..trial.now().hard_state };
    trial.save_hard_state(hard_state)?;
    trial.capture(55, SNAPSHOT_BYTES)?;
    trial.trim(55)?;
    trial.append(3, 61..=62)?;
    trial.reopen(End::Crash).map(drop)
}

fn dropped_sink(subject: StorageUnderTest) -> CaseResult {
    let mut trial = with_log(subject, 10)?;
    let meta = trial.now().meta_at(8);
    let mut sink = trial.begin_snapshot(&meta)?;
    let appended = sink.append(&content(meta.id, SNAPSHOT_BYTES));
    appended.map_err(|why| SuiteViolation(format!("appending to a snapshot failed: {why}")))?;
    drop(sink);
    trial.check_all()?;
    if trial.storage.open_snapshot(meta.id).is_ok() {
        return Err(SuiteViolation(format!(
            "snapshot {} was given up, and can be opened",
            meta.id
        )));
    }
    // A storage that has failed is not used any more, but for opening it again.
    trial.reopen(End::Drop).map(drop)
}

fn dropped_second_sink(subject: StorageUnderTest) -> CaseResult {
    let mut trial = with_log(subject, 10)?;
    let id = trial.capture(8, SNAPSHOT_BYTES)?;
    let meta = trial.now().meta_at(8);
    let mut sink = trial.begin_snapshot(&meta)?;
    let appended = sink.append(b"something else");
    appended.map_err(|why| SuiteViolation(format!("appending to a snapshot failed: {why}")))?;
    drop(sink);
    trial.check_snapshot(id)?;
    trial.reopen(End::Drop).map(drop)
}

fn outlived(subject: StorageUnderTest) -> CaseResult {
    let mut trial = with_log(subject, 30)?;
    let older = trial.capture(10, SNAPSHOT_BYTES)?;
    let own = trial.open_snapshot(older)?;
    trial.capture(20, SNAPSHOT_BYTES)?;
    trial.trim(20)?;
    let newer = EntryId::new(2, 20);
    let replaced = trial.open_snapshot(newer)?;
    let meta = meta_of_peer(EntryId::new(5, 50));
    trial.receive(&meta, SNAPSHOT_BYTES)?;
    trial.install(&meta, Vec::new())?;
    trial.sync()?;
    trial.release(meta.id);
    trial.append(5, 51..=53)?;
    trial.sync()?;
    check_content(own, &content(older, SNAPSHOT_BYTES))?;
    check_content(replaced, &content(newer, SNAPSHOT_BYTES))?;
    trial.check_all()?;
    trial.reopen(End::Drop).map(drop)
}

/// Many pieces.
const SNAPSHOT_BYTES: usize = 25_500;
