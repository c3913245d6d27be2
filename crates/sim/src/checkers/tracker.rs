//! All invariants of a cluster, checked event by event.
//!
//! The records are updated incrementally, so that the cost of a check depends on the event
//! and not on the size of the cluster. The rules themselves are in
//! [`MemberRecord`], [`ClusterHistory`] and [`EntryRegister`], which the model checker uses on
//! whole states.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use quorate_core::membership::EndedGoal;
use quorate_core::{
    Boot, Entries, EntryId, Envelope, Event, Index, MemberId, Membership, Output, Raft, Save,
};

use super::entries::EntryRegister;
use super::history::{commit_is_on_quorum, settled_is_known};
use super::member::{DiskRecord, MemberRecord};
use super::{Checked, ClusterHistory, MemberChecks, ensure};

/// The records of all members and of the cluster so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Invariants {
    history: ClusterHistory,
    entries: EntryRegister,
    /// The hashes of captured machine states, by index.
    states: HashMap<Index, u64>,
    members: BTreeMap<MemberId, MemberRecord>,
}

impl Invariants {
    /// The newest committed membership passed to a machine.
    pub(crate) fn membership(&self) -> Option<&(EntryId, Arc<Membership>)> {
        self.memberships().next()
    }

    /// The committed memberships, the newest first.
    pub(crate) fn memberships(&self) -> impl Iterator<Item = &(EntryId, Arc<Membership>)> {
        self.history.memberships().rev()
    }

    pub(crate) fn elections(&self) -> u64 {
        self.history.elections()
    }

    pub(crate) fn commit(&self) -> Index {
        self.history.commit()
    }

    fn disk(&self, id: MemberId) -> Option<&DiskRecord> {
        self.members.get(&id).map(MemberRecord::disk)
    }

    /// A member was started from its disk.
    pub(crate) fn started(&mut self, raft: &Raft, boot: &Boot) -> Checked {
        let config = raft.config();
        let member = self.members.entry(config.id).or_insert_with(|| MemberRecord::new(config));
        member.started(config, boot)?;
        let mut before = boot.tail.first().map(|first| member.requested.id_at(first.id.index - 1));
        for entry in boot.tail.iter() {
            let term = before.flatten().map_or(0, |id| id.term);
            self.entries.log(config.id, entry, term)?;
            before = Some(Some(entry.id));
        }
        self.history.note_snapshot(config.id, &boot.snapshot)?;
        let member = &self.members[&config.id];
        for index in member.requested.base().index.max(1)..=member.commit() {
            let Some(entry) = member.requested.id_at(index) else { continue };
            let payload = self.entries.payload(entry);
            self.history.committed(config.id, boot.hard_state.term, entry, payload)?;
        }
        Ok(())
    }

    /// A disk is lost, or was replaced by an empty one, or by an older state of itself.
    pub(crate) fn disk_lost(&mut self, id: MemberId) {
        if let Some(member) = self.members.get_mut(&id) {
            member.disk_lost();
        }
    }

    /// The member's disk was set up by hand: its old record is no longer valid.
    pub(crate) fn forget_member(&mut self, id: MemberId) {
        self.members.remove(&id);
    }

    /// A member asks its disk to save something.
    pub(crate) fn save_requested(&mut self, raft: &Raft, save: &Save) -> Checked {
        let id = raft.config().id;
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        let first = save.entries.first().map_or(0, |first| first.id.index);
        member.save_requested(raft, save)?;
        if first == 0 {
            return Ok(());
        }
        let before = member.requested.id_at(first - 1);
        ensure(before.is_some(), "I2", || format!("{} saves {first} after a gap", id))?;
        let mut before = before.map_or(0, |before| before.term);
        for entry in save.entries.chunks().flatten() {
            self.entries.log(id, entry, before)?;
            before = entry.id.term;
        }
        Ok(())
    }

    /// A disk has written a save.
    pub(crate) fn saved(&mut self, id: MemberId, save: &Save, synced: bool) -> Checked {
        self.members.get_mut(&id).map_or(Ok(()), |member| member.saved(save, synced))
    }

    /// A message leaves a member.
    pub(crate) fn sent(&self, envelope: &Envelope) -> Checked {
        self.members.get(&envelope.from).map_or(Ok(()), |member| member.sent(envelope))
    }

