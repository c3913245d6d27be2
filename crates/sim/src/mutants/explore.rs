//! Hunts by random runs, one seed after the other, and by direct checks of what random runs
//! reach too rarely.

use std::panic::catch_unwind;

use super::directed;
use super::hunt::{Effort, Hunter, Kill};
use super::mutant::{Means, Mutant, Worlds};
use super::switch::{limit, switch};
use crate::explore::{FOCUS_COMMITS, FOCUS_LEASES, RunReplay, RunSettings, run};

pub struct Explore;

impl Hunter for Explore {
    fn means(&self) -> Means {
        Means::Explore
    }

    fn hunt(&self, mutant: &Mutant, effort: Effort) -> Option<Kill> {
        let count = match effort {
            Effort::Short => 150,
            Effort::Full => SEEDS_MAX,
        };
        let mut seeds = (0..).filter(|seed| belongs_to(mutant.worlds, *seed)).take(count);
        match mutant.worlds {
            Worlds::All => directed().or_else(|| seeds.find_map(|seed| play(mutant, seed))),
            _ => seeds.find_map(|seed| play(mutant, seed)).or_else(directed),
        }
    }
}

fn directed() -> Option<Kill> {
    type Check = fn() -> Result<(), String>;
    let checks: [(&str, &str, Check); 7] = [
        ("R2", "entries handed out twice", directed::entries_run_once),
        ("R2", "copies from before a restart", directed::copies_from_before_a_restart_do_not_run),
        ("R2", "a command of another disk", directed::commands_of_another_disk_do_not_run),
        ("R2", "a capture during an installation", directed::no_capture_while_a_snapshot_installs),
        ("R2", "versions of a cluster", directed::versions_are_kept),
        ("K1", "a renewal by a deposed leader", directed::deposed_leaders_do_not_renew),
        ("K1", "renewals after a checkpoint", directed::renewals_clear_checkpoints),
    ];
    checks.into_iter().find_map(|(rule, place, check)| {
        let (checker, detail) = match catch_unwind(check) {
            Ok(Ok(())) => return None,
            Ok(Err(why)) => (rule, why),
            Err(_) => ("assert", "the applier panics".to_owned()),
        };
        let (means, place) = (Means::Explore, place.to_owned());
        Some(Kill { means, checker: checker.to_owned(), is_proof: true, place, detail, events: 0 })
    })
}

fn belongs_to(worlds: Worlds, seed: u64) -> bool {
    let setting = || RunSettings::draw(seed);
    match worlds {
        Worlds::All => true,
        Worlds::Leases => setting().focus == FOCUS_LEASES,
        Worlds::Commits => setting().focus == FOCUS_COMMITS,
        Worlds::Etcd => setting().etcd == 1,
        Worlds::Versions => setting().versions == 1,
    }
}

/// The most simulated clusters that are tried for one mutant.
const SEEDS_MAX: usize = 2_000;

/// More than ten times what the longest run needs.
const QUESTIONS_MAX: u64 = 300_000_000;

fn play(mutant: &Mutant, seed: u64) -> Option<Kill> {
    limit(QUESTIONS_MAX);
    let replay = RunReplay::of_seed(seed);
    let outcome = run(&replay.setting, &replay.actions);
    let violation = outcome.violation?;
    // A run that breaks a rule without the mutant as well proves nothing.
    switch(None);
    let without_mutant = run(&replay.setting, &replay.actions).violation;
    switch(Some(mutant.number));
    if without_mutant.is_some() {
        return None;
    }
    Some(Kill {
        means: Means::Explore,
        checker: violation.rule.to_owned(),
        is_proof: true,
        place: format!("seed {seed}"),
        detail: violation.to_string(),
        events: outcome.report.events,
    })
}
