//! Hunts by a search through every state of small clusters.

use std::panic::{AssertUnwindSafe, catch_unwind};

use quorate_core::config::Activation;

use super::hunt::{Effort, Hunter, Kill};
use super::mutant::{Means, Mutant};
use crate::model::{Scope, ScopeExpectation, SearchLimits, run, scopes};

pub struct ModelHunter {
    /// Those in which no rule is broken without a mutant.
    scopes: Vec<Scope>,
}

impl ModelHunter {
    pub fn new() -> Self {
        let clean = |scope: &Scope| scope.expects == ScopeExpectation::Clean;
        Self { scopes: scopes().into_iter().filter(clean).collect() }
    }
}

impl Default for ModelHunter {
    fn default() -> Self {
        Self::new()
    }
}

impl Hunter for ModelHunter {
    fn means(&self) -> Means {
        Means::Model
    }

    /// Every scope with few states first, then with more.
    fn hunt(&self, _: &Mutant, effort: Effort) -> Option<Kill> {
        let limits: &[usize] = match effort {
            Effort::Short => &[2_000],
            Effort::Full => &[2_000, 50_000],
        };
        limits.iter().find_map(|states| {
            self.scopes.iter().find_map(|scope| {
                let mut activations = scope.activations.iter();
                activations.find_map(|activation| search(scope, *activation, *states))
            })
        })
    }
}

fn search(scope: &Scope, activation: Activation, states: usize) -> Option<Kill> {
    let limits = SearchLimits { states, progress: false };
    let searched = catch_unwind(AssertUnwindSafe(|| run(scope, activation, limits)));
    let kill = |checker: &str, detail: String, events: usize| Kill {
        means: Means::Model,
        checker: checker.to_owned(),
        is_proof: true,
        place: scope.name.clone(),
        detail,
        events: events as u64,
    };
    match searched {
        Ok(Ok(report)) => {
            let broken = report.broken?;
            Some(kill(broken.violation.rule, broken.violation.to_string(), report.states))
        }
        Ok(Err(why)) => Some(kill("stage", why, 0)),
        Err(_) => Some(kill("assert", "the core panics".to_owned(), 0)),
    }
}
