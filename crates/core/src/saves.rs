//! What waits for the disk.
//!
//! A promise is sent with the save that makes it durable. For each save in flight this
//! records how much of the log it covers; when the log is truncated, the record is too, so
//! that a late completion does not acknowledge entries that were written since
//! (scenarios/save_late_completion_of_truncated_tail.txt).

use std::collections::VecDeque;

use crate::outbox::exchange;
use crate::pack::pack_fields;
use crate::{
    Accepted, EntryId, Envelope, HardState, Index, MemberId, Message, Raft, Save, SaveId, Term,
};
use crate::{AppendReply, Dropped, Event};

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Saves {
    /// The id of the newest save handed out.
    pub(crate) newest: u64,
    pub(crate) in_flight: VecDeque<InFlight>,
    /// What becomes true with the next save.
    promises: Promises,
    /// The hard state as of the newest save.
    pub(crate) submitted: HardState,
    /// The commit index that the disk holds.
    pub(crate) durable_commit: Index,
}

pack_fields!(Saves { newest, submitted, durable_commit } unset { in_flight, promises });

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InFlight {
    pub(crate) id: SaveId,
    /// The log up to here is durable with this save; less when it was truncated since.
    last: Index,
    commit: Index,
    own: Option<Box<OwnPromises>>,
}

/// What this member promises to others, and to itself, once a save is durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Promises {
    send: Vec<Envelope>,
    /// None when it would be empty, as it is for most saves.
    own: Option<Box<OwnPromises>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct OwnPromises {
    /// A vote for itself, in this term.
    vote: Option<OwnVote>,
    /// The leader's own appends, one by one. Only with `every_reply_waits`; otherwise the
    /// end of the saved log counts once.
    appends: Vec<Index>,
    /// The snapshot of this save.
    install: Option<EntryId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnVote {
    pub(crate) term: Term,
    pub(crate) pre: bool,
}

impl Saves {
    pub(crate) fn new(submitted: HardState) -> Self {
        Self { submitted, durable_commit: submitted.commit, ..Self::default() }
    }

    /// Every save is durable, and no promise is waiting.
    fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.promises.is_empty()
    }

    pub(crate) fn free_buffers(&mut self) {
        debug_assert!(self.is_idle(), "what waits is not dropped");
        self.in_flight = VecDeque::new();
        self.promises.send = Vec::new();
    }

    /// The log was truncated from here on.
    pub(crate) fn truncate(&mut self, from: Index) {
        for save in &mut self.in_flight {
            save.last = save.last.min(from - 1);
        }
    }
}

impl Promises {
    #[inline]
    fn is_empty(&self) -> bool {
        self.send.is_empty() && self.own.is_none()
    }

    fn own(&mut self) -> &mut OwnPromises {
        self.own.get_or_insert_default()
    }
}

impl Raft {
    /// Whether a durable copy of the whole log on this member would advance anything by itself. For a
    /// leader it does not while too few others have confirmed its entries.
    /// Messages that wait for a save are not considered.
    pub fn is_own_copy_awaited(&self) -> bool {
        let Some(leader) = self.role.leader() else { return true };
        let log = &self.log;
        log.commit > log.saved() || leader.quorum_matched_with_own(log.last().index) > log.commit
    }

    pub(crate) fn hard_state(&self) -> HardState {
        HardState { term: self.term, vote: self.vote, commit: self.log.commit }
    }

    /// Sends a promise once everything it depends on is durable; at once when it already
    /// is.
    pub(crate) fn send_when_saved(&mut self, to: MemberId, term: Term, message: Message) {
        let envelope = self.config.envelope(to, term, message);
        let waits = self.config.etcd_compat.every_reply_waits || self.has_unsaved_promises();
        if !waits {
            self.out.send.push(envelope);
            return;
        }
        // A follower that accepted several appends since the last output replies once.
        if self.config.etcd_compat.coalesce
            && let Some(last) = self.saves.promises.send.last_mut()
            && let (
                Message::AppendReply(AppendReply::Matches { index: sent, .. }),
                Message::AppendReply(AppendReply::Matches { index: now, .. }),
            ) = (&mut last.message, &envelope.message)
            && (last.to, last.term) == (envelope.to, envelope.term)
        {
            *sent = (*sent).max(*now);
            return;
        }
        self.saves.promises.send.push(envelope);
    }

    fn has_unsaved_promises(&self) -> bool {
        let submitted = self.saves.submitted;
        !self.saves.is_idle()
            || self.log.has_unsaved()
            || self.installing.is_some()
            || (submitted.term, submitted.vote) != (self.term, self.vote)
            || self.memberships.any_between(submitted.commit, self.log.commit)
    }

    /// A candidate's own vote counts when it is durable. A pre-vote is not a promise, so it
    /// counts at once.
    pub(crate) fn promise_own_vote(&mut self, vote: OwnVote) {
        if self.config.etcd_compat.every_reply_waits {
            let reply = self.vote_reply(true);
            let message =
                if vote.pre { Message::PreVoteReply(reply) } else { Message::VoteReply(reply) };
            self.send_when_saved(self.config.id, vote.term, message);
        } else if vote.pre {
            self.count_own_vote(vote);
            return;
        }
        self.saves.promises.own().vote = Some(vote);
    }

