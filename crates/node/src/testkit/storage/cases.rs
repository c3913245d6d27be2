//! The cases about identity, term and vote, and the log.

use quorate_core::{HardState, MemberId};
use quorate_storage::StoreIdentity;

use super::random::random_runs;
use super::trial::{CaseResult, End, MARK, StorageTrial};
use super::{StorageCase, StorageUnderTest, snapshot_cases};

pub(super) fn all() -> impl Iterator<Item = StorageCase> {
    let case = |name, run| StorageCase { name, crashes: false, run };
    let crash = |name, run| StorageCase { name, crashes: true, run };
    let own: [StorageCase; 14] = [
        case("first_open_marks_the_place", first_open),
        case("first_open_of_who_joins_is_empty", first_open_joining),
        case("reopening_keeps_the_mark_and_counts", reopening),
        case("another_cluster_is_refused", other_cluster),
        case("another_member_is_refused", other_member),
        case("term_vote_and_commit_are_kept", hard_state),
        case("loads_stay_within_limits", load_limits),
        case("new_entries_replace_a_longer_tail", conflicting_tail),
        case("a_long_log_is_found_again", long_log),
        case("close_keeps_what_was_not_synced", close),
        case("a_process_that_ends_leaves_a_prefix", ended_process),
        crash("a_crash_leaves_a_prefix_with_all_that_was_synced", crashed),
        crash("what_an_open_found_survives_a_crash", found_then_crashed),
        case("random_runs_agree_with_the_model", random_runs),
    ];
    own.into_iter().chain(snapshot_cases::all())
}

fn first_open(subject: StorageUnderTest) -> CaseResult {
    let mut trial = StorageTrial::first(subject)?;
    trial.check_load(1..9, u64::MAX)?;
    trial.reopen(End::Close).map(drop)
}

fn first_open_joining(subject: StorageUnderTest) -> CaseResult {
    let mut trial = StorageTrial::joining(subject)?;
    trial.check_load(1..9, u64::MAX)?;
    trial.append(1, 1..=3)?;
    trial.sync()?;
    trial.check_all()?;
    trial.reopen(End::Close).map(drop)
}

fn reopening(subject: StorageUnderTest) -> CaseResult {
    let mut trial = StorageTrial::first(subject)?;
    for end in [End::Close, End::Drop, End::Crash, End::Crash, End::Close] {
        trial = trial.reopen(end)?;
    }
    Ok(())
}

fn other_cluster(subject: StorageUnderTest) -> CaseResult {
    let mut trial = StorageTrial::first(subject)?;
    trial.append(2, 2..=4)?;
    let other = StoreIdentity { cluster: MARK.cluster + 1, ..MARK };
    trial.reopen_refused(other)?.reopen(End::Drop).map(drop)
}

fn other_member(subject: StorageUnderTest) -> CaseResult {
    let mut trial = StorageTrial::first(subject)?;
    trial.append(2, 2..=4)?;
    let other = StoreIdentity { member: MemberId(8), ..MARK };
    trial.reopen_refused(other)?.reopen(End::Drop).map(drop)
}

fn hard_state(subject: StorageUnderTest) -> CaseResult {
    let mut trial = StorageTrial::first(subject)?;
    let vote = Some(MemberId(2));
    trial.save_hard_state(HardState { term: 3, vote, commit: 1 })?;
    trial.sync()?;
    trial = trial.reopen(End::Drop)?;
    // A save without term and vote leaves them as they are.
    trial.append(3, 2..=4)?;
    trial.sync()?;
    trial = trial.reopen(End::Drop)?;
    trial.save_hard_state(HardState { term: 3, vote, commit: 4 })?;
    trial.sync()?;
    trial = trial.reopen(End::Drop)?;
    // A new term begins without a vote.
    trial.save_hard_state(HardState { term: 4, vote: None, commit: 4 })?;
    trial.sync()?;
    trial.reopen(End::Drop).map(drop)
}

