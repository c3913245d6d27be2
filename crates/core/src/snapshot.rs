//! Snapshots: sending and accepting them when the log does not reach back far enough, and
//! trimming the log after one (thesis §5).
//!
//! A snapshot's bytes never pass through here; only its last entry and membership.

use std::sync::Arc;

use crate::membership::history::MembershipHistory;
use crate::progress::Flow;
use crate::role::Role;
use crate::{Accepted, Dropped, EntryId, Index, MemberId, Message, Raft, SnapshotMeta};

/// A snapshot that was accepted and is not durable yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PendingSnapshot {
    pub(crate) meta: SnapshotMeta,
    /// A save contains it.
    pub(crate) submitted: bool,
}

impl Raft {
    /// The entry before the peer's next one is trimmed: send the newest snapshot instead.
    pub(crate) fn emit_snapshot(&mut self, slot: usize) -> bool {
        let Role::Leader(leader) = &mut self.role else { return false };
        let peer = &mut leader.peers[slot];
        // A peer that does not answer heartbeats would not accept a snapshot.
        if !peer.progress.active || self.snapshot.id.index < self.log.base().index {
            return false;
        }
        peer.progress.become_snapshot(self.snapshot.id.index);
        let message = Message::Snapshot(self.snapshot.clone());
        self.out.send.push(self.config.envelope(peer.id, self.term, message));
        true
    }

    pub(crate) fn on_snapshot(
        &mut self,
        from: MemberId,
        meta: SnapshotMeta,
    ) -> Result<Accepted, Dropped> {
        let index = meta.id.index;
        if index <= self.log.commit || !self.is_member_of(&meta) {
            self.reply_matches(from, self.log.commit);
            return Err(Dropped::SnapshotNotNeeded);
        }
        if self.log.holds(meta.id) {
            // All of it is in this log: the only news is that it is committed.
            self.commit_to(index);
            self.reply_matches(from, index);
            return Err(Dropped::SnapshotNotNeeded);
        }
        self.restore(meta);
        self.reply_matches(from, index);
        Ok(Accepted::Done)
    }

    /// A joining member may receive a snapshot from before the change that added it: its
    /// role follows from the later log. etcd refuses that.
    /// Shown by scenarios/snapshot_older_than_joining_member.txt.
    fn is_member_of(&self, meta: &SnapshotMeta) -> bool {
        !self.config.etcd_compat.snapshot_must_name_receiver
            || meta.membership.contains(self.config.id)
    }

    fn restore(&mut self, meta: SnapshotMeta) {
        self.log.restore(meta.id);
        self.saves.truncate(meta.id.index + 1);
        self.memberships = MembershipHistory::new(meta.id, Arc::clone(&meta.membership));
        self.snapshot = meta.clone();
        self.installing = Some(Box::new(PendingSnapshot { meta, submitted: false }));
        self.loading = false;
        self.out.loaded = None;
        self.pending_trim = 0;
        self.update_active_membership();
    }

    /// The transport reports whether a snapshot was delivered.
    pub(crate) fn on_snapshot_report(
        &mut self,
        id: MemberId,
        arrived: bool,
    ) -> Result<Accepted, Dropped> {
        let Some(leader) = self.role.leader_mut() else { return Err(Dropped::NotForRole) };
        let Some(peer) = leader.peer_mut(id) else {
            return Err(Dropped::UnknownSender { from: id });
        };
        if !matches!(peer.progress.flow, Flow::Snapshot(_)) {
            return Err(Dropped::NothingPending);
        }
        if arrived {
            peer.progress.snapshot_sent();
        } else {
            peer.progress.snapshot_lost();
        }
        Ok(Accepted::Done)
    }

    /// The state machine took a snapshot here.
    pub(crate) fn on_snapshotted(&mut self, index: Index) -> Result<Accepted, Dropped> {
        let newest = self.snapshot.id.index;
        if index <= newest || index > self.log.applied {
            return Err(Dropped::NotSnapshotted { newest });
        }
        let Some(term) = self.log.term(index) else {
            return Err(Dropped::NotSnapshotted { newest });
        };
        let membership = self.membership_at(index);
        self.snapshot = SnapshotMeta { id: EntryId::new(term, index), membership };
        self.memberships.trim(index);
        self.pending_trim = index.saturating_sub(self.config.trim_keep_entries);
        self.trim_if_free();
        Ok(Accepted::Done)
    }

    /// Replaces [`Config::trim_keep_entries`](crate::Config::trim_keep_entries) for the next
    /// snapshots: for a caller that keeps fewer entries while they are large.
    pub fn set_trim_keep_entries(&mut self, entries: u64) {
        self.config.trim_keep_entries = entries;
    }

    /// Trims what the newest snapshot covers, except what a live peer is still being sent:
    /// otherwise it would have to start over with a snapshot again and again.
    /// Shown by scenarios/snapshot_in_flight_pins_the_log.txt.
    pub(crate) fn trim_if_free(&mut self) {
        if self.pending_trim <= self.log.base().index {
            return;
        }
        let to = self.pending_trim.min(self.log_needed_after());
        if to > self.log.base().index {
            self.trim(to);
        }
    }

    /// The oldest index after which some peer needs the log.
    fn log_needed_after(&self) -> Index {
        let Some(leader) = self.role.leader() else { return Index::MAX };
        // A peer that has not replied for two election timeouts is not catching up.
        let silent = leader.clock.saturating_sub(2 * u64::from(self.config.election_ticks));
        let needs = leader.peers.iter().filter_map(|peer| match peer.progress.flow {
            Flow::Snapshot(index) => Some(index),
            // It is not sent anything.
            _ if peer.lost.is_some() => None,
            _ if peer.replied_at > silent || peer.id == self.config.id => {
                Some(peer.progress.matched)
            }
            _ => None,
        });
        needs.min().unwrap_or(Index::MAX)
    }

    /// The caller wants the log trimmed up to here.
    pub(crate) fn on_trim(&mut self, index: Index) -> Result<Accepted, Dropped> {
        let newest = self.snapshot.id.index;
        if index > newest || index > self.log.applied {
            return Err(Dropped::NotSnapshotted { newest });
        }
        if index <= self.log.base().index {
            return Err(Dropped::NothingToDo);
        }
        self.trim(index);
        Ok(Accepted::Done)
    }

    fn trim(&mut self, to: Index) {
        self.log.trim(to);
        self.out.rare().trim = Some(to);
    }
}
