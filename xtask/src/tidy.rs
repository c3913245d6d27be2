//! Sizes of files, words, arrows between crates, and paths that documents name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// No source file grows beyond this.
const LINES_MAX: usize = 700;
/// `raft.rs` holds the struct and the dispatch; the rest has a conversation to live in.
const RAFT_LINES_MAX: usize = 400;
/// Nobody reads this: what it is made from is read.
const GENERATED: &str = "crates/proto/src/generated/";

/// Words that have a better one here (see docs/glossary.md), where they may not be.
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

/// Which crate may depend on which of ours.
const ARROWS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("proto", &[]),
    ("storage", &["quorate-core"]),
    ("node", &["quorate-core", "quorate-storage"]),
    // The kv machine knows of Raft only where it is asked to be a machine of the node.
    ("kv", &["quorate-storage", "quorate"]),
    ("sim", &["quorate-core", "quorate-storage", "quorate"]),
    ("bench", &["quorate", "quorate-core"]),
    ("cli", &["quorate-proto", "quorate-server"]),
];

/// What core may depend on at all.
const CORE_DEPENDENCIES: &[&str] = &["bytes"];
/// What core may depend on for who asks for it.
const CORE_OPTIONAL_DEPENDENCIES: &[&str] = &["serde"];

pub(crate) fn check(root: &Path) -> io::Result<Vec<String>> {
    let mut faults = Vec::new();
    for file in files(root, "rs")? {
        let text = fs::read_to_string(&file)?;
        let name = name(root, &file);
        check_size(&name, &text, &mut faults);
        check_words(&name, &text, &mut faults);
    }
    for (folder, allowed) in ARROWS {
        check_arrows(root, folder, allowed, &mut faults)?;
    }
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
        faults.push(format!("{name}: {lines} lines, at most {max}: split it by conversation"));
    }
}

fn check_words(name: &str, text: &str, faults: &mut Vec<String>) {
    // The recorded traces speak etcd's language, and so does what plays them; the
    // peers that we measure speak their own.
    let ours = ["crates/core/src", "crates/sim/src/scenario"];
    if !ours.iter().any(|folder| name.starts_with(folder)) {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        for found in lower.split(|letter: char| !letter.is_alphanumeric() && letter != '_') {
            if let Some((word, better)) = WORDS.iter().find(|(word, _)| *word == found) {
                faults.push(format!("{name}:{}: '{word}', say '{better}'", number + 1));
            }
        }
    }
}

fn check_arrows(
    root: &Path,
    folder: &str,
    allowed: &[&str],
    faults: &mut Vec<String>,
) -> io::Result<()> {
    let manifest = root.join("crates").join(folder).join("Cargo.toml");
    let mut section = String::new();
    for line in fs::read_to_string(&manifest)?.lines() {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).to_string();
            continue;
        }
        let Some((key, wanted)) = line.split_once(['=', '.']) else { continue };
        let key = key.trim();
        if section != "dependencies" || key.is_empty() {
            continue;
        }
        if key.starts_with("quorate") && !allowed.contains(&key) {
            faults.push(format!("{folder} must not depend on {key}"));
        }
        let asked_for = wanted.contains("optional = true");
        let fits_core = CORE_DEPENDENCIES.contains(&key)
            || asked_for && CORE_OPTIONAL_DEPENDENCIES.contains(&key);
        if folder == "core" && !fits_core {
            faults.push(format!("core must not depend on {key}"));
        }
    }
    Ok(())
}

/// Every path in backticks that looks like one of ours has to exist.
fn check_named_paths(root: &Path, document: &str, faults: &mut Vec<String>) -> io::Result<()> {
    let text = fs::read_to_string(root.join(document))?;
    for (number, line) in text.lines().enumerate() {
        for path in line.split('`').skip(1).step_by(2) {
            let ours =
                ["crates/", "docs/", "xtask/", ".ci/"].iter().any(|top| path.starts_with(top));
            let plain = !path.contains([' ', '*', '<', '{', '…']);
            if ours && plain && !root.join(path).exists() {
                faults.push(format!("{document}:{}: {path} does not exist", number + 1));
            }
        }
    }
    Ok(())
}

/// A scenario says first what it covers, then what would go wrong otherwise. A
/// comment in the core that names a scenario names one that is there.
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

/// All files below a folder with this ending, in order; build output left out.
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
    fn the_house_is_tidy() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let faults = check(root).unwrap();
        assert!(faults.is_empty(), "{faults:#?}");
    }
}
