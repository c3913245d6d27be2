//! The notation of the traces: entries, snapshots and messages as the recorded
//! system prints them. Words that are not ours stand here and nowhere else.

use std::fmt;

use quorate_core::message::{AppendReply, Message, Proposal, VoteReply};
use quorate_core::status::{Flow, PeerStatus, RoleKind};
use quorate_core::{
    Change, Entry, EntryId, Envelope, HardState, Index, MemberId, MemberSet, Membership, Payload,
    SnapshotMeta, Status, Term,
};

use crate::short_ids::short_ids;

/// The sender or receiver of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Member(MemberId),
    /// Does a member's saves, one after the other.
    AppendThread,
    /// Runs a member's committed entries, one batch after the other.
    ApplyThread,
}

/// A message as a trace shows it: one form with many optional parts.
#[derive(Clone, Debug)]
pub(super) struct MessageLine {
    pub(super) from: Address,
    pub(super) to: Address,
    pub(super) kind: &'static str,
    pub(super) term: Term,
    pub(super) log: EntryId,
    /// Refused, with this hint.
    pub(super) rejected: Option<Index>,
    pub(super) commit: Index,
    pub(super) vote: Option<MemberId>,
    pub(super) entries: Vec<String>,
    pub(super) snapshot: Option<SnapshotMeta>,
    /// What leaves once the message is worked off.
    pub(super) replies: Vec<Self>,
}

/// Every kind of message that `deliver-msgs type=…` may name.
pub(super) const KINDS: [&str; 18] = [
    "MsgPreVote",
    "MsgPreVoteResp",
    "MsgVote",
    "MsgVoteResp",
    "MsgApp",
    "MsgAppResp",
    "MsgHeartbeat",
    "MsgHeartbeatResp",
    "MsgSnap",
    "MsgTimeoutNow",
    "MsgProp",
    "MsgReadIndex",
    "MsgReadIndexResp",
    "MsgTransferLeader",
    "MsgStorageAppend",
    "MsgStorageAppendResp",
    "MsgStorageApply",
    "MsgStorageApplyResp",
];

impl MessageLine {
    pub(super) fn new(from: Address, to: Address, kind: &'static str) -> Self {
        Self {
            from,
            to,
            kind,
            term: 0,
            log: EntryId::ZERO,
            rejected: None,
            commit: 0,
            vote: None,
            entries: Vec::new(),
            snapshot: None,
            replies: Vec::new(),
        }
    }

    pub(super) fn of(envelope: &Envelope) -> Self {
        let (from, to) = (Address::Member(envelope.from), Address::Member(envelope.to));
        let mut line = Self::new(from, to, kind(&envelope.message));
        line.term = envelope.term;
        match &envelope.message {
            Message::PreVote(vote) | Message::Vote(vote) => line.log = vote.last,
            Message::PreVoteReply(reply) | Message::VoteReply(reply) => {
                line.rejected = rejected(*reply);
            }
            Message::Append(append) => {
                line.log = append.prev;
                line.commit = append.commit;
                line.entries = append.entries.iter().map(entry).collect();
            }
            Message::AppendReply(reply) => match *reply {
                AppendReply::Matches { index, .. } => line.log.index = index,
                AppendReply::Differs { prev, hint } => {
                    line.log = EntryId::new(hint.term, prev);
                    line.rejected = Some(hint.index);
                }
                // Only with incarnations, which etcd does not have.
                AppendReply::Missing { .. } | AppendReply::OldTerm => {}
            },
            Message::Heartbeat(heartbeat) => line.commit = heartbeat.commit,
            Message::Snapshot(meta) => line.snapshot = Some(meta.clone()),
            // Passed on for a client: the sender's term has no meaning.
            Message::Propose(_, proposal) => {
                line.term = 0;
                line.entries.push(proposed(proposal));
            }
            Message::Read(_) => line.term = 0,
            Message::ReadReply(_, Ok(index)) => line.log.index = *index,
            // The traces name the next leader as the sender of the request.
            Message::Transfer(next) => line.from = Address::Member(*next),
            Message::HeartbeatReply(_)
            | Message::TimeoutNow
            | Message::ProposeReply(..)
            | Message::IdentityRejected(_)
            | Message::ReadReply(_, Err(_)) => {}
        }
        line
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, indent: &str) -> fmt::Result {
        let Self { from, to, kind, term, log, .. } = self;
        write!(f, "{indent}{from}->{to} {kind} Term:{term} Log:{}/{}", log.term, log.index)?;
        if let Some(hint) = self.rejected {
            write!(f, " Rejected (Hint: {hint})")?;
        }
        if self.commit != 0 {
            write!(f, " Commit:{}", self.commit)?;
        }
        if let Some(vote) = self.vote {
            write!(f, " Vote:{}", vote.0)?;
        }
        match self.entries.as_slice() {
            [] => {}
            [entry] => write!(f, " Entries:[{entry}]")?,
            entries => {
                f.write_str(" Entries:[")?;
                for entry in entries {
                    write!(f, "\n{indent}  {entry}")?;
                }
                write!(f, "\n{indent}]")?;
            }
        }
        if let Some(meta) = self.snapshot.as_ref().filter(|meta| meta.id.index > 0) {
            write!(f, "\n{indent}  Snapshot: {}", snapshot(meta))?;
        }
        if !self.replies.is_empty() {
            f.write_str(" Responses:[")?;
            for reply in &self.replies {
                f.write_str("\n")?;
                reply.write(f, &format!("{indent}  "))?;
            }
            write!(f, "\n{indent}]")?;
        }
        Ok(())
    }
}

