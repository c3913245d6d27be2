//! Could one machine, doing one thing at a time, have given these answers? (R1)
//!
//! Keys that no operation reads together are independent: a history is linearizable
//! when its part on each object is (the property is local: Herlihy and Wing). An
//! object whose operations carry log indexes is mostly settled by replaying them in
//! that order (`by_index`); what is left is searched, after Wing, Gong and Lowe
//! (`search`).
//!
//! Effort is counted in steps, never in time, so a verdict is the same on every
//! machine. Running out of steps is an own verdict: none is ever a guess.

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
use search::{Outcome, SearchStuck};

pub use history::{Call, ClientOperation, History, Key, Seen, Value};
pub use violation::Violation;

/// Far more than a history with a handful of clients per key needs. A search that uses
/// it up takes about a gigabyte of memory.
pub const STEPS_MAX: u64 = 10_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some order explains every answer.
    Linearizable,
    /// No order does.
    Violation(Box<Violation>),
    /// The steps ran out before either was shown. These keys are open; the others
    /// are fine.
    Undecided(Vec<Key>),
}

/// A verdict, and what it took to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Report {
    pub verdict: Verdict,
    /// Objects whose log indexes explained every answer.
    pub by_index: usize,
    /// Objects that were searched.
    pub by_search: usize,
    /// Steps that the searches took together.
    pub steps: u64,
}

/// Checks a history that begins with every key absent.
pub fn check(history: &History, steps_max: u64) -> Report {
    let (catalogue, mut objects) = objects::split(history);
    // Small ones first: what they leave of their share goes to the hard ones.
    objects.sort_by_key(|object| object.steps.len());
    let mut findings = Findings::default();
    for (at, object) in objects.iter().enumerate() {
        let objects_left = (objects.len() - at) as u64;
        findings.look_at(object, steps_max.saturating_sub(findings.steps) / objects_left);
    }
    findings.report(history, &catalogue)
}

/// What was found so far.
#[derive(Default)]
struct Findings<'a> {
    by_index: usize,
    by_search: usize,
    steps: u64,
    /// The one that shows first: what comes later may only follow from it.
    stuck: Option<(&'a Object, SearchStuck)>,
    undecided: Vec<&'a Object>,
}

impl<'a> Findings<'a> {
    fn look_at(&mut self, object: &'a Object, steps_max: u64) {
        if by_index::explains(object) {
            self.by_index += 1;
            return;
        }
        self.by_search += 1;
        let (outcome, steps) = search::search(object, steps_max);
        self.steps += steps;
        match outcome {
            Outcome::Found => {}
            Outcome::OutOfSteps => self.undecided.push(object),
            Outcome::SearchStuck(stuck) => self.note_stuck(object, stuck),
        }
    }

    fn note_stuck(&mut self, object: &'a Object, stuck: SearchStuck) {
        let shown_at = |object: &Object, stuck: &SearchStuck| object.steps[stuck.step].returned;
        let at = shown_at(object, &stuck);
        if self.stuck.as_ref().is_none_or(|(other, first)| at < shown_at(other, first)) {
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
