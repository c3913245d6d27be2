//! The state of one member as the checkers see it.

use std::sync::Arc;

use quorate_core::config::Activation;
use quorate_core::status::RoleKind;
use quorate_core::{EntryId, Index, MemberId, Membership, Raft, SnapshotMeta, Term};

use crate::cluster::{DiskState, LogView};

/// One member at one moment: its state in memory, and the content of its disk. A member
/// that is down appears as a follower with the indexes from its disk, not with the state
/// that it would have after a start.
#[derive(Clone, Debug)]
pub struct MemberView {
    pub id: MemberId,
    pub up: bool,
    pub activation: Activation,
    pub role: RoleKind,
    pub term: Term,
    pub vote: Option<MemberId>,
    pub log: LogView,
    pub commit: Index,
    pub applying: Index,
    pub applied: Index,
    pub snapshot: SnapshotMeta,
    pub installing: bool,
    /// The active membership.
    pub membership: Arc<Membership>,
    /// The newest membership that it knows to be settled, as a leader.
    pub settled: Index,
    /// See [`Raft::holds_newer_log`].
    pub holds_newer_log: bool,
    /// The entry that it waits for before it campaigns, if it joined later.
    pub joined_at: Index,
    /// The state that survives a power failure.
    pub durable: Arc<DiskState>,
}

impl MemberView {
    /// A running member. Entries that it no longer keeps in memory are taken from its disk.
    pub fn of(raft: &Raft, durable: Arc<DiskState>) -> Self {
        let status = raft.status();
        let first = status.log.tail_first;
        let evicted = durable
            .log
            .entries
            .iter()
            .filter(|entry| status.log.base.index < entry.id.index && entry.id.index < first);
        let entries = evicted.chain(raft.held_entries()).cloned().collect();
        Self {
            id: status.id,
            up: true,
            activation: raft.config().activation,
            role: status.role,
            term: status.term,
            vote: status.vote,
            log: LogView { base: status.log.base, entries },
            commit: status.log.commit,
            applying: status.log.applying,
            applied: status.log.applied,
            snapshot: raft.snapshot().clone(),
            installing: status.log.installing,
            membership: status.membership,
            settled: status.settled,
            holds_newer_log: raft.holds_newer_log(),
            joined_at: raft.config().joined_at,
            durable,
        }
    }

    /// A member that is down.
    pub fn down(id: MemberId, activation: Activation, durable: Arc<DiskState>) -> Self {
        Self {
            id,
            up: false,
            activation,
            role: RoleKind::Follower,
            term: durable.hard_state.term,
            vote: durable.hard_state.vote,
            log: durable.log.clone(),
            commit: durable.hard_state.commit.max(durable.snapshot.id.index),
            applying: durable.applied,
            applied: durable.applied,
            snapshot: durable.snapshot.clone(),
            installing: false,
            membership: durable.snapshot.membership.clone(),
            settled: 0,
            holds_newer_log: false,
            joined_at: 0,
            durable,
        }
    }

    /// The memberships of its log, oldest first: that of the snapshot, and one per
    /// change since, each with its entry.
    pub fn memberships(&self) -> Vec<(EntryId, Arc<Membership>)> {
        memberships(&self.snapshot, &self.log)
    }
}

fn memberships(snapshot: &SnapshotMeta, log: &LogView) -> Vec<(EntryId, Arc<Membership>)> {
    let first = (snapshot.id, Arc::clone(&snapshot.membership));
    let newer = log.entries.iter().filter(|entry| entry.id.index > snapshot.id.index);
    let changes =
        newer.filter_map(|entry| Some((entry.id, Arc::clone(&entry.change()?.membership))));
    std::iter::once(first).chain(changes).collect()
}
