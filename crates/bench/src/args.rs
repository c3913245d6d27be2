//! The command line.

use std::fmt;
use std::path::PathBuf;

use crate::cluster::Shape;
use crate::instrument::args::{InstrumentArgs, InstrumentTask};
use crate::library::Library;
use crate::workload::CountedWorkload;

pub(crate) const USAGE: &str = "\
usage: quorate-bench core [--instructions] [--seconds N] [--only ours|raft-rs]
                          [--size 64|1024] [--batch 1|16|256]
       quorate-bench instructions [--update] [--tolerance PERCENT] [--file PATH]
       quorate-bench node [--seconds N] [--size BYTES] [--proposers N] [--workers N]
                          [--directory PATH]

core: the Raft core alone, compared with another library
  --instructions  count instructions under valgrind instead of measuring time
  --seconds N     measure each cell for N seconds (1 to 600, default 2)
  --only LIBRARY  measure one library instead of both
  --size BYTES    one payload size instead of both
  --batch COUNT   one batch instead of all three

instructions: count the instructions of fixed workloads under valgrind, and compare with a file
  --update        write the counts to the file
  --tolerance P   allow P percent more than in the file (default 5)
  --file PATH     the file (default crates/bench/instructions.txt)

node: three complete members in this process, over loopback TCP, with fsync
  --seconds N     measure each number of proposers for N seconds (1 to 600, default 5)
  --size BYTES    of a command (default 128)
  --proposers N   one number of proposers instead of 1, 64 and 256
  --workers N     threads of the runtime (default 2)
  --directory D   where the members' files go, on the disk to be measured

raft-rs is measured when built with --features peers.";

