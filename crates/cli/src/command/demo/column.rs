//! What the demo knows about one cluster: its members, its writes, and what has happened. The
//! procedure writes it, the display reads it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::print;

/// Number of intervals whose write rate is kept.
const RATES: usize = 400;

/// A cluster of the demo. Shared by its procedure, the observer and the display.
pub(super) struct Column {
    /// The name of the program, and its version.
    pub(super) name: String,
    pub(super) version: String,
    output: ColumnOutput,
    started: Instant,
    state: Mutex<ColumnState>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ColumnOutput {
    /// Events are printed as lines, after this prefix.
    Lines(String),
    /// Events are shown on the screen, and printed at the end.
    Screen,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ColumnState {
    pub(super) members: Vec<DisplayedMember>,
    pub(super) majorities: Vec<DisplayedMajority>,
    /// Writes per second of each interval, the newest last.
    pub(super) rates: Vec<f64>,
    pub(super) p99: Duration,
    pub(super) gap: Duration,
    pub(super) failed: u64,
    pub(super) timeline: Vec<TimelineEntry>,
    /// What a person would have to do for the replacement.
    pub(super) operator_steps: Vec<String>,
    pub(super) finished: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DisplayedMember {
    pub(super) name: String,
    pub(super) role: DisplayedRole,
    /// Entries that it has not applied yet.
    pub(super) behind: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DisplayedRole {
    Down,
    NoLeader,
    Learner,
    Follower,
    Leader,
}

/// Voters, and how many of them make a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DisplayedMajority {
    pub(super) voters: Vec<String>,
    pub(super) quorum: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TimelineEntry {
    pub(super) at: Duration,
    pub(super) text: String,
}

impl Column {
    pub(super) fn new(name: &str, version: &str, output: ColumnOutput) -> Self {
        let (name, version) = (name.to_owned(), version.to_owned());
        Self { name, version, output, started: Instant::now(), state: Mutex::default() }
    }

    /// Adds an event to the timeline.
    pub(super) fn log(&self, text: &str) {
        if let ColumnOutput::Lines(prefix) = &self.output {
            print::line(&format!("{prefix}{text}"));
        }
        let entry = TimelineEntry { at: self.started.elapsed(), text: text.to_owned() };
        self.update(|state| state.timeline.push(entry));
    }

    /// A step of the procedure that the operator has to take.
    pub(super) fn operator_step(&self, text: &str) {
        self.update(|state| state.operator_steps.push(text.to_owned()));
    }

    /// Adds the writes of an interval.
    pub(super) fn add_rate(&self, rate: f64) {
        self.update(|state| {
            state.rates.push(rate);
            let excess = state.rates.len().saturating_sub(RATES);
            state.rates.drain(..excess);
        });
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut ColumnState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn state(&self) -> ColumnState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The time since the demo began.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Prints a line of progress, where events are printed as lines.
    pub(super) fn print_progress(&self) {
        if let ColumnOutput::Lines(prefix) = &self.output {
            print::line(&format!("{prefix}{}", progress_line(&self.state())));
        }
    }

    /// Prints the events that were only on the screen.
    pub(super) fn print_timeline(&self) {
        if self.output == ColumnOutput::Screen {
            print::line(&format!("{} {}", self.name, self.version));
            for entry in self.state().timeline {
                print::line(&format!("{:6.1} s  {}", entry.at.as_secs_f64(), entry.text));
            }
        }
    }
}

impl DisplayedRole {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Down => "-",
            Self::NoLeader => "no leader",
            Self::Learner => "learner",
            Self::Follower => "follower",
            Self::Leader => "leader",
        }
    }
}

/// One line for output that is not a terminal.
fn progress_line(state: &ColumnState) -> String {
    let running = state.members.iter().filter(|member| member.role != DisplayedRole::Down);
    let members = running
        .map(|member| format!("{} {} {} behind", member.name, member.role.name(), member.behind));
    let members = members.collect::<Vec<_>>().join(", ");
    let rate = state.rates.last().copied().unwrap_or(0.0);
    let p99 = crate::command::bench::millis(state.p99);
    format!("{members} | {rate:.0} writes per second, p99 {p99}, {} failed", state.failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_fits_on_one_line() {
        let member = |name: &str, role, behind| DisplayedMember { name: name.into(), role, behind };
        let state = ColumnState {
            members: vec![
                member("m1", DisplayedRole::Leader, 0),
                member("m2", DisplayedRole::Follower, 3),
                member("m3", DisplayedRole::Down, 0),
            ],
            rates: vec![350.4],
            p99: Duration::from_micros(2500),
            ..ColumnState::default()
        };
        assert_eq!(
            progress_line(&state),
            "m1 leader 0 behind, m2 follower 3 behind | 350 writes per second, p99 2.50 ms, 0 failed"
        );
    }

    #[test]
    fn old_rates_are_dropped() {
        let column = Column::new("quorate", "1", ColumnOutput::Screen);
        (0..RATES + 5).for_each(|rate| column.add_rate(rate as f64));
        let rates = column.state().rates;
        assert_eq!((rates.len(), rates[0]), (RATES, 5.0));
    }
}
