//! Each wrong version of a storage rule is noticed by what checks the store.

use quorate_core::mutants::{Mutant, switch};
use quorate_sim::storage_check::{damage, explore, walk};

/// Who noticed, and how it shows.
fn noticed(mutant: Mutant) -> Option<(&'static str, String)> {
    switch(Some(mutant));
    let short = (1..=3).find_map(|length| explore(length, 2560).err());
    let found = short.map(|violation| ("crash images", violation.to_string()));
    let found = found.or_else(|| {
        let walked = (0..20).find_map(|seed| walk(seed, 200).err());
        walked.map(|violation| ("walks", violation.what))
    });
    let found = found
        .or_else(|| damage::explore().err().map(|violation| ("damage", violation.to_string())));
    switch(None);
    found
}

macro_rules! mutants {
    ($($name:ident: $mutant:ident,)*) => {$(
        #[test]
        fn $name() {
            let Some((checker, how)) = noticed(Mutant::$mutant) else {
                panic!("{:?} went unnoticed", Mutant::$mutant);
            };
            let how: String = how.chars().take(300).collect();
            println!("{:?} noticed by {checker}: {how}", Mutant::$mutant);
        }
    )*};
}

mutants! {
    term_and_vote_apart: TermAndVoteApart,
    sync_skipped: SyncSkipped,
    batch_partly_written: BatchPartlyWritten,
    sync_retried: SyncRetried,
    damage_taken_for_end: DamageTakenForEnd,
    segment_not_in_directory: SegmentNotInDirectory,
    snapshot_renamed_unsynced: SnapshotRenamedUnsynced,
    install_before_snapshot: InstallBeforeSnapshot,
    trim_before_snapshot: TrimBeforeSnapshot,
    torn_tail_kept: TornTailKept,
}
