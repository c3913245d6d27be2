//! The undelivered messages of a trace: between members, and from a member's own threads.

use quorate_core::{
    Entries, EntryId, Envelope, HardState, MemberId, Save, SaveId, SnapshotMeta, Status, Term,
};

use super::notation::{self, Address, TraceLine};

/// An undelivered message.
#[derive(Clone, Debug)]
pub(super) enum PoolMessage {
    /// From one member to another.
    Message(Envelope),
    /// A member's promise to itself, released by a save. The last message of a save also reports
    /// that the save is done.
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

/// The append thread's report that everything up to a save is on disk.
#[derive(Clone, Debug)]
pub(super) struct SaveDone {
    pub(super) member: MemberId,
    pub(super) save: SaveId,
    /// The member's term when it started the save.
    pub(super) term: Term,
    /// The last entry of the whole log, if some of it was not known to be on disk.
    pub(super) last: Option<EntryId>,
    pub(super) install: Option<SnapshotMeta>,
}

impl PoolMessage {
    pub(super) fn to(&self) -> MemberId {
        match self {
            Self::Message(envelope) | Self::Promise { envelope, .. } => envelope.to,
            Self::SaveDone(done) => done.member,
            Self::ApplyDone { member, .. } => *member,
        }
    }

    /// Never leaves the member, so the network cannot lose it. The printed sender decides: see
    /// `Message::Transfer` in the notation.
    pub(super) fn is_local(&self) -> bool {
        let line = self.line();
        !matches!((line.from, line.to), (Address::Member(from), Address::Member(to)) if from != to)
    }

    pub(super) fn line(&self) -> TraceLine {
        match self {
            Self::Message(envelope) | Self::Promise { envelope, .. } => TraceLine::of(envelope),
            Self::SaveDone(done) => {
                let to = Address::Member(done.member);
                let mut line = TraceLine::new(Address::AppendThread, to, "MsgStorageAppendResp");
                line.term = done.term;
                line.log = done.last.unwrap_or_default();
                line.snapshot = done.install.clone();
                line
            }
            Self::ApplyDone { member, entries } => {
                let to = Address::Member(*member);
                let mut line = TraceLine::new(Address::ApplyThread, to, "MsgStorageApplyResp");
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
    /// The messages that it releases.
    pub(super) replies: Vec<PoolMessage>,
}

impl SaveWork {
    /// `status` is the member when it started the save.
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
        let mut replies: Vec<PoolMessage> = done.into_iter().map(PoolMessage::SaveDone).collect();
        for envelope in save.then_send.into_iter().rev() {
            replies.push(if envelope.to == member {
                PoolMessage::Promise { envelope, completes: completes.take() }
            } else {
                PoolMessage::Message(envelope)
            });
        }
        replies.reverse();
        let Save { id, hard_state, entries, install, .. } = save;
        Self { member, save: id, hard_state, entries, install, replies }
    }

    /// No released message reports to the member that the save is done.
    pub(super) fn is_silent(&self) -> bool {
        !self.replies.iter().any(|reply| match reply {
            PoolMessage::Promise { completes, .. } => completes.is_some(),
            PoolMessage::SaveDone(_) => true,
            PoolMessage::Message(_) | PoolMessage::ApplyDone { .. } => false,
        })
    }

    /// The request to the thread, without the released messages.
    pub(super) fn line(&self) -> TraceLine {
        let from = Address::Member(self.member);
        let mut line = TraceLine::new(from, Address::AppendThread, "MsgStorageAppend");
        if let Some(state) = self.hard_state {
            (line.term, line.vote, line.commit) = (state.term, state.vote, state.commit);
        }
        line.entries = self.entries.iter().map(notation::entry).collect();
        line.snapshot = self.install.clone();
        line
    }
}

/// The request to the apply thread, without the released messages.
pub(super) fn apply_line(member: MemberId, entries: &Entries) -> TraceLine {
    let from = Address::Member(member);
    let mut line = TraceLine::new(from, Address::ApplyThread, "MsgStorageApply");
    line.entries = entries.iter().map(notation::entry).collect();
    line
}