pub(crate) const SIZES: [usize; 2] = [64, 1024];
pub(crate) const BATCHES: [u64; 3] = [1, 16, 256];
pub(crate) const PROPOSERS: [usize; 3] = [1, 64, 256];

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum BenchCommand {
    /// Print the usage.
    Help,
    /// Tables of the core and other libraries.
    Core(CoreArgs),
    /// The table of complete members.
    Node(NodeArgs),
    /// Clusters of processes, compared with peers.
    Instrument(InstrumentArgs),
    /// The instructions of fixed workloads, compared with a file.
    Baseline(BaselineArgs),
    /// One of these workloads, without output: runs under valgrind.
    CountedWorkload { workload: CountedWorkload, operations: u64 },
    /// One cell, a fixed number of operations, without output: runs under valgrind.
    Cell { library: Library, shape: Shape, operations: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CoreArgs {
    pub(crate) instructions: bool,
    pub(crate) seconds: u64,
    pub(crate) only: Option<Library>,
    pub(crate) size: Option<usize>,
    pub(crate) batch: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeArgs {
    pub(crate) seconds: u64,
    pub(crate) size: usize,
    pub(crate) only: Option<usize>,
    pub(crate) workers: usize,
    pub(crate) directory: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BaselineArgs {
    pub(crate) update: bool,
    /// In percent.
    pub(crate) tolerance: f64,
    pub(crate) file: Option<PathBuf>,
}

impl NodeArgs {
    pub(crate) fn proposers(&self) -> Vec<usize> {
        self.only.map_or_else(|| PROPOSERS.to_vec(), |only| vec![only])
    }
}

impl CoreArgs {
    pub(crate) fn shapes(&self) -> Vec<Shape> {
        let sizes = SIZES.into_iter().filter(|size| self.size.is_none_or(|only| only == *size));
        let batches =
            BATCHES.into_iter().filter(|batch| self.batch.is_none_or(|only| only == *batch));
        sizes.flat_map(|size| batches.clone().map(move |batch| Shape { size, batch })).collect()
    }

    /// The libraries to measure, ours first, without those that were not built.
    pub(crate) fn libraries(&self) -> Vec<Library> {
        let wanted = |library: &Library| self.only.is_none_or(|only| only == *library);
        Library::ALL.into_iter().filter(|library| wanted(library) && library.is_built()).collect()
    }
}

/// Why a command line is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UsageError {
    NoCommand,
    UnknownCommand(String),
    UnknownOption(String),
    NoValue(&'static str),
    BadValue { option: &'static str, found: String },
    NotBuilt(Library),
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCommand => write!(f, "no command given"),
            Self::UnknownCommand(found) => write!(f, "unknown command {found:?}"),
            Self::UnknownOption(found) => write!(f, "unknown option {found:?}"),
            Self::NoValue(option) => write!(f, "{option} needs a value"),
            Self::BadValue { option, found } => write!(f, "{option} cannot be {found:?}"),
            Self::NotBuilt(library) => write!(f, "{library} was not built: add --features peers"),
        }
    }
}

pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<BenchCommand, UsageError> {
    let args: Vec<String> = args.into_iter().collect();
    let asks_for_help = |arg: &String| matches!(arg.as_str(), "--help" | "-h");
    if args.iter().any(asks_for_help) {
        return Ok(BenchCommand::Help);
    }
    let mut args = args.into_iter();
    match args.next().as_deref() {
        None => Err(UsageError::NoCommand),
        Some("help") => Ok(BenchCommand::Help),
        Some("core") => parse_core(args).map(BenchCommand::Core),
        Some("node") => parse_node(args).map(BenchCommand::Node),
        Some("instructions") => parse_baseline(args).map(BenchCommand::Baseline),
        Some("workload") => parse_workload(args),
        Some("cell") => parse_cell(args),
        Some(other) => match InstrumentTask::of(other) {
            Some(task) => InstrumentArgs::parse(task, args).map(BenchCommand::Instrument),
            None => Err(UsageError::UnknownCommand(other.into())),
        },
    }
}

fn parse_core(mut args: impl Iterator<Item = String>) -> Result<CoreArgs, UsageError> {
    let mut core =
        CoreArgs { instructions: false, seconds: 2, only: None, size: None, batch: None };
    while let Some(option) = args.next() {
        match option.as_str() {
            "--instructions" => core.instructions = true,
            "--seconds" => core.seconds = value("--seconds", &mut args, |n| (1..=600).contains(n))?,
            "--only" => core.only = Some(library("--only", &mut args)?),
            "--size" => core.size = Some(value("--size", &mut args, |n| SIZES.contains(n))?),
            "--batch" => core.batch = Some(value("--batch", &mut args, |n| BATCHES.contains(n))?),
            _ => return Err(UsageError::UnknownOption(option)),
        }
    }
    Ok(core)
}

fn parse_node(mut args: impl Iterator<Item = String>) -> Result<NodeArgs, UsageError> {
    let mut node = NodeArgs { seconds: 5, size: 128, only: None, workers: 2, directory: None };
    while let Some(option) = args.next() {
        match option.as_str() {
            "--seconds" => node.seconds = value("--seconds", &mut args, |n| (1..=600).contains(n))?,
            "--size" => node.size = value("--size", &mut args, |n| *n <= 1 << 20)?,
            "--proposers" => {
                node.only = Some(value("--proposers", &mut args, |n| (1..=4096).contains(n))?);
            }
            "--workers" => node.workers = value("--workers", &mut args, |n| (1..=64).contains(n))?,
            "--directory" => node.directory = Some(value("--directory", &mut args, |_| true)?),
            _ => return Err(UsageError::UnknownOption(option)),
        }
    }
    Ok(node)
}

fn parse_baseline(mut args: impl Iterator<Item = String>) -> Result<BaselineArgs, UsageError> {
    let mut baseline = BaselineArgs { update: false, tolerance: 5.0, file: None };
    while let Some(option) = args.next() {
        match option.as_str() {
            "--update" => baseline.update = true,
            "--tolerance" => {
                baseline.tolerance =
                    value("--tolerance", &mut args, |n| (0.0..=100.0).contains(n))?;
            }
            "--file" => baseline.file = Some(value("--file", &mut args, |_| true)?),
            _ => return Err(UsageError::UnknownOption(option)),
        }
    }
    Ok(baseline)
}

fn parse_workload(mut args: impl Iterator<Item = String>) -> Result<BenchCommand, UsageError> {
    let workload = value("workload", &mut args, |_| true)?;
    let operations = value("operations", &mut args, |_| true)?;
    Ok(BenchCommand::CountedWorkload { workload, operations })
}

fn parse_cell(mut args: impl Iterator<Item = String>) -> Result<BenchCommand, UsageError> {
    let library = library("library", &mut args)?;
    let size = value("size", &mut args, |_| true)?;
    let batch = value("batch", &mut args, |batch| *batch > 0)?;
    let operations = value("operations", &mut args, |_| true)?;
    match args.next() {
        Some(extra) => Err(UsageError::UnknownOption(extra)),
        None => Ok(BenchCommand::Cell { library, shape: Shape { size, batch }, operations }),
    }
}

pub(crate) fn value<T: std::str::FromStr>(
    option: &'static str,
    args: &mut impl Iterator<Item = String>,
    allowed: impl Fn(&T) -> bool,
) -> Result<T, UsageError> {
    let found = args.next().ok_or(UsageError::NoValue(option))?;
    match found.parse().ok().filter(allowed) {
        Some(value) => Ok(value),
        None => Err(UsageError::BadValue { option, found }),
    }
}

fn library(
    option: &'static str,
    args: &mut impl Iterator<Item = String>,
) -> Result<Library, UsageError> {
    let library: Library = value(option, args, |_| true)?;
    if library.is_built() { Ok(library) } else { Err(UsageError::NotBuilt(library)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<BenchCommand, UsageError> {
        parse(line.split_whitespace().map(String::from))
    }

    fn core(line: &str) -> CoreArgs {
        match parsed(line) {
            Ok(BenchCommand::Core(core)) => core,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn without_options_every_cell_is_measured() {
        let core = core("core");
        assert_eq!(core.shapes().len(), SIZES.len() * BATCHES.len());
        assert!(!core.instructions);
        assert_eq!(core.libraries()[0], Library::Ours);
    }

    #[test]
    fn options_narrow_the_table() {
        let core = core("core --size 64 --batch 256 --only ours --seconds 5 --instructions");
        assert_eq!(core.shapes(), [Shape { size: 64, batch: 256 }]);
        assert_eq!(core.libraries(), [Library::Ours]);
        assert_eq!((core.seconds, core.instructions), (5, true));
    }

    #[test]
    fn cell_needs_all_its_arguments() {
        let expected = BenchCommand::Cell {
            library: Library::Ours,
            shape: Shape { size: 64, batch: 16 },
            operations: 100,
        };
        assert_eq!(parsed("cell ours 64 16 100"), Ok(expected));
        assert_eq!(parsed("cell ours 64"), Err(UsageError::NoValue("batch")));
    }

    #[test]
    fn node_has_three_default_numbers_of_proposers() {
        let Ok(BenchCommand::Node(node)) = parsed("node --seconds 1") else { panic!("not parsed") };
        assert_eq!((node.proposers(), node.seconds), (PROPOSERS.to_vec(), 1));
        let Ok(BenchCommand::Node(node)) = parsed("node --proposers 7") else {
            panic!("not parsed")
        };
        assert_eq!(node.proposers(), [7]);
        assert!(parsed("node --proposers 0").is_err());
    }

    #[test]
    fn help_is_a_command_and_an_option_of_each() {
        for line in ["help", "--help", "-h", "server --help", "core --size 64 -h", "help core"] {
            assert_eq!(parsed(line), Ok(BenchCommand::Help), "{line}");
        }
    }

    #[test]
    fn invalid_arguments_are_refused_with_a_reason() {
        assert_eq!(parsed(""), Err(UsageError::NoCommand));
        assert_eq!(parsed("cores"), Err(UsageError::UnknownCommand("cores".into())));
        assert_eq!(parsed("core --fast"), Err(UsageError::UnknownOption("--fast".into())));
        assert_eq!(parsed("core --size"), Err(UsageError::NoValue("--size")));
        for bad in ["--size 65", "--batch 0", "--seconds 0", "--seconds x", "--only etcd"] {
            let refused = parsed(&format!("core {bad}"));
            assert!(matches!(refused, Err(UsageError::BadValue { .. })), "{bad}: {refused:?}");
        }
    }

    #[cfg(not(feature = "peers"))]
    #[test]
    fn library_that_was_not_built_is_refused() {
        assert_eq!(parsed("core --only raft-rs"), Err(UsageError::NotBuilt(Library::RaftRs)));
        assert_eq!(core("core").libraries(), [Library::Ours]);
    }
}
