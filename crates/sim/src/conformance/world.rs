//! All members of a trace and the pool of what is on its way between them.

use quorate_core::MemberId;

use super::member::{Shared, TraceMember};
use super::message::TraceMessage;

/// Where a trace stands.
#[derive(Default)]
pub(super) struct TraceWorld {
    members: Vec<TraceMember>,
    /// Undelivered, in the order in which it was sent.
    pool: Vec<TraceMessage>,
    pub(super) shared: Shared,
    pub(super) transcript: TraceTranscript,
}

/// What to do with the messages for one member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipient {
    pub(super) id: MemberId,
    pub(super) drop: bool,
}

/// The prints of one command.
#[derive(Default)]
pub(super) struct TraceTranscript {
    lines: Vec<String>,
    indented: bool,
    pub(super) silent: bool,
}

/// A trace whose members still have work after this many rounds does not end.
const ROUNDS_MAX: usize = 10_000;

impl TraceWorld {
    pub(super) fn add(&mut self, member: TraceMember) {
        self.members.push(member);
    }

    pub(super) fn next_id(&self) -> MemberId {
        MemberId(self.members.len() as u64 + 1)
    }

    pub(super) fn members(&self) -> &[TraceMember] {
        &self.members
    }

    pub(super) fn ids(&self) -> Vec<MemberId> {
        (1..=self.members.len() as u64).map(MemberId).collect()
    }

    pub(super) fn member(&mut self, id: MemberId) -> Result<&mut TraceMember, String> {
        find(&mut self.members, id)
    }

    pub(super) fn post(&mut self, message: TraceMessage) {
        self.pool.push(message);
    }

    /// Handles one batch of a member, empty or not.
    pub(super) fn process_ready(&mut self, id: MemberId) -> Result<(), String> {
        if !self.handle_batch(id, None)? {
            self.transcript.line("<empty Ready>");
        }
        Ok(())
    }

    /// Handles a batch, under a title, if there is one.
    fn handle_batch(&mut self, id: MemberId, title: Option<String>) -> Result<bool, String> {
        let member = find(&mut self.members, id)?;
        let Some(batch) = member.take_batch(&mut self.shared)? else {
            return Ok(false);
        };
        let (lines, posted) = (batch.lines(), batch.posted());
        match title {
            Some(title) => self.transcript.section(&title, &lines),
            None => self.transcript.lines(&lines),
        }
        member.work_off(&batch, &mut self.shared)?;
        self.pool.extend(posted);
        Ok(true)
    }

    pub(super) fn process_save(&mut self, id: MemberId) -> Result<(), String> {
        let worked = find(&mut self.members, id)?.process_save(&mut self.shared)?;
        self.transcript.lines(&worked.lines);
        self.pool.extend(worked.released);
        Ok(())
    }

    pub(super) fn process_apply(&mut self, id: MemberId) -> Result<(), String> {
        let worked = find(&mut self.members, id)?.process_apply(&mut self.shared)?;
        self.transcript.lines(&worked.lines);
        self.pool.extend(worked.released);
        Ok(())
    }

    /// Delivers or drops what waits for one member; true if there was anything.
    pub(super) fn deliver(
        &mut self,
        recipient: Recipient,
        kind: Option<&str>,
    ) -> Result<bool, String> {
        let Recipient { id, drop } = recipient;
        let (found, left) = std::mem::take(&mut self.pool).into_iter().partition(|message| {
            message.to() == id
                && !(drop && message.is_local())
                && kind.is_none_or(|kind| message.line().kind == kind)
        });
        self.pool = left;
        let any = !Vec::is_empty(&found);
        for message in found {
            if drop {
                self.transcript.line(&format!("dropped: {}", message.line()));
                continue;
            }
            self.transcript.line(&message.line().to_string());
            if let Some(complaint) = find(&mut self.members, id)?.receive(message)? {
                self.transcript.line(complaint);
            }
        }
        Ok(any)
    }

    /// Lets these members work until there is nothing left to do.
    pub(super) fn stabilize(&mut self, ids: &[MemberId]) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            if !self.round(ids)? {
                return Ok(());
            }
        }
        Err(format!("the members still have work after {ROUNDS_MAX} rounds"))
    }

    fn round(&mut self, ids: &[MemberId]) -> Result<bool, String> {
        let mut busy = false;
        for id in ids {
            busy |= self.handle_batch(*id, Some(format!("> {} handling Ready", id.0)))?;
        }
        for id in ids {
            if self.pool.iter().any(|message| message.to() == *id) {
                let title = format!("> {} receiving messages", id.0);
                let recipient = Recipient { id: *id, drop: false };
                self.under(&title, |world| world.deliver(recipient, None).map(|_| ()))?;
                busy = true;
            }
        }
        for id in ids {
            if self.member(*id)?.has_saves() {
                let title = format!("> {} processing append thread", id.0);
                self.under(&title, |world| {
                    while world.member(*id)?.has_saves() {
                        world.process_save(*id)?;
                    }
                    Ok(())
                })?;
                busy = true;
            }
        }
        for id in ids {
            if self.member(*id)?.has_applies() {
                let title = format!("> {} processing apply thread", id.0);
                self.under(&title, |world| {
                    while world.member(*id)?.has_applies() {
                        world.process_apply(*id)?;
                    }
                    Ok(())
                })?;
                busy = true;
            }
        }
        Ok(busy)
    }

    /// Runs `work` with its prints indented under a title.
    pub(super) fn under(
        &mut self,
        title: &str,
        work: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.transcript.line(title);
        self.transcript.indented = true;
        let result = work(self);
        self.transcript.indented = false;
        result
    }
}

/// Apart from the other fields of the world, so that these can be used beside it.
fn find(members: &mut [TraceMember], id: MemberId) -> Result<&mut TraceMember, String> {
    let place = usize::try_from(id.0).ok().and_then(|id| id.checked_sub(1));
    let found = place.and_then(|place| members.get_mut(place));
    found.ok_or_else(|| format!("there is no member {}", id.0))
}

impl TraceTranscript {
    /// Prints a text of one or several lines.
    pub(super) fn line(&mut self, text: &str) {
        if self.silent {
            return;
        }
        let indent = if self.indented { "  " } else { "" };
        self.lines.extend(text.lines().map(|line| format!("{indent}{line}")));
    }

    pub(super) fn lines(&mut self, texts: &[String]) {
        texts.iter().for_each(|text| self.line(text));
    }

    fn section(&mut self, title: &str, texts: &[String]) {
        self.line(title);
        self.indented = true;
        self.lines(texts);
        self.indented = false;
    }

    /// What was printed since the last time.
    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }
}
