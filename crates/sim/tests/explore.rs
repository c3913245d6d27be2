//! A few random simulations with fixed seeds; the same seed gives the same run.
//!
//! The long search is `cargo run --release -p quorate-sim -- explore`.

use quorate_sim::explore::{RunReplay, RunReport, run};

const SEEDS: u64 = 150;

#[test]
fn no_simulation_breaks_a_rule() {
    let mut all = RunReport::default();
    for seed in 0..SEEDS {
        let replay = RunReplay::of_seed(seed);
        let outcome = run(&replay.setting, &replay.actions);
        if let Some(violation) = outcome.violation {
            panic!("seed {seed}: {violation}\nreplay with: explore --seed {seed} --trace");
        }
        all.add(&outcome.report);
    }
    println!("{all}");
    // Simulations in which nothing happens would break no rule either.
    assert!(all.healed > SEEDS * 9 / 10, "{all}");
    assert!(all.elections > SEEDS && all.goals_reached > 50 && all.changes_done > 50, "{all}");
    assert!(all.snapshots_installed > 20 && all.interrupted > 5 && all.cancels > 20, "{all}");
    let count = |event: &str| all.counts.get(event).copied().unwrap_or(0);
    for event in [
        "crash",
        "crash-in-write",
        "member ended by its disk",
        "lost message",
        "duplicated message",
        "pause",
        "split",
        "flip-bit",
        "lose-disk",
        "wipe-disk",
        "swap-disks",
        "fill-disk",
        "jump-clock",
        "transfer",
        "hang-disk",
        "hang-machine",
        "freeze",
        "slow-link",
        "fail-dir-sync",
        "lie-about-sync",
        "reuse-id",
        "tear-snapshot",
        "copy-disk",
        "move-disk",
        "restore-disk",
        "rolled-back disk noticed",
        "force-new-cluster",
        "keep-alive",
        "lease answered",
        "lease expires",
        "lease checkpoint",
        "watch",
        "watch compacted",
    ] {
        assert!(count(event) > 0, "no {event} in {all}");
    }
    assert!(all.endured > 5 && all.goals_finished > 5, "{all}");
    // Each committed membership counts once, not once for each member that reports it.
    assert!(all.memberships < 20 * SEEDS, "{all}");
}

/// Runs that a check once took for violations.
#[test]
fn rules_allow_what_is_right() {
    let replays = [
        // With tiny windows each entry takes a round trip of its own. The time limits allow for that.
        include_str!("long_backlog.replay"),
        // A follower is rolled back while its replies are on their way: the leader commits what was
        // on its disk.
        include_str!("rollback_with_replies_on_their_way.replay"),
        // A leader whose clock jumped logs how much time a lease has left; the next one counts on.
        include_str!("lease_checkpoint_after_clock_jump.replay"),
        // A member that joins under a gray fault has a disk as fast as those of the others.
        include_str!("joiner_with_a_healed_disk.replay"),
    ];
    for text in replays {
        let replay = RunReplay::parse(text).unwrap();
        let outcome = run(&replay.setting, &replay.actions);
        assert_eq!(outcome.violation, None, "{text}");
        assert_eq!(outcome.report.healed, 1, "{text}");
    }
}

#[test]
fn hints_break_no_rule() {
    let mut all = RunReport::default();
    for seed in 5_000..5_000 + SEEDS {
        let replay = RunReplay::of_seed_with_hints(seed);
        let outcome = run(&replay.setting, &replay.actions);
        if let Some(violation) = outcome.violation {
            panic!("seed {seed}: {violation}\nreplay with: explore --hints --seed {seed} --trace");
        }
        all.add(&outcome.report);
    }
    let count = |event: &str| all.counts.get(event).copied().unwrap_or(0);
    assert!(count("hint that a member died") > 50 && count("false hint") > 50, "{all}");
    assert!(all.healed > SEEDS * 9 / 10, "{all}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1_000..1_030 {
        let replay = RunReplay::of_seed(seed);
        let first = run(&replay.setting, &replay.actions).report;
        let read = RunReplay::parse(&replay.to_string()).unwrap();
        let second = run(&read.setting, &read.actions).report;
        assert_eq!(first, second, "seed {seed}");
    }
}
