//! The shortest prefix of a history that no order explains, in readable form.

use std::collections::HashSet;
use std::fmt;

use super::history::{ClientOperation, EscapedText, History, Key, Value, ValueText};
use super::objects::{Catalogue, Object, UNOBSERVED, ValueNumber};
use super::search::SearchStuck;

/// A proof that a history is not linearizable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The keys of the object that was checked.
    pub keys: Vec<Key>,
    /// All operations on these keys up to the unexplained reply, by time of call. Without
    /// that reply the earlier ones can be explained.
    pub operations: Vec<ClientOperation>,
    /// The position of the operation with that reply.
    pub unexplained: usize,
    /// A few of the states that the keys, in their order, may have had at that reply.
    pub possible: Vec<Vec<Option<Value>>>,
}

impl Violation {
    pub(super) fn new(
        history: &History,
        catalogue: &Catalogue<'_>,
        object: &Object,
        stuck: &SearchStuck,
    ) -> Self {
        let step = &object.steps[stuck.step];
        let keys: HashSet<&Key> = object.keys.iter().map(|key| catalogue.key(*key)).collect();
        let touches = |operation: &ClientOperation| {
            operation.called <= step.returned
                && operation.call.keys().iter().any(|key| keys.contains(key))
        };
        let mut numbers: Vec<usize> = (0..history.operations.len())
            .filter(|number| touches(&history.operations[*number]))
            .collect();
        numbers.sort_by_key(|number| history.operations[*number].called);
        let values = |state: &Vec<ValueNumber>| -> Vec<Option<Value>> {
            state.iter().map(|number| catalogue.value(*number)).collect()
        };
        let named = stuck.states.iter().filter(|state| !state.contains(&UNOBSERVED));
        Self {
            operations: numbers.iter().map(|index| history.operations[*index].clone()).collect(),
            unexplained: numbers.iter().position(|index| *index == step.operation).unwrap_or(0),
            possible: named.map(values).collect(),
            keys: object.keys.iter().map(|key| catalogue.key(*key).clone()).collect(),
        }
    }

    /// The relevant part of a long history: the latest operations, and those that share a
    /// value with the unexplained reply.
    fn shown(&self) -> Vec<usize> {
        let values = self.operations[self.unexplained].values();
        let is_related = |index: &usize| {
            self.operations[*index].values().iter().any(|value| values.contains(value))
                || index + LATEST_SHOWN >= self.operations.len()
                || *index == self.unexplained
        };
        let mut shown: Vec<usize> = (0..self.operations.len()).filter(is_related).collect();
        shown.drain(..shown.len().saturating_sub(SHOWN_MAX));
        shown
    }
}

/// The latest operations that are always printed.
const LATEST_SHOWN: usize = 12;
/// The maximum number of printed operations.
const SHOWN_MAX: usize = 40;

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unexplained = &self.operations[self.unexplained];
        f.write_str("not linearizable:")?;
        self.keys.iter().take(KEYS_SHOWN).try_for_each(|key| write!(f, " {}", EscapedText(key)))?;
        if self.keys.len() > KEYS_SHOWN {
            write!(f, " and {} more", self.keys.len() - KEYS_SHOWN)?;
        }
        writeln!(f)?;
        let shown = self.shown();
        if shown.len() < self.operations.len() {
            writeln!(f, "  ({} operations not shown)", self.operations.len() - shown.len())?;
        }
        for index in shown {
            let mark = if index == self.unexplained { "=>" } else { "  " };
            writeln!(f, "{mark}{}", self.operations[index])?;
        }
        write!(f, "no order explains that client {} {}", unexplained.client, unexplained.seen)?;
        for (key, position) in self.keys.iter().zip(0..) {
            if unexplained.call.keys().contains(key) {
                write!(f, "; {} may have been", EscapedText(key))?;
                self.fmt_possible(f, position)?;
            }
        }
        Ok(())
    }
}

/// The maximum number of printed keys.
const KEYS_SHOWN: usize = 8;

impl Violation {
    fn fmt_possible(&self, f: &mut fmt::Formatter<'_>, position: usize) -> fmt::Result {
        let mut values: Vec<_> =
            self.possible.iter().filter_map(|state| state.get(position)).collect();
        values.sort();
        values.dedup();
        for (index, value) in values.into_iter().enumerate() {
            write!(f, "{} {}", if index > 0 { " or" } else { "" }, ValueText(value))?;
        }
        Ok(())
    }
}
