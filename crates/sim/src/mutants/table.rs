//! What was found, as tables that stand as well in a document as on a terminal.

use quorate_core::mutants::Mutant;

use super::equivalent::reason;
use super::hunt::Fate;
use super::stories::{Rule, Stories};

/// The kill table, then those that live on.
pub(super) fn print_fates(fates: &[(Mutant, Fate)]) {
    say!("| mutant | catalogue | noticed by | where | events | seconds |");
    say!("|---|---|---|---|--:|--:|");
    for (mutant, fate) in fates {
        let (name, ids) = (mutant.name(), mutant.ids());
        let seconds = fate.took.as_secs_f64();
        match fate.kill.as_ref().filter(|kill| kill.is_proof) {
            Some(kill) => say!(
                "| {name} | {ids} | {} | {} | {} | {seconds:.2} |",
                kill.checker,
                kill.place,
                kill.events
            ),
            None => say!("| {name} | {ids} | nobody | | | {seconds:.2} |"),
        }
    }
    let killed = fates.iter().filter(|(_, fate)| fate.is_killed()).count();
    let harmless = fates.iter().filter(|(mutant, _)| reason(*mutant).is_some()).count();
    say!("\n{killed} of {} noticed, {harmless} known to do no harm", fates.len());
    for (mutant, fate) in fates.iter().filter(|(mutant, fate)| !fate.is_as_wanted(*mutant)) {
        let seen = fate.kill.as_ref();
        let seen =
            seen.map_or("nothing".to_owned(), |kill| format!("{}: {}", kill.place, kill.detail));
        let what = if fate.is_killed() { "DOES HARM AFTER ALL" } else { "SURVIVES" };
        say!("{what}: {} ({}); seen: {seen}", mutant.name(), mutant.wrong());
    }
}

/// Those that other means are expected to notice.
pub(super) fn print_elsewhere(mutants: &[Mutant]) {
    for mutant in mutants {
        say!("not hunted here: {} (by {:?})", mutant.name(), mutant.means());
    }
}

/// Rows of the catalogue by their own stories. True when each is shown to be needed.
pub(super) fn print_rules(rules: &[Rule]) -> bool {
    say!("| rule | switched off | noticed by | where | what was seen |");
    say!("|---|---|---|---|---|");
    for Rule { id, mutant, kill } in rules {
        match kill.as_ref().filter(|kill| kill.is_proof) {
            Some(kill) => {
                let name = mutant.name();
                say!("| {id} | {name} | {} | {} | {} |", kill.checker, kill.place, kill.detail);
            }
            None => say!("| {id} | {} | nobody | | |", mutant.name()),
        }
    }
    let shown = |rule: &Rule| rule.kill.as_ref().is_some_and(|kill| kill.is_proof);
    !rules.is_empty() && rules.iter().all(shown)
}

/// For each mutant, every story that notices it.
pub(super) fn print_witnesses(mutants: &[Mutant], stories: &Stories) {
    for mutant in mutants {
        let kills = stories.witnesses(*mutant);
        let names: Vec<String> =
            kills.iter().map(|kill| format!("{}({})", kill.place, kill.checker)).collect();
        say!("{} {}: {}", mutant.name(), kills.len(), names.join(" "));
    }
}

pub(super) fn print_list(mutants: &[Mutant]) {
    for mutant in mutants {
        let (name, ids, wrong) = (mutant.name(), mutant.ids(), mutant.wrong());
        say!("{name:<34} {ids:<18} {:<8} {wrong}", mutant.checker());
    }
}
