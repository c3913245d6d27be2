//! The parts that commands are made of, each read from the words that follow.

use bytes::Bytes;
use quorate_core::{Index, Input, MemberId, SaveId};

use super::command::{ClusterCommand, LogByHand, Restart, StoryCommand, Ticks, Unsynced};
use super::message::{ByHand, KINDS};
use super::network::arrow;
use super::notation::{self, entry_id, looks_like_entry};
use super::setting::ConfigSetting;
use super::words::{
    LineWords, NamedMembers, Parsed, key_value, looks_like_member, member, number, text, unknown,
};
use crate::cluster::WorkKind;

pub(super) fn some_members(words: &mut LineWords) -> Parsed<Vec<MemberId>> {
    match words.members()? {
        none if none.is_empty() => Err("expected members such as `m4 m5`".to_owned()),
        members => Ok(members),
    }
}

pub(super) fn cluster(words: &mut LineWords) -> Parsed<ClusterCommand> {
    let mut cluster = ClusterCommand::default();
    let mut learners = false;
    while let Some(word) = words.next() {
        if looks_like_member(&word) {
            let list = if learners { &mut cluster.learners } else { &mut cluster.voters };
            list.push(member(&word)?);
        } else if word == "learners" {
            learners = true;
        } else if let Some(("term", value)) = key_value(&word) {
            cluster.term = Some(number(value)?);
        } else if !cluster.parts.take(&word)? {
            cluster.settings.push(ConfigSetting::parse_required(&word)?);
        }
    }
    if cluster.voters.is_empty() == cluster.parts.majorities.is_none() {
        return Err("expected voters, either as `m1 m2 m3` or as `voters=(1 2 3)`".to_owned());
    }
    Ok(cluster)
}

pub(super) fn log_by_hand(words: &mut LineWords) -> Parsed<LogByHand> {
    let mut log = LogByHand::default();
    while let Some(word) = words.next() {
        if looks_like_entry(&word) {
            notation::drafts(&word, &mut log.entries)?;
            continue;
        }
        match key_value(&word) {
            Some(("term", value)) => log.term = Some(number(value)?),
            Some(("vote", value)) => log.vote = Some(member(value)?),
            Some(("commit", value)) => log.commit = Some(number(value)?),
            Some(("applied", value)) => log.applied = Some(number(value)?),
            Some(("base", value)) => log.base = Some(entry_id(value)?),
            Some(("snapshot", value)) => log.snapshot = Some(entry_id(value)?),
            _ => {
                let mut parts = log.parts.take().unwrap_or_default();
                if !parts.take(&word)? {
                    return unknown("part of a log", &word, LOG_WORDS);
                }
                log.parts = Some(parts);
            }
        }
    }
    Ok(log)
}

const LOG_WORDS: &[&str] = &[
    "2.3",
    "2.3..2.9",
    "2.3[v4]",
    "term=3",
    "vote=m1",
    "commit=3",
    "applied=3",
    "base=1.2",
    "snapshot=2.4",
    "voters=(1 2 3)",
    "learners=(4)",
    "learners_next=(3)",
    "autoleave",
];

pub(super) fn settings(words: &mut LineWords) -> Parsed<Vec<ConfigSetting>> {
    let mut settings =
        vec![ConfigSetting::parse_required(&words.expect_word("a setting such as pre-vote=off")?)?];
    while let Some(word) = words.next() {
        settings.push(ConfigSetting::parse_required(&word)?);
    }
    Ok(settings)
}

/// What `hide` and `show` speak of, besides the kinds of messages.
pub(super) const SHOWN: &[&str] = &[
    "messages",
    "empty-appends",
    "saves",
    "applies",
    "commits",
    "leaders",
    "roles",
    "requests",
    "memberships",
    "drops",
    "late",
    "loads",
    "trims",
];

pub(super) fn shown(words: &mut LineWords) -> Parsed<Vec<&'static str>> {
    let known: Vec<&'static str> = SHOWN.iter().chain(KINDS).copied().collect();
    let mut list = Vec::new();
    while let Some(word) = words.next() {
        match known.iter().find(|name| **name == word) {
            Some(name) => list.push(*name),
            None => return unknown("thing to show or hide", &word, &known),
        }
    }
    if list.is_empty() { Err(format!("expected one of: {}", known.join(" "))) } else { Ok(list) }
}

pub(super) fn count_or_one<T: std::str::FromStr + From<u8>>(words: &mut LineWords) -> Parsed<T> {
    words.next().map_or(Ok(1.into()), |word| number(&word))
}

pub(super) fn optional_index(words: &mut LineWords) -> Parsed<Option<Index>> {
    words.take("at");
    words.next().map(|word| number(&word)).transpose()
}

