//! The short hunt, for the tests: each mutant by the means and the checker that its entry names.

use std::collections::BTreeSet;

use super::hunt::{Effort, Hunter, hunt_all};
use super::mutant::{Means, Mutant};
use super::stories::{Stories, stories_folder};
use crate::explore::{RunReplay, run};

/// Hunts these mutants. Returns a line for each that is not noticed as its entry says.
pub(super) fn hunt_short(mutants: &[&Mutant], hunters: Vec<Box<dyn Hunter>>) -> Vec<String> {
    let mut wrong = Vec::new();
    for hunter in hunters {
        let means = hunter.means();
        let effort = if means == Means::Stories { Effort::Short } else { Effort::Full };
        let own = mutants.iter().copied().filter(|mutant| mutant.means() == means);
        let own: Vec<&Mutant> = own.collect();
        for (mutant, result) in hunt_all(&[hunter], &own, effort) {
            let checker = result.proof().map(|kill| kill.checker.as_str());
            if checker != mutant.checker() {
                let (name, expected) = (&mutant.name, mutant.checker());
                wrong.push(format!("{name}: noticed by {checker:?}, expected {expected:?}"));
            }
        }
        say!("{means:?}: {} mutants", own.len());
    }
    wrong
}

/// A row of the catalogue that a mutant covers has a story that needs the rule.
pub(super) fn rows_without_story(mutants: &[Mutant]) -> Result<Vec<String>, String> {
    let stories = Stories::read(&stories_folder())?;
    let rows = stories.rows(mutants, "");
    let unneeded = rows.iter().filter(|row| !row.is_needed());
    let mut wrong: Vec<String> = unneeded
        .map(|row| format!("{}: no story of this row needs {}", row.id, row.mutant.name))
        .collect();
    // The rows that the exhaustive search over the membership rules asked for.
    let searched = rows.iter().filter_map(|row| row.id.strip_prefix('T')?.parse().ok());
    let searched: BTreeSet<u32> = searched.collect();
    let missing = (1..=9).filter(|number| !searched.contains(number));
    wrong.extend(missing.map(|number| format!("T{number}: no mutant covers this row")));
    say!("{} pairs of a catalogue row and a mutant", rows.len());
    Ok(wrong)
}

/// What random runs come to in this build.
pub(super) fn digest() -> u64 {
    let digests = (0..DIGEST_SEEDS).map(|seed| {
        let replay = RunReplay::of_seed(seed);
        run(&replay.setting, &replay.actions).report.digest
    });
    digests.fold(0, u64::wrapping_add)
}

/// The mutated build with all switches off must behave like the one without switches: a
/// replacement is made in the text, and could change what the operators around it mean.
pub(super) fn differs_from(real: u64) -> Option<String> {
    let mutated = digest();
    say!("{DIGEST_SEEDS} random runs without a mutant: digest {mutated:016x}");
    (mutated != real).then(|| {
        format!(
            "without a mutant, the mutated build has the digest {mutated:016x}, not {real:016x}"
        )
    })
}

const DIGEST_SEEDS: u64 = 50;
