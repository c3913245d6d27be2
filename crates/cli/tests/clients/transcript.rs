//! Talks of `etcdctl` with a server, as text files: what was typed, and what came back.
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
//! `<` is what it reads. `~3` is a command that goes on, and is ended after three lines. What
//! differs from run to run is masked: `<cluster>`, `<lease 1>` and so on. Standard error
//! comes behind standard output, and `exit` says how it ended if not well.

use std::fmt::Write as _;

use crate::etcdctl::{self, Stream, etcdctl, words};

/// One command of a talk, and the lines above it.
pub(crate) struct Step {
    comments: Vec<String>,
    command: String,
    /// It is ended after so many lines.
    lines: Option<usize>,
    input: Vec<String>,
}

pub(crate) fn parse(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut comments = Vec::new();
    for line in text.lines() {
        if line.starts_with('#') {
            comments.push(line.to_owned());
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step::new(std::mem::take(&mut comments), command, None));
        } else if let Some(rest) = line.strip_prefix('~') {
            let (lines, command) = rest.split_once(' ').unwrap();
            let lines = Some(lines.parse().unwrap());
            steps.push(Step::new(std::mem::take(&mut comments), command, lines));
        } else if let Some(input) = line.strip_prefix("< ").or((line == "<").then_some("")) {
            steps.last_mut().unwrap().input.push(input.to_owned());
        }
    }
    steps
}

impl Step {
    fn new(comments: Vec<String>, command: &str, lines: Option<usize>) -> Self {
        Self { comments, command: command.to_owned(), lines, input: Vec::new() }
    }

    fn typed(&self) -> String {
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

/// Plays the steps against these endpoints, one after the other, each command at the next.
pub(crate) fn play(steps: &[Step], endpoints: &[String]) -> String {
    let mut text = String::new();
    let mut masks = Masks::default();
    for (number, step) in steps.iter().enumerate() {
        let endpoint = &endpoints[number % endpoints.len()];
        if step.lines.is_some() {
            // It has to know what the others were told.
            etcdctl::ask(endpoint, "get nothing");
        }
        let said = masks.mask(&said(step, endpoint, &masks), endpoint);
        if !step.comments.is_empty() && !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&step.typed());
        text.push_str(&said);
    }
    text
}

fn said(step: &Step, endpoint: &str, masks: &Masks) -> String {
    let mut command = etcdctl(endpoint);
    command.args(words(&masks.unmask(&step.command)));
    let input: String = step.input.iter().map(|line| format!("{line}\n")).collect();
    if let Some(lines) = step.lines {
        return Stream::start(command, &input).lines(lines).join("\n") + "\n";
    }
    let output = etcdctl::run(command, &input);
    let text = |bytes: &[u8]| etcdctl::without_logs(&String::from_utf8_lossy(bytes));
    let mut said = text(&output.stdout).trim_end().to_owned();
    said = format!("{said}\n{}", text(&output.stderr).trim_end()).trim_end().to_owned();
    if !output.status.success() {
        write!(said, "\nexit {}", output.status.code().unwrap()).unwrap();
    }
    let said = said.trim_start_matches('\n');
    if said.is_empty() { String::new() } else { format!("{said}\n") }
}

/// What differs from run to run.
#[derive(Default)]
struct Masks {
    leases: Vec<String>,
}

impl Masks {
    fn mask(&mut self, said: &str, endpoint: &str) -> String {
        for line in said.lines() {
            let granted = line.strip_prefix("lease ").filter(|line| line.contains(" granted"));
            if let Some(id) = granted.and_then(|line| line.split(' ').next())
                && !self.leases.iter().any(|known| known == id)
            {
                self.leases.push(id.to_owned());
            }
        }
        let mut text = said.replace(endpoint, "<endpoint>");
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

/// What stands before a number that is masked, and its name.
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
        let rest = part.trim_start_matches(|letter: char| letter.is_ascii_digit());
        let name = if rest.len() == part.len() { "" } else { name };
        masked = format!("{masked}{before}{name}{rest}");
    }
    masked
}
