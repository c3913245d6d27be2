//! `quorate-sim model`: which scopes to explore, and what to print about it.

use std::process::ExitCode;

use quorate_core::config::Activation;

use super::scope::{Checks, NetworkModel, Scope, ScopeActions, ScopeBounds, ScopeExpectation};
use super::trace::activation_name;
use super::{ModelReport, SearchLimits, run, run_from, scopes};
use crate::scenario::stage;

/// The options of the command line.
#[derive(Debug, Default)]
struct ModelOptions {
    names: Vec<String>,
    list: bool,
    story: Option<String>,
    steps: Option<u32>,
    states: Option<usize>,
    mutant: Option<String>,
    only: Option<Activation>,
    quiet: bool,
    executed: bool,
    /// Bounds by name, in place of those of the scope.
    bounds: Vec<(String, usize)>,
}

/// `quorate-sim model …`.
pub fn main(args: &[String]) -> ExitCode {
    let done = ModelOptions::parse(args).and_then(|options| options.run());
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

const USAGE: &str = "\
usage:
  quorate-sim model --list                    the scopes and what they are about
  quorate-sim model NAME… | all               explore these scopes
  quorate-sim model --from STORY --steps N    explore N steps from where a scenario ends
options:
  --on-apply, --on-append   under this activation only
  --terms N, --log N, --changes N, --restarts N, --delayed N, --link N
                            other bounds than those of the scope
  --states N                stop after this many states
  --executed                run elections with the cores in every state (L1)
  --mutant NAME             with a wrong rule (see `mutants --list`)
  --quiet                   no progress on standard error";

impl ModelOptions {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().cloned().ok_or_else(|| format!("{arg} needs a value"));
            let number = |text: String| text.replace('_', "").parse::<usize>();
            match arg.as_str() {
                "--list" => options.list = true,
                "--from" => options.story = Some(value()?),
                "--steps" => {
                    let steps = value()?.parse();
                    options.steps = Some(steps.map_err(|_| "--steps needs a number".to_owned())?);
                }
                "--states" => {
                    let states = number(value()?);
                    options.states =
                        Some(states.map_err(|_| "--states needs a number".to_owned())?);
                }
                "--mutant" => options.mutant = Some(value()?),
                "--on-apply" => options.only = Some(Activation::OnApply),
                "--on-append" => options.only = Some(Activation::OnAppend),
                "--quiet" => options.quiet = true,
                "--executed" => options.executed = true,
                "--terms" | "--log" | "--changes" | "--restarts" | "--delayed" | "--link" => {
                    let bound = number(value()?).map_err(|_| format!("{arg} needs a number"))?;
                    options.bounds.push((arg.clone(), bound));
                }
                flag if flag.starts_with('-') => return Err(format!("`{flag}` is not a flag")),
                name => options.names.push(name.to_owned()),
            }
        }
        Ok(options)
    }

    fn limits(&self) -> SearchLimits {
        let states = self.states.unwrap_or(SearchLimits::default().states);
        SearchLimits { states, progress: !self.quiet }
    }

    fn run(&self) -> Result<bool, String> {
        if self.list {
            for scope in scopes() {
                say!("{:<28} {}", scope.name, scope.about);
            }
            return Ok(true);
        }
        if let Some(name) = &self.mutant {
            crate::mutants::switch_on(name)?;
        }
        if let Some(path) = &self.story {
            return self.explore_from(path);
        }
        let chosen = self.chosen()?;
        let mut fine = true;
        for scope in &chosen {
            for activation in self.activations(&scope.activations) {
                let report = run(scope, activation, self.limits())?;
                fine &= self.tell(scope, &report);
            }
        }
        Ok(fine)
    }

    fn chosen(&self) -> Result<Vec<Scope>, String> {
        let mut chosen = Vec::new();
        let all = scopes();
        for name in &self.names {
            let named = |scope: &&Scope| name == "all" || scope.name == *name;
            let before = chosen.len();
            chosen.extend(all.iter().filter(named).cloned());
            if chosen.len() == before {
                return Err(format!("`{name}` is not a scope; see `model --list`"));
            }
        }
        for scope in &mut chosen {
            scope.checks.executed |= self.executed;
            self.bounds.iter().for_each(|(name, bound)| scope.bounds.set(name, *bound));
        }
        if chosen.is_empty() {
            Err("name a scope; see `model --list`".to_owned())
        } else {
            Ok(chosen)
        }
    }

    fn activations(&self, of_scope: &[Activation]) -> Vec<Activation> {
        of_scope.iter().copied().filter(|one| self.only.is_none_or(|only| only == *one)).collect()
    }

    fn explore_from(&self, path: &str) -> Result<bool, String> {
        let depth = self.steps.ok_or("--from wants --steps")?;
        let story = std::fs::read_to_string(path).map_err(|why| format!("{path}: {why}"))?;
        let mut fine = true;
        for activation in self.activations(&stage::activations(&story)?) {
            let mut scope = scope_after(&story, activation, depth)?;
            scope.checks.executed = self.executed;
            let report = run_from(&story, &scope, activation, self.limits())?;
            fine &= self.tell(&scope, &report);
        }
        Ok(fine)
    }

    /// Prints what was found. False when it is not what was to be found: of a mutant,
    /// a violation is.
    fn tell(&self, scope: &Scope, report: &ModelReport) -> bool {
        say!("{}", summary(scope, report));
        if let Some(broken) = &report.broken {
            say!("  {} after {} steps", broken.violation, broken.steps);
            say!("{}", broken.story);
        }
        match self.mutant {
            Some(_) => report.broken.is_some(),
            None => report.is_as_expected(scope.expects),
        }
    }
}

