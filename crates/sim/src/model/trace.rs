//! A way through the states, as a story that can be played.

use quorate_core::MemberId;
use quorate_core::config::Activation;

use super::moves::Move;
use super::search::Path;
use super::transitions::{
    APPLIED, CAMPAIGN, CHANGES, FORGET, MESSAGES, PROPOSE, RESTART, RESTART_LOST, SAVED, SNAPSHOT,
    TRANSFERS, Transitions,
};
use crate::scenario::stage::{StoryWriter, transcribe};

/// The story of a path that begins where another one ends, with the transcript of what
/// happens in it.
pub(super) fn story(
    transitions: &Transitions,
    begins: &str,
    path: &Path,
    activation: Activation,
) -> String {
    let commands = without_header(begins);
    let head = format!(
        "# covers: {}\n# only: {}\n# Found by exploring `{}`: {}.\n\n{}",
        covers(path.violation.rule),
        activation_name(activation),
        transitions.scope.name,
        path.violation.what.replace('\n', " "),
        commands.trim(),
    );
    let mut writer = match StoryWriter::after(&head, activation) {
        Ok(writer) => writer,
        Err(why) => return format!("{head}\n\n# cannot be played: {why}\n"),
    };
    for step in &path.moves {
        write(transitions, *step, &mut writer);
    }
    let (lines, failure) = writer.finish();
    let text = format!("{head}\n\n{}\n", lines.join("\n\n"));
    let (text, _) = transcribe(&text, activation);
    let here = failure.unwrap_or_else(|| path.violation.to_string());
    format!("{}\n\n# here: {here}\n", text.trim_end())
}

/// The commands of a story: what stands behind its opening comments.
fn without_header(story: &str) -> String {
    let lines = story.lines().skip_while(|line| line.starts_with('#'));
    lines.collect::<Vec<_>>().join("\n")
}

/// Header lines for a beginning that is not in a file.
pub(super) fn with_header(stage: &str, activation: Activation) -> String {
    format!(
        "# covers: I1\n# only: {}\n# A beginning.\n\n{}\n",
        activation_name(activation),
        stage.trim()
    )
}

pub(super) fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::OnApply => "on-apply",
        Activation::OnAppend => "on-append",
    }
}

/// What the header of a story may name.
fn covers(rule: &str) -> &str {
    if rule.ends_with(|letter: char| letter.is_ascii_digit()) { rule } else { "I1" }
}

fn write(transitions: &Transitions, step: Move, writer: &mut StoryWriter) {
    match step {
        Move::Deliver(message) => writer.deliver(transitions.messages.value(message)),
        Move::Lose(_) | Move::Delay(_) => {}
        Move::Beat(from, to) => {
            beat(
                transitions.id(usize::from(from)),
                transitions.id(usize::from(to)),
                transitions,
                writer,
            );
        }
        Move::Act(at, act @ (RESTART | RESTART_LOST)) => {
            restart(transitions.id(usize::from(at)), act == RESTART_LOST, writer);
        }
        Move::Act(at, act) => {
            writer.command(command(transitions, transitions.id(usize::from(at)), act))
        }
    }
}

fn command(transitions: &Transitions, id: MemberId, act: u32) -> String {
    match act {
        CAMPAIGN => format!("campaign {id}"),
        FORGET => format!("forget-leader {id}"),
        PROPOSE => format!("propose {id} x"),
        SNAPSHOT => format!("snapshot {id}"),
        SAVED => format!("complete saves {id}"),
        APPLIED => format!("complete applies {id}"),
        _ if act >= MESSAGES => format!("# {id} receives message {}", act - MESSAGES),
        _ if act >= TRANSFERS => {
            format!("transfer {id} to {}", transitions.id((act - TRANSFERS) as usize))
        }
        _ => {
            let words = &transitions.scope.may.changes[(act - CHANGES) as usize];
            format!("change {id} {words}")
        }
    }
}

fn beat(from: MemberId, to: MemberId, transitions: &Transitions, writer: &mut StoryWriter) {
    writer.command(format!("tick {from}"));
    for other in (0..transitions.count()).map(|at| transitions.id(at)).filter(|other| *other != to)
    {
        writer.lose(from, other, "Heartbeat");
    }
    writer.command(format!("deliver {from} -> {to} Heartbeat last"));
    if let Some(answer) = writer.newest(to, from) {
        writer.deliver(&answer);
    }
}

/// What is on its way to a member may arrive after its restart.
fn restart(id: MemberId, unsynced_lost: bool, writer: &mut StoryWriter) {
    let held = writer.is_expected(id);
    if held {
        writer.command(format!("hold * -> {id}"));
    }
    if unsynced_lost {
        writer.command(format!("crash {id} unsynced=lost"));
    }
    writer.command(format!("restart {id}"));
    if held {
        writer.command(format!("release * -> {id}"));
    }
}
