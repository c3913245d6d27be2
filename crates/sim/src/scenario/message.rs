//! Messages in a story's notation: `m1 -> m2 Vote last=1.3 term=3`.
//!
//! Printing and reading stand side by side, since `inject` takes what a transcript
//! shows, and more: messages that no honest member sends.

use quorate_core::membership::GoalEnd;
use quorate_core::message::{
    Append, AppendReply, Heartbeat, HeartbeatReply, Identity, Message, Proposal, Vote, VoteReply,
};
use quorate_core::{
    EntryId, Envelope, Index, MemberId, Membership, RequestId, SnapshotMeta, Stalled, Term,
};

use super::notation::{
    self, Draft, MembershipText, PARTS, change_text, entries_text, entry_id, looks_like_entry,
};
use super::words::{LineWords, Parsed, key_value, member, number, text, unknown};

/// Every kind of message, by the name that stories use.
pub(super) const KINDS: &[&str] = &[
    "PreVote",
    "PreVoteReply",
    "Vote",
    "VoteReply",
    "Append",
    "AppendReply",
    "Heartbeat",
    "HeartbeatReply",
    "Snapshot",
    "TimeoutNow",
    "Propose",
    "ProposeReply",
    "Read",
    "ReadReply",
    "Transfer",
    "IdentityRejected",
];

pub(super) fn kind(message: &Message) -> &'static str {
    match message {
        Message::PreVote(_) => "PreVote",
        Message::PreVoteReply(_) => "PreVoteReply",
        Message::Vote(_) => "Vote",
        Message::VoteReply(_) => "VoteReply",
        Message::Append(_) => "Append",
        Message::AppendReply(_) => "AppendReply",
        Message::Heartbeat(_) => "Heartbeat",
        Message::HeartbeatReply(_) => "HeartbeatReply",
        Message::Snapshot(_) => "Snapshot",
        Message::TimeoutNow => "TimeoutNow",
        Message::Propose(..) => "Propose",
        Message::ProposeReply(..) => "ProposeReply",
        Message::Read(_) => "Read",
        Message::ReadReply(..) => "ReadReply",
        Message::Transfer(_) => "Transfer",
        Message::IdentityRejected(_) => "IdentityRejected",
    }
}

/// What `hide` and `show` name a message by: its kind, and `empty-appends` for
/// appends that only tell a commit index or probe.
pub(super) fn shown_as(message: &Message) -> [&'static str; 2] {
    match message {
        Message::Append(append) if append.entries.is_empty() => ["Append", "empty-appends"],
        _ => [kind(message), "messages"],
    }
}

/// A name of a kind, as an author wrote it.
pub(super) fn kind_named(word: &str) -> Parsed<&'static str> {
    match KINDS.iter().find(|kind| **kind == word) {
        Some(kind) => Ok(kind),
        None => unknown("kind of message", word, KINDS),
    }
}

/// The line of a transcript.
pub(super) fn envelope_text(envelope: &Envelope) -> String {
    let Envelope { from, to, term, message, .. } = envelope;
    let mut said = format!("{from} -> {to} {}", kind(message));
    let fields = fields_text(message);
    if !fields.is_empty() {
        said.push(' ');
        said.push_str(&fields);
    }
    said.push_str(&format!(" term={term}"));
    said
}

fn fields_text(message: &Message) -> String {
    match message {
        Message::PreVote(vote) | Message::Vote(vote) => {
            let forced = if vote.forced { " forced" } else { "" };
            format!("last={}{forced}{}", vote.last, knows_text(vote.committed))
        }
        Message::PreVoteReply(reply) | Message::VoteReply(reply) => {
            let answer = if reply.granted { "yes" } else { "no" };
            format!("{answer}{}", knows_text(reply.committed))
        }
        Message::Append(append) => {
            let entries = entries_text(append.entries.iter());
            let gap = if entries.is_empty() { "" } else { " " };
            format!("prev={}{gap}{entries} commit={}", append.prev, append.commit)
        }
        Message::AppendReply(AppendReply::Matches { index, .. }) => format!("matches={index}"),
        Message::AppendReply(AppendReply::Differs { prev, hint }) => {
            format!("differs={prev} hint={hint}")
        }
        Message::AppendReply(AppendReply::Missing { confirmed, hint, .. }) => {
            format!("missing={confirmed} hint={hint}")
        }
        Message::AppendReply(AppendReply::OldTerm) => "old-term".to_owned(),
        Message::Heartbeat(beat) => {
            // That the first membership is settled goes without saying.
            let settled =
                if beat.settled > 1 { format!(" settled={}", beat.settled) } else { String::new() };
            format!("commit={}{}{settled}", beat.commit, round_text(beat.round))
        }
        Message::HeartbeatReply(reply) => {
            let stalled = match reply.stalled {
                Stalled::NO => String::new(),
                stalled => format!(" stalled={stalled}"),
            };
            format!("{}{stalled}", round_text(reply.round)).trim_start().to_owned()
        }
        Message::Snapshot(meta) => format!("{} {}", meta.id, meta.membership),
        Message::TimeoutNow => String::new(),
        Message::Propose(request, Proposal::Command(command)) => {
            format!("{} \"{}\"", request.0, command.escape_ascii())
        }
        Message::Propose(request, Proposal::Change(change)) => {
            format!("{} [{}]", request.0, change_text(change))
        }
        Message::ProposeReply(request, Ok(id)) => format!("{} logged={id}", request.0),
        Message::ProposeReply(request, Err(why)) => format!("{} refused: {why};", request.0),
        Message::Read(request) => format!("{}", request.0),
        Message::ReadReply(request, Ok(index)) => format!("{} at={index}", request.0),
        Message::ReadReply(request, Err(why)) => format!("{} refused: {why};", request.0),
        Message::Transfer(to) => format!("to={to}"),
        Message::IdentityRejected(known) => identity_text(*known),
    }
}

