//! Everything that can happen to a few members, within bounds, explored with the real
//! core: deliveries in any order, losses, restarts, timeouts, changes of membership.
//!
//! A `scope` says where to begin and how far to go; the `lab` knows what each step does
//! and checks it; the `search` goes through all states, breadth first, so that what it
//! finds comes with the shortest way there, told as a story. `docs/model.md` is how to
//! read the output and what is not covered.

mod cli;
mod executed;
mod intern;
mod lab;
mod local;
mod moves;
mod network;
mod scope;
mod scopes;
mod search;
mod state;
mod trace;
mod visited;
mod watch;

use quorate_core::config::Activation;

pub use cli::main;
pub use scope::{Bounds, Checks, Expects, May, Network, Scope};
pub use scopes::all as scopes;
use search::Search;
pub use search::{Broken, Limits, Report};

use crate::checkers::Violation;
use crate::scenario::stage;

/// Explores a scope under one activation. The complaint is about the scope itself.
pub fn run(scope: &Scope, activation: Activation, limits: Limits) -> Result<Report, String> {
    let text = trace::with_header(&scope.stage, activation);
    explore(scope, &text, activation, limits)
}

/// Explores from where a story ends. Of the scope, the stage is not used.
pub fn run_from(
    story: &str,
    scope: &Scope,
    activation: Activation,
    limits: Limits,
) -> Result<Report, String> {
    explore(scope, story, activation, limits)
}

fn explore(
    scope: &Scope,
    story: &str,
    activation: Activation,
    limits: Limits,
) -> Result<Report, String> {
    let stage = stage::play(story, activation)?;
    let told = |violation: Violation| violation.to_string();
    let mut search = Search::new(scope.clone(), &stage).map_err(told)?;
    let (mut report, path) = search.run(limits, activation);
    report.broken = path.map(|path| Broken {
        story: trace::story(&search.lab, story, &path, activation),
        steps: path.moves.len(),
        violation: path.violation,
    });
    Ok(report)
}

impl Report {
    /// Whether the run ended as the scope says that it does.
    pub fn is_as_expected(&self, expects: Expects) -> bool {
        let rule = self.broken.as_ref().map(|broken| broken.violation.rule);
        match expects {
            Expects::Clean => rule.is_none(),
            Expects::Broken(expected) => rule == Some(expected),
            Expects::Leader => rule.is_none() && self.with_new_leader > 0,
            Expects::NoLeader => rule.is_none() && self.exhausted && self.with_new_leader == 0,
        }
    }
}
