//! A way through the states, as a story that can be played.

use quorate_core::MemberId;
use quorate_core::config::Activation;

use super::lab::{
    APPLIED, CAMPAIGN, CHANGES, FORGET, Lab, MESSAGES, PROPOSE, RESTART, RESTART_LOST, SAVED,
    SNAPSHOT, TRANSFERS,
};
use super::moves::Move;
use super::search::Path;
use crate::scenario::stage::{Writer, transcribe};

/// The story of a path that begins where another one ends, with the transcript of what
/// happens in it.
pub(super) fn story(lab: &Lab, begins: &str, path: &Path, activation: Activation) -> String {
    let commands = without_header(begins);
    let head = format!(
        "# covers: {}\n# only: {}\n# Found by exploring `{}`: {}.\n\n{}",
        covers(path.violation.rule),
        activation_name(activation),
        lab.scope.name,
        path.violation.what.replace('\n', " "),
        commands.trim(),
    );
    let mut writer = match Writer::after(&head, activation) {
        Ok(writer) => writer,
        Err(why) => return format!("{head}\n\n# cannot be played: {why}\n"),
    };
    for step in &path.moves {
        write(lab, *step, &mut writer);
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

fn write(lab: &Lab, step: Move, writer: &mut Writer) {
    match step {
        Move::Deliver(message) => writer.deliver(lab.messages.value(message)),
        Move::Lose(_) | Move::Delay(_) => {}
        Move::Beat(from, to) => {
            beat(lab.id(usize::from(from)), lab.id(usize::from(to)), lab, writer);
        }
        Move::Act(at, act @ (RESTART | RESTART_LOST)) => {
            restart(lab.id(usize::from(at)), act == RESTART_LOST, writer);
        }
        Move::Act(at, act) => writer.command(command(lab, lab.id(usize::from(at)), act)),
    }
}

fn command(lab: &Lab, id: MemberId, act: u32) -> String {
    match act {
        CAMPAIGN => format!("campaign {id}"),
        FORGET => format!("forget-leader {id}"),
        PROPOSE => format!("propose {id} x"),
        SNAPSHOT => format!("snapshot {id}"),
        SAVED => format!("complete saves {id}"),
        APPLIED => format!("complete applies {id}"),
        _ if act >= MESSAGES => format!("# {id} receives message {}", act - MESSAGES),
        _ if act >= TRANSFERS => {
            format!("transfer {id} to {}", lab.id((act - TRANSFERS) as usize))
        }
        _ => {
            let words = &lab.scope.may.changes[(act - CHANGES) as usize];
            format!("change {id} {words}")
        }
    }
}

fn beat(from: MemberId, to: MemberId, lab: &Lab, writer: &mut Writer) {
    writer.command(format!("tick {from}"));
    for other in (0..lab.count()).map(|at| lab.id(at)).filter(|other| *other != to) {
        writer.lose(from, other, "Heartbeat");
    }
    writer.command(format!("deliver {from} -> {to} Heartbeat last"));
    if let Some(answer) = writer.newest(to, from) {
        writer.deliver(&answer);
    }
}

/// What is on its way to a member may arrive after its restart.
fn restart(id: MemberId, unsynced_lost: bool, writer: &mut Writer) {
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
