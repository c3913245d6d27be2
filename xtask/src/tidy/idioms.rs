//! Counts literary idioms (`xtask/idioms.txt`) in everything that a person reads, for each crate
//! and for the documents, and fails where there are more than [`IDIOMS_PER_1000_WORDS_MAX`].

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::prose::{FileKind, prose};
use super::{GENERATED, files, name};

/// Well written codebases of the field have 0.1 to 0.4.
const IDIOMS_PER_1000_WORDS_MAX: f64 = 0.5;
const LIST: &str = "xtask/idioms.txt";
const MUTANTS: &str = "crates/sim/mutants/";

/// An idiom and what to write instead.
struct Idiom {
    words: Vec<String>,
    instead: String,
}

/// What was counted in one crate, or in the documents.
#[derive(Default)]
struct AreaCount {
    words: usize,
    /// Where each idiom was found.
    hits: Vec<String>,
}

impl AreaCount {
    fn per_1000_words(&self) -> f64 {
        1000.0 * self.hits.len() as f64 / self.words.max(1) as f64
    }
}

pub(super) fn check(root: &Path, faults: &mut Vec<String>) -> io::Result<()> {
    for (area, count) in count_all(root)? {
        let rate = count.per_1000_words();
        if rate > IDIOMS_PER_1000_WORDS_MAX {
            faults.push(format!(
                "{area}: {} idioms in {} words, {rate:.2} per 1,000, at most {IDIOMS_PER_1000_WORDS_MAX}:",
                count.hits.len(),
                count.words
            ));
            faults.extend(count.hits.into_iter().map(|hit| format!("  {hit}")));
        }
    }
    Ok(())
}

/// One line for each area, for `tidy --idioms`.
pub(crate) fn report(root: &Path) -> io::Result<Vec<String>> {
    let counts = count_all(root)?;
    let line = |(area, count): (String, AreaCount)| {
        let hits = count.hits.len();
        format!(
            "{area:<16} {:>7} words {hits:>4} idioms {:>6.2} per 1,000",
            count.words,
            count.per_1000_words()
        )
    };
    Ok(counts.into_iter().map(line).collect())
}

fn count_all(root: &Path) -> io::Result<BTreeMap<String, AreaCount>> {
    let idioms = parse_list(&fs::read_to_string(root.join(LIST))?);
    let mut areas: BTreeMap<String, AreaCount> = BTreeMap::new();
    let kinds = [
        ("rs", FileKind::Rust),
        ("proto", FileKind::Rust),
        ("txt", FileKind::Story),
        ("md", FileKind::Document),
        ("toml", FileKind::Script),
        ("sh", FileKind::Script),
    ];
    for (ending, kind) in kinds {
        for file in files(root, ending)? {
            let name = name(root, &file);
            if name.starts_with(GENERATED) || name == LIST {
                continue;
            }
            let kind = if name.starts_with(MUTANTS) { FileKind::Mutants } else { kind };
            let text = prose(kind, &fs::read_to_string(&file)?);
            let count = areas.entry(area(&name)).or_default();
            count_text(&idioms, &name, &text, count);
        }
    }
    Ok(areas)
}

/// `crates/core` for a crate; `documents` for what is beside the crates.
fn area(name: &str) -> String {
    let mut parts = name.split('/');
    match (parts.next(), parts.next()) {
        (Some("crates"), Some(folder)) => format!("crates/{folder}"),
        (Some(top @ ("xtask" | "fuzz")), Some(_)) => top.to_owned(),
        _ => "documents".to_owned(),
    }
}

fn parse_list(text: &str) -> Vec<Idiom> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    let idiom = |(words, instead): (&str, &str)| Idiom {
        words: split(words),
        instead: instead.trim().to_owned(),
    };
    pairs.map(idiom).filter(|idiom| !idiom.words.is_empty()).collect()
}

fn count_text(idioms: &[Idiom], name: &str, text: &str, count: &mut AreaCount) {
    let words = split(text);
    count.words += words.len();
    for at in 0..words.len() {
        let rest = &words[at..];
        let found = idioms.iter().find(|idiom| rest.starts_with(&idiom.words));
        let Some(idiom) = found else { continue };
        // "no longer than ten" and the like state a bound.
        if rest.get(idiom.words.len()).is_some_and(|next| next == "than") {
            continue;
        }
        let context = words[at.saturating_sub(4)..(at + 5).min(words.len())].join(" ");
        count.hits.push(format!("{name}: '{context}': say '{}'", idiom.instead));
    }
}

fn split(text: &str) -> Vec<String> {
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '\'');
    words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(text: &str) -> usize {
        let idioms = parse_list("# list\nwalrus = seal\nblue moon = rare\n");
        let mut count = AreaCount::default();
        count_text(&idioms, "x.md", text, &mut count);
        count.hits.len()
    }

    #[test]
    fn idioms_are_counted_as_whole_words() {
        assert_eq!(hits("Walrus under a blue\nmoon"), 2);
        assert_eq!(hits("walrus than; walruses"), 0);
    }

    #[test]
    fn areas_are_crates_and_documents() {
        assert_eq!(area("crates/core/src/raft.rs"), "crates/core");
        assert_eq!(area("docs/model.md"), "documents");
        assert_eq!(area("README.md"), "documents");
        assert_eq!(area("xtask/src/main.rs"), "xtask");
    }

    #[test]
    fn an_area_above_the_limit_names_each_place() {
        let count = AreaCount { words: 1000, hits: vec!["x".into()] };
        assert!(count.per_1000_words() > IDIOMS_PER_1000_WORDS_MAX);
    }
}
