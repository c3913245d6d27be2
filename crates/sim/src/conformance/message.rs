//! What lies in the pool of a trace, waiting to be delivered: messages between
//! members, and what a member's own threads tell it.

use quorate_core::{
    Entries, EntryId, Envelope, HardState, MemberId, Save, SaveId, SnapshotMeta, Status, Term,
};

use super::notation::{self, Address, MessageLine};

/// One thing in the pool.
#[derive(Clone, Debug)]
pub(super) enum TraceMessage {
    /// From one member to another.
    Message(Envelope),
    /// A member's promise to itself, released by a save. When it is the last thing
    /// that the member hears of that save, it tells that the save is done.
    Promise {
        envelope: Envelope,
        completes: Option<SaveId>,
    },
    SaveDone(SaveDone),
    ApplyDone {
        member: MemberId,
        entries: Entries,
    },
}

/// The append thread's word that everything up to a save is on disk.
#[derive(Clone, Debug)]
pub(super) struct SaveDone {
    pub(super) member: MemberId,
    pub(super) save: SaveId,
    /// The member's term when it handed the save out.
    pub(super) term: Term,
    /// The last entry of the whole log, if some of it was not known to be on disk.
    pub(super) last: Option<EntryId>,
    pub(super) install: Option<SnapshotMeta>,
}

impl TraceMessage {
    pub(super) fn to(&self) -> MemberId {
        match self {
            Self::Message(envelope) | Self::Promise { envelope, .. } => envelope.to,
            Self::SaveDone(done) => done.member,
            Self::ApplyDone { member, .. } => *member,
        }
    }

    /// Never leaves the member, so the network cannot lose it. What counts is who is
    /// shown as the sender: see `Message::Transfer` in the notation.
    pub(super) fn is_local(&self) -> bool {
        let line = self.line();
        !matches!((line.from, line.to), (Address::Member(from), Address::Member(to)) if from != to)
    }

    pub(super) fn line(&self) -> MessageLine {
        match self {
            Self::Message(envelope) | Self::Promise { envelope, .. } => MessageLine::of(envelope),
            Self::SaveDone(done) => {
                let to = Address::Member(done.member);
                let mut line = MessageLine::new(Address::AppendThread, to, "MsgStorageAppendResp");
                line.term = done.term;
                line.log = done.last.unwrap_or_default();
                line.snapshot = done.install.clone();
                line
            }
            Self::ApplyDone { member, entries } => {
                let to = Address::Member(*member);
                let mut line = MessageLine::new(Address::ApplyThread, to, "MsgStorageApplyResp");
                line.entries = entries.iter().map(notation::entry).collect();
                line
            }
        }
    }
}

/// A save in the queue of the append thread.
#[derive(Clone, Debug)]
pub(super) struct SaveWork {
    pub(super) member: MemberId,
    pub(super) save: SaveId,
    pub(super) hard_state: Option<HardState>,
    pub(super) entries: Entries,
    pub(super) install: Option<SnapshotMeta>,
    /// What it releases.
    pub(super) replies: Vec<TraceMessage>,
}

impl SaveWork {
    /// `status` is the member as it was when it handed the save out.
    pub(super) fn new(save: Save, status: &Status) -> Self {
        let member = status.id;
        let unsaved = !save.entries.is_empty()
            || save.install.is_none() && status.log.saved < status.log.last.index;
        let done = (unsaved || save.install.is_some()).then(|| SaveDone {
            member,
            save: save.id,
            term: status.term,
            last: unsaved.then_some(status.log.last),
            install: save.install.clone(),
        });
        let mut completes = done.is_none().then_some(save.id);
        let mut replies: Vec<TraceMessage> = done.into_iter().map(TraceMessage::SaveDone).collect();
        for envelope in save.then_send.into_iter().rev() {
            replies.push(if envelope.to == member {
                TraceMessage::Promise { envelope, completes: completes.take() }
            } else {
                TraceMessage::Message(envelope)
            });
        }
        replies.reverse();
        let Save { id, hard_state, entries, install, .. } = save;
        Self { member, save: id, hard_state, entries, install, replies }
    }

    /// Nothing that it releases tells the member that it is done.
    pub(super) fn is_silent(&self) -> bool {
        !self.replies.iter().any(|reply| match reply {
            TraceMessage::Promise { completes, .. } => completes.is_some(),
            TraceMessage::SaveDone(_) => true,
            TraceMessage::Message(_) | TraceMessage::ApplyDone { .. } => false,
        })
    }

    /// As it is handed to the thread, without what it releases.
    pub(super) fn line(&self) -> MessageLine {
        let from = Address::Member(self.member);
        let mut line = MessageLine::new(from, Address::AppendThread, "MsgStorageAppend");
        if let Some(state) = self.hard_state {
            (line.term, line.vote, line.commit) = (state.term, state.vote, state.commit);
        }
        line.entries = self.entries.iter().map(notation::entry).collect();
        line.snapshot = self.install.clone();
        line
    }
}

/// As committed entries are handed to the apply thread, without what that releases.
pub(super) fn apply_line(member: MemberId, entries: &Entries) -> MessageLine {
    let from = Address::Member(member);
    let mut line = MessageLine::new(from, Address::ApplyThread, "MsgStorageApply");
    line.entries = entries.iter().map(notation::entry).collect();
    line
}
