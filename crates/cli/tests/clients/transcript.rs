//! Transcripts of `etcdctl` sessions, as text files: commands and their output.
//!
//! ```text
//! # Why this is here.
//! $ put a 1
//! OK
//! $ txn
//! < value("a") = "1"
//! <
//! ~3 watch a --rev=2
//! PUT
//! a
//! 1
//! ```
//!
//! `<` is its input. `~3` is a command that does not end, and is killed after three lines.
//! Values that differ from run to run are masked: `<cluster>`, `<lease 1>` and so on. Standard
//! error follows standard output, and `exit` shows an exit code other than zero.

use std::fmt::Write as _;

use crate::etcdctl::{self, CommandStream, etcdctl, words};

/// One command of a transcript, with the comments above it.
pub(crate) struct TranscriptStep {
    comments: Vec<String>,
    command: String,
    /// The command is killed after this many lines.
    lines: Option<usize>,
    input: Vec<String>,
}

pub(crate) fn parse(text: &str) -> Vec<TranscriptStep> {
    let mut steps: Vec<TranscriptStep> = Vec::new();
    let mut comments = Vec::new();
    for line in text.lines() {
        if line.starts_with('#') {
            comments.push(line.to_owned());
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(TranscriptStep::new(std::mem::take(&mut comments), command, None));
        } else if let Some(rest) = line.strip_prefix('~') {
            let (lines, command) = rest.split_once(' ').unwrap();
            let lines = Some(lines.parse().unwrap());
            steps.push(TranscriptStep::new(std::mem::take(&mut comments), command, lines));
        } else if let Some(input) = line.strip_prefix("< ").or((line == "<").then_some("")) {
            steps.last_mut().unwrap().input.push(input.to_owned());
        }
    }
    steps
}

impl TranscriptStep {
    fn new(comments: Vec<String>, command: &str, lines: Option<usize>) -> Self {
        Self { comments, command: command.to_owned(), lines, input: Vec::new() }
    }

    fn source(&self) -> String {
        let mut text: String = self.comments.iter().map(|line| format!("{line}\n")).collect();
        match self.lines {
            Some(lines) => writeln!(text, "~{lines} {}", self.command).unwrap(),
            None => writeln!(text, "$ {}", self.command).unwrap(),
        }
        for line in &self.input {
            writeln!(text, "{}", format!("< {line}").trim_end()).unwrap();
        }
        text
    }
}

/// Plays the steps against these endpoints, each command at the next one.
pub(crate) fn play(steps: &[TranscriptStep], endpoints: &[String]) -> String {
    let mut text = String::new();
    let mut masks = TranscriptMasks::default();
    for (number, step) in steps.iter().enumerate() {
        let endpoint = &endpoints[number % endpoints.len()];
        if step.lines.is_some() {
            // After a linearizable read, this member has all earlier writes.
            etcdctl::succeed(endpoint, "get nothing");
        }
        let output = masks.mask(&output(step, endpoint, &masks), endpoint);
        if !step.comments.is_empty() && !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&step.source());
        text.push_str(&output);
    }
    text
}

fn output(step: &TranscriptStep, endpoint: &str, masks: &TranscriptMasks) -> String {
    let mut command = etcdctl(endpoint);
    command.args(words(&masks.unmask(&step.command)));
    let input: String = step.input.iter().map(|line| format!("{line}\n")).collect();
    if let Some(lines) = step.lines {
        return CommandStream::start(command, &input).lines(lines).join("\n") + "\n";
    }
    let output = etcdctl::run(command, &input);
    let text = |bytes: &[u8]| etcdctl::without_logs(&String::from_utf8_lossy(bytes));
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let mut shown = format!("{}\n{}", stdout.trim_end(), stderr.trim_end()).trim_end().to_owned();
    if !output.status.success() {
        write!(shown, "\nexit {}", output.status.code().unwrap()).unwrap();
    }
    let shown = shown.trim_start_matches('\n');
    if shown.is_empty() { String::new() } else { format!("{shown}\n") }
}

/// Replaces the values that differ from run to run.
#[derive(Default)]
struct TranscriptMasks {
    leases: Vec<String>,
}

impl TranscriptMasks {
    fn mask(&mut self, output: &str, endpoint: &str) -> String {
        for line in output.lines() {
            let granted = line.strip_prefix("lease ").filter(|line| line.contains(" granted"));
            if let Some(id) = granted.and_then(|line| line.split(' ').next())
                && !self.leases.iter().any(|known| known == id)
            {
                self.leases.push(id.to_owned());
            }
        }
        let mut text = output.replace(endpoint, "<endpoint>");
        for (number, id) in self.leases.iter().enumerate() {
            let decimal = u64::from_str_radix(id, 16).unwrap().to_string();
            let name = format!("<lease {}>", number + 1);
            text = text.replace(id, &name).replace(&decimal, &name);
        }
        NUMBERS.iter().fold(text, |text, (before, name)| mask_number(&text, before, name))
    }

    fn unmask(&self, command: &str) -> String {
        let leases = self.leases.iter().enumerate();
        leases.fold(command.to_owned(), |command, (number, id)| {
            command.replace(&format!("<lease {}>", number + 1), id)
        })
    }
}

/// The text before a masked number, and the name of the mask.
const NUMBERS: &[(&str, &str)] = &[
    ("\"cluster_id\":", "<cluster>"),
    ("\"member_id\":", "<member>"),
    ("\"raft_term\":", "<term>"),
    ("\"ClusterID\" : ", "<cluster>"),
    ("\"MemberID\" : ", "<member>"),
    ("\"RaftTerm\" : ", "<term>"),
    ("\"Hash\" : ", "<hash>"),
    ("\"hash\":", "<hash>"),
    ("remaining(", "<left>"),
    ("\"ttl\":", "<left>"),
    ("\"TTL\" : ", "<left>"),
];

fn mask_number(text: &str, before: &str, name: &str) -> String {
    let mut parts = text.split(before);
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|character: char| character.is_ascii_digit());
        let name = if rest.len() == part.len() { "" } else { name };
        masked = format!("{masked}{before}{name}{rest}");
    }
    masked
}
