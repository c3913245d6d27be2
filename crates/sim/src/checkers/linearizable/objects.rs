//! From a history to independent objects: keys that some operation reads together
//! form one, every other key is one by itself. Keys and values become numbers, and
//! operations become steps, which fit a state or do not.

use std::collections::HashMap;

use super::history::{Call, ClientOperation, History, Key, Seen, Value};

/// Where in an object's state a key stands.
pub(super) type Place = u32;
/// A value by number.
pub(super) type Number = u32;

/// The number of no value.
pub(super) const ABSENT: Number = 0;
/// The number of a value that no client looks for.
pub(super) const SPOILED: Number = Number::MAX;
/// The time of a return that never comes.
pub(super) const NEVER: u64 = u64::MAX;

#[derive(Debug, Default)]
pub(super) struct Object {
    /// The keys by place, as the catalogue numbers them.
    pub(super) keys: Vec<u32>,
    /// By time of call. Refused operations are not among them: they must have no
    /// effect, so every answer has to be explained without them. Reads that no client
    /// saw the answer of are not either: they explain nothing.
    pub(super) steps: Vec<Step>,
}

/// An operation as the search sees it.
#[derive(Debug)]
pub(super) struct Step {
    /// Its number in the history.
    pub(super) operation: usize,
    pub(super) called: u64,
    /// `NEVER` when the outcome is unknown: such a step may also be left out.
    pub(super) returned: u64,
    pub(super) applied: Option<u64>,
    pub(super) rule: Rule,
    pub(super) is_read: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rule {
    /// The states in which the answer is the one that was seen.
    pub(super) expects: Expects,
    /// What it leaves behind. A compare-and-set of unknown outcome is one that swaps:
    /// one that does not is the same as none.
    pub(super) writes: Option<(Place, Number)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Expects {
    Anything,
    Equal((Place, Number)),
    Differs((Place, Number)),
    AllEqual(Box<[(Place, Number)]>),
    /// No state leads to this answer.
    Impossible,
}

impl Step {
    pub(super) fn is_unknown(&self) -> bool {
        self.returned == NEVER
    }
}

impl Rule {
    pub(super) fn fits(&self, state: &[Number]) -> bool {
        match &self.expects {
            Expects::Anything => true,
            Expects::Equal((place, value)) => state[*place as usize] == *value,
            Expects::Differs((place, value)) => state[*place as usize] != *value,
            Expects::AllEqual(all) => {
                all.iter().all(|(place, value)| state[*place as usize] == *value)
            }
            Expects::Impossible => false,
        }
    }

    /// What has to stand where for the step to fit, as far as one value does.
    pub(super) fn wanted(&self) -> &[(Place, Number)] {
        match &self.expects {
            Expects::Equal(one) => std::slice::from_ref(one),
            Expects::AllEqual(all) => all,
            Expects::Anything | Expects::Differs(..) | Expects::Impossible => &[],
        }
    }

    /// Every place it looks at or writes to; one may come twice.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        let differs = match self.expects {
            Expects::Differs((place, _)) => Some(place),
            _ => None,
        };
        let written = self.writes.map(|(place, _)| place);
        self.wanted().iter().map(|(place, _)| *place).chain(differs).chain(written)
    }

    fn move_places(&mut self, new: impl Fn(Place) -> Place) {
        match &mut self.expects {
            Expects::Equal((place, _)) | Expects::Differs((place, _)) => *place = new(*place),
            Expects::AllEqual(all) => all.iter_mut().for_each(|(place, _)| *place = new(*place)),
            Expects::Anything | Expects::Impossible => {}
        }
        if let Some((place, _)) = &mut self.writes {
            *place = new(*place);
        }
    }
}

/// The names behind the numbers.
#[derive(Debug, Default)]
pub(super) struct Catalogue<'a> {
    keys: Vec<&'a Key>,
    key_numbers: HashMap<&'a Key, u32>,
    values: Vec<&'a Value>,
    value_numbers: HashMap<&'a Value, Number>,
    /// For each key one of its object, until one stands for itself.
    leaders: Vec<u32>,
}

pub(super) fn split(history: &History) -> (Catalogue<'_>, Vec<Object>) {
    let mut catalogue = Catalogue::default();
    let steps: Vec<(u32, Step)> = history
        .operations
        .iter()
        .enumerate()
        .filter(|(_, operation)| matters(operation))
        .filter_map(|(at, operation)| catalogue.step(at, operation))
        .collect();
    let (mut objects, places) = catalogue.objects();
    for (key, mut step) in steps {
        step.rule.move_places(|key| places[key as usize].1);
        objects[places[key as usize].0].steps.push(step);
    }
    for object in &mut objects {
        object.steps.sort_by_key(|step| step.called);
    }
    (catalogue, objects)
}

