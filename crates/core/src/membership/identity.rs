//! The identity of a member: its id, the incarnation of its disk, and the entry that added
//! it.
//!
//! A voter whose disk was wiped, replaced or restored from a backup has lost its promises.
//! Under its old id it would vote and acknowledge as if it had not. So a membership records
//! the incarnation of each voter that was seen, and for each member the entry that added
//! it. An id is never used twice: recently removed ids are remembered, and a former member
//! does not know the entry that added the new one.

use bytes::Bytes;

use super::{Change, ChangeRefusal, MemberInfo, Membership, quorum_size};
use crate::{EntryId, Identity, Index, MemberId};

/// How many removed ids a membership remembers. An older one may be added again, but only a
/// member that knows the entry that added it is accepted.
const REMOVED_MAX: usize = 64;

impl Membership {
    /// The recorded incarnation of this member's disk, if any.
    #[inline]
    pub fn incarnation(&self, id: MemberId) -> Option<u64> {
        if self.incarnations.is_empty() {
            return None;
        }
        let at = self.incarnations.binary_search_by_key(&id, |(named, _)| *named).ok()?;
        self.incarnations.get(at).map(|(_, incarnation)| *incarnation)
    }

    /// Records the incarnation of a member's disk, unless one is recorded already.
    pub fn with_incarnation(mut self, id: MemberId, incarnation: u64) -> Self {
        if let Err(at) = self.incarnations.binary_search_by_key(&id, |(named, _)| *named) {
            self.incarnations.insert(at, (id, incarnation));
        }
        self
    }

    /// The index of the entry that added this member; 0 for the first members.
    #[inline]
    pub fn joined_at(&self, id: MemberId) -> Index {
        if self.joined.is_empty() {
            return 0;
        }
        let at = self.joined.binary_search_by_key(&id, |(named, _)| *named).ok();
        at.and_then(|at| self.joined.get(at)).map_or(0, |(_, index)| *index)
    }

    /// Records which entry added a member.
    pub fn with_joined(mut self, id: MemberId, index: Index) -> Self {
        match self.joined.binary_search_by_key(&id, |(named, _)| *named) {
            Ok(at) => self.joined[at].1 = index,
            Err(at) => self.joined.insert(at, (id, index)),
        }
        self
    }

    /// The recorded identity of this id.
    pub fn identity(&self, id: MemberId) -> Identity {
        Identity { incarnation: self.incarnation(id), joined_at: self.joined_at(id) }
    }

    /// The recorded info of a member.
    pub fn info(&self, id: MemberId) -> Option<&MemberInfo> {
        let at = self.infos.binary_search_by_key(&id, |(named, _)| *named).ok()?;
        self.infos.get(at).map(|(_, info)| info)
    }

    /// Records the info of a member.
    pub fn with_info(mut self, id: MemberId, info: MemberInfo) -> Self {
        match self.infos.binary_search_by_key(&id, |(named, _)| *named) {
            Ok(at) => self.infos[at].1 = info,
            Err(at) => self.infos.insert(at, (id, info)),
        }
        self
    }

    /// A zone whose loss would leave some majority without a quorum; only when the zones of
    /// all voters are known.
    pub fn blocking_zone(&self) -> Option<&Bytes> {
        self.blocking_zone_among(|_| true)
    }

    /// A zone whose loss would leave some majority without a quorum when only these members
    /// are live.
    pub(crate) fn blocking_zone_among(&self, live: impl Fn(MemberId) -> bool) -> Option<&Bytes> {
        let zone = |id| self.info(id).map(|info| &info.zone).filter(|zone| !zone.is_empty());
        self.majorities().iter().find_map(|majority| {
            let zones: Option<Vec<&Bytes>> = majority.iter().map(zone).collect();
            let zones = zones?;
            let blocks = |zone: &Bytes| {
                let elsewhere = majority.iter().zip(&zones).filter(|(_, other)| **other != zone);
                let left = elsewhere.filter(|(id, _)| live(*id)).count();
                left < quorum_size(majority.len())
            };
            zones.iter().copied().find(|zone| blocks(zone))
        })
    }

    /// The ids that were removed recently, the latest last.
    pub fn removed(&self) -> &[MemberId] {
        &self.removed
    }

    /// A joining member must not have an id that was removed recently.
    pub(crate) fn check_joining_ids(&self, next: &Self) -> Result<(), ChangeRefusal> {
        let goal = next.goal().into_iter();
        let goal = goal.flat_map(|goal| goal.voters.iter().chain(goal.learners.iter()));
        let members = next.members();
        let mut coming = members.iter().chain(goal).filter(|id| !self.contains(*id));
        match coming.find(|id| self.removed.contains(id)) {
            Some(id) => Err(ChangeRefusal::IdUsedBefore { id }),
            None => Ok(()),
        }
    }

    /// This membership as it is logged at `since`, following `before` by this change: it
    /// records removed ids, the entry of new members, the incarnations of voters that were
    /// seen, and goals.
    pub fn logged(
        self,
        before: &Self,
        change: &Change,
        since: EntryId,
        seen: impl Fn(MemberId) -> Option<u64>,
    ) -> Self {
        self.after(before, since, seen).with_goal_history(before, since, &change.kind)
    }

    fn after(
        mut self,
        before: &Self,
        since: EntryId,
        seen: impl Fn(MemberId) -> Option<u64>,
    ) -> Self {
        self.since = since;
        let members = self.members();
        let was = before.members();
        let gone = was.iter().filter(|id| !members.contains(*id));
        self.removed.extend(gone);
        let excess = self.removed.len().saturating_sub(REMOVED_MAX);
        self.removed.drain(..excess);
        self.incarnations.retain(|(id, _)| members.contains(*id));
        let infos = std::mem::take(&mut self.infos).into_iter();
        self.infos =
            infos.filter(|(id, _)| members.contains(*id) || self.goal_includes(*id)).collect();
        self.joined.retain(|(id, _)| members.contains(*id));
        for id in members.iter().filter(|id| !was.contains(*id)) {
            self = self.with_joined(id, since.index);
        }
        let voters = self.voters();
        for id in voters.iter() {
            if let Some(incarnation) = seen(id) {
                self = self.with_incarnation(id, incarnation);
            }
        }
        self
    }
}
