//! Members that are gone for good, as many as every membership in sight can bear.

use std::sync::Arc;

use quorate_core::{Index, MemberId, Membership};

use super::{Member, World};

impl World {
    /// Takes members of the mask down, but leaves a quorum of every membership that
    /// counts for anybody, or may come to count: the two newest in each log.
    pub(crate) fn lose_minority(&mut self, mask: u32) {
        let all: Vec<Arc<Membership>> = self.members.values().flat_map(in_sight).collect();
        for id in self.members.keys().copied().collect::<Vec<_>>() {
            let down = |lost: MemberId| lost == id || self.down.contains(&lost);
            let bearable = all.iter().all(|membership| membership.quorum(|voter| !down(voter)));
            if mask & (1 << id.0) != 0 && bearable {
                self.lose(id);
            }
        }
    }

    /// This one never comes up.
    pub(crate) fn lose(&mut self, id: MemberId) {
        self.down.push(id);
        if let Some(member) = self.members.get_mut(&id) {
            member.forget();
            member.raft = None;
        }
    }

    /// Somebody leads and has committed everything it has.
    pub(crate) fn elects(&self) -> bool {
        self.leader().map(|raft| raft.status()).is_some_and(|status| {
            status.log.commit == status.log.last.index && status.log.last.term == status.term
        })
    }

    /// A live member has since come to a membership without a live quorum: a change
    /// that was under way went on without those that are gone.
    pub(crate) fn walked_into_a_dead_end(&self) -> bool {
        let lost = |id| self.down.contains(&id);
        let live = self.members.iter().filter(|(id, _)| !lost(**id));
        live.flat_map(|(_, member)| in_sight(member))
            .any(|membership| !membership.quorum(|voter| !lost(voter)))
    }

    /// Where each log ends.
    pub(crate) fn ends(&self) -> Vec<Index> {
        let rafts = self.members.values().filter_map(|member| member.raft.as_ref());
        rafts.map(|raft| raft.status().log.last.index).collect()
    }
}

/// The memberships that this member counts by, or may come to.
fn in_sight(member: &Member) -> Vec<Arc<Membership>> {
    let logged = member.disk.entries.iter().filter_map(|entry| entry.change());
    let mut found: Vec<Arc<Membership>> = logged.map(|change| change.membership.clone()).collect();
    found.drain(..found.len().saturating_sub(2));
    found.push(member.disk.snapshot.membership.clone());
    found.extend(member.raft.as_ref().map(|raft| raft.membership().clone()));
    found.retain(|membership| !membership.is_empty());
    found
}
