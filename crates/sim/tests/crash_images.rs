//! Every disk that a crash of a short workload can leave, and long ones by chance.

use quorate_sim::storage_check::{explore, walk};

#[test]
fn every_crash_of_every_short_workload_leaves_a_good_disk() {
    let report = explore(3).unwrap_or_else(|violation| panic!("{violation}"));
    println!("{report}");
    assert!(report.images > 100_000, "{report}");
}

#[test]
fn long_workloads_survive_crashes_at_any_moment() {
    let (mut works, mut crashes) = (0, 0);
    for seed in 0..300 {
        let report = walk(seed, 200).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        works += report.works;
        crashes += report.crashes;
    }
    println!("{works} pieces of work, {crashes} crashes");
    assert!(crashes > 5_000, "{crashes}");
}
