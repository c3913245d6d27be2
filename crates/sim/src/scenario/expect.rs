//! What a story claims. A claim that does not hold fails the story, whatever its
//! transcript says.

use quorate_core::status::RoleKind;
use quorate_core::{EntryId, MemberId, RequestId, Status};

use crate::short_ids::short_ids;

use super::command::Ticks;
use super::message::{envelope_text, goal_end_text};
use super::network::Filter;
use super::notation::{entry_id, majorities, member_set};
use super::requests::{REQUEST_KINDS, RequestState};
use super::words::{
    LineWords, NamedMembers, Parsed, key_value, looks_like_member, number, unknown,
};
use super::world::{CommandResult, StoryWorld};

#[derive(Clone, Debug)]
pub(super) struct Expectation {
    claim: Claim,
    /// The claim may come true only after ticks and deliveries.
    within: Option<u32>,
}

#[derive(Clone, Debug)]
enum Claim {
    Members(NamedMembers, Vec<Fact>),
    /// One of these leads; one of all members when none is named.
    Leader(Vec<MemberId>),
    NoLeader(Vec<MemberId>),
    Log(NamedMembers, Vec<EntryId>),
    Disk(NamedMembers, Vec<EntryId>),
    SameLogs(NamedMembers),
    Refused(String),
    Dropped(String),
    Request(RequestId, &'static str, ExpectedReply),
    Message(Filter),
    NoMessage(Filter),
}

/// `key=value`, or a single word; or the opposite of it.
#[derive(Clone, Debug)]
struct Fact {
    negated: bool,
    /// `key>=value`: it may be more.
    at_least: bool,
    key: &'static str,
    value: String,
}

#[derive(Clone, Debug)]
enum ExpectedReply {
    Waits,
    Logged(Option<EntryId>),
    Served(Option<u64>),
    Refused(String),
}

/// What can be claimed of one member.
const FACTS: &[&str] = &[
    "follower",
    "pre-candidate",
    "candidate",
    "leader",
    "voter",
    "learner",
    "joint",
    "autoleave",
    "up",
    "down",
    "of",
    "term",
    "vote",
    "last",
    "commit",
    "applied",
    "saved",
    "base",
    "snapshot",
    "voters",
    "learners",
    "learners_next",
    "membership",
    "newest",
    "settled",
    "identity-rejected-by",
    "lost",
    "ended",
    "transfer",
    "reads",
    "stalled",
    "awaits",
    "match",
];

const FACTS_ALONE: usize = 10;

/// Values that a story may remember.
pub(super) const VALUES: &[&str] = &[
    "term",
    "vote",
    "last",
    "commit",
    "applied",
    "saved",
    "base",
    "snapshot",
    "membership",
    "newest",
    "settled",
    "transfer",
    "of",
];

impl Expectation {
    pub(super) fn parse(words: &mut LineWords) -> Parsed<Self> {
        let within = words.take_within()?;
        let claim = Claim::parse(words)?;
        if within.is_none() && matches!(claim, Claim::NoLeader(_)) {
            return Ok(Self { claim, within: Some(0) });
        }
        Ok(Self { claim, within })
    }
}

impl Claim {
    fn parse(words: &mut LineWords) -> Parsed<Self> {
        let Some(word) = words.peek().map(str::to_owned) else {
            return Err("expected something to expect, such as `m1 leader`".to_owned());
        };
        if word == "all" || looks_like_member(&word) {
            return Ok(Self::Members(words.who()?, facts(words)?));
        }
        words.next();
        Ok(match word.as_str() {
            "leader" => Self::Leader(words.members()?),
            "no" if words.take("leader") => Self::NoLeader(words.members()?),
            "no" if words.take("message") => Self::NoMessage(Filter::parse(words)?),
            "no" => return Err("expected `no leader` or `no message`".to_owned()),
            "message" => Self::Message(Filter::parse(words)?),
            "log" => Self::Log(words.who()?, ids(words)?),
            "disk" => Self::Disk(words.who()?, ids(words)?),
            "same" if words.take("logs") => Self::SameLogs(words.who_or_all()?),
            "same" => return Err("expected `same logs`".to_owned()),
            "refused" => Self::Refused(rest(words)),
            "dropped" => Self::Dropped(rest(words)),
            _ => match REQUEST_KINDS.iter().find(|kind| **kind == word) {
                Some(kind) => {
                    let request =
                        RequestId(number(&words.expect_word("the number of a request")?)?);
                    Self::Request(request, kind, outcome(words)?)
                }
                None => return unknown("claim", &word, CLAIMS),
            },
        })
    }
}

const CLAIMS: &[&str] = &[
    "m1", "all", "leader", "no", "message", "log", "disk", "same", "refused", "dropped",
    "proposal", "change", "read",
];

fn facts(words: &mut LineWords) -> Parsed<Vec<Fact>> {
    let mut facts = Vec::new();
    while let Some(word) = words.next() {
        let negated = word == "not";
        let word = if negated { words.expect_word("what is not so")? } else { word };
        facts.push(fact(negated, &word, words)?);
    }
    if facts.is_empty() {
        return Err(format!("expected something about the member, one of: {}", FACTS.join(" ")));
    }
    Ok(facts)
}

fn fact(negated: bool, word: &str, words: &mut LineWords) -> Parsed<Fact> {
    let at_least = word.contains(">=");
    let word = word.replacen(">=", "=", 1);
    let word = word.as_str();
    let (name, value) = match (word, key_value(word)) {
        ("of", _) => ("of", short_ids(&words.member()?.to_string())),
        (_, Some((key, value))) => (key, value.to_owned()),
        (_, None) => (word, String::new()),
    };
    let Some(at) = FACTS.iter().position(|key| *key == name) else {
        return unknown("fact about a member", name, FACTS);
    };
    if at_least && number_of(&value).is_none() {
        return Err(format!("`{name}>={value}` cannot be compared, expected a number or an entry"));
    }
    let wants_value = at >= FACTS_ALONE;
    if wants_value == value.is_empty() {
        let want = if wants_value { "a value after `=`" } else { "no value" };
        return Err(format!("`{word}` needs {want}"));
    }
    // Written in any order, sets are compared as the core prints them.
    let value = match name {
        "voters" => {
            let sets: Vec<String> =
                majorities(&value)?.iter().map(|set| format!("({set})")).collect();
            if sets.is_empty() { "()".to_owned() } else { sets.join("&&") }
        }
        "learners" | "learners_next" => format!("({})", member_set(&value)?),
        _ => value,
    };
    Ok(Fact { negated, at_least, key: FACTS[at], value })
}

/// What `>=` compares: an entry by its term and index, anything else as a number.
fn number_of(value: &str) -> Option<(u64, u64)> {
    match entry_id(value) {
        Ok(id) => Some((id.term, id.index)),
        Err(_) => value.parse().ok().map(|number| (number, 0)),
    }
}

fn ids(words: &mut LineWords) -> Parsed<Vec<EntryId>> {
    let mut drafts = Vec::new();
    while let Some(word) = words.next() {
        super::notation::drafts(&word, &mut drafts)?;
    }
    Ok(drafts.into_iter().map(|draft| draft.id).collect())
}

/// The rest of the line as one text; quotes are not needed.
fn rest(words: &mut LineWords) -> String {
    let mut list = Vec::new();
    while let Some(word) = words.next() {
        list.push(word);
    }
    list.join(" ").trim_matches('"').to_owned()
}

fn outcome(words: &mut LineWords) -> Parsed<ExpectedReply> {
    let word = words.expect_word("waits, logged, served or refused")?;
    match (word.as_str(), key_value(&word)) {
        ("waits", _) => Ok(ExpectedReply::Waits),
        ("logged", _) => Ok(ExpectedReply::Logged(None)),
        (_, Some(("logged", id))) => Ok(ExpectedReply::Logged(Some(entry_id(id)?))),
        ("served", _) => {
            let at = words.next().map(|word| match key_value(&word) {
                Some(("at", index)) => number(index),
                _ => Err(format!("`{word}` is too much, expected at=INDEX or nothing")),
            });
            at.transpose().map(ExpectedReply::Served)
        }
        ("refused", _) => Ok(ExpectedReply::Refused(rest(words))),
        _ => unknown("outcome", &word, &["waits", "logged", "logged=2.3", "served", "refused"]),
    }
}

impl StoryWorld {
    /// Checks a claim now or, where it has time, after each tick.
    pub(super) fn expect(&mut self, expectation: &Expectation) -> CommandResult {
        let Some(ticks) = expectation.within else { return self.holds(&expectation.claim) };
        let muted = std::mem::replace(&mut self.page.muted, true);
        let result = self.expect_within(&expectation.claim, ticks);
        self.page.muted = muted;
        result
    }