    /// The leader's own copy of an entry counts when it is durable.
    pub(crate) fn promise_own_append(&mut self, index: Index) {
        if self.config.etcd_compat.every_reply_waits {
            let reply = Message::AppendReply(AppendReply::Matches { index, commit: 0 });
            self.send_when_saved(self.config.id, self.term, reply);
            self.saves.promises.own().appends.push(index);
        }
    }

    #[inline]
    pub(crate) fn has_save(&self) -> bool {
        self.log.has_unsaved()
            || self.installing.as_ref().is_some_and(|installing| !installing.submitted)
            || !self.saves.promises.is_empty()
            || self.hard_state_must_be_saved()
    }

    /// The leader will send the commit index again, so alone it need not be saved; it is
    /// written with the next save. But a member must not restart two memberships behind: a
    /// commit that covers a membership is saved at once.
    #[inline]
    fn hard_state_must_be_saved(&self) -> bool {
        let (submitted, now) = (&self.saves.submitted, self.hard_state());
        (submitted.term, submitted.vote) != (now.term, now.vote)
            || submitted.commit != now.commit
                && (self.config.etcd_compat.commit_saved_alone
                    || self.memberships.any_between(submitted.commit, now.commit))
    }

    /// Replaces an old save, whose buffer is used again, by the next one, if one is needed.
    pub(crate) fn take_save(&mut self, save: &mut Option<Save>) {
        let mut then_send =
            save.as_mut().map_or_else(Vec::new, |old| std::mem::take(&mut old.then_send));
        *save = None;
        if !self.has_save() {
            if self.saves.promises.send.capacity() == 0 {
                self.saves.promises.send = then_send;
            }
            return;
        }
        let (submitted, now) = (self.saves.submitted, self.hard_state());
        let entries = self.log.take_unsaved();
        let install =
            self.installing.as_mut().filter(|installing| !installing.submitted).map(|new| {
                new.submitted = true;
                new.meta.clone()
            });
        self.saves.submitted = now;
        self.saves.newest += 1;
        let id = SaveId(self.saves.newest);
        let promises = &mut self.saves.promises;
        if let Some(meta) = &install {
            promises.own().install = Some(meta.id);
        }
        exchange(&mut promises.send, &mut then_send);
        for envelope in &mut then_send {
            // When this is sent, the commit index is on disk, with this save or an earlier
            // one.
            if let Message::AppendReply(AppendReply::Matches { commit, .. }) = &mut envelope.message
            {
                *commit = now.commit;
            }
        }
        let promise_changed = (submitted.term, submitted.vote) != (now.term, now.vote);
        let must_sync = !entries.is_empty()
            || install.is_some()
            || promise_changed
            || self.memberships.any_between(submitted.commit, now.commit);
        self.saves.in_flight.push_back(InFlight {
            id,
            last: self.log.submitted(),
            commit: now.commit,
            own: promises.own.take(),
        });
        let hard_state = (promise_changed || submitted.commit != now.commit).then_some(now);
        *save = Some(Save { id, hard_state, entries, install, must_sync, then_send });
    }

    /// The disk holds this save and every one before it.
    pub(crate) fn on_saved(&mut self, id: SaveId) -> Result<Accepted, Dropped> {
        if id.0 > self.saves.newest || self.saves.in_flight.front().is_none_or(|old| old.id > id) {
            return Err(Dropped::NothingPending);
        }
        while self.saves.in_flight.front().is_some_and(|save| save.id <= id) {
            let Some(save) = self.saves.in_flight.pop_front() else { break };
            self.log.saved_to(save.last);
            self.saves.durable_commit = save.commit;
            if let Some(own) = &save.own {
                self.keep_own_promises(own, save.last);
            }
            self.on_own_saved(save.last);
            self.on_own_commit_saved(save.commit);
            if let Some(installed) = save.own.and_then(|own| own.install) {
                self.on_installed(installed);
            }
        }
        Ok(Accepted::Done)
    }

    fn keep_own_promises(&mut self, own: &OwnPromises, last: Index) {
        if let Some(vote) = own.vote {
            self.count_own_vote(vote);
        }
        for index in &own.appends {
            self.on_own_saved((*index).min(last));
        }
    }

    /// A leader's own disk counts like any follower's.
    fn on_own_saved(&mut self, index: Index) {
        if let Some(slot) = self.role.leader().and_then(|leader| leader.own) {
            self.on_matched(slot, index);
        }
    }

    fn on_installed(&mut self, id: EntryId) {
        if self.installing.as_ref().is_some_and(|installing| installing.meta.id == id) {
            self.installing = None;
            self.out.rare().events.push(Event::SnapshotInstalled(id));
        }
        if id.index > self.log.applied {
            self.expect_machine_install(id.index);
            self.log.applied_to(id.index);
            self.membership_work_due = true;
            self.leave_joint_due = true;
        }
    }
}
