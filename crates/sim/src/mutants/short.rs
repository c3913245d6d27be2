//! The short hunt, for the tests: each mutant by the means and the checker that its entry names.

use std::collections::BTreeSet;

use super::hunt::{Effort, Hunter, hunt_all};
use super::mutant::Mutant;
use super::stories::{Stories, stories_folder};
use super::{Disks, Explore, ModelHunter};

/// Hunts all mutants. Returns a line for each that is not noticed as its entry says.
pub(super) fn hunt_short(mutants: &[Mutant]) -> Result<Vec<String>, String> {
    let stories = Stories::read(&stories_folder())?;
    let mut wrong = rows_without_story(&stories, mutants);
    let hunters: [(Box<dyn Hunter>, Effort); 4] = [
        (Box::new(stories), Effort::Short),
        (Box::new(Disks), Effort::Full),
        (Box::new(Explore), Effort::Full),
        (Box::new(ModelHunter::new()), Effort::Full),
    ];
    for (hunter, effort) in hunters {
        let means = hunter.means();
        let own: Vec<&Mutant> = mutants.iter().filter(|mutant| mutant.means() == means).collect();
        for (mutant, result) in hunt_all(&[hunter], &own, effort) {
            let checker = result.proof().map(|kill| kill.checker.as_str());
            if checker != mutant.checker() {
                let (name, expected) = (&mutant.name, mutant.checker());
                wrong.push(format!("{name}: noticed by {checker:?}, expected {expected:?}"));
            }
        }
        say!("{means:?}: {} mutants", own.len());
    }
    Ok(wrong)
}

/// A row of the catalogue that a mutant covers has a story that needs the rule.
fn rows_without_story(stories: &Stories, mutants: &[Mutant]) -> Vec<String> {
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
    wrong
}
