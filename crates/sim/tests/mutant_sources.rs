//! Every mutant still quotes the current source text. Fast, because nothing is built.

use std::collections::BTreeMap;
use std::path::PathBuf;

use quorate_sim::mutants::{Expected, mutants_folder, read_mutants, rewrite};

#[test]
fn every_quote_matches_the_source_exactly_once() {
    let mutants = read_mutants(&mutants_folder()).unwrap();
    let crates = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut quotes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut mismatches = Vec::new();
    for mutant in &mutants {
        // One mutant at a time, so that all mismatches are listed.
        for edit in &mutant.edits {
            *quotes.entry(&edit.file).or_default() += 1;
            let text = std::fs::read_to_string(crates.join(&edit.file));
            let text = text.unwrap_or_else(|why| panic!("{}: {}: {why}", mutant.name, edit.file));
            let alone = std::slice::from_ref(mutant);
            mismatches.extend(rewrite(&edit.file, &text, alone, "is_on").err());
        }
    }
    mismatches.dedup();
    assert!(mismatches.is_empty(), "\n{}", mismatches.join("\n"));
    for file in quotes.keys() {
        let text = std::fs::read_to_string(crates.join(file)).unwrap();
        rewrite(file, &text, &mutants, "is_on").unwrap();
    }
    assert!(mutants.len() > 200, "{} mutants", mutants.len());
}

#[test]
fn every_mutant_names_the_checker_that_must_detect_it() {
    const CHECKERS: &[&str] = &["claim", "assert", "endless"];
    for mutant in read_mutants(&mutants_folder()).unwrap() {
        match &mutant.expected {
            Expected::Noticed { checker, .. } => {
                let is_rule = checker.starts_with(['I', 'L', 'R', 'D', 'K', 'V', 'W'])
                    && checker[1..].parse::<u32>().is_ok();
                let is_known = is_rule || CHECKERS.contains(&checker.as_str());
                assert!(is_known, "{}: unknown checker `{checker}`", mutant.name);
            }
            Expected::Equivalent(reason) => assert!(reason.ends_with('.'), "{}", mutant.name),
        }
    }
}