fn matters(operation: &ClientOperation) -> bool {
    match operation.is_unknown() {
        true => !operation.call.is_read(),
        false => operation.seen != Seen::Refused,
    }
}

impl<'a> Catalogue<'a> {
    pub(super) fn key(&self, number: u32) -> &'a Key {
        self.keys[number as usize]
    }

    pub(super) fn value(&self, number: Number) -> Option<Value> {
        let at = (number as usize).checked_sub(1)?;
        Some(self.values[at].clone())
    }

    /// A step, still with key numbers for places, and the first key it touches. None
    /// when it touches no key.
    fn step(&mut self, at: usize, operation: &'a ClientOperation) -> Option<(u32, Step)> {
        let first = self.key_number(operation.call.keys().first()?);
        let mut rule = self.rule(operation);
        let is_unknown = operation.is_unknown();
        let returned = operation.returned.filter(|_| !is_unknown).unwrap_or(NEVER);
        if returned < operation.called {
            rule.expects = Expects::Impossible;
        }
        let step = Step {
            operation: at,
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
        let blind = if done_or_unknown { Expects::Anything } else { Expects::Impossible };
        let (expects, writes) = match (&operation.call, &operation.seen) {
            (Call::Put(key, value), _) => {
                (blind, Some((self.key_number(key), self.value_number(value))))
            }
            (Call::Delete(key), _) => (blind, Some((self.key_number(key), ABSENT))),
            (Call::Get(key), Seen::Value(value)) => {
                (Expects::Equal((self.key_number(key), self.found(value))), None)
            }
            (Call::GetSeveral(keys), Seen::Values(values)) if keys.len() == values.len() => {
                (self.all_equal(keys, values), None)
            }
            (Call::CompareAndSet { key, expected, new }, seen) => {
                let (key, expected) = (self.key_number(key), self.found(expected));
                match seen {
                    _ if is_unknown || *seen == Seen::Swapped(true) => {
                        (Expects::Equal((key, expected)), Some((key, self.value_number(new))))
                    }
                    Seen::Swapped(_) => (Expects::Differs((key, expected)), None),
                    _ => (Expects::Impossible, None),
                }
            }
            (Call::Get(_) | Call::GetSeveral(_), _) => (Expects::Impossible, None),
        };
        Rule { expects, writes }
    }

    /// Reading keys together makes one object of them.
    fn all_equal(&mut self, keys: &'a [Key], values: &'a [Option<Value>]) -> Expects {
        let pairs = keys.iter().zip(values);
        let all: Box<[(Place, Number)]> =
            pairs.map(|(key, value)| (self.key_number(key), self.found(value))).collect();
        all.iter().for_each(|(key, _)| self.join(all[0].0, *key));
        Expects::AllEqual(all)
    }

    fn key_number(&mut self, key: &'a Key) -> u32 {
        *self.key_numbers.entry(key).or_insert_with(|| {
            let number = self.keys.len() as u32;
            self.keys.push(key);
            self.leaders.push(number);
            number
        })
    }

    fn value_number(&mut self, value: &'a Value) -> Number {
        *self.value_numbers.entry(value).or_insert_with(|| {
            self.values.push(value);
            self.values.len() as Number
        })
    }

    fn found(&mut self, value: &'a Option<Value>) -> Number {
        value.as_ref().map_or(ABSENT, |value| self.value_number(value))
    }

    fn join(&mut self, one: u32, other: u32) {
        let (one, other) = (self.leader(one), self.leader(other));
        self.leaders[other as usize] = one;
    }

    fn leader(&mut self, key: u32) -> u32 {
        let mut key = key as usize;
        while self.leaders[key] as usize != key {
            // Halving the path keeps long chains from being walked again.
            let above = self.leaders[key] as usize;
            self.leaders[key] = self.leaders[above];
            key = above;
        }
        key as u32
    }

    /// The objects, still without steps, and for each key its object and place.
    fn objects(&mut self) -> (Vec<Object>, Vec<(usize, Place)>) {
        let mut objects: Vec<Object> = Vec::new();
        let mut object_of_leader = vec![usize::MAX; self.keys.len()];
        let mut places = Vec::with_capacity(self.keys.len());
        for key in 0..self.keys.len() as u32 {
            let leader = self.leader(key) as usize;
            if object_of_leader[leader] == usize::MAX {
                object_of_leader[leader] = objects.len();
                objects.push(Object::default());
            }
            let number = object_of_leader[leader];
            places.push((number, objects[number].keys.len() as Place));
            objects[number].keys.push(key);
        }
        (objects, places)
    }
}
