//! Splits a history into independent objects: keys that an operation reads together form
//! one object, every other key is an object by itself. Keys and values are replaced by
//! numbers, and operations by steps, each with the states that it fits.

use std::collections::HashMap;

use super::history::{Call, ClientOperation, History, Key, Seen, Value};

/// The position of a key in an object's state.
pub(super) type KeyPosition = u32;
/// The number of a value.
pub(super) type ValueNumber = u32;

/// The number that stands for an absent key.
pub(super) const ABSENT: ValueNumber = 0;
/// The number of a value that no client observes.
pub(super) const UNOBSERVED: ValueNumber = ValueNumber::MAX;
/// The return time of an operation that never returns.
pub(super) const NEVER: u64 = u64::MAX;

#[derive(Debug, Default)]
pub(super) struct Object {
    /// The catalogue numbers of the keys, by position.
    pub(super) keys: Vec<u32>,
    /// By time of call. Refused operations are excluded: they must have no effect, so every
    /// reply must be explained without them. Reads without a reply are excluded too, because
    /// they prove nothing.
    pub(super) steps: Vec<Step>,
}

/// An operation in the form that the search uses.
#[derive(Debug)]
pub(super) struct Step {
    /// Its number in the history.
    pub(super) operation: usize,
    pub(super) called: u64,
    /// `NEVER` if the outcome is unknown: such a step is optional.
    pub(super) returned: u64,
    pub(super) applied: Option<u64>,
    pub(super) rule: Rule,
    pub(super) is_read: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rule {
    /// The states in which the reply is the one that the client got.
    pub(super) condition: StateCondition,
    /// The value that it writes. A compare-and-set of unknown outcome is treated as
    /// successful: a failed one is the same as none.
    pub(super) writes: Option<(KeyPosition, ValueNumber)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum StateCondition {
    Anything,
    Equal((KeyPosition, ValueNumber)),
    Differs((KeyPosition, ValueNumber)),
    AllEqual(Box<[(KeyPosition, ValueNumber)]>),
    /// No state leads to this reply.
    Impossible,
}

impl Step {
    pub(super) fn is_unknown(&self) -> bool {
        self.returned == NEVER
    }
}

impl Rule {
    pub(super) fn fits(&self, state: &[ValueNumber]) -> bool {
        match &self.condition {
            StateCondition::Anything => true,
            StateCondition::Equal((position, value)) => state[*position as usize] == *value,
            StateCondition::Differs((position, value)) => state[*position as usize] != *value,
            StateCondition::AllEqual(all) => {
                all.iter().all(|(position, value)| state[*position as usize] == *value)
            }
            StateCondition::Impossible => false,
        }
    }

    /// The values that the state must have for the step to fit.
    pub(super) fn required_values(&self) -> &[(KeyPosition, ValueNumber)] {
        match &self.condition {
            StateCondition::Equal(one) => std::slice::from_ref(one),
            StateCondition::AllEqual(all) => all,
            StateCondition::Anything | StateCondition::Differs(..) | StateCondition::Impossible => {
                &[]
            }
        }
    }

    /// All positions that it reads or writes, possibly with duplicates.
    pub(super) fn positions(&self) -> impl Iterator<Item = KeyPosition> {
        let differs = match self.condition {
            StateCondition::Differs((position, _)) => Some(position),
            _ => None,
        };
        let written = self.writes.map(|(position, _)| position);
        self.required_values().iter().map(|(position, _)| *position).chain(differs).chain(written)
    }

    fn map_positions(&mut self, new: impl Fn(KeyPosition) -> KeyPosition) {
        match &mut self.condition {
            StateCondition::Equal((position, _)) | StateCondition::Differs((position, _)) => {
                *position = new(*position)
            }
            StateCondition::AllEqual(all) => {
                all.iter_mut().for_each(|(position, _)| *position = new(*position))
            }
            StateCondition::Anything | StateCondition::Impossible => {}
        }
        if let Some((position, _)) = &mut self.writes {
            *position = new(*position);
        }
    }
}

/// The keys and values that the numbers stand for.
#[derive(Debug, Default)]
pub(super) struct Catalogue<'a> {
    keys: Vec<&'a Key>,
    key_numbers: HashMap<&'a Key, u32>,
    values: Vec<&'a Value>,
    value_numbers: HashMap<&'a Value, ValueNumber>,
    /// A union-find forest over the keys: for each key a parent in the same object.
    parents: Vec<u32>,
}

pub(super) fn split(history: &History) -> (Catalogue<'_>, Vec<Object>) {
    let mut catalogue = Catalogue::default();
    let steps: Vec<(u32, Step)> = history
        .operations
        .iter()
        .enumerate()
        .filter(|(_, operation)| is_relevant(operation))
        .filter_map(|(number, operation)| catalogue.step(number, operation))
        .collect();
    let (mut objects, positions) = catalogue.objects();
    for (key, mut step) in steps {
        step.rule.map_positions(|key| positions[key as usize].1);
        objects[positions[key as usize].0].steps.push(step);
    }
    for object in &mut objects {
        object.steps.sort_by_key(|step| step.called);
    }
    (catalogue, objects)
}

fn is_relevant(operation: &ClientOperation) -> bool {
    match operation.is_unknown() {
        true => !operation.call.is_read(),
        false => operation.seen != Seen::Refused,
    }
}

impl<'a> Catalogue<'a> {
    pub(super) fn key(&self, number: u32) -> &'a Key {
        self.keys[number as usize]
    }