    fn expect_within(&mut self, claim: &Claim, ticks: u32) -> CommandResult {
        let must_last = matches!(claim, Claim::NoLeader(_));
        self.settle(Ticks::Number(0))?;
        for tick in 0..=ticks {
            match self.holds(claim) {
                Ok(()) if !must_last => return Ok(()),
                Err(why) if must_last => return Err(format!("after {tick} ticks: {why}")),
                Err(why) if tick == ticks => {
                    return Err(format!("after {ticks} ticks still: {why}"));
                }
                _ if tick < ticks => self.settle(Ticks::Number(1))?,
                _ => {}
            }
        }
        Ok(())
    }

    fn holds(&self, claim: &Claim) -> CommandResult {
        match claim {
            Claim::Members(who, facts) => {
                for id in self.ids(who)? {
                    facts.iter().try_for_each(|fact| self.fact_holds(id, fact))?;
                }
                Ok(())
            }
            Claim::Leader(of) => match self.leader(of).next() {
                Some(_) => Ok(()),
                None => Err(format!("no member leads{}", among(of))),
            },
            Claim::NoLeader(of) => match self.leader(of).next() {
                Some(status) => Err(format!("{} leads term {}", status.id, status.term)),
                None => Ok(()),
            },
            Claim::Log(who, want) => self.logs_are(who, want, false),
            Claim::Disk(who, want) => self.logs_are(who, want, true),
            Claim::SameLogs(who) => self.same_logs(who),
            Claim::Refused(text) => self.dropped(true, text),
            Claim::Dropped(text) => self.dropped(false, text),
            Claim::Request(request, kind, outcome) => self.request_is(*request, kind, outcome),
            Claim::Message(filter) => match self.first_message(filter) {
                Some(_) => Ok(()),
                None => Err("no such message is in flight".to_owned()),
            },
            Claim::NoMessage(filter) => match self.first_message(filter) {
                Some(text) => Err(format!("there is {text}")),
                None => Ok(()),
            },
        }
    }