impl ScopeBounds {
    fn set(&mut self, name: &str, bound: usize) {
        match name {
            "--terms" => self.terms = bound as u64,
            "--log" => self.log = bound as u64,
            "--changes" => self.changes = bound,
            "--restarts" => self.restarts = bound as u32,
            "--delayed" => self.network = NetworkModel::Prompt { delayed: bound },
            _ => self.network = NetworkModel::Free { link: bound },
        }
    }
}

/// All actions are allowed, for this many steps from the end of the story.
fn scope_after(story: &str, activation: Activation, depth: u32) -> Result<Scope, String> {
    let stage = stage::play(story, activation)?;
    let terms = stage.members.iter().map(|member| member.core.disk.hard_state.term).max();
    let last = stage.members.iter().map(|member| member.core.disk.log.last().index).max();
    Ok(Scope {
        name: "from".to_owned(),
        about: String::new(),
        stage: String::new(),
        activations: vec![activation],
        bounds: ScopeBounds {
            terms: terms.unwrap_or(0) + 3,
            log: last.unwrap_or(0) + 2,
            network: NetworkModel::Free { link: 2 },
            restarts: 1,
            depth,
            ..ScopeBounds::default()
        },
        may: ScopeActions { propose: true, beat: true, forget: true, ..ScopeActions::default() },
        checks: Checks { electable: true, executed: false },
        expects: ScopeExpectation::Clean,
    })
}

fn summary(scope: &Scope, report: &ModelReport) -> String {
    let end = match (&report.broken, report.exhausted) {
        (Some(broken), _) => format!("VIOLATION {}", broken.violation.rule),
        (None, true) => "exhausted".to_owned(),
        (None, false) => "cut".to_owned(),
    };
    let leader = match scope.expects {
        ScopeExpectation::Leader | ScopeExpectation::NoLeader if report.with_new_leader == 0 => {
            "\n  no leader is reachable"
        }
        ScopeExpectation::Leader | ScopeExpectation::NoLeader => "\n  a leader is reachable",
        _ => "",
    };
    let executed = match report.executed {
        0 => String::new(),
        sets => format!("\n  {} elections executed, all as predicted", grouped(sets)),
    };
    format!(
        "{} {}: {end}; {} states, {} transitions, depth {}\n  {:.1} s, {} states/s, {} MB; \
         {} members, {} messages, {} runs of the core{leader}{executed}",
        scope.name,
        activation_name(report.activation),
        grouped(report.states as u64),
        grouped(report.transitions),
        report.depth,
        report.seconds,
        grouped((report.states as f64 / report.seconds.max(1e-9)) as u64),
        report.bytes_max >> 20,
        grouped(report.members as u64),
        grouped(report.messages as u64),
        grouped(report.core_runs as u64),
    )
}

/// `1,234,567`
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(123_456), "123,456");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
