//! Histories of a correct cluster: operations take effect in one order, and their calls and
//! returns overlap.

use std::collections::BTreeMap;

use super::brute_force::run;
use super::*;

/// splitmix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % bound
    }

    pub(super) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) operations: usize,
    pub(super) keys: u64,
    /// The number of different values written; 0 makes every value unique.
    pub(super) values: u64,
    /// How long an operation may be open before and after it takes effect, in operations.
    /// About that many others overlap it.
    pub(super) overlap: u64,
    pub(super) unknown_percent: u64,
    pub(super) refused_percent: u64,
    pub(super) swap_percent: u64,
    pub(super) several_percent: u64,
    pub(super) with_index: bool,
}

pub(super) const TYPICAL: Shape = Shape {
    operations: 1_000,
    keys: 50,
    values: 0,
    overlap: 5,
    unknown_percent: 2,
    refused_percent: 2,
    swap_percent: 10,
    several_percent: 0,
    with_index: false,
};

pub(super) fn history(shape: &Shape, random: &mut Random) -> History {
    let mut state = BTreeMap::new();
    let operations =
        (1..=shape.operations as u64).map(|at| operation(shape, at, &mut state, random)).collect();
    History { operations }
}

fn operation(
    shape: &Shape,
    at: u64,
    state: &mut BTreeMap<Key, Value>,
    random: &mut Random,
) -> ClientOperation {
    /// Time from one effect to the next.
    const STRIDE: u64 = 10;
    let call = call(shape, at, state, random);
    let refused = random.percent(shape.refused_percent);
    let unknown = !refused && random.percent(shape.unknown_percent);
    let has_no_effect = unknown && random.percent(50);
    let takes_effect = !refused && !has_no_effect;
    let effect = if takes_effect { run(&call, state) } else { Seen::Nothing };
    let reach = shape.overlap * STRIDE + 1;
    let called = (at * STRIDE).saturating_sub(random.below(reach));
    let returned = at * STRIDE + random.below(reach);
    let index = if call.is_read() { at - 1 } else { at };
    ClientOperation {
        client: at % 7,
        called,
        returned: (!unknown).then_some(returned),
        seen: if refused {
            Seen::Refused
        } else if unknown {
            Seen::Nothing
        } else {
            effect
        },
        applied: (shape.with_index && !refused && !unknown).then_some(index),
        call,
    }
}

fn call(shape: &Shape, at: u64, state: &BTreeMap<Key, Value>, random: &mut Random) -> Call {
    let key = key(random.below(shape.keys));
    let new = match shape.values {
        0 => Bytes::from(format!("v{at}")),
        values => Bytes::from(format!("v{}", random.below(values))),
    };
    if random.percent(shape.swap_percent) {
        let expected = match random.percent(70) {
            true => state.get(&key).cloned(),
            false => Some(new.clone()),
        };
        return Call::CompareAndSet { key, expected, new };
    }
    if random.percent(shape.several_percent) {
        return Call::GetSeveral(vec![self::key(random.below(shape.keys)), key]);
    }
    match random.below(10) {
        0..5 => Call::Get(key),
        5..9 => Call::Put(key, new),
        _ => Call::Delete(key),
    }
}

fn key(number: u64) -> Key {
    Bytes::from(format!("k{number}"))
}
