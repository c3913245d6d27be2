//! One batch of a member's output, printed as the recorded system prints its own.

use quorate_core::message::Message;
use quorate_core::status::RoleKind;
use quorate_core::{Entries, Envelope, HardState, Index, MemberId, Output, RequestId, Status};

use super::message::{SaveWork, TraceMessage, apply_line};
use super::notation::{self, MessageLine};

/// What was shown of a member with its last batch; the next shows what changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShownState {
    pub(super) leader: Option<MemberId>,
    pub(super) role: RoleKind,
    pub(super) hard_state: HardState,
}

/// An output with all that its print shows.
pub(super) struct Batch {
    member: MemberId,
    /// Saves and applies go to the member's threads instead of being done at once.
    threads: bool,
    /// Leader and role, when they changed.
    standing: Option<(Option<MemberId>, RoleKind)>,
    must_sync: bool,
    served: Vec<(RequestId, Index)>,
    send: Vec<Envelope>,
    pub(super) save: Option<SaveWork>,
    pub(super) apply: Entries,
}

impl Batch {
    /// `status` is the member as it was before it handed out `output`: a membership
    /// that counts from this very batch on shows in the next one.
    pub(super) fn new(
        output: Output,
        status: &Status,
        shown: &mut ShownState,
        threads: bool,
    ) -> Self {
        let changed = (shown.leader, shown.role) != (status.leader, status.role);
        (shown.leader, shown.role) = (status.leader, status.role);
        let mut must_sync = false;
        if let Some(save) = &output.save {
            let old = shown.hard_state;
            let new = save.hard_state.unwrap_or(old);
            must_sync = !save.entries.is_empty() || (new.term, new.vote) != (old.term, old.vote);
            shown.hard_state = new;
        }
        let mut send = output.send;
        // The recorded system does not report the result of a forwarded proposal.
        let unknown = |message: &_| {
            matches!(message, Message::ProposeReply(..) | Message::IdentityRejected(_))
        };
        send.retain(|envelope| !unknown(&envelope.message));
        Self {
            member: status.id,
            threads,
            standing: changed.then_some((status.leader, status.role)),
            must_sync,
            served: output.served,
            send,
            save: output.save.map(|save| SaveWork::new(save, status)),
            apply: output.apply,
        }
    }

    /// Nothing in it that the recorded system knows of.
    pub(super) fn is_empty(&self) -> bool {
        self.standing.is_none()
            && self.served.is_empty()
            && self.send.is_empty()
            && self.save.is_none()
            && self.apply.is_empty()
    }

    /// What goes to other members with this batch.
    pub(super) fn posted(&self) -> Vec<TraceMessage> {
        let mut posted: Vec<TraceMessage> =
            self.send.iter().cloned().map(TraceMessage::Message).collect();
        if let (Some(save), false) = (&self.save, self.threads) {
            let others = |reply: &&TraceMessage| matches!(reply, TraceMessage::Message(_));
            posted.extend(save.replies.iter().filter(others).cloned());
        }
        posted
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some((leader, role)) = self.standing {
            let leader = notation::number(leader);
            lines.push(format!("Lead:{leader} State:{}", notation::role(role)));
        }
        if let Some(state) = self.save.as_ref().and_then(|save| save.hard_state) {
            lines.push(format!("HardState {}", notation::hard_state(&state)));
        }
        if !self.served.is_empty() {
            let served =
                self.served.iter().map(|(request, at)| format!("{{{at} [{}]}}", request.0));
            lines.push(format!("ReadStates [{}]", served.collect::<Vec<_>>().join(" ")));
        }
        if let Some(save) = &self.save {
            push_entries(&mut lines, "Entries:", &save.entries);
            if let Some(meta) = &save.install {
                lines.push(format!("Snapshot {}", notation::snapshot(meta)));
            }
        }
        push_entries(&mut lines, "CommittedEntries:", &self.apply);
        let messages = self.messages();
        if !messages.is_empty() {
            lines.push("Messages:".to_owned());
            lines.extend(messages.iter().map(MessageLine::to_string));
        }
        if lines.is_empty() {
            return vec!["<empty Ready>".to_owned()];
        }
        lines.insert(0, format!("Ready MustSync={}:", self.must_sync));
        lines
    }

    fn messages(&self) -> Vec<MessageLine> {
        let mut lines: Vec<MessageLine> = self.posted().iter().map(TraceMessage::line).collect();
        if !self.threads {
            return lines;
        }
        if let Some(save) = &self.save {
            let mut line = save.line();
            line.replies = save.replies.iter().map(TraceMessage::line).collect();
            lines.push(line);
        }
        if !self.apply.is_empty() {
            let done = TraceMessage::ApplyDone { member: self.member, entries: self.apply.clone() };
            let mut line = apply_line(self.member, &self.apply);
            line.replies.push(done.line());
            lines.push(line);
        }
        lines
    }
}

fn push_entries(lines: &mut Vec<String>, title: &str, entries: &Entries) {
    if !entries.is_empty() {
        lines.push(title.to_owned());
        lines.extend(entries.iter().map(notation::entry));
    }
}