/// The first membership is known to all members, so it is not printed.
fn knows_text(committed: EntryId) -> String {
    if committed.index > 1 { format!(" knows={committed}") } else { String::new() }
}

/// The identity that other members know for an id: `disk=11 joined-at=5`.
pub(super) fn identity_text(known: Identity) -> String {
    let disk = known.incarnation.map_or(String::new(), |disk| format!("disk={disk} "));
    format!("{disk}joined-at={}", known.joined_at)
}

pub(super) fn goal_end_text(end: GoalEnd) -> &'static str {
    match end {
        GoalEnd::Reached => "reached",
        GoalEnd::Cancelled => "cancelled",
        GoalEnd::Replaced => "replaced",
    }
}

/// What stands still, as an author wrote it.
pub(super) fn stalled(word: &str) -> Parsed<Stalled> {
    let all = [false, true]
        .into_iter()
        .flat_map(|disk| [false, true].into_iter().map(move |machine| Stalled { disk, machine }));
    match all.into_iter().find(|stalled| stalled.to_string() == word) {
        Some(stalled) => Ok(stalled),
        None => unknown("stall", word, &["no", "disk", "machine", "disk,machine"]),
    }
}

fn round_text(round: u64) -> String {
    if round == 0 { String::new() } else { format!(" round={round}") }
}

/// A message written by hand, with whatever the author left out at zero.
#[derive(Clone, Debug)]
pub(super) struct ByHand {
    pub(super) from: MemberId,
    /// Who is handed the message.
    pub(super) at: MemberId,
    /// The member it is addressed to.
    to: MemberId,
    term: Term,
    kind: &'static str,
    fields: Fields,
}

#[derive(Clone, Debug, Default)]
struct Fields {
    id: EntryId,
    /// The committed membership that a vote tells of.
    knows: EntryId,
    index: Index,
    commit: Index,
    round: u64,
    settled: Index,
    applied: Index,
    stalled: Stalled,
    request: u64,
    flag: bool,
    differs: Option<Index>,
    old_term: bool,
    /// The disk behind the sender, and the entry that added it.
    incarnation: u64,
    joined_at: Index,
    member: Option<MemberId>,
    drafts: Vec<Draft>,
    parts: MembershipText,
    text: Option<String>,
}

impl ByHand {
    /// `m1 -> m2 KIND FIELDS… term=3`, after the arrow has been read.
    pub(super) fn parse(from: MemberId, at: MemberId, words: &mut LineWords) -> Parsed<Self> {
        let kind = kind_named(&words.expect_word("a kind of message such as Vote")?)?;
        let mut hand = Self { from, at, to: at, term: 0, kind, fields: Fields::default() };
        while let Some(word) = words.next() {
            hand.field(&word)?;
        }
        Ok(hand)
    }