impl fmt::Display for MessageLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, "")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member(id) => write!(f, "{:x}", id.0),
            Self::AppendThread => f.write_str("AppendThread"),
            Self::ApplyThread => f.write_str("ApplyThread"),
        }
    }
}

fn kind(message: &Message) -> &'static str {
    match message {
        Message::PreVote(_) => "MsgPreVote",
        Message::PreVoteReply(_) => "MsgPreVoteResp",
        Message::Vote(_) => "MsgVote",
        Message::VoteReply(_) => "MsgVoteResp",
        Message::Append(_) => "MsgApp",
        Message::AppendReply(_) => "MsgAppResp",
        Message::Heartbeat(_) => "MsgHeartbeat",
        Message::HeartbeatReply(_) => "MsgHeartbeatResp",
        Message::Snapshot(_) => "MsgSnap",
        Message::TimeoutNow => "MsgTimeoutNow",
        Message::Propose(..) => "MsgProp",
        // The recorded system has neither, so batches leave them out.
        Message::ProposeReply(..) => "ProposeReply",
        Message::IdentityRejected(_) => "IdentityRejected",
        Message::Read(_) => "MsgReadIndex",
        Message::ReadReply(..) => "MsgReadIndexResp",
        Message::Transfer(_) => "MsgTransferLeader",
    }
}

fn rejected(reply: VoteReply) -> Option<Index> {
    (!reply.granted).then_some(0)
}

/// `2/7 EntryNormal "data"`
pub(super) fn entry(entry: &Entry) -> String {
    let content = match &entry.payload {
        Payload::Command(command) => format!("EntryNormal {}", quoted(command)),
        Payload::Change(logged) => change(&logged.change),
    };
    format!("{}/{} {content}", entry.id.term, entry.id.index)
}

fn proposed(proposal: &Proposal) -> String {
    match proposal {
        Proposal::Command(command) => format!("0/0 EntryNormal {}", quoted(command)),
        Proposal::Change(requested) => format!("0/0 {}", change(requested)),
    }
}

fn change(change: &Change) -> String {
    let mut text = if change.is_v1() { "EntryConfChange" } else { "EntryConfChangeV2" }.to_owned();
    for operation in change.operations() {
        text.push_str(&format!(" {}", short_ids(&operation.to_string())));
    }
    text
}

/// Quotes as Go does: printable characters as they are, others escaped, and bytes
/// that are no text in hexadecimal.
pub(super) fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        chunk.valid().chars().for_each(|c| push_quoted(&mut text, c));
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text.push('"');
    text
}