pub(super) fn commands(words: &mut LineWords) -> Parsed<Vec<Bytes>> {
    let mut list = Vec::new();
    while let Some(word) = words.next() {
        match key_value(&word) {
            Some(("bytes", count)) => list.push(Bytes::from(vec![b'x'; number(count)?])),
            _ => list.push(text(&word)),
        }
    }
    if list.is_empty() {
        Err("expected something to propose, such as `x`".to_owned())
    } else {
        Ok(list)
    }
}

pub(super) fn unsynced(words: &mut LineWords) -> Parsed<Unsynced> {
    match words.next().as_deref() {
        None => Ok(Unsynced::Kept),
        Some("unsynced=lost") => Ok(Unsynced::Lost),
        Some(word) => unknown("way to crash", word, &["unsynced=lost"]),
    }
}

pub(super) fn restart(words: &mut LineWords) -> Parsed<Restart> {
    let mut restart = Restart::default();
    while let Some(word) = words.next() {
        match key_value(&word) {
            Some(("applied", value)) => restart.applied = Some(number(value)?),
            Some(("tail", value)) => restart.tail = Some(number(value)?),
            _ => restart.settings.push(ConfigSetting::parse_required(&word)?),
        }
    }
    Ok(restart)
}

pub(super) fn work(word: &str) -> Parsed<WorkKind> {
    match word {
        "save" | "saves" => Ok(WorkKind::Saves),
        "apply" | "applies" => Ok(WorkKind::Applies),
        "load" | "loads" => Ok(WorkKind::Loads),
        _ => unknown("work", word, &["saves", "applies", "loads"]),
    }
}

/// `saves m1 m2`, as opposed to a filter of messages.
pub(super) fn held_work(words: &mut LineWords) -> Parsed<Option<(WorkKind, NamedMembers)>> {
    let is_work = |word: &str| word.starts_with(|c: char| c.is_ascii_lowercase());
    let Some(word) = words.peek().filter(|word| is_work(word) && !word.contains("->")) else {
        return Ok(None);
    };
    if matches!(word, "first" | "last") || word.split(',').all(looks_like_member) {
        return Ok(None);
    }
    let work = work(word)?;
    words.next();
    Ok(Some((work, words.who()?)))
}

pub(super) fn report(words: &mut LineWords) -> Parsed<(&'static str, Input)> {
    let kind = words.expect_word(&REPORTS.join(", "))?;
    let about = words.member()?;
    match kind.as_str() {
        "unreachable" => Ok(("report", Input::Unreachable(about))),
        "connection-lost" => Ok(("report", Input::ConnectionLost(about))),
        "snapshot-sent" => Ok(("report", Input::SnapshotSent(about))),
        "snapshot-lost" => Ok(("report", Input::SnapshotLost(about))),
        _ => unknown("report", &kind, REPORTS),
    }
}

const REPORTS: &[&str] = &["unreachable", "connection-lost", "snapshot-sent", "snapshot-lost"];

/// `m1 m2 | m3 | m4 m5`
pub(super) fn sides(words: &mut LineWords) -> Parsed<Vec<Vec<MemberId>>> {
    let mut sides = vec![some_members(words)?];
    while words.take("|") {
        sides.push(some_members(words)?);
    }
    if sides.len() > 1 { Ok(sides) } else { Err("expected sides such as `m1 | m2 m3`".to_owned()) }
}

pub(super) fn ticks(words: &mut LineWords) -> Parsed<Ticks> {
    let Some(word) = words.next() else { return Ok(Ticks::Number(0)) };
    match key_value(&word) {
        Some(("ticks", "heartbeat")) => Ok(Ticks::Heartbeat),
        Some(("ticks", "election")) => Ok(Ticks::Election),
        Some(("ticks", value)) => Ok(Ticks::Number(number(value)?)),
        _ => unknown("way to settle", &word, &["ticks=3", "ticks=heartbeat", "ticks=election"]),
    }
}

/// `m1 -> m2 KIND …`, or a completion that nothing asked for: `m1 saved=7`.
pub(super) fn inject(words: &mut LineWords) -> Parsed<StoryCommand> {
    let word = words.expect_word("a sender such as m1")?;
    if let Some((from, false, to)) = arrow(&word, words)? {
        let [from, to] = [&from, &to].map(|side| match side.as_slice() {
            [one] => Ok(*one),
            _ => Err("expected one sender and one receiver"),
        });
        return Ok(StoryCommand::Inject(Box::new(ByHand::parse(from?, to?, words)?)));
    }
    let at = NamedMembers::These(vec![member(&word)?]);
    let completion = words.expect_word("`-> m2` or a completion such as saved=7")?;
    let known = &["saved=7", "applied=7", "snapshotted=7"];
    let (what, input) = match key_value(&completion) {
        Some(("saved", value)) => ("saved", Input::Saved(SaveId(number(value)?))),
        Some(("applied", value)) => ("applied", Input::Applied(number(value)?)),
        Some(("snapshotted", value)) => ("snapshotted", Input::Snapshotted(number(value)?)),
        _ => return unknown("completion", &completion, known),
    };
    Ok(StoryCommand::Tell(at, what, input))
}
