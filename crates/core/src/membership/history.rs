//! Which of the memberships in the log counts now.
//!
//! The log holds every membership since the newest snapshot; this keeps them at
//! hand, oldest first. Which one counts is one question with two answers: the newest
//! one handed to the state machine, or the newest one in the log.

use std::sync::Arc;

use super::Membership;
use crate::{EntryId, Index};

/// The memberships of a log: that of its snapshot, and one per change since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct History {
    /// Never empty. Indexes increase.
    known: Vec<Known>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Known {
    pub(crate) id: EntryId,
    pub(crate) membership: Arc<Membership>,
}

impl Known {
    /// The entry that brought the membership. Where a snapshot stands for it, the
    /// membership remembers.
    pub(crate) fn since(&self) -> EntryId {
        if self.membership.since() == EntryId::ZERO { self.id } else { self.membership.since() }
    }
}

impl History {
    pub(crate) fn new(id: EntryId, membership: Arc<Membership>) -> Self {
        Self { known: vec![Known { id, membership }] }
    }

    /// The membership that counts for a member that has taken up the log to here.
    pub(crate) fn counts(&self, taken: Index) -> &Known {
        if self.newest().id.index <= taken {
            return self.newest();
        }
        let newer = self.known.partition_point(|known| known.id.index <= taken);
        // What is older than the log's snapshot is forgotten, so the first one is
        // the best answer for anything before it.
        &self.known[newer.saturating_sub(1)]
    }

    /// The newest membership in the log, whether it counts or not.
    pub(crate) fn newest(&self) -> &Known {
        &self.known[self.known.len() - 1]
    }

    pub(crate) fn push(&mut self, id: EntryId, membership: Arc<Membership>) {
        debug_assert!(self.newest().id.index < id.index);
        self.known.push(Known { id, membership });
    }

    /// The one before the newest, if both are known.
    pub(crate) fn last_but_one(&self) -> Option<&Known> {
        self.known.len().checked_sub(2).and_then(|at| self.known.get(at))
    }

    /// Whether a change stands in the log after `from`, up to and including `to`.
    pub(crate) fn any_between(&self, from: Index, to: Index) -> bool {
        self.known.iter().any(|known| from < known.id.index && known.id.index <= to)
    }

    /// The log lost its entries from here on.
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
