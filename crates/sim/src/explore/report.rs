//! Counts of what happened in one run or in many.

use std::collections::BTreeMap;
use std::fmt;

use quorate_core::Event;

/// Counts of what happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunReport {
    pub schedules: u64,
    pub events: u64,
    /// Of the members' clocks.
    pub ticks: u64,
    pub requests_done: u64,
    pub requests_refused: u64,
    pub requests_unknown: u64,
    pub elections: u64,
    pub memberships: u64,
    pub goals_reached: u64,
    pub changes_done: u64,
    pub changes_refused: u64,
    pub changes_unknown: u64,
    pub cancels: u64,
    /// A leader was elected while a change was under way.
    pub interrupted: u64,
    pub snapshots_sent: u64,
    pub snapshots_installed: u64,
    /// Runs in which the remaining members had to recover, and did.
    pub healed: u64,
    /// Goals that were in progress when the faults ended, and were reached without help.
    pub goals_finished: u64,
    /// Runs that made progress under lasting gray faults.
    pub endured: u64,
    /// Runs in which too little was left to demand anything.
    pub not_judged: u64,
    /// A history that took the linearizability checker too many steps.
    pub undecided: u64,
    /// Of everything that happened, in order: equal runs have equal digests.
    pub digest: u64,
    /// Faults and other actions, by name.
    pub counts: BTreeMap<&'static str, u64>,
}

impl RunReport {
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Something happened.
    pub(crate) fn note(&mut self, at: u64, order: u64) {
        let seen = self.digest ^ at.rotate_left(32) ^ order;
        self.digest = seen.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }

    pub(crate) fn on_event(&mut self, event: &Event) {
        if let Event::SnapshotInstalled(_) = event {
            self.snapshots_installed += 1;
        }
    }

    /// Adds another one to this one.
    pub fn add(&mut self, other: &Self) {
        self.schedules += other.schedules;
        self.events += other.events;
        self.ticks += other.ticks;
        self.requests_done += other.requests_done;
        self.requests_refused += other.requests_refused;
        self.requests_unknown += other.requests_unknown;
        self.elections += other.elections;
        self.memberships += other.memberships;
        self.goals_reached += other.goals_reached;
        self.changes_done += other.changes_done;
        self.changes_refused += other.changes_refused;
        self.changes_unknown += other.changes_unknown;
        self.cancels += other.cancels;
        self.interrupted += other.interrupted;
        self.snapshots_sent += other.snapshots_sent;
        self.snapshots_installed += other.snapshots_installed;
        self.healed += other.healed;
        self.goals_finished += other.goals_finished;
        self.endured += other.endured;
        self.not_judged += other.not_judged;
        self.undecided += other.undecided;
        self.digest = self.digest.wrapping_add(other.digest);
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }
}

/// Ticks of a tenth of a second, as days and hours.
fn simulated(ticks: u64) -> String {
    let seconds = ticks / 10;
    format!("{}d {:02}h {:02}m", seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60)
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "schedules        {}", self.schedules)?;
        writeln!(f, "events           {}", self.events)?;
        let time = simulated(self.ticks);
        writeln!(f, "simulated time   {time} of clusters, at 100 ms a tick")?;
        writeln!(
            f,
            "requests         {} done, {} refused, {} unknown",
            self.requests_done, self.requests_refused, self.requests_unknown
        )?;
        writeln!(f, "elections        {}", self.elections)?;
        writeln!(
            f,
            "changes          {} done, {} refused, {} unknown, {} cancels, {} interrupted by a \
             leader change",
            self.changes_done,
            self.changes_refused,
            self.changes_unknown,
            self.cancels,
            self.interrupted
        )?;
        writeln!(
            f,
            "memberships      {} committed, {} goals reached",
            self.memberships, self.goals_reached
        )?;
        writeln!(
            f,
            "snapshots        {} sent, {} installed",
            self.snapshots_sent, self.snapshots_installed
        )?;
        writeln!(
            f,
            "healed           {} recovered, {} not judged, {} histories undecided",
            self.healed, self.not_judged, self.undecided
        )?;
        writeln!(
            f,
            "progress         {} goals finished by a later leader, {} runs under gray faults",
            self.goals_finished, self.endured
        )?;
        writeln!(f, "digest           {:016x}", self.digest)?;
        write!(f, "faults and acts ")?;
        for (what, count) in &self.counts {
            write!(f, " {what} {count};")?;
        }
        Ok(())
    }
}