fn push_quoted(text: &mut String, c: char) {
    match c {
        '"' => text.push_str("\\\""),
        '\\' => text.push_str("\\\\"),
        '\u{7}' => text.push_str("\\a"),
        '\u{8}' => text.push_str("\\b"),
        '\u{b}' => text.push_str("\\v"),
        '\u{c}' => text.push_str("\\f"),
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        c if c.is_ascii_control() => text.push_str(&format!("\\x{:02x}", u32::from(c))),
        // `'` is the one printable character that Rust escapes and Go does not.
        c if c == '\'' || c.escape_debug().len() == 1 => text.push(c),
        c if u32::from(c) <= 0xffff => text.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => text.push_str(&format!("\\U{:08x}", u32::from(c))),
    }
}

/// `Index:11 Term:1 ConfState:Voters:[1 2 3] VotersOutgoing:[] …`
pub(super) fn snapshot(meta: &SnapshotMeta) -> String {
    let membership: &Membership = &meta.membership;
    let outgoing: MemberSet = membership.outgoing().iter().flat_map(MemberSet::iter).collect();
    format!(
        "Index:{} Term:{} ConfState:Voters:[{}] VotersOutgoing:[{}] Learners:[{}] \
         LearnersNext:[{}] AutoLeave:{}",
        meta.id.index,
        meta.id.term,
        numbers(membership.incoming()),
        numbers(&outgoing),
        numbers(membership.learners()),
        numbers(membership.learners_next()),
        membership.auto_leave(),
    )
}

fn numbers(ids: &MemberSet) -> String {
    ids.iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(" ")
}

/// `Term:1 Vote:2 Commit:11`
pub(super) fn hard_state(state: &HardState) -> String {
    let vote = state.vote.map(|vote| format!(" Vote:{}", vote.0)).unwrap_or_default();
    format!("Term:{}{vote} Commit:{}", state.term, state.commit)
}

pub(super) fn role(role: RoleKind) -> &'static str {
    match role {
        RoleKind::Follower => "StateFollower",
        RoleKind::PreCandidate => "StatePreCandidate",
        RoleKind::Candidate => "StateCandidate",
        RoleKind::Leader => "StateLeader",
    }
}

/// `1: StateLeader (Voter) Term:1 Lead:1`
pub(super) fn member(status: &Status) -> String {
    let votes = if status.membership.is_voter(status.id) { "Voter" } else { "Non-Voter" };
    let (id, leader) = (status.id.0, number(status.leader));
    format!("{id}: {} ({votes}) Term:{} Lead:{leader}", role(status.role), status.term)
}

/// `2: StateReplicate match=11 next=12 inflight=1`
pub(super) fn progress(peer: &PeerStatus) -> String {
    let (flow, pending) = match peer.flow {
        Flow::Probe => ("StateProbe", None),
        Flow::Replicate => ("StateReplicate", None),
        Flow::Snapshot(index) => ("StateSnapshot", Some(index)),
    };
    let mut text = format!("{}: {flow} match={} next={}", peer.id.0, peer.matched, peer.next);
    if peer.learner {
        text.push_str(" learner");
    }
    if peer.paused {
        text.push_str(" paused");
    }
    if let Some(index) = pending {
        text.push_str(&format!(" pendingSnap={index}"));
    }
    if !peer.active {
        text.push_str(" inactive");
    }
    if peer.inflight > 0 {
        let full = if peer.inflight_full { "[full]" } else { "" };
        text.push_str(&format!(" inflight={}{full}", peer.inflight));
    }
    text
}

/// Zero names no member.
pub(super) fn number(id: Option<MemberId>) -> u64 {
    id.map_or(0, |id| id.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_quoted_as_go_does() {
        assert_eq!(quoted(b""), "\"\"");
        assert_eq!(quoted(b"\"it's\"\t\\"), "\"\\\"it's\\\"\\t\\\\\"");
        assert_eq!(quoted("é\u{0}\u{7f}\u{200b}".as_bytes()), "\"é\\x00\\x7f\\u200b\"");
        assert_eq!(quoted(b"a\xff"), "\"a\\xff\"");
    }
}
