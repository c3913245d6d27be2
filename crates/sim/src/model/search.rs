//! Breadth first through all states of a scope, with every check in every state.
//!
//! Memory: eight bytes a state for the table (at three quarters full), eight for the
//! way back, and the states of two levels.

use std::time::Instant;

use quorate_core::config::Activation;

use super::intern::fingerprint;
use super::moves::{Move, Successors};
use super::scope::Scope;
use super::state::ModelState;
use super::transitions::Transitions;
use super::visited::VisitedStates;
use crate::checkers::Violation;
use crate::scenario::stage::StagedCluster;

/// When to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchLimits {
    pub states: usize,
    /// Say on standard error how far it is, at every level.
    pub progress: bool,
}

impl Default for SearchLimits {
    fn default() -> Self {
        Self { states: 200_000_000, progress: false }
    }
}

/// What a run found.
#[derive(Clone, Debug)]
pub struct ModelReport {
    pub activation: Activation,
    pub states: usize,
    pub transitions: u64,
    /// Steps to the farthest state.
    pub depth: u32,
    /// Everything within the bounds was seen.
    pub exhausted: bool,
    /// Distinct members, messages, and runs of the core.
    pub members: usize,
    pub messages: usize,
    pub core_runs: usize,
    /// States with a leader of a term that had no leader at the beginning.
    pub with_new_leader: u64,
    /// Sets of members for which L1 was tried by the cores themselves.
    pub executed: u64,
    pub seconds: f64,
    pub bytes_max: usize,
    pub broken: Option<FoundViolation>,
}

/// A violation and the shortest way to it.
#[derive(Clone, Debug)]
pub struct FoundViolation {
    pub violation: Violation,
    pub steps: usize,
    /// As a scenario that can be played.
    pub story: String,
}

pub(super) struct ModelSearch {
    pub(super) transitions: Transitions,
    first: ModelState,
    visited: VisitedStates,
    /// Of each state, in the order they were found.
    found: Vec<FoundState>,
    steps: u64,
    with_new_leader: u64,
    executed: u64,
    leaders_known: u64,
}

/// How a state was reached.
#[derive(Clone, Copy)]
struct FoundState {
    parent: u32,
    /// The low half of its fingerprint: enough to find it among its parent's successors.
    mark: u32,
}

/// States one behind the other: number, length, words.
type Level = Vec<u32>;

/// A way from the beginning, and what it ends with.
pub(super) struct Path {
    pub(super) moves: Vec<Move>,
    pub(super) violation: Violation,
}

impl ModelSearch {
    pub(super) fn new(scope: Scope, stage: &StagedCluster) -> Result<Self, Violation> {
        let (transitions, first) = Transitions::new(scope, stage)?;
        let leaders_known = transitions.histories.value(first.history).newest_term();
        Ok(Self {
            transitions,
            first,
            visited: VisitedStates::new(),
            found: Vec::new(),
            steps: 0,
            with_new_leader: 0,
            executed: 0,
            leaders_known,
        })
    }

    /// Runs to the end of the scope, to a limit, or to the first violation.
    pub(super) fn run(
        &mut self,
        limits: SearchLimits,
        activation: Activation,
    ) -> (ModelReport, Option<Path>) {
        let begun = Instant::now();
        let mut report = ModelReport::new(activation);
        let mut level = Level::new();
        let mut path = self.enter(&self.first.clone(), 0, &mut level).err();
        let mut found = Successors::new();
        while path.is_none() && !level.is_empty() {
            if report.depth >= self.transitions.scope.bounds.depth {
                break;
            }
            let mut next = Level::new();
            path = self.step_level(&level, &mut next, &mut found, limits);
            report.bytes_max =
                report.bytes_max.max(self.bytes() + 4 * (level.capacity() + next.capacity()));
            if self.visited.len() >= limits.states {
                report.exhausted = false;
                break;
            }
            report.depth += u32::from(!next.is_empty());
            level = next;
            if limits.progress {
                let seconds = begun.elapsed().as_secs_f64();
                eprintln!("depth {}: {} states, {seconds:.0} s", report.depth, self.visited.len());
            }
        }
        report.exhausted &= path.is_none() && level.is_empty();
        self.fill(&mut report, begun);
        (report, path)
    }

    fn step_level(
        &mut self,
        level: &Level,
        next: &mut Level,
        found: &mut Successors,
        limits: SearchLimits,
    ) -> Option<Path> {
        let mut at = 0;
        while at < level.len() && self.visited.len() < limits.states {
            let (number, len) = (level[at], level[at + 1] as usize);
            let state =
                ModelState::from_words(self.transitions.count(), &level[at + 2..at + 2 + len]);
            at += 2 + len;
            if let Err((step, violation)) = self.transitions.expand(&state, found) {
                let mut moves = self.way_to(number);
                moves.push(step);
                return Some(Path { moves, violation });
            }
            self.steps += found.states.len() as u64;
            for state in &found.states {
                if let Err(path) = self.enter(state, number, next) {
                    return Some(path);
                }
            }
        }
        None
    }

    /// Takes a state in, if it is new, and checks what only whole states show.
    fn enter(&mut self, state: &ModelState, parent: u32, next: &mut Level) -> Result<(), Path> {
        let mark = fingerprint(state.words());
        if !self.visited.insert(mark) {
            return Ok(());
        }
        let Ok(number) = u32::try_from(self.found.len()) else { panic!("too many states") };
        self.found.push(FoundState { parent, mark: mark as u32 });
        next.extend([number, state.len() as u32]);
        next.extend(state.words());
        self.with_new_leader += u64::from(self.has_new_leader(state));
        self.check(state).map_err(|violation| Path { moves: self.way_to(number), violation })
    }

