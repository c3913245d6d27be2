//! How entries, changes and memberships are written, in commands and transcripts
//! alike: `2.3`, `2.3"x"`, `2.3[v4 r1]`, `voters=(1 2)&&(2 3) learners=(4)`.

use std::sync::Arc;

use bytes::Bytes;
use quorate_core::config::{Activation, EtcdCompat};
use quorate_core::membership::{ChangeKind, LoggedChange, MemberInfo, Operation, Transition};
use quorate_core::{Change, Entry, EntryId, Index, MemberId, MemberSet, Membership, Payload};

use super::words::{LineWords, Parsed, key_value, number, text, unknown};

/// An entry as an author writes it. A change still lacks the membership that
/// results from it, which depends on the entries before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Draft {
    pub(super) id: EntryId,
    body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    Command(Bytes),
    Change(Change),
    /// A change whose result the author dictates, however impossible.
    Dictated(Change, MembershipText),
}

pub(super) fn entry_id(word: &str) -> Parsed<EntryId> {
    let said = || format!("`{word}` is no entry, expected TERM.INDEX such as 2.3");
    let (term, index) = word.split_once('.').ok_or_else(said)?;
    let term = number(term).map_err(|_| said())?;
    Ok(EntryId::new(term, number(index).map_err(|_| said())?))
}

pub(super) fn looks_like_entry(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.')
}

/// `2.3`, `2.3"x"`, `2.3[v4]`, or the run `2.3..2.9`, appended to `drafts`.
pub(super) fn drafts(word: &str, drafts: &mut Vec<Draft>) -> Parsed<()> {
    if let Some((from, to)) = word.split_once("..") {
        let (from, to) = (entry_id(from)?, entry_id(to)?);
        if from.term != to.term || from.index > to.index || to.index - from.index > RUN_MAX {
            return Err(format!("`{word}` is no run, expected one term and rising indexes"));
        }
        let ids = (from.index..=to.index).map(|index| EntryId::new(from.term, index));
        drafts.extend(ids.map(|id| Draft { id, body: Body::Command(Bytes::new()) }));
        return Ok(());
    }
    let cut = word.find(['"', '[']).unwrap_or(word.len());
    let (id, rest) = word.split_at(cut);
    let body = match rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => change_body(inner)?,
        None => Body::Command(text(rest)),
    };
    drafts.push(Draft { id: entry_id(id)?, body });
    Ok(())
}

const RUN_MAX: Index = 100_000;

fn change_body(inner: &str) -> Parsed<Body> {
    let Some((wish, result)) = inner.split_once("=>") else {
        return Ok(Body::Change(change(&mut LineWords::of(inner)?)?));
    };
    let wish = change(&mut LineWords::of(wish)?)?;
    let mut words = LineWords::of(result)?;
    let mut parts = MembershipText::default();
    while let Some(word) = words.next() {
        if !parts.take(&word)? {
            return unknown("part of a membership", &word, PARTS);
        }
    }
    Ok(Body::Dictated(wish, parts))
}

/// Entries as they stand in a log that begins with this membership.
pub(super) fn entries(drafts: &[Draft], from: &Membership) -> Parsed<Vec<Entry>> {
    let mut membership = Arc::new(from.clone());
    let mut entries = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let payload = match &draft.body {
            Body::Command(command) => Payload::Command(command.clone()),
            Body::Change(change) => {
                let next = membership.resolve(change, &EtcdCompat::default()).map_err(|why| {
                    format!("entry {} cannot follow {membership}: {why}", draft.id)
                })?;
                membership = Arc::new(next.logged(&membership, change, draft.id, |_| None));
                logged(change, &membership)
            }
            Body::Dictated(change, result) => {
                membership = Arc::new(result.membership(from.activation()));
                logged(change, &membership)
            }
        };
        entries.push(Entry { id: draft.id, payload });
    }
    Ok(entries)
}

fn logged(change: &Change, membership: &Arc<Membership>) -> Payload {
    let (change, membership) = (change.clone(), membership.clone());
    Payload::Change(Arc::new(LoggedChange { change, membership }))
}