    fn leader<'a>(&'a self, of: &'a [MemberId]) -> impl Iterator<Item = Status> + 'a {
        self.statuses().filter(|status| {
            status.role == RoleKind::Leader && (of.is_empty() || of.contains(&status.id))
        })
    }

    fn first_message(&self, filter: &Filter) -> Option<String> {
        self.network.flight().iter().find(|envelope| filter.matches(envelope)).map(envelope_text)
    }

    fn fact_holds(&self, id: MemberId, fact: &Fact) -> CommandResult {
        let Fact { negated, at_least, key, value } = fact;
        let value = &short_ids(value);
        let status = self.member(id)?.core.raft.as_ref().map(quorate_core::Raft::status);
        let found = match (&status, *key) {
            (status, "up" | "down") => yes((*key == "up") == status.is_some()),
            (None, _) => return Err(format!("{id} is down")),
            (_, "ended") => self.goal_end(id, value)?,
            (_, "settled") => {
                self.member(id)?.settled.map_or("none".to_owned(), |entry| entry.to_string())
            }
            (_, "identity-rejected-by") => {
                self.member(id)?.identity_rejected_by.map_or("none".to_owned(), |by| by.to_string())
            }
            (Some(status), "lost") => status.lost.map_or("none".to_owned(), |at| at.to_string()),
            (Some(status), _) => found(status, key, value),
        };
        let found = short_ids(&found);
        let wanted = if value.is_empty() { "yes" } else { value };
        let is_more = *at_least && number_of(&found) >= number_of(wanted);
        if (found == wanted || is_more) != *negated {
            return Ok(());
        }
        let not = match (*negated, *at_least) {
            (true, true) => "less than ",
            (true, false) => "not ",
            (false, true) => "at least ",
            (false, false) => "",
        };
        let line = status.map_or_else(|| format!("{id} down"), |status| status.to_string());
        match value.as_str() {
            "" => Err(format!("{id} is {}{key}: {line}", if *negated { "" } else { "not " })),
            _ => Err(format!("{id} has {key}={found}, expected {not}{value}: {line}")),
        }
    }