    fn field(&mut self, word: &str) -> Parsed<()> {
        let fields = &mut self.fields;
        if fields.parts.take(word)? {
            return Ok(());
        }
        match key_value(word) {
            Some(("term", value)) => self.term = number(value)?,
            Some(("to", value)) if self.kind == "Transfer" => fields.member = Some(member(value)?),
            Some(("to", value)) => self.to = member(value)?,
            Some(("last" | "prev" | "hint" | "logged", value)) => fields.id = entry_id(value)?,
            Some(("knows", value)) => fields.knows = entry_id(value)?,
            Some(("matches" | "at", value)) => fields.index = number(value)?,
            Some(("differs", value)) => fields.differs = Some(number(value)?),
            Some(("commit", value)) => fields.commit = number(value)?,
            Some(("settled", value)) => fields.settled = number(value)?,
            Some(("applied", value)) => fields.applied = number(value)?,
            Some(("stalled", value)) => fields.stalled = stalled(value)?,
            Some(("disk", value)) => fields.incarnation = number(value)?,
            Some(("joined-at", value)) => fields.joined_at = number(value)?,
            Some(("round", value)) => fields.round = number(value)?,
            Some(_) => return unknown("field of a message", word, FIELDS),
            None => match word {
                "yes" | "forced" => fields.flag = true,
                "no" => fields.flag = false,
                "old-term" => fields.old_term = true,
                _ if word.starts_with(['"', '[']) => fields.text = Some(word.to_owned()),
                _ if looks_like_entry(word) => notation::drafts(word, &mut fields.drafts)?,
                _ => match number(word) {
                    Ok(request) => fields.request = request,
                    Err(_) => return unknown("field of a message", word, FIELDS),
                },
            },
        }
        Ok(())
    }

    /// The message itself. `follows` is the membership that its first entry follows.
    pub(super) fn envelope(&self, follows: &Membership) -> Parsed<Envelope> {
        let message = self.message(follows)?;
        let Self { from, to, term, .. } = *self;
        let Fields { incarnation, joined_at, .. } = self.fields;
        Ok(Envelope { from, to, term, incarnation, joined_at, message })
    }

    /// The index after which the message's entries stand.
    pub(super) fn after(&self) -> Index {
        self.fields.id.index
    }

    fn message(&self, follows: &Membership) -> Parsed<Message> {
        let f = &self.fields;
        let request = RequestId(f.request);
        let vote = Vote { last: f.id, forced: f.flag, committed: f.knows };
        let vote_reply = VoteReply { granted: f.flag, committed: f.knows };
        Ok(match self.kind {
            "PreVote" => Message::PreVote(vote),
            "PreVoteReply" => Message::PreVoteReply(vote_reply),
            "Vote" => Message::Vote(vote),
            "VoteReply" => Message::VoteReply(vote_reply),
            "Append" => {
                let entries = notation::entries(&f.drafts, follows)?.into();
                Message::Append(Append { prev: f.id, entries, commit: f.commit })
            }
            "AppendReply" => Message::AppendReply(match f.differs {
                _ if f.old_term => AppendReply::OldTerm,
                Some(prev) => AppendReply::Differs { prev, hint: f.id },
                None => AppendReply::Matches { index: f.index, commit: f.commit },
            }),
            "Heartbeat" => {
                let (commit, round, settled) = (f.commit, f.round, f.settled);
                Message::Heartbeat(Heartbeat { commit, round, sent_at: 0, settled })
            }
            "HeartbeatReply" => Message::HeartbeatReply(HeartbeatReply {
                commit: f.commit,
                round: f.round,
                sent_at: 0,
                applied: f.applied,
                stalled: f.stalled,
            }),
            "Snapshot" => {
                let id = f.drafts.first().map_or(EntryId::ZERO, |draft| draft.id);
                let membership = f.parts.membership(follows.activation()).into();
                Message::Snapshot(SnapshotMeta { id, membership })
            }
            "TimeoutNow" => Message::TimeoutNow,
            "Propose" => Message::Propose(request, self.proposal()?),
            "ProposeReply" => Message::ProposeReply(request, Ok(f.id)),
            "Read" => Message::Read(request),
            "ReadReply" => Message::ReadReply(request, Ok(f.index)),
            "IdentityRejected" => Message::IdentityRejected(Identity {
                incarnation: (f.incarnation != 0).then_some(f.incarnation),
                joined_at: f.joined_at,
            }),
            _ => Message::Transfer(f.member.unwrap_or(MemberId(0))),
        })
    }

    fn proposal(&self) -> Parsed<Proposal> {
        let word = self.fields.text.as_deref().unwrap_or_default();
        match word.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(inner) => notation::change(&mut LineWords::of(inner)?)
                .map(|change| Proposal::Change(Box::new(change))),
            None => Ok(Proposal::Command(text(word))),
        }
    }
}

const FIELDS: &[&str] = &[
    "term=3",
    "last=2.3",
    "prev=2.3",
    "hint=2.3",
    "knows=2.3",
    "logged=2.3",
    "matches=5",
    "at=5",
    "differs=5",
    "commit=5",
    "round=1",
    "settled=5",
    "applied=5",
    "stalled=disk",
    "disk=11",
    "joined-at=5",
    "to=m2",
    "yes",
    "no",
    "forced",
    "old-term",
    PARTS[0],
    PARTS[1],
    PARTS[2],
    PARTS[3],
    PARTS[4],
];
