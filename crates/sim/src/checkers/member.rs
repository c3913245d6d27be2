//! What is known of one member, and the invariants that one member can break alone: I1,
//! one vote per term; I3, a leader's log only grows; I6, neighbouring memberships
//! overlap; I7, one change pending; I8, the membership that counts is in the log; I9,
//! marks are in order and never fall; I11, which members may campaign and lead; I12, no
//! promise before its save; D1 and D2, a disk keeps what it has saved.

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
use super::{Checked, MemberView, Violation, ensure, quorums_meet};
use crate::cluster::DiskState;

/// One member, kept up to date as things happen to it.
#[derive(Clone, Debug)]
pub(crate) struct MemberRecord {
    id: MemberId,
    activation: Activation,
    /// A candidate asks for votes only when its disk holds its candidacy. With etcd's
    /// behaviour it does not wait.
    votes_wait: bool,
    /// A change is reported as done when it is settled.
    settles: bool,
    /// The entry that added it, if it joined later.
    joined_at: Index,
    /// Its log as it asked for it to be saved.
    pub(crate) requested: LogRecord,
    disk: DiskRecord,
    /// Saves that are written, but that a crash may still undo.
    unsynced: Vec<UnsyncedSave>,
    /// What a disk held that is lost. Its promises counted as long as it was there, and an
    /// empty one under the same id makes no promise until the member is added again.
    lost_disk: Option<DiskRecord>,
    term: Term,
    commit: Index,
    /// Given to the machine up to here.
    applying: Index,
    applied: Index,
    /// The term it leads.
    leads: Option<Term>,
    membership: Option<Arc<Membership>>,
    /// Reported as settled up to here, since it was started.
    settled: Index,
    /// Goals that it reported as ended since then.
    ended_goals: Vec<EntryId>,
}

/// What a disk holds.
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

/// What a member claims by its new state, to be checked against the rest of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// It leads this term since the last look.
    pub(crate) elected: Option<Term>,
    /// It takes these for committed.
    pub(crate) committed: Option<RangeInclusive<Index>>,
    pub(crate) raised: Option<RaisedCommit>,
}

/// A leader's commit index has moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RaisedCommit {
    pub(crate) by: MemberId,
    pub(crate) term: Term,
    pub(crate) entry: EntryId,
    /// It led the same term before: what it learned as a candidate does not count.
    pub(crate) led_before: bool,
    /// What counted before, and what counts after: it may have counted by either.
    pub(crate) memberships: [Arc<Membership>; 2],
}

impl MemberRecord {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            id: config.id,
            activation: config.activation,
            votes_wait: !config.etcd_compat.every_reply_waits,
            settles: config.liveness.settle,
            joined_at: config.joined_at,
            requested: LogRecord::default(),
            disk: DiskRecord::default(),
            unsynced: Vec::new(),
            lost_disk: None,
            term: 0,
            commit: 0,
            applying: 0,
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
            applying: view.applying,
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

    /// What can be said to be on this member's disk.
    pub(crate) fn disk(&self) -> &DiskRecord {
        self.lost_disk.as_ref().unwrap_or(&self.disk)
    }

    /// A member starts with what its disk holds, which is at least what was saved (D1, D2).
    pub(crate) fn started(&mut self, config: &Config, boot: &Boot) -> Checked {
        let id = config.id;
        let log = LogRecord::of_boot(boot);
        if self.lost_disk.is_none() {
            let (saved, found) = (self.disk.hard_state, boot.hard_state);
            let kept = saved.term < found.term
                || saved.term == found.term && (saved.vote.is_none() || saved.vote == found.vote);
            ensure(kept, "D2", || format!("{id} saved {saved:?} and starts with {found:?}"))?;
            // A later request may have replaced it without being known to be durable.
            let newest = self.disk.log.last();
            let kept = log.covers(newest) || !self.requested.covers(newest);
            ensure(kept, "D1", || format!("{id} saved {newest} and starts without it"))?;
        }
        *self = Self {
            requested: log.clone(),
            disk: DiskRecord { log, hard_state: boot.hard_state, snapshot: boot.snapshot.id.index },
            lost_disk: self.lost_disk.take().filter(|_| config.joined_at <= self.joined_at),
            term: boot.hard_state.term,
            commit: boot.hard_state.commit.max(boot.snapshot.id.index),
            applying: boot.applied,
            applied: boot.applied,
            ..Self::new(config)
        };
        Ok(())
    }