    /// `2.3:reached`, for the goal that was set by the entry named in `wanted`.
    fn goal_end(&self, id: MemberId, wanted: &str) -> Result<String, String> {
        let (goal, _) = wanted.split_once(':').ok_or("expected ended=2.3:reached")?;
        let raft = self.member(id)?.core.raft.as_ref();
        let end = raft.and_then(|raft| Some(raft.goal_end(entry_id(goal).ok()?)));
        Ok(format!("{goal}:{}", end.flatten().map_or("none", goal_end_text)))
    }

    fn logs_are(&self, who: &NamedMembers, want: &[EntryId], durable: bool) -> CommandResult {
        for id in self.ids(who)? {
            let member = self.member(id)?;
            let log = if durable { member.core.disk.log.clone() } else { member.view().log };
            let mut found: Vec<EntryId> = log.entries.iter().map(|entry| entry.id).collect();
            if want.first() == Some(&log.base) {
                found.insert(0, log.base);
            }
            if found != want {
                return Err(format!("{id} holds {}, expected {}", list(&found), list(want)));
            }
        }
        Ok(())
    }

    fn same_logs(&self, who: &NamedMembers) -> CommandResult {
        let ids = self.ids(who)?;
        let Some((first, rest)) = ids.split_first() else { return Ok(()) };
        let ours = self.member(*first)?.view().log;
        for id in rest {
            let theirs = self.member(*id)?.view().log;
            let shared = ours.base.index.max(theirs.base.index);
            let after = |index: u64| index > shared;
            let a = ours.entries.iter().filter(|entry| after(entry.id.index));
            let b = theirs.entries.iter().filter(|entry| after(entry.id.index));
            if ours.last() != theirs.last() || !a.eq(b) {
                let [a, b] = [&ours, &theirs]
                    .map(|log| list(&log.entries.iter().map(|entry| entry.id).collect::<Vec<_>>()));
                return Err(format!("{first} holds {a}, {id} holds {b}"));
            }
        }
        Ok(())
    }

    fn dropped(&self, refused: bool, text: &str) -> CommandResult {
        let mut of_kind = self.drops.iter().filter(|drop| drop.refused == refused);
        if of_kind.any(|drop| drop.name == text || drop.why.contains(text)) {
            return Ok(());
        }
        let found: Vec<&str> = self.drops.iter().map(|drop| drop.why.as_str()).collect();
        let word = if refused { "refused" } else { "dropped" };
        let found = if found.is_empty() { "nothing".to_owned() } else { found.join("; ") };
        Err(format!("the last command {word} nothing for `{text}`; found: {found}"))
    }

