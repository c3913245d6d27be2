//! Which of the memberships in the log counts now.
//!
//! This holds every membership of the log since the newest snapshot, oldest first. The
//! active one is the newest that was handed to the state machine (on apply), or the newest
//! in the log (on append).

use std::sync::Arc;

use super::Membership;
use crate::{EntryId, Index};

/// The memberships of a log: that of its snapshot, and one for each change since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MembershipHistory {
    /// Never empty. Indexes increase.
    known: Vec<LoggedMembership>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LoggedMembership {
    pub(crate) id: EntryId,
    pub(crate) membership: Arc<Membership>,
}

impl LoggedMembership {
    /// The entry of the membership. After a snapshot the membership itself records it.
    pub(crate) fn since(&self) -> EntryId {
        if self.membership.since() == EntryId::ZERO { self.id } else { self.membership.since() }
    }
}

impl MembershipHistory {
    pub(crate) fn new(id: EntryId, membership: Arc<Membership>) -> Self {
        Self { known: vec![LoggedMembership { id, membership }] }
    }

    /// The membership as of this index.
    pub(crate) fn at(&self, index: Index) -> &LoggedMembership {
        if self.newest().id.index <= index {
            return self.newest();
        }
        let newer = self.known.partition_point(|known| known.id.index <= index);
        // Memberships older than the snapshot are dropped, so the first one is the best
        // answer for anything before it.
        &self.known[newer.saturating_sub(1)]
    }

    /// The newest membership in the log, whether it counts or not.
    pub(crate) fn newest(&self) -> &LoggedMembership {
        &self.known[self.known.len() - 1]
    }

    pub(crate) fn push(&mut self, id: EntryId, membership: Arc<Membership>) {
        debug_assert!(self.newest().id.index < id.index);
        self.known.push(LoggedMembership { id, membership });
    }

    /// The membership before the newest, if both are known.
    pub(crate) fn second_newest(&self) -> Option<&LoggedMembership> {
        self.known.len().checked_sub(2).and_then(|at| self.known.get(at))
    }

    /// Whether the log contains a change after `from`, up to and including `to`.
    pub(crate) fn any_between(&self, from: Index, to: Index) -> bool {
        self.known.iter().any(|known| from < known.id.index && known.id.index <= to)
    }

    /// The log was truncated from here on.
    pub(crate) fn truncate(&mut self, from: Index) {
        let keep = self.known.partition_point(|known| known.id.index < from);
        self.known.truncate(keep.max(1));
    }

    /// A snapshot at this index makes older memberships unnecessary.
    pub(crate) fn trim(&mut self, snapshot: Index) {
        let newer = self.known.partition_point(|known| known.id.index <= snapshot);
        self.known.drain(..newer.saturating_sub(1));
    }
}
