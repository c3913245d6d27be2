//! Random clusters of bare cores, under every setting of the core, and hostile input.
//!
//! Short and with fixed seeds here. For a longer run:
//! `QUORATE_CASES=100000 QUORATE_SEED=1 cargo test --release -p quorate-sim --test cores`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod properties;
mod random;
mod settings;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use quorate_sim::random::Random;

/// Runs a property with this many seeds; the failing seed is named.
fn for_seeds(count: u64, property: impl Fn(&mut Random)) {
    let first = number_from("QUORATE_SEED").unwrap_or(7);
    for seed in first..first + number_from("QUORATE_CASES").unwrap_or(count) {
        let run = || property(&mut Random::new(seed));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            eprintln!("failed with QUORATE_SEED={seed} QUORATE_CASES=1");
            resume_unwind(panic);
        }
    }
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// A number below `count`, as an index.
fn pick(random: &mut Random, count: usize) -> usize {
    random.below(count as u64) as usize
}