/// `v4 l3 r1 u2`, then `implicit`, `explicit`, `form=v1`, `context=…`; or
/// `to (1 2)&&(2 3)`; or `voters (1 2 3) retain`; or `goal (1 2 3) learners (4)`; or
/// `cancel`, or `leave`. Any of them `expecting=2.3`.
pub(super) fn change(words: &mut LineWords) -> Parsed<Change> {
    let mut operations = Vec::new();
    let mut transition = Transition::Auto;
    let mut v1 = false;
    let mut kind = None;
    let (mut context, mut expected, mut infos) = (Bytes::new(), None, Vec::new());
    while let Some(word) = words.next() {
        match word.as_str() {
            "leave" => kind = Some(ChangeKind::default()),
            "cancel" => kind = Some(ChangeKind::Cancel),
            "auto" => transition = Transition::Auto,
            "implicit" => transition = Transition::JointImplicit,
            "explicit" => transition = Transition::JointExplicit,
            "form=v1" => v1 = true,
            "to" => {
                let majorities = majorities(&words.expect_word("majorities such as (1 2)")?)?;
                kind = Some(ChangeKind::Majorities(majorities));
            }
            _ if word.starts_with('(') => kind = Some(ChangeKind::Majorities(majorities(&word)?)),
            "goal" => {
                let voters = member_set(&words.expect_word("voters such as (1 2 3)")?)?;
                kind = Some(ChangeKind::Goal { voters, learners: MemberSet::new() });
            }
            "voters" => {
                let voters = member_set(&words.expect_word("voters such as (1 2 3)")?)?;
                kind = Some(ChangeKind::SetVoters { voters, retain: false });
            }
            "retain" => match &mut kind {
                Some(ChangeKind::SetVoters { retain, .. }) => *retain = true,
                _ => return Err("`retain` belongs to voters".to_owned()),
            },
            "learners" => match &mut kind {
                Some(ChangeKind::Goal { learners, .. }) => {
                    *learners = member_set(&words.expect_word("learners such as (4)")?)?;
                }
                _ => return Err("`learners` belongs to a goal".to_owned()),
            },
            _ => match (operation(&word), key_value(&word)) {
                (Some(operation), _) => operations.push(operation),
                (None, Some(("context", said))) => context = text(said),
                (None, Some(("expecting", id))) => expected = Some(entry_id(id)?),
                (None, Some(("zone", said))) => infos.push(zone(said)?),
                _ => return unknown("part of a change", &word, CHANGE_WORDS),
            },
        }
    }
    let kind = match (kind, &operations[..]) {
        (Some(kind), []) => kind,
        (None, [operation]) if v1 => ChangeKind::V1(*operation),
        (None, [_, ..]) if !v1 => ChangeKind::Operations { operations, transition },
        _ => {
            return Err("expected operations such as `v4 r1`, `to (1 2)&&(2 3)`, `goal (1 2 3)`, \
                        `cancel` or `leave`"
                .to_owned());
        }
    };
    Ok(Change { kind, context, expected, infos })
}

/// `4:east`: member 4 stands in the zone `east`.
fn zone(said: &str) -> Parsed<(MemberId, MemberInfo)> {
    let (id, name) = said.split_once(':').ok_or("expected a zone such as zone=4:east")?;
    let zone = Bytes::copy_from_slice(name.as_bytes());
    Ok((MemberId(number(id)?), MemberInfo { zone, ..MemberInfo::default() }))
}

const CHANGE_WORDS: &[&str] = &[
    "v4",
    "l4",
    "r4",
    "u4",
    "to",
    "goal",
    "voters",
    "retain",
    "learners",
    "cancel",
    "leave",
    "auto",
    "implicit",
    "explicit",
    "form=v1",
    "context=TEXT",
    "expecting=2.3",
    "zone=4:east",
];

fn operation(word: &str) -> Option<Operation> {
    let id = MemberId(word.get(1..)?.parse().ok()?);
    match word.as_bytes().first()? {
        b'v' => Some(Operation::Voter(id)),
        b'l' => Some(Operation::Learner(id)),
        b'r' => Some(Operation::Remove(id)),
        b'u' => Some(Operation::Update(id)),
        _ => None,
    }
}

/// The parts of a membership, as far as they were named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MembershipText {
    pub(super) majorities: Option<Vec<MemberSet>>,
    pub(super) learners: MemberSet,
    learners_next: MemberSet,
    auto_leave: bool,
    /// That of the cluster unless the author names another.
    pub(super) activation: Option<Activation>,
}

pub(super) const PARTS: &[&str] = &[
    "voters=(1 2)&&(2 3)",
    "learners=(4)",
    "learners_next=(3)",
    "autoleave",
    "activation=on-append",
];

