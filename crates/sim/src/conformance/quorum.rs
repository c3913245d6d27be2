//! Traces of the majority maths: what is committed, and how an election stands.
//!
//! Besides comparing, every answer is asked for in ways that must not matter: with
//! the halves of a joint exchanged, joint with no member, joint with itself.

use std::collections::BTreeMap;
use std::fmt::Display;

use quorate_core::membership::VoteResult;
use quorate_core::{MemberId, MemberSet, Membership};

use super::file::{TraceCommand, number};

/// The arguments of a command: two majorities and one value for each of their voters.
#[derive(Default)]
struct QuorumQuestion {
    first: Vec<MemberId>,
    second: Option<Vec<MemberId>>,
    values: Vec<String>,
}

pub(super) fn run(command: &TraceCommand) -> Result<Vec<String>, String> {
    let values_key = match command.name.as_str() {
        "committed" => "idx",
        "vote" => "votes",
        other => return Err(format!("unknown command `{other}`")),
    };
    let question = QuorumQuestion::parse(command, values_key)?;
    let values = question.values_of_voters()?;
    if values_key == "idx" {
        let mut indexes = BTreeMap::new();
        for (id, value) in &values {
            indexes.insert(*id, if value == "_" { 0 } else { number(value)? });
        }
        let index = |id| indexes.get(&id).copied().unwrap_or(0);
        question.answer(|membership| committed_text(membership.quorum(index)))
    } else {
        let mut votes = BTreeMap::new();
        for (id, value) in &values {
            match value.as_str() {
                "y" => votes.insert(*id, true),
                "n" => votes.insert(*id, false),
                "_" => None,
                other => return Err(format!("vote `{other}`, expected y, n or _")),
            };
        }
        let vote = |id| votes.get(&id).copied();
        question.answer(|membership| vote_text(membership.count(vote)).to_owned())
    }
}

impl QuorumQuestion {
    fn parse(command: &TraceCommand, values_key: &str) -> Result<Self, String> {
        let mut question = Self::default();
        for argument in command.arguments()? {
            let ids = || Ok::<_, String>(argument.numbers()?.into_iter().map(MemberId).collect());
            match argument.key.as_str() {
                "cfg" => question.first = ids()?,
                "cfgj" if argument.value() == Ok("zero") => question.second = Some(Vec::new()),
                "cfgj" => question.second = Some(ids()?),
                key if key == values_key => {
                    question.values = argument.values.clone().unwrap_or_default();
                }
                _ => return Err(argument.unknown()),
            }
        }
        Ok(question)
    }

    /// Values belong to the voters in order of first appearance.
    fn values_of_voters(&self) -> Result<Vec<(MemberId, String)>, String> {
        let mut voters: Vec<MemberId> = Vec::new();
        for id in self.first.iter().chain(self.second.iter().flatten()) {
            if !voters.contains(id) {
                voters.push(*id);
            }
        }
        if voters.len() != self.values.len() {
            let (values, voters) = (self.values.len(), voters.len());
            return Err(format!("{values} values for {voters} voters, expected one for each"));
        }
        Ok(voters.into_iter().zip(self.values.iter().cloned()).collect())
    }

    fn answer(&self, ask: impl Fn(&Membership) -> String) -> Result<Vec<String>, String> {
        let first: MemberSet = self.first.iter().copied().collect();
        let of = |majorities: Vec<MemberSet>| {
            ask(&Membership::from_parts(majorities, MemberSet::new(), MemberSet::new()))
        };
        let Some(second) = &self.second else {
            let answer = ask(&Membership::new(self.first.iter().copied(), []));
            same("joint with no member", &answer, &of(vec![first.clone(), MemberSet::new()]))?;
            same("joint with itself", &answer, &of(vec![first.clone(), first]))?;
            return Ok(vec![answer]);
        };
        let second: MemberSet = second.iter().copied().collect();
        let answer = of(vec![first.clone(), second.clone()]);
        same("with the halves exchanged", &answer, &of(vec![second.clone(), first.clone()]))?;
        if second.is_empty() {
            same("alone", &answer, &of(vec![first]))?;
        }
        Ok(vec![answer])
    }
}

fn same<T: PartialEq + Display>(how: &str, answer: &T, other: &T) -> Result<(), String> {
    if answer == other {
        return Ok(());
    }
    Err(format!("the answer is {answer}, but {how} it is {other}"))
}

fn committed_text(index: u64) -> String {
    if index == u64::MAX { "∞".to_owned() } else { index.to_string() }
}

fn vote_text(count: VoteResult) -> &'static str {
    match count {
        VoteResult::Won => "VoteWon",
        VoteResult::Lost => "VoteLost",
        VoteResult::Pending => "VotePending",
    }
}