    fn request_is(&self, request: RequestId, kind: &str, outcome: &ExpectedReply) -> CommandResult {
        let name = format!("{kind} {}", request.0);
        let (asked, answer) = self
            .requests
            .get(request)
            .filter(|(asked, _)| *asked == kind)
            .ok_or_else(|| format!("there is no {name}"))?;
        let right = match (outcome, answer) {
            (ExpectedReply::Waits, RequestState::Open) => true,
            (ExpectedReply::Logged(want), RequestState::Logged(id)) => {
                want.is_none_or(|want| want == *id)
            }
            (ExpectedReply::Served(want), RequestState::Served(at)) => {
                want.is_none_or(|want| want == *at)
            }
            (ExpectedReply::Refused(text), RequestState::Refused(why)) => {
                why.contains(text.as_str())
            }
            _ => false,
        };
        if right { Ok(()) } else { Err(format!("{asked} {} is {answer:?}", request.0)) }
    }
}

/// The value of one of [`VALUES`] that a status has.
pub(super) fn value_of_status(status: &Status, key: &str) -> String {
    found(status, key, "")
}

/// What is so, as a transcript would write it.
fn found(status: &Status, key: &str, wanted: &str) -> String {
    let member = |id: Option<MemberId>| id.map_or("none".to_owned(), |id| id.to_string());
    let membership = &status.membership;
    match key {
        "follower" => yes(status.role == RoleKind::Follower),
        "pre-candidate" => yes(status.role == RoleKind::PreCandidate),
        "candidate" => yes(status.role == RoleKind::Candidate),
        "leader" => yes(status.role == RoleKind::Leader),
        "voter" => yes(membership.is_voter(status.id)),
        "learner" => yes(membership.is_learner(status.id)),
        "joint" => yes(membership.is_joint()),
        "autoleave" => yes(membership.auto_leave()),
        "of" => member(status.leader),
        "term" => status.term.to_string(),
        "vote" => member(status.vote),
        "last" => status.log.last.to_string(),
        "commit" => status.log.commit.to_string(),
        "applied" => status.log.applied.to_string(),
        "saved" => status.log.saved.to_string(),
        "base" => status.log.base.to_string(),
        "snapshot" => status.log.snapshot.to_string(),
        "voters" => {
            let sets: Vec<String> =
                membership.majorities().iter().map(|set| format!("({set})")).collect();
            if sets.is_empty() { "()".to_owned() } else { sets.join("&&") }
        }
        "learners" => format!("({})", membership.learners()),
        "learners_next" => format!("({})", membership.learners_next()),
        "membership" => status.membership_id.to_string(),
        "newest" => status.newest_membership_id.to_string(),
        "transfer" => member(status.transfer),
        "reads" => status.reads_waiting.to_string(),
        "stalled" => status.stalled.to_string(),
        "awaits" => {
            let awaited = status.goal.iter().flat_map(|goal| &goal.awaited);
            let texts: Vec<String> =
                awaited.map(|one| format!("{}:{}", one.id, one.reason.name())).collect();
            if texts.is_empty() { "none".to_owned() } else { texts.join(",") }
        }
        // `match=m2:5` asks about one peer only.
        _ => {
            let asked = wanted.split_once(':').map_or(wanted, |(id, _)| id);
            let peer = status.peers.iter().find(|peer| short_ids(&peer.id.to_string()) == asked);
            peer.map_or("unknown".to_owned(), |peer| format!("{}:{}", peer.id, peer.matched))
        }
    }
}

fn yes(so: bool) -> String {
    if so { "yes" } else { "no" }.to_owned()
}

fn among(of: &[MemberId]) -> String {
    if of.is_empty() { String::new() } else { format!(" of {of:?}") }
}

fn list(ids: &[EntryId]) -> String {
    ids.iter().map(EntryId::to_string).collect::<Vec<_>>().join(" ")
}
