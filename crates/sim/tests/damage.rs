//! Damage to files of the store, one at a time: every one is noticed or harmless.

use quorate_sim::storage_check::damage;

#[test]
fn every_damage_is_noticed_or_harmless() {
    let report = damage::explore().unwrap_or_else(|violation| panic!("{violation}"));
    println!("{report}");
    assert!(report.noticed > 50_000 && report.cases() > 80_000, "{report}");
    assert_eq!(report.taken_for_torn, 0);
}

#[test]
fn without_the_mark_only_the_last_batch_may_be_taken_for_torn() {
    let report = damage::explore_unmarked().unwrap_or_else(|violation| panic!("{violation}"));
    println!("{report}");
    assert!(report.taken_for_torn > 0, "that case is reached: {report}");
}
