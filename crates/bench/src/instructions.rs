//! Instructions per operation, counted by valgrind: independent of the machine and its load.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::cluster::{Shape, TRIM_EVERY};
use crate::library::Library;
use crate::workload::CountedWorkload;

/// The operations of a short run, and how many more a long run does.
const SHORT: u64 = TRIM_EVERY;
const MORE: u64 = 2 * TRIM_EVERY;

/// Why instructions could not be counted.
#[derive(Debug)]
pub(crate) enum CountError {
    /// Install valgrind.
    NoValgrind,
    /// The path of this program is unknown, or valgrind could not be started.
    Start(std::io::Error),
    /// Valgrind failed, with its output.
    Failed(String),
    /// Valgrind's output file has no total.
    NoTotal(PathBuf),
}

impl fmt::Display for CountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoValgrind => {
                write!(f, "--instructions needs valgrind, which is not installed; ")?;
                write!(
                    f,
                    "on Debian or Ubuntu: apt install valgrind; on Fedora: dnf install valgrind"
                )
            }
            Self::Start(why) => write!(f, "cannot start valgrind: {why}"),
            Self::Failed(output) => write!(f, "valgrind failed: {output}"),
            Self::NoTotal(path) => write!(f, "no total in {}", path.display()),
        }
    }
}

/// Checks that valgrind is installed.
pub(crate) fn check() -> Result<(), CountError> {
    let found = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => Ok(()),
        _ => Err(CountError::NoValgrind),
    }
}

/// Instructions per operation: a long run minus a short one, so that setup, election and process
/// start do not count.
pub(crate) fn per_operation(library: Library, shape: Shape) -> Result<f64, CountError> {
    let (size, batch) = (shape.size.to_string(), shape.batch.to_string());
    per_operation_of(&["cell", &library.to_string(), &size, &batch], 1)
}

/// The same for a workload.
pub(crate) fn of_workload(workload: CountedWorkload) -> Result<f64, CountError> {
    per_operation_of(&["workload", &workload.to_string()], workload.length())
}

/// With `length` times as many operations as usual.
fn per_operation_of(arguments: &[&str], length: u64) -> Result<f64, CountError> {
    let short = total(arguments, SHORT * length)?;
    let long = total(arguments, (SHORT + MORE) * length)?;
    Ok((long - short) as f64 / (MORE * length) as f64)
}

/// Instructions of a complete run of this program with this many operations.
fn total(arguments: &[&str], operations: u64) -> Result<u64, CountError> {
    let program = std::env::current_exe().map_err(CountError::Start)?;
    let name = format!("quorate-bench-callgrind-{}.out", std::process::id());
    let file = std::env::temp_dir().join(name);
    let mut out_file = std::ffi::OsString::from("--callgrind-out-file=");
    out_file.push(&file);
    let run = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(out_file)
        .arg(program)
        .args(arguments)
        .arg(operations.to_string())
        .output()
        .map_err(CountError::Start)?;
    let text = std::fs::read_to_string(&file);
    // A remaining file is harmless.
    let _ = std::fs::remove_file(&file);
    if !run.status.success() {
        return Err(CountError::Failed(String::from_utf8_lossy(&run.stderr).into_owned()));
    }
    let text = text.map_err(CountError::Start)?;
    find_total(&text).ok_or(CountError::NoTotal(file))
}

/// The total in callgrind's file: `totals: 123` or, in older versions, `summary: 123`.
fn find_total(text: &str) -> Option<u64> {
    let total = |line: &str| {
        let rest = line.strip_prefix("totals:").or_else(|| line.strip_prefix("summary:"))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    text.lines().rev().find_map(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_is_found_in_both_file_versions() {
        assert_eq!(find_total("version: 1\nevents: Ir\n\nfn=(1)\n3 4\n\ntotals: 917\n"), Some(917));
        assert_eq!(find_total("events: Ir\nsummary: 12\n"), Some(12));
        assert_eq!(find_total("events: Ir\n"), None);
    }
}
