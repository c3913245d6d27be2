//! Stories about a cluster, written as text files and played member by member.
//!
//! A story sets a stage (members, logs, partitions), does things to it step by
//! step, and shows below each step everything that happened. `docs/scenarios.md`
//! is the whole language on one page. Inside, a line becomes a `command`, a
//! command is played on the `world`, and the `runner` compares what the world
//! wrote with what the file says.

mod catalogue;
mod command;
mod expect;
mod grammar;
mod member;
mod message;
mod network;
mod notation;
mod page;
mod play;
mod playback;
mod requests;
mod runner;
mod script;
mod setting;
mod setup;
mod show;
#[cfg(feature = "whole")]
pub(crate) mod stage;
mod story;
mod variables;
mod words;
mod world;

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub use playback::{
    ClusterPicture, EntryPicture, MemberPicture, MessagePicture, Playback, PlayedLine,
};
pub use runner::{StoryResult, check, find};
pub use script::{Complaint, ComplaintKind, Script};
use show::Colours;
use story::Story;
pub use story::{Plays, StoryError};

/// Whether a text is a valid story. For the fuzz targets.
#[cfg(feature = "whole")]
pub(crate) fn is_story(text: &str) -> bool {
    Story::parse(text).is_ok()
}

/// `quorate-sim scenario [--show | --show-on-append | --coverage] PATH…`
pub fn main(args: &[String]) -> ExitCode {
    let flags: Vec<&str> =
        args.iter().filter(|arg| arg.starts_with('-')).map(String::as_str).collect();
    let paths: Vec<PathBuf> =
        args.iter().filter(|arg| !arg.starts_with('-')).map(PathBuf::from).collect();
    let known = ["--show", "--show-on-append", "--coverage"];
    if let Some(flag) = flags.iter().find(|flag| !known.contains(flag)) {
        eprintln!("`{flag}` is no flag, expected one of {}", known.join(" "));
        return ExitCode::from(2);
    }
    let files = match find(&paths) {
        Ok(files) if !files.is_empty() => files,
        Ok(_) => {
            eprintln!("no story files there, expected paths of .txt files or folders of them");
            return ExitCode::from(2);
        }
        Err(why) => {
            eprintln!("cannot read the paths: {why}");
            return ExitCode::from(2);
        }
    };
    match flags.first() {
        Some(&"--show") => show_all(&files, 0),
        Some(&"--show-on-append") => show_all(&files, 1),
        Some(_) => print_coverage(&files),
        None => check_all(&files),
    }
}

/// Whether transcripts are to be rewritten: `UPDATE=1` in the environment.
pub fn update_wanted() -> bool {
    std::env::var("UPDATE").is_ok_and(|value| !value.is_empty() && value != "0")
}

fn check_all(files: &[PathBuf]) -> ExitCode {
    let (mut passed, mut failed, mut both) = (0, 0, 0);
    for path in files {
        let (word, plays) = match check(path, update_wanted()) {
            StoryResult::Passed(plays) => ("ok", plays),
            StoryResult::Rewritten(plays) => ("rewritten", plays),
            StoryResult::Failed { line, why } => {
                say!("FAIL {}:{line}: {why}", path.display());
                failed += 1;
                continue;
            }
        };
        say!("{word} {} ({plays})", path.display());
        passed += 1;
        both += u32::from(plays == Plays::Both);
    }
    say!("{passed} passed, {both} of them under both activations, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Shows each story under its first or second activation, the last if it has fewer.
fn show_all(files: &[PathBuf], nth: usize) -> ExitCode {
    let plain = std::env::var_os("NO_COLOR").is_some() || !stdout().is_terminal();
    let colours = if plain { Colours::Off } else { Colours::On };
    let mut failed = false;
    say!("{}", show::notation(colours));
    for path in files {
        match render(path, nth, colours) {
            Ok(text) => say!("{text}"),
            Err(text) => {
                say!("{text}");
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn render(path: &Path, nth: usize, colours: Colours) -> Result<String, String> {
    let at = |line| format!("FAIL {}:{line}", path.display());
    let text = std::fs::read_to_string(path).map_err(|why| format!("{}: {why}", at(0)))?;
    let story =
        Story::parse(&text).map_err(|wrong| format!("{}: {}", at(wrong.line), wrong.why))?;
    let activations = story.plays.activations();
    let activation = activations.get(nth).or(activations.last()).copied().unwrap_or_default();
    let performance = runner::perform(&story, activation);
    let text = show::render(&story, activation, &performance, colours);
    match performance.failure {
        Some(wrong) => Err(format!("{text}\n{}: {}", at(wrong.line), wrong.why)),
        None => Ok(text),
    }
}

fn print_coverage(files: &[PathBuf]) -> ExitCode {
    match runner::coverage(files) {
        Ok(coverage) => {
            for (id, paths) in &coverage {
                let names: Vec<_> = paths.iter().filter_map(|path| path.file_stem()).collect();
                let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
                say!("{:<12} {}", id.text, names.join(" "));
            }
            let missing = catalogue::missing(coverage.keys().map(|id| id.text.as_str()));
            say!(
                "not covered: {}",
                if missing.is_empty() { "none".into() } else { missing.join(" ") }
            );
            say!("shown elsewhere: {}", catalogue::elsewhere().join(" "));
            say!("{} ids in {} files", coverage.len(), files.len());
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