    pub(super) fn value(&self, number: ValueNumber) -> Option<Value> {
        let index = (number as usize).checked_sub(1)?;
        Some(self.values[index].clone())
    }

    /// A step, with key numbers instead of positions, and its first key. None if it has no
    /// key.
    fn step(&mut self, number: usize, operation: &'a ClientOperation) -> Option<(u32, Step)> {
        let first = self.key_number(operation.call.keys().first()?);
        let mut rule = self.rule(operation);
        let is_unknown = operation.is_unknown();
        let returned = operation.returned.filter(|_| !is_unknown).unwrap_or(NEVER);
        if returned < operation.called {
            rule.condition = StateCondition::Impossible;
        }
        let step = Step {
            operation: number,
            called: operation.called,
            returned: returned.max(operation.called),
            applied: operation.applied,
            rule,
            is_read: operation.call.is_read(),
        };
        Some((first, step))
    }

    fn rule(&mut self, operation: &'a ClientOperation) -> Rule {
        let is_unknown = operation.is_unknown();
        let done_or_unknown = is_unknown || operation.seen == Seen::Done;
        let blind =
            if done_or_unknown { StateCondition::Anything } else { StateCondition::Impossible };
        let (condition, writes) = match (&operation.call, &operation.seen) {
            (Call::Put(key, value), _) => {
                (blind, Some((self.key_number(key), self.value_number(value))))
            }
            (Call::Delete(key), _) => (blind, Some((self.key_number(key), ABSENT))),
            (Call::Get(key), Seen::Value(value)) => (
                StateCondition::Equal((self.key_number(key), self.optional_value_number(value))),
                None,
            ),
            (Call::GetSeveral(keys), Seen::Values(values)) if keys.len() == values.len() => {
                (self.all_equal(keys, values), None)
            }
            (Call::CompareAndSet { key, expected, new }, seen) => {
                let (key, expected) = (self.key_number(key), self.optional_value_number(expected));
                match seen {
                    _ if is_unknown || *seen == Seen::Swapped(true) => (
                        StateCondition::Equal((key, expected)),
                        Some((key, self.value_number(new))),
                    ),
                    Seen::Swapped(_) => (StateCondition::Differs((key, expected)), None),
                    _ => (StateCondition::Impossible, None),
                }
            }
            (Call::Get(_) | Call::GetSeveral(_), _) => (StateCondition::Impossible, None),
        };
        Rule { condition, writes }
    }

    /// Keys that are read together form one object.
    fn all_equal(&mut self, keys: &'a [Key], values: &'a [Option<Value>]) -> StateCondition {
        let pairs = keys.iter().zip(values);
        let all: Box<[(KeyPosition, ValueNumber)]> = pairs
            .map(|(key, value)| (self.key_number(key), self.optional_value_number(value)))
            .collect();
        all.iter().for_each(|(key, _)| self.join(all[0].0, *key));
        StateCondition::AllEqual(all)
    }

    fn key_number(&mut self, key: &'a Key) -> u32 {
        *self.key_numbers.entry(key).or_insert_with(|| {
            let number = self.keys.len() as u32;
            self.keys.push(key);
            self.parents.push(number);
            number
        })
    }

    fn value_number(&mut self, value: &'a Value) -> ValueNumber {
        *self.value_numbers.entry(value).or_insert_with(|| {
            self.values.push(value);
            self.values.len() as ValueNumber
        })
    }

    fn optional_value_number(&mut self, value: &'a Option<Value>) -> ValueNumber {
        value.as_ref().map_or(ABSENT, |value| self.value_number(value))
    }

    fn join(&mut self, one: u32, other: u32) {
        let (one, other) = (self.root(one), self.root(other));
        self.parents[other as usize] = one;
    }

    fn root(&mut self, key: u32) -> u32 {
        let mut key = key as usize;
        while self.parents[key] as usize != key {
            // Path halving keeps the chains short.
            let grandparent = self.parents[key] as usize;
            self.parents[key] = self.parents[grandparent];
            key = grandparent;
        }
        key as u32
    }

    /// The objects, still without steps, and for each key its object and position.
    fn objects(&mut self) -> (Vec<Object>, Vec<(usize, KeyPosition)>) {
        let mut objects: Vec<Object> = Vec::new();
        let mut object_of_root = vec![usize::MAX; self.keys.len()];
        let mut positions = Vec::with_capacity(self.keys.len());
        for key in 0..self.keys.len() as u32 {
            let root = self.root(key) as usize;
            if object_of_root[root] == usize::MAX {
                object_of_root[root] = objects.len();
                objects.push(Object::default());
            }
            let number = object_of_root[root];
            positions.push((number, objects[number].keys.len() as KeyPosition));
            objects[number].keys.push(key);
        }
        (objects, positions)
    }
}
