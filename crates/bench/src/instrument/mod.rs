//! Clusters of real processes, Quorate's and those of peers, measured in turn in one run:
//! `quorate-bench server`, `membership` and `scale`.
//!
//! The load comes from `quorate bench`, the same program for every system. This module starts the
//! servers, reads what the kernel counts for them, and makes the table.
//!
//! # Reading order
//! `args` (what can be asked for), `processes` (a cluster), `load`, `usage` (the kernel's
//! counters), `compare`, `membership`, `scale` (the three commands), `report`.

pub(crate) mod args;
mod compare;
mod http;
mod load;
mod membership;
mod processes;
mod report;
mod scale;
mod usage;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use args::{InstrumentArgs, InstrumentTask};
use report::Report;

/// A program to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct System {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
}

impl System {
    /// etcd's program takes its flags directly, Quorate's after the word `server`.
    fn is_etcd(&self) -> bool {
        let file = self.program.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with("etcd")
    }
}

/// Why a measurement did not finish.
#[derive(Debug)]
pub(crate) struct InstrumentError(String);

impl InstrumentError {
    fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// For `map_err`: what was being done, and the reason.
    fn when<E: fmt::Display>(doing: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |why| Self(format!("{doing}: {why}"))
    }
}

impl fmt::Display for InstrumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A run with a time limit, whose progress is shown.
struct Session<'a> {
    args: &'a InstrumentArgs,
    /// Its own folder, removed at the end.
    folder: PathBuf,
    began: Instant,
}

impl Session<'_> {
    fn progress(&self, what: impl fmt::Display) {
        eprintln!("[{:5.0} s] {what}", self.began.elapsed().as_secs_f64());
    }

    /// Fails when the time of the whole run is used up.
    fn check_time(&self) -> Result<(), InstrumentError> {
        let limit = Duration::from_secs(self.args.time_limit);
        if self.began.elapsed() < limit {
            return Ok(());
        }
        let seconds = limit.as_secs();
        Err(InstrumentError::new(format!("stopped after --time-limit {seconds} seconds")))
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // A folder that remains is harmless.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs a task, and prints and writes its report. What was measured before a failure is reported
/// too.
pub(crate) fn run(args: &InstrumentArgs) -> ExitCode {
    let parent = args.directory.clone().unwrap_or_else(std::env::temp_dir);
    let folder = parent.join(format!("quorate-bench-{}", std::process::id()));
    let session = Session { args, folder, began: Instant::now() };
    let mut report = Report::new(args.task.name());
    let ran = match args.task {
        InstrumentTask::Server => compare::run(&session, &mut report),
        InstrumentTask::Membership => membership::run(&session, &mut report),
        InstrumentTask::Scale => scale::run(&session, &mut report),
    };
    println!("{}", report.table());
    println!("{}", args.task.legend());
    let written = write(args.json.as_deref(), &report.json())
        .and_then(|()| write(args.svg.as_deref(), &report.svg()));
    match ran.and(written) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quorate-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(path: Option<&Path>, text: &str) -> Result<(), InstrumentError> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, text).map_err(InstrumentError::when(format!("{}", path.display())))
}
