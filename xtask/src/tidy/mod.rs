//! The rules of this repository that a program can check: sizes of files, words, idioms, names of
//! types, dependencies between crates, code that lives in one place, paths that documents name.

mod dependencies;
mod idioms;
mod named_tests;
mod places;
mod prose;
mod type_names;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// No source file grows beyond this.
const LINES_MAX: usize = 700;
/// `raft.rs` holds the struct and the dispatch; everything else belongs to a conversation.
const RAFT_LINES_MAX: usize = 400;
/// Generated code: its sources are what people read.
const GENERATED: &str = "crates/proto/src/generated/";

/// Words that have a better one here (docs/glossary.md).
const WORDS: &[(&str, &str)] = &[
    ("replica", "member"),
    ("replicas", "members"),
    ("transferee", "target of a transfer"),
    ("conf_change", "change"),
    ("confchange", "change"),
    ("reconfiguration", "change"),
    ("persist", "save"),
    ("persisted", "saved"),
    ("log_id", "EntryId"),
    ("client_write", "propose"),
    ("raft_node", "node"),
];

/// A text of etcd, whose clients compare it.
const ETCD_TEXT: &str = "bad leader transferee";

pub(crate) use idioms::report as idiom_report;

pub(crate) fn check(root: &Path) -> io::Result<Vec<String>> {
    let mut faults = Vec::new();
    for file in files(root, "rs")? {
        let text = fs::read_to_string(&file)?;
        let name = name(root, &file);
        check_size(&name, &text, &mut faults);
        check_words(&name, &text, &mut faults);
    }
    for file in files(&root.join("crates/core/tests/scenarios"), "txt")? {
        check_words(&name(root, &file), "", &mut faults);
    }
    dependencies::check(root, &mut faults)?;
    idioms::check(root, &mut faults)?;
    named_tests::check(root, &mut faults)?;
    places::check(root, &mut faults)?;
    type_names::check(root, &mut faults)?;
    check_named_paths(root, "ARCHITECTURE.md", &mut faults)?;
    check_scenarios(root, &mut faults)?;
    Ok(faults)
}

fn check_size(name: &str, text: &str, faults: &mut Vec<String>) {
    if name.starts_with(GENERATED) {
        return;
    }
    let lines = text.lines().count();
    let max = if name == "crates/core/src/raft.rs" { RAFT_LINES_MAX } else { LINES_MAX };
    if lines > max {
        faults.push(format!("{name}: {lines} lines, at most {max}: split it by topic"));
    }
}

fn check_words(name: &str, text: &str, faults: &mut Vec<String>) {
    // The conformance player uses etcd's words, as the recorded traces do, the benchmarks
    // those of the libraries they measure, and the protocol those of its clients.
    let theirs = [
        "crates/bench",
        "crates/proto",
        "crates/sim/src/conformance",
        "crates/sim/tests/conformance",
        "xtask",
    ];
    if theirs.iter().any(|folder| name.starts_with(folder)) {
        return;
    }
    for part in name.split(['/', '.']) {
        for found in part.split('_').chain([part]) {
            if let Some((word, better)) = WORDS.iter().find(|(word, _)| *word == found) {
                faults.push(format!("{name}: the name has '{word}', say '{better}'"));
            }
        }
    }
    for (number, line) in text.lines().enumerate() {
        let lower = line.to_lowercase().replace(ETCD_TEXT, "");
        for found in lower.split(|letter: char| !letter.is_alphanumeric() && letter != '_') {
            if let Some((word, better)) = WORDS.iter().find(|(word, _)| *word == found) {
                faults.push(format!("{name}:{}: '{word}', say '{better}'", number + 1));
            }
        }
    }
}

/// Every path of this repository that the document names in backticks must exist.
fn check_named_paths(root: &Path, document: &str, faults: &mut Vec<String>) -> io::Result<()> {
    let text = fs::read_to_string(root.join(document))?;
    for (number, line) in text.lines().enumerate() {
        for path in line.split('`').skip(1).step_by(2) {
            let ours = ["crates/", "docs/", "xtask/", "fuzz/", "scripts/", ".ci/"]
                .iter()
                .any(|top| path.starts_with(top));
            let plain = !path.contains([' ', '*', '<', '{', '…']);
            if ours && plain && !root.join(path).exists() {
                faults.push(format!("{document}:{}: {path} does not exist", number + 1));
            }
        }
    }
    Ok(())
}

/// The first line of a scenario says what it covers. A scenario that a comment in the core
/// names must exist.
fn check_scenarios(root: &Path, faults: &mut Vec<String>) -> io::Result<()> {
    let folder = root.join("crates/core/tests/scenarios");
    for file in files(&folder, "txt")? {
        let text = fs::read_to_string(&file)?;
        if !text.lines().next().is_some_and(|line| line.starts_with("# covers: ")) {
            faults.push(format!("{}: first line is not '# covers: …'", name(root, &file)));
        }
    }
    for file in files(&root.join("crates/core/src"), "rs")? {
        for (number, line) in fs::read_to_string(&file)?.lines().enumerate() {
            let Some((_, rest)) = line.split_once("scenarios/") else { continue };
            let Some((story, _)) = rest.split_once(".txt") else { continue };
            if !folder.join(format!("{story}.txt")).exists() {
                let place = name(root, &file);
                faults.push(format!("{place}:{}: no scenario {story}.txt", number + 1));
            }
        }
    }
    Ok(())
}

/// All files below a folder with this ending, sorted, without build output and hidden folders.
fn files(folder: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut todo = vec![folder.to_path_buf()];
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let hidden = path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with('.') || name == "target");
            if hidden {
                continue;
            }
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|found| found == ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn name(root: &Path, file: &Path) -> String {
    file.strip_prefix(root).unwrap_or(file).to_string_lossy().replace('\\', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_with_their_line() {
        let mut faults = Vec::new();
        check_words("crates/core/src/x.rs", "fine\nlet replica = 1;\n", &mut faults);
        assert_eq!(faults, ["crates/core/src/x.rs:2: 'replica', say 'member'"]);
        check_words("crates/sim/src/conformance/x.rs", "confchange", &mut faults);
        assert_eq!(faults.len(), 1);
        check_words("crates/core/tests/scenarios/a_replica_moves.txt", "", &mut faults);
        assert_eq!(faults.len(), 2);
    }

    #[test]
    fn long_files_are_found() {
        let mut faults = Vec::new();
        check_size("crates/core/src/raft.rs", &"x\n".repeat(401), &mut faults);
        check_size("crates/core/src/log.rs", &"x\n".repeat(701), &mut faults);
        check_size("crates/core/src/log.rs", &"x\n".repeat(700), &mut faults);
        check_size("crates/proto/src/generated/x.rs", &"x\n".repeat(701), &mut faults);
        assert_eq!(faults.len(), 2);
    }

    #[test]
    fn the_repository_is_tidy() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let faults = check(root).unwrap();
        assert!(faults.is_empty(), "{faults:#?}");
    }
}
