//! A direct implementation of the definition of linearizability: tries every order.

use std::collections::BTreeMap;

use super::*;

pub(super) fn is_linearizable(history: &History) -> bool {
    let operations: Vec<&ClientOperation> = history
        .operations
        .iter()
        .filter(|operation| operation.is_unknown() || operation.seen != Seen::Refused)
        .collect();
    some_order_explains(&operations, &BTreeMap::new())
}

fn some_order_explains(left: &[&ClientOperation], state: &BTreeMap<Key, Value>) -> bool {
    if left.iter().all(|operation| operation.is_unknown()) {
        return true;
    }
    (0..left.len()).any(|index| {
        let next = left[index];
        let must_precede = |other: &&&ClientOperation| {
            !other.is_unknown() && other.returned.is_some_and(|returned| returned < next.called)
        };
        if left.iter().any(|other| must_precede(&other)) {
            return false;
        }
        let mut state = state.clone();
        let reply = run(&next.call, &mut state);
        let mut left = left.to_vec();
        left.remove(index);
        (next.is_unknown() || reply == next.seen) && some_order_explains(&left, &state)
    })
}

/// A sequential machine.
pub(super) fn run(call: &Call, state: &mut BTreeMap<Key, Value>) -> Seen {
    match call {
        Call::Put(key, value) => {
            state.insert(key.clone(), value.clone());
            Seen::Done
        }
        Call::Delete(key) => {
            state.remove(key);
            Seen::Done
        }
        Call::Get(key) => Seen::Value(state.get(key).cloned()),
        Call::GetSeveral(keys) => {
            Seen::Values(keys.iter().map(|key| state.get(key).cloned()).collect())
        }
        Call::CompareAndSet { key, expected, new } => {
            let swaps = state.get(key) == expected.as_ref();
            if swaps {
                state.insert(key.clone(), new.clone());
            }
            Seen::Swapped(swaps)
        }
    }
}
