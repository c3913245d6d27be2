//! Linearizability: could a sequential machine have given these replies? (R1)
//!
//! Keys that no operation reads together are independent: a history is linearizable if
//! its restriction to each object is (the property is local: Herlihy and Wing). Most
//! objects whose operations have log indexes are decided by replaying them in that order
//! (`by_index`); the others are searched, after Wing, Gong and Lowe (`search`).
//!
//! Effort is limited in steps and not in time, so a verdict is the same on every computer.
//! Running out of steps is a separate verdict: the checker never guesses.

mod by_index;
mod history;
mod objects;
mod search;
mod timeline;
mod unknown;
mod violation;

#[cfg(test)]
mod tests;

use objects::{Catalogue, Object};
use search::{SearchOutcome, SearchStuck};

pub use history::{Call, ClientOperation, History, Key, Seen, Value};
pub use violation::Violation;

/// Far more than a history with a few clients per key needs. A search that takes all these
/// steps uses about a gigabyte of memory.
pub const STEPS_MAX: u64 = 10_000_000;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A sequential order explains every reply.
    Linearizable,
    /// No order explains every reply.
    Violation(Box<Violation>),
    /// The steps ran out before a result. These keys are undecided; the others are
    /// linearizable.
    Undecided(Vec<Key>),
}

/// A verdict and the effort of the check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Report {
    pub verdict: Verdict,
    /// Objects decided by their log indexes.
    pub by_index: usize,
    /// Objects that needed a search.
    pub by_search: usize,
    /// The total steps of all searches.
    pub steps: u64,
}

/// Checks a history that begins with every key absent.
pub fn check(history: &History, steps_max: u64) -> Report {
    let (catalogue, mut objects) = objects::split(history);
    // Small objects first: their unused steps go to the larger ones.
    objects.sort_by_key(|object| object.steps.len());
    let mut findings = Findings::default();
    for (index, object) in objects.iter().enumerate() {
        let objects_left = (objects.len() - index) as u64;
        findings.check_object(object, steps_max.saturating_sub(findings.steps) / objects_left);
    }
    findings.report(history, &catalogue)
}

/// The results so far.
#[derive(Default)]
struct Findings<'a> {
    by_index: usize,
    by_search: usize,
    steps: u64,
    /// The earliest violation: later ones may only be consequences of it.
    stuck: Option<(&'a Object, SearchStuck)>,
    undecided: Vec<&'a Object>,
}

impl<'a> Findings<'a> {
    fn check_object(&mut self, object: &'a Object, steps_max: u64) {
        if by_index::explains(object) {
            self.by_index += 1;
            return;
        }
        self.by_search += 1;
        let (outcome, steps) = search::search(object, steps_max);
        self.steps += steps;
        match outcome {
            SearchOutcome::Found => {}
            SearchOutcome::OutOfSteps => self.undecided.push(object),
            SearchOutcome::Stuck(stuck) => self.note_stuck(object, stuck),
        }
    }

    fn note_stuck(&mut self, object: &'a Object, stuck: SearchStuck) {
        let shown_at = |object: &Object, stuck: &SearchStuck| object.steps[stuck.step].returned;
        let returned = shown_at(object, &stuck);
        if self.stuck.as_ref().is_none_or(|(other, first)| returned < shown_at(other, first)) {
            self.stuck = Some((object, stuck));
        }
    }

    fn report(self, history: &History, catalogue: &Catalogue<'_>) -> Report {
        let verdict = match self.stuck {
            Some((object, stuck)) => {
                Verdict::Violation(Box::new(Violation::new(history, catalogue, object, &stuck)))
            }
            None if self.undecided.is_empty() => Verdict::Linearizable,
            None => {
                let keys = self.undecided.iter().flat_map(|object| &object.keys);
                Verdict::Undecided(keys.map(|key| catalogue.key(*key).clone()).collect())
            }
        };
        let Self { by_index, by_search, steps, .. } = self;
        Report { verdict, by_index, by_search, steps }
    }
}