    /// The disk is lost, or was replaced by an empty one.
    pub(crate) fn disk_lost(&mut self) {
        self.unsynced.clear();
        self.lost_disk = Some(std::mem::take(&mut self.disk));
    }

    /// The member asks its disk to save something (I3, I6, I7).
    pub(crate) fn save_requested(&mut self, raft: &Raft, save: &Save) -> Checked {
        if let Some(meta) = &save.install {
            self.requested.install(meta);
        }
        let Some(first) = save.entries.first() else { return Ok(()) };
        let grows = self.leads != Some(raft.term()) || first.id.index > self.requested.last().index;
        ensure(grows, "I3", || format!("{} leads and replaces its own {first:?}", self.id))?;
        self.requested.write(&save.entries);
        for entry in save.entries.chunks().flatten() {
            if let Some(change) = entry.change() {
                let before = raft.membership_at(entry.id.index - 1);
                let next = &change.membership;
                ensure(quorums_meet(&before, next), "I6", || {
                    let (id, entry) = (self.id, entry.id);
                    format!("{id}'s log goes from {before} to {next} at {entry}")
                })?;
                self.one_change_is_pending(raft)?;
            }
        }
        Ok(())
    }

    /// The disk has written a save. If it is synced, so is everything written before it.
    pub(crate) fn saved(&mut self, save: &Save, synced: bool) -> Checked {
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
            format!("{id}'s disk goes back from term {} to {}", old.term, new.term)
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

    /// A message leaves the member (I12): a vote that is granted, an entry that is
    /// acknowledged and a candidacy are on its disk.
    pub(crate) fn sent(&self, envelope: &Envelope) -> Checked {
        let HardState { term, vote, commit } = self.disk.hard_state;
        let (newer, same) = (term > envelope.term, term == envelope.term);
        let log = &self.disk.log;
        let kept = match &envelope.message {
            Message::VoteReply(reply) if reply.granted => {
                newer || same && vote == Some(envelope.to)
            }
            // After a crash it could ask again in the same term with less.
            Message::Vote(asked) if self.votes_wait => {
                newer || same && vote == Some(envelope.from) && log.covers(asked.last)
            }
            // A commit index may be told before it is durable, but not that of a
            // membership: what is settled rests on it.
            Message::AppendReply(AppendReply::Matches { index, commit: told }) => {
                let known = commit.max(log.base().index).max(self.disk.snapshot);
                let settles = self.activation == Activation::OnApply;
                let change = self.requested.change_at(*told).index;
                // What was accepted in an older term was accepted before this one: it may
                // be told although a later leader has replaced it since.
                (*index <= log.last().index || newer) && (!settles || change <= known)
            }
            _ => true,
        };
        ensure(kept, "I12", || {
            let (from, to, message) = (envelope.from, envelope.to, &envelope.message);
            let (said, last) = (envelope.term, log.last());
            let disk = format!("its disk holds {last}, {:?}", self.disk.hard_state);
            format!(
                "{from} tells {to} in term {said} what its disk does not hold: {message:?}; {disk}"
            )
        })
    }

    /// The member is in a new state. Its outputs were taken, and what they ask to be saved
    /// was shown to [`MemberRecord::save_requested`].
    pub(crate) fn stepped(&mut self, raft: &Raft) -> Result<Claims, Violation> {
        self.marks_are_right(raft)?;
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
        let counts = raft.membership();
        if self.membership.as_ref().is_none_or(|known| !Arc::ptr_eq(known, counts)) {
            self.membership = Some(Arc::clone(counts));
            self.membership_is_logged(raft)?;
        }
        (self.term, self.commit, self.applied) = (term, log.commit, log.applied);
        Ok(claims)
    }

    /// I9: snapshot ≤ applied ≤ applying ≤ commit ≤ last, what is trimmed is in the
    /// snapshot, and no mark falls while the member runs.
    fn marks_are_right(&self, raft: &Raft) -> Checked {
        let (id, term, log) = (self.id, raft.term(), raft.log_status());
        let falls = term < self.term || log.commit < self.commit || log.applied < self.applied;
        let in_order = log.base.index <= log.snapshot.index
            && (log.snapshot.index <= log.applied || log.installing)
            && log.applied <= log.applying
            && log.applying <= log.commit
            && log.commit <= log.last.index;
        ensure(!falls && in_order, "I9", || {
            let (was, commit, applied) = (self.term, self.commit, self.applied);
            let before = format!("term {was}, commit {commit}, applied {applied}");
            format!("{} is in term {term} with {log:?} after {before}", id)
        })
    }

    /// I7: of the changes in a leader's log, all but the newest are committed.
    fn one_change_is_pending(&self, raft: &Raft) -> Checked {
        let pending = self.requested.changes_after(raft.log_status().commit);
        ensure(raft.role() != RoleKind::Leader || pending.len() <= 1, "I7", || {
            format!("{} leads with changes {pending:?} pending", self.id)
        })
    }

    /// I8: the membership that counts is that of the newest change in the log, or the
    /// newest one given to the machine.
    fn membership_is_logged(&self, raft: &Raft) -> Checked {
        let log = raft.log_status();
        let limit = match self.activation {
            Activation::OnApply => log.applying,
            Activation::OnAppend => Index::MAX,
        };
        let (counts, newest) = (raft.membership().since(), self.requested.change_at(limit));
        ensure(log.installing || counts == newest, "I8", || {
            format!("{} counts by {counts}, its log says {newest}", self.id)
        })
    }

    /// The machine is given entries: all of them, in order (I5).
    pub(crate) fn applying(&mut self, entry: EntryId) -> Checked {
        ensure(entry.index == self.applying + 1, "I5", || {
            format!("{} applies {entry} after {}", self.id, self.applying)
        })?;
        self.applying = entry.index;
        Ok(())
    }

    /// The machine is to continue from a snapshot.
    pub(crate) fn installing(&mut self, index: Index) {
        self.applying = index;
    }

    pub(crate) fn settled(&mut self, entry: EntryId) {
        self.settled = entry.index;
    }

    /// The member reports how a goal ended: once in each of its runs, and when the
    /// membership in which it ended is settled (I13).
    pub(crate) fn goal_ended(&mut self, ended: EndedGoal) -> Checked {
        let (id, settled) = (self.id, self.settled);
        ensure(ended.at.index <= settled || !self.settles, "I13", || {
            format!("{id} reports {ended:?}, settled is {settled}")
        })?;
        ensure(!self.ended_goals.contains(&ended.id), "R2", || {
            format!("{id} reports twice: {ended:?}")
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

    /// Would know after a restart that this entry is committed: the commit index was
    /// saved, or a later membership is in the log, which proves the one before it.
    pub(crate) fn knows_committed(&self, index: Index) -> bool {
        let proven = self.log.change_before_newest().index;
        let saved = self.hard_state.commit.max(self.log.base().index).max(self.snapshot);
        index <= saved.max(proven)
    }
}

/// I11: a voter of the membership it counts by may campaign and lead. Two exceptions:
/// where a membership counts before it is committed, a member that refused a vote because
/// it alone has a newer log may campaign and win; and a leader that lost its vote leads
/// until that is settled, or longer where it is configured not to step down. A member that joined later holds the entry that added it.
fn role_is_allowed(raft: &Raft) -> Checked {
    let (id, role) = (raft.config().id, raft.role());
    if role == RoleKind::Follower {
        return Ok(());
    }
    let (log, membership) = (raft.log_status(), raft.membership());
    let on_append = raft.config().activation == Activation::OnAppend;
    let leads = role == RoleKind::Leader;
    let allowed = membership.is_voter(id)
        || may_without_vote(leads, on_append, || {
            let settled = raft.config().step_down_on_removal
                && raft.status().settled >= membership.since().index;
            (raft.holds_newer_log(), settled)
        });
    let reached = if on_append { log.last.index } else { log.commit };
    ensure(allowed && (leads || reached >= raft.config().joined_at), "I11", || {
        let does = if leads { "leads" } else { "campaigns" };
        format!("{} {does} under {membership} with {log:?}", id)
    })
}

/// The exceptions of I11. `facts`: whether it holds a newer log than a member that asked
/// for its vote, and whether the membership without it is settled.
fn may_without_vote(leads: bool, on_append: bool, facts: impl FnOnce() -> (bool, bool)) -> bool {
    match (leads, on_append) {
        (true, true) => true,
        (true, false) => !facts().1,
        (false, true) => facts().0,
        (false, false) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i11_members_without_a_vote() {
        let may = |leads, on_append, newer_log, settled| {
            may_without_vote(leads, on_append, || (newer_log, settled))
        };
        assert!(!may(false, false, true, false));
        assert!(!may(false, true, false, false) && may(false, true, true, false));
        assert!(may(true, false, false, false) && !may(true, false, false, true));
    }
}
