//! Plays recorded traces of etcd-io/raft against the core and compares what is
//! printed: an independent check.
//!
//! There are three kinds of traces. `quorum` asks for majorities, `algebra` for
//! changes of membership, and `interaction` plays whole members by hand. The last
//! one runs the core under `Config::etcd`, the preset that promises to behave as the
//! recorded system does; what the two call differently is translated in `notation`.

mod algebra;
mod arrival;
mod batch;
mod diff;
mod file;
mod interaction;
mod member;
mod message;
mod notation;
mod quorum;
mod world;

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use algebra::Algebra;
use file::TraceCommand;
use interaction::Interaction;

use crate::checkers::panic_text;

/// Plays every trace below a directory and prints how it went, one line a file.
pub fn main(dir: &Path) -> ExitCode {
    match run_dir(dir) {
        Ok(report) => {
            say!("{}", report.to_string().trim_end());
            if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Plays every trace below a directory, in the order of their paths.
pub fn run_dir(dir: &Path) -> Result<TraceReport, DirError> {
    let unreadable = |error| DirError::Unreadable { dir: dir.to_owned(), error };
    let mut paths = Vec::new();
    collect(dir, &mut paths).map_err(unreadable)?;
    if paths.is_empty() {
        return Err(DirError::Empty { dir: dir.to_owned() });
    }
    paths.sort();
    let files =
        paths.into_iter().map(|path| PlayedTrace { result: run_file(&path), path }).collect();
    Ok(TraceReport { files })
}

/// Plays one trace. The folder names of `path` may tell its kind, else its commands
/// do; nothing is read from there.
pub fn run_text(path: &Path, text: &str) -> Result<(), TraceFailure> {
    let commands = file::parse(text).map_err(|file::MalformedTrace { line, what }| {
        TraceFailure { line, command: String::new(), what }
    })?;
    let mut player = Player::new(path, &commands);
    for command in &commands {
        // Whatever a trace makes the core do, the other traces are to be played too.
        let played = catch_unwind(AssertUnwindSafe(|| player.run(command)));
        let printed =
            played.unwrap_or_else(|panic| Err(format!("panicked: {}", panic_text(panic.as_ref()))));
        let what = match printed {
            Ok(printed) if printed == command.expected => continue,
            Ok(printed) => {
                let diff = diff::diff(&command.expected, &printed);
                format!("expected (-) and printed (+) differ:\n{}", diff.trim_end())
            }
            Err(why) => why,
        };
        let line = command.line;
        let command = format!("{} {}", command.name, command.rest).trim().to_owned();
        return Err(TraceFailure { line, command, what });
    }
    Ok(())
}

/// How the traces of a directory went.
#[derive(Debug)]
pub struct TraceReport {
    pub files: Vec<PlayedTrace>,
}

/// How one trace went.
#[derive(Debug)]
pub struct PlayedTrace {
    pub path: PathBuf,
    pub result: Result<(), TraceFailure>,
}

/// Where a trace and the core first part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFailure {
    /// Where the command stands in its file.
    pub line: usize,
    /// Empty when the file itself is wrong.
    pub command: String,
    pub what: String,
}

/// Why there was nothing to play.
#[derive(Debug)]
pub enum DirError {
    /// The directory, or something below it, cannot be read.
    Unreadable { dir: PathBuf, error: io::Error },
    /// Traces are files that end in `.txt`.
    Empty { dir: PathBuf },
}

impl TraceReport {
    pub fn passed(&self) -> usize {
        self.files.iter().filter(|file| file.result.is_ok()).count()
    }

    pub fn failed(&self) -> usize {
        self.files.len() - self.passed()
    }
}

impl fmt::Display for TraceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            let path = file.path.display();
            match &file.result {
                Ok(()) => writeln!(f, "ok {path}")?,
                Err(failure) => writeln!(f, "FAIL {path}:{failure}")?,
            }
        }
        writeln!(f, "{} passed, {} failed", self.passed(), self.failed())
    }
}

/// `LINE`, then the command and what is wrong on lines of their own.
impl fmt::Display for TraceFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.line)?;
        if !self.command.is_empty() {
            write!(f, "\n  {}", self.command)?;
        }
        write!(f, "\n  {}", self.what)
    }
}

impl fmt::Display for DirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { dir, error } => write!(f, "cannot read {}: {error}", dir.display()),
            Self::Empty { dir } => write!(f, "no trace (*.txt) below {}", dir.display()),
        }
    }
}

impl std::error::Error for DirError {}

/// What plays the commands of one file.
enum Player {
    Quorum,
    Algebra(Box<Algebra>),
    Interaction(Box<Interaction>),
}

impl Player {
    fn new(path: &Path, commands: &[TraceCommand]) -> Self {
        let folders = path.parent().into_iter().flat_map(Path::components);
        let folder = folders.rev().find_map(|folder| Self::named(folder.as_os_str().to_str()?));
        folder.or_else(|| commands.iter().find_map(Self::speaking)).unwrap_or_else(Self::members)
    }

    fn members() -> Self {
        Self::Interaction(Box::default())
    }

    fn named(folder: &str) -> Option<Self> {
        match folder {
            "quorum" => Some(Self::Quorum),
            "confchange" => Some(Self::Algebra(Box::default())),
            "interaction" => Some(Self::members()),
            _ => None,
        }
    }

    /// The kind of trace that has this command and no other kind has.
    fn speaking(command: &TraceCommand) -> Option<Self> {
        match command.name.as_str() {
            "committed" | "vote" => Self::named("quorum"),
            "simple" | "enter-joint" | "leave-joint" => Self::named("confchange"),
            _ => None,
        }
    }

    fn run(&mut self, command: &TraceCommand) -> Result<Vec<String>, String> {
        match self {
            Self::Quorum => quorum::run(command),
            Self::Algebra(algebra) => algebra.run(command),
            Self::Interaction(interaction) => interaction.run(command),
        }
    }
}

fn run_file(path: &Path) -> Result<(), TraceFailure> {
    let text = fs::read_to_string(path).map_err(|error| TraceFailure {
        line: 1,
        command: String::new(),
        what: format!("cannot be read: {error}"),
    })?;
    run_text(path, &text)
}

fn collect(dir: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, paths)?;
        } else if path.extension() == Some(OsStr::new("txt")) {
            paths.push(path);
        }
    }
    Ok(())
}
