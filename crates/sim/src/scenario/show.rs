//! A story shown on a terminal: comments as narration, commands, what they lead to.

use std::fmt::Write as _;

use quorate_core::config::Activation;

use super::command::StoryCommand;
use super::runner::Performance;
use super::story::{Story, StoryLine};

/// Whether the reader's terminal understands colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    Off,
    On,
}

impl Colours {
    fn paint(self, code: &str, text: &str) -> String {
        match self {
            Self::Off => text.to_owned(),
            Self::On => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

/// How to read what follows.
pub(super) fn notation(colours: Colours) -> String {
    let lines = [
        ("m1", "a member"),
        ("2.3", "the entry of term 2 at index 3; 2.3\"x\" has a command, 2.3[v4] a change"),
        ("v4 l4 r4", "make m4 a voter, make it a learner, remove it"),
        ("(1 2 3)", "members in order; (1 2)&&(2 3) is a joint, the incoming majority first"),
        ("m1 -> m2 Vote", "a message; (lost) it does not arrive, (held) it waits"),
        ("a => b", "m1 changes its role from a to b"),
        ("commit=3", "entries up to index 3 are committed; settled: enough members know it"),
        ("> command", "what the story does; \u{2713} a claim of the story that holds"),
    ];
    let mut text = colours.paint("1", "Notation (all of it: docs/scenarios.md)");
    for (sign, meaning) in lines {
        let _ = write!(text, "\n  {} {meaning}", colours.paint("36", &format!("{sign:14}")));
    }
    text.push('\n');
    text
}

/// The whole story as text.
pub(super) fn render(
    story: &Story,
    activation: Activation,
    performance: &Performance,
    colours: Colours,
) -> String {
    let mut text = String::new();
    for (number, line) in story.prose().enumerate() {
        let line = if number == 0 { colours.paint("1", line) } else { line.to_owned() };
        let _ = writeln!(text, "{line}");
    }
    for (number, (block, pages)) in story.blocks.iter().zip(&performance.blocks).enumerate() {
        let mut header = number == 0;
        if block.lines.iter().any(|line| !header || line.command.is_some()) {
            text.push('\n');
        }
        for (line, page) in block.lines.iter().zip(pages) {
            header &= line.command.is_none();
            let housekeeping =
                matches!(line.command, Some(StoryCommand::Hide(_) | StoryCommand::Show(_)));
            let skipped = line.only.is_some_and(|only| only != activation);
            if !header && !housekeeping && !skipped {
                let _ = writeln!(text, "{}", line_text(line, colours));
            }
            for line in page {
                let _ = writeln!(text, "      {}", colours.paint(code(line), line));
            }
        }
    }
    text
}

/// Narration as it is, commands behind `>`, claims that held behind a tick.
fn line_text(line: &StoryLine, colours: Colours) -> String {
    if let Some(comment) = line.comment() {
        return comment.to_owned();
    }
    let words = line.raw.trim();
    let words =
        words.split_once("] ").filter(|_| line.only.is_some()).map_or(words, |(_, rest)| rest);
    match words.strip_prefix("expect ") {
        Some(claim) => colours.paint("32", &format!("  \u{2713} {claim}")),
        None => colours.paint("36", &format!("  > {words}")),
    }
}

/// What is highlighted: who leads, who counts, what is agreed on; and what went
/// wrong. Messages and saves stay in the background.
fn code(line: &str) -> &'static str {
    let is = |part: &str| line.contains(part);
    let agreed = line
        .split_once(' ')
        .is_some_and(|(_, rest)| rest.starts_with("commit=") || rest.starts_with("membership "));
    if agreed || is(" => leader") {
        "1;33"
    } else if is(" drops ") || is(" refused: ") || is("(lost)") || is(" crashes") {
        "31"
    } else if is(" -> ") || is(" save ") {
        "2"
    } else {
        "0"
    }
}
