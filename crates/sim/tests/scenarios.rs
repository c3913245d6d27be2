//! Runs every story of the core and compares transcripts; `UPDATE=1` rewrites them.

use std::path::PathBuf;

use quorate_sim::scenario::{StoryResult, check, find, update_wanted};

#[test]
fn stories_of_the_core_pass() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../core/tests/scenarios");
    let files = find(&[folder]).unwrap();
    assert!(!files.is_empty(), "no stories found");
    let mut failures = Vec::new();
    for path in files {
        if let StoryResult::Failed { line, why } = check(&path, update_wanted()) {
            failures.push(format!("{}:{line}: {why}", path.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn stories_are_deterministic() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../core/tests/scenarios");
    for path in find(&[folder]).unwrap() {
        assert_eq!(check(&path, false), check(&path, false), "{}", path.display());
    }
}
