//! Which of the memberships in the log counts now.
//!
//! This holds every membership of the log since the newest snapshot, oldest first. The
//! active one is the newest that was handed to the state machine (on apply), or the newest
//! in the log (on append).

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::Membership;
use crate::pack::pack_fields;
use crate::{Activation, Config, EntryId, Index};

/// The memberships of a log: that of its snapshot, and one for each change since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MembershipHistory {
    /// Never empty. Indexes increase.
    known: Vec<LoggedMembership>,
}

pack_fields!(MembershipHistory { known });

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LoggedMembership {
    pub(crate) id: EntryId,
    pub(crate) membership: Arc<Membership>,
}

pack_fields!(LoggedMembership { id, membership });

impl LoggedMembership {
    /// The entry of the membership. After a snapshot the membership itself records it.
    pub(crate) fn since(&self) -> EntryId {
        if self.membership.since() == EntryId::ZERO { self.id } else { self.membership.since() }
    }
}

/// The membership that counts now, with what follows from it and is asked for in every step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ActiveMembership {
    pub(crate) logged: LoggedMembership,
    /// The index of the entry of the membership, also after a snapshot.
    pub(crate) since: Index,
    /// Where the last goal ended; 0 for none.
    pub(crate) last_goal_end: Index,
    /// This member is a voter of it, and a leader has nothing to do for it: it is not joint,
    /// has no goal, and the incarnations of all voters are recorded if they are used.
    pub(crate) is_plain: bool,
}

pack_fields!(ActiveMembership { logged, since, last_goal_end, is_plain });

impl ActiveMembership {
    pub(crate) fn new(logged: &LoggedMembership, config: &Config) -> Self {
        let membership = &logged.membership;
        let named = config.incarnation == 0
            || membership.incoming().iter().all(|id| membership.incarnation(id).is_some());
        let is_plain = !membership.is_joint()
            && !membership.auto_leave()
            && membership.goal().is_none()
            && membership.is_voter(config.id)
            && named;
        Self {
            since: logged.since().index,
            last_goal_end: membership.ended_goals().last().map_or(0, |ended| ended.at.index),
            is_plain,
            logged: logged.clone(),
        }
    }
}

/// The history contains the membership, and its hash.
impl Hash for ActiveMembership {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.logged.id.hash(state);
    }
}

impl MembershipHistory {
    pub(crate) fn new(id: EntryId, membership: Arc<Membership>) -> Self {
        Self { known: vec![LoggedMembership { id, membership }] }
    }

    /// The membership as of this index.
    #[inline]
    pub(crate) fn at(&self, index: Index) -> &LoggedMembership {
        let newest = self.newest();
        if newest.id.index <= index { newest } else { self.before_newest(index) }
    }

    fn before_newest(&self, index: Index) -> &LoggedMembership {
        let newer = self.known.partition_point(|known| known.id.index <= index);
        // Memberships older than the snapshot are dropped, so the first one is the best
        // answer for anything before it.
        &self.known[newer.saturating_sub(1)]
    }

    /// The one that counts when the log is handed to the state machine up to `applying`.
    #[inline]
    pub(crate) fn active(&self, activation: Activation, applying: Index) -> &LoggedMembership {
        match activation {
            Activation::OnApply => self.at(applying),
            Activation::OnAppend => self.newest(),
        }
    }

    /// The newest membership in the log, whether it counts or not.
    #[inline]
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
    #[inline]
    pub(crate) fn any_between(&self, from: Index, to: Index) -> bool {
        from < self.newest().id.index && self.any_in(from, to)
    }

    fn any_in(&self, from: Index, to: Index) -> bool {
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
