//! When the log does not reach back far enough: sending a snapshot, accepting one,
//! and trimming the log behind one's own (thesis §5).
//!
//! Bytes of snapshots never pass through here; only what they say about the log.

use std::sync::Arc;

use crate::membership::history::History;
use crate::progress::Flow;
use crate::role::Role;
use crate::{Accepted, Dropped, EntryId, Index, MemberId, Message, Raft, SnapshotMeta};

/// A snapshot that was accepted but is not durable yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Installing {
    pub(crate) meta: SnapshotMeta,
    /// A save holds it.
    pub(crate) handed: bool,
}

impl Raft {
    /// The log before a peer's next entry is gone: our newest snapshot instead.
    pub(crate) fn emit_snapshot(&mut self, slot: usize) -> bool {
        let Role::Leader(leader) = &mut self.role else { return false };
        let peer = &mut leader.peers[slot];
        // Who does not even answer heartbeats would not take a snapshot.
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
            // We have all of it: that it is committed is the only news.
            self.commit_to(index);
            self.reply_matches(from, index);
            return Err(Dropped::SnapshotNotNeeded);
        }
        self.restore(meta);
        self.reply_matches(from, index);
        Ok(Accepted::Done)
    }

    /// A newcomer may be sent a snapshot from before the change that added it: its
    /// role follows from the log after it. etcd refuses that.
    /// Shown by scenarios/snapshot_older_than_joining_member.txt.
    fn is_member_of(&self, meta: &SnapshotMeta) -> bool {
        !self.config.etcd_compat.snapshot_must_name_receiver
            || meta.membership.contains(self.config.id)
    }

    fn restore(&mut self, meta: SnapshotMeta) {
        self.log.restore(meta.id);
        self.saves.truncate(meta.id.index + 1);
        self.memberships = History::new(meta.id, Arc::clone(&meta.membership));
        self.snapshot = meta.clone();
        self.installing = Some(Installing { meta, handed: false });
        self.loading = false;
        self.out.loaded = crate::Entries::new();
        self.trim_wanted = 0;
        self.follow_membership();
    }

    /// The transport is done with a snapshot, well or badly.
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

    /// The state machine was captured here.
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
        self.trim_wanted = index.saturating_sub(self.config.trim_keep_entries);
        self.trim_if_free();
        Ok(Accepted::Done)
    }

    /// Trims what the newest snapshot makes unnecessary, except what a peer that
    /// answers is still being sent: trimming it away would start it over with a
    /// snapshot again and again.
    /// Shown by scenarios/snapshot_in_flight_pins_the_log.txt.
    pub(crate) fn trim_if_free(&mut self) {
        if self.trim_wanted <= self.log.base().index {
            return;
        }
        let to = self.trim_wanted.min(self.log_needed_after());
        if to > self.log.base().index {
            self.trim(to);
        }
    }

    /// The oldest index after which some peer needs the log.
    fn log_needed_after(&self) -> Index {
        let Some(leader) = self.role.leader() else { return Index::MAX };
        // Who has not answered for two election timeouts is not catching up.
        let silent = leader.clock.saturating_sub(2 * u64::from(self.config.election_ticks));
        let needs = leader.peers.iter().filter_map(|peer| match peer.progress.flow {
            Flow::Snapshot(index) => Some(index),
            _ if peer.answered_at > silent || peer.id == self.config.id => {
                Some(peer.progress.matched)
            }
            _ => None,
        });
        needs.min().unwrap_or(Index::MAX)
    }

    /// Somebody who knows better wants the log gone up to here.
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
        self.out.trim = Some(to);
    }
}
