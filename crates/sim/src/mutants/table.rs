//! Prints the results as tables that fit into a document as well as on a terminal.

use super::hunt::HuntResult;
use super::mutant::Mutant;
use super::stories::{CoveredRow, Stories};

/// The table of all mutants, then those whose result is not the expected one.
pub(super) fn print_results(results: &[(&Mutant, HuntResult)]) {
    say!("| mutant | catalogue | noticed by | where | events | seconds |");
    say!("|---|---|---|---|--:|--:|");
    for (mutant, result) in results {
        let (name, ids) = (&mutant.name, mutant.covers.join(" "));
        let seconds = result.took.as_secs_f64();
        match result.proof() {
            Some(kill) => say!(
                "| {name} | {ids} | {} | {} | {} | {seconds:.2} |",
                kill.checker,
                kill.place,
                kill.events
            ),
            None => say!("| {name} | {ids} | no checker | | | {seconds:.2} |"),
        }
    }
    let killed = results.iter().filter(|(_, result)| result.proof().is_some()).count();
    let equivalent = results.iter().filter(|(mutant, _)| mutant.is_equivalent()).count();
    say!("\n{killed} of {} noticed, {equivalent} known to do no harm", results.len());
    for (mutant, result) in results.iter().filter(|(mutant, result)| !result.is_expected(mutant)) {
        let seen = result.kill.as_ref();
        let seen = seen.map(|kill| format!("{}: {}", kill.place, kill.detail));
        let seen = seen.unwrap_or("nothing".to_owned());
        let what = if result.proof().is_some() { "DOES HARM" } else { "SURVIVES" };
        say!("{what}: {} ({}); seen: {seen}", mutant.name, mutant.wrong);
    }
}

/// Those that no chosen means may notice.
pub(super) fn print_not_hunted(mutants: &[&Mutant]) {
    for mutant in mutants {
        say!("not hunted by these means: {} (expected from {:?})", mutant.name, mutant.means());
    }
}

/// Rows of the catalogue by their own stories. True when each row needs its rule.
pub(super) fn print_rows(rows: &[CoveredRow<'_>]) -> bool {
    say!("| rule | switched off | noticed by | where | what was seen |");
    say!("|---|---|---|---|---|");
    for CoveredRow { id, mutant, kill } in rows {
        let name = &mutant.name;
        match kill.as_ref().filter(|kill| kill.is_proof) {
            Some(kill) => {
                say!("| {id} | {name} | {} | {} | {} |", kill.checker, kill.place, kill.detail);
            }
            None => say!("| {id} | {name} | no checker | | |"),
        }
    }
    !rows.is_empty() && rows.iter().all(CoveredRow::is_needed)
}

/// For each mutant, every story that notices it.
pub(super) fn print_witnesses(mutants: &[&Mutant], stories: &Stories) {
    for mutant in mutants {
        let kills = stories.witnesses(mutant);
        let names: Vec<String> =
            kills.iter().map(|kill| format!("{}({})", kill.place, kill.checker)).collect();
        say!("{} {}: {}", mutant.name, kills.len(), names.join(" "));
    }
}

pub(super) fn print_list(mutants: &[&Mutant]) {
    for mutant in mutants {
        let (name, ids) = (&mutant.name, mutant.covers.join(" "));
        let checker = mutant.checker().unwrap_or("no checker");
        say!("{name:<42} {ids:<18} {checker:<10} {}", mutant.wrong);
    }
}
