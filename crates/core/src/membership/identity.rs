//! Who a member is: not only by its id, but by the disk behind it.
//!
//! A voter whose disk was wiped, swapped or restored from a backup has forgotten
//! promises. Under its old id it would vote, and acknowledge, as if it had not. So a
//! membership names the incarnation of each voter, as far as it was seen, and of each
//! member the entry that added it. An id is never used twice: those removed of late are
//! remembered, and a member from before has not seen the entry that a newcomer must show.

use bytes::Bytes;

use super::{Change, ChangeRefusal, MemberInfo, Membership, quorum_size};
use crate::{EntryId, Identity, Index, MemberId};

/// Removed ids that a membership remembers. An older one may be added again, but only a
/// member that knows the entry that did so is taken for it.
const REMOVED_MAX: usize = 64;

impl Membership {
    /// The incarnation that counts as this member, if one was named.
    pub fn incarnation(&self, id: MemberId) -> Option<u64> {
        let at = self.incarnations.binary_search_by_key(&id, |(named, _)| *named).ok()?;
        self.incarnations.get(at).map(|(_, incarnation)| *incarnation)
    }

    /// Names the incarnation of a member, unless one is named already.
    pub fn with_incarnation(mut self, id: MemberId, incarnation: u64) -> Self {
        if let Err(at) = self.incarnations.binary_search_by_key(&id, |(named, _)| *named) {
            self.incarnations.insert(at, (id, incarnation));
        }
        self
    }

    /// The index of the entry that added this member; 0 for the first members.
    pub fn joined_at(&self, id: MemberId) -> Index {
        let at = self.joined.binary_search_by_key(&id, |(named, _)| *named).ok();
        at.and_then(|at| self.joined.get(at)).map_or(0, |(_, index)| *index)
    }

    /// Says which entry added a member, in place of what was said before.
    pub fn with_joined(mut self, id: MemberId, index: Index) -> Self {
        match self.joined.binary_search_by_key(&id, |(named, _)| *named) {
            Ok(at) => self.joined[at].1 = index,
            Err(at) => self.joined.insert(at, (id, index)),
        }
        self
    }

    /// Whom this membership means by an id.
    pub fn identity(&self, id: MemberId) -> Identity {
        Identity { incarnation: self.incarnation(id), joined_at: self.joined_at(id) }
    }

    /// What is known about a member.
    pub fn info(&self, id: MemberId) -> Option<&MemberInfo> {
        let at = self.infos.binary_search_by_key(&id, |(named, _)| *named).ok()?;
        self.infos.get(at).map(|(_, info)| info)
    }

    /// Says something about a member, in place of what was said before.
    pub fn with_info(mut self, id: MemberId, info: MemberInfo) -> Self {
        match self.infos.binary_search_by_key(&id, |(named, _)| *named) {
            Ok(at) => self.infos[at].1 = info,
            Err(at) => self.infos.insert(at, (id, info)),
        }
        self
    }

    /// A zone without which some majority has no quorum; only where every voter's
    /// zone is known.
    pub fn blocking_zone(&self) -> Option<&Bytes> {
        let zone = |id| self.info(id).map(|info| &info.zone).filter(|zone| !zone.is_empty());
        self.majorities().iter().find_map(|majority| {
            let zones: Option<Vec<&Bytes>> = majority.iter().map(zone).collect();
            let zones = zones?;
            let blocks = |zone: &Bytes| {
                let left = zones.iter().filter(|other| **other != zone).count();
                left < quorum_size(majority.len())
            };
            zones.iter().copied().find(|zone| blocks(zone))
        })
    }

    /// Ids that were members lately and are no more, the latest last.
    pub fn removed(&self) -> &[MemberId] {
        &self.removed
    }

    /// Whoever comes must not have been here before.
    pub(crate) fn check_newcomers(&self, next: &Self) -> Result<(), ChangeRefusal> {
        let goal = next.goal().into_iter();
        let goal = goal.flat_map(|goal| goal.voters.iter().chain(goal.learners.iter()));
        let members = next.members();
        let mut coming = members.iter().chain(goal).filter(|id| !self.contains(*id));
        match coming.find(|id| self.removed.contains(id)) {
            Some(id) => Err(ChangeRefusal::IdUsedBefore { id }),
            None => Ok(()),
        }
    }

    /// This membership as it stands in the log at `since`, where it follows `before` by
    /// this change: who went is remembered, who came is known by the entry, the voters
    /// that were seen are named, and so are goals.
    pub fn logged(
        self,
        before: &Self,
        change: &Change,
        since: EntryId,
        seen: impl Fn(MemberId) -> Option<u64>,
    ) -> Self {
        self.following(before, since, seen).keeping_goals(before, since, &change.kind)
    }

    fn following(
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
        self.infos = infos.filter(|(id, _)| members.contains(*id) || self.aims_at(*id)).collect();
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
