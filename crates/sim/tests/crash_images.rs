//! Every disk that a crash of a short workload can leave, and long ones by chance.

use quorate_sim::storage_check::{explore, walk};

#[test]
fn every_crash_of_every_short_workload_leaves_a_good_disk() {
    let mut images = 0;
    // One large save fills the first; the second takes several before a sync.
    for segment_bytes in [2560, 4096] {
        let report = explore(3, segment_bytes).unwrap_or_else(|violation| panic!("{violation}"));
        println!("segments of {segment_bytes} bytes: {report}");
        images += report.images;
    }
    assert!(images > 200_000, "{images}");
}

#[test]
fn long_workloads_survive_crashes_at_any_moment() {
    let (mut works, mut crashes, mut faults) = (0, 0, 0);
    for seed in 0..300 {
        let report = walk(seed, 200).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        works += report.works;
        crashes += report.crashes;
        faults += report.faults;
    }
    println!("{works} pieces of work, {crashes} crashes, {faults} failures survived");
    assert!(crashes > 5_000 && faults > 500, "{crashes} {faults}");
}
