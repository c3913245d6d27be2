//! The recorded state of one member, and the invariants that a single member can break:
//! I1, one vote per term; I3, a leader's log only grows; I6, quorums of consecutive
//! memberships overlap; I7, at most one change is pending; I8, the active membership is in
//! the log; I9, indexes are in order and never decrease; I11, which members may campaign
//! and lead; I12, no message before the save that it depends on; I15, votes and restarts
//! tell the committed membership; D1 and D2, a disk keeps what it has saved.

use std::ops::RangeInclusive;
use std::sync::Arc;

use quorate_core::config::Activation;
use quorate_core::membership::EndedGoal;
use quorate_core::message::{AppendReply, Message};
use quorate_core::status::RoleKind;
use quorate_core::{
    Boot, Config, Entries, EntryId, Envelope, HardState, Index, MemberId, Membership, Raft, Save,
    SnapshotMeta, Term,
};

use super::log::LogRecord;
use super::roles::role_is_allowed;
use super::{Checked, MemberView, Violation, ensure, quorums_meet};
use crate::cluster::DiskState;

/// One member, updated with every event.
#[derive(Clone, Debug)]
pub(crate) struct MemberRecord {
    id: MemberId,
    activation: Activation,
    /// A candidate requests votes only after its own vote is saved. With etcd's behaviour
    /// it does not wait.
    votes_wait: bool,
    /// A change is reported as done when it is settled.
    settles: bool,
    /// Votes and their replies tell the committed membership.
    votes_tell_commit: bool,
    /// The entry that added it, if it joined later.
    joined_at: Index,
    /// Its log according to its save requests.
    pub(crate) requested: LogRecord,
    disk: DiskRecord,
    /// Saves that are written but not synced: a crash may undo them.
    unsynced: Vec<UnsyncedSave>,
    /// The content of a lost disk. The cluster relied on it while it existed, and does not
    /// rely on another disk under the same id until the member is added again.
    lost_disk: Option<DiskRecord>,
    term: Term,
    commit: Index,
    /// The commit index in its save requests, and that of its start.
    commit_requested: Index,
    commit_at_start: Index,
    /// The last index passed to the machine.
    applying: Index,
    /// The snapshot that it is to save, until the disk has written it.
    unwritten_snapshot: Option<Index>,
    applied: Index,
    /// The term it leads.
    leads: Option<Term>,
    membership: Option<Arc<Membership>>,
    /// The last index reported as settled since the start.
    settled: Index,
    /// Goals reported as ended since the start.
    ended_goals: Vec<EntryId>,
}

/// The content of a disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskRecord {
    pub(crate) log: LogRecord,
    hard_state: HardState,
    snapshot: Index,
}

#[derive(Clone, Debug)]
struct UnsyncedSave {
    hard_state: Option<HardState>,
    install: Option<SnapshotMeta>,
    entries: Entries,
}

/// What a member's new state implies, to be checked against the rest of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// The term of which it became leader in this step.
    pub(crate) elected: Option<Term>,
    /// The indexes that it newly considers committed.
    pub(crate) committed: Option<RangeInclusive<Index>>,
    pub(crate) raised: Option<RaisedCommit>,
}

/// An increase of a leader's commit index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RaisedCommit {
    pub(crate) by: MemberId,
    pub(crate) term: Term,
    pub(crate) entry: EntryId,
    /// It led the same term before this step: what it learned as a candidate is excluded.
    pub(crate) led_before: bool,
    /// The active memberships before and after the step: it may have used either.
    pub(crate) memberships: [Arc<Membership>; 2],
}

