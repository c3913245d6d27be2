//! Documents name stories and mutants; what they name must exist.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use super::{files, name};

const STORIES: &str = "crates/core/tests/scenarios";
const MUTANTS: &str = "crates/sim/mutants";
const HUNT_TABLE: &str = "docs/mutants.md";

/// The stories and mutants of the repository, by name.
struct KnownTests {
    stories: BTreeSet<String>,
    mutants: BTreeSet<String>,
}

pub(super) fn check(root: &Path, faults: &mut Vec<String>) -> io::Result<()> {
    let known = KnownTests::read(root)?;
    for file in files(&root.join("docs"), "md")? {
        let text = fs::read_to_string(&file)?;
        known.check(&name(root, &file), &text, faults);
    }
    Ok(())
}

impl KnownTests {
    fn read(root: &Path) -> io::Result<Self> {
        let stem = |file: &Path| Some(file.file_stem()?.to_string_lossy().into_owned());
        let stories = files(&root.join(STORIES), "txt")?;
        let mut mutants = BTreeSet::new();
        for file in files(&root.join(MUTANTS), "txt")? {
            mutants.extend(mutant_names(&fs::read_to_string(file)?));
        }
        Ok(Self { stories: stories.iter().filter_map(|file| stem(file)).collect(), mutants })
    }

    fn check(&self, document: &str, text: &str, faults: &mut Vec<String>) {
        for (number, line) in text.lines().enumerate() {
            let mut missing = |kind: &str, test: &str| {
                faults.push(format!("{document}:{}: no {kind} {test}", number + 1));
            };
            for quoted in line.split('`').skip(1).step_by(2) {
                let story = quoted.strip_suffix(".txt").filter(|story| is_story_name(story));
                if story.is_some_and(|story| !self.stories.contains(story)) {
                    missing("story", quoted);
                }
                let mutant = is_mutant_name(quoted) && says_mutant(line);
                if mutant && !self.mutants.contains(quoted) {
                    missing("mutant", quoted);
                }
            }
            if document != HUNT_TABLE {
                continue;
            }
            // The table of the hunt: mutant, rules, checker, story, steps.
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, mutant, _, _, story, ..] = cells[..] else { continue };
            if is_mutant_name(mutant) {
                if !self.mutants.contains(mutant) {
                    missing("mutant", mutant);
                }
                if is_story_name(story) && !self.stories.contains(story) {
                    missing("story", story);
                }
            }
        }
    }
}

/// The names before the colon of each description.
fn mutant_names(text: &str) -> Vec<String> {
    let heads = text.lines().filter_map(|line| line.split_once(": "));
    heads.map(|(head, _)| head).filter(|head| is_mutant_name(head)).map(str::to_owned).collect()
}

fn says_mutant(line: &str) -> bool {
    ["mutant", "model, "].iter().any(|word| line.contains(word))
}

/// Words with hyphens: at least three, as every mutant has.
fn is_mutant_name(text: &str) -> bool {
    has_words(text, '-')
}

fn is_story_name(text: &str) -> bool {
    has_words(text, '_')
}

fn has_words(text: &str, separator: char) -> bool {
    let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let word = |word: &str| !word.is_empty() && word.chars().all(plain);
    text.split(separator).count() >= 3 && text.split(separator).all(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_do_not_exist_are_found() {
        let set = |name: &str| BTreeSet::from([name.to_owned()]);
        let known = KnownTests { stories: set("a_vote_counts"), mutants: set("a-vote-is-lost") };
        let mut faults = Vec::new();
        let good = "the mutant `a-vote-is-lost`, `a_vote_counts.txt`\n\
                    | a-vote-is-lost | S1 | I1 | a_vote_counts | 5 |";
        known.check(HUNT_TABLE, good, &mut faults);
        assert!(faults.is_empty(), "{faults:?}");
        let bad = "the mutant `a-vote-is-won`\n`a_vote_is_won.txt`\n\
                   | a-vote-is-won | S1 | I1 | a_vote_is_won | 5 |\n`pre-vote-off=on`";
        known.check(HUNT_TABLE, bad, &mut faults);
        assert_eq!(faults.len(), 4, "{faults:?}");
        assert_eq!(faults[0], "docs/mutants.md:1: no mutant a-vote-is-won");
    }

    #[test]
    fn mutants_are_named_before_their_description() {
        let text = "# About\n[core/src/x.rs]\n\none-two-three: It does.\ncovers: S1\n- a: b\n";
        assert_eq!(mutant_names(text), ["one-two-three"]);
    }
}
