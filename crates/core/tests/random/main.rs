//! Properties under random faults and hostile input. Short and the same every time
//! here; longer hunts by `QUORATE_CASES=100000 QUORATE_SEED=1 cargo test --release
//! -p quorate-core --test random`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod honest;
mod hostile;
mod world;

use proptest::test_runner::{Config as ProptestConfig, RngSeed};

/// The same cases every time, so that a failure in CI is a failure here.
fn cases(count: u32) -> ProptestConfig {
    ProptestConfig {
        cases: number_from("QUORATE_CASES").map_or(count, |count| count as u32),
        rng_seed: RngSeed::Fixed(number_from("QUORATE_SEED").unwrap_or(7)),
        failure_persistence: None,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    }
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
