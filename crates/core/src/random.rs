//! The only randomness in the core: numbers derived from a seed.

use crate::pack::pack_fields;

/// A counter with a mixing function (splitmix64): small, uniform, and the same on every
/// machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SeededRandom {
    seed: u64,
    drawn: u64,
}

pack_fields!(SeededRandom { seed, drawn });

impl SeededRandom {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.drawn += 1;
        let mixed = mix(self.seed.wrapping_add(self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        // The high half of the product is uniform below the bound.
        (((mixed >> 32) * u64::from(bound)) >> 32) as u32
    }
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_below_the_bound_and_reach_all_of_it() {
        let mut random = SeededRandom::new(7);
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }
}