    fn check(&mut self, state: &ModelState) -> Result<(), Violation> {
        let checks = self.transitions.scope.checks;
        if checks.electable {
            self.transitions.check_electable(state)?;
        }
        if checks.executed {
            self.executed += self.transitions.check_executed(state)?;
        }
        Ok(())
    }

    fn has_new_leader(&self, state: &ModelState) -> bool {
        (0..self.transitions.count()).any(|at| {
            let facts = self.transitions.facts(state, at);
            facts.leads && facts.view.term > self.leaders_known
        })
    }

    /// The moves that lead to a state, found again from the beginning.
    fn way_to(&mut self, number: u32) -> Vec<Move> {
        let mut marks = Vec::new();
        let mut number = number;
        while number != 0 {
            let FoundState { parent, mark } = self.found[number as usize];
            marks.push(mark);
            number = parent;
        }
        let (mut state, mut moves, mut found) = (self.first, Vec::new(), Successors::new());
        for mark in marks.into_iter().rev() {
            // A violation further on is not in the way.
            let _ = self.transitions.expand(&state, &mut found);
            let step = found.iter().find(|(_, next)| fingerprint(next.words()) as u32 == mark);
            let Some((step, next)) = step else { return moves };
            moves.push(step);
            state = *next;
        }
        moves
    }

    fn bytes(&self) -> usize {
        self.visited.bytes() + self.found.capacity() * size_of::<FoundState>()
    }

    fn fill(&self, report: &mut ModelReport, begun: Instant) {
        report.states = self.visited.len();
        report.transitions = self.steps;
        report.members = self.transitions.locals.len();
        report.messages = self.transitions.messages.len();
        report.core_runs = self.transitions.core_runs();
        report.with_new_leader = self.with_new_leader;
        report.executed = self.executed;
        report.seconds = begun.elapsed().as_secs_f64();
    }
}

impl ModelReport {
    fn new(activation: Activation) -> Self {
        Self {
            activation,
            states: 0,
            transitions: 0,
            depth: 0,
            exhausted: true,
            members: 0,
            messages: 0,
            core_runs: 0,
            with_new_leader: 0,
            executed: 0,
            seconds: 0.0,
            bytes_max: 0,
            broken: None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::member::Act;
    use super::super::transitions::{CAMPAIGN, MESSAGES, PROPOSE, TICK};
    use super::super::{scopes, trace};
    use super::*;
    use crate::cluster::CoreMember;
    use crate::scenario::stage;
    use quorate_core::Config;

    fn searched(name: &str, states: usize) -> ModelSearch {
        let scope = scopes().into_iter().find(|scope| scope.name == name).unwrap();
        let text = trace::with_header(&scope.stage, Activation::OnApply);
        let stage = stage::play(&text, Activation::OnApply).unwrap();
        let mut search = ModelSearch::new(scope, &stage).unwrap();
        let limits = SearchLimits { states, progress: false };
        assert!(search.run(limits, Activation::OnApply).1.is_none());
        search
    }

    /// Members that were seen and what may happen to them, by their places.
    pub(in super::super) struct ExploredMembers {
        pub(in super::super) configs: Vec<Config>,
        pub(in super::super) locals: Vec<(usize, CoreMember)>,
        pub(in super::super) acts: Vec<(usize, Act)>,
    }

    pub(in super::super) fn seen(name: &str, states: usize) -> ExploredMembers {
        let transitions = searched(name, states).transitions;
        let locals = (0..transitions.locals.len() as u32).map(|local| {
            let at = transitions.place(transitions.facts[local as usize].view.id).unwrap();
            (at, transitions.locals.value(local).as_ref().clone())
        });
        let acts = (0..transitions.messages.len() as u32).map(|message| {
            (
                usize::from(transitions.links[message as usize].to),
                transitions.act(MESSAGES + message),
            )
        });
        let own = (0..transitions.count())
            .flat_map(|at| [CAMPAIGN, PROPOSE, TICK].map(|act| (at, transitions.act(act))));
        let acts = own.chain(acts).collect();
        ExploredMembers { configs: transitions.configs.clone(), locals: locals.collect(), acts }
    }

    /// What is left out of states because it can have no effect has none, on no member
    /// that was ever seen.
    #[test]
    fn dead_messages_do_nothing() {
        let mut dead = 0;
        for (name, states) in [("two-voters", 20_000), ("promote-of-two", 5_000)] {
            let mut search = searched(name, states);
            let transitions = &mut search.transitions;
            for local in 0..transitions.locals.len() as u32 {
                let at = transitions.place(transitions.facts[local as usize].view.id).unwrap();
                for message in 0..transitions.messages.len() as u32 {
                    let to = usize::from(transitions.links[message as usize].to);
                    if to != at || !transitions.is_dead(message, local) {
                        continue;
                    }
                    let outcome = transitions.outcome(at, local, MESSAGES + message).unwrap();
                    assert_eq!(transitions.local_after(outcome), local);
                    assert!(transitions.sends(outcome).is_empty());
                    dead += 1;
                }
            }
        }
        assert!(dead > 1000, "only {dead} were dead");
    }
}
