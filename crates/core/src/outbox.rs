//! What a member has produced, and how its caller takes it.

use crate::boundary::Load;
use crate::idle::IdleMark;
use crate::{Entries, EntryId, Envelope, Event, Index, Output, Raft, Refusal, RequestId};

/// Output that has been produced and not taken yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Outbox {
    pub(crate) send: Vec<Envelope>,
    /// None when it would be empty: outputs of commands, and idle members, have nothing of it.
    rare: Option<Box<RareOutput>>,
    /// Entries that were loaded for the state machine: no output before they are applied.
    pub(crate) loaded: Option<Box<Entries>>,
}

/// The parts of an output that a leader's commands do not need.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct RareOutput {
    pub(crate) load: Vec<Load>,
    pub(crate) trim: Option<Index>,
    pub(crate) accepted: Vec<(RequestId, EntryId)>,
    pub(crate) served: Vec<(RequestId, Index)>,
    pub(crate) refused: Vec<(RequestId, Refusal)>,
    pub(crate) events: Vec<Event>,
}

impl Outbox {
    /// For adding something: a caller that adds nothing would leave an empty value behind.
    pub(crate) fn rare(&mut self) -> &mut RareOutput {
        self.rare.get_or_insert_default()
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.send.is_empty() && self.rare.is_none()
    }

    pub(crate) fn free_buffers(&mut self) {
        debug_assert!(self.is_empty(), "what was produced is not dropped");
        self.send = Vec::new();
    }

    /// Moves everything into an output. The buffers change places, so that none is allocated
    /// again while a caller takes its outputs into the same value.
    #[inline]
    fn move_into(&mut self, output: &mut Output) {
        exchange(&mut self.send, &mut output.send);
        output.load.clear();
        output.trim = None;
        output.accepted.clear();
        output.served.clear();
        output.refused.clear();
        output.events.clear();
        if let Some(rare) = self.rare.take() {
            let RareOutput { load, trim, accepted, served, refused, events } = *rare;
            (output.load, output.trim, output.events) = (load, trim, events);
            (output.accepted, output.served, output.refused) = (accepted, served, refused);
        }
    }
}

/// Moves what is new into the place of what is old.
#[inline]
pub(crate) fn exchange<T>(new: &mut Vec<T>, old: &mut Vec<T>) {
    old.clear();
    if !new.is_empty() {
        std::mem::swap(new, old);
    }
}

impl Raft {
    /// Takes everything that this member asks its caller to do since the last call.
    /// Dropping the output loses messages, saves and committed entries.
    pub fn take_output(&mut self) -> Output {
        let mut output = Output::default();
        self.take_output_into(&mut output);
        output
    }

    /// The same for a caller that reuses one value, whose old content is dropped: its buffers
    /// are used again.
    pub fn take_output_into(&mut self, output: &mut Output) {
        self.idle = IdleMark::NO;
        self.begin_reads();
        self.send_pending_appends();
        self.take_save(&mut output.save);
        if !output.apply.is_empty() {
            output.apply = Entries::new();
        }
        if self.has_apply() {
            output.apply = self.take_apply();
        }
        self.out.move_into(output);
        // The entries are handed to the state machine: as far as memberships are concerned
        // they are applied. The consequences are part of the next output.
        if !output.apply.is_empty() {
            self.update_active_membership();
        }
        self.campaign_if_requested();
        self.do_membership_work_if_due();
        self.log.evict(self.config.tail_bytes_max);
    }

    /// Whether [`Raft::take_output`] would return anything.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.idle.is_set() && self.would_output()
    }

    #[inline]
    pub(crate) fn would_output(&self) -> bool {
        !self.out.is_empty()
            || self.has_save()
            || self.has_apply()
            || self.role.leader().is_some_and(|leader| {
                leader.has_pending_appends() || leader.may_begin_reads(self.log.commit)
            })
    }
}
