//! The shortest beginning of a history that nothing explains, as a person reads it.

use std::collections::HashSet;
use std::fmt;

use super::history::{ClientOperation, Found, History, Key, Text, Value};
use super::objects::{Catalogue, Number, Object, SPOILED};
use super::search::SearchStuck;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The keys of the object, which were checked together.
    pub keys: Vec<Key>,
    /// Everything that clients did to these keys up to the answer that cannot be
    /// explained, by time of call. Without that answer, all the ones before it can be.
    pub operations: Vec<ClientOperation>,
    /// Which of the operations got that answer.
    pub unexplained: usize,
    /// What the keys, in their order, may have held when it was due; a few of the
    /// possibilities.
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
        let values = |state: &Vec<Number>| -> Vec<Option<Value>> {
            state.iter().map(|number| catalogue.value(*number)).collect()
        };
        let named = stuck.states.iter().filter(|state| !state.contains(&SPOILED));
        Self {
            operations: numbers.iter().map(|at| history.operations[*at].clone()).collect(),
            unexplained: numbers.iter().position(|at| *at == step.operation).unwrap_or(0),
            possible: named.map(values).collect(),
            keys: object.keys.iter().map(|key| catalogue.key(*key).clone()).collect(),
        }
    }

    /// Of a long history, the part worth reading: the latest operations, and those
    /// that have to do with the values of the unexplained answer.
    fn shown(&self) -> Vec<usize> {
        let values = self.operations[self.unexplained].values();
        let is_related = |at: &usize| {
            self.operations[*at].values().iter().any(|value| values.contains(value))
                || at + LATEST_SHOWN >= self.operations.len()
                || *at == self.unexplained
        };
        let mut shown: Vec<usize> = (0..self.operations.len()).filter(is_related).collect();
        shown.drain(..shown.len().saturating_sub(SHOWN_MAX));
        shown
    }
}

/// How many of the latest operations are printed in any case.
const LATEST_SHOWN: usize = 12;
/// How many are printed at most.
const SHOWN_MAX: usize = 40;

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let culprit = &self.operations[self.unexplained];
        f.write_str("not linearizable:")?;
        self.keys.iter().take(KEYS_SHOWN).try_for_each(|key| write!(f, " {}", Text(key)))?;
        if self.keys.len() > KEYS_SHOWN {
            write!(f, " and {} more", self.keys.len() - KEYS_SHOWN)?;
        }
        writeln!(f)?;
        let shown = self.shown();
        if shown.len() < self.operations.len() {
            writeln!(f, "  ({} operations not shown)", self.operations.len() - shown.len())?;
        }
        for at in shown {
            let mark = if at == self.unexplained { "=>" } else { "  " };
            writeln!(f, "{mark}{}", self.operations[at])?;
        }
        write!(f, "no order explains that client {} {}", culprit.client, culprit.seen)?;
        for (key, place) in self.keys.iter().zip(0..) {
            if culprit.call.keys().contains(key) {
                write!(f, "; {} may have been", Text(key))?;
                self.fmt_possible(f, place)?;
            }
        }
        Ok(())
    }
}

/// How many keys of an object are named.
const KEYS_SHOWN: usize = 8;

impl Violation {
    fn fmt_possible(&self, f: &mut fmt::Formatter<'_>, place: usize) -> fmt::Result {
        let mut values: Vec<_> =
            self.possible.iter().filter_map(|state| state.get(place)).collect();
        values.sort();
        values.dedup();
        for (at, value) in values.into_iter().enumerate() {
            write!(f, "{} {}", if at > 0 { " or" } else { "" }, Found(value))?;
        }
        Ok(())
    }
}
