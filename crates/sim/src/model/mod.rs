//! Everything that can happen to a few members, within bounds, explored with the real
//! core: deliveries in any order, losses, restarts, timeouts, changes of membership.
//!
//! A `scope` says where to begin and how far to go; the `lab` knows what each step does
//! and checks it; the `search` goes through all states, breadth first, so that what it
//! finds comes with the shortest way there, told as a story. `docs/model.md` is how to
//! read the output and what is not covered.

mod executed;
mod intern;
mod lab;
mod local;
mod moves;
mod scope;
mod scopes;
mod search;
mod state;
mod trace;
mod visited;

use std::process::ExitCode;

use quorate_core::Activation;

pub use scope::{Bounds, Checks, Expects, May, Scope};
pub use scopes::all as scopes;
use search::Search;
pub use search::{Broken, Limits, Report};

use crate::checkers::Violation;
use crate::scenario::stage;

/// Explores a scope under one activation. The complaint is about the scope itself.
pub fn run(scope: &Scope, activation: Activation, limits: Limits) -> Result<Report, String> {
    let text = trace::with_header(&scope.stage, activation);
    let stage = stage::play(&text, activation)?;
    let told = |violation: Violation| violation.to_string();
    let mut search = Search::new(scope.clone(), &stage).map_err(told)?;
    let (mut report, path) = search.run(limits, activation);
    report.broken = path.map(|path| Broken {
        story: trace::story(&search.lab, &scope.stage, &path, activation),
        steps: path.moves.len(),
        violation: path.violation,
    });
    Ok(report)
}

pub fn main(args: &[String]) -> ExitCode {
    for scope in scopes() {
        if args.contains(&scope.name) {
            for activation in &scope.activations {
                match run(&scope, *activation, Limits { progress: true, ..Limits::default() }) {
                    Ok(report) => {
                        say!("{report:#?}");
                        if let Some(b) = report.broken {
                            say!("{}", b.story);
                        }
                    }
                    Err(why) => say!("{why}"),
                }
            }
        }
    }
    ExitCode::SUCCESS
}
