//! Compares instruction counts with those that an earlier run wrote to a file, so that a change
//! that makes a put more expensive is noticed on any machine, however loaded it is.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::args::BaselineArgs;
use crate::instructions::{self, CountError};
use crate::table::BenchTable;
use crate::workload::CountedWorkload;

/// What comparing found.
pub(crate) struct BaselineComparison {
    pub(crate) table: BenchTable,
    /// Workloads that take more instructions than allowed, or are not in the file.
    pub(crate) worse: Vec<String>,
    /// The contents of the file with the new counts.
    pub(crate) updated: String,
}

/// Counts every workload, and compares with the text of the file.
pub(crate) fn compare(args: &BaselineArgs, known: &str) -> Result<BaselineComparison, CountError> {
    let known = parse(known);
    let mut table = BenchTable::new(&["workload", "instructions/op", "in the file", "change"]);
    let mut worse = Vec::new();
    let mut updated = String::from(HEAD);
    for workload in CountedWorkload::ALL {
        eprintln!("quorate-bench: counting {workload}");
        let count = instructions::of_workload(workload)?;
        let name = workload.to_string();
        let before = known.get(&name).copied();
        let change = before.map(|before| (count / before - 1.0) * 100.0);
        if change.is_none_or(|change| change > args.tolerance) {
            worse.push(name.clone());
        }
        table.row(&[
            name,
            format!("{count:.0}"),
            before.map(|before| format!("{before:.0}")).unwrap_or_default(),
            change.map(|change| format!("{change:+.1} %")).unwrap_or_default(),
        ]);
        let _ = writeln!(updated, "{workload} {count:.0}");
    }
    Ok(BaselineComparison { table, worse, updated })
}

fn parse(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let rows = lines.filter_map(|line| line.split_once(' '));
    rows.filter_map(|(name, count)| Some((name.to_owned(), count.trim().parse().ok()?))).collect()
}

/// Where the file is when the program runs in the repository.
pub(crate) fn default_file() -> &'static Path {
    Path::new("crates/bench/instructions.txt")
}

const HEAD: &str = "\
# Instructions per operation, counted by callgrind with the release profile. Compare with
# cargo run --release -p quorate-bench -- instructions
# and write the file again with --update after a change that is meant to cost more or less.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_broken_lines_are_ignored() {
        let known = parse("# a 1\nb 20\nc\nd x\n");
        assert_eq!(known, BTreeMap::from([("b".to_owned(), 20.0)]));
    }
}