impl MembershipText {
    /// Takes a word that is a part of a membership; false when it is not one.
    pub(super) fn take(&mut self, word: &str) -> Parsed<bool> {
        match key_value(word) {
            Some(("voters", value)) => self.majorities = Some(majorities(value)?),
            Some(("learners", value)) => self.learners = member_set(value)?,
            Some(("learners_next", value)) => self.learners_next = member_set(value)?,
            Some(("activation", value)) => self.activation = Some(activation(value)?),
            _ if word == "autoleave" => self.auto_leave = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(super) fn membership(&self, cluster: Activation) -> Membership {
        let membership = Membership::from_parts(
            self.majorities.clone().unwrap_or_default(),
            self.learners.clone(),
            self.learners_next.clone(),
        )
        .with_activation(self.activation.unwrap_or(cluster));
        if self.auto_leave { membership.with_auto_leave() } else { membership }
    }
}

/// When memberships count: `on-apply` or `on-append`.
pub(super) fn activation(word: &str) -> Parsed<Activation> {
    match word {
        "on-apply" => Ok(Activation::OnApply),
        "on-append" => Ok(Activation::OnAppend),
        _ => unknown("activation", word, &["on-apply", "on-append"]),
    }
}

/// `(1 2 3)`
pub(super) fn member_set(word: &str) -> Parsed<MemberSet> {
    let said = || format!("`{word}` is no set of members, expected one such as (1 2 3)");
    let inner = word.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).ok_or_else(said)?;
    let digits = |id: &str| id.strip_prefix('m').unwrap_or(id).parse().map(MemberId);
    inner.split_whitespace().map(|id| digits(id).map_err(|_| said())).collect()
}

/// `(1 2 3)`, or `(1 2)&&(2 3)` with the incoming majority first, or `()` for none.
pub(super) fn majorities(word: &str) -> Parsed<Vec<MemberSet>> {
    let sets: Vec<MemberSet> = word.split("&&").map(member_set).collect::<Parsed<_>>()?;
    let none = matches!(sets.as_slice(), [only] if only.is_empty());
    Ok(if none { Vec::new() } else { sets })
}

/// An entry as a transcript shows it.
pub(super) fn entry_text(entry: &Entry) -> String {
    match &entry.payload {
        Payload::Command(command) if command.is_empty() => entry.id.to_string(),
        Payload::Command(command) if command.len() > TEXT_BYTES_MAX => {
            format!("{}({} bytes)", entry.id, command.len())
        }
        Payload::Command(command) => {
            format!("{}\"{}\"", entry.id, command.escape_ascii())
        }
        Payload::Change(logged) => format!("{}[{}]", entry.id, change_text(&logged.change)),
    }
}

const TEXT_BYTES_MAX: usize = 40;

pub(super) fn change_text(change: &Change) -> String {
    let mut said = change.to_string();
    match change.kind {
        ChangeKind::Operations { transition: Transition::JointImplicit, .. } => {
            said.push_str(" implicit");
        }
        ChangeKind::Operations { transition: Transition::JointExplicit, .. } => {
            said.push_str(" explicit");
        }
        ChangeKind::V1(_) => said.push_str(" form=v1"),
        _ => {}
    }
    if let Some(id) = change.expected {
        said.push_str(&format!(" expecting={id}"));
    }
    if !change.context.is_empty() {
        said.push_str(&format!(" context=\"{}\"", change.context.escape_ascii()));
    }
    said
}

/// Entries one after the other; a long run of empty ones as `2.3..2.9`.
pub(super) fn entries_text<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut run: Vec<EntryId> = Vec::new();
    for entry in entries {
        let empty = matches!(&entry.payload, Payload::Command(command) if command.is_empty());
        let follows = run
            .last()
            .is_none_or(|last| last.term == entry.id.term && last.index + 1 == entry.id.index);
        if !(empty && follows) {
            end_run(&mut run, &mut parts);
        }
        if empty {
            run.push(entry.id);
        } else {
            parts.push(entry_text(entry));
        }
    }
    end_run(&mut run, &mut parts);
    parts.join(" ")
}

fn end_run(run: &mut Vec<EntryId>, parts: &mut Vec<String>) {
    match run.as_slice() {
        [first, .., last] if run.len() >= RUN_SHOWN => parts.push(format!("{first}..{last}")),
        ids => parts.extend(ids.iter().map(EntryId::to_string)),
    }
    run.clear();
}

/// Shorter runs are written out.
const RUN_SHOWN: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::short_ids::short_ids;

    fn parse(words: &[&str]) -> Parsed<Vec<Entry>> {
        let mut list = Vec::new();
        words.iter().try_for_each(|word| drafts(word, &mut list))?;
        entries(&list, &Membership::new([1, 2, 3].map(MemberId), []))
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let words =
            ["1.2..1.9", "2.10", "2.11\"x\"", "2.12[v4 r1]", "3.13[leave]", "3.14[(1 2)&&(2 3 4)]"];
        let read = parse(&words).unwrap();
        assert_eq!(short_ids(&entries_text(&read)), words.join(" "));
        let last = read.last().and_then(|entry| entry.change().cloned()).unwrap();
        let membership = short_ids(&last.membership.to_string());
        assert_eq!(membership, "voters=(1 2)&&(2 3 4) learners_next=(3 4)");
    }

    #[test]
    fn a_change_that_cannot_follow_is_named() {
        let said = short_ids(&parse(&["1.2[leave]"]).unwrap_err());
        assert!(said.starts_with("entry 1.2 cannot follow voters=(1 2 3)"), "{said}");
        let dictated = parse(&["1.2[v4 => voters=()]"]).unwrap();
        assert!(dictated[0].change().is_some_and(|logged| logged.membership.is_empty()));
    }
}
