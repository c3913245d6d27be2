//! Numbers drawn from a seed: the only chance in a simulated world.

/// A counter behind a mixing function (splitmix64): the same on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { state: mix(seed ^ 0x6a09_e667_f3bc_c909) }
    }

    /// A stream of its own for each purpose, so that drawing more here moves nothing
    /// there.
    pub fn stream(seed: u64, purpose: u64) -> Self {
        Self::new(seed ^ mix(purpose.wrapping_add(1)))
    }

    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `bound`; 0 when that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `from` up to and including `to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// True in this many of 1000 cases.
    pub fn per_mille(&mut self, parts: u64) -> bool {
        parts > 0 && self.below(1_000) < parts
    }

    /// True in this many of a million cases.
    pub fn per_million(&mut self, parts: u64) -> bool {
        parts > 0 && self.below(1_000_000) < parts
    }

    /// One of them; none if there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len() as u64) as usize)
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
    fn draws_reach_everything_between_and_nothing_else() {
        let mut random = Random::new(7);
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            seen[random.between(0, 9) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert_eq!(random.below(0), 0);
        assert_eq!(random.pick::<u8>(&[]), None);
    }

    #[test]
    fn streams_differ_and_repeat() {
        let draw = |purpose| Random::stream(1, purpose).next_u64();
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }
}
