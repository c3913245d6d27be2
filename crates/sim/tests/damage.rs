//! Corrupts the store's files, one change at a time: each is detected or harmless.

use quorate_sim::storage_check::damage;

#[test]
fn every_damage_is_detected_or_harmless() {
    let report = damage::explore().unwrap_or_else(|violation| panic!("{violation}"));
    println!("{report}");
    assert!(report.detected > 50_000 && report.cases() > 80_000, "{report}");
    assert_eq!(report.treated_as_torn, 0);
}

#[test]
fn without_the_sync_mark_only_the_last_batch_may_be_treated_as_torn() {
    let report = damage::explore_unmarked().unwrap_or_else(|violation| panic!("{violation}"));
    println!("{report}");
    assert!(report.treated_as_torn > 0, "that case was not reached: {report}");
}
