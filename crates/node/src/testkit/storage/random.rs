//! Long runs of random operations of a member, from a seed.

use quorate_core::{EntryId, HardState, MemberId};

use super::StorageUnderTest;
use super::model::{entry, meta_of_peer};
use super::trial::{CaseResult, End, StorageTrial, SuiteViolation};
use crate::testkit::random_values::RandomValues;

/// Several runs on the same storage: each continues where the previous one ended.
pub(super) fn random_runs(subject: StorageUnderTest) -> CaseResult {
    let mut trial = StorageTrial::first(subject)?;
    for seed in 0..RUNS {
        let mut random = RandomValues::new(seed);
        for number in 0..ACTIONS {
            let action = random.below(WEIGHTS);
            trial = act(trial, action, &mut random).map_err(|SuiteViolation(why)| {
                SuiteViolation(format!("seed {seed}, action {number}: {why}"))
            })?;
        }
        trial.check_all()?;
        trial = trial.reopen(End::Close)?;
    }
    Ok(())
}

fn act(
    mut trial: StorageTrial,
    action: u64,
    random: &mut RandomValues,
) -> CaseResult<StorageTrial> {
    match action {
        0..10 => append(&mut trial, random)?,
        10..14 => replace_tail(&mut trial, random)?,
        14..18 => raise_hard_state(&mut trial, random)?,
        18..24 => trial.sync()?,
        24..28 => load(&mut trial, random)?,
        28..30 => capture(&mut trial, random)?,
        30..32 => {
            let newest = trial.newest_snapshot().index;
            trial.trim(newest.saturating_sub(random.below(10)))?;
        }
        32 => install(&mut trial, random)?,
        33 => {
            if let Some(id) = trial.expected() {
                trial.check_snapshot(id)?;
                trial.release(id);
            }
        }
        34 => trial.check_all()?,
        _ => {
            let ends = [End::Close, End::Drop, End::Crash];
            return trial.reopen(ends[random.below(3) as usize]);
        }
    }
    Ok(trial)
}

fn append(trial: &mut StorageTrial, random: &mut RandomValues) -> CaseResult {
    let (last, term) = (trial.now().last(), trial.now().hard_state.term);
    let term = term.max(1) + u64::from(random.below(8) == 0);
    trial.append(term, last.index + 1..=last.index + 1 + random.below(6))
}

fn replace_tail(trial: &mut StorageTrial, random: &mut RandomValues) -> CaseResult {
    let HardState { term, commit, .. } = trial.now().hard_state;
    let first = commit.max(trial.newest_snapshot().index) + 1;
    let first = first + random.below(trial.now().last().index.saturating_sub(first) + 1);
    trial.append(term + 1, first..=first + random.below(4))
}

fn raise_hard_state(trial: &mut StorageTrial, random: &mut RandomValues) -> CaseResult {
    let HardState { term, vote, commit } = trial.now().hard_state;
    let uncommitted = trial.now().last().index.saturating_sub(commit);
    let hard_state = match random.below(3) {
        0 => HardState { term: term + 1, vote: None, commit },
        1 => HardState { term, vote: vote.or(Some(MemberId(1 + random.below(5)))), commit },
        _ => HardState { term, vote, commit: commit + random.below(uncommitted + 1) },
    };
    trial.save_hard_state(hard_state)
}

fn load(trial: &mut StorageTrial, random: &mut RandomValues) -> CaseResult {
    let first = random.below(trial.now().last().index + 5);
    let count = random.below(40);
    let bytes_max = random.below(3000);
    trial.check_load(first..first + count, bytes_max).map(drop)
}

/// A snapshot of something that is committed and durable; sometimes abandoned.
fn capture(trial: &mut StorageTrial, random: &mut RandomValues) -> CaseResult {
    trial.sync()?;
    let (newest, commit) = (trial.newest_snapshot().index, trial.now().hard_state.commit);
    let Some(spare) = commit.checked_sub(newest + 1) else { return Ok(()) };
    let index = newest + 1 + random.below(spare + 1);
    if random.below(4) == 0 {
        let meta = trial.now().meta_at(index);
        let mut sink = trial.begin_snapshot(&meta)?;
        let appended = sink.append(b"abandoned");
        return appended
            .map_err(|why| SuiteViolation(format!("appending to a snapshot failed: {why}")));
    }
    trial.capture(index, random.below(5000) as usize).map(drop)
}

/// A snapshot of a peer that is far ahead; sometimes it is never installed.
fn install(trial: &mut StorageTrial, random: &mut RandomValues) -> CaseResult {
    let (last, term) = (trial.now().last(), trial.now().hard_state.term);
    let id = EntryId::new(term + 1, last.index + 1 + random.below(20));
    let meta = meta_of_peer(id);
    trial.receive(&meta, random.below(5000) as usize)?;
    if random.below(4) == 0 {
        return Ok(());
    }
    let entries = (1..=random.below(4)).map(|nth| entry(EntryId::new(id.term, id.index + nth)));
    trial.install(&meta, entries.collect())
}

const RUNS: u64 = 6;
const ACTIONS: u64 = 300;
/// Actions are chosen by a number below this; see `act`.
const WEIGHTS: u64 = 37;
