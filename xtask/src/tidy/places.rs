//! Code that lives in one place: a text that may occur only in the files that own it.

use std::fs;
use std::io;
use std::path::Path;

use super::{files, name};

/// A text that only its owner may contain.
struct Rule {
    /// Texts, any of which counts.
    texts: &'static [&'static str],
    /// Where it is looked for.
    within: &'static [&'static str],
    /// Files or folders that may contain it.
    owners: &'static [&'static str],
    instead: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        texts: &["voters.len() / 2", "len() as u32 / 2", "voters / 2", "/ 2 + 1", "len() >> 1"],
        within: &[
            "crates/core/src",
            "crates/storage/src",
            "crates/kv/src",
            "crates/node/src",
            "crates/server/src",
            "crates/cli/src",
        ],
        owners: &["crates/core/src/membership/quorum.rs"],
        instead: "quorums are counted in crates/core/src/membership/quorum.rs only",
    },
    Rule {
        texts: &["tonic::Status::", "(Status::", " Status::", "!Status::"],
        within: &["crates/server/src"],
        owners: &["crates/server/src/status"],
        instead: "gRPC errors are made in crates/server/src/status.rs only",
    },
    Rule {
        texts: &["mutant"],
        within: &["crates/core/src", "crates/node/src", "crates/storage/src", "crates/kv/src"],
        owners: &[],
        instead: "mutants are data in crates/sim/mutants; rules have no switches",
    },
];

pub(super) fn check(root: &Path, faults: &mut Vec<String>) -> io::Result<()> {
    for file in files(&root.join("crates"), "rs")? {
        let name = name(root, &file);
        let text = fs::read_to_string(&file)?;
        for rule in RULES {
            check_file(rule, &name, &text, faults);
        }
    }
    Ok(())
}

fn check_file(rule: &Rule, name: &str, text: &str, faults: &mut Vec<String>) {
    let is_below = |folders: &[&str]| folders.iter().any(|folder| name.starts_with(folder));
    if !is_below(rule.within) || is_below(rule.owners) || name.ends_with("tests.rs") {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        // Unit tests at the end of a file may count by hand to check the real code.
        if line.starts_with("#[cfg(test)]") {
            return;
        }
        if rule.texts.iter().any(|text| line.contains(text)) {
            faults.push(format!("{name}:{}: {}", number + 1, rule.instead));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_may_contain_the_text() {
        let quorum = &RULES[0];
        let mut faults = Vec::new();
        let text = "fine\nlet quorum = voters.len() / 2 + 1;\n#[cfg(test)]\nlen() / 2\n";
        check_file(quorum, "crates/core/src/membership/quorum.rs", text, &mut faults);
        check_file(quorum, "crates/sim/src/checkers/quorums.rs", text, &mut faults);
        check_file(quorum, "crates/core/src/membership/tests.rs", text, &mut faults);
        assert!(faults.is_empty());
        check_file(quorum, "crates/core/src/goals.rs", text, &mut faults);
        assert_eq!(faults.len(), 1);
        assert!(faults[0].starts_with("crates/core/src/goals.rs:2: "));
    }
}