    /// A member processed an input, and all its outputs were passed to this checker.
    pub(crate) fn stepped(&mut self, raft: &Raft) -> Checked {
        let id = raft.config().id;
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        let claims = member.stepped(raft)?;
        if let Some(term) = claims.elected {
            self.history.elected(id, term)?;
            self.leader_is_complete(id)?;
        }
        if let Some(raised) = &claims.raised {
            self.history.commit_is_of_own_term(raised)?;
            commit_is_on_quorum(raised, |id| self.disk(id))?;
        }
        let mut is_new = false;
        for index in claims.committed.into_iter().flatten() {
            let Some(entry) = self.members[&id].requested.id_at(index) else { continue };
            let payload = self.entries.payload(entry);
            is_new |= self.history.committed(id, raft.term(), entry, payload)?;
        }
        if is_new {
            self.members.keys().try_for_each(|id| self.leader_is_complete(*id))?;
        }
        Ok(())
    }

    fn leader_is_complete(&self, id: MemberId) -> Checked {
        let Some(member) = self.members.get(&id) else { return Ok(()) };
        let Some(term) = member.leads() else { return Ok(()) };
        let log = &member.requested;
        self.history.leader_is_complete(id, term, |entry| log.covers(entry))
    }

    /// A machine gets entries to apply.
    pub(crate) fn applying(&mut self, id: MemberId, entries: &Entries) -> Checked {
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        for entry in entries.chunks().flatten() {
            self.history.applied(id, entry.id)?;
            member.applying(entry.id)?;
            if let Some(change) = entry.change() {
                self.history.note_membership(entry.id, &change.membership);
            }
        }
        Ok(())
    }

    /// A machine will continue from a snapshot.
    pub(crate) fn installing(&mut self, id: MemberId, index: Index) {
        if let Some(member) = self.members.get_mut(&id) {
            member.installing(index);
        }
    }

    /// A member reports something.
    pub(crate) fn event(&mut self, id: MemberId, event: &Event) -> Checked {
        match event {
            Event::Settled { id: entry, membership, .. } => self.settled(id, *entry, membership),
            Event::GoalEnded(ended) => self.goal_ended(id, *ended),
            _ => Ok(()),
        }
    }

    fn settled(&mut self, id: MemberId, entry: EntryId, membership: &Membership) -> Checked {
        if let Some(member) = self.members.get_mut(&id) {
            member.settled(entry);
        }
        settled_is_known(id, entry, membership, |id| self.disk(id))
    }

    fn goal_ended(&mut self, id: MemberId, ended: EndedGoal) -> Checked {
        self.members.get_mut(&id).map_or(Ok(()), |member| member.goal_ended(ended))
    }

    /// A machine's state was captured: machines that applied the same entries have the same
    /// state (I5).
    pub(crate) fn captured(&mut self, id: MemberId, index: Index, hash: u64) -> Checked {
        let first = *self.states.entry(index).or_insert(hash);
        ensure(first == hash, "I5", || {
            format!("the machine of {} is in a different state at {index}", id)
        })
    }
}

impl MemberChecks for Invariants {
    fn started(&mut self, raft: &Raft, boot: &Boot) -> Checked {
        Self::started(self, raft, boot)
    }

    fn output(&mut self, raft: &Raft, output: &Output) -> Checked {
        let id = raft.config().id;
        if let Some(save) = &output.save {
            self.save_requested(raft, save)?;
        }
        self.stepped(raft)?;
        if let Some(meta) = output.save.as_ref().and_then(|save| save.install.as_ref()) {
            self.installing(id, meta.id.index);
        }
        self.applying(id, &output.apply)?;
        output.events.iter().try_for_each(|event| self.event(id, event))?;
        output.send.iter().try_for_each(|envelope| self.sent(envelope))
    }

    fn saved(&mut self, id: MemberId, save: &Save) -> Checked {
        Self::saved(self, id, save, save.must_sync)
    }

    fn sent(&mut self, envelope: &Envelope) -> Checked {
        Self::sent(self, envelope)
    }

    fn stepped(&mut self, raft: &Raft) -> Checked {
        Self::stepped(self, raft)
    }
}
