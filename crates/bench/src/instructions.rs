//! Instructions an operation, counted by valgrind: the same on every machine, and
//! deaf to its noise.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::cluster::{Shape, TRIM_EVERY};
use crate::side::Side;

/// What a short run does, set-up and all, and how much more a long one does.
const SHORT: u64 = TRIM_EVERY;
const MORE: u64 = 2 * TRIM_EVERY;

/// Why nothing could be counted.
#[derive(Debug)]
pub(crate) enum CountError {
    /// Install valgrind.
    NoValgrind,
    /// This program could not be found again, or valgrind could not be started.
    Start(std::io::Error),
    /// Valgrind ran and failed; its own words.
    Failed(String),
    /// Valgrind's file has no total.
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
            Self::Failed(words) => write!(f, "valgrind failed: {words}"),
            Self::NoTotal(path) => write!(f, "no total in {}", path.display()),
        }
    }
}

/// Whether valgrind is there at all.
pub(crate) fn check() -> Result<(), CountError> {
    let found = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => Ok(()),
        _ => Err(CountError::NoValgrind),
    }
}

/// Instructions an operation: of a long run less a short one, so that set-up, an
/// election and the process itself do not count.
pub(crate) fn per_operation(side: Side, shape: Shape) -> Result<f64, CountError> {
    let short = total(side, shape, SHORT)?;
    let long = total(side, shape, SHORT + MORE)?;
    Ok((long - short) as f64 / MORE as f64)
}

/// Instructions of a whole run of this program with this many operations.
fn total(side: Side, shape: Shape, operations: u64) -> Result<u64, CountError> {
    let program = std::env::current_exe().map_err(CountError::Start)?;
    let name = format!("quorate-bench-callgrind-{}.out", std::process::id());
    let file = std::env::temp_dir().join(name);
    let mut out_file = std::ffi::OsString::from("--callgrind-out-file=");
    out_file.push(&file);
    let run = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(out_file)
        .arg(program)
        .arg("cell")
        .args([side.to_string(), shape.size.to_string()])
        .args([shape.batch.to_string(), operations.to_string()])
        .output()
        .map_err(CountError::Start)?;
    let text = std::fs::read_to_string(&file);
    // A file left behind is no reason to lose the count.
    let _ = std::fs::remove_file(&file);
    if !run.status.success() {
        return Err(CountError::Failed(String::from_utf8_lossy(&run.stderr).into_owned()));
    }
    let text = text.map_err(CountError::Start)?;
    find_total(&text).ok_or(CountError::NoTotal(file))
}

/// The total in callgrind's file: `totals: 123` or, in older ones, `summary: 123`.
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
    fn the_total_is_found_in_old_and_new_files() {
        assert_eq!(find_total("version: 1\nevents: Ir\n\nfn=(1)\n3 4\n\ntotals: 917\n"), Some(917));
        assert_eq!(find_total("events: Ir\nsummary: 12\n"), Some(12));
        assert_eq!(find_total("events: Ir\n"), None);
    }
}