fn load_limits(subject: StorageUnderTest) -> CaseResult {
    let mut trial = StorageTrial::first(subject)?;
    trial.append(2, 2..=20)?;
    trial.append(3, 21..=30)?;
    for synced in [false, true] {
        if synced {
            trial.sync()?;
        }
        for (range, bytes_max) in [
            (2..31, u64::MAX),
            (2..31, 0),
            (2..31, 1),
            (7..12, 300),
            (20..22, 10_000),
            (30..31, 1),
            (30..99, u64::MAX),
            (12..12, u64::MAX),
            (31..40, u64::MAX),
            (0..5, u64::MAX),
        ] {
            trial.check_load(range, bytes_max)?;
        }
    }
    trial.check_all()
}

fn conflicting_tail(subject: StorageUnderTest) -> CaseResult {
    let mut trial = StorageTrial::first(subject)?;
    trial.append(2, 2..=12)?;
    trial.sync()?;
    // Shorter than what it replaces: the rest has to go too.
    trial.append(3, 6..=8)?;
    trial.check_all()?;
    trial.sync()?;
    trial.check_all()?;
    trial = trial.reopen(End::Drop)?;
    trial.append(4, 9..=15)?;
    // Replaced before it was ever synced.
    trial.append(5, 9..=10)?;
    trial.append(6, 11..=20)?;
    trial.check_all()?;
    trial.sync()?;
    trial = trial.reopen(End::Drop)?;
    // Everything after the first snapshot.
    trial.append(7, 2..=2)?;
    trial.sync()?;
    trial.check_all()?;
    trial.reopen(End::Close).map(drop)
}

fn long_log(subject: StorageUnderTest) -> CaseResult {
    let mut trial = StorageTrial::first(subject)?;
    for batch in 0..60 {
        let first = 2 + batch * 10;
        trial.append(2 + batch / 7, first..first + 10)?;
        if batch % 4 == 0 {
            trial.sync()?;
        }
    }
    trial.sync()?;
    trial.check_all()?;
    trial.reopen(End::Close)?.reopen(End::Drop).map(drop)
}

fn close(subject: StorageUnderTest) -> CaseResult {
    let mut trial = StorageTrial::first(subject)?;
    trial.append(2, 2..=4)?;
    trial.sync()?;
    trial.append(3, 4..=6)?;
    trial.save_hard_state(HardState { term: 5, vote: Some(MemberId(3)), commit: 4 })?;
    trial.reopen(End::Close).map(drop)
}

fn ended_process(subject: StorageUnderTest) -> CaseResult {
    ends_unsynced(subject, End::Drop)
}

fn crashed(subject: StorageUnderTest) -> CaseResult {
    ends_unsynced(subject, End::Crash)
}

fn ends_unsynced(subject: StorageUnderTest, end: End) -> CaseResult {
    let mut trial = StorageTrial::first(subject)?;
    for round in 0..4 {
        let (term, last) = (2 * round + 2, trial.now().last().index);
        trial.append(term, last + 1..=last + 5)?;
        let vote = Some(MemberId(round + 1));
        trial.save_hard_state(HardState { term, vote, commit: last })?;
        trial.sync()?;
        trial.append(term, last + 6..=last + 8)?;
        trial.save_hard_state(HardState { term: term + 1, vote, commit: last + 1 })?;
        trial.append(term + 1, last + 3..=last + 4)?;
        trial.append(term + 1, last + 5..=last + 9)?;
        trial = trial.reopen(end)?;
    }
    Ok(())
}

/// Nobody saves again what was found: a vote that was found, and is then lost, would be
/// given twice.
fn found_then_crashed(subject: StorageUnderTest) -> CaseResult {
    let mut trial = StorageTrial::first(subject)?;
    trial.append(2, 2..=6)?;
    trial.save_hard_state(HardState { term: 3, vote: Some(MemberId(2)), commit: 1 })?;
    trial.reopen(End::Drop)?.reopen(End::Crash).map(drop)
}
