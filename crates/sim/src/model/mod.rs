//! Everything that can happen to a few members, within bounds, explored with the real
//! core: deliveries in any order, losses, restarts, timeouts, changes of membership.
//!
//! A `scope` says where to begin and how far to go; the `transitions` knows what each step does
//! and checks it; the `search` goes through all states, breadth first, so that what it
//! finds comes with the shortest way there, written as a story. `docs/model.md` is how to
//! read the output and what is not covered.

mod checks;
mod cli;
mod executed;
mod intern;
mod member;
mod moves;
mod network;
mod scope;
mod scopes;
mod search;
mod state;
mod trace;
mod transitions;
mod visited;

use quorate_core::config::Activation;

pub use cli::main;
pub use scope::{Checks, NetworkModel, Scope, ScopeActions, ScopeBounds, ScopeExpectation};
pub use scopes::all as scopes;
use search::ModelSearch;
pub use search::{FoundViolation, ModelReport, SearchLimits};

use crate::checkers::Violation;
use crate::scenario::stage;

/// Explores a scope under one activation. The complaint is about the scope itself.
pub fn run(
    scope: &Scope,
    activation: Activation,
    limits: SearchLimits,
) -> Result<ModelReport, String> {
    let text = trace::with_header(&scope.stage, activation);
    explore(scope, &text, activation, limits)
}

/// Explores from where a story ends. Of the scope, the stage is not used.
pub fn run_from(
    story: &str,
    scope: &Scope,
    activation: Activation,
    limits: SearchLimits,
) -> Result<ModelReport, String> {
    explore(scope, story, activation, limits)
}

fn explore(
    scope: &Scope,
    story: &str,
    activation: Activation,
    limits: SearchLimits,
) -> Result<ModelReport, String> {
    let stage = stage::play(story, activation)?;
    let told = |violation: Violation| violation.to_string();
    let mut search = ModelSearch::new(scope.clone(), &stage).map_err(told)?;
    let (mut report, path) = search.run(limits, activation);
    report.broken = path.map(|path| FoundViolation {
        story: trace::story(&search.transitions, story, &path, activation),
        steps: path.moves.len(),
        violation: path.violation,
    });
    Ok(report)
}

impl ModelReport {
    /// Whether the run ended as the scope says that it does.
    pub fn is_as_expected(&self, expects: ScopeExpectation) -> bool {
        let rule = self.broken.as_ref().map(|broken| broken.violation.rule);
        match expects {
            ScopeExpectation::Clean => rule.is_none(),
            ScopeExpectation::Broken(expected) => rule == Some(expected),
            ScopeExpectation::Leader => rule.is_none() && self.with_new_leader > 0,
            ScopeExpectation::NoLeader => {
                rule.is_none() && self.exhausted && self.with_new_leader == 0
            }
        }
    }
}