impl MemberRecord {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            id: config.id,
            activation: config.activation,
            votes_wait: !config.etcd_compat.every_reply_waits,
            settles: config.liveness.settle,
            votes_tell_commit: config.liveness.votes_tell_commit,
            joined_at: config.joined_at,
            requested: LogRecord::default(),
            disk: DiskRecord::default(),
            unsynced: Vec::new(),
            lost_disk: None,
            term: 0,
            commit: 0,
            commit_requested: 0,
            commit_at_start: 0,
            applying: 0,
            unwritten_snapshot: None,
            applied: 0,
            leads: None,
            membership: None,
            settled: 0,
            ended_goals: Vec::new(),
        }
    }

    /// A member in the middle of a run.
    pub(crate) fn of_view(config: &Config, view: &MemberView) -> Self {
        Self {
            requested: LogRecord::of_view(&view.log, &view.snapshot),
            disk: DiskRecord::of_view(&view.durable),
            term: view.term,
            commit: view.commit,
            commit_requested: view.commit,
            applying: view.applying,
            unwritten_snapshot: view.installing.then_some(view.snapshot.id.index),
            applied: view.applied,
            leads: (view.role == RoleKind::Leader).then_some(view.term),
            membership: Some(Arc::clone(&view.membership)),
            settled: view.settled,
            ..Self::new(config)
        }
    }

    #[cfg(test)]
    pub(crate) fn forget_membership(&mut self) {
        self.membership = None;
    }

    pub(crate) fn leads(&self) -> Option<Term> {
        self.leads
    }

    pub(crate) fn commit(&self) -> Index {
        self.commit
    }

    /// The disk content that the cluster may rely on.
    pub(crate) fn disk(&self) -> &DiskRecord {
        self.lost_disk.as_ref().unwrap_or(&self.disk)
    }

    /// A member starts with what its disk holds, which is at least what was saved (D1, D2).
    pub(crate) fn started(&mut self, config: &Config, boot: &Boot) -> Checked {
        let id = config.id;
        let log = LogRecord::of_boot(boot);
        if self.lost_disk.is_none() {
            let (saved, loaded) = (self.disk.hard_state, boot.hard_state);
            let kept = saved.term < loaded.term
                || saved.term == loaded.term && (saved.vote.is_none() || saved.vote == loaded.vote);
            ensure(kept, "D2", || format!("{id} saved {saved:?} and starts with {loaded:?}"))?;
            // A later save, not known to be durable, may have replaced it.
            let newest = self.disk.log.last();
            let kept = log.covers(newest) || !self.requested.covers(newest);
            ensure(kept, "D1", || format!("{id} saved {newest} and starts without it"))?;
        }
        // An empty disk under an old id is not the member that was added.
        let joined = (config.joined_at != Config::NEVER_JOINED).then_some(config.joined_at);
        let added_again = joined.is_some_and(|index| index > self.joined_at);
        *self = Self {
            joined_at: joined.unwrap_or(self.joined_at),
            requested: log.clone(),
            disk: DiskRecord { log, hard_state: boot.hard_state, snapshot: boot.snapshot.id.index },
            lost_disk: self.lost_disk.take().filter(|_| !added_again),
            term: boot.hard_state.term,
            commit: boot.hard_state.commit.max(boot.snapshot.id.index),
            commit_requested: boot.hard_state.commit.max(boot.snapshot.id.index),
            commit_at_start: boot.hard_state.commit.max(boot.snapshot.id.index),
            applying: boot.applied,
            applied: boot.applied,
            ..Self::new(config)
        };
        Ok(())
    }

    /// The disk is lost, or was replaced by an empty one, or by an older state of itself.
    pub(crate) fn disk_lost(&mut self) {
        self.unsynced.clear();
        self.lost_disk = Some(std::mem::take(&mut self.disk));
    }

    /// The member asks its disk to save something (I3, I6, I7).
    pub(crate) fn save_requested(&mut self, raft: &Raft, save: &Save) -> Checked {
        if let Some(hard_state) = save.hard_state {
            self.commit_requested = self.commit_requested.max(hard_state.commit);
        }
        if let Some(meta) = &save.install {
            self.commit_requested = self.commit_requested.max(meta.id.index);
            self.requested.install(meta);
            self.unwritten_snapshot = Some(meta.id.index);
        }
        let Some(first) = save.entries.first() else { return Ok(()) };
        let grows = self.leads != Some(raft.term()) || first.id.index > self.requested.last().index;
        ensure(grows, "I3", || format!("{} is leader and overwrites its own {first:?}", self.id))?;
        self.requested.write(&save.entries);
        for entry in save.entries.chunks().flatten() {
            if let Some(change) = entry.change() {
                let before = raft.membership_at(entry.id.index - 1);
                let next = &change.membership;
                ensure(quorums_meet(&before, next), "I6", || {
                    let (id, entry) = (self.id, entry.id);
                    format!("{id}'s log changes from {before} to {next} at {entry}")
                })?;
                self.one_change_is_pending(raft)?;
            }
        }
        Ok(())
    }

    /// The disk has written a save. If it is synced, so is everything written before it.
    pub(crate) fn saved(&mut self, save: &Save, synced: bool) -> Checked {
        let written = save.install.as_ref().map(|meta| meta.id.index);
        self.unwritten_snapshot = self.unwritten_snapshot.filter(|index| Some(*index) > written);
        if synced {
            for save in std::mem::take(&mut self.unsynced) {
                self.write(save.hard_state, save.install.as_ref(), &save.entries)?;
            }
            return self.write(save.hard_state, save.install.as_ref(), &save.entries);
        }
        self.unsynced.push(UnsyncedSave {
            hard_state: save.hard_state,
            install: save.install.clone(),
            entries: save.entries.clone(),
        });
        Ok(())
    }

    /// A save is durable (I9; one vote per term: I1).
    fn write(
        &mut self,
        hard_state: Option<HardState>,
        install: Option<&SnapshotMeta>,
        entries: &Entries,
    ) -> Checked {
        let disk = &mut self.disk;
        if let Some(meta) = install {
            disk.log.install(meta);
            disk.snapshot = meta.id.index;
        }
        disk.log.write(entries);
        let Some(new) = hard_state else { return Ok(()) };
        let old = std::mem::replace(&mut disk.hard_state, new);
        ensure(old.term <= new.term, "I9", || {
            let id = self.id;
            format!("{id}'s disk returns from term {} to {}", old.term, new.term)
        })?;
        let same_vote = old.term < new.term || old.vote.is_none() || old.vote == new.vote;
        ensure(same_vote, "I1", || {
            let (id, term) = (self.id, old.term);
            format!("in term {term} {id} votes for {:?}, then for {:?}", old.vote, new.vote)
        })?;
        ensure(new.commit <= disk.log.last().index, "I9", || {
            let (id, last) = (self.id, disk.log.last());
            format!("{id}'s disk has commit {} and last entry {last}", new.commit)
        })
    }

    /// A message leaves the member (I12): a granted vote, an acknowledged entry and the
    /// vote of a candidate are on its disk.
    pub(crate) fn sent(&self, envelope: &Envelope) -> Checked {
        self.commit_is_told(envelope)?;
        let HardState { term, vote, commit } = self.disk.hard_state;
        let (newer, same) = (term > envelope.term, term == envelope.term);
        let log = &self.disk.log;
        let kept = match &envelope.message {
            Message::VoteReply(reply) if reply.granted => {
                newer || same && vote == Some(envelope.to)
            }
            // After a crash it could otherwise campaign again in the same term with a
            // shorter log. A leader of that term, who may have replaced the entry since, was
            // elected without this request.
            Message::Vote(request) if self.votes_wait => {
                let replaced = request.last.term < envelope.term && log.last().term == term;
                let kept = log.covers(request.last) || replaced;
                newer || same && vote == Some(envelope.from) && kept
            }
            // A commit index may be sent before it is durable, except for that of a
            // membership: settling depends on it.
            Message::AppendReply(AppendReply::Matches { index, commit: sent }) => {
                let known = commit.max(log.base().index).max(self.disk.snapshot);
                let settles = self.activation == Activation::OnApply;
                let change = self.requested.change_at(*sent).index;
                // An entry accepted in an older term may be acknowledged although a later
                // leader has replaced it since.
                (*index <= log.last().index || newer) && (!settles || change <= known)
            }
            _ => true,
        };
        ensure(kept, "I12", || {
            let (from, to, message) = (envelope.from, envelope.to, &envelope.message);
            let (term, last) = (envelope.term, log.last());
            let disk = format!("its disk holds {last}, {:?}", self.disk.hard_state);
            format!(
                "{from} sends {to} in term {term} what its disk does not hold: {message:?}; {disk}"
            )
        })
    }

    /// I15: votes and their replies tell the newest membership that the sender knows to be
    /// committed. Only what it knew when it started is compared: a message may have waited for
    /// a save while the member learned more.
    fn commit_is_told(&self, envelope: &Envelope) -> Checked {
        let told = match &envelope.message {
            Message::PreVote(vote) | Message::Vote(vote) => vote.committed,
            Message::PreVoteReply(reply) | Message::VoteReply(reply) => reply.committed,
            _ => return Ok(()),
        };
        let known = self.requested.change_at(self.commit_at_start);
        ensure(told.index >= known.index || !self.votes_tell_commit, "I15", || {
            let (from, message) = (envelope.from, &envelope.message);
            format!("{from} sends {message:?}, but knows that {known} is committed")
        })
    }

    /// I15: a commit index that covers a membership is saved, and a membership in the log
    /// proves that the one before it is committed.
    fn commit_is_kept(&self, raft: &Raft) -> Checked {
        let commit = raft.log_status().commit;
        let change = self.requested.change_at(commit).index;
        let saved = self.commit_requested.max(self.requested.base().index);
        ensure(change <= saved, "I15", || {
            format!("{} knows that {change} is committed, but saves only {saved}", self.id)
        })?;
        let on_apply = self.activation == Activation::OnApply;
        let proven = self.requested.change_before_newest().index;
        ensure(proven <= commit || !on_apply, "I15", || {
            format!("{} knows only {commit} as committed, but its log proves {proven}", self.id)
        })
    }

    /// The member is in a new state. Its outputs were taken, and their saves were passed to
    /// [`MemberRecord::save_requested`].
    pub(crate) fn stepped(&mut self, raft: &Raft) -> Result<Claims, Violation> {
        self.indexes_are_valid(raft)?;
        role_is_allowed(raft)?;
        let (term, log) = (raft.term(), raft.log_status());
        let leads = (raft.role() == RoleKind::Leader).then_some(term);
        let led = std::mem::replace(&mut self.leads, leads);
        let elected = leads.filter(|_| led != leads);
        if elected.is_some() {
            self.one_change_is_pending(raft)?;
        }
        let mut claims = Claims { elected, ..Claims::default() };
        if log.commit > self.commit {
            claims.committed = Some(self.commit + 1..=log.commit);
            let entry = self.requested.id_at(log.commit);
            if let Some(entry) = entry.filter(|_| leads.is_some()) {
                let now = raft.membership();
                let before = self.membership.as_ref().unwrap_or(now);
                claims.raised = Some(RaisedCommit {
                    by: self.id,
                    term,
                    entry,
                    led_before: led == leads,
                    memberships: [Arc::clone(before), Arc::clone(now)],
                });
            }
        }
        let active = raft.membership();
        if self.membership.as_ref().is_none_or(|known| !Arc::ptr_eq(known, active)) {
            self.membership = Some(Arc::clone(active));
            self.membership_is_logged(raft)?;
        }
        self.commit_is_kept(raft)?;
        (self.term, self.commit, self.applied) = (term, log.commit, log.applied);
        Ok(claims)
    }

    /// I9: snapshot ≤ applied ≤ applying ≤ commit ≤ last, trimmed entries are in the
    /// snapshot, and no index decreases while the member runs.
    fn indexes_are_valid(&self, raft: &Raft) -> Checked {
        let (id, term, log) = (self.id, raft.term(), raft.log_status());
        let decreases = term < self.term || log.commit < self.commit || log.applied < self.applied;
        let in_order = log.base.index <= log.snapshot.index
            && (log.snapshot.index <= log.applied || log.installing)
            && log.applied <= log.applying
            && log.applying <= log.commit
            && log.commit <= log.last.index;
        ensure(!decreases && in_order, "I9", || {
            let (was, commit, applied) = (self.term, self.commit, self.applied);
            let before = format!("term {was}, commit {commit}, applied {applied}");
            format!("{} is in term {term} with {log:?} after {before}", id)
        })
    }

    /// I7: all changes in a leader's log except the newest are committed.
    fn one_change_is_pending(&self, raft: &Raft) -> Checked {
        let pending = self.requested.changes_after(raft.log_status().commit);
        ensure(raft.role() != RoleKind::Leader || pending.len() <= 1, "I7", || {
            format!("{} leads with changes {pending:?} pending", self.id)
        })
    }

    /// I8: the active membership is that of the newest change in the log, or of the newest
    /// change passed to the machine.
    fn membership_is_logged(&self, raft: &Raft) -> Checked {
        let log = raft.log_status();
        let limit = match self.activation {
            Activation::OnApply => log.applying,
            Activation::OnAppend => Index::MAX,
        };
        let (active, newest) = (raft.membership().since(), self.requested.change_at(limit));
        ensure(log.installing || active == newest, "I8", || {
            format!("{} uses the membership of {active}, its log has {newest}", self.id)
        })
    }

    /// The machine gets all entries, in order, and none after a snapshot that is not on the
    /// disk: its state would not contain what the snapshot does (I5).
    /// Shown by scenarios/apply_waits_for_snapshot_install.txt.
    pub(crate) fn applying(&mut self, entry: EntryId) -> Checked {
        let (id, applying) = (self.id, self.applying);
        ensure(entry.index == applying + 1, "I5", || {
            format!("{id} applies {entry} after {applying}")
        })?;
        ensure(self.unwritten_snapshot.is_none(), "I5", || {
            format!("{id} applies {entry} before the snapshot of {applying} is saved")
        })?;
        self.applying = entry.index;
        Ok(())
    }

    /// The machine will continue from a snapshot.
    pub(crate) fn installing(&mut self, index: Index) {
        self.applying = index;
    }

    pub(crate) fn settled(&mut self, entry: EntryId) {
        self.settled = entry.index;
    }

    /// The member reports how a goal ended: once per start, and only when the membership
    /// in which it ended is settled (I13).
    pub(crate) fn goal_ended(&mut self, ended: EndedGoal) -> Checked {
        let (id, settled) = (self.id, self.settled);
        ensure(ended.at.index <= settled || !self.settles, "I13", || {
            format!("{id} reports {ended:?}, but only {settled} is settled")
        })?;
        ensure(!self.ended_goals.contains(&ended.id), "R2", || {
            format!("{id} reports a goal twice: {ended:?}")
        })?;
        self.ended_goals.push(ended.id);
        Ok(())
    }
}

impl DiskRecord {
    pub(crate) fn of_view(disk: &DiskState) -> Self {
        Self {
            log: LogRecord::of_view(&disk.log, &disk.snapshot),
            hard_state: disk.hard_state,
            snapshot: disk.snapshot.id.index,
        }
    }

    /// Whether a restart from this disk would show that this entry is committed: its
    /// commit index is saved, or the log holds a later change, which proves that the change
    /// before it is committed.
    pub(crate) fn knows_committed(&self, index: Index) -> bool {
        let proven = self.log.change_before_newest().index;
        let saved = self.hard_state.commit.max(self.log.base().index).max(self.snapshot);
        index <= saved.max(proven)
    }
}
